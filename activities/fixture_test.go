package activities_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

const (
	installation = "0a1b2c3d"
	workspace    = "demo"
	name         = "bk-0a1b2c3d-demo-1"
	secretValue  = "tr0ub4dor-value"
)

// rig is one provider instance's activities over a fake cloud, a real store and
// a fake agent-server.
type rig struct {
	t      *testing.T
	cloud  *fakebox.Cloud
	server *agentservertest.Server
	url    string // where a box's agent-server answers
	store  *exports.Store
	boxes  *activities.Boxes
	beats  *counter
	steps  *steps
}

// newRig returns a rig whose boxes have the server inside; nil options mean the
// usual one.
func newRig(t *testing.T, opts *agentservertest.Options, row ...func(*box.Capabilities)) *rig {
	t.Helper()
	if opts == nil {
		opts = &agentservertest.Options{}
	}
	opts.Root = t.TempDir()
	server, err := agentservertest.Start(*opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	r := newRigAt(t, server.URL, row...)
	r.server = server
	return r
}

// newRigAt is newRig for boxes whose agent-server is at url.
func newRigAt(t *testing.T, url string, row ...func(*box.Capabilities)) *rig {
	t.Helper()
	claims := fakebox.DefaultRow()
	claims.ResumeWait = box.Span(600 * time.Millisecond)
	for _, change := range row {
		change(&claims)
	}
	r := &rig{t: t, url: url, beats: &counter{}, steps: &steps{}}
	r.cloud = fakebox.New(&fakebox.Options{Row: claims, AgentServer: func(string) string { return r.url }})
	keys, err := providers.NewKeySource(box.Secret(strings.Repeat("s", 32)))
	if err != nil {
		t.Fatal(err)
	}
	provider, err := providers.New("fake", r.cloud.Driver(installation), &providers.Options{Installation: installation, Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	if r.store, err = exports.OpenWith(t.Context(), "mem://", exports.Options{SpoolDir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.store.Close() })
	r.boxes = &activities.Boxes{Provider: provider, Store: r.store, Notify: notifier{}, Secret: resolve, Steps: r.steps}
	return r
}

// resolve knows one secret and is careless in what it says of others.
func resolve(reference string) (box.Secret, error) {
	if reference == "env:TOKEN" {
		return secretValue, nil
	}
	return "", errors.New("no such variable")
}

type counter struct {
	mu   sync.Mutex
	n    int
	told string // the newest text of a heartbeat
}

func (c *counter) hear(details converter.EncodedValues) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var text string
	if c.n++; details != nil && details.HasValues() && details.Get(&text) == nil {
		c.told = text
	}
}

func (c *counter) add() { c.mu.Lock(); defer c.mu.Unlock(); c.n++ }
func (c *counter) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// steps keeps what was recorded for the metrics.
type steps struct {
	mu   sync.Mutex
	seen []string
}

func (s *steps) Record(step box.StepKind, provider string, class box.Class, _ time.Duration, _ int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf("%s %s %s", step, provider, class))
}

func (s *steps) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) == 0 {
		return ""
	}
	return s.seen[len(s.seen)-1]
}

// run carries out one activity in the engine's test environment.
func run[I any](ctx context.Context, r *rig, act func(context.Context, I) (box.Outcome, error), in I) (box.Outcome, error) {
	r.t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(worker.Options{BackgroundActivityContext: ctx})
	env.RegisterActivityWithOptions(act, activity.RegisterOptions{Name: "act"})
	env.SetOnActivityHeartbeatListener(func(_ *activity.Info, details converter.EncodedValues) { r.beats.hear(details) })
	value, err := env.ExecuteActivity("act", in)
	if err != nil {
		return box.Outcome{}, err
	}
	var out box.Outcome
	if err := value.Get(&out); err != nil {
		r.t.Fatal(err)
	}
	return out, nil
}

// do is run for an activity that must succeed.
func do[I any](r *rig, act func(context.Context, I) (box.Outcome, error), in I) box.Outcome {
	r.t.Helper()
	out, err := run(r.t.Context(), r, act, in)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// fails is run for an activity that must fail with this class.
func fails[I any](r *rig, want box.Class, act func(context.Context, I) (box.Outcome, error), in I) box.StepFailure {
	r.t.Helper()
	out, err := run(r.t.Context(), r, act, in)
	if err == nil {
		r.t.Fatalf("it succeeded with %+v, want %s", out, want)
	}
	failure := activities.FailureOf(err)
	if failure.Class != want {
		r.t.Fatalf("class %s: %s; want %s", failure.Class, failure.Message, want)
	}
	if strings.Contains(fmt.Sprint(err), secretValue) {
		r.t.Errorf("the error tells a secret: %v", err)
	}
	return failure
}

func spec() box.Spec {
	return box.Spec{Version: box.WireVersion, Workspace: workspace, Owner: "ana", Provider: "fake"}
}

func creating(step string) activities.CreateInput {
	return activities.CreateInput{Spec: spec(), Epoch: 1, Step: step, WorkflowID: box.WorkflowID(workspace)}
}

// made creates the box and returns it as the target of a step.
func (r *rig) made(step string) activities.Target {
	r.t.Helper()
	out := do(r, r.boxes.Create, creating("e1-s1"))
	return activities.Target{Workspace: workspace, Ref: out.Observation.Ref, Step: step}
}

func (r *rig) write(c agentservertest.Conversation) string {
	r.t.Helper()
	id, err := agentservertest.WriteConversation(r.server.Conversations(), c)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

func (r *rig) append(id string) {
	r.t.Helper()
	if _, err := agentservertest.AppendEvent(r.server.Conversations(), id, agentservertest.Event{Text: "more"}); err != nil {
		r.t.Fatal(err)
	}
}

func events(n int) []agentservertest.Event {
	return slices.Repeat([]agentservertest.Event{{Text: "hello"}}, n)
}

// ledger lists the entries as "kind/id".
func (r *rig) ledger() []string {
	r.t.Helper()
	entries, err := r.store.Ledger(r.t.Context(), workspace)
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if strings.Contains(string(e.Data), secretValue) {
			r.t.Errorf("the ledger holds a secret: %s", e.Data)
		}
		out = append(out, string(e.Kind)+"/"+e.ID)
	}
	return out
}

// calls counts the calls of one method of the driver.
func (r *rig) calls(op fakebox.Op) int {
	n := 0
	for _, c := range r.cloud.Calls() {
		if c.Op == op {
			n++
		}
	}
	return n
}

func (r *rig) phase() box.Phase {
	s, _ := r.cloud.Statement(name)
	return s.Phase
}
