package box_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// laddered is a provider that suspends with memory, and deeper.
func laddered() box.Capabilities {
	c := row()
	c.MemoryKept, c.Deepen = box.Yes, box.Yes
	return c
}

// resting is a box that was suspended just now with its memory kept.
func resting(t *testing.T, change ...func(*box.Spec, *box.Capabilities)) *world {
	t.Helper()
	s, c := spec(), laddered()
	for _, one := range change {
		one(&s, &c)
	}
	w := newWorldAt(t, s, c)
	w.toSuspended()
	w.log = nil
	return w
}

func (w *world) memory(want box.Tri) {
	w.t.Helper()
	if got := w.seen().MemoryKept; got != want {
		w.t.Fatalf("memory kept: %s, want %s; steps %v%s", got, want, w.log, w.told())
	}
}

func TestTheMemoryOfASuspendedBoxIsGivenUpInTime(t *testing.T) {
	t.Parallel()
	w := resting(t)
	since, clock := w.facts.SuspendedSince, w.facts.PausedClock
	step := w.settle()
	require.Equal(t, box.StepDeepen, step.Then)
	require.Equal(t, box.ReasonDeepenDue, step.Reason.Code)
	require.Contains(t, step.Reason.Text, "kept for 1h after a suspend")
	require.Contains(t, step.StoppedBy, "anyone who connects")
	require.Equal(t, since.Add(time.Hour), step.At)
	require.Equal(t, box.Yes, w.facts.StatusAt(w.now).Seen.MemoryKept)

	w.now = step.At.Add(-1)
	require.Equal(t, box.StepWait, box.Next(w.facts, w.now).Kind, "a moment before")
	w.now = step.At
	notice := w.settle() // exactly then
	w.memory(box.No)
	require.Equal(t, []box.StepKind{box.StepDeepen}, w.log)
	w.state(box.StateSuspended)
	require.Equal(t, box.Yes, w.facts.Decided.Facts.MemoryKept, "what it went by")
	require.Equal(t, box.No, w.facts.StatusAt(w.now).Seen.MemoryKept)
	require.Equal(t, box.ReasonDeepenDue, w.facts.WhyAt(w.now).Because.Code)
	require.True(t, w.facts.StatusAt(w.now).ExportCovers, "nothing was said meanwhile")

	// The paused TTL goes on, and it is not done twice.
	require.Equal(t, since.Add(27*day), notice.At)
	require.True(t, w.facts.SuspendedSince.Equal(since) && w.facts.PausedClock.Equal(clock))
	w.pass(31 * day)
	w.state(box.StateAwaitingConfirm)
	require.Equal(t, 1, w.did(box.StepDeepen))
}

func TestWhatKeepsTheMemory(t *testing.T) {
	t.Parallel()
	for name, wear := range map[string]struct {
		change func(*box.Spec, *box.Capabilities)
		do     func(*world)
		want   box.Tri
	}{
		"nothing":                     {nil, nil, box.No},
		"the policy says never":       {func(s *box.Spec, _ *box.Capabilities) { s.Policy.DeepenAfter = box.Never }, nil, box.Yes},
		"the provider can't":          {func(_ *box.Spec, c *box.Capabilities) { c.Deepen = box.No }, nil, box.Yes},
		"nobody knows whether it can": {func(_ *box.Spec, c *box.Capabilities) { c.Deepen = box.Unknown }, nil, box.Yes},
		"freeze":                      {nil, func(w *world) { w.freeze("f", true) }, box.Yes},
		"a hold":                      {nil, func(w *world) { w.facts.SetHold(box.HoldSignal{On: true, By: "ops"}, w.now) }, box.Yes},
		"keep is about the files":     {nil, func(w *world) { w.keep("k", true) }, box.No},
		"a longer time":               {nil, func(w *world) { w.policy("p", box.Policy{DeepenAfter: box.Duration(3 * day)}) }, box.Yes},
		"an undo window does not":     {nil, func(w *world) { w.requestUndo(box.Duration(3 * day)) }, box.No},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := resting(t, func(s *box.Spec, c *box.Capabilities) {
				if wear.change != nil {
					wear.change(s, c)
				}
			})
			if wear.do != nil {
				wear.do(w)
			}
			w.pass(2 * day)
			w.memory(wear.want)
			if kept := wear.want == box.Yes; kept == (w.did(box.StepDeepen) > 0) {
				t.Errorf("steps %v", w.log)
			}
		})
	}
}

func TestWhoArrivesKeepsTheMemory(t *testing.T) {
	t.Parallel()
	for name, arrive := range map[string]func(*world){
		"connect": func(w *world) { w.connect("tab") },
		"resume":  func(w *world) { w.facts.Resume(box.Request{ID: "r"}, w.now) },
	} {
		t.Run(name+" at the very moment", func(t *testing.T) {
			t.Parallel()
			w := resting(t)
			w.now = w.facts.SuspendedSince.Add(time.Hour)
			arrive(w)
			w.settle()
			w.state(box.StateRunning)
			require.Equal(t, []box.StepKind{box.StepResume}, w.log)
			require.True(t, w.facts.DeepenFloor.IsZero())
		})
		t.Run(name+" while it is given up waits, and wakes it then", func(t *testing.T) {
			t.Parallel()
			w := resting(t)
			w.now = w.facts.SuspendedSince.Add(time.Hour)
			step := w.step(box.StepDeepen)
			arrive(w)
			require.False(t, box.Interrupts(w.facts, step), "a call that is cut off leaves anything")
			w.finish(step)
			w.settle()
			w.state(box.StateRunning)
			require.Equal(t, []box.StepKind{box.StepDeepen, box.StepResume}, w.log)
		})
	}
	t.Run("the next suspend gives the whole time again", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.pass(50 * time.Minute)
		w.connect("tab")
		w.settle()
		w.facts.Release("tab", w.now)
		w.until(w.settle(), 0)
		step := w.settle()
		w.state(box.StateSuspended)
		require.Equal(t, w.now.Add(time.Hour), step.At)
		require.Equal(t, box.StepDeepen, step.Then)
	})
}

func TestADeadlineOfTheMemoryThatMoves(t *testing.T) {
	t.Parallel()
	at := func(w *world) time.Duration {
		w.t.Helper()
		step := w.settle()
		if step.Then != box.StepDeepen {
			w.t.Fatalf("next is %+v", step)
		}
		return step.At.Sub(w.facts.SuspendedAt)
	}
	for name, row := range map[string]struct {
		first  box.Duration
		change func(*world)
		want   time.Duration
	}{
		"a shorter time gives the whole new one":    {box.Duration(10 * time.Hour), func(w *world) { w.policy("p", box.Policy{DeepenAfter: box.Duration(time.Hour)}) }, 90 * time.Minute},
		"and lengthens nothing":                     {box.Duration(40 * time.Minute), func(w *world) { w.policy("p", box.Policy{DeepenAfter: box.Duration(20 * time.Minute)}) }, 40 * time.Minute},
		"a longer one counts from the suspend":      {0, func(w *world) { w.policy("p", box.Policy{DeepenAfter: box.Duration(2 * time.Hour)}) }, 2 * time.Hour},
		"from never on it gives the whole time":     {box.Never, func(w *world) { w.policy("p", box.Policy{DeepenAfter: box.Duration(time.Hour)}) }, 90 * time.Minute},
		"another field of the policy moves nothing": {0, func(w *world) { w.policy("p", box.Policy{PausedTTL: box.Duration(5 * day)}) }, time.Hour},
		"longer and shorter again does not stay there": {0, func(w *world) {
			w.policy("p", box.Policy{DeepenAfter: box.Never})
			w.policy("q", box.Policy{DeepenAfter: box.Duration(5 * time.Hour)})
			w.policy("r", box.Policy{DeepenAfter: box.Duration(time.Hour)})
		}, 90 * time.Minute},
		"a thaw starts it afresh": {0, func(w *world) { w.freeze("f", true); w.freeze("g", false) }, 90 * time.Minute},
		"a hold that is lifted, too": {0, func(w *world) {
			w.facts.SetHold(box.HoldSignal{On: true}, w.now)
			w.facts.SetHold(box.HoldSignal{}, w.now)
		}, 90 * time.Minute},
		"keep moves nothing":           {0, func(w *world) { w.keep("k", true); w.keep("l", false) }, time.Hour},
		"facts of an earlier release":  {0, func(w *world) { w.facts.Policy.DeepenAfter = 0 }, time.Hour},
		"which a change leaves as are": {0, func(w *world) { w.facts.Policy.DeepenAfter = 0; w.policy("p", box.Policy{}) }, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := resting(t, func(s *box.Spec, _ *box.Capabilities) { s.Policy.DeepenAfter = row.first })
			w.now = w.now.Add(30 * time.Minute)
			w.settle()
			row.change(w)
			require.Equal(t, row.want, at(w))
		})
	}
	t.Run("a policy that is set as it is leaves nothing to note", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.facts.Policy.DeepenAfter = 0 // carried by a run of an earlier release
		require.Equal(t, box.Duration(time.Hour), w.facts.StatusAt(w.now).Policy.DeepenAfter, "what is in force is shown")
		before := w.facts.Durable
		w.policy("p", box.Policy{Idle: w.facts.Policy.Idle})
		require.Equal(t, before, w.facts.Durable)
	})
	t.Run("one that nobody kept in time gives the whole time once", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.now = w.facts.SuspendedAt.Add(time.Hour + time.Minute + 1)
		require.Equal(t, 2*time.Hour+time.Minute+1, at(w))
		w.pass(time.Hour)
		w.memory(box.No)
	})
	t.Run("a minute late is not an outage", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.now = w.facts.SuspendedAt.Add(time.Hour + time.Minute)
		w.settle()
		w.memory(box.No)
	})
}

func TestAProviderThatGoesDeeperByItself(t *testing.T) {
	t.Parallel()
	deeper := func(w *world) {
		w.deep = true
		w.facts.Observe(box.ObservedSignal{ID: "w-1", Observation: w.seen()})
	}
	t.Run("is noticed", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		since := w.facts.SuspendedSince
		deeper(w)
		w.settle()
		require.Equal(t, []box.StepKind{box.StepObserve}, w.log)
		w.pass(2 * day)
		require.Zero(t, w.did(box.StepDeepen))
		require.True(t, w.facts.SuspendedSince.Equal(since))
		require.True(t, strings.HasPrefix(w.facts.WhyAt(w.now).Because.Text, "suspended deeper"))
		require.Equal(t, box.ReasonSeenAtProvider, w.facts.WhyAt(w.now).Because.Code)
	})
	t.Run("is noticed of a box whose memory was to be kept, too", func(t *testing.T) {
		t.Parallel()
		for name, wear := range map[string]func(*world){
			"frozen": func(w *world) { w.freeze("f", true) },
			"held":   func(w *world) { w.facts.SetHold(box.HoldSignal{On: true}, w.now) },
			"never":  func(w *world) { w.policy("p", box.Policy{DeepenAfter: box.Never}) },
		} {
			w := resting(t)
			wear(w)
			deeper(w)
			w.settle()
			require.Equal(t, box.No, w.facts.StatusAt(w.now).Seen.MemoryKept, name)
		}
	})
	t.Run("is nothing new when it is known", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.pass(2 * time.Hour)
		w.memory(box.No)
		w.log = nil
		deeper(w)
		w.settle()
		require.Empty(t, w.log)
	})
	t.Run("is no matter where nobody knows of it", func(t *testing.T) {
		t.Parallel()
		w := resting(t, func(_ *box.Spec, c *box.Capabilities) { c.Deepen = box.Unknown })
		deeper(w)
		w.settle()
		require.Empty(t, w.log, "runs of an earlier release did not read it")
	})
}

// A box at rest is renewed before its provider destroys it, deep or not, and
// each suspend has a time of its own.
func TestTheMemoryAndTheRenewal(t *testing.T) {
	t.Parallel()
	w := resting(t, func(_ *box.Spec, c *box.Capabilities) { c.PausedLife = box.Span(20 * day) })
	since := w.facts.SuspendedSince
	w.pass(2 * time.Hour)
	w.memory(box.No)
	w.pass(17*day - 2*time.Hour)
	require.Equal(t, 1, w.did(box.StepResume))
	w.state(box.StateSuspended)
	w.memory(box.Yes)
	w.pass(time.Hour)
	w.memory(box.No)
	require.Equal(t, 2, w.did(box.StepDeepen))
	require.True(t, w.facts.SuspendedSince.Equal(since))

	// The renewal goes first where both are due.
	w = resting(t, func(s *box.Spec, c *box.Capabilities) {
		c.PausedLife, s.Policy.DeepenAfter = box.Span(20*day), box.Duration(17*day)
	})
	w.pass(17 * day)
	require.Equal(t, box.StepResume, w.log[0])
	require.Zero(t, w.did(box.StepDeepen))
}

// A deletion that is confirmed meanwhile goes on, whatever became of the memory.
func TestADeletionWhileTheMemoryIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *world, step box.Step){
		"it is given up": func(w *world, step box.Step) { w.finish(step) },
		"it fails":       func(w *world, step box.Step) { w.failed(step, box.ClassUnavailable) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := resting(t)
			token := w.requestDelete().Token
			w.now = w.facts.SuspendedSince.Add(time.Hour)
			step := w.step(box.StepDeepen)
			w.confirm(token)
			end(w, step)
			if last := w.settle(); last.Kind != box.StepFinish || w.exists {
				t.Fatalf("next %+v, steps %v", last, w.log)
			}
		})
	}
	t.Run("a failing one does not hide why a deletion is blocked", func(t *testing.T) {
		t.Parallel()
		w := resting(t)
		w.badStore = true
		w.fail[box.StepDeepen] = box.ClassUnavailable
		w.confirm(w.requestDelete().Token)
		w.settle()
		w.state(box.StateDeleteBlocked)
		blocked := w.facts.Failure
		require.Equal(t, box.StepVerifyExport, blocked.Step)
		for end := w.facts.SuspendedAt.Add(time.Hour - time.Minute); w.now.Before(end); {
			w.pass(time.Minute)
		}
		require.Zero(t, w.did(box.StepDeepen))
		w.facts.Failure = blocked // of whatever was tried last
		w.facts.StateSince = w.now
		w.pass(time.Minute)
		require.Equal(t, 1, w.did(box.StepDeepen))
		require.Equal(t, blocked, w.facts.Failure)
		w.state(box.StateDeleteBlocked)
	})
}

// How its provider is set up may change while a box lives: what counts is how it
// was at the suspend.
func TestARowThatChangesReachesTheNextSuspend(t *testing.T) {
	t.Parallel()
	for was, is := range map[box.Tri]box.Tri{box.Unknown: box.Yes, box.No: box.Yes, box.Yes: box.No} {
		c := laddered()
		c.Deepen = was
		w := newWorldAt(t, spec(), c)
		w.settle()
		w.now = w.now.Add(idle)
		step := w.step(box.StepSuspend)
		out := w.outcome(step)
		c.Deepen, c.MaxRun = is, box.Span(time.Hour)
		out.Capabilities = &c
		w.facts.Apply(step, out, w.now)
		w.pass(time.Hour)
		want := map[box.Tri]box.Tri{box.Yes: box.No, box.No: box.Yes}[is]
		w.memory(want)
		require.Zero(t, w.facts.Capabilities.MaxRun, "nothing else of it counts before the next box")
	}
}

// A box that is taken over was promised nothing yet.
func TestAnAdoptedBoxKeepsItsMemoryForTheWholeTime(t *testing.T) {
	t.Parallel()
	s := spec()
	s.Adopt = "stray"
	w := newWorldAt(t, s, laddered())
	w.stray, w.strayAge = box.PhaseSuspended, 10*day
	step := w.settle()
	w.state(box.StateSuspended)
	require.Equal(t, box.StepDeepen, step.Then)
	require.Equal(t, w.now.Add(time.Hour), step.At)
}

// A workflow that was lost reads the box first, and then gives the whole time.
func TestARebuiltBoxKeepsItsMemoryForTheWholeTime(t *testing.T) {
	t.Parallel()
	w := resting(t)
	since := w.facts.SuspendedSince
	w.now = w.now.Add(5 * time.Hour)
	w.rebuild()
	step := w.settle()
	require.Equal(t, box.StepDeepen, step.Then)
	require.Equal(t, w.now.Add(time.Hour), step.At)
	w.pass(time.Hour)
	w.memory(box.No)
	require.True(t, w.facts.SuspendedSince.Equal(since))
}
