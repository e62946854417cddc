package box

import (
	"fmt"
	"time"
)

// Advance lets time pass: it drops holders whose lease is over, gives a fresh
// idle window after an outage, and makes the moves that only time makes. Call
// it before [Next], with the same now.
func (f *Facts) Advance(now time.Time) {
	f.expireHolders(now)
	if f.Frozen {
		return
	}
	switch f.State {
	case StateRunning:
		if at, ok := f.idleAt(); ok && now.Sub(at) > lateBy && f.Failure == nil && len(f.Holders) == 0 && f.SuspendWanted == nil && !f.deletionDue() {
			f.IdleFloor = now // leases could not be renewed while nobody looked
		}
	case StateSuspended:
		if at, ok := f.expiryAt(); ok && f.NoticedFor.Equal(at) && !now.Before(at) && f.ResumeWanted == nil && len(f.Holders) == 0 && !f.deletionDue() {
			f.expire(now)
		}
	case StateUndoWindow:
		if !now.Before(f.undoAt()) {
			f.move(now, StateExporting, Reason{ReasonUndoOver, "the undo window of " + f.Deletion.Undo.String() + " is over"})
		}
	case StateUnknown, StateCreating, StateCreateFailed, StateStarting, StateDraining, StateSuspending, StateResuming,
		StateMaintenanceWake, StateAwaitingConfirm, StateExporting, StateDeleting, StateDeleteBlocked, StateBoxArchived, StateLost:
	}
}

func (f *Facts) expireHolders(now time.Time) {
	alive := f.Holders[:0:0]
	late := false
	for _, h := range f.Holders {
		if now.Before(h.Until) {
			alive = append(alive, h)
			continue
		}
		late = late || now.Sub(h.Until) > lateBy
		f.LastUse = latest(f.LastUse, h.Renewed)
	}
	if late && f.State == StateRunning {
		f.IdleFloor = latest(f.IdleFloor, now)
	}
	f.Holders = alive
}

func (f *Facts) expire(now time.Time) {
	why := Reason{ReasonPausedTTL, "suspended since " + stamp(f.SuspendedSince) + ", the paused TTL of " + f.Policy.PausedTTL.String() + " is over"}
	if f.Policy.OnExpiry != OnExpiryDelete {
		f.Reminders, f.RemindedAt = 0, time.Time{}
		f.move(now, StateAwaitingConfirm, why)
		return
	}
	f.Deletion = &Deletion{
		Token: ConfirmationToken(f.Spec.Workspace, f.Epoch, f.shown(), fmt.Sprint(f.DeletionCount)),
		Shown: f.shown(), Epoch: f.Epoch, By: "policy", ByPolicy: true, RequestedAt: now,
		Expires: now.Add(f.Policy.TokenTTL.Std()), Undo: f.Policy.Undo, Confirmed: true, ConfirmedAt: now, ConfirmedBy: "policy",
	}
	f.startDeletion(now, Reason{ReasonPolicy, why.Text + "; the policy deletes"})
}
