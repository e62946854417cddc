package box

import (
	"fmt"
	"time"
)

// CheckRebuilt refuses facts that cannot be those of a workspace that was lost.
func CheckRebuilt(f *Facts, workspace string) error {
	if err := f.Spec.Validate(); err != nil {
		return err
	}
	switch {
	case f.Spec.Workspace != workspace:
		return Invalidf("rebuilt.spec.workspace", "%q is not the workspace %q that is rebuilt", f.Spec.Workspace, workspace)
	case f.Epoch < 1 || !f.Ref.IsZero() && f.Ref.Epoch != f.Epoch:
		return Invalidf("rebuilt.epoch", "%d is not the epoch of the box %q; rebuild it from the ledger again", f.Epoch, f.Ref.Name)
	case f.State == StateBoxArchived || f.State == StateAbandoned:
		return Errorf(ClassFailedPrecondition, "workspace %s is %s and its id stays closed; use a new workspace id", workspace, f.State)
	}
	return f.Policy.Validate()
}

// CheckCarried refuses facts of another workspace or of another version.
func CheckCarried(f *Facts, spec Spec) error {
	switch {
	case f.Spec.Version != WireVersion:
		return Invalidf("carried.spec.version", "%d is not known to this program, which speaks %d; upgrade the older side", f.Spec.Version, WireVersion)
	case f.Spec.Workspace != spec.Workspace:
		return Invalidf("carried.spec.workspace", "%q is not the workspace %q of the input", f.Spec.Workspace, spec.Workspace)
	}
	return nil
}

// Revive makes what the ledger says the facts of a new workflow. The box is
// read before anything is done. Holders and unanswered requests are gone, a
// confirmation must be given again unless the ledger says that the destroying
// call was next, and an expiry that is near gives the whole notice first.
func (f *Facts) Revive(now time.Time) {
	f.notAfter(now)
	f.Sequence, f.Failure, f.Holders = nil, nil, nil
	why := Reason{ReasonRebuilt, fmt.Sprintf("rebuilt from the ledger, which called it %s", f.State)}
	if d := f.Deletion; d != nil {
		if d.Committed { // the provider may have been told
			d.Committed, d.Verified, d.Unclear = false, false, true
		} else {
			f.Deletion = nil
		}
	}
	f.DeletionCount = max(f.DeletionCount+1, int(now.Unix()))             // no token from before is good any more
	f.Outbox = Outbox{Number: int(now.Unix()), Settled: f.Outbox.Settled} // nor is a number of an event used twice
	f.Reminders, f.RemindedAt = 0, time.Time{}
	f.Began = latest(now, f.Began.Add(time.Millisecond)) // later than every step of the lost workflow; see [Fence]
	f.IdleFloor = now
	if at, ok := f.expiryAt(); ok && !now.Before(at.Add(-f.noticeLead())) {
		f.ExpiryFloor = latest(f.ExpiryFloor, now.Add(f.noticeLead()))
	}
	f.Durable++                                                 // what the first reading shows goes into the ledger
	if f.Adopt != nil && !f.Adopt.Refused && !f.deletionDue() { // it may be marked as ours by now, so it is asked for again
		if !f.Ref.IsZero() {
			f.Adopt.From = StateUnknown // if it is not to be had, the box before is read
		}
		f.move(now, StateCreating, why)
		return
	}
	if !f.Ref.IsZero() {
		f.Adopted = f.Adopted || !f.deletionDue() // unless it was to be destroyed, nobody wrote whether it ever was ready
		f.Rebuilt = true
		f.UndrainOwed = f.SuspendedSince.IsZero()    // a drain may have been on
		if f.SuspendedSince.IsZero() || f.WakeOwed { // a user may have come to a wake of ours, and nobody wrote that
			f.doubtScan()     // it was awake
			f.TurnEnded = now // and worked in, perhaps, since its newest export
		}
		f.move(now, StateUnknown, why)
		return
	}
	// The create ended without an answer. The step that makes the box looks for it
	// first, and so does the one that destroys it.
	f.CreateUnclear = true
	if f.deletionDue() {
		f.move(now, StateExporting, why)
		return
	}
	f.move(now, StateCreating, why)
}

// notAfter takes times that lie ahead as now: the engine that counted them is
// gone, and the clock of the present one may be behind it.
func (f *Facts) notAfter(now time.Time) {
	for _, t := range []*time.Time{&f.StateSince, &f.LastUse, &f.AwakeSince, &f.IdleFloor, &f.SuspendedSince, &f.SuspendedAt, &f.PausedClock, &f.ReceiptAt} {
		if t.After(now) {
			*t = now
		}
	}
	if f.Deletion != nil && f.Deletion.ConfirmedAt.After(now) {
		f.Deletion.ConfirmedAt = now
	}
}

// applyRebuilt is the first reading of a box that the ledger called suspended.
// It reports false where nothing special is to be done.
func (f *Facts) applyRebuilt(seen Observation, now time.Time) bool {
	if !f.Rebuilt {
		return false
	}
	f.Rebuilt = false
	if f.deletionDue() {
		f.Deletion.Unclear = false // the reading ends the doubt
	}
	if f.SuspendedSince.IsZero() {
		return false
	}
	evidence := orElse(seen.Evidence, string(seen.Phase))
	switch seen.Phase {
	case PhaseSuspended: // as the ledger says: the paused clock goes on, and the export covers what it did
		f.rest(now, Reason{ReasonSeenAtProvider, "suspended at the provider: " + evidence})
		return true
	case PhaseRunning:
		if f.WakeOwed && f.ResumeWanted == nil && len(f.Holders) == 0 {
			f.settleAwake(now, evidence)
			return true
		}
		f.seenUp(now, Reason{ReasonSeenAtProvider, "it runs at its provider: " + evidence})
		return true
	case PhaseUnknown, PhaseStarting, PhaseFailed, PhaseGone:
	}
	return false
}
