package box_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

func TestTheWayToADestruction(t *testing.T) {
	t.Parallel()
	t.Run("Rule 24: asking and confirming wake nothing", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.work(false)
		w.pass(2 * idle)
		w.pass(5 * day)
		n := len(w.log)
		loss := w.requestDelete()
		if loss.ScanAge != box.Duration(5*day+idle) || loss.LastUse != box.Duration(5*day+2*idle) || !loss.Covered || loss.Events != 1 || loss.Conversations != 1 {
			t.Errorf("shown is %+v", loss)
		}
		w.confirm(loss.Token)
		w.settle()
		w.state(box.StateBoxArchived)
		if got := w.log[n:]; !slices.Equal(got, []box.StepKind{box.StepVerifyExport, box.StepDelete}) {
			t.Errorf("steps %v", got)
		}
	})
	t.Run("Rule 26: a stale export causes one wake, which keeps the paused clock and suspends again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.blind()
		since, n := w.facts.SuspendedSince, len(w.log)
		if loss := w.requestUndo(box.Duration(day)); loss.Covered {
			t.Error("a box without an export is called covered")
		}
		w.pass(day - time.Second)
		w.state(box.StateUndoWindow)
		w.now = w.now.Add(time.Second)
		w.finish(w.step(box.StepSuspend))
		if !w.facts.SuspendedSince.Equal(since) || w.phase != box.PhaseSuspended || w.facts.State != box.StateExporting {
			t.Errorf("suspended since %s, before %s; %s, the provider says %s", w.facts.SuspendedSince, since, w.facts.State, w.phase)
		}
		w.settle()
		want := []box.StepKind{box.StepResume, box.StepQuiesce, box.StepExport, box.StepSuspend, box.StepVerifyExport, box.StepDelete}
		if got := w.log[n:]; !slices.Equal(got, want) {
			t.Errorf("steps %v, want %v", got, want)
		}
	})
	t.Run("Rule 26: what such a wake finds and nobody was shown is not deleted", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		loss := w.requestDelete()
		w.work(false)
		w.phase = box.PhaseSuspended
		w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
		w.settle()
		w.confirm(loss.Token)
		w.pass(time.Hour)
		w.refusedWith(box.ReasonHistoryChanged)
		w.state(box.StateSuspended)
		if w.phase != box.PhaseSuspended || !w.stored[w.digest()] {
			t.Errorf("the provider says %s, stored %v", w.phase, w.stored)
		}
	})
	t.Run("Rule 26: an arriving user turns the wake into a resume", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.blind()
		w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "x"})
		w.step(box.StepExport)
		w.connect("tab")
		w.settle()
		w.state(box.StateRunning)
		if !w.facts.SuspendedSince.IsZero() || w.did(box.StepUndrain) != 1 {
			t.Errorf("since %s, steps %v", w.facts.SuspendedSince, w.log)
		}
	})
	for name, spoil := range map[string]func(*world){
		"cannot be woken":               func(w *world) { w.fail[box.StepResume] = box.ClassExhausted },
		"is silent when woken":          func(w *world) { w.deaf = true },
		"cannot be exported":            func(w *world) { w.fail[box.StepExport] = box.ClassUnavailable },
		"has a store that loses things": func(w *world) { w.badStore = true },
	} {
		t.Run("Rule 26: a box that "+name+" blocks the deletion; only the accepted loss passes", func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			w.work(false)
			loss := w.requestDelete()
			w.phase = box.PhaseSuspended // by the provider, before any export
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
			w.settle()
			spoil(w)
			w.confirm(loss.Token)
			w.pass(7 * day)
			w.state(box.StateDeleteBlocked)
			if why := w.facts.WhyAt(w.now); why.NextReason.Code != box.ReasonExportImpossible || !strings.Contains(why.StoppedBy, "without history") {
				t.Errorf("why says %+v", why)
			}
			w.waive(loss.Token)
			w.pass(time.Hour)
			w.state(box.StateBoxArchived)
		})
	}
	t.Run("a blocked deletion ends by a visit, and the box is as it was", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.work(false)
		w.pass(2 * idle)
		w.badStore = true
		loss := w.requestDelete()
		w.confirm(loss.Token)
		w.pass(time.Hour)
		w.state(box.StateDeleteBlocked)
		w.connect("tab")
		w.settle()
		w.state(box.StateRunning)
		w.confirm(loss.Token)
		w.refusedWith(box.ReasonRefused)
	})
	t.Run("history that appears while the export is read back is not destroyed", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.work(true)
		loss := w.requestDelete()
		w.confirm(loss.Token)
		w.fail[box.StepVerifyExport] = box.ClassUnavailable
		w.pass(time.Minute)
		w.state(box.StateExporting)
		w.now = w.now.Add(5 * time.Minute) // the door is open again
		w.work(false)
		delete(w.fail, box.StepVerifyExport)
		w.pass(time.Hour)
		w.refusedWith(box.ReasonHistoryChanged)
		if !w.exists || !w.stored[w.digest()] {
			t.Errorf("exists %v, stored %v", w.exists, w.stored)
		}
	})
	t.Run("history that appears between the last check and the call is not destroyed, and the deletion can be taken back", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		loss := w.requestDelete()
		w.confirm(loss.Token)
		w.step(box.StepDelete)
		w.failed(box.Step{Kind: box.StepDelete}, box.ClassFailedPrecondition)
		w.state(box.StateExporting)
		w.cancel()
		w.pass(time.Minute)
		w.state(box.StateRunning)
	})
	t.Run("Scenario 84: a box that is gone already is deleted all the same, and the history says so", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.work(false)
		w.pass(2 * idle)
		loss := w.requestDelete()
		w.vanish()
		w.state(box.StateLost)
		w.confirm(loss.Token)
		w.settle()
		w.state(box.StateBoxArchived)
		if !strings.Contains(w.told(), string(box.ReasonGoneAtProvider)) {
			t.Errorf("the history is %s", w.told())
		}
	})
	t.Run("in lost nobody connects; nothing is replaced silently", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.vanish()
		err := w.facts.CheckConnect(box.ConnectRequest{Request: box.Request{ID: "c"}, HolderID: "h"})
		if box.ClassOf(err) != box.ClassFailedPrecondition || !w.facts.NeedsAttention() {
			t.Errorf("connect answers %v", err)
		}
		w.pass(100 * day)
		w.state(box.StateLost)
	})
}

func TestTheProvidersDelete(t *testing.T) {
	t.Parallel()
	// deleting is a world whose provider was told and does not answer.
	deleting := func(t *testing.T, class box.Class) *world {
		t.Helper()
		w := awake(t)
		w.toSuspended()
		w.fail[box.StepDelete] = class
		w.confirm(w.requestDelete().Token)
		w.settle()
		w.state(box.StateDeleting)
		return w
	}
	t.Run("Scenario 75: one that keeps failing backs off to a day, shows the next try, and is never dropped", func(t *testing.T) {
		t.Parallel()
		w := deleting(t, box.ClassUnauthorized)
		w.pass(90 * day)
		failure := w.facts.StatusAt(w.now).Failure
		if failure == nil || failure.RetryAt.Sub(failure.At) != day || !w.facts.NeedsAttention() || failure.Count < 90 {
			t.Fatalf("shown is %+v", failure)
		}
		if next := w.settle(); next.Then != box.StepDelete || !next.At.Equal(failure.RetryAt) {
			t.Errorf("next %+v", next)
		}
		delete(w.fail, box.StepDelete)
		w.pass(day)
		w.state(box.StateBoxArchived)
	})
	t.Run("after it was told there is no way back", func(t *testing.T) {
		t.Parallel()
		w := deleting(t, box.ClassUnavailable)
		if err := w.facts.CheckConnect(box.ConnectRequest{Request: box.Request{ID: "c"}, HolderID: "h"}); box.ClassOf(err) != box.ClassFailedPrecondition {
			t.Errorf("connect: %v", err)
		}
		if err := w.facts.CheckResume(box.Request{ID: "r"}); box.ClassOf(err) != box.ClassFailedPrecondition {
			t.Errorf("resume: %v", err)
		}
		if err := w.facts.CheckSwitch(box.SwitchAsk{Request: box.Request{ID: "f"}, On: true}); box.ClassOf(err) != box.ClassFailedPrecondition {
			t.Errorf("freeze: %v", err)
		}
		w.cancel()
		w.state(box.StateDeleting)
		if c := w.facts.Confirmation; c == nil || c.Reason.Code != box.ReasonRefused || !strings.Contains(c.Reason.Text, "too late") {
			t.Errorf("the cancellation became %+v", c)
		}
		w.failed(box.Step{Kind: box.StepDelete}, box.ClassFailedPrecondition) // a later refusal opens no way back either
		w.state(box.StateDeleting)
	})
	t.Run("a refusal before anything was destroyed leaves the way back open, and is tried again", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		w.fail[box.StepDelete] = box.ClassFailedPrecondition // such as another account
		w.confirm(w.requestDelete().Token)
		w.pass(3 * day)
		w.state(box.StateExporting)
		if n := w.did(box.StepDelete); n < 5 || n > 20 {
			t.Errorf("%d tries in three days", n)
		}
		delete(w.fail, box.StepDelete)
		w.pass(day)
		w.state(box.StateBoxArchived)
	})
	t.Run("Scenario 28: a deletion during a suspend ends in one final state", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.now = w.now.Add(idle)
		step := w.step(box.StepSuspend)
		w.confirm(w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d"}}, w.now).Token)
		w.finish(step)
		w.settle()
		w.state(box.StateBoxArchived)
		if w.exists || w.did(box.StepSuspend) != 1 || w.did(box.StepDelete) != 1 {
			t.Errorf("exists %v, steps %v", w.exists, w.log)
		}
	})
	t.Run("Scenario 76: a workspace that was deleted never starts again", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.confirm(w.requestDelete().Token)
		w.settle()
		w.state(box.StateBoxArchived)
		for name, err := range map[string]error{
			"connect": w.facts.CheckConnect(box.ConnectRequest{Request: box.Request{ID: "a"}, HolderID: "h"}),
			"resume":  w.facts.CheckResume(box.Request{ID: "b"}),
			"suspend": w.facts.CheckSuspend(box.Request{ID: "c"}),
			"delete":  w.facts.CheckRequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d"}}),
			"export":  w.facts.CheckAsk(box.Ask{Kind: box.AskExport, ID: "e"}),
			"keep":    w.facts.CheckSwitch(box.SwitchAsk{Request: box.Request{ID: "f"}}),
		} {
			if box.ClassOf(err) != box.ClassFailedPrecondition {
				t.Errorf("%s: %v", name, err)
			}
		}
		if step := w.settle(); step.Kind != box.StepFinish {
			t.Errorf("next %+v", step)
		}
	})
}

// While the provider refuses, the door opens again by itself: what was said then
// is exported before the next try, also when the box ended meanwhile.
func TestADeletionThatFailsForHoursLosesNothing(t *testing.T) {
	t.Parallel()
	for _, end := range []box.Phase{box.PhaseRunning, box.PhaseFailed, box.PhaseSuspended} {
		w := awake(t)
		w.fail[box.StepDelete] = box.ClassUnavailable
		w.confirm(w.requestDelete().Token)
		w.pass(time.Hour)
		w.state(box.StateDeleting)
		w.work(false)
		w.phase = end
		delete(w.fail, box.StepDelete)
		w.pass(2 * day)
		if w.exists && (w.facts.Deletion != nil || w.facts.Confirmation.Reason.Code != box.ReasonHistoryChanged) || !w.stored[w.digest()] {
			t.Errorf("%s: it is %s, exists %v%s", end, w.facts.State, w.exists, w.told())
		}
	}
}
