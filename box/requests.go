package box

import (
	"slices"
	"strings"
	"time"
)

// Handlers of the contract, as pure functions on the facts. Each Check refuses
// without changing anything, so that a refusal leaves no trace in a history;
// the function of the same name assumes that the check passed and may be
// repeated.

// CheckRequest refuses a request without a usable id.
func CheckRequest(r Request) error {
	if r.ID == "" {
		return Invalidf("request_id", "is empty; give every request an id of your own, so that it can be repeated safely")
	}
	if len(r.ID) > 128 || strings.ContainsFunc(r.ID, func(c rune) bool { return c < '!' || c > '~' }) {
		return Invalidf("request_id", "use at most 128 printable characters without spaces")
	}
	return checkName("by", r.By)
}

func checkLabel(field, text string) error {
	if text == "" || checkName(field, text) != nil {
		return Invalidf(field, "use 1 to 128 characters without control characters")
	}
	return nil
}

func checkName(field, text string) error {
	if len(text) > 128 || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 127 }) {
		return Invalidf(field, "use at most 128 characters without control characters")
	}
	return nil
}

// CheckConnect refuses a connect that cannot be served in this state.
func (f *Facts) CheckConnect(r ConnectRequest) error {
	if err := CheckRequest(r.Request); err != nil {
		return err
	}
	if err := checkLabel("holder_id", r.HolderID); err != nil {
		return err
	}
	if err := f.checkLease(r.Lease); err != nil {
		return err
	}
	if r.LookWithin.IsNever() {
		return Invalidf("look_within", "\"never\" is not allowed; leave it out to take the newest look, however old")
	}
	if r.Kind != "" && r.Kind != HolderConnection && r.Kind != HolderOperation {
		return Invalidf("kind", "%q is not known; use connection or operation", r.Kind)
	}
	if err := checkName("origin", r.Origin); err != nil {
		return err
	}
	if len(f.Holders) >= maxHolders && !slices.ContainsFunc(f.Holders, func(h Holder) bool { return h.ID == r.HolderID }) {
		return Errorf(ClassExhausted, "the box has %d holders, the most there can be; release one first", maxHolders)
	}
	return f.checkWakeable()
}

// checkLease refuses a lease that no renewal would be needed for: a hold whose
// owner is gone must end.
func (f *Facts) checkLease(lease Duration) error {
	most := f.Policy.MaxRun
	if most.IsNever() {
		most = DefaultPolicy().MaxRun
	}
	switch {
	case lease.IsNever():
		return Invalidf("lease", "a hold is always bounded; renew it instead")
	case lease > most:
		return Invalidf("lease", "%s is too long; the most is %s, and renew extends it", lease, most)
	}
	return nil
}

// checkWakeable refuses what would wake a box that may not be woken.
func (f *Facts) checkWakeable() error {
	if err := f.checkOpen(); err != nil {
		return err
	}
	switch f.State {
	case StateDeleting:
		if f.toldToDestroy() {
			return Errorf(ClassFailedPrecondition, "the box is being deleted; its history stays readable")
		}
	case StateLost:
		return Errorf(ClassFailedPrecondition, "the box was lost at its provider and nothing is replaced silently; restore puts the exported history into a new box, replace gives an empty one, request-delete closes the workspace; the history stays readable")
	case StateCreateFailed:
		return Errorf(ClassFailedPrecondition, "creation failed: %s; resume tries again", f.failureText("refused"))
	case StateSuspended, StateAwaitingConfirm, StateUndoWindow, StateDeleteBlocked:
		if f.Frozen {
			return Errorf(ClassFailedPrecondition, "the box is frozen; switch freeze off first")
		}
	case StateUnknown, StateCreating, StateStarting, StateRunning, StateDraining, StateSuspending,
		StateResuming, StateMaintenanceWake, StateExporting, StateBoxArchived, StateAbandoned:
	}
	if f.deletionDue() && f.Deletion.Unclear {
		return Errorf(ClassFailedPrecondition, "the provider may have been told to destroy the box; its history stays readable")
	}
	if f.deletionDue() && (f.State == StateExporting || f.State == StateDeleting || f.State == StateDraining || f.State == StateSuspending) {
		return Errorf(ClassFailedPrecondition, "a confirmed deletion is under way; cancel-delete first")
	}
	return nil
}

// Connect takes or renews a hold and asks for a wake where one is needed.
func (f *Facts) Connect(r ConnectRequest, now time.Time) ConnectAnswer {
	if f.seenBefore(r.ID) { // a late repeat takes no hold that was released since, and wakes nothing
		answer := f.connectAnswer(r.HolderID, f.heldUntil(r.HolderID))
		answer.Seen = f.seen(now)
		return answer
	}
	lease := f.Policy.HolderLease
	if r.Lease > 0 {
		lease = r.Lease
	}
	until := f.hold(Holder{ID: r.HolderID, Kind: r.Kind, Origin: orElse(r.Origin, r.By)}, lease, now)
	if f.deletionDue() {
		f.voidDeletion(Reason{ReasonUserArrived, "someone connected before the box was destroyed"}, now)
	}
	if f.State == StateDeleteBlocked {
		f.move(now, StateSuspended, Reason{ReasonUserArrived, "someone connected"})
	}
	f.hurryResume()
	if r.LookWithin > 0 && f.State == StateRunning && now.Sub(f.ObservedAt) > r.LookWithin.Std() {
		f.Look = true
	}
	answer := f.connectAnswer(r.HolderID, until)
	answer.Seen = f.seen(now)
	return answer
}

// hurryResume lets nobody wait behind the patience of a wake of ours that
// failed.
func (f *Facts) hurryResume() {
	if f.Failure != nil && f.Failure.Step == StepResume && f.State != StateResuming {
		f.Failure = nil
	}
}

func (f *Facts) connectAnswer(holderID string, until time.Time) ConnectAnswer {
	answer := ConnectAnswer{State: f.State, HolderID: holderID, LeaseUntil: until, GatewayPath: "/w/" + f.Spec.Workspace + "/"}
	if f.State != StateRunning {
		answer.RetryAfter = Duration(time.Second)
	}
	return answer
}

// heldUntil returns the end of a hold's lease, zero when there is no such hold.
func (f *Facts) heldUntil(holderID string) time.Time {
	for _, h := range f.Holders {
		if h.ID == holderID {
			return h.Until
		}
	}
	return time.Time{}
}

// hold adds or renews a holder. Extending never shortens.
func (f *Facts) hold(h Holder, lease Duration, now time.Time) time.Time {
	until := now.Add(lease.Std())
	f.LastUse = latest(f.LastUse, now)
	for i := range f.Holders {
		if have := &f.Holders[i]; have.ID == h.ID {
			have.Renewed, have.Until, have.Epoch = now, latest(have.Until, until), f.Epoch
			return have.Until
		}
	}
	if h.Kind == "" {
		h.Kind = HolderConnection
	}
	h.Since, h.Renewed, h.Until, h.Epoch = now, now, until, f.Epoch
	f.Holders = append(f.Holders, h)
	return until
}

// Release ends a hold; one that is not there is success. The idle clock starts
// now.
func (f *Facts) Release(holderID string, now time.Time) ActionAnswer {
	before := len(f.Holders)
	f.Holders = slices.DeleteFunc(f.Holders, func(h Holder) bool {
		if h.ID == holderID && h.Kind == HolderOperation {
			f.TurnEnded = now
		}
		return h.ID == holderID
	})
	if len(f.Holders) < before {
		f.LastUse = latest(f.LastUse, now)
		return f.answer("released; the idle clock starts now")
	}
	return f.answer("there was no such hold; nothing changed")
}

// CheckRenew refuses to renew a hold that is gone: its owner must connect.
func (f *Facts) CheckRenew(r RenewRequest) error {
	if err := f.checkLease(r.Lease); err != nil {
		return err
	}
	if !slices.ContainsFunc(f.Holders, func(h Holder) bool { return h.ID == r.HolderID }) {
		return Errorf(ClassNotFound, "there is no hold %q any more; connect again", r.HolderID)
	}
	return nil
}

// Renew extends a hold.
func (f *Facts) Renew(r RenewRequest, now time.Time) ConnectAnswer {
	lease := f.Policy.HolderLease
	if r.Lease > 0 {
		lease = r.Lease
	}
	return f.connectAnswer(r.HolderID, f.hold(Holder{ID: r.HolderID}, lease, now))
}

// CheckSuspend refuses a suspend that means nothing in this state.
func (f *Facts) CheckSuspend(r Request) error {
	if err := CheckRequest(r); err != nil {
		return err
	}
	if err := f.checkOpen(); err != nil {
		return err
	}
	if f.Frozen {
		return Errorf(ClassFailedPrecondition, "the box is frozen; switch freeze off first")
	}
	if f.Capabilities.Suspend == No {
		return Errorf(ClassUnsupported, "provider %s cannot suspend a box; request-delete ends it", f.Spec.Provider)
	}
	switch f.State {
	case StateDeleting:
		return Errorf(ClassFailedPrecondition, "the box is being deleted, so there is nothing to suspend; follow status")
	case StateLost, StateCreateFailed:
		return Errorf(ClassFailedPrecondition, "the box is %s, so there is nothing to suspend; status says who can decide what", f.State)
	case StateUnknown, StateCreating, StateStarting, StateRunning, StateDraining, StateSuspending, StateSuspended,
		StateResuming, StateMaintenanceWake, StateAwaitingConfirm, StateUndoWindow, StateExporting, StateDeleteBlocked,
		StateBoxArchived, StateAbandoned:
	}
	return nil
}

// Suspend asks for a suspend now. "Already so" is success.
func (f *Facts) Suspend(r Request, now time.Time) ActionAnswer {
	if f.seenBefore(r.ID) {
		return f.answer("asked for already")
	}
	f.ResumeWanted = nil // the later of two wishes counts
	switch f.State {
	case StateSuspended, StateAwaitingConfirm, StateUndoWindow, StateDeleteBlocked, StateExporting:
		return f.answer("it is suspended already")
	case StateUnknown, StateCreating, StateCreateFailed, StateStarting, StateRunning, StateDraining, StateSuspending,
		StateResuming, StateMaintenanceWake, StateDeleting, StateBoxArchived, StateLost, StateAbandoned:
	}
	f.SuspendWanted = &Wish{RequestID: r.ID, By: r.By, At: now}
	if s := f.Sequence; s != nil && s.Purpose == PurposeIdle {
		s.Purpose = PurposeExplicit
	}
	return f.answer("it will be suspended; follow status")
}

// CheckResume refuses a resume that cannot be served.
func (f *Facts) CheckResume(r Request) error {
	if err := CheckRequest(r); err != nil {
		return err
	}
	if f.State == StateCreateFailed {
		return f.checkOpen()
	}
	return f.checkWakeable()
}

// Resume asks for a wake. "Already so" is success.
func (f *Facts) Resume(r Request, now time.Time) ActionAnswer {
	if f.seenBefore(r.ID) {
		return f.answer("asked for already")
	}
	f.SuspendWanted = nil
	f.hurryResume()
	switch f.State {
	case StateRunning:
		f.LastUse = latest(f.LastUse, now)
		if f.deletionDue() { // agreed to and not begun: who wants it awake takes it back, as a connect does
			f.voidDeletion(Reason{ReasonUserArrived, "a resume was asked for before the box was destroyed"}, now)
			return f.answer("it is running already; the deletion is taken back")
		}
		return f.answer("it is running already")
	case StateCreateFailed:
		f.Failure = nil
		if f.Adopt != nil {
			f.Adopt.Refused = false
		}
		f.move(now, StateCreating, Reason{ReasonRequested, "creation is tried again for " + orElse(r.By, unnamed)})
		return f.answer("creation is tried again; follow status")
	case StateDeleteBlocked:
		f.move(now, StateSuspended, Reason{ReasonUserArrived, "resume asked for"})
	case StateUnknown, StateCreating, StateStarting, StateDraining, StateSuspending, StateSuspended, StateResuming,
		StateMaintenanceWake, StateAwaitingConfirm, StateUndoWindow, StateExporting, StateDeleting,
		StateBoxArchived, StateLost, StateAbandoned:
	}
	if f.deletionDue() {
		f.voidDeletion(Reason{ReasonUserArrived, "a resume was asked for before the box was destroyed"}, now)
	}
	f.ResumeWanted = &Wish{RequestID: r.ID, By: r.By, At: now}
	return f.answer("it will be woken; follow status")
}

func (f *Facts) answer(text string) ActionAnswer {
	return ActionAnswer{State: f.State, Kept: f.Kept, Frozen: f.Frozen, Text: text}
}
