package e2e_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"google.golang.org/grpc"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/daemon"
	"github.com/openhands/boxkeeper/internal/engine"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/fakebox"
	"github.com/openhands/boxkeeper/workers"
)

// fakeNode is an engine and workers in this process, over boxes in memory: what
// it measures is ours and the engine's, not a provider's.
type fakeNode struct {
	engine   *engine.Engine
	client   client.Client // of the test
	cloud    *fakebox.Cloud
	driver   *touchedDriver
	provider *providers.Provider
	inside   *agentservertest.Server // the agent-server of all boxes
	worked   *callCounter            // what the workers ask of the engine
	undo     []func()
}

// newFakeNode starts a node on a data directory. Stop it.
func newFakeNode(ctx context.Context, dir string, timeSkipping bool) (n *fakeNode, err error) {
	n = &fakeNode{worked: &callCounter{calls: map[string]int{}}}
	defer func() {
		if err != nil {
			n.stop()
		}
	}()
	n.engine, err = engine.Start(ctx, engine.Options{DataDir: dir, NoUI: true, SearchAttributes: daemon.SearchAttributes(), TimeSkipping: timeSkipping})
	if err != nil {
		return n, err
	}
	n.undo = append(n.undo, n.engine.Stop)
	if n.client, err = n.dial(ctx); err != nil {
		return n, err
	}
	counted, err := n.dial(ctx, grpc.WithChainUnaryInterceptor(n.worked.count))
	if err != nil {
		return n, err
	}
	if n.inside, err = agentservertest.Start(agentservertest.Options{}); err != nil {
		return n, err
	}
	n.undo = append(n.undo, n.inside.Close)
	n.inside.Break(agentservertest.Faults{Idle: time.Hour})
	n.cloud = fakebox.New(&fakebox.Options{Now: time.Now, AgentServer: func(string) string { return n.inside.URL }})
	keys, err := providers.NewKeySource(box.Secret(strings.Repeat("k", 32)))
	if err != nil {
		return n, err
	}
	const installation = "0123abcd"
	n.driver = &touchedDriver{Driver: n.cloud.Driver(installation), first: map[string]time.Time{}}
	if n.provider, err = providers.New("fake", n.driver, &providers.Options{Installation: installation, Keys: keys}); err != nil {
		return n, err
	}
	store, err := exports.Open(ctx, "file://"+filepath.Join(dir, "exports"))
	if err != nil {
		return n, err
	}
	n.undo = append(n.undo, func() { _ = store.Close() })
	set, err := workers.New(counted, workers.Options{
		Providers: []*providers.Provider{n.provider}, Store: store, Secret: func(string) (box.Secret, error) { return "", nil },
	})
	if err != nil {
		return n, err
	}
	n.undo = append(n.undo, set.Stop)
	return n, set.Start()
}

func (n *fakeNode) dial(ctx context.Context, options ...grpc.DialOption) (client.Client, error) {
	c, err := client.DialContext(ctx, client.Options{
		HostPort: n.engine.Address(), Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		ConnectionOptions: client.ConnectionOptions{DialOptions: options},
	})
	if err == nil {
		n.undo = append(n.undo, c.Close)
	}
	return c, err
}

func (n *fakeNode) stop() {
	for len(n.undo) > 0 {
		last := len(n.undo) - 1
		n.undo[last]()
		n.undo = n.undo[:last]
	}
}

// startFakeNode is newFakeNode for as long as a test or benchmark runs.
func startFakeNode(tb testing.TB, timeSkipping bool) *fakeNode {
	tb.Helper()
	n, err := newFakeNode(tb.Context(), tb.TempDir(), timeSkipping)
	require.NoError(tb, err)
	tb.Cleanup(n.stop)
	return n
}

// runningSince makes a box and the facts of a workflow that has owned it since a
// time: what continue-as-new would carry. Thousands of boxes then share a
// deadline, and no creation stands in front of what is measured.
func (n *fakeNode) runningSince(ctx context.Context, workspace string, p box.Policy, since time.Time) (*box.Facts, error) {
	spec := box.Spec{Version: box.WireVersion, Workspace: workspace, Owner: "fleet", Provider: n.provider.Name(), Policy: p}
	seen, err := n.provider.Create(ctx, spec, 1, driver.Start{})
	if err != nil {
		return nil, err
	}
	f := box.NewFacts(spec, n.provider.Capabilities(), since)
	n.apply(&f, box.Outcome{Observation: seen, Ready: true}, since)
	return &f, nil
}

// suspendedSince is runningSince for a box that was suspended at a time.
func (n *fakeNode) suspendedSince(ctx context.Context, workspace string, p box.Policy, since time.Time) (*box.Facts, error) {
	f, err := n.runningSince(ctx, workspace, p, since.Add(-time.Minute))
	if err != nil {
		return nil, err
	}
	f.Suspend(box.Request{ID: "rest"}, since)
	digest := box.HistoryDigest(nil)
	for range 10 {
		switch step := box.Next(f, since); step.Kind {
		case box.StepQuiesce:
			n.apply(f, box.Outcome{Use: &box.Use{IdleFor: box.Span(time.Hour), Digest: digest}}, since)
		case box.StepReclaim:
			n.apply(f, box.Outcome{}, since)
		case box.StepExport:
			n.apply(f, box.Outcome{Receipt: box.Receipt{Workspace: workspace, Epoch: 1, Key: "exports/" + workspace, SHA256: "s", Digest: digest}}, since)
		case box.StepSuspend:
			seen, err := n.provider.Suspend(ctx, f.Ref)
			if err != nil {
				return nil, err
			}
			n.apply(f, box.Outcome{Observation: seen}, since)
		case box.StepWait:
			return f, nil
		default:
			return nil, fmt.Errorf("step %s on the way to suspended", step.Kind)
		}
	}
	return nil, fmt.Errorf("state is %s", f.State)
}

func (n *fakeNode) apply(f *box.Facts, out box.Outcome, now time.Time) {
	step := box.Next(f, now)
	f.Begin(step, now)
	f.Apply(step, out, now)
}

// carryOn starts the workflow that owns the box of these facts.
func (n *fakeNode) carryOn(ctx context.Context, f *box.Facts, turnsPerRun int) error {
	_, err := n.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: box.WorkflowID(f.Spec.Workspace), TaskQueue: box.TaskQueue},
		box.WorkflowType, box.Input{Spec: f.Spec, Capabilities: f.Capabilities, Carried: f, TurnsPerRun: turnsPerRun})
	return err
}

func (n *fakeNode) status(ctx context.Context, workspace string) (box.Status, error) {
	value, err := n.client.QueryWorkflow(ctx, box.WorkflowID(workspace), "", box.QueryStatus)
	if err != nil {
		return box.Status{}, err
	}
	var s box.Status
	return s, value.Get(&s)
}

// touchedDriver notes when an activity first reached for each box.
type touchedDriver struct {
	*fakebox.Driver

	mu    sync.Mutex
	first map[string]time.Time
}

// Endpoint is what each step in a box begins with.
func (d *touchedDriver) Endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	now := time.Now()
	d.mu.Lock()
	if _, known := d.first[ref.Name]; !known {
		d.first[ref.Name] = now
	}
	d.mu.Unlock()
	return d.Driver.Endpoint(ctx, ref)
}

func (d *touchedDriver) touched() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.first)
}

func (d *touchedDriver) firstTouch(name string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.first[name]
}

// callCounter counts requests to the engine by method. Waiting for work is not
// counted: it costs the same whether one box sleeps or a thousand.
type callCounter struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *callCounter) count(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if name := method[strings.LastIndexByte(method, '/')+1:]; !strings.HasPrefix(name, "Poll") {
		c.mu.Lock()
		c.calls[name]++
		c.mu.Unlock()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// reset forgets what was counted and returns it.
func (c *callCounter) reset() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counted := c.calls
	c.calls = map[string]int{}
	return counted
}

// inParallel does n things, some at a time, and returns the first error.
func inParallel(n int, do func(i int) error) error {
	const atOnce = 16
	var wait sync.WaitGroup
	next, failed := make(chan int), make(chan error, atOnce)
	for range atOnce {
		wait.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					select {
					case failed <- err:
					default: // one is told
					}
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wait.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// engineCost is what a workflow cost in the engine, over all its runs: events of
// its histories, and actions as a hosted Temporal bills them.
type engineCost struct {
	runs, events, actions, tasks, signals, timers int
}

func (n *fakeNode) costOf(ctx context.Context, workspace string) (engineCost, error) {
	var sum engineCost
	id := box.WorkflowID(workspace)
	var page []byte
	for {
		listed, err := n.client.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Query: "WorkflowId = '" + id + "'", NextPageToken: page})
		if err != nil {
			return sum, err
		}
		for _, e := range listed.GetExecutions() {
			sum.runs++
			it := n.client.GetWorkflowHistory(ctx, id, e.GetExecution().GetRunId(), false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
			for it.HasNext() {
				event, err := it.Next()
				if err != nil {
					return sum, err
				}
				sum.add(event.GetEventType())
			}
		}
		if page = listed.GetNextPageToken(); len(page) == 0 {
			return sum, nil
		}
	}
}

func (s *engineCost) add(t enumspb.EventType) {
	s.events++
	switch t {
	case enumspb.EVENT_TYPE_TIMER_STARTED:
		s.timers++
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
		s.signals++
	case enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
		s.tasks++
		return
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
		enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, enumspb.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
	default:
		return
	}
	s.actions++
}
