package workflows

import (
	"context"
	"errors"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
)

// bounds are the time-outs of a kind of call.
type bounds struct {
	start, beat time.Duration
	tries       int32
}

// noWorker is how long a step waits for a worker before that is said as such.
const noWorker = 2 * time.Minute

// boundsOf names the option set of a step: quick calls, long transfers, and
// mutations at the provider. Further tries are the rules' to make, so that each
// is visible with its reason.
func boundsOf(kind box.StepKind) bounds {
	quickCall := bounds{start: 2 * time.Minute, beat: 20 * time.Second, tries: 2}
	longTransfer := bounds{start: 12 * time.Hour, beat: 30 * time.Second, tries: 1}
	mutation := bounds{start: 40 * time.Minute, beat: 30 * time.Second, tries: 2}
	switch kind {
	case box.StepResume, box.StepSuspend, box.StepAwaitReady:
		return mutation
	case box.StepCreate, box.StepAdopt, box.StepDeepen: // one try: a second one would hide that the first ended without an answer
		return bounds{start: mutation.start, beat: mutation.beat, tries: 1}
	case box.StepDelete: // may read the whole export back once more
		return bounds{start: longTransfer.start, beat: longTransfer.beat, tries: 1}
	case box.StepExport, box.StepVerifyExport, box.StepReclaim, box.StepRestore:
		return longTransfer
	case box.StepQuiesce: // ends runs: up to ten seconds each
		return bounds{start: 15 * time.Minute, beat: 20 * time.Second, tries: 1}
	case box.StepWait, box.StepFinish, box.StepObserve, box.StepScan, box.StepUndrain, box.StepNotify, box.StepAdjust, box.StepAbandon, box.StepRecord:
	}
	return quickCall
}

// start schedules the activity of a step.
func (w *loop) start(ctx workflow.Context, step box.Step) workflow.Future {
	f := w.facts
	b := boundsOf(step.Kind)
	queue := box.ActivityQueue(f.Spec.Provider)
	if step.AnyWorker {
		queue = box.StoreQueue
	}
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:              queue,
		ScheduleToStartTimeout: noWorker,
		StartToCloseTimeout:    b.start,
		HeartbeatTimeout:       b.beat,
		WaitForCancellation:    step.Kind != box.StepNotify, // a notice that is called off may still arrive, and nobody waits for it
		RetryPolicy:            &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second, MaximumAttempts: b.tries},
		Summary:                clip(step.Reason.Text),
	})
	id := w.stepID()
	target := activities.Target{Workspace: f.Spec.Workspace, Ref: f.Ref, Step: id, Fence: f.Fence()}
	target.Ref.Epoch = f.Epoch
	if f.Ref.IsZero() {
		target.Ref = box.Ref{}
	}
	if step.LeavesMarks() {
		target.Marks = f.Marks(w.now())
	}
	inSequence := f.Sequence != nil && step.Ask == nil
	var a *activities.Boxes
	var e *activities.Exports
	switch step.Kind {
	case box.StepCreate:
		in := activities.CreateInput{
			Spec: f.SpecNow(), Epoch: f.Epoch, Step: id, Fence: f.Fence(), WorkflowID: workflow.GetInfo(w.ctx).WorkflowExecution.ID,
			Marks: target.Marks,
		}
		if f.Restoring != nil {
			in.Restore = f.Restoring.Receipt
		}
		return call(ctx, a.Create, in)
	case box.StepAdopt:
		return call(ctx, a.Adopt, activities.AdoptInput{
			Spec: f.SpecNow(), BoxID: f.Adopt.ID, Epoch: f.Adopt.Epoch, Least: f.Epoch, Step: id, Marks: target.Marks,
			WorkflowID: workflow.GetInfo(w.ctx).WorkflowExecution.ID,
		})
	case box.StepRestore:
		return call(ctx, a.Restore, activities.RestoreInput{Target: target, Receipt: f.Restoring.Receipt})
	case box.StepAbandon:
		in := activities.AbandonInput{Target: target, Epoch: f.Epoch, Abandonment: *f.Abandonment}
		if step.AnyWorker {
			return call(ctx, e.CloseAbandoned, in)
		}
		return call(ctx, a.Abandon, in)
	case box.StepAwaitReady:
		return call(ctx, a.AwaitReady, target)
	case box.StepScan:
		return call(ctx, a.Scan, target)
	case box.StepQuiesce:
		in := activities.QuiesceInput{Target: target}
		if f.Sequence.Purpose == box.PurposeIdle {
			in.IdleFor = f.IdleAfter()
		}
		return call(ctx, a.Quiesce, in)
	case box.StepUndrain:
		return call(ctx, a.Undrain, target)
	case box.StepReclaim:
		in := activities.ReclaimInput{Target: target, Drained: inSequence}
		if step.Ask != nil {
			in.Request = step.Ask.Reclaim
		}
		return call(ctx, a.Reclaim, in)
	case box.StepExport:
		return call(ctx, a.Export, activities.ExportInput{Target: target, Previous: f.Receipt, Drained: inSequence, Secrets: f.Policy.ExportSecrets})
	case box.StepSuspend:
		return call(ctx, a.Suspend, target)
	case box.StepDeepen:
		return call(ctx, a.Deepen, target)
	case box.StepResume:
		return call(ctx, a.Resume, activities.ResumeInput{Target: target, Env: f.Spec.Env, Secrets: f.Spec.Secrets})
	case box.StepNotify:
		in := activities.NoticeInput{Due: step.At, Posting: box.Posting{
			Workspace: f.Spec.Workspace, Owner: f.Spec.Owner, Provider: f.Spec.Provider, Events: []box.Event{f.NoticeEvent(step)},
		}}
		if step.LeavesMarks() {
			in.Ledger = &target
		}
		return call(ctx, a.SendNotice, in)
	case box.StepRecord:
		return call(ctx, a.Record, target)
	case box.StepAdjust:
		return call(ctx, a.Adjust, activities.AdjustInput{Target: target, Native: f.NativeWanted()})
	case box.StepVerifyExport, box.StepDelete:
		in := activities.DeleteInput{
			Target: target, Spec: f.Spec, Epoch: f.Epoch, Receipt: f.Receipt,
			WithoutHistory: f.Deletion.WithoutHistory, NeverReady: f.NeverReady(), Awake: f.AwakeAtExport(), By: f.Deletion.ConfirmedBy,
		}
		if step.AnyWorker {
			return call(ctx, e.CloseUnmade, in)
		}
		if step.Kind == box.StepVerifyExport {
			return call(ctx, a.VerifyExport, in)
		}
		return call(ctx, a.Delete, in)
	case box.StepObserve, box.StepWait, box.StepFinish:
	}
	return call(ctx, a.Observe, target)
}

// stepID names the step for ever: the count of steps begins anew when a workflow
// of the same id does, so the first run's id is part of it.
func (w *loop) stepID() string {
	run := workflow.GetInfo(w.ctx).FirstRunID
	return w.facts.StepID() + "-" + run[:min(len(run), 8)]
}

// call makes a wrong input type a compile error.
func call[I any](ctx workflow.Context, act func(context.Context, I) (box.Outcome, error), in I) workflow.Future {
	return workflow.ExecuteActivity(ctx, act, in)
}

// failureOf says in words what an activity's error means for a person.
func (w *loop) failureOf(err error) box.StepFailure {
	if timeout, ok := errors.AsType[*temporal.TimeoutError](err); ok && timeout.TimeoutType() == enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START {
		return w.unserved(w.facts.Spec.Provider, box.ActivityQueue(w.facts.Spec.Provider))
	}
	return activities.FailureOf(err)
}

// triedBefore reports whether a worker took an earlier try of what then waited for
// one in vain. The engine keeps what became of that try as the cause, and it may
// have told the provider. Also a step of one try can have it: a person who pauses
// or resets an activity gives it another one.
func triedBefore(err error) bool {
	timeout, ok := errors.AsType[*temporal.TimeoutError](err)
	return ok && timeout.Unwrap() != nil
}

func (w *loop) unserved(what, queue string) box.StepFailure {
	return box.StepFailure{
		Class: box.ClassUnavailable, NotBegun: true, Unserved: true,
		Message: "no worker serves " + what + " (task queue " + queue + "); start one with \"boxkeeper worker\"; where an instance is off, the log of its worker says why",
	}
}

// refusal turns an error of a rule into one that callers of updates can act on.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	return temporal.NewNonRetryableApplicationError(err.Error(), string(box.ClassOf(err)), nil)
}
