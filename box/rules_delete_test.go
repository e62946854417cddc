package box_test

import (
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

func (w *world) confirm(token string) {
	w.facts.ConfirmDelete(box.ConfirmDelete{Token: token, By: "ana"}, w.now)
}

func (w *world) waive(token string) {
	w.facts.ConfirmDelete(box.ConfirmDelete{Token: token, By: "ana", WithoutHistory: true}, w.now)
}

// requestUndo asks for a deletion with an undo window, and confirms it.
func (w *world) requestUndo(undo box.Duration) box.Loss {
	loss := w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "undo"}, Undo: undo}, w.now)
	w.confirm(loss.Token)
	return loss
}

func (w *world) refusedWith(code box.ReasonCode) {
	w.t.Helper()
	if c := w.facts.StatusAt(w.now).Confirmation; c == nil || c.Accepted || c.Reason.Code != code {
		w.t.Fatalf("last_confirmation is %+v, want a refusal: %s", c, code)
	}
}

func TestScenario58ADeletionIsAcceptedInEveryState(t *testing.T) {
	t.Parallel()
	for name, reach := range map[string]func(*world){
		"creating, and the provider hangs": func(w *world) { w.failed(w.step(box.StepCreate), box.ClassDeadlineExceeded) },
		"create-failed":                    func(w *world) { w.failed(w.step(box.StepCreate), box.ClassInvalid) },
		"starting, and it does not answer": func(w *world) {
			w.deaf = true
			w.pass(time.Minute)
			w.state(box.StateStarting)
		},
		"running":    func(w *world) { w.settle() },
		"draining":   func(w *world) { w.settle(); w.now = w.now.Add(idle); w.finish(w.step(box.StepQuiesce)) },
		"suspending": func(w *world) { w.settle(); w.now = w.now.Add(idle); w.finish(w.step(box.StepExport)) },
		"suspended":  func(w *world) { w.toSuspended() },
		"resuming": func(w *world) {
			w.toSuspended()
			w.connect("tab")
			w.failed(w.step(box.StepResume), box.ClassUnavailable)
		},
		"awaiting a person": func(w *world) { w.toAwaiting() },
		"in an undo window": func(w *world) { w.toSuspended(); w.requestUndo(box.Duration(day)); w.cancel() },
		"lost":              func(w *world) { w.toSuspended(); w.vanish(); w.state(box.StateLost) },
		"waking to export": func(w *world) {
			w.blind()
			w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "x"})
			w.finish(w.step(box.StepResume))
		},
		"seen by an outsider": func(w *world) {
			w.settle()
			w.phase = box.PhaseSuspended
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, spec())
			reach(w)
			loss := w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d"}}, w.now)
			w.confirm(loss.Token)
			if c := w.facts.Confirmation; c == nil || !c.Accepted {
				t.Fatalf("the confirmation became %+v", c)
			}
			w.pass(day)
			if w.facts.State != box.StateBoxArchived {
				// History that nobody was shown is not destroyed on that consent.
				w.refusedWith(box.ReasonHistoryChanged)
				w.confirm(w.requestDelete().Token)
				w.pass(day)
			}
			w.state(box.StateBoxArchived)
			if w.exists || (!w.facts.NeverReady() && !w.stored[w.digest()]) {
				t.Errorf("exists %v, its history is stored: %v", w.exists, w.stored)
			}
		})
	}
}

func (w *world) cancel() { w.facts.CancelDelete(box.CancelDelete{By: "ana"}, w.now) }

func (w *world) vanish() {
	w.exists = false
	w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
	w.settle()
}

// blind brings a new box to suspended without an export of what was said in it.
func (w *world) blind() {
	w.settle()
	w.work(true)
	w.fail[box.StepExport] = box.ClassUnavailable
	w.pass(time.Hour)
	w.state(box.StateSuspended)
	delete(w.fail, box.StepExport)
}

func TestConfirmations(t *testing.T) {
	t.Parallel()
	t.Run("the same request shows the same token; nothing was asked, nothing is confirmed", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.confirm("")
		w.refusedWith(box.ReasonRefused)
		a, b := w.requestDelete(), w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "other"}}, w.now)
		if a.Token == "" || a.Token != b.Token {
			t.Errorf("tokens %q and %q", a.Token, b.Token)
		}
	})
	t.Run("a token expires", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		loss := w.requestDelete()
		w.now = loss.Expires.Add(-1)
		w.pass(1)
		w.confirm(loss.Token)
		w.refusedWith(box.ReasonRefused)
		w.state(box.StateSuspended)
	})
	t.Run("it is good up to its last moment", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		loss := w.requestDelete()
		w.now = loss.Expires.Add(-1)
		w.confirm(loss.Token)
		w.settle()
		w.state(box.StateBoxArchived)
	})
	t.Run("one for another history is refused", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		loss := w.requestDelete()
		w.work(true)
		w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "x"})
		w.settle()
		w.confirm(loss.Token)
		w.refusedWith(box.ReasonHistoryChanged)
	})
	t.Run("history that appears after the confirmation voids it", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		loss := w.requestDelete()
		w.work(false) // nobody heard of it
		w.confirm(loss.Token)
		w.pass(time.Minute)
		w.refusedWith(box.ReasonHistoryChanged)
		w.state(box.StateRunning)
	})
	t.Run("one stays valid when a new export gives the same history", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.work(true)
		loss := w.requestDelete()
		if loss.Covered || loss.Events != 1 || len(loss.NotExported) != 2 {
			t.Errorf("shown is %+v", loss)
		}
		w.confirm(loss.Token)
		w.settle()
		w.state(box.StateBoxArchived)
	})
	t.Run("a late copy of a token that was taken back does nothing", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		old := w.requestUndo(box.Duration(day))
		w.cancel()
		w.confirm(old.Token)
		w.refusedWith(box.ReasonRefused)
		again := w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "again"}}, w.now)
		w.confirm(old.Token)
		w.refusedWith(box.ReasonRefused)
		if again.Token == old.Token {
			t.Error("the token is the same")
		}
		w.state(box.StateSuspended)
	})
	t.Run("a repeated confirmation is one", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		loss := w.requestUndo(box.Duration(day))
		at := w.settle().At
		w.pass(time.Hour)
		w.confirm(loss.Token)
		if got := w.settle().At; !got.Equal(at) {
			t.Errorf("the undo window moved from %s to %s", at, got)
		}
	})
	t.Run("no empty token accepts a loss for a deletion by policy", func(t *testing.T) {
		t.Parallel()
		w := awake(t, deletes)
		w.pass(30*day + time.Hour)
		w.state(box.StateUndoWindow)
		w.waive("")
		if w.facts.Deletion.WithoutHistory {
			t.Error("the loss was accepted with an empty token")
		}
	})
	t.Run("a frozen box is not deleted by a confirmation", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		loss := w.requestDelete()
		w.freeze("f", true)
		w.confirm(loss.Token)
		w.refusedWith(box.ReasonFrozen)
	})
	t.Run("Rule 27: an undo window that a wall of the provider cuts short is refused up front", func(t *testing.T) {
		t.Parallel()
		c := row()
		c.PausedLife = box.Span(10 * day)
		w := newWorldAt(t, spec(), c)
		w.toSuspended()
		w.pass(9 * day) // renewed at 7.5 days, so it is kept there until day 17.5
		w.requestUndo(box.Duration(9 * day))
		w.refusedWith(box.ReasonRefused)
		w.requestUndo(box.Duration(day / 2)) // the same request id: still the old window
		w.refusedWith(box.ReasonRefused)
		loss := w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "b"}, Undo: box.Duration(day / 2)}, w.now)
		w.confirm(loss.Token)
		w.pass(day)
		w.state(box.StateBoxArchived)
	})
}

func TestRule27Undo(t *testing.T) {
	t.Parallel()
	for name, undo := range map[string]func(*world){
		"cancel":        (*world).cancel,
		"someone comes": func(w *world) { w.connect("tab") },
		"resume":        func(w *world) { w.facts.Resume(box.Request{ID: "r"}, w.now) },
		"a run is seen": func(w *world) {
			w.phase = box.PhaseRunning
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
		},
		"a start is seen": func(w *world) {
			w.phase = box.PhaseStarting
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
			w.settle()
			w.phase = box.PhaseRunning
		},
	} {
		t.Run(name+" voids the deletion", func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			w.toSuspended()
			w.requestUndo(box.Duration(day))
			w.pass(day - time.Second)
			w.state(box.StateUndoWindow)
			undo(w)
			w.settle()
			w.pass(20 * day)
			w.state(box.StateSuspended)
			if w.facts.Deletion != nil || w.did(box.StepDelete) != 0 || !strings.Contains(w.told(), "undo-window") {
				t.Errorf("deletion %+v, steps %v", w.facts.Deletion, w.log)
			}
		})
	}
}
