package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/cli"
	"github.com/openhands/boxkeeper/internal/daemon"
	"github.com/openhands/boxkeeper/internal/engine"
	"github.com/openhands/boxkeeper/internal/telemetry"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/workers"
)

// livesInstallation is whose boxes all lives of these tests are.
const livesInstallation = "0123abcd"

// livesNode is the engine, the store and the workflow worker that all lives of
// this test binary share: each life has a workspace, a provider instance, a clock
// and workers for its activities of its own.
type livesNode struct {
	dir     string
	engine  *engine.Engine
	client  client.Client
	store   *exports.Store
	keys    providers.KeySource
	metrics *telemetry.Metrics
	scrape  string       // where the metrics are
	begun   atomic.Int64 // lives
	undo    []func()
}

// lives holds the one node: it is started by the first life and stopped by
// TestMain.
var lives struct {
	once sync.Once
	node *livesNode
	err  error
}

func sharedLives(t *testing.T) *livesNode {
	t.Helper()
	lives.once.Do(func() { lives.node, lives.err = startLives() })
	require.NoError(t, lives.err)
	return lives.node
}

// stopLives stops the shared node, if a test has started it.
func stopLives() {
	if n := lives.node; n != nil {
		n.stop()
	}
}

func startLives() (n *livesNode, err error) {
	ctx := context.Background() // it outlives the test that happens to be first
	n = &livesNode{}
	defer func() {
		if err != nil {
			n.stop()
		}
	}()
	if n.dir, err = os.MkdirTemp("", "lives-"); err != nil {
		return n, err
	}
	n.undo = append(n.undo, func() { _ = os.RemoveAll(n.dir) })
	n.engine, err = engine.Start(ctx, engine.Options{DataDir: n.dir, NoUI: true, SearchAttributes: daemon.SearchAttributes(), TimeSkipping: true})
	if err != nil {
		return n, err
	}
	n.undo = append(n.undo, n.engine.Stop)
	if n.client, err = client.DialContext(ctx, client.Options{HostPort: n.engine.Address(), Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler))}); err != nil {
		return n, err
	}
	n.undo = append(n.undo, n.client.Close)
	if n.store, err = exports.Open(ctx, n.storeURL()); err != nil {
		return n, err
	}
	n.undo = append(n.undo, func() { _ = n.store.Close() })
	if n.keys, err = providers.NewKeySource(box.Secret(strings.Repeat("k", 32))); err != nil {
		return n, err
	}
	if n.metrics, err = telemetry.NewMetrics(); err != nil {
		return n, err
	}
	n.undo = append(n.undo, func() { _ = n.metrics.Close(ctx) })
	web := &http.Server{Handler: n.metrics.Handler(), ReadHeaderTimeout: time.Minute}
	if n.scrape, err = serveLoopback(web); err != nil {
		return n, err
	}
	n.undo = append(n.undo, func() { _ = web.Close() })
	set, err := workers.New(n.client, workers.Options{Store: n.store, Secret: noSecret})
	if err != nil {
		return n, err
	}
	n.undo = append(n.undo, set.Stop)
	return n, set.Start()
}

func noSecret(string) (box.Secret, error) { return "", errors.New("no life here names a secret") }

func (n *livesNode) storeURL() string { return "file://" + filepath.Join(n.dir, "exports") }

func (n *livesNode) stop() {
	for len(n.undo) > 0 {
		last := len(n.undo) - 1
		n.undo[last]()
		n.undo = n.undo[:last]
	}
}

// skippedClock is the real time and what a test let pass beside it. What follows
// it hears of each piece.
type skippedClock struct {
	mu      sync.Mutex
	skipped time.Duration
	follow  []func(time.Duration)
}

func (c *skippedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.skipped)
}

func (c *skippedClock) skip(d time.Duration) {
	c.mu.Lock()
	c.skipped += d
	follow := c.follow
	c.mu.Unlock()
	for _, f := range follow {
		f(d)
	}
}

// life is one workspace at one provider instance, on the shared engine.
type life struct {
	t        *testing.T
	node     *livesNode
	ws       string
	provider *providers.Provider
	clock    *skippedClock // of the provider and its boxes
	went     time.Duration // what passed for the workflow beside the real time
	told     *toldNotices
}

// newLife serves a driver under an instance name of its own and makes nothing yet.
// The clock is the driver's service's, too.
func newLife(t *testing.T, name string, clock *skippedClock, d driver.Driver) *life {
	t.Helper()
	n := sharedLives(t)
	name = fmt.Sprintf("%s-%d", name, n.begun.Add(1)) // an id is used once, also with -count
	l := &life{t: t, node: n, ws: name, clock: clock, told: &toldNotices{}}
	var err error
	l.provider, err = providers.New(name, d, &providers.Options{Installation: livesInstallation, Keys: n.keys})
	require.NoError(t, err)
	set, err := workers.New(n.client, workers.Options{
		Providers: []*providers.Provider{l.provider}, Store: n.store, Notify: l.told, Secret: noSecret, Steps: n.metrics.Steps(), NoWorkflows: true,
	})
	require.NoError(t, err)
	require.NoError(t, set.Start())
	t.Cleanup(set.Stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("why, at the end: %s", l.text("box", "why", l.ws))
		}
	})
	return l
}

// run runs a command of boxkeeper in this process.
func (l *life) run(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	env := cli.Env{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Environ: []string{
		"BOXKEEPER_DATA=" + l.node.dir, "BOXKEEPER_LISTEN=off", "TEMPORAL_ADDRESS=" + l.node.engine.Address(),
	}}
	code = cli.Execute(context.WithoutCancel(l.t.Context()), cli.Root(env)) // also in a cleanup
	return out.String(), errs.String(), code
}

// text is what a command prints, whatever came of it.
func (l *life) text(args ...string) string {
	out, errs, _ := l.run(args...)
	return out + errs
}

// do runs a command that must succeed.
func (l *life) do(args ...string) string {
	l.t.Helper()
	out, errs, code := l.run(args...)
	require.Zero(l.t, code, "boxkeeper %s: %s", strings.Join(args, " "), errs)
	return out
}

// replyOf runs a command with -o json and reads its answer.
func replyOf[A any](l *life, args ...string) A {
	l.t.Helper()
	var answer A
	require.NoError(l.t, json.Unmarshal([]byte(l.do(append(args, "-o", "json")...)), &answer))
	return answer
}

func (l *life) create(flags ...string) box.Status {
	l.t.Helper()
	l.do(append([]string{"box", "create", l.ws, "--provider", l.provider.Name(), "--owner", "ann", "--wait"}, flags...)...)
	return l.await(box.StateRunning)
}

func (l *life) status() (box.Status, error) {
	var s box.Status
	return s, cli.Query(l.t.Context(), l.node.client, l.ws, box.QueryStatus, &s)
}

func (l *life) why() box.Why {
	l.t.Helper()
	var w box.Why
	require.NoError(l.t, cli.Query(l.t.Context(), l.node.client, l.ws, box.QueryWhy, &w))
	return w
}

// await waits, for real, until the life is in one of these states.
func (l *life) await(states ...box.State) box.Status {
	l.t.Helper()
	return l.awaitThat(fmt.Sprintf("the state is one of %v", states), func(s box.Status) bool {
		for _, want := range states {
			if s.State == want {
				return true
			}
		}
		return false
	})
}

func (l *life) awaitThat(what string, is func(box.Status) bool) (last box.Status) {
	l.t.Helper()
	eventually(l.t, within, func() (err error) {
		if last, err = l.status(); err == nil && !is(last) {
			err = fmt.Errorf("%s is not so that %s: %s (%s), next %s; failure %+v", l.ws, what, last.State, last.Reason.Text, last.Next, last.Failure)
		}
		return err
	})
	return last
}

// rest waits until nothing is under way: the next thing has a time that has not
// come, or only an event brings it.
func (l *life) rest() box.Status {
	l.t.Helper()
	return l.awaitThat("it rests", func(s box.Status) bool {
		switch s.State { //nolint:exhaustive // the others go on by themselves
		case box.StateBoxArchived, box.StateAbandoned, box.StateLost, box.StateCreateFailed:
			return true
		}
		if !l.idle() {
			return false
		}
		return s.NextAt.After(l.now()) || s.NextAt.IsZero() && (s.Next == box.StepWait || s.State == box.StateDeleteBlocked)
	})
}

// idle reports whether no step of the workflow runs: what it shows as next may be
// under way.
func (l *life) idle() bool {
	d, err := l.node.client.DescribeWorkflowExecution(l.t.Context(), box.WorkflowID(l.ws), "")
	return err == nil && len(d.GetPendingActivities()) == 0 && d.GetPendingWorkflowTask() == nil
}

// now is the time of the workflow. The clock of the provider may be ahead of it.
func (l *life) now() time.Time { return time.Now().Add(l.went) }

// pass lets a time go by, from the provider's present on: for the provider and its
// boxes first, then for the workflow, from one deadline of the workflow to the
// next, so that each of them acts at its own time.
func (l *life) pass(d time.Duration) box.Status {
	l.t.Helper()
	for end := l.clock.Now().Add(d); ; {
		s := l.rest()
		switch now := l.now(); {
		case s.State == box.StateBoxArchived || end.Sub(now) < time.Millisecond:
			return s
		case s.NextAt.After(now) && s.NextAt.Before(end):
			l.meet(s.NextAt)
		default:
			l.jump(end.Sub(now))
		}
	}
}

// meet lets time pass until a deadline of the workflow. The last moment is waited for.
func (l *life) meet(deadline time.Time) {
	l.t.Helper()
	const moment = 200 * time.Millisecond
	for deadline.Sub(l.now()) > 2*moment {
		l.jump(deadline.Sub(l.now()) - moment)
		if s := l.rest(); !s.NextAt.Equal(deadline) {
			return // something else came first
		}
	}
	time.Sleep(deadline.Sub(l.now()) + 10*time.Millisecond)
}

// jump lets a time pass in which the workflow has nothing to do. A short one is waited
// for: a jump whose end has come before the engine makes it, because it was short or
// because a step was running, is taken on to the next timer [Temporal 1.32.1].
func (l *life) jump(d time.Duration) {
	l.t.Helper()
	const short = 200 * time.Millisecond
	if d < short {
		time.Sleep(d)
		return
	}
	l.clock.skip(max(0, l.now().Add(d).Sub(l.clock.Now())))
	l.skipOnce(d)
	seen, err := l.node.client.DescribeWorkflowExecution(l.t.Context(), box.WorkflowID(l.ws), "")
	require.NoError(l.t, err)
	l.went = time.Until(seen.GetWorkflowExtendedInfo().GetTimeSkippingInfo().GetCurrentTime().AsTime())
}

// skipOnce is engine.FastForward with one skip at most: with more, the engine can take
// the workflow on to the timer after the end of the jump [Temporal 1.32.1]. It ends
// early at a timer that the workflow left armed.
func (l *life) skipOnce(d time.Duration) {
	l.t.Helper()
	execution, id := &commonpb.WorkflowExecution{WorkflowId: box.WorkflowID(l.ws)}, uuid.NewString()
	set := func(config *commonpb.TimeSkippingConfig) error {
		_, err := l.node.client.WorkflowService().UpdateWorkflowExecutionOptions(l.t.Context(), &workflowservice.UpdateWorkflowExecutionOptionsRequest{
			Namespace: engine.DefaultNamespace, WorkflowExecution: execution,
			WorkflowExecutionOptions: &workflowpb.WorkflowExecutionOptions{TimeSkippingConfig: config},
			UpdateMask:               &fieldmaskpb.FieldMask{Paths: []string{"time_skipping_config"}},
		})
		return err
	}
	require.NoError(l.t, set(&commonpb.TimeSkippingConfig{
		Enabled: true, MaxSessionSkipCount: 1, FastForwardConfig: &commonpb.FastForwardConfig{Id: id, Duration: durationpb.New(d)},
	}))
	for {
		poll, err := l.node.client.WorkflowService().PollWorkflowExecutionTimeSkipping(l.t.Context(), &workflowservice.PollWorkflowExecutionTimeSkippingRequest{
			Namespace: engine.DefaultNamespace, WorkflowExecution: execution, FastForwardId: id,
		})
		if _, ended := errors.AsType[*serviceerror.NotFound](err); ended {
			return
		}
		require.NoError(l.t, err)
		if poll.GetFastForwardPollingResult() != enumspb.FAST_FORWARD_POLLING_RESULT_POLL_TIMEOUT {
			break
		}
	}
	if err := set(&commonpb.TimeSkippingConfig{}); err != nil {
		_, ended := errors.AsType[*serviceerror.NotFound](err)
		require.True(l.t, ended, "%v", err)
	}
}

// toldNotices keeps the notices of one life; nobody takes other events.
type toldNotices struct {
	mu   sync.Mutex
	seen []box.Event
}

var _ activities.Notifier = (*toldNotices)(nil)

// Listeners are none: a notice needs no listener.
func (*toldNotices) Listeners() []box.Listener { return nil }

// Deliver takes every notice.
func (n *toldNotices) Deliver(_ context.Context, p box.Posting) ([]box.Delivery, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen = append(n.seen, p.Events...)
	return nil, nil
}

func (n *toldNotices) all() []box.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]box.Event(nil), n.seen...)
}

// looks asks for everything that people and programs look at: none of it may
// reach the box.
func (l *life) looks() {
	l.t.Helper()
	require.Contains(l.t, l.do("box", "show", l.ws), l.ws)
	require.Contains(l.t, l.do("box", "why", l.ws), l.ws+" is ")
	eventually(l.t, within, func() error { // the engine's index is a moment behind
		if out := l.do("box", "list", "--provider", l.provider.Name(), "-o", "json"); !strings.Contains(out, `"`+l.ws+`"`) {
			return errors.New("the list lacks " + l.ws)
		}
		return nil
	})
	request, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, l.node.scrape, http.NoBody)
	require.NoError(l.t, err)
	answer, err := (&http.Client{Timeout: within}).Do(request)
	require.NoError(l.t, err)
	defer answer.Body.Close() //nolint:errcheck // read to its end
	page, err := io.ReadAll(answer.Body)
	require.NoError(l.t, err)
	require.Contains(l.t, string(page), `provider="`+l.provider.Name()+`"`)
}
