package box_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

// watcher is what one property looks at while a box lives. Each answers what is
// wrong, or nothing.
type watcher struct {
	// turn sees what comes next, before it is begun.
	turn func(x *trial, step box.Step) string
	// handled sees what a handler made of the facts.
	handled func(x *trial, event string, before *box.Facts) string
	// end sees where a box came to rest that nobody uses any more.
	end func(x *trial, step box.Step) string
}

// trial is one random life under some rules. It keeps what really happened
// beside the facts, so that a property does not ask the rules whether the rules
// are right.
type trial struct {
	*rapid.T
	r       rules
	w       *world
	watch   []watcher
	broken  string
	turns   int
	carried bool // the facts go through JSON at every turn
	alone   bool // nobody does anything any more
	kinds   map[box.StepKind]bool

	given    map[string]box.Loss // by token: what a person was shown
	newest   string              // the token that was given last
	agreed   map[string]bool     // tokens that were confirmed in time and not taken back
	waived   map[string]bool     // of these, the loss was accepted
	verified map[string]bool     // tokens for which the export was read back since the last one was taken
	ready    bool                // its agent-server answered, and people could get in
	held     map[string]time.Time
	wanted   bool       // a wake was asked for since it was suspended last
	rests    time.Time  // since when the provider holds it suspended
	clock    *box.Facts // of before its memory was given up, until something else happens
}

// live lets a box live through random events under the rules and returns what
// the watchers found.
func live(t *rapid.T, r rules, watch ...watcher) *trial {
	s, c := spec(), row()
	if rapid.Bool().Draw(t, "deletes at expiry") {
		s.Policy.OnExpiry = box.OnExpiryDelete
	}
	if rapid.Bool().Draw(t, "long grace") {
		s.Policy.Grace = box.Duration(10 * day)
	}
	if rapid.Bool().Draw(t, "provider has a wall") {
		c.MaxRun = box.Span(2 * time.Hour)
	}
	if rapid.Bool().Draw(t, "looking is use") {
		c.LookingIsUse = box.Yes
	}
	if rapid.Bool().Draw(t, "memory is kept") {
		c.MemoryKept, c.Deepen = box.Yes, box.Yes
	}
	x := &trial{
		T: t, r: r, w: newWorldAt(t, s, c), watch: watch, kinds: map[box.StepKind]bool{}, carried: rapid.Bool().Draw(t, "carried"),
		given: map[string]box.Loss{}, agreed: map[string]bool{}, waived: map[string]bool{}, verified: map[string]bool{}, held: map[string]time.Time{},
	}
	x.w.away = rapid.IntRange(0, 9).Draw(t, "no worker at first") == 0
	x.w.deaf = rapid.IntRange(0, 5).Draw(t, "deaf at first") == 0
	wait := x.settle()
	for i := range rapid.IntRange(1, 50).Draw(t, "events") {
		if x.broken != "" || wait.Kind == box.StepFinish {
			return x
		}
		x.event(fmt.Sprint("r", i), wait)
		wait = x.settle()
	}
	x.rest(wait)
	return x
}

func (x *trial) fail(format string, args ...any) {
	if x.broken == "" {
		x.broken = fmt.Sprintf("in %s: ", x.w.facts.State) + fmt.Sprintf(format, args...) + x.w.told()
	}
}

// settle makes turns until the box waits.
func (x *trial) settle() box.Step {
	for range 200 {
		step := x.turn()
		if step.Kind == box.StepWait || step.Kind == box.StepFinish || x.broken != "" {
			return step
		}
	}
	x.fail("no rest after 200 steps: %v", x.w.log[max(0, len(x.w.log)-10):])
	return box.Step{Kind: box.StepWait}
}

func (x *trial) turn() box.Step {
	w := x.w
	x.turns++
	if x.carried {
		w.facts = copied(w.facts)
	}
	before := w.facts.State
	x.r.advance(w.facts, w.now)
	if w.facts.State != before && w.facts.State == box.StateSuspending {
		clear(x.held) // given up
	}
	step := x.r.next(w.facts, w.now)
	x.kinds[step.Kind] = true
	for _, look := range x.watch {
		if look.turn != nil {
			if why := look.turn(x, step); why != "" {
				x.fail("%s: %s", step.Kind, why)
				return step
			}
		}
	}
	if step.Kind == box.StepWait || step.Kind == box.StepFinish {
		return step
	}
	w.log = append(w.log, step.Kind)
	begins := w.facts.Sequence == nil
	x.r.begin(w.facts, step, w.now)
	if begins && step.Kind == box.StepQuiesce && step.Purpose != box.PurposeIdle {
		clear(x.held) // overruled
	}
	out := w.outcome(step)
	x.happened(step, out)
	if !x.alone && rapid.IntRange(0, 7).Draw(x.T, "meanwhile") == 0 {
		x.ask(rapid.SampledFrom([]string{"connect", "release", "suspend", "resume", "keep", "freeze", "request", "confirm", "cancel", "rumour"}).Draw(x.T, "what"), fmt.Sprint("m", len(w.log)))
		if x.broken != "" || x.r.interrupts(w.facts, step) {
			return step
		}
	}
	x.r.apply(w.facts, step, out, w.now)
	return step
}

// happened keeps what a step really did.
func (x *trial) happened(step box.Step, out box.Outcome) {
	if out.Failed != nil {
		return
	}
	// An answer that comes after a deletion was agreed lets nobody in.
	d := x.w.facts.Deletion
	x.ready = x.ready || out.Ready && (d == nil || !d.Confirmed) || out.Use != nil
	switch step.Kind {
	case box.StepExport:
		clear(x.verified)
	case box.StepVerifyExport:
		if d := x.w.facts.Deletion; d != nil && out.Problem == "" {
			x.verified[d.Token] = true
		}
	case box.StepObserve:
		if p := out.Observation.Phase; p == box.PhaseGone || p == box.PhaseFailed {
			clear(x.held)
		}
	case box.StepSuspend:
		x.rests = x.w.now
		x.wanted = len(x.held) > 0 || x.w.facts.ResumeWanted != nil
	default:
	}
}

// sleeps reports whether nothing that is armed ends a wait in a lifetime.
func (x *trial) sleeps(wait box.Step) bool {
	return wait.At.IsZero() || wait.At.Sub(x.w.now) > 3650*day
}

// until lets time pass to the end of the wait, or for d when nothing is armed.
func (x *trial) until(wait box.Step, d time.Duration) {
	if x.sleeps(wait) {
		x.w.now = x.w.now.Add(d)
		return
	}
	x.w.now = wait.At
}

// event is one thing that happens.
func (x *trial) event(id string, wait box.Step) {
	w := x.w
	switch event := rapid.SampledFrom([]string{
		"time", "time", "time", "time", "time", "connect", "renew", "release", "work", "work", "report", "suspend", "resume", "keep", "freeze", "freeze", "policy",
		"request", "confirm", "confirm", "waive", "late confirm", "cancel", "export", "reclaim", "fail", "fail", "away", "heal", "gone", "ended", "deeper", "deaf", "store", "rumour",
	}).Draw(x.T, "event"); event {
	case "time":
		x.until(wait, time.Duration(rapid.Int64Range(1, int64(40*24*time.Hour)).Draw(x.T, "d")))
		if rapid.IntRange(0, 3).Draw(x.T, "late") == 0 {
			w.now = w.now.Add(time.Duration(rapid.Int64Range(0, int64(5*24*time.Hour)).Draw(x.T, "late by")))
		}
	case "work":
		w.work(false)
	case "away":
		w.away = true
	case "fail":
		kind := rapid.SampledFrom([]box.StepKind{
			box.StepQuiesce, box.StepReclaim, box.StepExport, box.StepSuspend, box.StepResume, box.StepDelete, box.StepObserve,
			box.StepDeepen, box.StepUndrain, box.StepNotify, box.StepVerifyExport, box.StepScan,
		}).Draw(x.T, "kind")
		w.fail[kind] = rapid.SampledFrom([]box.Class{
			box.ClassUnavailable, box.ClassUnknown, box.ClassUnauthorized, box.ClassExhausted, box.ClassDeadlineExceeded, box.ClassFailedPrecondition, box.ClassNotFound,
		}).Draw(x.T, "class")
	case "heal":
		w.fail, w.deaf, w.badStore, w.away = map[box.StepKind]box.Class{}, false, false, false
	case "gone":
		if rapid.IntRange(0, 5).Draw(x.T, "really") == 0 {
			w.exists = false
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
		}
	case "ended":
		if w.exists && w.phase == box.PhaseRunning {
			w.phase = rapid.SampledFrom([]box.Phase{box.PhaseFailed, box.PhaseSuspended}).Draw(x.T, "phase")
			x.rests = w.now
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
		}
	case "deeper":
		if w.exists && w.phase == box.PhaseSuspended {
			w.deep = true
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
		}
	case "deaf":
		w.deaf = true
	case "store":
		w.badStore = true
	default:
		x.ask(event, id)
	}
}

// snapshot keeps what handlers change in place.
func snapshot(f *box.Facts) *box.Facts {
	out := *f
	out.Holders = slices.Clone(f.Holders)
	if f.Deletion != nil {
		d := *f.Deletion
		out.Deletion = &d
	}
	return &out
}

// ask is what a person or the backend asks for.
func (x *trial) ask(event, id string) {
	f, now := x.w.facts, x.w.now
	before := snapshot(f)
	x.clock = nil
	req := box.Request{ID: id, By: "ana"}
	if !x.handle(event, req) {
		return
	}
	for _, look := range x.watch {
		if look.handled != nil {
			if why := look.handled(x, event, before); why != "" {
				x.fail("after %s at %s: %s", event, now.Format(time.RFC3339), why)
				return
			}
		}
	}
}

// handle reports whether the handler was called.
func (x *trial) handle(event string, req box.Request) bool {
	f, now := x.w.facts, x.w.now
	lease := func() box.Duration { return box.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(x.T, "lease")) }
	holder := func() string { return rapid.SampledFrom([]string{"h1", "h2"}).Draw(x.T, "holder") }
	keepHold := func(id string, until time.Time) {
		if until.After(x.held[id]) {
			x.held[id] = until
		}
	}
	switch event {
	case "connect":
		r := box.ConnectRequest{Request: req, HolderID: holder(), Lease: lease()}
		if f.CheckConnect(r) != nil {
			return false
		}
		if f.Deletion != nil && f.Deletion.Confirmed {
			clear(x.agreed) // whoever connects takes it back
		}
		keepHold(r.HolderID, x.r.connect(f, r, now).LeaseUntil)
		x.wanted = true
	case "renew":
		r := box.RenewRequest{Request: req, HolderID: holder(), Lease: lease()}
		if f.CheckRenew(r) != nil {
			return false
		}
		keepHold(r.HolderID, x.r.renew(f, r, now).LeaseUntil)
	case "release":
		id := holder()
		f.Release(id, now)
		delete(x.held, id)
	case "report":
		x.r.report(f, box.ActivitySignal{IdleFor: box.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(x.T, "age"))}, now)
	case "suspend":
		if f.CheckSuspend(req) != nil {
			return false
		}
		f.Suspend(req, now)
	case "resume":
		if f.CheckResume(req) != nil {
			return false
		}
		if f.Deletion != nil && f.Deletion.Confirmed {
			clear(x.agreed)
		}
		f.Resume(req, now)
		x.wanted = true
	case "keep", "freeze":
		r := box.SwitchAsk{Request: req, On: rapid.Bool().Draw(x.T, "on")}
		if f.CheckSwitch(r) != nil {
			return false
		}
		map[string]func(box.SwitchAsk, time.Time) box.ActionAnswer{"keep": f.Keep, "freeze": f.Freeze}[event](r, now)
	case "policy":
		r := box.SetPolicyAsk{Request: req, Policy: x.policy()}
		if f.CheckSetPolicy(r) != nil {
			return false
		}
		x.r.setPolicy(f, r, now)
	case "rumour": // what was reported need not be so
		seen := x.w.seen()
		seen.Phase = rapid.SampledFrom([]box.Phase{box.PhaseFailed, box.PhaseGone, box.PhaseSuspended, box.PhaseRunning}).Draw(x.T, "reported")
		f.Observe(box.ObservedSignal{Observation: seen})
	case "export", "reclaim":
		ask := box.Ask{Kind: box.AskKind(event), ID: req.ID}
		if f.CheckAsk(ask) != nil {
			return false
		}
		x.wanted = x.wanted || event == "export"
		f.Queue(ask)
	default:
		return x.handleDeletion(event, req)
	}
	return true
}

func (x *trial) policy() box.Policy {
	// Few values, far apart: what is drawn from a range is mostly near its least.
	span := func(label string, of ...time.Duration) box.Duration {
		return box.Duration(rapid.SampledFrom(append([]time.Duration{0}, of...)).Draw(x.T, label))
	}
	return box.Policy{
		PausedTTL: span("ttl", 4*day, 8*day, 20*day, 45*day), DeepenAfter: span("memory", time.Minute, 4*time.Hour, 8*day), Idle: span("idle", time.Minute, 10*time.Minute, time.Hour), MaxRun: span("run", time.Minute, time.Hour, day),
	}
}

func (x *trial) handleDeletion(event string, req box.Request) bool {
	f, now := x.w.facts, x.w.now
	switch event {
	case "request":
		r := box.RequestDeleteAsk{Request: req, Undo: rapid.SampledFrom([]box.Duration{0, box.Duration(time.Hour)}).Draw(x.T, "undo")}
		if f.CheckRequestDelete(r) != nil {
			return false
		}
		if f.ScanBeforeDelete() {
			f.Queue(box.Ask{Kind: box.AskScan, ID: "scan:" + req.ID})
		}
		loss := f.RequestDelete(r, now)
		x.given[loss.Token], x.newest = loss, loss.Token
	case "confirm", "waive", "late confirm":
		token := x.newest
		if event == "late confirm" {
			token = rapid.SampledFrom(append([]string{"bogus"}, slices.Sorted(maps.Keys(x.given))...)).Draw(x.T, "token")
		}
		loss, known := x.given[token]
		inTime := known && token == x.newest && now.Before(loss.Expires)
		waive := event == "waive" && rapid.IntRange(0, 4).Draw(x.T, "really") == 0
		was := f.Deletion != nil && f.Deletion.Confirmed && f.Deletion.Token == token
		x.r.confirm(f, box.ConfirmDelete{Token: token, WithoutHistory: waive}, now)
		if inTime && f.Deletion != nil && f.Deletion.Confirmed {
			x.agreed[token] = true
		}
		x.waived[token] = x.waived[token] || waive && (inTime || was)
		if f.Deletion != nil && f.Deletion.Confirmed && !was {
			clear(x.held) // overruled
		}
	case "cancel":
		if d := f.Deletion; d != nil && !d.Committed {
			clear(x.agreed)
		}
		x.r.cancel(f, box.CancelDelete{}, now)
	}
	return true
}

// rest lets time pass until the box is where it may stay.
func (x *trial) rest(wait box.Step) {
	w := x.w
	x.alone = true
	w.fail, w.deaf, w.badStore, w.running, w.away = map[box.StepKind]box.Class{}, false, false, 0, false
	if w.facts.Frozen {
		w.facts.Freeze(box.SwitchAsk{Request: box.Request{ID: "thaw"}}, w.now)
	}
	for range 60 {
		wait = x.settle()
		stays := w.facts.State == box.StateAwaitingConfirm || w.facts.State == box.StateLost || w.facts.State == box.StateDeleteBlocked ||
			(w.facts.State == box.StateSuspended && w.facts.Kept)
		if wait.Kind == box.StepFinish || x.broken != "" || x.sleeps(wait) || (stays && !w.facts.Look && wait.Reason.Code != box.ReasonFailed) {
			break
		}
		w.now = wait.At
	}
	for _, look := range x.watch {
		if look.end != nil && x.broken == "" {
			if why := look.end(x, wait); why != "" {
				x.fail("%s", why)
			}
		}
	}
}
