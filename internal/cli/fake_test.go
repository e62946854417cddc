package cli_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	workflowservicepb "go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/cli"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// fakeTemporal is a Temporal whose workflows are the facts and rules of package
// box themselves: requests are refused and answered as a worker would.
type fakeTemporal struct {
	client.Client // a call that a test did not expect ends it

	mu       sync.Mutex
	facts    map[string]*box.Facts
	inputs   map[string]*commonpb.Payloads
	closed   map[string]enumspb.WorkflowExecutionStatus
	started  []client.StartWorkflowOptions
	updates  []client.UpdateWorkflowOptions
	noWorker bool
	unserved map[string]bool                      // queues that no worker serves
	failed   map[string][]*historypb.HistoryEvent // histories of workflows that failed
	pending  []*workflowpb.PendingActivityInfo    // of every workflow
	// lost, by method, are answers that never come: the request is carried out.
	lost map[string]bool
	// fail, by method, is what is answered instead.
	fail map[string]error
	// after is called after each query, to let the world move.
	after func(f *box.Facts)
	// before is called before each start, to let somebody else be first.
	before func(workspace string)
	ticks  time.Duration    // the clock moves with each signal
	clock  func() time.Time // of the workflows; nil stands still at now
	slow   time.Duration    // how long a signal takes until it is handled
	late   time.Duration    // how long the answer of an update is on its way
	lists  []*workflowservicepb.ListWorkflowExecutionsRequest
}

func newFake() *fakeTemporal {
	return &fakeTemporal{
		facts: map[string]*box.Facts{}, inputs: map[string]*commonpb.Payloads{}, closed: map[string]enumspb.WorkflowExecutionStatus{},
		lost: map[string]bool{}, fail: map[string]error{},
	}
}

// at is the time of the workflows.
func (f *fakeTemporal) at() time.Time {
	if f.clock != nil {
		return f.clock()
	}
	return now
}

func encode(value any) *commonpb.Payloads {
	payloads, err := converter.GetDefaultDataConverter().ToPayloads(value)
	if err != nil {
		panic(err)
	}
	return payloads
}

// through sends a value over the wire, as a client and a worker do.
func through[T any](value any) T {
	var out T
	if err := converter.GetDefaultDataConverter().FromPayloads(encode(value), &out); err != nil {
		panic(err)
	}
	return out
}

// encoded is an answer as it travels: a copy, not what it was made from.
type encoded struct{ payloads *commonpb.Payloads }

func (encoded) HasValue() bool { return true }

func (e encoded) Get(to any) error {
	return converter.GetDefaultDataConverter().FromPayloads(e.payloads, to)
}

func workspaceOf(id string) string { return strings.TrimPrefix(id, "box/") }

func (f *fakeTemporal) Close() {}

func (f *fakeTemporal) DescribeTaskQueue(_ context.Context, queue string, _ enumspb.TaskQueueType) (*workflowservicepb.DescribeTaskQueueResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["describe-queue"]; err != nil {
		return nil, err
	}
	if f.noWorker || f.unserved[queue] {
		return &workflowservicepb.DescribeTaskQueueResponse{}, nil
	}
	return &workflowservicepb.DescribeTaskQueueResponse{Pollers: []*taskqueuepb.PollerInfo{{Identity: "w"}}}, nil
}

func (f *fakeTemporal) DescribeWorkflowExecution(_ context.Context, id, _ string) (*workflowservicepb.DescribeWorkflowExecutionResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	status, closed := f.closed[workspaceOf(id)]
	if !closed {
		if f.facts[workspaceOf(id)] == nil {
			return nil, serviceerror.NewNotFound("workflow not found for ID: " + id)
		}
		status = enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
	}
	return &workflowservicepb.DescribeWorkflowExecutionResponse{PendingActivities: f.pending, WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{
		Execution: &commonpb.WorkflowExecution{WorkflowId: id, RunId: "run-1"}, Status: status, SearchAttributes: f.attributes(workspaceOf(id)),
	}}, nil
}

func (f *fakeTemporal) attributes(workspace string) *commonpb.SearchAttributes {
	facts := f.facts[workspace]
	if facts == nil {
		return nil
	}
	return &commonpb.SearchAttributes{IndexedFields: map[string]*commonpb.Payload{
		box.SearchState: encode(string(facts.State)).Payloads[0], box.SearchProvider: encode(facts.Spec.Provider).Payloads[0],
	}}
}

type run struct {
	client.WorkflowRun
	id string
}

func (r run) GetID() string    { return r.id }
func (r run) GetRunID() string { return "run-1" }

func (f *fakeTemporal) ExecuteWorkflow(_ context.Context, o client.StartWorkflowOptions, _ any, args ...any) (client.WorkflowRun, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["start"]; err != nil {
		return nil, err
	}
	workspace := workspaceOf(o.ID)
	if f.before != nil {
		f.before(workspace)
	}
	closed := f.closed[workspace]
	again := o.WorkflowIDReusePolicy == enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY &&
		closed != 0 && closed != enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED
	if f.facts[workspace] != nil && !again || closed != 0 && !again {
		return nil, serviceerror.NewWorkflowExecutionAlreadyStarted("already started", "r", "run-1")
	}
	in := through[box.Input](args[0])
	facts := box.NewFacts(in.Spec, in.Capabilities, now)
	if in.Rebuilt != nil {
		facts = *in.Rebuilt
		facts.Revive(now)
	}
	delete(f.closed, workspace)
	f.facts[workspace], f.inputs[workspace] = &facts, encode(args[0])
	f.started = append(f.started, o)
	if f.lost["start"] {
		return nil, context.DeadlineExceeded
	}
	return run{id: o.ID}, nil
}

type events struct {
	client.HistoryEventIterator
	all []*historypb.HistoryEvent
}

func (e *events) HasNext() bool { return len(e.all) > 0 }

func (e *events) Next() (*historypb.HistoryEvent, error) {
	first := e.all[0]
	e.all = e.all[1:]
	return first, nil
}

func (f *fakeTemporal) GetWorkflowHistory(_ context.Context, id, _ string, _ bool, _ enumspb.HistoryEventFilterType) client.HistoryEventIterator {
	f.mu.Lock()
	defer f.mu.Unlock()
	if history, ok := f.failed[workspaceOf(id)]; ok {
		return &events{all: history}
	}
	return &events{all: []*historypb.HistoryEvent{{Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
		WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{Input: f.inputs[workspaceOf(id)]},
	}}}}
}

func (f *fakeTemporal) QueryWorkflow(_ context.Context, id, _, query string, _ ...any) (converter.EncodedValue, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["query"]; err != nil {
		return nil, err
	}
	facts := f.facts[workspaceOf(id)]
	if facts == nil {
		return nil, serviceerror.NewNotFound("workflow not found for ID: " + id)
	}
	if f.after != nil {
		defer f.after(facts)
	}
	if query == box.QueryWhy {
		return encoded{encode(facts.WhyAt(f.at()))}, nil
	}
	return encoded{encode(facts.StatusAt(f.at()))}, nil
}

func (f *fakeTemporal) SignalWorkflow(_ context.Context, id, _, name string, arg any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["signal"]; err != nil {
		return err
	}
	facts := f.facts[workspaceOf(id)]
	if facts == nil || f.closed[workspaceOf(id)] != 0 {
		return serviceerror.NewNotFound("workflow execution already completed")
	}
	at := f.at().Add(f.ticks)
	f.ticks += time.Millisecond
	handle := func() {
		switch name {
		case box.SignalConfirmDelete:
			facts.ConfirmDelete(through[box.ConfirmDelete](arg), at)
		case box.SignalCancelDelete:
			facts.CancelDelete(through[box.CancelDelete](arg), at)
		case box.SignalRenew:
			if r := through[box.RenewRequest](arg); facts.CheckRenew(r) == nil {
				facts.Renew(r, at)
			}
		case box.SignalHold:
			facts.SetHold(through[box.HoldSignal](arg), at)
		}
	}
	if f.slow == 0 {
		handle()
		return nil
	}
	time.AfterFunc(f.slow, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		handle()
	})
	return nil
}

type handle struct {
	client.WorkflowUpdateHandle
	answer encoded
	late   time.Duration
	err    error
}

func (h handle) Get(_ context.Context, to any) error {
	time.Sleep(h.late)
	if h.err != nil {
		return h.err
	}
	return h.answer.Get(to)
}

func (f *fakeTemporal) UpdateWorkflow(_ context.Context, o client.UpdateWorkflowOptions) (client.WorkflowUpdateHandle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["update"]; err != nil {
		return nil, err
	}
	workspace := workspaceOf(o.WorkflowID)
	facts := f.facts[workspace]
	if facts == nil || f.closed[workspace] != 0 {
		return nil, serviceerror.NewNotFound("workflow execution already completed")
	}
	f.updates = append(f.updates, o)
	answer, err := serve(facts, o.UpdateName, o.Args[0], f.at())
	if f.lost["update"] {
		return nil, &client.WorkflowUpdateServiceTimeoutOrCanceledError{}
	}
	if err != nil {
		// As the worker maps it.
		return handle{err: temporal.NewApplicationError(err.Error(), string(box.ClassOf(err)))}, nil
	}
	return handle{answer: encoded{encode(answer)}, late: f.late}, nil
}

// serve answers an update by the rules of package box.
func serve(f *box.Facts, name string, arg any, now time.Time) (any, error) {
	switch name {
	case box.UpdateConnect:
		r := through[box.ConnectRequest](arg)
		if err := f.CheckConnect(r); err != nil {
			return nil, err
		}
		return f.Connect(r, now), nil
	case box.UpdateRenew:
		r := through[box.RenewRequest](arg)
		if err := f.CheckRenew(r); err != nil {
			return nil, err
		}
		return f.Renew(r, now), nil
	case box.UpdateRelease:
		r := through[box.ReleaseRequest](arg)
		return f.Release(r.HolderID, now), box.CheckRequest(r.Request)
	case box.UpdateSuspend:
		r := through[box.Request](arg)
		if err := f.CheckSuspend(r); err != nil {
			return nil, err
		}
		return f.Suspend(r, now), nil
	case box.UpdateResume:
		r := through[box.Request](arg)
		if err := f.CheckResume(r); err != nil {
			return nil, err
		}
		return f.Resume(r, now), nil
	case box.UpdateKeep, box.UpdateFreeze:
		r := through[box.SwitchAsk](arg)
		if err := f.CheckSwitch(r); err != nil {
			return nil, err
		}
		if name == box.UpdateKeep {
			return f.Keep(r, now), nil
		}
		return f.Freeze(r, now), nil
	case box.UpdateSetPolicy:
		r := through[box.SetPolicyAsk](arg)
		if err := f.CheckSetPolicy(r); err != nil {
			return nil, err
		}
		return f.SetPolicy(r, now), nil
	case box.UpdateRequestDelete:
		r := through[box.RequestDeleteAsk](arg)
		if err := f.CheckRequestDelete(r); err != nil {
			return nil, err
		}
		return f.RequestDelete(r, now), nil
	case box.UpdateReclaim:
		r := through[box.ReclaimAsk](arg)
		if err := f.CheckAsk(box.Ask{Kind: box.AskReclaim, ID: r.ID, Reclaim: r.ReclaimRequest}); err != nil {
			return nil, err
		}
		return box.ReclaimReport{
			PlanID: "plan-1", DryRun: r.DryRun, PlannedBytes: 3 << 20, RemovedBytes: 3 << 20, FreedBytes: 2 << 20,
			Items: []box.ReclaimItem{{Path: "home/.cache\x1b[2J", Rule: "npm", Tier: box.TierCaches, Bytes: 3 << 20}},
		}, nil
	case box.UpdateExport:
		return f.Receipt, nil
	case box.UpdateReplace:
		r := through[box.Request](arg)
		if err := f.CheckReplace(r); err != nil {
			return nil, err
		}
		return f.Replace(r, now), nil
	case box.UpdateRestore:
		r := through[box.RestoreAsk](arg)
		if err := f.CheckRestore(r); err != nil {
			return nil, err
		}
		return f.Restore(r, now), nil
	case box.UpdateAdopt:
		r := through[box.AdoptAsk](arg)
		if err := f.CheckAdopt(r); err != nil {
			return nil, err
		}
		f.TakeOver(r, now)
		return carryOut(f, now, box.Outcome{Observation: box.Observation{
			Ref: box.Ref{Provider: "local", ID: r.BoxID, Name: "n", Epoch: f.Adopt.Epoch, Fingerprint: "here"}, Phase: box.PhaseSuspended,
		}}, f.AdoptAnswer)
	case box.UpdateAbandon:
		r := through[box.AbandonAsk](arg)
		if err := f.CheckAbandon(r); err != nil {
			return nil, err
		}
		f.Abandon(r, now)
		return carryOut(f, now, box.Outcome{}, f.AbandonAnswer)
	}
	return nil, box.Errorf(box.ClassInternal, "no update %s", name)
}

// carryOut makes the next step with this outcome.
func carryOut(f *box.Facts, now time.Time, out box.Outcome, answer func() box.ActionAnswer) (any, error) {
	step := box.Next(f, now)
	f.Begin(step, now)
	f.Apply(step, out, now)
	return answer(), nil
}

func (f *fakeTemporal) ListWorkflow(_ context.Context, r *workflowservicepb.ListWorkflowExecutionsRequest) (*workflowservicepb.ListWorkflowExecutionsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists = append(f.lists, r)
	if err := f.fail["list"]; err != nil {
		return nil, err
	}
	out := &workflowservicepb.ListWorkflowExecutionsResponse{}
	add := func(workspace string, state box.State, started time.Time) {
		facts := f.facts[workspace]
		fields := map[string]*commonpb.Payload{
			box.SearchState: encode(string(state)).Payloads[0], box.SearchProvider: encode(facts.Spec.Provider).Payloads[0],
			box.SearchEpoch: encode(int64(facts.Epoch)).Payloads[0], box.SearchNextActionAt: encode(now.Add(time.Minute)).Payloads[0],
		}
		if facts.Spec.Owner != "" {
			fields[box.SearchOwner] = encode(facts.Spec.Owner).Payloads[0]
		}
		out.Executions = append(out.Executions, &workflowpb.WorkflowExecutionInfo{
			Execution: &commonpb.WorkflowExecution{WorkflowId: box.WorkflowID(workspace)}, Status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING,
			StartTime: timestamppb.New(started), SearchAttributes: &commonpb.SearchAttributes{IndexedFields: fields},
		})
	}
	// Two pages; the run of "b" on the first was replaced by one on the second.
	if len(r.NextPageToken) == 0 {
		add("b", box.StateRunning, now.Add(-time.Hour))
		out.NextPageToken = []byte("2")
		return out, nil
	}
	add("b", box.StateSuspended, now)
	add("a", box.StateRunning, now)
	return out, nil
}

// add puts a workspace in a state.
func (f *fakeTemporal) add(workspace string, state box.State) *box.Facts {
	facts := box.NewFacts(box.Spec{Version: box.WireVersion, Workspace: workspace, Provider: "local", Owner: "ann"}, row(), now.Add(-time.Hour))
	facts.State, facts.StateSince = state, now.Add(-10*time.Minute)
	facts.Ref = box.Ref{Provider: "local", ID: "1", Name: "bk-0-" + workspace + "-1", Epoch: 1, Fingerprint: "here"}
	facts.AwakeSince, facts.LastUse = now.Add(-30*time.Minute), now.Add(-12*time.Minute)
	facts.Scan = &box.Scan{At: now.Add(-11 * time.Minute), Digest: "d1", Conversations: 2, Events: 17}
	if state == box.StateSuspended {
		facts.SuspendedSince, facts.PausedClock = now.Add(-10*time.Minute), now.Add(-10*time.Minute)
	}
	f.facts[workspace] = &facts
	f.inputs[workspace] = encode(box.Input{Spec: facts.Spec})
	return &facts
}

func row() box.Capabilities {
	return box.Capabilities{Driver: "local", Suspend: box.Yes, NativeIdle: box.No, NativeAdjust: box.No, Lead: box.LeadOurs}
}

// outcome is what a command left behind.
type outcome struct {
	code           int
	stdout, stderr string
}

// runWith runs one command against a fake, with a data directory of its own.
func runWith(t *testing.T, fake *fakeTemporal, args ...string) outcome {
	t.Helper()
	return runIn(t, fake, t.TempDir(), "", args...)
}

func runIn(t *testing.T, fake *fakeTemporal, data, stdin string, args ...string) outcome {
	t.Helper()
	return runContext(t.Context(), t, fake, data, stdin, args...)
}

func runContext(ctx context.Context, t *testing.T, fake *fakeTemporal, data, stdin string, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	env := cli.Env{
		Args: args, Stdin: strings.NewReader(stdin), Stdout: &stdout, Stderr: &stderr,
		Environ: []string{"BOXKEEPER_DATA=" + data, "TEMPORAL_CONFIG_FILE=" + data + "/none.toml", "TEMPORAL_ADDRESS=temporal.test:7233"},
		Now:     func() time.Time { return now },
		Dial: func(_ context.Context, o client.Options) (client.Client, error) {
			require.Equal(t, "temporal.test:7233", o.HostPort)
			if fake == nil {
				return nil, serviceerror.NewUnavailable("connection refused")
			}
			return fake, nil
		},
	}
	code := cli.Execute(ctx, cli.Root(env))
	return outcome{code, stdout.String(), stderr.String()}
}
