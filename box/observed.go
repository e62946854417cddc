package box

import (
	"fmt"
	"time"
)

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
