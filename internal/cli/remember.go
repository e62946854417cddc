package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"

	"github.com/openhands/boxkeeper/box"
)

const ledgerHelp = "Where no workflow or no worker answers it says what the ledger in the export store holds, marked as such, and ends with exit code 8: " +
	"that is how it was when the last step was noted, not how it is. A workspace that is closed is that for ever: exit code 0."

// unwatched is a workspace whose workflow ended and left its box behind.
type unwatched struct{ err error }

func (e *unwatched) Error() string { return e.err.Error() }
func (e *unwatched) Unwrap() error { return e.err }

// endedOutOfOrder reports a workflow that ended and not by a deletion.
func endedOutOfOrder(status enumspb.WorkflowExecutionStatus) bool {
	switch status { //nolint:exhaustive // the rest is watched, closed or not known
	case enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED,
		enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT, enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED:
		return true
	}
	return false
}

// askWatched queries a workflow that runs or ended by a deletion. A worker
// answers for one that was terminated too, as if it still watched.
func (a *Shared) askWatched(c *cobra.Command, ask *asking, workspace, name string, to any) error {
	s, ctx, done, err := a.open(c, ask, workspace)
	if err != nil {
		return err
	}
	defer done()
	seen, err := s.client.DescribeWorkflowExecution(ctx, box.WorkflowID(workspace), "")
	if err == nil && endedOutOfOrder(seen.GetWorkflowExecutionInfo().GetStatus()) {
		return closedError(s.root.Name(), workspace, seen.GetWorkflowExecutionInfo())
	}
	if is[*serviceerror.NotFound](err) {
		return s.absent(ctx, workspace)
	}
	if err := s.query(ctx, workspace, name, to); err != nil {
		return err
	}
	s.noteUnserved(ctx, seen.GetWorkflowExecutionInfo(), to)
	for _, step := range seen.GetPendingActivities() {
		if text := a.underWay(step, keyword(seen.GetWorkflowExecutionInfo(), box.SearchProvider)); text != "" {
			note(s.cmd, "Note: %s", text)
		}
	}
	return nil
}

// noteUnserved says on standard error when the step that is under way cannot be,
// because no worker serves the provider: the workflow itself knows that only
// after it has waited for one.
func (s *session) noteUnserved(ctx context.Context, info *workflowpb.WorkflowExecutionInfo, answer any) {
	var next box.StepKind
	var at time.Time
	switch to := answer.(type) {
	case *box.Status:
		next, at = to.Next, to.NextAt
	case *box.Why:
		next, at = to.Next, to.NextAt
	}
	if text := s.unservedText(ctx, keyword(info, box.SearchProvider), next, at); text != "" {
		note(s.cmd, "Note%s", strings.Replace(text, "; ", ": ", 1))
	}
}

// unservedText says that no worker serves the provider of a workspace whose next
// step is under way, with what to do. Temporal remembers a worker that ended for
// some minutes, so its silence proves nothing; then the text is empty.
func (s *session) unservedText(ctx context.Context, provider string, next box.StepKind, at time.Time) string {
	if provider == "" || next == "" || next == box.StepWait || next == box.StepFinish || !at.IsZero() {
		return ""
	}
	queue := box.ActivityQueue(provider)
	seen, err := s.client.DescribeTaskQueue(ctx, queue, enumspb.TASK_QUEUE_TYPE_ACTIVITY)
	if err != nil || len(seen.GetPollers()) > 0 {
		return ""
	}
	return "; no worker serves the task queue " + queue + " now, so " + string(next) + " waits; start one with \"" + s.root.Name() + " worker\""
}

// fromLedger reads what the ledger says of a workspace whose workflow did not
// answer, and as of when. It returns why the workflow did not answer where the
// ledger has nothing better.
func (a *Shared) fromLedger(c *cobra.Command, workspace string, why error) (facts box.Facts, asOf time.Time, err error) {
	if c.Context().Err() != nil {
		return facts, asOf, why
	}
	switch box.ClassOf(why) { //nolint:exhaustive // the rest is no question of who answers
	case box.ClassUnavailable, box.ClassNotFound, box.ClassDeadlineExceeded:
	default:
		if !is[*unwatched](why) {
			return facts, asOf, why
		}
	}
	facts, asOf, err = a.remembered(c.Context(), workspace)
	if err == nil {
		note(c, "From the ledger, as of %s; nothing newer was answered: %s", asOf.UTC().Format(time.RFC3339), why)
		return facts, asOf, nil
	}
	if box.ClassOf(err) != box.ClassNotFound {
		note(c, "The ledger cannot be read either: %s", err)
	}
	return facts, asOf, why
}

// remembered reads the ledger of a workspace from the export store alone.
func (a *Shared) remembered(ctx context.Context, workspace string) (box.Facts, time.Time, error) {
	store, _, err := a.readStore(ctx)
	if err != nil {
		return box.Facts{}, time.Time{}, err
	}
	defer store.Close() //nolint:errcheck // only read
	entries, err := store.Ledger(ctx, workspace)
	if err != nil {
		return box.Facts{}, time.Time{}, err
	}
	return box.Rebuild(workspace, entries)
}

// showRemembered shows what the ledger says. Only the end of a workspace is as
// good as if its workflow had said it.
func (a *Shared) showRemembered(c *cobra.Command, state box.State, value any, text func(p *page)) error {
	if err := a.show(c, value, text); err != nil {
		return err
	}
	if state == box.StateBoxArchived || state == box.StateAbandoned {
		return nil
	}
	return &silent{exitRemembered}
}

func (p *page) remembered(a *Shared, asOf time.Time) {
	p.linef("From the ledger, as of %s; no workflow or no worker answers.", a.moment(asOf))
	p.WriteByte('\n')
}
