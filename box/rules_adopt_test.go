package box_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func (w *world) adopt(id, boxID string) {
	w.t.Helper()
	r := box.AdoptAsk{Request: box.Request{ID: id, By: "ops"}, BoxID: boxID}
	if err := w.facts.CheckAdopt(r); err != nil {
		w.t.Fatal(err)
	}
	w.facts.TakeOver(r, w.now)
}

// told is what the request with this id was answered.
func (w *world) resultOf(id string) box.Result {
	w.t.Helper()
	result, ok := w.facts.ResultFor(id)
	if !ok {
		w.t.Fatalf("%s has no answer in %s%s", id, w.facts.State, w.told())
	}
	return result
}

func adopts(s *box.Spec) { s.Adopt = "stray" }

func TestAStartThatAdoptsNeverCreates(t *testing.T) {
	t.Parallel()
	s := spec()
	adopts(&s)
	t.Run("it takes over a box that runs", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, s)
		w.stray = box.PhaseRunning
		w.settle()
		w.state(box.StateRunning)
		require.Equal(t, box.ReasonAdopted, w.facts.StatusAt(w.now).Reason.Code)
		require.True(t, w.facts.Adopted)
		require.False(t, w.facts.NeverReady(), "somebody may have worked in it")
		require.Zero(t, w.did(box.StepCreate))
	})
	t.Run("one that is not to be had is a refusal, and is tried again when a person asks", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, s)
		w.settle()
		w.state(box.StateCreateFailed)
		require.Contains(t, w.facts.StatusAt(w.now).Reason.Text, "no box has this id")
		w.pass(90 * day)
		w.stray = box.PhaseSuspended
		w.facts.Resume(box.Request{ID: "r"}, w.now)
		w.settle()
		w.state(box.StateSuspended)
		require.Zero(t, w.did(box.StepCreate))
	})
	t.Run("an update that takes over another one which is refused does not make it create", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, s)
		w.settle()
		w.adopt("a", "foreign")
		w.settle()
		require.Equal(t, box.ClassFailedPrecondition, w.resultOf("a").Class)
		w.facts.Resume(box.Request{ID: "r"}, w.now)
		w.settle()
		w.state(box.StateCreateFailed)
		require.Zero(t, w.did(box.StepCreate))
	})
	t.Run("a deletion destroys no box that may hold somebody's work", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, s)
		w.stray = box.PhaseRunning
		step := w.step(box.StepAdopt)
		out := w.outcome(step) // it is ours now, and the answer is lost
		require.Nil(t, out.Failed)
		w.failed(step, box.ClassDeadlineExceeded)
		loss := w.requestDelete()
		require.NotContains(t, loss.NotExported[0], "nothing that anyone did")
		w.confirm(loss.Token)
		w.fail[box.StepAdopt] = box.ClassUnavailable
		w.pass(day)
		w.state(box.StateExporting)
		require.True(t, w.exists)
		require.Zero(t, w.did(box.StepDelete))
		w.stray = box.PhaseRunning // the same one, in this world
		delete(w.fail, box.StepAdopt)
		w.pass(time.Hour)
		require.True(t, w.exists, "its history was never shown")
		w.refusedWith(box.ReasonHistoryChanged)
	})
	t.Run("a refused adoption leaves nothing to destroy", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, s)
		w.settle()
		w.confirm(w.requestDelete().Token)
		w.settle()
		w.state(box.StateBoxArchived)
	})
	t.Run("a person who wants an empty box after all gets one", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, s)
		w.settle()
		w.replace("r")
		w.settle()
		w.state(box.StateRunning)
		require.Equal(t, 2, w.facts.Epoch)
		require.Empty(t, w.facts.SpecNow().Adopt)
	})
}

func TestAdoptASuspendedBox(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		age, clock, expiry time.Duration
	}{
		"the paused clock starts where the provider says":        {age: 10 * day, clock: 10 * day, expiry: 20 * day},
		"one that the provider does not tell starts now":         {age: 0, clock: 0, expiry: 30 * day},
		"an expiry in the past gives a whole notice first":       {age: 60 * day, clock: 60 * day, expiry: 3 * day},
		"one that is close gives a whole notice first, the same": {age: 29 * day, clock: 29 * day, expiry: 3 * day},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := lost(t)
			w.stray, w.strayAge = box.PhaseSuspended, row.age
			adopted := w.now
			w.adopt("a", "stray")
			step := w.settle()
			w.state(box.StateSuspended)
			require.Empty(t, w.resultOf("a").Error)
			require.Equal(t, row.clock, w.now.Sub(w.facts.SuspendedSince))
			for w.facts.State == box.StateSuspended {
				w.until(step, day)
				step = w.settle()
			}
			require.Equal(t, row.expiry, w.now.Sub(adopted))
			require.Positive(t, w.did(box.StepNotify))
			require.False(t, w.facts.NeverReady())
		})
	}
}

func TestAdoptInEveryPhase(t *testing.T) {
	t.Parallel()
	t.Run("a broken one is settled with the provider's proof", func(t *testing.T) {
		t.Parallel()
		w := lost(t)
		w.stray = box.PhaseFailed
		w.adopt("a", "stray")
		w.settle()
		w.state(box.StateSuspended)
		require.Equal(t, 1, w.did(box.StepSuspend)-1)
	})
	t.Run("one that does not answer yet is waited for", func(t *testing.T) {
		t.Parallel()
		w := lost(t)
		w.stray, w.deaf = box.PhaseRunning, true
		w.adopt("a", "stray")
		w.turn()
		w.state(box.StateStarting)
		w.deaf = false
		w.pass(time.Minute)
		w.state(box.StateRunning)
	})
	t.Run("the lost one that is there again keeps its epoch", func(t *testing.T) {
		t.Parallel()
		w := lost(t)
		w.exists, w.phase = true, box.PhaseRunning
		w.adopt("a", "id-1")
		w.settle()
		w.state(box.StateRunning)
		require.Equal(t, 1, w.facts.Epoch)
		require.False(t, w.facts.StatusAt(w.now).ExportCovers, "who knows what was done in it")
	})
	t.Run("the lost one that is there again, suspended, is covered by no export", func(t *testing.T) {
		t.Parallel()
		w := lost(t)
		w.exists, w.phase = true, box.PhaseSuspended
		w.adopt("a", "id-1")
		w.settle()
		w.state(box.StateSuspended)
		require.False(t, w.facts.StatusAt(w.now).ExportCovers)
	})
	t.Run("one of an earlier epoch is refused", func(t *testing.T) {
		t.Parallel()
		w := lost(t)
		w.replace("r")
		w.settle()
		w.vanish()
		w.adopt("a", "id-1")
		step := w.step(box.StepAdopt)
		w.facts.Apply(step, box.Outcome{Observation: box.Observation{
			Ref: box.Ref{Provider: "test", ID: "id-1", Name: "n", Epoch: 1, Fingerprint: "here"}, Phase: box.PhaseRunning,
		}}, w.now)
		w.settle()
		w.state(box.StateLost)
		require.Equal(t, box.ClassFailedPrecondition, w.resultOf("a").Class)
		require.Equal(t, 2, w.facts.Epoch)
	})
	t.Run("a deletion that was agreed on the old box is not of the new one", func(t *testing.T) {
		t.Parallel()
		w := lost(t)
		w.stray = box.PhaseRunning
		w.adopt("a", "stray")
		step := w.step(box.StepAdopt)
		w.confirm(w.requestDelete().Token)
		w.finish(step)
		w.settle()
		w.state(box.StateRunning)
		require.Nil(t, w.facts.Deletion)
		require.True(t, w.exists)
	})
}

func TestAdoptIsRefused(t *testing.T) {
	t.Parallel()
	ask := func(boxID string) box.AdoptAsk {
		return box.AdoptAsk{Request: box.Request{ID: "a", By: "ops"}, BoxID: boxID}
	}
	w := lost(t)
	refused(t, w.facts.CheckAdopt(ask("")), box.ClassInvalid, "box_id: ")
	refused(t, w.facts.CheckAdopt(ask("a b")), box.ClassInvalid, "box_id: ")
	w.facts.Capabilities.Adopt = box.No
	refused(t, w.facts.CheckAdopt(ask("stray")), box.ClassUnsupported, "create one")
	w = awake(t)
	refused(t, w.facts.CheckAdopt(ask("stray")), box.ClassFailedPrecondition, "a workspace of its own")
	w = newWorld(t, spec())
	refused(t, w.facts.CheckAdopt(ask("stray")), box.ClassConflict, "wait")

	t.Run("what the driver refuses leaves it as it was, with the reason", func(t *testing.T) {
		t.Parallel()
		for boxID, class := range map[string]box.Class{"foreign": box.ClassFailedPrecondition, "absent": box.ClassNotFound} {
			w := lost(t)
			w.adopt("a", boxID)
			w.settle()
			w.state(box.StateLost)
			require.Equal(t, class, w.resultOf("a").Class)
			require.Equal(t, 1, w.facts.Epoch)
			require.Nil(t, w.facts.Adopt)
			w.adopt("a", boxID) // a repeat does nothing
			w.settle()
			require.Equal(t, 1, w.did(box.StepAdopt))
			w.replace("r")
			w.settle()
			require.Equal(t, 3, w.facts.Epoch, "the epoch that was given out is not used twice")
		}
	})
	t.Run("one whose answer is lost is asked for again and forgotten for no other", func(t *testing.T) {
		t.Parallel()
		w := lost(t)
		w.stray = box.PhaseRunning
		w.adopt("a", "stray")
		step := w.step(box.StepAdopt)
		w.failed(step, box.ClassDeadlineExceeded)
		refused(t, w.facts.CheckAdopt(box.AdoptAsk{Request: box.Request{ID: "b"}, BoxID: "other"}), box.ClassConflict, "wait")
		w.fail[box.StepAdopt] = box.ClassInternal
		w.pass(time.Hour)
		w.state(box.StateCreating)
		w.fail[box.StepAdopt] = box.ClassCanceled
		w.pass(time.Hour)
		delete(w.fail, box.StepAdopt)
		w.pass(time.Hour)
		require.Empty(t, w.resultOf("a").Error)
		require.Equal(t, 2, w.facts.Epoch)
	})
}
