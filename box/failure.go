package box

import (
	"fmt"
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
	if count == attentionTries && step.Ask == nil {
		f.record(EventNeedsAttention, Reason{ReasonFailed, fmt.Sprintf("%s failed %d times, last: %s", step.Kind, count, why.Message)}, now)
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

// CheckObserved reports whether an observation from outside concerns the
// present box; a stale one changes nothing.
func (f *Facts) CheckObserved(s ObservedSignal) bool {
	return s.Observation.Ref.Epoch == f.Epoch && !f.Ref.IsZero() && s.Observation.Ref.ID == f.Ref.ID
}

// Observe takes in what a watcher saw. It is never believed by itself: where it
// differs from what should be, the box is read again.
func (f *Facts) Observe(s ObservedSignal) {
	if !f.CheckObserved(s) || f.phaseFits(s.Observation.Phase) && !f.wentDeeper(s.Observation) {
		return
	}
	f.Look = true
	f.ToldBy = ""
	if CheckRequest(Request{ID: s.ID}) == nil {
		f.ToldBy = s.ID
	}
}

// phaseFits reports whether a phase at the provider is what the state expects.
// While a step is under way that changes the phase, anything fits.
func (f *Facts) phaseFits(p Phase) bool {
	if p == PhaseGone || p == PhaseFailed { // no step of ours but a deletion leads there
		return f.State == StateCreating || f.State == StateCreateFailed || f.State == StateDeleting ||
			f.State == StateBoxArchived || f.State == StateAbandoned || (f.State == StateLost && p == PhaseGone)
	}
	switch f.State {
	case StateRunning, StateDraining:
		return p == PhaseRunning
	case StateSuspended, StateAwaitingConfirm, StateUndoWindow, StateDeleteBlocked:
		return p == PhaseSuspended
	case StateLost:
		return p == PhaseGone
	case StateUnknown:
		return false
	case StateCreating, StateCreateFailed, StateStarting, StateSuspending, StateResuming, StateMaintenanceWake,
		StateExporting, StateDeleting, StateBoxArchived, StateAbandoned:
		return true
	}
	return true
}

// applyObserved brings the state in line with a fresh reading.
func (f *Facts) applyObserved(seen Observation, now time.Time) {
	if f.applyRebuilt(seen, now) {
		return
	}
	evidence := orElse(seen.Evidence, string(seen.Phase))
	if f.State == StateDeleting && f.deletionDue() && seen.Phase.known() {
		f.Deletion.Committed, f.Deletion.Unclear = false, false // the reading ends the doubt
	}
	atRest := f.State == StateSuspended || f.State == StateAwaitingConfirm || f.State == StateUndoWindow || f.State == StateDeleteBlocked
	switch seen.Phase {
	case PhaseGone:
		if f.SuspendedSince.IsZero() {
			f.doubtScan() // who knows what was said in it last
		}
		if f.Failure != nil && (f.Failure.Step == StepSuspend || f.Failure.Step == StepResume) {
			f.Failure = nil // that was why
		}
		f.Sequence, f.Holders, f.ResumeWanted, f.SuspendWanted = nil, nil, nil, nil
		f.failAsks(ClassNotFound, "the box is gone at its provider")
		gone := Reason{ReasonGoneAtProvider, "gone without us: " + evidence}
		switch {
		case !f.deletionDue():
			f.move(now, StateLost, gone)
		case f.State != StateDeleteBlocked:
			f.move(now, StateExporting, gone) // the agreed deletion goes on, if an export covers it
		}
	case PhaseSuspended:
		switch {
		case f.State == StateSuspending:
			if f.Sequence == nil {
				f.Sequence = &Sequence{Purpose: PurposeExplicit, Since: now}
			}
			f.applySuspended(seen, now)
		case !atRest && f.State != StateResuming:
			f.Sequence, f.SuspendWanted = nil, nil
			f.doubtScan()
			began := latest(f.AwakeSince, now.Add(-seen.Age.Std()))
			f.SuspendedAt, f.TurnEnded = began, time.Time{}
			f.DeepenFloor, f.DeepenTries = time.Time{}, 0
			if f.SuspendedSince.IsZero() {
				f.SuspendedSince, f.PausedClock = began, began
			}
			f.failAsks(ClassFailedPrecondition, "the box was suspended meanwhile; connect first")
			f.rest(now, Reason{ReasonSeenAtProvider, "suspended at the provider: " + evidence})
		}
	case PhaseFailed:
		f.applyEnded(evidence, now)
	case PhaseStarting:
		f.Sequence = nil
		if f.State == StateUndoWindow {
			f.voidDeletion(Reason{ReasonSeenAtProvider, "it starts at its provider: " + evidence}, now)
			f.Look = false
		}
		f.move(now, StateStarting, Reason{ReasonSeenAtProvider, evidence})
	case PhaseRunning:
		f.observedRunning(evidence, atRest, now)
	case PhaseUnknown: // a failed reading, see Apply
	}
}

// observedRunning is applyObserved for a box that is up.
func (f *Facts) observedRunning(evidence string, atRest bool, now time.Time) {
	switch {
	case f.State == StateRunning:
		f.ResumeWanted = nil
	case f.State == StateUnknown && f.AwakeSince.IsZero(), f.State == StateStarting:
		f.move(now, StateStarting, Reason{ReasonSeenAtProvider, evidence})
	case f.State == StateLost:
		f.seenUp(now, Reason{ReasonSeenAtProvider, "it is there again: " + evidence})
	case f.State == StateUnknown:
		f.move(now, StateRunning, Reason{ReasonSeenAtProvider, evidence})
	case f.State == StateDeleting: // it goes on from a running box: last look, export, the call
		f.wake(now, Reason{ReasonSeenAtProvider, "not destroyed, it runs at its provider: " + evidence})
	case atRest && len(f.Holders) == 0 && f.ResumeWanted == nil && (f.State == StateDeleteBlocked || f.WakeOwed):
		f.settleAwake(now, evidence)
	case atRest:
		if f.deletionDue() {
			f.voidDeletion(Reason{ReasonSeenAtProvider, "it runs at its provider: " + evidence}, now)
		}
		f.seenUp(now, Reason{ReasonSeenAtProvider, "it runs at its provider: " + evidence})
	}
}

// seenUp is for a box that came up without us: it is running when its
// agent-server answers.
func (f *Facts) seenUp(now time.Time, why Reason) {
	f.UndrainOwed = true
	f.Sequence = nil
	f.doubtScan()
	f.move(now, StateStarting, why)
}

// AtRest reports whether a reading that shows the box running would show that it
// came up without us.
func (f *Facts) AtRest() bool {
	switch f.State {
	case StateSuspended, StateAwaitingConfirm, StateUndoWindow, StateDeleteBlocked, StateLost:
		return true
	case StateUnknown:
		return f.Rebuilt && !f.SuspendedSince.IsZero()
	case StateCreating, StateCreateFailed, StateStarting, StateRunning, StateDraining, StateSuspending, StateResuming,
		StateMaintenanceWake, StateExporting, StateDeleting, StateBoxArchived, StateAbandoned:
	}
	return false
}

// TakeAsReady takes a box that came up without us as running before its
// agent-server answered. It is for runs that began before that was waited for.
func (f *Facts) TakeAsReady(now time.Time) { f.wake(now, f.because()) }

// rest moves to where a box that is suspended belongs.
func (f *Facts) rest(now time.Time, why Reason) {
	switch {
	case !f.deletionDue():
		f.move(now, StateSuspended, why)
	case f.covered() && now.Before(f.undoAt()):
		f.move(now, StateUndoWindow, why)
	default:
		f.move(now, StateExporting, why)
	}
}

// settleAwake suspends again a box that a failed maintenance wake left awake.
func (f *Facts) settleAwake(now time.Time, evidence string) {
	f.Sequence = &Sequence{
		Purpose: PurposeMaintenance, Since: now, Quiet: true, Reclaimed: true, Exported: true,
		Skips: []string{"left awake by a wake for an export that failed: " + evidence},
	}
	f.move(now, StateMaintenanceWake, Reason{ReasonSeenAtProvider, evidence})
}

// applyEnded deals with a box that ended by itself and whose files are there:
// it is started again while someone holds it, a bounded number of times;
// otherwise it is settled as suspended, with the provider's proof.
func (f *Facts) applyEnded(evidence string, now time.Time) {
	if now.Sub(f.RepairedAt) > repairWindow {
		f.Repairs = 0
	}
	if (len(f.Holders) > 0 || f.ResumeWanted != nil || f.State == StateResuming || f.State == StateStarting) && f.Repairs < maxRepairs && !f.deletionDue() {
		f.Repairs++
		f.RepairedAt = now
		f.Sequence = nil
		f.failAsks(ClassUnavailable, "the box ended by itself and is started again; ask again")
		f.move(now, StateResuming, Reason{ReasonEndedByItself, fmt.Sprintf("the box ended by itself (%s) while it was needed; start %d of %d", evidence, f.Repairs, maxRepairs)})
		return
	}
	f.ResumeWanted, f.Holders = nil, nil
	f.settle(now, Reason{ReasonEndedByItself, "the box ended by itself: " + evidence})
}
