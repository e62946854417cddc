package box_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// netted is a provider with an idle timer that can be set again.
func netted() box.Capabilities {
	c := row()
	c.NativeIdle, c.NativeAdjust = box.Yes, box.Yes
	return c
}

func TestWhoLeadsAndHowLong(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		policy box.Policy
		change func(*box.Capabilities)
		ours   box.Duration
		native time.Duration
		field  string
	}{
		"ours, with a net":                        {box.Policy{}, func(*box.Capabilities) {}, box.Duration(15 * time.Minute), 30 * time.Minute, ""},
		"ours, with a wider margin":               {box.Policy{DeadMan: box.Duration(time.Hour)}, func(*box.Capabilities) {}, box.Duration(15 * time.Minute), 75 * time.Minute, ""},
		"no timer there":                          {box.Policy{}, func(c *box.Capabilities) { c.NativeIdle = box.No }, box.Duration(15 * time.Minute), 0, ""},
		"never idle":                              {box.Policy{Idle: box.Never}, func(*box.Capabilities) {}, box.Never, 0, ""},
		"never idle, and a provider that leads":   {box.Policy{Idle: box.Never}, func(c *box.Capabilities) { c.Lead = box.LeadProvider }, box.Never, 0, ""},
		"its least is longer":                     {box.Policy{}, func(c *box.Capabilities) { c.NativeIdleLeast = box.Span(time.Hour) }, box.Duration(15 * time.Minute), time.Hour, ""},
		"its most is shorter than the margin":     {box.Policy{}, func(c *box.Capabilities) { c.NativeIdleMost = box.Span(25 * time.Minute) }, box.Duration(12*time.Minute + 30*time.Second), 25 * time.Minute, ""},
		"its most is shorter than ours":           {box.Policy{Idle: box.Duration(time.Hour)}, func(c *box.Capabilities) { c.NativeIdleMost = box.Span(time.Hour) }, box.Duration(45 * time.Minute), time.Hour, ""},
		"it leads by its row":                     {box.Policy{}, func(c *box.Capabilities) { c.Lead = box.LeadProvider }, box.Duration(30 * time.Minute), 15 * time.Minute, ""},
		"it leads by its row, and cannot do that": {box.Policy{}, func(c *box.Capabilities) { c.Lead, c.NativeIdleLeast = box.LeadProvider, box.Span(20*time.Minute) }, box.Duration(15 * time.Minute), 30 * time.Minute, ""},
		"it leads by the policy":                  {box.Policy{Lead: box.LeadProvider}, func(*box.Capabilities) {}, box.Duration(30 * time.Minute), 15 * time.Minute, ""},
		"ours by the policy":                      {box.Policy{Lead: box.LeadOurs}, func(c *box.Capabilities) { c.Lead = box.LeadProvider }, box.Duration(15 * time.Minute), 30 * time.Minute, ""},
		"it is to lead and has no timer":          {box.Policy{Lead: box.LeadProvider}, func(c *box.Capabilities) { c.NativeIdle = box.No }, 0, 0, "policy.lead"},
		"it is to lead and is too slow":           {box.Policy{Lead: box.LeadProvider}, func(c *box.Capabilities) { c.NativeIdleLeast = box.Span(time.Hour) }, 0, 0, "policy.lead"},
		"it is to lead what is never idle":        {box.Policy{Lead: box.LeadProvider, Idle: box.Never}, func(*box.Capabilities) {}, 0, 0, "policy.lead"},
		"someone else is to lead":                 {box.Policy{Lead: "nobody"}, func(*box.Capabilities) {}, 0, 0, "policy.lead"},
	} {
		c := netted()
		test.change(&c)
		plan, err := box.Plan(test.policy, c)
		if test.field != "" {
			if box.ClassOf(err) != box.ClassInvalid || !strings.HasPrefix(err.Error(), test.field+": ") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		s := spec()
		s.Policy = test.policy
		f := box.NewFacts(s, c, noon())
		if err != nil || f.IdleAfter() != test.ours || plan.Native.Idle != box.Duration(test.native) || f.NativeWanted() != plan.Native {
			t.Errorf("%s: ours %s, the provider's %s, %v", name, f.IdleAfter(), plan.Native.Idle, err)
		}
	}
}

// Rule 7: quiet work is no use at a provider, so its timer is set again at half
// of its length, and never while nobody holds the box.
func TestRule7AHolderKeepsTheProvidersTimerFromActing(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, spec(), netted())
	w.settle()
	end := w.now.Add(2 * time.Hour)
	for w.now.Before(end) {
		w.begun("build")
		step := w.settle()
		if w.native.Idle != box.Duration(30*time.Minute) || w.now.Sub(w.nativeAt) > 16*time.Minute {
			t.Fatalf("at %s the provider's timer of %s began %s ago", w.now, w.native.Idle, w.now.Sub(w.nativeAt))
		}
		next := w.now.Add(time.Minute) // the owner renews
		if step.At.Before(next) {
			next = step.At
		}
		w.now = next
	}
	if n := w.did(box.StepAdjust); n < 7 || n > 9 {
		t.Errorf("its timer was set %d times in two hours", n)
	}
	w.facts.Release("build", w.now)
	before := w.did(box.StepAdjust)
	w.pass(10 * time.Minute)
	w.state(box.StateRunning)
	if w.did(box.StepAdjust) != before {
		t.Error("its timer was extended while nobody held the box")
	}
}

func TestRule3TheProvidersTimersAreRepaired(t *testing.T) {
	t.Parallel()
	t.Run("a changed policy reaches the provider", func(t *testing.T) {
		t.Parallel()
		w := newWorldAt(t, spec(), netted())
		w.settle()
		w.facts.SetPolicy(box.SetPolicyAsk{Request: box.Request{ID: "p"}, Policy: box.Policy{Idle: box.Duration(time.Hour)}}, w.now)
		w.settle()
		if w.native.Idle != box.Duration(75*time.Minute) {
			t.Errorf("the provider's timer is %s", w.native.Idle)
		}
	})
	t.Run("a drift that a reading shows is repaired", func(t *testing.T) {
		t.Parallel()
		w := newWorldAt(t, spec(), netted())
		w.settle()
		w.native.Idle = box.Duration(5 * time.Minute) // somebody changed it there
		w.facts.Observe(box.ObservedSignal{Observation: box.Observation{Ref: w.seen().Ref, Phase: box.PhaseSuspended}})
		w.settle()
		if w.native.Idle != box.Duration(30*time.Minute) {
			t.Errorf("the provider's timer is %s", w.native.Idle)
		}
	})
	t.Run("a provider that takes another value is told once, and status says it", func(t *testing.T) {
		t.Parallel()
		w := newWorldAt(t, spec(), netted())
		w.nativeFixed = box.Native{Idle: box.Duration(20 * time.Minute)}
		w.settle()
		w.facts.ReportActivity(box.ActivitySignal{}, w.now)
		w.settle()
		risks := strings.Join(w.facts.StatusAt(w.now).Risks, "\n")
		if n := w.did(box.StepAdjust); n != 1 || !strings.Contains(risks, "idle timer is 20m, though it should be 30m") {
			t.Errorf("told %d times; risks %s", n, risks)
		}
	})
	t.Run("a refusal is not repeated for ever", func(t *testing.T) {
		t.Parallel()
		w := newWorldAt(t, spec(), netted())
		w.settle()
		w.fail[box.StepAdjust] = box.ClassUnsupported
		w.facts.SetPolicy(box.SetPolicyAsk{Request: box.Request{ID: "p"}, Policy: box.Policy{Idle: box.Duration(time.Hour)}}, w.now)
		w.pass(50 * time.Minute)
		if n := w.did(box.StepAdjust); n != 1 {
			t.Errorf("told %d times", n)
		}
	})
	t.Run("one that fails does not hold up the idle suspend", func(t *testing.T) {
		t.Parallel()
		w := newWorldAt(t, spec(), netted())
		w.settle()
		w.fail[box.StepAdjust] = box.ClassUnavailable
		w.facts.SetPolicy(box.SetPolicyAsk{Request: box.Request{ID: "p"}, Policy: box.Policy{DeadMan: box.Duration(time.Hour)}}, w.now)
		w.pass(idle)
		w.state(box.StateSuspended)
	})
}

// Rule 19: where the provider leads, ours looks on the control plane after the
// time that it should have taken, and takes over from there.
func TestRule19AProviderInTheLead(t *testing.T) {
	t.Parallel()
	led := spec()
	led.Policy.Lead = box.LeadProvider
	t.Run("it did, and nobody told us", func(t *testing.T) {
		t.Parallel()
		w := newWorldAt(t, led, netted())
		w.settle()
		used := w.now
		w.phase, w.phaseAt = box.PhaseSuspended, used.Add(15*time.Minute)
		w.log = nil
		w.pass(30 * time.Minute)
		w.state(box.StateSuspended)
		if !slices.Equal(w.log, []box.StepKind{box.StepObserve, box.StepRecord}) { // the record goes to the ledger only
			t.Errorf("steps %v: a call into a suspended box could wake it", w.log)
		}
		if at := w.facts.SuspendedSince; !at.Equal(used.Add(15 * time.Minute)) {
			t.Errorf("the paused clock starts at %s", at)
		}
	})
	t.Run("it did not, so ours does", func(t *testing.T) {
		t.Parallel()
		w := newWorldAt(t, led, netted())
		w.settle()
		w.pass(29 * time.Minute)
		w.state(box.StateRunning)
		w.pass(2 * time.Minute)
		w.state(box.StateSuspended)
		if w.did(box.StepObserve) != 1 || w.did(box.StepQuiesce) != 1 || !w.facts.StatusAt(w.now).ExportCovers {
			t.Errorf("steps %v", w.log)
		}
	})
}

// Rule 20: where the provider can act without us, not more than a turn is lost.
func TestRule20AnExportFollowsATurn(t *testing.T) {
	t.Parallel()
	turn := func(w *world) {
		w.begun("op")
		w.settle()
		w.events++
		w.lastUse = w.now
		w.facts.Release("op", w.now)
		w.settle()
	}
	w := newWorldAt(t, spec(), netted())
	w.settle()
	w.connect("tab")
	w.settle()
	if turn(w); w.did(box.StepExport) != 1 || !w.stored[w.digest()] {
		t.Fatalf("after the first turn: steps %v", w.log)
	}
	for range 9 {
		w.now = w.now.Add(time.Minute)
		w.facts.Connect(box.ConnectRequest{Request: box.Request{ID: w.now.String()[:19]}, HolderID: "tab"}, w.now)
		turn(w)
	}
	if n := w.did(box.StepExport); n != 1 {
		t.Errorf("%d exports within ten minutes", n)
	}
	w.pass(time.Minute)
	if n := w.did(box.StepExport); n != 2 || !w.stored[w.digest()] {
		t.Errorf("%d exports after ten minutes", n)
	}
	w.state(box.StateRunning)

	w = awake(t) // this provider does nothing by itself
	if turn(w); w.did(box.StepExport) != 0 {
		t.Errorf("steps %v where the provider does nothing by itself", w.log)
	}

	w = newWorldAt(t, spec(), netted())
	w.settle()
	w.fail[box.StepExport] = box.ClassUnavailable
	turn(w)
	turn(w)
	if n := w.did(box.StepExport); n != 1 {
		t.Errorf("a failing export was tried %d times", n)
	}
	w.facts.Suspend(box.Request{ID: "s"}, w.now)
	delete(w.fail, box.StepExport)
	w.pass(2 * time.Minute)
	w.state(box.StateSuspended)
}

// Rule 20: a provider's own end of a suspended box is a deadline like ours, for
// kept and frozen boxes too, and the paused TTL goes on.
func TestRule20ASuspendedBoxIsRenewedBeforeTheProviderDestroysIt(t *testing.T) {
	t.Parallel()
	for name, wear := range map[string]func(*world){
		"as it is": func(*world) {},
		"kept":     func(w *world) { w.facts.Keep(box.SwitchAsk{Request: box.Request{ID: "k"}, On: true}, w.now) },
		"frozen":   func(w *world) { w.facts.Freeze(box.SwitchAsk{Request: box.Request{ID: "f"}, On: true}, w.now) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := row()
			c.PausedLife = box.Span(20 * day)
			w := newWorldAt(t, spec(), c)
			w.toSuspended()
			since := w.facts.SuspendedSince
			wear(w)
			w.pass(18 * day)
			w.state(box.StateSuspended)
			if w.did(box.StepResume) != 1 || w.did(box.StepSuspend) != 2 || w.did(box.StepExport) != 1 {
				t.Fatalf("steps %v", w.log)
			}
			if s := w.facts; !s.SuspendedSince.Equal(since) || s.SuspendedAt.Sub(since) != 17*day {
				t.Errorf("suspended since %s, at the provider since %s", s.SuspendedSince, s.SuspendedAt)
			}
			if name == "as it is" {
				w.pass(13 * day)
				w.state(box.StateAwaitingConfirm)
			}
			w.pass(60 * day)
			if n := w.did(box.StepResume); n < 4 {
				t.Errorf("renewed %d times in 78 days", n)
			}
		})
	}
	t.Run("one that can't be woken is tried with patience, and people see it", func(t *testing.T) {
		t.Parallel()
		c := row()
		c.PausedLife = box.Span(20 * day)
		w := newWorldAt(t, spec(), c)
		w.toSuspended()
		w.fail[box.StepResume] = box.ClassExhausted
		w.pass(18 * day)
		if n := w.did(box.StepResume); n < 10 || n > 60 || !w.facts.NeedsAttention() {
			t.Errorf("tried %d times in a day, attention %v", n, w.facts.NeedsAttention())
		}
		delete(w.fail, box.StepResume)
		w.pass(2 * time.Hour)
		w.state(box.StateSuspended)
		if w.facts.NeedsAttention() || w.did(box.StepSuspend) != 2 {
			t.Errorf("steps %v", w.log[len(w.log)-6:])
		}
	})
}
