package box

import (
	"fmt"
	"slices"
	"time"
)

func (f *Facts) applyCreated(step Step, out Outcome, now time.Time) {
	if !out.Observation.Ref.IsZero() {
		f.Ref = out.Observation.Ref
	}
	if out.Capabilities != nil {
		f.Capabilities = *out.Capabilities
	}
	f.Adopted = f.Adopted || out.Adopted
	if f.deletionDue() {
		f.move(now, StateExporting, Reason{ReasonConfirmed, "a deletion was confirmed before it was ready"})
		return
	}
	if !out.Ready {
		f.move(now, StateStarting, Reason{ReasonCreated, "the provider made it: " + out.Observation.Evidence})
		return
	}
	why := Reason{ReasonReady, "its agent-server answers"}
	if step.Kind == StepCreate {
		why = Reason{ReasonCreated, "created, and its agent-server answers"}
	}
	f.wake(now, why)
}

// wake makes the box running: the clocks of a running box start, those of a
// suspended one end.
func (f *Facts) wake(now time.Time, why Reason) {
	if f.Restoring != nil {
		f.awaitRestore(now)
		return
	}
	if !f.SuspendedSince.IsZero() {
		f.Durable++ // the ledger must not call it suspended any more
	}
	f.AwakeSince, f.WallFloor = now, time.Time{}
	f.LastUse = latest(f.LastUse, now)
	f.SuspendedSince, f.PausedClock, f.ExpiryFloor, f.NoticedFor = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	f.Reminders, f.RemindedAt = 0, time.Time{}
	f.SuspendedAt, f.NativeAt = time.Time{}, now
	f.DeepenFloor, f.DeepenTries = time.Time{}, 0
	f.Sequence, f.ResumeWanted = nil, nil
	f.Unhealthy = false
	f.move(now, StateRunning, why)
}

func (f *Facts) applyResumed(step Step, out Outcome, now time.Time) {
	if !out.Observation.Ref.IsZero() {
		f.Ref = out.Observation.Ref
	}
	switch {
	case !out.Ready:
		f.fail(step, StepFailure{Class: ClassUnavailable, Message: "it is up, but its agent-server does not answer yet"}, now)
	case step.Purpose == PurposeMaintenance && f.ResumeWanted == nil && len(f.Holders) == 0:
		f.move(now, StateMaintenanceWake, step.Reason)
	case step.Purpose == PurposeMaintenance:
		f.wake(now, step.Reason)
	default: // the entry of the resume itself tells it
		noted := f.Durable
		f.wake(now, step.Reason)
		f.Durable = noted
	}
}

func (f *Facts) applyQuiet(out Outcome, now time.Time) {
	f.scanned(out.Use, now)
	s := f.Sequence
	if out.Busy != "" { // whatever is wanted by now: the door is open again
		if out.Use != nil {
			f.LastUse = latest(f.LastUse, now.Add(-out.Use.IdleFor.Std()))
			if out.Use.Running > 0 || out.Use.InFlight > 0 {
				f.LastUse = now
			}
		}
		f.Sequence = nil
		f.UndrainOwed = false // the activity let work in again before it answered
		f.move(now, StateRunning, Reason{ReasonStillInUse, out.Busy})
		return
	}
	s.Quiet, s.Looked, s.DrainedAt = true, true, now
	if out.Use == nil || out.Use.Digest == "" {
		f.doubtScan() // this server does not tell what its history is
	}
	if a := f.Receipt.Archive; a.Held() || a.Withheld {
		// Files change without a word being said, and only another export shows it.
		f.doubtScan()
	}
	s.Exported = f.covered() // nothing was said since the newest export
	if s.Exported && s.Purpose == PurposeDelete && f.deletionDue() && f.Deletion.Undo == 0 && f.Hold == nil {
		f.Sequence = nil
		f.move(now, StateExporting, Reason{ReasonExported, "the newest export covers the last use"})
	}
}

// StepID names the step that began last, the same at every retry of its
// activity: "e<epoch>-s<number>".
func (f *Facts) StepID() string { return fmt.Sprintf("e%d-s%d", f.Epoch, f.Steps) }

func (f *Facts) scanned(use *Use, now time.Time) {
	if use == nil || use.Digest == "" {
		return
	}
	f.Scan = &Scan{At: now, Digest: use.Digest, Conversations: use.Conversations, Events: use.Events}
}

func (f *Facts) applyUndrained(step Step, now time.Time) {
	f.UndrainOwed = false
	if f.State == StateRunning {
		return
	}
	if f.State == StateMaintenanceWake {
		f.wake(now, Reason{ReasonUserArrived, f.arrivalOr("someone needs it")})
		return
	}
	f.Sequence, f.ResumeWanted = nil, nil
	f.LastUse = latest(f.LastUse, now)
	f.move(now, StateRunning, step.Reason)
}

func (f *Facts) applyExported(step Step, receipt Receipt, now time.Time) {
	f.Receipt, f.ReceiptAt = receipt, now
	f.Scan = &Scan{At: now, Digest: receipt.Digest, Conversations: receipt.Conversations, Events: receipt.Events}
	if f.Deletion != nil {
		f.Deletion.Verified = false
	}
	if step.Ask != nil {
		f.finish(*step.Ask, Result{Receipt: &receipt})
		return
	}
	if f.Sequence == nil { // after a turn
		return
	}
	f.TurnEnded = time.Time{}
	f.Sequence.Exported, f.Sequence.DrainedAt = true, now
	for _, ask := range slices.Clone(f.Asks) {
		if ask.Kind == AskExport {
			f.finish(ask, Result{Receipt: &receipt})
		}
	}
	if f.deletionDue() && !f.Deletion.ByPolicy && f.Deletion.Shown != receipt.Digest && !f.Deletion.WithoutHistory {
		f.voidDeletion(Reason{ReasonHistoryChanged, "the history is not what was shown any more; request the deletion again"}, now)
		return
	}
	if f.deletionDue() && f.newlyUnheld() && !f.Deletion.WithoutHistory {
		why := Reason{ReasonHistoryChanged, "the export lacks something of the workspace that was not shown; request the deletion again"}
		if f.Deletion.ByPolicy {
			why = Reason{ReasonAwaitingAnswer, "the policy deletes, but the export lacks " + f.lackText() + ", so a person must decide"}
		}
		f.voidDeletion(why, now)
		return
	}
	if f.Sequence.Purpose == PurposeDelete && f.deletionDue() && f.Deletion.Undo == 0 && f.Hold == nil {
		f.Sequence = nil
		f.move(now, StateExporting, Reason{ReasonExported, "an export covers the last use"})
	}
}

func (f *Facts) applySuspended(seen Observation, now time.Time) {
	s := f.Sequence
	f.Sequence, f.SuspendWanted = nil, nil
	f.SuspendedAt, f.TurnEnded = now, time.Time{}
	f.DeepenFloor, f.DeepenTries = time.Time{}, 0
	if !seen.Ref.IsZero() {
		f.Ref = seen.Ref
	}
	if s == nil || !s.Looked {
		f.doubtScan() // nobody saw what was said last
	}
	if f.SuspendedSince.IsZero() { // else no user was in it meanwhile: the paused clock goes on
		f.SuspendedSince, f.PausedClock = now, now
		f.ExpiryFloor, f.NoticedFor = time.Time{}, time.Time{}
	}
	f.failAsks(ClassFailedPrecondition, "the box was suspended meanwhile; connect first")
	text := "suspended: " + orElse(seen.Evidence, "proven")
	if s != nil && len(s.Skips) > 0 {
		text += fmt.Sprintf(" (%s)", s.Skips[0])
	}
	why := Reason{ReasonRequested, text}
	if s != nil {
		why.Code = map[Purpose]ReasonCode{
			PurposeIdle: ReasonIdle, PurposeExplicit: ReasonRequested, PurposeWall: ReasonWall,
			PurposeDelete: ReasonConfirmed, PurposeMaintenance: ReasonStaleExport,
			PurposeTurn: ReasonExported, // never a sequence
		}[s.Purpose]
	}
	if !f.deletionDue() {
		f.move(now, StateSuspended, why)
		return
	}
	switch {
	case !f.covered() && !f.Deletion.WithoutHistory && s != nil && s.Ended:
		f.move(now, StateExporting, why) // it was not asked yet whether it can be woken for an export
	case !f.covered() && !f.Deletion.WithoutHistory:
		f.move(now, StateDeleteBlocked, Reason{ReasonExportImpossible, "suspended and kept: " + f.skipText(s)})
	case now.Before(f.undoAt()):
		f.move(now, StateUndoWindow, why)
	default:
		f.move(now, StateExporting, why)
	}
}

func (f *Facts) skipText(s *Sequence) string {
	if s == nil || len(s.Skips) == 0 {
		return "no export covers the last use"
	}
	return s.Skips[len(s.Skips)-1]
}

func (f *Facts) applyNotified(step Step, now time.Time) {
	if f.State == StateAwaitingConfirm {
		f.Reminders++
		f.RemindedAt = now
		return
	}
	if f.State != StateSuspended {
		return
	}
	f.NoticedFor = step.At
	if due := now.Add(f.noticeLead()); due.After(step.At) { // people get the whole window
		f.NoticedFor, f.ExpiryFloor = due, latest(f.ExpiryFloor, due)
	}
}

func (f *Facts) applyVerified(problem string, now time.Time) {
	if !f.deletionDue() {
		return // taken back while the export was read
	}
	if problem == "" {
		f.Deletion.Verified = true
		return
	}
	f.Failure = &Failure{Step: StepVerifyExport, Class: ClassUnknown, Message: problem, Count: 1, Since: now, At: now}
	f.Receipt = Receipt{} // it proves nothing any more: another export is needed
	f.Deletion.Rejected++
	if f.Deletion.Rejected > 1 {
		f.move(now, StateDeleteBlocked, Reason{ReasonExportImpossible, "the export store does not give back what it took: " + problem})
	}
}

func (f *Facts) arrivalOr(text string) string {
	if f.ResumeWanted == nil && len(f.Holders) == 0 {
		return text
	}
	return f.arrivalText()
}
