package box_test

import (
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

func deletes(s *box.Spec) { s.Policy.OnExpiry = box.OnExpiryDelete }

func (w *world) policy(id string, p box.Policy) box.SetPolicyAnswer {
	w.t.Helper()
	r := box.SetPolicyAsk{Request: box.Request{ID: id}, Policy: p}
	if err := w.facts.CheckSetPolicy(r); err != nil {
		w.t.Fatal(err)
	}
	return w.facts.SetPolicy(r, w.now)
}

func (w *world) freeze(id string, on bool) {
	w.facts.Freeze(box.SwitchAsk{Request: box.Request{ID: id}, On: on}, w.now)
}

func (w *world) keep(id string, on bool) {
	w.facts.Keep(box.SwitchAsk{Request: box.Request{ID: id, By: "ana"}, On: on}, w.now)
}

func TestThePausedClock(t *testing.T) {
	t.Parallel()
	t.Run("Scenario 35: the deadlines of a running box do not run while it is suspended", func(t *testing.T) {
		t.Parallel()
		w := awake(t, func(s *box.Spec) {
			s.Policy.MaxRun, s.Policy.Idle = box.Duration(time.Hour), box.Duration(30*time.Minute)
		})
		w.facts.Suspend(box.Request{ID: "s"}, w.now)
		w.settle()
		w.pass(26 * day)
		w.state(box.StateSuspended)
		w.connect("tab")
		w.settle()
		w.facts.Release("tab", w.now)
		w.pass(30*time.Minute - time.Second)
		w.state(box.StateRunning)
	})
	t.Run("Scenario 37: after a resume the deadlines come from the policy, never from an old or unset time", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		w.pass(20 * day)
		w.facts.Resume(box.Request{ID: "r"}, w.now)
		step := w.settle()
		if !step.At.Equal(w.now.Add(idle)) {
			t.Errorf("idle deadline %s, now %s", step.At, w.now)
		}
		again := w.toSuspended()
		if !again.At.Equal(w.now.Add(27 * day)) {
			t.Errorf("notice at %s, now %s", again.At, w.now)
		}
	})
	t.Run("Rule 21: a wake for an export does not touch it, and neither does a box that ends while it is suspended", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.blind()
		before := w.settle().At
		since := w.facts.SuspendedSince
		w.pass(day)
		w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "x"})
		w.settle()
		if result, ok := w.facts.ResultFor("x"); !ok || result.Receipt == nil || !w.stored[w.digest()] {
			t.Fatalf("the export answered %+v", result)
		}
		w.pass(day)
		w.phase = box.PhaseFailed
		w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
		if after := w.settle(); !after.At.Equal(before) || !w.facts.SuspendedSince.Equal(since) {
			t.Errorf("notice moved from %s to %s, since from %s to %s", before, after.At, since, w.facts.SuspendedSince)
		}
		w.state(box.StateSuspended)
	})
	t.Run("Rule 21: a shorter policy is never applied retroactively", func(t *testing.T) {
		t.Parallel()
		w := awake(t, deletes)
		w.toSuspended()
		w.pass(20 * day)
		w.policy("p", box.Policy{PausedTTL: box.Duration(5 * day), Notice: box.Duration(2 * time.Hour)})
		changed := w.now
		if step := w.settle(); !step.At.Equal(changed.Add(22 * time.Hour)) {
			t.Errorf("after the change: %+v", step)
		}
		w.pass(day - time.Second)
		w.state(box.StateSuspended)
		if w.did(box.StepNotify) != 1 {
			t.Errorf("people were told %d times before", w.did(box.StepNotify))
		}
		w.pass(time.Second)
		w.state(box.StateUndoWindow)
	})
	t.Run("a longer policy takes back what waits for a person", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.toAwaiting()
		w.policy("p", box.Policy{PausedTTL: box.Duration(60 * day)})
		if step := w.settle(); step.At.Sub(w.facts.SuspendedSince) != 57*day {
			t.Errorf("next %+v", step)
		}
		w.state(box.StateSuspended)
	})
}

func TestNotices(t *testing.T) {
	t.Parallel()
	t.Run("Scenario 49: people are told the armed time, and again when it moves", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.until(w.toSuspended(), 0)
		notice := w.step(box.StepNotify)
		w.finish(notice)
		if armed := w.settle(); !armed.At.Equal(notice.At) || !strings.Contains(notice.Reason.Text, notice.At.Format("2006-01-02 15:04")) {
			t.Errorf("told %q, armed %s", notice.Reason.Text, armed.At)
		}
		w.policy("p", box.Policy{PausedTTL: box.Duration(40 * day)})
		w.until(w.settle(), 0)
		second := w.step(box.StepNotify)
		w.finish(second)
		if armed := w.settle(); !armed.At.Equal(second.At) || second.At.Sub(w.facts.SuspendedSince) != 40*day {
			t.Errorf("told %s, armed %s", second.At, armed.At)
		}
	})
	t.Run("Scenario 50: no notice where nothing expires", func(t *testing.T) {
		t.Parallel()
		for name, change := range map[string]func(*world){
			"paused_ttl is never": func(w *world) { w.policy("p", box.Policy{PausedTTL: box.Never}) },
			"it is kept":          func(w *world) { w.keep("k", true) },
		} {
			w := awake(t)
			change(w)
			w.toSuspended()
			w.pass(400 * day)
			w.state(box.StateSuspended)
			if w.did(box.StepNotify) != 0 || !w.facts.StatusAt(w.now).NextAt.IsZero() {
				t.Errorf("%s: steps %v", name, w.log)
			}
		}
	})
	t.Run("Scenario 54: a policy that names no grace still warns a day before it destroys", func(t *testing.T) {
		t.Parallel()
		w := awake(t, deletes, func(s *box.Spec) {
			s.Policy.PausedTTL, s.Policy.Notice, s.Policy.Undo = box.Duration(2*day), box.Duration(time.Hour), box.Duration(time.Minute)
		})
		w.until(w.toSuspended(), 0)
		w.finish(w.step(box.StepNotify))
		told := w.now
		w.pass(day - time.Second)
		if w.did(box.StepDelete) != 0 {
			t.Fatalf("destroyed %s after the notice", w.now.Sub(told))
		}
		w.pass(time.Minute)
		w.state(box.StateBoxArchived)
	})
	t.Run("Rule 22: after a long outage people are told first and get the whole window", func(t *testing.T) {
		t.Parallel()
		w := awake(t, deletes)
		w.toSuspended()
		w.now = w.now.Add(50 * day)
		armed := w.settle()
		w.state(box.StateSuspended)
		if w.did(box.StepNotify) != 1 || !armed.At.Equal(w.now.Add(72*time.Hour)) {
			t.Fatalf("told %d times, armed %+v", w.did(box.StepNotify), armed)
		}
		w.pass(72*time.Hour - time.Second)
		w.state(box.StateSuspended)
		w.pass(time.Second)
		w.state(box.StateUndoWindow)
	})
	t.Run("a notice that cannot be sent holds the expiry up", func(t *testing.T) {
		t.Parallel()
		w := awake(t, deletes)
		w.toSuspended()
		w.fail[box.StepNotify] = box.ClassUnavailable
		w.pass(31 * day)
		w.state(box.StateSuspended)
		delete(w.fail, box.StepNotify)
		w.pass(72 * time.Hour)
		w.state(box.StateSuspended)
		w.pass(time.Hour)
		w.state(box.StateUndoWindow)
	})
	t.Run("Scenario 91: what is shown is generated from the armed deadline", func(t *testing.T) {
		t.Parallel()
		w := awake(t, func(s *box.Spec) { s.Policy.PausedTTL, s.Policy.Notice = box.Duration(7*day), box.Duration(day) })
		step := w.toSuspended()
		end := w.facts.SuspendedSince.Add(7 * day)
		if !strings.Contains(step.Reason.Text, end.Format("2006-01-02 15:04 MST")) {
			t.Errorf("the notice is announced as %q", step.Reason.Text)
		}
		w.until(step, 0)
		w.pass(end.Sub(w.now) - time.Nanosecond)
		w.state(box.StateSuspended)
		w.pass(time.Nanosecond)
		w.state(box.StateAwaitingConfirm)
	})
}

func TestRule23AtExpiry(t *testing.T) {
	t.Parallel()
	t.Run("ask waits for a person, reminds with back-off, and never deletes", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.toAwaiting()
		var gaps []time.Duration
		at := w.now
		for range 7 {
			w.until(w.settle(), 0)
			w.finish(w.step(box.StepNotify))
			gaps, at = append(gaps, w.now.Sub(at)/day), w.now
		}
		want := []time.Duration{1, 2, 4, 8, 14, 14, 14}
		for i := range want {
			if gaps[i] != want[i] {
				t.Fatalf("days between reminders %d, want %d", gaps, want)
			}
		}
		w.pass(1000 * day)
		w.state(box.StateAwaitingConfirm)
		if w.did(box.StepDelete) != 0 {
			t.Error("it was deleted")
		}
	})
	t.Run("delete, chosen at creation, deletes after a verified export and an undo window", func(t *testing.T) {
		t.Parallel()
		w := awake(t, deletes)
		w.work(true)
		w.pass(30*day + time.Hour)
		w.state(box.StateUndoWindow)
		w.pass(day)
		w.state(box.StateBoxArchived)
		if tail := w.log[len(w.log)-2:]; tail[0] != box.StepVerifyExport || tail[1] != box.StepDelete || !w.stored[w.digest()] {
			t.Errorf("steps %v", w.log)
		}
	})
	t.Run("keep during the undo window of an expiry keeps the box", func(t *testing.T) {
		t.Parallel()
		w := awake(t, deletes)
		w.pass(30*day + time.Hour)
		w.state(box.StateUndoWindow)
		w.keep("k", true)
		w.pass(100 * day)
		w.state(box.StateSuspended)
	})
	t.Run("keep ends the wait for a person; keep off starts a fresh clock", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.toAwaiting()
		w.keep("k1", true)
		w.pass(100 * day)
		w.state(box.StateSuspended)
		w.keep("k2", false)
		if step := w.settle(); !step.At.Equal(w.now.Add(27 * day)) {
			t.Errorf("next %+v, now %s", step, w.now)
		}
	})
}

func TestScenario116AFrozenBox(t *testing.T) {
	t.Parallel()
	for name, reach := range map[string]func(*world){
		"running":      func(*world) {},
		"suspended":    func(w *world) { w.toSuspended() },
		"noticed":      func(w *world) { w.until(w.toSuspended(), 0); w.settle() },
		"awaiting":     func(w *world) { w.pass(31 * day) },
		"undo-window":  func(w *world) { w.toSuspended(); w.requestUndo(box.Duration(day)) },
		"draining":     func(w *world) { w.now = w.now.Add(idle); w.finish(w.step(box.StepQuiesce)) },
		"walled":       func(w *world) { w.policy("w", box.Policy{MaxRun: box.Duration(idle)}); w.now = w.now.Add(idle) },
		"to be ended":  func(w *world) { w.confirm(w.requestDelete().Token) },
		"all exported": func(w *world) { w.confirm(w.requestDelete().Token); w.finish(w.step(box.StepExport)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			reach(w)
			w.freeze("f1", true)
			w.settle()
			frozen, steps := w.facts.State, len(w.log)
			w.pass(300 * day)
			w.state(frozen)
			if len(w.log) != steps {
				t.Errorf("while it was frozen: %v", w.log[steps:])
			}
			if why := w.facts.WhyAt(w.now); why.NextReason.Code != box.ReasonFrozen || !strings.Contains(why.StoppedBy, "freeze off") {
				t.Errorf("why says %+v, stopped by %q", why.NextReason, why.StoppedBy)
			}
			w.freeze("f2", false)
			step := w.settle()
			switch w.facts.State {
			case box.StateRunning:
				if !step.At.Equal(w.now.Add(idle)) {
					t.Errorf("the idle clock did not start afresh: %+v", step)
				}
			case box.StateSuspended:
				if name != "walled" && name != "draining" && !step.At.Equal(w.now.Add(27*day)) {
					t.Errorf("the paused clock did not start afresh: %+v", step)
				}
			case box.StateUndoWindow:
				if !step.At.Equal(w.now.Add(day)) {
					t.Errorf("the undo window did not start afresh: %+v", step)
				}
			case box.StateBoxArchived:
				if !w.stored[w.digest()] {
					t.Error("deleted without its history")
				}
			default:
				t.Errorf("it is %s now", w.facts.State)
			}
		})
	}
}
