package workers_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	namespacepb "go.temporal.io/api/namespace/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workflowservicepb "go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/fakebox"
	"github.com/openhands/boxkeeper/workers"
)

const installation = "0a1b2c3d"

// poll is one request of a worker for work.
type poll struct{ queue, kind, identity string }

// server is the least of a Temporal that workers need.
type server struct {
	workflowservicepb.UnimplementedWorkflowServiceServer

	polls     chan poll
	signals   chan *workflowservicepb.SignalWorkflowExecutionRequest
	schedules chan *workflowservicepb.CreateScheduleRequest
	resets    chan *workflowservicepb.ResetStickyTaskQueueRequest
	completed chan *workflowservicepb.RespondWorkflowTaskCompletedRequest

	mu     sync.Mutex
	task   *workflowservicepb.PollWorkflowTaskQueueResponse // handed out once
	refuse map[string]error                                 // by method
	end    context.Context                                  //nolint:containedctx // ends every wait for work
}

func (s *server) refusal(method string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refuse[method]
}

func (s *server) set(method string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse[method] = err
}

func (*server) GetSystemInfo(context.Context, *workflowservicepb.GetSystemInfoRequest) (*workflowservicepb.GetSystemInfoResponse, error) {
	return &workflowservicepb.GetSystemInfoResponse{ServerVersion: "1.2.3", Capabilities: &workflowservicepb.GetSystemInfoResponse_Capabilities{}}, nil
}

func (*server) DescribeNamespace(_ context.Context, r *workflowservicepb.DescribeNamespaceRequest) (*workflowservicepb.DescribeNamespaceResponse, error) {
	return &workflowservicepb.DescribeNamespaceResponse{
		NamespaceInfo: &namespacepb.NamespaceInfo{Name: r.GetNamespace()},
		Config:        &namespacepb.NamespaceConfig{WorkflowExecutionRetentionTtl: durationpb.New(time.Hour)},
	}, nil
}

func (s *server) CreateSchedule(_ context.Context, r *workflowservicepb.CreateScheduleRequest) (*workflowservicepb.CreateScheduleResponse, error) {
	s.schedules <- r
	return &workflowservicepb.CreateScheduleResponse{}, s.refusal("schedule")
}

func (s *server) wait(ctx context.Context, p poll) {
	select {
	case s.polls <- p:
	default: // nobody looks any more
	}
	select {
	case <-ctx.Done():
	case <-s.end.Done():
	}
}

func (s *server) PollWorkflowTaskQueue(ctx context.Context, r *workflowservicepb.PollWorkflowTaskQueueRequest) (*workflowservicepb.PollWorkflowTaskQueueResponse, error) {
	s.mu.Lock()
	task := s.task
	s.task = nil
	s.mu.Unlock()
	if task != nil {
		return task, nil
	}
	s.wait(ctx, poll{r.GetTaskQueue().GetName(), "workflow", r.GetIdentity()})
	return &workflowservicepb.PollWorkflowTaskQueueResponse{}, nil
}

func (s *server) PollActivityTaskQueue(ctx context.Context, r *workflowservicepb.PollActivityTaskQueueRequest) (*workflowservicepb.PollActivityTaskQueueResponse, error) {
	s.wait(ctx, poll{r.GetTaskQueue().GetName(), "activity", r.GetIdentity()})
	return &workflowservicepb.PollActivityTaskQueueResponse{}, nil
}

func (s *server) RespondWorkflowTaskCompleted(_ context.Context, r *workflowservicepb.RespondWorkflowTaskCompletedRequest) (*workflowservicepb.RespondWorkflowTaskCompletedResponse, error) {
	s.completed <- r
	return &workflowservicepb.RespondWorkflowTaskCompletedResponse{}, nil
}

func (s *server) ResetStickyTaskQueue(_ context.Context, r *workflowservicepb.ResetStickyTaskQueueRequest) (*workflowservicepb.ResetStickyTaskQueueResponse, error) {
	s.resets <- r
	return &workflowservicepb.ResetStickyTaskQueueResponse{}, s.refusal("reset")
}

func (s *server) SignalWorkflowExecution(_ context.Context, r *workflowservicepb.SignalWorkflowExecutionRequest) (*workflowservicepb.SignalWorkflowExecutionResponse, error) {
	s.signals <- r
	return &workflowservicepb.SignalWorkflowExecutionResponse{}, s.refusal("signal")
}

// rig is a server, a cloud and the options of workers between them.
type rig struct {
	*server
	client client.Client
	cloud  *fakebox.Cloud
	opts   workers.Options
}

func newRig(t *testing.T) *rig {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	end, stop := context.WithCancel(context.Background()) //nolint:forbidigo // ended by the test itself
	s := &server{
		polls: make(chan poll, 100), signals: make(chan *workflowservicepb.SignalWorkflowExecutionRequest, 100),
		schedules: make(chan *workflowservicepb.CreateScheduleRequest, 100),
		resets:    make(chan *workflowservicepb.ResetStickyTaskQueueRequest, 100),
		completed: make(chan *workflowservicepb.RespondWorkflowTaskCompletedRequest, 10), refuse: map[string]error{}, end: end,
	}
	g := grpc.NewServer()
	workflowservicepb.RegisterWorkflowServiceServer(g, s)
	alive := health.NewServer()
	alive.SetServingStatus("temporal.api.workflowservice.v1.WorkflowService", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(g, alive)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(l)
	}()
	c, err := client.DialContext(t.Context(), client.Options{HostPort: l.Addr().String(), Logger: quiet{}})
	require.NoError(t, err)
	t.Cleanup(func() { // before it the test stopped its workers
		c.Close()
		stop()
		g.Stop()
		<-served
	})
	r := &rig{server: s, client: c, cloud: fakebox.New(nil)}
	keys, err := providers.NewKeySource(box.Secret(strings.Repeat("s", 32)))
	require.NoError(t, err)
	p, err := providers.New("fake", r.cloud.Driver(installation), &providers.Options{Installation: installation, Keys: keys})
	require.NoError(t, err)
	store, err := exports.Open(t.Context(), "mem://")
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	r.opts = workers.Options{
		Installation: installation, Providers: []*providers.Provider{p}, Store: store,
		Secret: func(string) (box.Secret, error) { return "", nil },
	}
	return r
}

// quiet is a log of the SDK that nobody reads.
type quiet struct{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}

var _ log.Logger = quiet{}

// start runs workers until the test ends.
func (r *rig) start(t *testing.T) *workers.Set {
	t.Helper()
	set, err := workers.New(r.client, r.opts)
	require.NoError(t, err)
	require.NoError(t, set.Start())
	t.Cleanup(set.Stop)
	return set
}

// next returns what comes, and fails the test when it does not.
func next[A any](t *testing.T, what string, from <-chan A) A {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(30 * time.Second):
		t.Fatalf("waited in vain for %s", what)
	}
	panic("not reached")
}

// asked collects polls until each of the queues was asked for.
func (r *rig) asked(t *testing.T, queues ...string) []poll {
	t.Helper()
	var out []poll
	for missing := slices.Clone(queues); len(missing) > 0; {
		got := next(t, strings.Join(missing, " and "), r.polls)
		out = append(out, got)
		missing = slices.DeleteFunc(missing, func(q string) bool { return q == got.kind+" "+got.queue })
	}
	return out
}

// firstTask is the first task of a workspace's workflow.
func firstTask(t *testing.T, in box.Input) *workflowservicepb.PollWorkflowTaskQueueResponse {
	t.Helper()
	input, err := converter.GetDefaultDataConverter().ToPayloads(in)
	require.NoError(t, err)
	now := timestamppb.New(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	queue := &taskqueuepb.TaskQueue{Name: box.TaskQueue}
	execution := &commonpb.WorkflowExecution{WorkflowId: box.WorkflowID(in.Spec.Workspace), RunId: "run-1"}
	kind := &commonpb.WorkflowType{Name: box.WorkflowType}
	return &workflowservicepb.PollWorkflowTaskQueueResponse{
		TaskToken: []byte("t"), WorkflowExecution: execution, WorkflowType: kind, StartedEventId: 3, Attempt: 1,
		ScheduledTime: now, StartedTime: now,
		History: &historypb.History{Events: []*historypb.HistoryEvent{
			{EventId: 1, EventTime: now, EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
				WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{
					WorkflowType: kind, TaskQueue: queue, Input: input, OriginalExecutionRunId: "run-1", FirstExecutionRunId: "run-1",
					Attempt: 1, WorkflowTaskTimeout: durationpb.New(10 * time.Second),
				},
			}},
			{EventId: 2, EventTime: now, EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, Attributes: &historypb.HistoryEvent_WorkflowTaskScheduledEventAttributes{
				WorkflowTaskScheduledEventAttributes: &historypb.WorkflowTaskScheduledEventAttributes{TaskQueue: queue, Attempt: 1},
			}},
			{EventId: 3, EventTime: now, EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED, Attributes: &historypb.HistoryEvent_WorkflowTaskStartedEventAttributes{
				WorkflowTaskStartedEventAttributes: &historypb.WorkflowTaskStartedEventAttributes{ScheduledEventId: 2},
			}},
		}},
	}
}
