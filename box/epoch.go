package box

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxFormer bounds how many former boxes a workspace remembers.
const maxFormer = 8

// Former is a box that the workspace had in an earlier epoch. It is never
// touched: when it is seen again, that is reported.
type Former struct {
	Ref Ref `json:"ref"`
	// Left is when the next epoch began.
	Left time.Time `json:"left"`
	// SeenAt is when it was first seen there again, zero while it is not.
	SeenAt time.Time `json:"seen_at,omitzero"`
	Phase  Phase     `json:"phase,omitzero"`
}

// Restoration is the export whose history is put into a new box.
type Restoration struct {
	RequestID string    `json:"request_id"`
	By        string    `json:"by,omitzero"`
	At        time.Time `json:"at"`
	Receipt   Receipt   `json:"receipt"`
}

// leave ends an epoch: what belongs to its box is stale from here on. The
// workspace's own things stay: policy, switches, hold, what was exported.
func (f *Facts) leave(to int, now time.Time) {
	if !f.Ref.IsZero() {
		f.Former = append(f.Former, Former{Ref: f.Ref, Left: now})
		if extra := len(f.Former) - maxFormer; extra > 0 {
			f.Former = slices.Delete(f.Former, 0, extra)
		}
	}
	if f.Deletion != nil {
		f.voidDeletion(Reason{ReasonReplaced, fmt.Sprintf("it was about the box of epoch %d", f.Epoch)}, now)
	}
	f.Epoch, f.Epochs = to, max(to, f.Epochs)
	f.Ref, f.Observed, f.ObservedAt, f.ToldBy = Ref{}, Observation{}, time.Time{}, ""
	f.LastUse, f.AwakeSince, f.IdleFloor, f.WallFloor = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	f.Native, f.NativeAt, f.NativeStuck, f.TurnEnded = Native{}, time.Time{}, Native{}, time.Time{}
	f.SuspendedAt, f.DeepenFloor, f.DeepenTries = time.Time{}, time.Time{}, 0
	f.SuspendedSince, f.PausedClock, f.ExpiryFloor, f.NoticedFor = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	f.Reminders, f.RemindedAt = 0, time.Time{}
	f.Holders, f.Scan, f.Sequence, f.SuspendWanted, f.ResumeWanted = nil, nil, nil, nil, nil
	f.Adopted, f.CreateUnclear, f.WakeOwed, f.Unhealthy, f.Look, f.UndrainOwed = false, false, false, false, false, false
	f.Rebuilt = false
	f.Repairs, f.RepairedAt, f.Failure, f.BlockTold = 0, time.Time{}, nil, ""
	f.failAsks(ClassFailedPrecondition, "the box was replaced meanwhile; ask again")
}

// CheckReplace refuses to put a new box in the place of one that may be there.
func (f *Facts) CheckReplace(r Request) error { return f.checkSuccessor(r, "replace") }

func (f *Facts) checkSuccessor(r Request, what string) error {
	if err := CheckRequest(r); err != nil {
		return err
	}
	if slices.Contains(f.Seen, r.ID) {
		return nil
	}
	if err := f.checkOpen(); err != nil {
		return err
	}
	switch f.State {
	case StateLost:
		if f.Look {
			return Errorf(ClassConflict, "the lost box was reported again and is being read; ask again when status shows what it is")
		}
		return nil
	case StateCreateFailed:
		if f.CreateUnclear {
			return Errorf(ClassFailedPrecondition, "an earlier try ended without an answer, so a box may exist that a new one would leave forgotten; resume finds it, request-delete destroys it")
		}
		return nil
	case StateStarting, StateSuspended, StateAwaitingConfirm:
		if f.Restoring != nil && what == "replace" {
			return nil
		}
	case StateUnknown, StateCreating, StateRunning, StateDraining, StateSuspending, StateResuming, StateMaintenanceWake,
		StateUndoWindow, StateExporting, StateDeleting, StateDeleteBlocked, StateBoxArchived, StateAbandoned:
	}
	return Errorf(ClassFailedPrecondition, "%s is for a box that is lost or could not be created, and this one is %s; request-delete ends a box that is there", what, f.State)
}

// checkOpen refuses what comes after the end of a workspace, or right before.
func (f *Facts) checkOpen() error {
	switch {
	case f.State == StateBoxArchived:
		return Errorf(ClassFailedPrecondition, "the workspace is box-archived; its history stays readable, so use another workspace id")
	case f.State == StateAbandoned:
		return Errorf(ClassFailedPrecondition, "the workspace is abandoned: %s; use another workspace id", f.leavesBox())
	case f.Abandonment != nil:
		return Errorf(ClassFailedPrecondition, "the workspace is being abandoned; use another workspace id")
	}
	return nil
}

// Replace starts a new, empty box in the next epoch. The history that was
// exported stays readable.
func (f *Facts) Replace(r Request, now time.Time) ActionAnswer {
	if f.seenBefore(r.ID) {
		return f.answer("asked for already")
	}
	who := orElse(r.By, unnamed)
	if f.State != StateLost && f.State != StateCreateFailed {
		f.Restoring = nil
		f.Durable++
		f.note(now, Reason{ReasonReplaced, "taken as it is, without its history, by " + who})
		return f.answer("the new box is taken as it is; the history stays readable in the export store")
	}
	f.successor(now, Reason{ReasonReplaced, "a new, empty box was asked for by " + who})
	return f.answer("a new, empty box is created; what was exported stays readable")
}

// nextEpoch gives out an epoch that no box can have yet.
func (f *Facts) nextEpoch() int {
	f.Epochs = max(f.Epoch, f.Epochs) + 1
	return f.Epochs
}

func (f *Facts) successor(now time.Time, why Reason) {
	f.leave(f.nextEpoch(), now)
	f.Restoring, f.Adopt = nil, nil
	f.move(now, StateCreating, why)
}

// CheckRestore refuses a restore without an export to restore from, and one from
// an export that is known to lack something unless a person accepts that.
func (f *Facts) CheckRestore(r RestoreAsk) error {
	if err := f.checkSuccessor(r.Request, "restore"); err != nil || slices.Contains(f.Seen, r.ID) {
		return err
	}
	if f.Receipt.IsZero() {
		return Errorf(ClassFailedPrecondition, "nothing of this workspace was ever exported, so there is nothing to restore; replace gives an empty box")
	}
	if a := f.Receipt.Archive; !r.AcceptIncomplete && (a.None != "" || a.Missing > 0) {
		return Errorf(ClassFailedPrecondition, "the newest export, of epoch %d, lacks %s; \"history --workspace\" names it, and accept_incomplete restores what there is", f.Receipt.Epoch, f.lackText())
	}
	return nil
}

// Restore starts a new box in the next epoch, and puts the newest export's
// history and workspace into it before anyone gets in.
func (f *Facts) Restore(r RestoreAsk, now time.Time) ActionAnswer {
	if f.seenBefore(r.ID) {
		return f.answer("asked for already")
	}
	receipt := f.Receipt
	text := fmt.Sprintf("%d conversations, %d events as exported in epoch %d", receipt.Conversations, receipt.Events, receipt.Epoch)
	f.successor(now, Reason{ReasonRequested, "a restore of " + text + " was asked for by " + orElse(r.By, unnamed)})
	f.Restoring = &Restoration{RequestID: r.ID, By: r.By, At: now, Receipt: receipt}
	return f.answer("a new box is created and gets " + text + f.withFilesText() + "; what came after that export is not in it")
}

// awaitRestore keeps a box closed until its history is in it.
func (f *Facts) awaitRestore(now time.Time) {
	f.SuspendedSince, f.PausedClock, f.ExpiryFloor, f.NoticedFor = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	f.Reminders, f.RemindedAt = 0, time.Time{}
	f.Sequence, f.ResumeWanted = nil, nil
	f.move(now, StateStarting, Reason{ReasonCreated, "it is there; its history must be put back before anyone gets in"})
}

// withFilesText says what a restore brings back of the workspace.
func (f *Facts) withFilesText() string {
	a := f.Receipt.Archive
	switch {
	case !a.Held():
		return ", without files: the export holds none of the workspace"
	case a.Missing > 0:
		return fmt.Sprintf(", with %d files of the workspace, without %s", a.Files, f.lackText())
	}
	return fmt.Sprintf(", with %d files of the workspace", a.Files)
}

func (f *Facts) applyRestored(use *Use, notes []string, more int, now time.Time) {
	if f.deletionDue() || f.State != StateStarting || f.Restoring == nil {
		return // nobody gets in any more, or it was taken as it is
	}
	f.Restoring = nil
	f.scanned(use, now)
	text := fmt.Sprintf("restored and read back: %d conversations, %d events%s", f.Receipt.Conversations, f.Receipt.Events, f.withFilesText())
	if len(notes) > 0 {
		text += "; not as it was: " + strings.Join(notes, "; ")
	}
	if more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	f.wake(now, Reason{ReasonRestored, text})
}

// ObserveFormer takes in what a watcher saw of a box of an earlier epoch, and
// reports whether the observation was about one. Unknown is not gone, and a box
// that is there again is nobody's to delete but a person's: it is told, once
// for each phase, and never touched.
func (f *Facts) ObserveFormer(s ObservedSignal, now time.Time) bool {
	seen := s.Observation
	i := slices.IndexFunc(f.Former, func(one Former) bool {
		return one.Ref.Epoch == seen.Ref.Epoch && one.Ref.ID == seen.Ref.ID && one.Ref.Fingerprint == seen.Ref.Fingerprint
	})
	if i < 0 || seen.Ref.Epoch == f.Epoch || !seen.Phase.known() {
		return i >= 0
	}
	one := &f.Former[i]
	switch {
	case seen.Phase == PhaseGone && !one.SeenAt.IsZero():
		one.SeenAt, one.Phase = time.Time{}, ""
		f.note(now, Reason{ReasonSeenAgain, fmt.Sprintf("the former box of epoch %d is gone again", one.Ref.Epoch)})
	case seen.Phase != PhaseGone && one.Phase != seen.Phase:
		if one.SeenAt.IsZero() {
			one.SeenAt = now
		}
		one.Phase = seen.Phase
		f.note(now, Reason{ReasonSeenAgain, fmt.Sprintf("the former box of epoch %d (%s) is there again, %s, and costs money; nothing touches it: take out of it what you need, and delete it at the provider", one.Ref.Epoch, one.Ref.ID, one.Phase)})
	}
	return true
}

// haunted reports whether a former box is there again.
func (f *Facts) haunted() bool {
	return slices.ContainsFunc(f.Former, func(one Former) bool { return !one.SeenAt.IsZero() })
}

// note records why without a change of the state.
func (f *Facts) note(now time.Time, why Reason) {
	f.Transitions = append(f.Transitions, Transition{At: now, From: f.State, To: f.State, Reason: why, Epoch: f.Epoch})
	if extra := len(f.Transitions) - maxTransitions; extra > 0 {
		f.Transitions = slices.Delete(f.Transitions, 0, extra)
	}
}
