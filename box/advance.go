package box

import (
	"fmt"
	"slices"
	"time"
)

// Advance lets time pass: it drops holders whose lease is over, gives a fresh
// idle window after an outage, and makes the moves that only time makes. Call
// it before [Next], with the same now.
func (f *Facts) Advance(now time.Time) {
	defer f.recordUnhealthy(f.Unhealthy, now)
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
		f.memoryAfterOutage(now)
		f.floorAfterOutage(now)
		if at, ok := f.expiryAt(); ok && f.NoticedFor.Equal(at) && !now.Before(at) && f.ResumeWanted == nil && len(f.Holders) == 0 && !f.deletionDue() {
			f.expire(now)
		}
	case StateStarting, StateResuming:
		f.giveUp(now)
	case StateAwaitingConfirm:
		f.memoryAfterOutage(now)
	case StateDeleteBlocked:
		f.memoryAfterOutage(now)
		if at, ok := f.unblockAt(); ok && !now.Before(at) {
			f.Deletion.Blocked++
			f.Deletion.Rejected = 0
			f.move(now, StateExporting, Reason{ReasonFailed, "the blocked deletion is tried again"})
		}
	case StateUndoWindow:
		f.memoryAfterOutage(now)
		if !now.Before(f.undoAt()) {
			f.move(now, StateExporting, Reason{ReasonUndoOver, "the undo window of " + f.Deletion.Undo.String() + " is over"})
		}
	case StateExporting:
		f.restUnderHold(now)
	case StateUnknown, StateCreating, StateCreateFailed, StateDraining, StateSuspending,
		StateMaintenanceWake, StateDeleting, StateBoxArchived, StateLost, StateAbandoned:
	}
}

// floorAfterOutage moves an expiry that nobody was told of in time: notify
// first, wait a full window, then act.
func (f *Facts) floorAfterOutage(now time.Time) {
	at, ok := f.expiryAt()
	if !ok {
		return
	}
	told := f.NoticedFor.Equal(at)
	if !told && now.Sub(at.Add(-f.noticeLead())) > lateBy || told && f.Policy.OnExpiry == OnExpiryDelete && now.Sub(at) > lateBy {
		f.ExpiryFloor = latest(f.ExpiryFloor, now.Add(f.noticeLead()))
	}
}

// giveUp settles a box that does not become ready as suspended, so that it does
// not cost for ever: when a person wants that, when nobody waits for it, or at
// the hard maximum.
func (f *Facts) giveUp(now time.Time) {
	if f.Failure == nil || (f.Failure.Step != StepAwaitReady && f.Failure.Step != StepResume && f.Failure.Step != StepRestore) || f.Capabilities.Suspend == No || f.Look || f.unserved() {
		return
	}
	limit := f.Policy.MaxRun.Std()
	tooLong := limit > 0 && now.Sub(f.StateSince) >= limit
	alone := len(f.Holders) == 0 && f.ResumeWanted == nil && f.Failure.Count >= readyTries
	if f.SuspendWanted == nil && !tooLong && !alone {
		return
	}
	why := "it does not become ready: " + f.Failure.Message
	f.ResumeWanted, f.Holders = nil, nil
	f.failAsks(ClassUnavailable, why)
	f.settle(now, Reason{ReasonUnreachable, why})
}

// settle suspends a box in which nothing can be looked at any more.
func (f *Facts) settle(now time.Time, why Reason) {
	f.Unhealthy = true
	f.Sequence = &Sequence{
		Purpose: PurposeWall, Since: now, Quiet: true, Reclaimed: true, Exported: true, Ended: true, Skips: []string{why.Text},
	}
	if f.deletionDue() {
		f.Sequence.Purpose = PurposeDelete
	}
	f.move(now, StateSuspending, why)
}

// unblockAt returns when a blocked deletion is tried again: after an hour, then
// two, up to a day.
func (f *Facts) unblockAt() (time.Time, bool) {
	if !f.deletionDue() {
		return time.Time{}, false
	}
	return f.StateSince.Add(min(time.Hour<<min(f.Deletion.Blocked, 8), day)), true
}

func (f *Facts) expireHolders(now time.Time) {
	if !slices.ContainsFunc(f.Holders, func(h Holder) bool { return !now.Before(h.Until) || h.Epoch != f.Epoch }) {
		return // the usual case, at every turn
	}
	alive := f.Holders[:0:0]
	late := false
	for _, h := range f.Holders {
		if h.Epoch != f.Epoch {
			continue // of a box that is not there any more
		}
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
	lacks := f.unheld() != ""
	if f.Policy.OnExpiry == OnExpiryDelete && lacks {
		why.Text += "; the policy deletes, but the export lacks " + f.lackText() + ", so a person must decide"
	}
	if f.Policy.OnExpiry != OnExpiryDelete || lacks {
		f.Reminders, f.RemindedAt = 0, time.Time{}
		f.move(now, StateAwaitingConfirm, why)
		return
	}
	f.Deletion = &Deletion{
		Token: ConfirmationToken(f.Spec.Workspace, f.Epoch, f.shown(), fmt.Sprint(f.DeletionCount)),
		Shown: f.shown(), Epoch: f.Epoch, By: "policy", ByPolicy: true, RequestedAt: now,
		Expires: now.Add(f.Policy.TokenTTL.Std()), Undo: f.Policy.Undo, Confirmed: true, ConfirmedAt: now, ConfirmedBy: "policy",
	}
	why = Reason{ReasonPolicy, why.Text + "; the policy deletes"}
	f.record(EventDeletionConfirmed, why, now)
	f.startDeletion(now, why)
}
