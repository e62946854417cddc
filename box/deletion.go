package box

import (
	"fmt"
	"slices"
	"time"
)

// CheckRequestDelete refuses a request to delete what is deleted.
func (f *Facts) CheckRequestDelete(r RequestDeleteAsk) error {
	if err := CheckRequest(r.Request); err != nil {
		return err
	}
	if r.Undo.IsNever() {
		return Invalidf("undo", "\"never\" is not allowed; freeze or keep the box instead")
	}
	if f.toldToDestroy() {
		return Errorf(ClassFailedPrecondition, "the box is being deleted already; follow status")
	}
	if err := f.checkOpen(); err != nil {
		return err
	}
	if f.deletionDue() {
		return Errorf(ClassFailedPrecondition, "a deletion is confirmed already; cancel-delete takes it back")
	}
	return nil
}

// ScanBeforeDelete reports whether the box should be read before a person is
// shown what a deletion would lose: only where that wakes nothing.
func (f *Facts) ScanBeforeDelete() bool {
	return f.State == StateRunning && !f.Look
}

// Occupied reports whether a pass or an export that was asked for is done in the
// box, or waits for it: a look would have to wait behind it, for hours maybe.
func (f *Facts) Occupied() bool {
	return slices.ContainsFunc(f.Asks, func(a Ask) bool { return a.Kind != AskScan })
}

// RequestDelete answers what a deletion would lose, and the token that a
// confirmation must repeat. It wakes nothing and may be repeated: as long as
// nothing changed, the token is the same.
func (f *Facts) RequestDelete(r RequestDeleteAsk, now time.Time) Loss {
	if !f.seenBefore(r.ID) || f.Deletion == nil {
		undo := r.Undo
		if undo == 0 && f.State == StateAwaitingConfirm {
			undo = f.Policy.Undo
		}
		f.Deletion = &Deletion{
			Token: ConfirmationToken(f.Spec.Workspace, f.Epoch, f.shownAll(), fmt.Sprintf("%d %s", f.DeletionCount, undo)),
			Shown: f.shown(), Unheld: f.unheld(), Epoch: f.Epoch, By: r.By, RequestedAt: now,
			Expires: now.Add(f.Policy.TokenTTL.Std()), Undo: undo,
		}
		f.record(EventDeletionRequested, Reason{ReasonRequested, "asked for by " + orElse(r.By, unnamed) + "; nothing is deleted before it is confirmed"}, now)
	}
	d := f.Deletion
	loss := Loss{
		Workspace: f.Spec.Workspace, Epoch: f.Epoch, LastUse: age(now, f.LastUse), ScanAge: Never,
		Covered: f.covered(), Export: f.Receipt, Undo: d.Undo, NotExported: []string{}, Token: d.Token, Expires: d.Expires,
	}
	if f.Scan != nil {
		loss.Conversations, loss.Events, loss.ScanAge = f.Scan.Conversations, f.Scan.Events, age(now, f.Scan.At)
	}
	switch {
	case loss.Covered:
	case f.unmade():
		loss.NotExported = append(loss.NotExported, "nothing that anyone did: "+neverMade)
	case f.NeverReady() && f.Ref.IsZero():
		loss.NotExported = append(loss.NotExported, "nothing that anyone did: no box of it is known; what there is of one by then is looked for and destroyed")
	case f.NeverReady():
		loss.NotExported = append(loss.NotExported, "nothing that anyone did: its agent-server never answered")
	case f.Receipt.Archive.Held():
		loss.NotExported = append(loss.NotExported, "history and files since the newest export; they are exported before anything is destroyed, or the deletion waits")
	default:
		loss.NotExported = append(loss.NotExported, "history since the newest export; it is exported before anything is destroyed, or the deletion waits")
	}
	if text := f.unheldText(); text != "" {
		loss.NotExported = append(loss.NotExported, text)
	}
	return loss
}

// ConfirmDelete takes a person's confirmation. A refusal is recorded where
// status shows it, since a signal has no answer.
func (f *Facts) ConfirmDelete(s ConfirmDelete, now time.Time) {
	s.Token, s.By = plainText(s.Token), plainText(s.By)
	refuse := func(code ReasonCode, text string) {
		f.Confirmation = &Confirmation{Token: s.Token, At: now, By: s.By, Reason: Reason{code, text}}
	}
	d := f.Deletion
	switch {
	case d == nil:
		refuse(ReasonRefused, "no deletion was requested; request one and confirm what it shows")
		return
	case d.Confirmed && s.Token == d.Token:
		d.WithoutHistory = d.WithoutHistory || s.WithoutHistory
		f.unblock(now)
		return
	case s.Token != d.Token || d.Epoch != f.Epoch:
		refuse(ReasonRefused, "the token is not of the newest request; look again and confirm what that shows")
		return
	case !now.Before(d.Expires):
		refuse(ReasonRefused, "the token has expired; request the deletion again")
		return
	case d.Shown != f.shown() && !s.WithoutHistory:
		refuse(ReasonHistoryChanged, "the box was used after what was shown; request the deletion again")
		return
	case f.newlyUnheld() && !s.WithoutHistory:
		refuse(ReasonHistoryChanged, "the newest export lacks something of the workspace that was not shown; request the deletion again")
		return
	case f.Frozen:
		refuse(ReasonFrozen, "the box is frozen; switch freeze off first")
		return
	case f.undoMeetsWall(now):
		refuse(ReasonRefused, "the provider destroys the box by itself before the undo window of "+d.Undo.String()+" is over; request the deletion with a shorter one")
		return
	}
	d.Confirmed, d.ConfirmedAt, d.ConfirmedBy, d.WithoutHistory = true, now, s.By, s.WithoutHistory
	f.ResumeWanted, f.SuspendWanted, f.Holders = nil, nil, nil
	f.Confirmation = &Confirmation{Token: s.Token, At: now, By: s.By, Accepted: true, Reason: Reason{ReasonConfirmed, "accepted"}}
	why := Reason{ReasonConfirmed, "confirmed by " + orElse(s.By, unnamed)}
	f.record(EventDeletionConfirmed, why, now)
	f.startDeletion(now, why)
}

// undoMeetsWall reports whether the provider would destroy the suspended box
// within the undo window, or a margin after it.
func (f *Facts) undoMeetsWall(now time.Time) bool {
	if f.Capabilities.PausedLife == 0 || f.Deletion.Undo == 0 {
		return false
	}
	since := f.SuspendedAt // the provider's clock, which a renewal starts anew
	if since.IsZero() {
		since = now
	}
	return !now.Add(f.Deletion.Undo.Std() + f.Policy.DeadMan.Std()).Before(since.Add(f.Capabilities.PausedLife.Std()))
}

// startDeletion moves a box that is not awake on its way to deletion. One that
// is awake is drained and exported first, by its sequence.
func (f *Facts) startDeletion(now time.Time, why Reason) {
	f.Failure = nil
	switch f.State {
	case StateSuspended, StateAwaitingConfirm, StateDeleteBlocked, StateLost, StateCreateFailed:
		if f.Deletion.Undo > 0 && f.State != StateLost && f.State != StateCreateFailed {
			f.move(now, StateUndoWindow, why)
			return
		}
		f.move(now, StateExporting, why)
	case StateCreating, StateStarting, StateUnknown, StateResuming:
		// A deletion beats recovery: what may exist is destroyed without waiting
		// for it to come up. Nobody has worked in a box that never was ready.
		f.Look = false
		f.move(now, StateExporting, why)
	case StateRunning, StateDraining, StateSuspending, StateMaintenanceWake, StateUndoWindow, StateExporting,
		StateDeleting, StateBoxArchived, StateAbandoned:
	}
}

// unblock goes on with a blocked deletion once its loss is accepted.
func (f *Facts) unblock(now time.Time) {
	if f.State == StateDeleteBlocked && f.Deletion.WithoutHistory {
		f.Failure = nil
		f.Confirmation = &Confirmation{Token: f.Deletion.Token, At: now, Accepted: true, Reason: Reason{ReasonWithoutHistory, "accepted: delete without history"}}
		f.move(now, StateExporting, Reason{ReasonWithoutHistory, "a person accepted that history no export holds is lost"})
	}
}

// CancelDelete takes a request or a confirmation back. What became of it is
// recorded; too late is recorded, not undone. It may be repeated.
func (f *Facts) CancelDelete(s CancelDelete, now time.Time) {
	s.By = plainText(s.By)
	d := f.Deletion
	switch {
	case d == nil:
		if c := f.Confirmation; c == nil || !c.Cancel { // a repeat keeps the first answer
			f.Confirmation = &Confirmation{At: now, By: s.By, Cancel: true, Reason: Reason{ReasonRefused, "there is no deletion to take back"}}
		}
	case d.Committed || d.Unclear:
		f.Confirmation = &Confirmation{Token: d.Token, At: now, By: s.By, Cancel: true, Reason: Reason{ReasonRefused, "too late to take back: the box is being deleted"}}
	default:
		f.voidDeletion(Reason{ReasonCancelled, "taken back by " + orElse(s.By, unnamed)}, now)
		f.Confirmation.By, f.Confirmation.Cancel, f.Confirmation.Accepted = s.By, true, true
	}
}

// voidDeletion ends a deletion that was not carried out and brings the box back
// to rest. The next token differs, so a late copy of the old one does nothing.
func (f *Facts) voidDeletion(why Reason, now time.Time) {
	d := f.Deletion
	f.Deletion = nil
	f.DeletionCount++
	if d.Tried { // else a rebuild would take the ledger's intent for an agreed deletion
		f.Durable++
	}
	f.Confirmation = &Confirmation{Token: d.Token, At: now, Reason: why}
	f.record(EventDeletionCancelled, why, now)
	if f.State == StateDeleting && (d.Committed || d.Unclear) {
		return
	}
	switch f.State {
	case StateUndoWindow, StateExporting, StateDeleteBlocked, StateDeleting: // deleting: no worker took the step
		f.Failure = nil
		switch {
		case !f.SuspendedSince.IsZero():
			f.freshClocks(now)
			f.Durable++                     // the paused clock
			f.Look, f.WakeOwed = true, true // a wake for an export may have been under way
			f.move(now, StateSuspended, why)
		case f.Ref.IsZero():
			f.move(now, StateCreating, why)
		default:
			f.UndrainOwed, f.Look = true, true
			f.move(now, StateUnknown, why)
		}
	case StateUnknown, StateCreating, StateCreateFailed, StateStarting, StateRunning, StateDraining, StateSuspending,
		StateSuspended, StateResuming, StateMaintenanceWake, StateAwaitingConfirm, StateBoxArchived, StateLost, StateAbandoned:
	}
}

// age is how long before now t was; Never when t is unset.
func age(now, t time.Time) Duration {
	if t.IsZero() {
		return Never
	}
	return Duration(max(now.Sub(t), 0).Round(time.Second))
}
