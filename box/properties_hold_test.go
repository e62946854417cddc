package box_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

// What each property looks at. An answer says what is wrong; none means that it
// holds.

// destroysRightly compares a deletion with what really happened, not with what
// the facts say of it.
func destroysRightly(x *trial, step box.Step) string {
	w, f := x.w, x.w.facts
	if step.Kind != box.StepDelete {
		return ""
	}
	d := f.Deletion
	byPolicy := d != nil && d.ByPolicy && f.Spec.Policy.OnExpiry == box.OnExpiryDelete
	switch {
	case d == nil || !byPolicy && !x.agreed[d.Token]:
		return "nobody agreed to it"
	case f.State != box.StateDeleting && f.Look:
		return "what was reported was not read first"
	case !x.ready || x.waived[d.Token]:
		return "" // nothing to lose, or its loss was accepted
	case f.State != box.StateDeleting && !x.verified[d.Token]:
		return "the export was not read back"
	case w.exists && w.phase != box.PhaseRunning && !w.stored[w.digest()]: // a box that runs is read once more by the call itself
		return "its newest history is nowhere"
	}
	return ""
}

// armsOne checks what a running and a suspended box wait for.
func armsOne(x *trial, step box.Step) string {
	status, why := x.w.facts.StatusAt(x.w.now), x.w.facts.WhyAt(x.w.now)
	at := x.w.facts.Armed(step).At
	if !status.NextAt.Equal(at) || !why.NextAt.Equal(at) {
		return fmt.Sprintf("armed is %s, and people read %s and %s", at, status.NextAt, why.NextAt)
	}
	return armed(x.w.facts, step)
}

func armedOnce(_ *rapid.T, r rules, f *box.Facts, now time.Time) string {
	return armed(f, r.next(f, now))
}

func armed(f *box.Facts, step box.Step) string {
	p, awake := f.Policy, f.State == box.StateRunning
	if step.Kind != box.StepWait || f.Frozen || step.Reason.Code == box.ReasonFailed {
		return ""
	}
	var known []time.Time // the deadlines that nobody may sleep through
	switch {
	case awake:
		for _, h := range f.Holders {
			known = append(known, h.Until)
		}
		if !p.Idle.IsNever() && len(f.Holders) == 0 {
			idleFrom := f.LastUse
			for _, t := range []time.Time{f.AwakeSince, f.IdleFloor} {
				if t.After(idleFrom) {
					idleFrom = t
				}
			}
			known = append(known, idleFrom.Add(p.Idle.Std()))
		}
		if !p.MaxRun.IsNever() {
			wall := f.AwakeSince.Add(p.MaxRun.Std())
			if f.WallFloor.After(wall) {
				wall = f.WallFloor
			}
			known = append(known, wall)
		}
	case f.State == box.StateSuspended && !p.PausedTTL.IsNever() && !f.Kept:
		expiry := f.PausedClock.Add(p.PausedTTL.Std())
		if f.ExpiryFloor.After(expiry) {
			expiry = f.ExpiryFloor
		}
		known = append(known, expiry)
	}
	if c := f.Capabilities; f.State == box.StateSuspended && c.Deepen == box.Yes && f.Observed.MemoryKept == box.Yes && !p.DeepenAfter.IsNever() && f.Hold == nil {
		end := f.SuspendedAt.Add(p.DeepenAfter.Std())
		if f.DeepenFloor.After(end) {
			end = f.DeepenFloor
		}
		known = append(known, end)
	}
	switch {
	case len(known) == 0:
		return ""
	case step.At.IsZero():
		return "nothing is armed"
	case step.At.After(first(known...)):
		return fmt.Sprintf("armed is %s, and something is due at %s", step.At, first(known...))
	case awake && f.Capabilities.MaxRun == 0 && step.At.Before(first(known...)):
		return fmt.Sprintf("armed is %s, and nothing is due before %s", step.At, first(known...))
	}
	return ""
}

func wakesLater(x *trial, step box.Step) string { return later(step, x.w.now) }

func later(step box.Step, now time.Time) string {
	if step.Kind == box.StepWait && !step.At.IsZero() && !step.At.After(now) {
		return fmt.Sprintf("a wait until %s at %s", step.At, now)
	}
	return ""
}

func respectsHolders(x *trial, step box.Step) string {
	s := x.w.facts.Sequence
	if step.Kind != box.StepSuspend || s == nil || s.Purpose != box.PurposeIdle {
		return ""
	}
	for id, until := range x.held {
		if until.After(x.w.now) {
			return fmt.Sprintf("%s holds it until %s", id, until)
		}
	}
	return ""
}

func neverShortens(x *trial, event string, before *box.Facts) string {
	f, now := x.w.facts, x.w.now
	switch event {
	case "connect", "renew", "report":
	default:
		return ""
	}
	for _, was := range before.Holders {
		for _, h := range f.Holders {
			if h.ID == was.ID && h.Until.Before(was.Until) {
				return fmt.Sprintf("the hold %s ends at %s instead of %s", h.ID, h.Until, was.Until)
			}
		}
	}
	if before.State != box.StateRunning || f.State != box.StateRunning {
		return ""
	}
	if was, is := x.r.soonest(before, now), x.r.soonest(f, now); is.Before(was) {
		return fmt.Sprintf("it ends at %s instead of %s", is, was)
	}
	return ""
}

func neverRetroactive(x *trial, event string, before *box.Facts) string {
	f, now := x.w.facts, x.w.now
	if event != "policy" || before.Failure != nil {
		return ""
	}
	var fresh time.Duration
	switch before.State {
	case box.StateRunning:
		fresh = 15 * time.Minute
		if !f.Policy.Idle.IsNever() {
			fresh = min(fresh, f.Policy.Idle.Std())
		}
	case box.StateSuspended:
		fresh = max(f.Policy.Grace, f.Policy.Notice).Std()
	default:
		return ""
	}
	was, is := x.r.soonest(before, now), x.r.soonest(f, now)
	if least := first(was, now.Add(fresh)); is.Before(least) {
		return fmt.Sprintf("something happens at %s, the least is %s", is, least)
	}
	return ""
}

// leavesAlone looks at a box that the provider holds suspended and of which we
// know that.
func leavesAlone(x *trial, step box.Step) string {
	w, f := x.w, x.w.facts
	switch f.State {
	case box.StateSuspended, box.StateAwaitingConfirm, box.StateUndoWindow:
	default:
		return ""
	}
	if !w.exists || w.phase != box.PhaseSuspended {
		return ""
	}
	switch step.Kind {
	case box.StepWait, box.StepNotify, box.StepFinish, box.StepRecord: // the record goes to the ledger only
		return ""
	case box.StepDeepen: // wakes nothing, and is looked at by a property of its own
		return ""
	case box.StepObserve: // at the provider, not in the box
		if f.Look {
			return ""
		}
		return "nothing was reported, and it is read all the same"
	case box.StepResume:
		if x.wanted {
			return ""
		}
		return "nobody asked for that"
	default:
		return "it would have to be awake for that"
	}
}

// givesUpMemoryInTime compares the end of a suspended box's memory with what
// really happened: never before its time, never of a box that somebody needs,
// and it leaves the paused clock alone.
func givesUpMemoryInTime(x *trial, step box.Step) string {
	w, f := x.w, x.w.facts
	if was := x.clock; was != nil {
		x.clock = nil
		rest := f.State == box.StateSuspended || f.State == box.StateAwaitingConfirm
		if rest && (!f.SuspendedSince.Equal(was.SuspendedSince) || !f.PausedClock.Equal(was.PausedClock) || !f.SuspendedAt.Equal(was.SuspendedAt)) {
			return "its clocks moved when its memory was given up"
		}
	}
	if step.Kind != box.StepDeepen {
		return ""
	}
	x.clock = snapshot(f)
	for id, until := range x.held {
		if until.After(w.now) {
			return fmt.Sprintf("%s holds it until %s", id, until)
		}
	}
	switch after := w.now.Sub(x.rests); {
	case w.exists && w.phase == box.PhaseSuspended && f.Policy.DeepenAfter.IsNever():
		return "its memory is to be kept"
	case w.exists && w.phase == box.PhaseSuspended && after < f.Policy.DeepenAfter.Std():
		return fmt.Sprintf("after %s, and its memory is to be kept for %s", after, f.Policy.DeepenAfter)
	}
	return ""
}

// restsWithoutMemory is for a box that nobody uses any more.
func restsWithoutMemory(x *trial, step box.Step) string {
	w, f := x.w, x.w.facts
	held := w.exists && w.phase == box.PhaseSuspended && w.seen().MemoryKept == box.Yes
	if !held || f.Capabilities.Deepen != box.Yes || f.Policy.DeepenAfter.IsNever() || f.State == box.StateLost || step.Upcoming() == box.StepDeepen {
		return ""
	}
	if step.At.IsZero() || step.At.Sub(w.now) > f.Policy.DeepenAfter.Std() {
		return fmt.Sprintf("it holds its memory, next %+v", step)
	}
	return ""
}

func plansOnce(t *rapid.T, r rules) string {
	span := func(label string, most time.Duration) box.Duration {
		switch rapid.IntRange(0, 3).Draw(t, label+" kind") {
		case 0:
			return 0
		case 1:
			return box.Never
		}
		return box.Duration(rapid.Int64Range(int64(time.Second), int64(most)).Draw(t, label))
	}
	p := box.Policy{Idle: span("idle", day), PausedTTL: span("ttl", 90*day), MaxRun: span("run", 2*day)}
	c := row()
	c.MaxRun = rapid.SampledFrom([]box.Span{0, box.Span(time.Minute), box.Span(time.Hour), box.Span(day)}).Draw(t, "provider's wall")
	c.PausedLife = rapid.SampledFrom([]box.Span{0, box.Span(10 * day), box.Span(60 * day)}).Draw(t, "provider's retention")
	if rapid.Bool().Draw(t, "deletes") {
		p.OnExpiry = box.OnExpiryDelete
	}
	once, err := r.plan(p, c)
	if err != nil {
		return ""
	}
	twice, err := r.plan(once.Policy, c)
	if err != nil {
		return fmt.Sprintf("what was planned is refused: %s", err)
	}
	if twice.Policy != once.Policy || !slices.Equal(twice.Watches, once.Watches) {
		return fmt.Sprintf("planned %+v, then %+v", once, twice)
	}
	for _, risk := range twice.Risks {
		if !slices.Contains(once.Risks, risk) {
			return "a new risk: " + risk
		}
	}
	// A box with this policy that is told it again does not change its mind.
	s := spec()
	s.Policy = once.Policy
	f := box.NewFacts(s, c, noon())
	f.State, f.AwakeSince, f.LastUse = box.StateRunning, noon(), noon()
	answer := f.SetPolicy(box.SetPolicyAsk{Request: box.Request{ID: "p"}, Policy: once.Policy}, noon().Add(time.Second))
	if !answer.NextBefore.Equal(answer.NextAfter) || answer.Policy != once.Policy {
		return fmt.Sprintf("setting what is set moves %s to %s", answer.NextBefore, answer.NextAfter)
	}
	return ""
}

func sameStep(_ *rapid.T, r rules, f *box.Facts, now time.Time) string {
	return same(r, f, r.next(f, now), now)
}

func same(r rules, f *box.Facts, step box.Step, now time.Time) string {
	before := encoded(f)
	for _, facts := range []*box.Facts{f, copied(f)} {
		if again := r.next(facts, now); !reflect.DeepEqual(again, step) {
			return fmt.Sprintf("%+v\nand then %+v", step, again)
		}
		facts.StatusAt(now)
		facts.WhyAt(now)
	}
	if after := encoded(f); !bytes.Equal(before, after) {
		return fmt.Sprintf("looking changes the facts from\n%s\nto\n%s", before, after)
	}
	return ""
}

func monotone(r rules, f *box.Facts, step box.Step, now time.Time) string {
	if step.Kind != box.StepWait || step.At.IsZero() {
		return ""
	}
	for _, at := range []time.Time{now.Add(step.At.Sub(now) / 3), now.Add(step.At.Sub(now) * 2 / 3), step.At.Add(-1)} {
		if !at.After(now) {
			continue
		}
		if then := r.next(f, at); then.Kind != box.StepWait || then.At.Before(step.At) {
			return fmt.Sprintf("at %s a wait until %s became %s until %s", at, step.At, then.Kind, then.At)
		}
	}
	return ""
}

func staysFrozen(x *trial, step box.Step) string { return frozen(x.w.facts, step) }

// frozen says what no timer may begin. What was begun before is undone, or goes
// on where there is no way back.
func frozen(f *box.Facts, step box.Step) string {
	if !f.Frozen {
		return ""
	}
	switch {
	case step.Kind == box.StepQuiesce && f.Sequence == nil, step.Kind == box.StepVerifyExport,
		step.Kind == box.StepDelete && f.State != box.StateDeleting, step.Kind == box.StepNotify, step.Kind == box.StepDeepen:
		return "a frozen box"
	case step.Kind == box.StepWait && !step.At.IsZero() && step.Reason.Code != box.ReasonFailed:
		return "a timer is armed on a frozen box"
	}
	return ""
}

func comesToRest(x *trial, step box.Step) string {
	if w := x.w; w.exists && w.phase == box.PhaseRunning {
		return fmt.Sprintf("the box runs for ever, next %+v", step)
	}
	return ""
}
