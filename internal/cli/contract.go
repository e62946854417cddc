package cli

import (
	"context"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/openhands/boxkeeper/box"
)

// The calls of the contract as docs/contract.md has them, for the commands and
// for the demo. Their errors are the client's own: what an error means depends
// on who asked.

// Start starts the workflow of a workspace and returns its run id. Repeating it
// answers serviceerror.WorkflowExecutionAlreadyStarted, as does an id that was
// used before: look at what is there. An id whose only workflow failed before it
// did anything, because of a wrong spec, is free again.
func Start(ctx context.Context, c client.Client, in box.Input) (run string, err error) {
	run, err = startUnder(ctx, c, in, enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE)
	if !is[*serviceerror.WorkflowExecutionAlreadyStarted](err) || !neverBegan(ctx, c, box.WorkflowID(in.Spec.Workspace)) {
		return run, err
	}
	return startUnder(ctx, c, in, enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY)
}

// startUnder starts a workspace, or one that is rebuilt, with the attributes by
// which lists find it at once.
func startUnder(ctx context.Context, c client.Client, in box.Input, reuse enumspb.WorkflowIdReusePolicy) (string, error) {
	spec, state, epoch := in.Spec, box.StateCreating, 1
	if in.Rebuilt != nil {
		state, epoch = box.StateUnknown, in.Rebuilt.Epoch
	}
	attributes := []temporal.SearchAttributeUpdate{
		temporal.NewSearchAttributeKeyKeyword(box.SearchProvider).ValueSet(spec.Provider),
		temporal.NewSearchAttributeKeyKeyword(box.SearchState).ValueSet(string(state)),
		temporal.NewSearchAttributeKeyInt64(box.SearchEpoch).ValueSet(int64(epoch)),
	}
	if spec.Owner != "" {
		attributes = append(attributes, temporal.NewSearchAttributeKeyKeyword(box.SearchOwner).ValueSet(spec.Owner))
	}
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: box.WorkflowID(spec.Workspace), TaskQueue: box.TaskQueue,
		// An id is used once, and never taken over silently.
		WorkflowIDReusePolicy:                    reuse,
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		TypedSearchAttributes:                    temporal.NewSearchAttributes(attributes...),
	}, box.WorkflowType, in)
	if err != nil {
		return "", err
	}
	return run.GetRunID(), nil
}

// refusedEvents is how long the history of a refused spec can be: it starts,
// has a task or a few that were lost with their worker, and fails.
const refusedEvents = 64

// neverBegan reports whether the workflow's last run failed and is proven to
// have done nothing: it is the first of its chain, and its whole history holds
// no activity. Whatever cannot be read proves nothing. A workflow that was
// terminated is not meant: it may have left a box behind.
func neverBegan(ctx context.Context, c client.Client, id string) bool {
	seen, err := c.DescribeWorkflowExecution(ctx, id, "")
	info := seen.GetWorkflowExecutionInfo()
	if err != nil || info.GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_FAILED {
		return false
	}
	events := c.GetWorkflowHistory(ctx, id, info.GetExecution().GetRunId(), false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for range refusedEvents {
		if !events.HasNext() {
			return false // the history ends without an end
		}
		event, err := events.Next()
		switch {
		case err != nil, event.GetWorkflowExecutionStartedEventAttributes().GetContinuedExecutionRunId() != "",
			event.GetActivityTaskScheduledEventAttributes() != nil:
			return false
		case event.GetWorkflowExecutionFailedEventAttributes() != nil:
			return true
		}
	}
	return false
}

// Query asks a workspace's workflow, which needs a worker.
func Query(ctx context.Context, c client.Client, workspace, name string, to any) error {
	value, err := c.QueryWorkflow(ctx, box.WorkflowID(workspace), "", name)
	if err != nil {
		return err
	}
	return value.Get(to)
}

// Update sends one update and waits for its answer. The same request id gets
// the same answer and does nothing twice.
func Update(ctx context.Context, c client.Client, workspace, name, requestID string, request, to any) error {
	handle, err := c.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		UpdateID: requestID, WorkflowID: box.WorkflowID(workspace), UpdateName: name,
		Args: []any{request}, WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err != nil {
		return err
	}
	return handle.Get(ctx, to)
}
