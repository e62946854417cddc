package workflows_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workflows"
)

// Defect j: no workflow tests. A change of the order of commands ends every
// workflow that sleeps while it is deployed. Without recorded histories the
// tests of the baseline are green all the same; ours are red.
func TestDefectJAChangeThatBreaksSleepingWorkflowsIsNoticed(t *testing.T) {
	t.Parallel()
	t.Run("Defect j: the baseline's own test passes a change that breaks what sleeps", func(t *testing.T) {
		t.Parallel()
		sleeping := baselineHistory(t)
		require.NoError(t, replay(t, baseline, "baseline", sleeping), "the history is one of the baseline")
		checkHappyPath(t, playWorkflow(t, happyPath(), baselineChanged))
		require.ErrorContains(t, replay(t, baselineChanged, "baseline", sleeping), nondeterminism)
	})
	t.Run("Defect j: the same kind of change of ours fails on every recorded history", func(t *testing.T) {
		t.Parallel()
		changed := func(ctx workflow.Context, in json.RawMessage) error {
			workflow.NewTimer(ctx, time.Hour) // a command more
			return workflows.Box(ctx, in)
		}
		files, err := filepath.Glob(filepath.Join("testdata", "histories", "*.json"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			r := worker.NewWorkflowReplayer()
			r.RegisterWorkflowWithOptions(changed, workflow.RegisterOptions{Name: box.WorkflowType})
			require.ErrorContains(t, r.ReplayWorkflowHistoryFromJSONFile(quiet(), file), nondeterminism, file)
		}
	})
}

// nondeterminism is the code of the SDK for a history that does not fit.
const nondeterminism = "TMPRL1100"

func quiet() log.Logger {
	return log.NewStructuredLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
}

func replay(t *testing.T, wf any, name string, history *historypb.History) error {
	t.Helper()
	r := worker.NewWorkflowReplayer()
	r.RegisterWorkflowWithOptions(wf, workflow.RegisterOptions{Name: name})
	return r.ReplayWorkflowHistory(quiet(), history)
}

// baselineHistory is what the engine holds of a baseline that made its sandbox
// and had one command run in it. It is written by hand, since nobody records
// any; that it replays shows that it is right.
func baselineHistory(t *testing.T) *historypb.History {
	t.Helper()
	payloads := func(values ...any) *commonpb.Payloads {
		out, err := converter.GetDefaultDataConverter().ToPayloads(values...)
		require.NoError(t, err)
		return out
	}
	queue := &taskqueuepb.TaskQueue{Name: "sandboxes"}
	ref := box.Ref{Provider: "local", ID: "fb-1", Name: "bk-0a1b2c3d-sandbox-1-1", Epoch: 1, Fingerprint: "fakebox"}
	command := baselineCommand{ID: "one", Takes: time.Minute}
	h := &historypb.History{}
	add := func(kind enumspb.EventType, e *historypb.HistoryEvent) int64 {
		e.EventId, e.EventType = int64(len(h.GetEvents())+1), kind
		e.EventTime = timestamppb.New(time.Date(2026, 3, 1, 18, 0, len(h.GetEvents()), 0, time.UTC))
		h.Events = append(h.Events, e)
		return e.GetEventId()
	}
	task := func() int64 {
		scheduled := add(enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_WorkflowTaskScheduledEventAttributes{
			WorkflowTaskScheduledEventAttributes: &historypb.WorkflowTaskScheduledEventAttributes{TaskQueue: queue},
		}})
		started := add(enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED, &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_WorkflowTaskStartedEventAttributes{
			WorkflowTaskStartedEventAttributes: &historypb.WorkflowTaskStartedEventAttributes{ScheduledEventId: scheduled},
		}})
		return add(enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED, &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_WorkflowTaskCompletedEventAttributes{
			WorkflowTaskCompletedEventAttributes: &historypb.WorkflowTaskCompletedEventAttributes{ScheduledEventId: scheduled, StartedEventId: started},
		}})
	}
	act := func(after int64, name string, in, out *commonpb.Payloads) {
		scheduled := add(enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_ActivityTaskScheduledEventAttributes{
			ActivityTaskScheduledEventAttributes: &historypb.ActivityTaskScheduledEventAttributes{
				ActivityId: activityID(len(h.GetEvents()) + 1), ActivityType: &commonpb.ActivityType{Name: name}, TaskQueue: queue, Input: in, WorkflowTaskCompletedEventId: after,
			},
		}})
		started := add(enumspb.EVENT_TYPE_ACTIVITY_TASK_STARTED, &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_ActivityTaskStartedEventAttributes{
			ActivityTaskStartedEventAttributes: &historypb.ActivityTaskStartedEventAttributes{ScheduledEventId: scheduled},
		}})
		add(enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_ActivityTaskCompletedEventAttributes{
			ActivityTaskCompletedEventAttributes: &historypb.ActivityTaskCompletedEventAttributes{ScheduledEventId: scheduled, StartedEventId: started, Result: out},
		}})
	}
	add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
		WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{
			WorkflowType: &commonpb.WorkflowType{Name: "baseline"}, TaskQueue: queue, Input: payloads(defectsIdle),
			OriginalExecutionRunId: "run", FirstExecutionRunId: "run", Attempt: 1,
		},
	}})
	act(task(), "Create", nil, payloads(ref))
	task()
	add(enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED, &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_WorkflowExecutionSignaledEventAttributes{
		WorkflowExecutionSignaledEventAttributes: &historypb.WorkflowExecutionSignaledEventAttributes{SignalName: baselineRun, Input: payloads(command)},
	}})
	act(task(), "Run", payloads(command), payloads())
	after := task()
	add(enumspb.EVENT_TYPE_TIMER_STARTED, &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_TimerStartedEventAttributes{
		TimerStartedEventAttributes: &historypb.TimerStartedEventAttributes{
			TimerId: activityID(len(h.GetEvents()) + 1), StartToFireTimeout: durationpb.New(defectsIdle), WorkflowTaskCompletedEventId: after,
		},
	}})
	task()
	return h
}

// activityID is how the SDK names commands: by the event that records them.
func activityID(event int) string { return strconv.Itoa(event) }
