package box

import (
	"slices"
	"strings"
	"time"
)

// Abandonment ends the watch over a box that may go on without us.
type Abandonment struct {
	RequestID string    `json:"request_id"`
	By        string    `json:"by,omitzero"`
	Reason    string    `json:"reason"`
	At        time.Time `json:"at"`
	Force     bool      `json:"force,omitzero"`
	// From is the state that the box was in.
	From State `json:"from"`
	// Unserved says that no worker of its instance was up, and Unmade that none
	// ever was, so that there is no box.
	Unserved bool `json:"unserved,omitzero"`
	Unmade   bool `json:"unmade,omitzero"`
}

// LeavesBox says, for the middle of a sentence, what is left behind, as far as
// that was known.
func (l LedgerAbandonment) LeavesBox() string {
	switch {
	case l.Abandonment.Unmade:
		return neverMade
	case l.Ref.IsZero():
		return "if it has a box, that may still exist and cost money"
	}
	return "the box may still exist and cost money"
}

// leavesBox says the same, also where nobody knows any more who abandoned it.
func (f *Facts) leavesBox() string {
	l := LedgerAbandonment{Ref: f.Ref}
	if f.Abandonment != nil {
		l.Abandonment = *f.Abandonment
	}
	return l.LeavesBox()
}

// outOfReach reports whether the box cannot be had: it is not there, not known,
// or a step keeps failing.
func (f *Facts) outOfReach() bool {
	switch f.State {
	case StateLost, StateUnknown, StateCreateFailed:
		return true
	case StateCreating, StateStarting, StateRunning, StateDraining, StateSuspending, StateSuspended, StateResuming,
		StateMaintenanceWake, StateAwaitingConfirm, StateUndoWindow, StateExporting, StateDeleting, StateDeleteBlocked,
		StateBoxArchived, StateAbandoned:
	}
	return f.unserved() || f.Failure != nil && f.Failure.Count >= attentionTries
}

// CheckAbandon refuses to look away from a box that can be had, unless forced.
func (f *Facts) CheckAbandon(r AbandonAsk) error {
	if err := CheckRequest(r.Request); err != nil {
		return err
	}
	const most = 500
	if strings.TrimSpace(r.Reason) == "" || len(r.Reason) > most || strings.ContainsFunc(r.Reason, func(c rune) bool { return c < ' ' || c == 127 }) {
		return Invalidf("reason", "say in 1 to %d characters, without line breaks, why nobody needs to watch this box any more; it is kept for ever", most)
	}
	if slices.Contains(f.Seen, r.ID) {
		return nil
	}
	if err := f.checkOpen(); err != nil {
		return err
	}
	if !r.Force && !f.outOfReach() {
		if f.Ref.IsZero() {
			return Errorf(ClassFailedPrecondition, "the box is %s, and a worker may be making it now; request-delete destroys what there is of it by then, and force abandons it all the same: what was made then goes on costing money", f.State)
		}
		return Errorf(ClassFailedPrecondition, "the box is %s and within reach; request-delete destroys it, and force abandons it all the same: it then goes on costing money", f.State)
	}
	return nil
}

// Abandon asks for the end of the watch; the answer arrives as
// [Facts.ResultFor] the request's id, once it is recorded for ever.
func (f *Facts) Abandon(r AbandonAsk, now time.Time) {
	if f.seenBefore(r.ID) {
		f.answerOld(r.ID, f.Abandonment != nil && f.Abandonment.RequestID == r.ID, "look at status")
		return
	}
	f.Abandonment = &Abandonment{RequestID: r.ID, By: r.By, Reason: r.Reason, At: now, Force: r.Force, From: f.State}
	f.abandonUnserved()
}

// abandonUnserved notes whether the end of the watch needs another worker than
// one of the instance.
func (f *Facts) abandonUnserved() {
	if f.Abandonment != nil && f.unserved() {
		f.Abandonment.Unserved, f.Abandonment.Unmade = true, f.unmade()
	}
}

// AbandonAnswer says what an abandoned workspace is.
func (f *Facts) AbandonAnswer() ActionAnswer {
	return f.answer("nobody watches the workspace any more; " + f.leavesBox() + ", and the id stays closed")
}

func (f *Facts) nextAbandon() Step {
	return Step{Kind: StepAbandon, AnyWorker: f.Abandonment.Unserved, StoppedBy: "nobody: it was asked for", Reason: Reason{ReasonAbandoned, f.abandonText()}}
}

func (f *Facts) abandonText() string {
	return "abandoned by " + orElse(f.Abandonment.By, unnamed) + ": " + f.Abandonment.Reason
}

func (f *Facts) applyAbandoned(now time.Time) {
	f.Holders, f.Sequence, f.ResumeWanted, f.SuspendWanted = nil, nil, nil, nil
	f.Look, f.UndrainOwed, f.Failure = false, false, nil
	f.finish(Ask{ID: f.Abandonment.RequestID}, Result{})
	f.failAsks(ClassFailedPrecondition, "the workspace was abandoned meanwhile; use another workspace id")
	f.dropAdopt("the workspace was abandoned meanwhile; use another workspace id")
	f.move(now, StateAbandoned, Reason{ReasonAbandoned, f.abandonText() + "; " + f.leavesBox()})
}

// failAbandon takes an abandonment back that cannot be recorded as it is.
func (f *Facts) failAbandon(why StepFailure) {
	if why.Class.Retryable() || why.Class == ClassCanceled || why.NotBegun {
		return
	}
	f.finish(Ask{ID: f.Abandonment.RequestID}, Result{Class: why.Class, Error: "it cannot be recorded, so the box is watched as before: " + why.Message})
	f.Abandonment, f.Failure = nil, nil
}
