package box

import (
	"fmt"
	"slices"
	"time"
)

// CheckAsk refuses a reclaim or an export that cannot be served in this state.
func (f *Facts) CheckAsk(ask Ask) error {
	if err := CheckRequest(Request{ID: ask.ID, By: ask.By}); err != nil {
		return err
	}
	if _, done := f.ResultFor(ask.ID); done {
		return nil
	}
	for _, tier := range ask.Reclaim.Tiers {
		switch tier {
		case TierCaches, TierDependencies, TierRuntime:
		default:
			return Invalidf("tiers", "%q is not known; use caches, dependencies or runtime", tier)
		}
	}
	if n := len(ask.Reclaim.ConversationIDs); n > MaxReclaimConversations {
		return Invalidf("conversation_ids", "names %d conversations; at most %d fit into one request", n, MaxReclaimConversations)
	}
	if err := checkAccept(ask.Reclaim); err != nil {
		return err
	}
	for i, id := range ask.Reclaim.ConversationIDs {
		if !conversationForm.MatchString(id) {
			return Invalidf(fmt.Sprintf("conversation_ids[%d]", i), "%q is not the id of a conversation: 32 hexadecimal digits, with or without dashes", OneLine(id, 80))
		}
	}
	if err := f.checkOpen(); err != nil {
		return err
	}
	if len(f.Asks) >= maxAsks && !f.asked(ask.ID) {
		return tooManyAsks()
	}
	if ask.Kind == AskReclaim && !ask.Reclaim.DryRun && f.Hold != nil {
		return Errorf(ClassFailedPrecondition, "%s; ask for a dry run, or again when it is lifted", f.holdReason("nothing is reclaimed").Text)
	}
	switch f.State {
	case StateRunning:
		return nil
	case StateSuspended, StateAwaitingConfirm:
		if ask.Kind == AskExport {
			if f.Frozen && !f.covered() {
				return Errorf(ClassFailedPrecondition, "an export must wake the box, which is frozen; switch freeze off first")
			}
			return nil
		}
	case StateUnknown, StateCreating, StateCreateFailed, StateStarting, StateDraining, StateSuspending, StateResuming,
		StateMaintenanceWake, StateUndoWindow, StateExporting, StateDeleting, StateDeleteBlocked,
		StateBoxArchived, StateLost, StateAbandoned:
	}
	return Errorf(ClassFailedPrecondition, "%s needs a running box and this one is %s; connect first", ask.Kind, f.State)
}

// checkAccept refuses to give up work of nobody in particular.
func checkAccept(r ReclaimRequest) error {
	if r.AcceptUnsaved && (len(r.ConversationIDs) == 0 || !slices.Contains(r.Tiers, TierRuntime)) {
		return Invalidf("accept_unsaved", "is for tier runtime of conversations that are named; add both, or leave it out")
	}
	return nil
}

// Queue stores an ask; the answer arrives as [Facts.ResultFor] its id. An
// export that is covered already is answered at once.
func (f *Facts) Queue(ask Ask) {
	if f.seenBefore(ask.ID) {
		f.answerOld(ask.ID, f.asked(ask.ID), "ask again under a new request id")
		return
	}
	if len(f.Asks) >= maxAsks { // a look, which nothing checks before
		f.finish(ask, Result{Class: ClassExhausted, Error: tooManyAsks().Error()})
		return
	}
	if ask.Kind == AskExport && f.State != StateRunning && f.covered() {
		receipt := f.Receipt
		f.finish(ask, Result{Receipt: &receipt})
		return
	}
	f.Asks = append(f.Asks, ask)
}

func (f *Facts) asked(id string) bool {
	return slices.ContainsFunc(f.Asks, func(a Ask) bool { return a.ID == id })
}

func tooManyAsks() error {
	return Errorf(ClassExhausted, "%d requests wait for the box already, the most there can be; ask again when one was answered", maxAsks)
}

// CheckSwitch refuses keep or freeze where they cannot mean anything.
func (f *Facts) CheckSwitch(r SwitchAsk) error {
	if err := CheckRequest(r.Request); err != nil {
		return err
	}
	if f.toldToDestroy() {
		return Errorf(ClassFailedPrecondition, "the box is being deleted, so there is nothing to keep or freeze; follow status")
	}
	return f.checkOpen()
}

// Keep turns the expiry off, or on again with a fresh clock.
func (f *Facts) Keep(r SwitchAsk, now time.Time) ActionAnswer {
	if f.seenBefore(r.ID) || f.Kept == r.On {
		return f.answer("nothing changed")
	}
	f.Kept = r.On
	f.Durable++
	f.freshClocks(now)
	if d := f.Deletion; r.On && d != nil && d.ByPolicy && !d.Committed && !d.Unclear { // a deletion at expiry is an expiry
		f.voidDeletion(Reason{ReasonKept, "kept by " + orElse(r.By, unnamed)}, now)
	}
	if f.State == StateAwaitingConfirm && r.On {
		f.move(now, StateSuspended, Reason{ReasonKept, "kept by " + orElse(r.By, unnamed)})
	}
	return f.answer(map[bool]string{true: "it does not expire any more", false: "the paused TTL counts from now"}[r.On])
}

// Freeze stops every timer, or starts the clocks afresh.
func (f *Facts) Freeze(r SwitchAsk, now time.Time) ActionAnswer {
	if f.seenBefore(r.ID) || f.Frozen == r.On {
		return f.answer("nothing changed")
	}
	f.Frozen = r.On
	f.Durable++
	f.freshClocks(now)
	f.freshMemory(now)
	if d := f.Deletion; d != nil && d.Confirmed && !d.Committed {
		d.ConfirmedAt = now // the undo window starts again
	}
	switch {
	case r.On:
		f.SuspendWanted = nil // a wish from before is not carried out at some later thaw
	case f.State == StateAwaitingConfirm:
		f.move(now, StateSuspended, Reason{ReasonFrozen, "no longer frozen; the paused TTL counts from now"})
	default:
		f.freshWall(now)
	}
	return f.answer(map[bool]string{true: "frozen: no timer acts", false: "the clocks start afresh"}[r.On])
}

// freshWall starts the hard maximum of an awake box afresh, which no timer kept
// meanwhile; the provider's own end stays where it is.
func (f *Facts) freshWall(now time.Time) {
	limit := f.Policy.MaxRun.Std()
	if limit == 0 || f.AwakeSince.IsZero() || !f.awake() {
		return
	}
	f.WallFloor = now.Add(limit)
	if own := f.nativeRun(); own > 0 {
		f.WallFloor = earliest(f.WallFloor, f.AwakeSince.Add(own))
	}
}

func (f *Facts) freshClocks(now time.Time) {
	f.IdleFloor = latest(f.IdleFloor, now)
	if !f.SuspendedSince.IsZero() {
		f.PausedClock = now
	}
}

// CheckSetPolicy refuses a policy that cannot be meant or met.
func (f *Facts) CheckSetPolicy(r SetPolicyAsk) error {
	if err := CheckRequest(r.Request); err != nil {
		return err
	}
	if err := r.Policy.Validate(); err != nil {
		return err
	}
	if err := f.checkOpen(); err != nil {
		return err
	}
	if r.Policy.OnExpiry == OnExpiryDelete && f.Policy.OnExpiry != OnExpiryDelete {
		return Invalidf("policy.on_expiry", "\"delete\" can only be chosen at creation; use request-delete")
	}
	merged := f.Policy.Merged(r.Policy)
	if err := merged.Validate(); err != nil {
		return err
	}
	_, err := Plan(merged, f.Capabilities)
	return err
}

// freshRun is how long a running box has left at least when its hard maximum
// was shortened, unless it had less.
const freshRun = 15 * time.Minute

// SetPolicy changes the policy. A deadline that comes closer gives a fresh
// window first: nothing is applied retroactively.
func (f *Facts) SetPolicy(r SetPolicyAsk, now time.Time) SetPolicyAnswer {
	before := f.Armed(f.due(now))
	if !f.seenBefore(r.ID) {
		old, had := f.expiryAt()
		idle, was := f.IdleAfter(), f.Policy.Effective() // facts of an earlier release lack what is new
		end, ends := f.wallAt()
		memory, kept := f.deepenAt()
		f.Policy = f.Policy.Merged(r.Policy).Effective()
		if f.Policy != was {
			f.Durable++
		}
		if f.IdleAfter() != idle {
			f.IdleFloor = latest(f.IdleFloor, now)
		}
		fresh := now.Add(freshRun)
		if ends {
			fresh = earliest(fresh, end) // a shorter maximum lengthens nothing
		}
		if wall, ok := f.wallAt(); ok && wall.Before(fresh) {
			f.WallFloor = fresh
		}
		if at, ok := f.expiryAt(); ok && (!had || at.Before(old)) {
			f.ExpiryFloor = latest(f.ExpiryFloor, now.Add(max(f.Policy.Grace, f.Policy.Notice).Std()))
		}
		if _, ok := f.deepenAt(); ok && f.Policy.DeepenAfter != was.DeepenAfter {
			f.DeepenFloor = now.Add(f.Policy.DeepenAfter.Std())
			if kept { // a shorter time lengthens nothing
				f.DeepenFloor = earliest(f.DeepenFloor, memory)
			}
		}
		if at, ok := f.expiryAt(); f.Deletion != nil && f.Deletion.ByPolicy && !f.Deletion.Committed && !f.Deletion.Unclear &&
			(f.Policy.OnExpiry != OnExpiryDelete || !ok || at.After(now)) {
			f.voidDeletion(Reason{ReasonPolicyChanged, "the policy was changed; it does not delete the box now"}, now)
		}
		if at, ok := f.expiryAt(); f.State == StateAwaitingConfirm && (!ok || at.After(now)) {
			f.move(now, StateSuspended, Reason{ReasonPolicyChanged, "the policy was changed; it is not expired any more"})
		}
	}
	answer := SetPolicyAnswer{Policy: f.Policy, NextBefore: before.At, NextAfter: f.Armed(f.due(now)).At}
	if plan, err := Plan(f.Policy, f.Capabilities); err == nil {
		answer.Risks = plan.Risks
	}
	return answer
}

// ReportActivity takes in use that was seen from outside. Use of a suspended
// box is no use: it changes nothing.
func (f *Facts) ReportActivity(s ActivitySignal, now time.Time) {
	if !f.awake() || s.Epoch != 0 && s.Epoch != f.Epoch {
		return
	}
	if !s.IdleFor.IsNever() {
		f.LastUse = latest(f.LastUse, now.Add(-s.IdleFor.Std()))
	}
	for _, id := range s.Begun {
		if checkLabel("begun", id) == nil && (len(f.Holders) < maxHolders || !f.heldUntil(id).IsZero()) {
			f.hold(Holder{ID: id, Kind: HolderOperation, Origin: plainText(s.Origin)}, f.Policy.HolderLease, now)
		}
	}
	for _, id := range s.Ended {
		if slices.ContainsFunc(f.Holders, func(h Holder) bool { return h.ID == id && h.Kind == HolderOperation }) {
			f.Release(id, now)
		}
	}
}
