package box

import "time"

// A step that no worker took was not done. It says nothing of the box or of its
// provider, only that nobody serves the instance: the state stays as it is, the
// failure names what is missing, and the step waits for a worker again.

// unservedMost is the longest pause before a step that no worker took is
// scheduled again. Waiting in the queue costs nobody anything, and a worker that
// is up again should be of use soon.
const unservedMost = 10 * time.Minute

// unmade reports whether no box of this workspace can exist: each of its steps
// waited for a worker in vain, so no provider was ever told anything. What came
// out of a ledger, or is to be taken over, is not meant.
func (f *Facts) unmade() bool {
	return f.Unserved > 0 && f.Unserved == f.Steps && f.Epoch == 1 && f.Ref.IsZero() &&
		f.Adopt == nil && !f.Rebuilt && !f.CreateUnclear
}

// neverMade says so, for the middle of a sentence.
const neverMade = "no worker ever took a step of it, so there is no box"

// closeUnmade ends what was never made, by the export store alone.
func (f *Facts) closeUnmade() Step {
	return f.onHold(Step{
		Kind: StepDelete, Purpose: PurposeDelete, AnyWorker: true,
		Reason: Reason{ReasonConfirmed, neverMade}, StoppedBy: "nobody: there is nothing to destroy",
	})
}

// countUnserved counts a step that no worker of the instance took, and returns
// the longest pause before its next try.
func (f *Facts) countUnserved(step Step, why StepFailure, most time.Duration) time.Duration {
	if why.Unserved || step.AnyWorker {
		f.Unserved++
	}
	if why.Unserved {
		return min(most, unservedMost)
	}
	return most
}

// unserved reports whether the step that failed last waited for a worker in vain.
func (f *Facts) unserved() bool { return f.Failure != nil && f.Failure.Unserved }

// toldToDestroy reports whether the provider was told to destroy the box, or may
// have been. In the state deleting it was not while no worker takes that step.
func (f *Facts) toldToDestroy() bool {
	d := f.Deletion
	return f.State == StateDeleting && (d == nil || d.Committed || d.Unclear)
}

// failUnserved takes in that no worker took a step, and reports whether that is
// all: a notice, the end of a memory, an adoption and an abandonment have their
// own patience.
func (f *Facts) failUnserved(step Step, now time.Time) bool {
	switch step.Kind {
	case StepCreate:
		f.failCreate(StepFailure{Class: ClassUnavailable, NotBegun: true}, now)
	case StepDelete:
		f.Deletion.Committed = false // nobody told the provider anything; and a doubt of before stays one
	case StepSuspend:
		f.Sequence.Committed = false
	case StepAdopt, StepAbandon, StepDeepen, StepNotify:
		return false
	case StepAwaitReady, StepObserve, StepScan, StepQuiesce, StepUndrain, StepReclaim, StepExport, StepResume,
		StepVerifyExport, StepAdjust, StepRestore, StepRecord, StepWait, StepFinish:
	}
	return true
}

// unservedStop says how to stop waiting for a worker.
func (f *Facts) unservedStop(kind StepKind) string {
	switch {
	case !f.unserved():
		return ""
	case kind == StepDelete && !f.Deletion.Unclear:
		return "whoever starts a worker; owner: cancel-delete; operator: abandon"
	case kind == StepCreate:
		return "whoever starts a worker; owner: request-delete; operator: abandon"
	}
	return "whoever starts a worker; operator: abandon"
}
