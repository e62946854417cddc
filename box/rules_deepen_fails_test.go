package box_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func TestAMemoryThatCannotBeGivenUp(t *testing.T) {
	t.Parallel()
	t.Run("is tried again ever more seldom, is seen, and disturbs nothing else", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.fail[box.StepDeepen] = box.ClassUnavailable
		w.pass(time.Hour)
		require.Equal(t, 1, w.did(box.StepDeepen))
		require.Equal(t, 1, w.did(box.StepObserve), "nobody knows how far it came")
		step := w.settle()
		require.Equal(t, w.now.Add(time.Minute), step.At)
		require.Equal(t, box.StepDeepen, step.Then)
		require.Contains(t, step.Reason.Text, "could not be given up, 1 times")
		require.Equal(t, box.StepDeepen, w.facts.StatusAt(w.now).Failure.Step)
		w.keep("k", true) // is noted in the ledger all the same
		w.pass(26 * day)
		require.Equal(t, w.facts.Durable, w.facts.Recorded)
		if n := w.did(box.StepDeepen); n < 26*23 || n > 26*25 || w.did(box.StepObserve) != n || !w.facts.NeedsAttention() {
			t.Fatalf("tried %d times in 26 days, read %d times, attention %v", n, w.did(box.StepObserve), w.facts.NeedsAttention())
		}
		w.state(box.StateSuspended)
		require.True(t, w.facts.StatusAt(w.now).ExportCovers)
		delete(w.fail, box.StepDeepen)
		w.pass(time.Hour)
		w.memory(box.No)
		require.Nil(t, w.facts.Failure)
		require.False(t, w.facts.NeedsAttention())
		require.Zero(t, w.facts.DeepenTries)
	})
	t.Run("a lost answer is found out by looking", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		since := w.facts.SuspendedSince
		w.now = since.Add(time.Hour)
		step := w.step(box.StepDeepen)
		w.outcome(step)
		w.failed(step, box.ClassDeadlineExceeded)
		w.settle()
		w.state(box.StateSuspended)
		require.Equal(t, []box.StepKind{box.StepDeepen, box.StepObserve}, w.log)
		require.Nil(t, w.facts.Failure)
		require.True(t, w.facts.SuspendedSince.Equal(since))
	})
	t.Run("one that was cut off and left it awake is suspended again, and the paused clock goes on", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		since := w.facts.SuspendedSince
		w.now = since.Add(time.Hour)
		step := w.step(box.StepDeepen)
		w.phase = box.PhaseRunning
		w.failed(step, box.ClassDeadlineExceeded)
		w.settle()
		w.state(box.StateSuspended)
		require.Equal(t, []box.StepKind{box.StepDeepen, box.StepObserve, box.StepQuiesce, box.StepSuspend}, w.log)
		require.Equal(t, box.PhaseSuspended, w.phase)
		require.True(t, w.facts.SuspendedSince.Equal(since))
		require.True(t, w.facts.StatusAt(w.now).ExportCovers, "it ran for a moment, and a look showed that nothing was said")
	})
	t.Run("who comes then finds it awake", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.now = w.facts.SuspendedSince.Add(time.Hour)
		step := w.step(box.StepDeepen)
		w.phase = box.PhaseRunning
		w.connect("tab")
		w.failed(step, box.ClassDeadlineExceeded)
		w.settle()
		w.state(box.StateRunning)
		require.Zero(t, w.did(box.StepSuspend))
	})
	t.Run("a box that somebody woke at the provider is theirs", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.now = w.facts.SuspendedSince.Add(time.Hour)
		w.phase = box.PhaseRunning
		w.settle()
		w.state(box.StateRunning)
		require.Zero(t, w.did(box.StepSuspend))
		require.True(t, w.facts.SuspendedSince.IsZero())
	})
	t.Run("one that is gone is lost", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.now = w.facts.SuspendedSince.Add(time.Hour)
		w.exists = false
		w.settle()
		w.state(box.StateLost)
	})
	t.Run("one that ended is settled as suspended", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		since := w.facts.SuspendedSince
		w.now = since.Add(time.Hour)
		w.phase = box.PhaseFailed
		w.settle()
		w.state(box.StateSuspended)
		require.True(t, w.facts.SuspendedSince.Equal(since))
	})
	t.Run("a provider that can't any more is not asked again", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.fail[box.StepDeepen] = box.ClassUnsupported
		w.pass(10 * day)
		require.Equal(t, []box.StepKind{box.StepDeepen}, w.log)
		require.Nil(t, w.facts.Failure)
		require.Contains(t, w.facts.WhyAt(w.now).Because.Text, "its memory stays")
		for _, one := range w.facts.StatusAt(w.now).Watches {
			require.NotEqual(t, "memory of a suspended box", one.Name)
		}
	})
	t.Run("a missing worker is no reason to look", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.now = w.facts.SuspendedSince.Add(time.Hour)
		w.facts.Apply(w.step(box.StepDeepen), box.Outcome{Failed: &box.StepFailure{Class: box.ClassUnavailable, NotBegun: true, Message: "no worker"}}, w.now)
		require.False(t, w.facts.Look || w.facts.WakeOwed)
		w.pass(time.Minute)
		w.memory(box.No)
	})
	t.Run("an overtaken step makes the count of steps begin anew", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.now = w.facts.SuspendedSince.Add(time.Hour)
		w.failed(w.step(box.StepDeepen), box.ClassConflict)
		require.True(t, w.facts.Began.Equal(w.now))
		require.False(t, w.facts.WakeOwed, "nothing was done")
	})
}

// Two steps that fail beside each other both back off: neither makes the other
// one due.
func TestAMemoryAndANoticeThatBothFail(t *testing.T) {
	t.Parallel()
	w := resting(t, func(s *box.Spec, _ *box.Capabilities) {
		s.Policy.PausedTTL, s.Policy.Notice, s.Policy.OnExpiry = box.Duration(4*day), box.Duration(4*day-time.Hour), box.OnExpiryDelete
	})
	w.fail[box.StepDeepen], w.fail[box.StepNotify] = box.ClassUnavailable, box.ClassUnavailable
	w.pass(2 * day)
	if deep, told := w.did(box.StepDeepen), w.did(box.StepNotify); deep < 40 || deep > 70 || told < 40 || told > 70 {
		t.Fatalf("given up %d times, told %d times", deep, told)
	}
	delete(w.fail, box.StepDeepen)
	w.pass(time.Hour)
	w.memory(box.No)
}

// Where the ledger fails too, what a person changed is noted when it is back.
func TestAMemoryAndALedgerThatBothFail(t *testing.T) {
	t.Parallel()
	w := resting(t)
	w.fail[box.StepDeepen], w.fail[box.StepRecord] = box.ClassUnavailable, box.ClassUnavailable
	w.keep("k", true)
	w.pass(day)
	if deep, noted := w.did(box.StepDeepen), w.did(box.StepRecord); deep < 20 || deep > 40 || noted < 20 || noted > 200 {
		t.Fatalf("given up %d times, noted %d times", deep, noted)
	}
	delete(w.fail, box.StepRecord)
	w.pass(time.Hour)
	require.Equal(t, w.facts.Durable, w.facts.Recorded)
}
