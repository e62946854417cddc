package box

import (
	"slices"
	"strings"
	"time"
)

// Adoption is a box that is there and is to be taken over.
type Adoption struct {
	ID string `json:"box_id"` // the provider's own
	// RequestID is empty for the adoption that a spec asks for.
	RequestID string `json:"request_id,omitzero"`
	By        string `json:"by,omitzero"`
	// Epoch is what a box gets that carries no mark of ours.
	Epoch int `json:"epoch"`
	// From is where the workspace goes back to when the box is not taken over.
	From State `json:"from"`
	// Refused says that the provider was asked and that the box is not to be had.
	Refused bool `json:"refused,omitzero"`
}

// adoptionOf returns the adoption that a spec asks for, nil for none.
func adoptionOf(spec Spec) *Adoption {
	if spec.Adopt == "" {
		return nil
	}
	return &Adoption{ID: spec.Adopt, By: spec.Owner, Epoch: 1, From: StateCreateFailed}
}

func checkBoxID(field, id string) error {
	const most = 256
	if id == "" || len(id) > most || strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return Invalidf(field, "give the provider's own id of the box, 1 to %d printable characters without spaces", most)
	}
	return nil
}

// adopting reports whether a box may be ours by an adoption that did not end.
func (f *Facts) adopting() bool { return f.Adopt != nil && !f.Adopt.Refused }

// CheckAdopt refuses an adoption by a workspace that has a box, or may have one.
func (f *Facts) CheckAdopt(r AdoptAsk) error {
	if err := CheckRequest(r.Request); err != nil {
		return err
	}
	if err := checkBoxID("box_id", r.BoxID); err != nil {
		return err
	}
	if slices.Contains(f.Seen, r.ID) {
		return nil
	}
	if err := f.checkOpen(); err != nil {
		return err
	}
	if f.Capabilities.Adopt == No {
		return Errorf(ClassUnsupported, "provider %s cannot take over a box that is there; create one and copy what you need", f.Spec.Provider)
	}
	switch f.State {
	case StateLost:
		if f.Look {
			return Errorf(ClassConflict, "the lost box was reported again and is being read; ask again when status shows what it is")
		}
		return nil
	case StateCreateFailed:
		if f.CreateUnclear {
			return Errorf(ClassFailedPrecondition, "an earlier creation ended without an answer, so the workspace may have a box; resume finds it, request-delete destroys it")
		}
		return nil
	case StateCreating:
		return Errorf(ClassConflict, "a box is being created or taken over for this workspace; wait for it, or use a new workspace whose spec says adopt")
	case StateUnknown, StateStarting, StateRunning, StateDraining, StateSuspending, StateSuspended, StateResuming,
		StateMaintenanceWake, StateAwaitingConfirm, StateUndoWindow, StateExporting, StateDeleting, StateDeleteBlocked,
		StateBoxArchived, StateAbandoned:
	}
	return Errorf(ClassFailedPrecondition, "the workspace has a box, which is %s, and can have one only; adopt the other one under a workspace of its own", f.State)
}

// dropAdopt answers an adoption that nobody goes on with.
func (f *Facts) dropAdopt(text string) {
	if f.Adopt != nil && f.Adopt.RequestID != "" {
		f.finish(Ask{ID: f.Adopt.RequestID}, Result{Class: ClassFailedPrecondition, Error: text})
	}
	f.Adopt = nil
}

// TakeOver begins to take a box over; the answer arrives as [Facts.ResultFor] the
// request's id.
func (f *Facts) TakeOver(r AdoptAsk, now time.Time) {
	if f.seenBefore(r.ID) {
		f.answerOld(r.ID, f.Adopt != nil && f.Adopt.RequestID == r.ID, "look at status")
		return
	}
	f.Adopt = &Adoption{ID: r.BoxID, RequestID: r.ID, By: r.By, Epoch: f.nextEpoch(), From: f.State}
	f.Failure = nil
	f.move(now, StateCreating, Reason{ReasonRequested, "box " + r.BoxID + " is taken over for " + orElse(r.By, unnamed)})
}

// SpecNow returns the spec of the present epoch: with the policy in force, and
// without an adoption that is over, so that a box may be created.
func (f *Facts) SpecNow() Spec {
	out := f.Spec
	if f.Epoch > 1 {
		out.Policy = f.Policy
		if f.Adopt == nil {
			out.Adopt = ""
		}
	}
	return out
}

// AdoptAnswer says where an adoption that succeeded stands.
func (f *Facts) AdoptAnswer() ActionAnswer {
	return f.answer("box " + f.Ref.ID + " belongs to this workspace now")
}

func (f *Facts) applyAdopted(out Outcome, now time.Time) {
	seen := out.Observation
	ad := f.Adopt
	if ad == nil { // cannot happen; reading again is always safe
		f.Look = true
		return
	}
	if seen.Ref.Epoch < f.Epoch {
		f.failAdopt(StepFailure{Class: ClassFailedPrecondition, Message: "it is a box of an earlier epoch of this workspace, which never goes back"}, now)
		return
	}
	if seen.Ref.Epoch != f.Epoch {
		f.leave(seen.Ref.Epoch, now)
		f.observe(seen, now)
		if seen.Native != nil {
			f.Native = *seen.Native
		}
	}
	f.Adopt, f.Restoring, f.CreateUnclear = nil, nil, false
	f.Ref, f.Adopted = seen.Ref, true
	if out.Capabilities != nil {
		f.Capabilities = *out.Capabilities
	}
	f.doubtScan() // who knows what was done in it
	if ad.RequestID != "" {
		f.finish(Ask{ID: ad.RequestID}, Result{})
	}
	why := Reason{ReasonAdopted, "taken over for " + orElse(ad.By, unnamed) + ": " + orElse(seen.Evidence, string(seen.Phase))}
	switch seen.Phase {
	case PhaseSuspended:
		f.adoptSuspended(seen, why, now)
	case PhaseFailed:
		f.applyEnded(seen.Evidence, now)
	case PhaseStarting, PhaseRunning, PhaseUnknown, PhaseGone:
		switch {
		case f.deletionDue():
			f.move(now, StateExporting, why)
		case out.Ready:
			f.wake(now, why)
		default:
			f.move(now, StateStarting, why)
		}
	}
}

// adoptSuspended starts the paused clock where the provider says that the
// suspend was, as an age, since its clock is never compared with ours. An expiry
// that is past or close gives a whole notice first, like one that came closer.
func (f *Facts) adoptSuspended(seen Observation, why Reason, now time.Time) {
	f.SuspendedSince = now.Add(-max(time.Duration(seen.Age), 0))
	f.PausedClock, f.SuspendedAt = f.SuspendedSince, f.SuspendedSince
	f.rest(now, why)
}

// failAdopt goes back to where it was when the box was looked at and is not to
// be had; after anything else the same box is asked for again, since it may be
// marked as ours.
func (f *Facts) failAdopt(why StepFailure, now time.Time) {
	ad := f.Adopt
	if ad == nil || why.NotBegun {
		return
	}
	switch why.Class {
	case ClassNotFound, ClassAlreadyExists, ClassFailedPrecondition, ClassInvalid, ClassUnsupported:
	case ClassUnknown, ClassConflict, ClassUnauthorized, ClassExhausted, ClassUnavailable, ClassCanceled,
		ClassDeadlineExceeded, ClassInternal:
		return
	}
	text := "box " + ad.ID + " was not taken over: " + why.Message
	if ad.RequestID != "" {
		f.finish(Ask{ID: ad.RequestID}, Result{Class: why.Class, Error: text})
	}
	f.Adopt = nil
	if f.Epoch == 1 && f.Ref.IsZero() { // a start that adopts never creates
		if f.Adopt = adoptionOf(f.Spec); f.Adopt != nil {
			f.Adopt.Refused = true
		}
	}
	if f.State != StateCreating {
		return // a deletion was confirmed meanwhile
	}
	f.move(now, ad.From, Reason{ReasonRefused, text})
}
