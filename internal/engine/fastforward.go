package engine

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/openhands/boxkeeper/box"
)

// maxSkips bounds how often the clock of one workflow may jump in one
// FastForward: each timer and each retry's wait is one jump. The server's own
// 200 would end a month of 10-minute timers in the middle.
const maxSkips = 100_000

// FastForward lets d pass for one workflow of [DefaultNamespace], at once: its
// clock jumps from timer to timer while nothing runs, and stands still while
// an activity does. It returns when the workflow's clock has reached now + d,
// also when it continued as new on the way, or when the workflow ended, also
// before the call. What the workflow does with the last timer may still be
// under way.
//
// Unsupported says that the engine was started without time skipping, Conflict
// that another FastForward of the same workflow took over. A second call
// starts to count where the first one ended.
func FastForward(ctx context.Context, c client.Client, workflowID string, d time.Duration) error {
	if d <= 0 {
		return box.Invalidf("duration", "%s is not a time to pass: use more than zero", d)
	}
	execution := &commonpb.WorkflowExecution{WorkflowId: workflowID}
	id := uuid.NewString()
	_, err := c.WorkflowService().UpdateWorkflowExecutionOptions(ctx, &workflowservice.UpdateWorkflowExecutionOptionsRequest{
		Namespace:         DefaultNamespace,
		WorkflowExecution: execution,
		WorkflowExecutionOptions: &workflowpb.WorkflowExecutionOptions{
			TimeSkippingConfig: &commonpb.TimeSkippingConfig{
				Enabled:             true,
				FastForwardConfig:   &commonpb.FastForwardConfig{Id: id, Duration: durationpb.New(d)},
				MaxSessionSkipCount: maxSkips,
			},
		},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"time_skipping_config"}},
	})
	if err != nil {
		return fastForwardRefused(ctx, c, workflowID, err)
	}
	return awaitFastForward(ctx, c, execution, id)
}

func awaitFastForward(ctx context.Context, c client.Client, execution *commonpb.WorkflowExecution, id string) error {
	for {
		if err := ctx.Err(); err != nil {
			return ctxError(err, "pass time for workflow %s", execution.GetWorkflowId())
		}
		poll, err := c.WorkflowService().PollWorkflowExecutionTimeSkipping(ctx,
			&workflowservice.PollWorkflowExecutionTimeSkippingRequest{
				Namespace: DefaultNamespace, WorkflowExecution: execution, FastForwardId: id,
			})
		if err != nil {
			return fastForwardRefused(ctx, c, execution.GetWorkflowId(), err)
		}
		switch poll.GetFastForwardPollingResult() {
		case enumspb.FAST_FORWARD_POLLING_RESULT_FAST_FORWARD_COMPLETED:
			return nil
		case enumspb.FAST_FORWARD_POLLING_RESULT_FAST_FORWARD_FAILED:
			ended, err := hasEnded(ctx, c, execution.GetWorkflowId())
			if err != nil {
				return err
			}
			if ended {
				return nil
			}
			return box.Errorf(box.ClassConflict, "pass time for workflow %s: %s; wait for the other one, then try again",
				execution.GetWorkflowId(), poll.GetFailedReason())
		case enumspb.FAST_FORWARD_POLLING_RESULT_POLL_TIMEOUT:
			// Something runs in the workflow, such as an activity: ask again.
		case enumspb.FAST_FORWARD_POLLING_RESULT_UNSPECIFIED:
			return box.Errorf(box.ClassUnknown, "pass time for workflow %s: the engine gave no outcome",
				execution.GetWorkflowId())
		}
	}
}

// fastForwardRefused explains a refused call: a workflow that ended is fine.
func fastForwardRefused(ctx context.Context, c client.Client, workflowID string, err error) error {
	if ctx.Err() != nil {
		return ctxError(ctx.Err(), "pass time for workflow %s", workflowID)
	}
	if _, off := errors.AsType[*serviceerror.Unimplemented](err); off {
		return box.Errorf(box.ClassUnsupported, "pass time for workflow %s: this engine runs without time skipping; "+
			"it works only in a data directory whose engine was started with it", workflowID)
	}
	ended, describeErr := hasEnded(ctx, c, workflowID)
	switch {
	case describeErr != nil:
		return describeErr
	case ended:
		return nil
	}
	return box.Errorf(box.ClassUnknown, "pass time for workflow %s: %w", workflowID, err)
}

func hasEnded(ctx context.Context, c client.Client, workflowID string) (bool, error) {
	d, err := c.DescribeWorkflowExecution(ctx, workflowID, "")
	if _, none := errors.AsType[*serviceerror.NotFound](err); none {
		return false, box.Errorf(box.ClassNotFound, "no workflow %s in namespace %s", workflowID, DefaultNamespace)
	}
	if err != nil {
		return false, box.Errorf(box.ClassUnavailable, "look at workflow %s: %w", workflowID, err)
	}
	status := d.GetWorkflowExecutionInfo().GetStatus()
	return status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING && status != enumspb.WORKFLOW_EXECUTION_STATUS_PAUSED, nil
}

// ctxError classes an ended context.
func ctxError(err error, format string, args ...any) error {
	class := box.ClassCanceled
	if errors.Is(err, context.DeadlineExceeded) {
		class = box.ClassDeadlineExceeded
	}
	return box.Errorf(class, format+": %w", append(args, err)...)
}
