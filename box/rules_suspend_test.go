package box_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// step runs steps until the next one is of this kind, and returns it begun.
func (w *world) step(kind box.StepKind) box.Step {
	w.t.Helper()
	for range 100 {
		w.facts.Advance(w.now)
		step := box.Next(w.facts, w.now)
		if step.Kind == kind {
			w.facts.Begin(step, w.now)
			w.log = append(w.log, kind)
			return step
		}
		if step.Kind == box.StepWait || step.Kind == box.StepFinish {
			w.t.Fatalf("it waits for %+v in %s and never comes to %s", step, w.facts.State, kind)
		}
		w.turn()
	}
	w.t.Fatalf("no %s after 100 steps", kind)
	return box.Step{}
}

func (w *world) finish(step box.Step) { w.facts.Apply(step, w.outcome(step), w.now) }

func (w *world) failed(step box.Step, class box.Class) {
	w.facts.Apply(step, box.Outcome{Failed: &box.StepFailure{Class: class, Message: "as told"}}, w.now)
}

func TestRule14OrderOfASuspend(t *testing.T) {
	t.Parallel()
	all := []box.StepKind{box.StepQuiesce, box.StepReclaim, box.StepExport, box.StepSuspend}
	for _, row := range []struct {
		name string
		wear func(*world)
		want []box.StepKind
		skip string // in the reason of the transition
	}{
		{"all of it", func(*world) {}, all, ""},
		{"no export where nothing was said since the last one", func(w *world) {
			w.toSuspended()
			w.connect("tab")
			w.settle()
			w.facts.Release("tab", w.now)
			w.log = nil
		}, []box.StepKind{box.StepQuiesce, box.StepReclaim, box.StepSuspend}, ""},
		{"an export where something was said", func(w *world) {
			w.toSuspended()
			w.connect("tab")
			w.settle()
			w.events++
			w.facts.Release("tab", w.now)
			w.log = nil
		}, all, ""},
		{"a reclaim that fails is skipped with its reason", func(w *world) {
			w.fail[box.StepReclaim] = box.ClassInternal
		}, []box.StepKind{box.StepQuiesce, box.StepReclaim, box.StepReclaim, box.StepExport, box.StepSuspend}, "nothing was reclaimed: as told"},
		{"an export that fails is skipped with its reason", func(w *world) {
			w.fail[box.StepExport] = box.ClassUnsupported
		}, []box.StepKind{box.StepQuiesce, box.StepReclaim, box.StepExport, box.StepExport, box.StepExport, box.StepSuspend}, "no export could be taken: as told"},
		{"an agent-server that is silent does not keep the box awake for ever", func(w *world) {
			w.deaf = true
		}, slices.Concat(slices.Repeat([]box.StepKind{box.StepQuiesce}, 3), slices.Repeat([]box.StepKind{box.StepReclaim}, 2), slices.Repeat([]box.StepKind{box.StepExport}, 3), all[3:]), "its agent-server does not answer"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			w.log = nil
			row.wear(w)
			w.pass(idle + time.Hour)
			w.state(box.StateSuspended)
			if !slices.Equal(w.log, row.want) {
				t.Errorf("steps %v, want %v", w.log, row.want)
			}
			last := w.facts.Transitions[len(w.facts.Transitions)-1]
			if !strings.Contains(last.Reason.Text, row.skip) || (row.skip == "") == strings.Contains(last.Reason.Text, "(") {
				t.Errorf("the reason is %q", last.Reason.Text)
			}
		})
	}
}

// A look that nobody had, or that told nothing, makes no old export cover the
// box: a deletion wakes it first.
func TestAnExportInDoubt(t *testing.T) {
	t.Parallel()
	for name, wear := range map[string]func(*world){
		"the agent-server is silent":            func(w *world) { w.deaf = true },
		"it ends by itself":                     func(w *world) { w.phase = box.PhaseFailed; w.facts.Observe(box.ObservedSignal{Observation: w.seen()}) },
		"it tells no history and exports fail":  func(w *world) { w.plain = true; w.fail[box.StepExport] = box.ClassUnavailable },
		"it tells no history and exports do it": func(w *world) { w.plain = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			w.facts.Queue(box.Ask{Kind: box.AskScan, ID: "look"}) // the newest look and export are of before the last work
			w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "x"})
			w.settle()
			w.work(false)
			wear(w)
			w.pass(2 * idle)
			w.state(box.StateSuspended)
			if covers := w.facts.StatusAt(w.now).ExportCovers; covers != w.stored[w.digest()] {
				t.Errorf("covered %v, stored %v", covers, w.stored[w.digest()])
			}
			w.deaf, w.plain, w.fail = false, false, map[box.StepKind]box.Class{}
			w.confirm(w.requestDelete().Token)
			w.pass(time.Hour)
			if !w.exists && !w.stored[w.digest()] {
				t.Error("the work is nowhere")
			}
		})
	}
}

func TestAUserWhoArrivesDuringASuspend(t *testing.T) {
	t.Parallel()
	for _, during := range []box.StepKind{box.StepQuiesce, box.StepReclaim, box.StepExport} {
		t.Run("Scenario 25 and 42: cancels an automatic one during "+string(during), func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			w.now = w.now.Add(idle)
			step := w.step(during)
			w.connect("tab")
			if !box.Interrupts(w.facts, step) {
				t.Error("the step is not interrupted")
			}
			w.settle() // the outcome of a cancelled step is not applied
			w.state(box.StateRunning)
			if w.did(box.StepSuspend) != 0 || w.did(box.StepUndrain) != 1 || w.facts.Failure != nil {
				t.Errorf("steps %v, failure %+v", w.log, w.facts.Failure)
			}
		})
	}
	t.Run("after the provider was called it is waited for, then woken", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.now = w.now.Add(idle)
		step := w.step(box.StepSuspend)
		w.connect("tab")
		if box.Interrupts(w.facts, step) {
			t.Error("the provider's call is interrupted")
		}
		w.finish(step)
		w.settle()
		w.state(box.StateRunning)
		if tail := w.log[len(w.log)-2:]; !slices.Equal(tail, []box.StepKind{box.StepSuspend, box.StepResume}) {
			t.Errorf("steps %v", w.log)
		}
	})
	t.Run("does not cancel an explicit one, and wakes it afterwards", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.facts.Suspend(box.Request{ID: "s", By: "ana"}, w.now)
		step := w.step(box.StepExport)
		w.connect("tab")
		if box.Interrupts(w.facts, step) {
			t.Error("a person's suspend is interrupted")
		}
		w.finish(step)
		w.settle()
		w.state(box.StateRunning)
		if w.did(box.StepSuspend) != 1 || w.did(box.StepResume) != 1 {
			t.Errorf("steps %v", w.log)
		}
	})
	t.Run("a person who asks while an automatic one looks is not told that it is in use", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.running = 1
		w.now = w.now.Add(idle)
		step := w.step(box.StepQuiesce)
		out := w.outcome(step) // busy: the door is open again
		w.facts.Suspend(box.Request{ID: "s", By: "ana"}, w.now)
		w.facts.Apply(step, out, w.now)
		w.settle()
		w.state(box.StateSuspended)
		if w.did(box.StepQuiesce) != 2 {
			t.Errorf("it was suspended behind an open door: %v", w.log)
		}
	})
}

func TestASuspendThatFails(t *testing.T) {
	t.Parallel()
	t.Run("Rule 17: keeps the box, is tried again with back-off, and is seen", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.fail[box.StepSuspend] = box.ClassUnavailable
		w.pass(2 * time.Hour)
		w.state(box.StateSuspending)
		failure := w.facts.StatusAt(w.now).Failure
		if failure == nil || failure.Step != box.StepSuspend || failure.RetryAt.Sub(failure.At) != 10*time.Minute || !slices.Contains(w.facts.Flags(), "needs-attention") {
			t.Fatalf("seen is %+v, flags %v", failure, w.facts.Flags())
		}
		delete(w.fail, box.StepSuspend)
		w.pass(10 * time.Minute)
		w.state(box.StateSuspended)
	})
	t.Run("Scenario 36 and 72: a lost answer is found out by looking", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.now = w.now.Add(idle)
		step := w.step(box.StepSuspend)
		w.outcome(step)
		w.failed(step, box.ClassDeadlineExceeded)
		w.settle()
		w.state(box.StateSuspended)
		if w.did(box.StepSuspend) != 1 || w.did(box.StepObserve) != 1 {
			t.Errorf("steps %v", w.log)
		}
		if !w.facts.StatusAt(w.now).ExportCovers {
			t.Error("the export is not known to cover the last use")
		}
	})
	t.Run("Rule 8: what was said while the door stood open again is exported before the next try", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.fail[box.StepSuspend] = box.ClassUnavailable
		w.pass(idle + 30*time.Minute)
		w.now = w.now.Add(4 * time.Minute) // the lease of the drain is over
		w.work(false)
		if w.events != 1 {
			t.Fatal("the door is still shut")
		}
		delete(w.fail, box.StepSuspend)
		w.pass(idle + 30*time.Minute)
		w.state(box.StateSuspended)
		if !w.stored[w.digest()] || !w.facts.StatusAt(w.now).ExportCovers {
			t.Errorf("it was suspended with history that no export holds: %v", w.log)
		}
	})
	t.Run("and ends all the same when the agent-server falls silent meanwhile, with its export in doubt", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.fail[box.StepSuspend] = box.ClassUnavailable
		w.pass(idle + 30*time.Minute)
		delete(w.fail, box.StepSuspend)
		w.deaf = true
		w.pass(time.Hour)
		w.state(box.StateSuspended)
		if w.facts.StatusAt(w.now).ExportCovers {
			t.Error("an export is said to cover what nobody saw")
		}
	})
	t.Run("a provider's answer that says nothing is looked at again, ever more seldom", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.phase = "hibernating"
		w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
		w.pass(2 * time.Hour)
		w.state(box.StateRunning)
		if n := w.did(box.StepObserve); n < 10 || n > 25 || !w.facts.NeedsAttention() {
			t.Errorf("it was looked at %d times, attention %v", n, w.facts.NeedsAttention())
		}
		w.phase = box.PhaseRunning
		w.pass(10*time.Minute + idle)
		w.state(box.StateSuspended)
	})
}

func TestTheProviderActsByItself(t *testing.T) {
	t.Parallel()
	seen := func(w *world) { w.facts.Observe(box.ObservedSignal{Observation: w.seen()}) }
	t.Run("Scenario 48: a suspend by the provider is noticed, the paused clock starts, and the export is in doubt", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "x"})
		w.settle()
		w.work(false)
		w.pass(time.Minute)
		w.phase = box.PhaseSuspended
		seen(w)
		notice := w.settle()
		w.state(box.StateSuspended)
		if why := w.facts.WhyAt(w.now); why.Because.Code != box.ReasonSeenAtProvider || !notice.At.Equal(w.now.Add(27*day)) {
			t.Errorf("because %+v, next %+v", why.Because, notice)
		}
		if w.facts.StatusAt(w.now).ExportCovers {
			t.Error("an export from before the last use is said to cover it")
		}
	})
	t.Run("a resume that was asked for meanwhile is carried out", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.now = w.now.Add(idle)
		w.step(box.StepReclaim)
		w.phase = box.PhaseSuspended
		seen(w)
		w.facts.Resume(box.Request{ID: "r"}, w.now)
		w.pass(time.Minute)
		w.state(box.StateRunning)
		if w.phase != box.PhaseRunning {
			t.Errorf("the state says running and the provider %s: %v", w.phase, w.log)
		}
	})
	t.Run("a box that ends while it is held is started again, three times within an hour, then settled", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		for try := range 4 {
			w.connect("tab")
			w.phase = box.PhaseFailed
			seen(w)
			w.settle()
			want := box.StateRunning
			if try == 3 {
				want = box.StateSuspended
			}
			w.state(want)
		}
		if !slices.Contains(w.facts.Flags(), "unhealthy") {
			t.Errorf("flags %v", w.facts.Flags())
		}
	})
	t.Run("an observation of another box or another epoch changes nothing", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		for _, change := range []func(*box.Ref){func(r *box.Ref) { r.Epoch = 2 }, func(r *box.Ref) { r.ID = "id-0" }} {
			o := w.seen()
			o.Phase = box.PhaseGone
			change(&o.Ref)
			w.facts.Observe(box.ObservedSignal{Observation: o})
			if w.facts.Look {
				t.Errorf("%+v was taken in", o.Ref)
			}
		}
	})
	t.Run("a single report of gone is not believed", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		o := w.seen()
		o.Phase = box.PhaseGone
		w.facts.Observe(box.ObservedSignal{Observation: o})
		w.settle()
		w.state(box.StateRunning)
		if w.did(box.StepObserve) != 1 {
			t.Errorf("steps %v", w.log)
		}
	})
}
