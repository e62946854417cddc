package box

import (
	"time"
)

// longestWait bounds what the other side may ask us to wait: whatever it says, a
// box that costs money is not left alone for ever.
const longestWait = day

// backoff says how long a failing step waits: the first delay, doubled each
// time, up to the most.
func backoff(kind StepKind) (first, most time.Duration) {
	switch kind {
	case StepDelete:
		return time.Minute, day
	case StepNotify:
		return 10 * time.Second, time.Hour
	case StepQuiesce, StepReclaim, StepExport, StepUndrain:
		return 2 * time.Second, time.Minute
	case StepResume, StepAwaitReady, StepRestore:
		return 5 * time.Second, 5 * time.Minute
	case StepDeepen: // nobody waits for it, and each try touches a box that is well as it is
		return time.Minute, time.Hour
	case StepCreate, StepSuspend, StepObserve, StepVerifyExport, StepScan, StepAdjust, StepRecord, StepWait, StepFinish, StepAdopt, StepAbandon:
	}
	return 10 * time.Second, 10 * time.Minute
}

// fail records a failed step, says when it is tried again, and gives up on
// what is not needed for safety. Nothing here ever ends in a deletion.
func (f *Facts) fail(step Step, why StepFailure, now time.Time) {
	count, since := 1, now
	if f.Failure != nil && f.Failure.Step == step.Kind {
		count, since = f.Failure.Count+1, f.Failure.Since
	}
	before := f.Failure
	if step.Kind == StepDeepen {
		count = f.DeepenTries + 1 // of its own: it fails beside what else does
	}
	first, most := backoff(step.Kind)
	if step.Purpose == PurposeMaintenance {
		most = time.Hour // nobody waits for it, and each try may cost
	}
	most = f.countUnserved(step, why, most)
	wait := min(first<<min(count-1, 20), most)
	f.Failure = &Failure{
		Step: step.Kind, Class: why.Class, Message: why.Message, Count: count, At: now, Since: since,
		RetryAt: now.Add(max(wait, min(why.RetryAfter.Std(), longestWait))), Unserved: why.Unserved,
	}
	if why.Class == ClassExhausted && why.Block.Flag() != "" {
		f.Failure.Block = why.Block
	}
	if told, ok := f.toTell(step); ok {
		f.record(EventNeedsAttention, told, now)
	}
	if why.Class == ClassConflict {
		// Whoever is told so here owns the box: what a step of another worker did
		// is never heard. So the count of steps went back, by a restore of the
		// engine, and it begins anew, later than all before. See [Fence].
		f.Began = now
	}
	if inside(step.Kind) && !why.NotBegun && (why.Class == ClassFailedPrecondition || why.Class == ClassNotFound) {
		f.Look = true // it is not what we think it is
	}
	if step.Ask != nil {
		f.finish(*step.Ask, Result{Class: why.Class, Error: why.Message})
		f.Failure = nil
		return
	}
	f.abandonUnserved()
	if why.Unserved && f.failUnserved(step, now) {
		return
	}
	if why.NotBegun && (step.Kind == StepQuiesce || step.Kind == StepReclaim || step.Kind == StepExport) {
		return // a fault of the workers is not one of the box: it is waited out
	}
	switch step.Kind {
	case StepCreate:
		f.failCreate(why, now)
	case StepAdopt:
		f.failAdopt(why, now)
	case StepAbandon:
		f.failAbandon(why)
	case StepAwaitReady, StepRestore:
		if count >= readyTries {
			f.Unhealthy = true
			f.Look = true
		}
	case StepQuiesce:
		if f.Sequence != nil && count >= quiesceTries {
			f.Unhealthy = true
			f.Sequence.Quiet, f.Sequence.Looked, f.Sequence.DrainedAt = true, false, now
			f.skip("its agent-server does not answer: " + why.Message)
		}
	case StepReclaim:
		if f.Sequence != nil && count >= reclaimTries {
			f.Sequence.Reclaimed = true
			f.skip("nothing was reclaimed: " + why.Message)
		}
	case StepExport:
		f.failExport(step, why, count, now)
	case StepUndrain:
		if count >= quiesceTries { // the drain's lease ends by itself
			wish := f.ResumeWanted
			f.applyUndrained(step, now)
			f.Failure, f.ResumeWanted = nil, wish
			f.Look = true // it may not be awake at all
		}
	case StepSuspend:
		f.Sequence.Committed = false
		f.Look = true // and then wait: a provider that knows the box and does not find it must not be asked without end
	case StepResume:
		f.failResume(step, why, count, now)
	case StepDelete:
		f.failDelete(why, now)
	case StepAdjust:
		if !why.Class.Retryable() {
			f.NativeStuck = f.NativeWanted()
		}
	case StepDeepen:
		f.failDeepen(why, before, now)
	case StepNotify:
		f.failNotify(step, count, now)
	case StepObserve, StepScan, StepVerifyExport, StepRecord, StepWait, StepFinish:
	}
}

// inside reports whether a step speaks to the agent-server in the box.
func inside(kind StepKind) bool {
	return kind == StepQuiesce || kind == StepReclaim || kind == StepExport || kind == StepScan
}

// failExport gives up on an export that cannot be had. A store or a network that
// is away for a moment must not cost a history: a box that was reached a moment
// ago is worth a longer wait.
func (f *Facts) failExport(step Step, why StepFailure, count int, now time.Time) {
	s := f.Sequence
	switch {
	case step.Purpose == PurposeTurn:
		f.TurnEnded = now.Add(turnExportEvery) // the box goes on; a later export holds it too
	case s == nil || count < exportTries:
	case why.Class.Retryable() && s.Looked && now.Sub(f.Failure.Since) < exportPatience:
	default:
		s.Exported = true
		f.skip("no export could be taken: " + why.Message)
	}
}

func (f *Facts) failCreate(why StepFailure, now time.Time) {
	switch {
	case f.deletionDue():
		f.move(now, StateExporting, Reason{ReasonConfirmed, "a deletion was confirmed while it was created"})
	case !why.Class.Retryable() && why.Class != ClassCanceled && !why.NotBegun:
		text := why.Message
		if f.Restoring != nil {
			text += "; the export is whole in the store, and resume tries the restore again"
		}
		if f.CreateUnclear {
			text += "; an earlier try ended without an answer, so a box may exist: request-delete looks for it"
		}
		f.move(now, StateCreateFailed, Reason{ReasonRefused, text})
	default:
		f.CreateUnclear = f.CreateUnclear || !why.NotBegun
	}
}

// failDelete opens the way back where the provider was not told, and closes it
// where that is not certain, until a fresh reading shows the box alive.
func (f *Facts) failDelete(why StepFailure, now time.Time) {
	d := f.Deletion
	refused := why.Class == ClassFailedPrecondition || why.Class == ClassInvalid
	if !refused && !why.NotBegun {
		d.Unclear = true
		return
	}
	if refused {
		d.Verified = false
	}
	if d.Unclear {
		f.Look = f.Look || refused // what it needs may have to be taken again, from a box that may be there
		return
	}
	d.Committed = false
	code, text := ReasonFailed, "the provider was not told yet: "
	if refused {
		code, text = ReasonRefused, "nothing was destroyed: "
	}
	f.move(now, StateExporting, Reason{code, text + why.Message})
}

func (f *Facts) skip(text string) {
	f.Sequence.Skips = append(f.Sequence.Skips, text)
	f.Failure = nil
}

func (f *Facts) failResume(step Step, why StepFailure, count int, now time.Time) {
	if step.Purpose == PurposeMaintenance {
		if count < maintenanceTries && why.Class.Retryable() && why.Class != ClassNotFound {
			return
		}
		f.Sequence = nil
		text := "it cannot be woken for an export: " + why.Message
		f.failAsks(why.Class, text)
		f.Look, f.WakeOwed = true, true // it may be half awake; it must not stay so
		if f.deletionDue() {
			f.move(now, StateDeleteBlocked, Reason{ReasonExportImpossible, text})
		}
		return
	}
	if why.Class == ClassNotFound {
		f.Look = true
	}
}
