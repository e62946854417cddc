package box_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// Where a rule begins and ends, to the moment. Each was a change of one operator
// that no other test noticed; see docs/mutation.md.

// late is how late a deadline may be noticed before an outage is assumed.
const late = time.Minute

func TestBackOff(t *testing.T) {
	t.Parallel()
	for kind, want := range map[box.StepKind][]time.Duration{
		box.StepDelete:       {time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 32 * time.Minute, 64 * time.Minute, 128 * time.Minute, 256 * time.Minute, 512 * time.Minute, 1024 * time.Minute, day, day},
		box.StepQuiesce:      {2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, time.Minute, time.Minute},
		box.StepReclaim:      {2 * time.Second},
		box.StepExport:       {2 * time.Second, 4 * time.Second},
		box.StepUndrain:      {2 * time.Second, 4 * time.Second},
		box.StepResume:       {5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute},
		box.StepAwaitReady:   {5 * time.Second, 10 * time.Second},
		box.StepCreate:       {10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 320 * time.Second, 10 * time.Minute, 10 * time.Minute},
		box.StepSuspend:      {10 * time.Second, 20 * time.Second},
		box.StepObserve:      {10 * time.Second, 20 * time.Second},
		box.StepNotify:       {10 * time.Second, 20 * time.Second},
		box.StepVerifyExport: {10 * time.Second, 20 * time.Second},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			failing := func() (*box.Facts, func(box.StepFailure)) {
				f := box.NewFacts(spec(), row(), noon())
				f.State, f.Sequence, f.Deletion = box.StateRunning, &box.Sequence{}, &box.Deletion{Committed: true}
				return &f, func(why box.StepFailure) {
					f.Apply(box.Step{Kind: kind, Purpose: box.PurposeExplicit}, box.Outcome{Failed: &why}, noon())
				}
			}
			f, fail := failing()
			for i, wait := range want {
				fail(box.StepFailure{Class: box.ClassUnavailable, NotBegun: kind == box.StepQuiesce})
				require.NotNil(t, f.Failure, "try %d", i+1)
				require.Equal(t, i+1, f.Failure.Count)
				require.Equal(t, noon().Add(wait), f.Failure.RetryAt, "try %d", i+1)
			}
			f, fail = failing()
			fail(box.StepFailure{Class: box.ClassExhausted, RetryAfter: box.Duration(20 * time.Hour), NotBegun: true})
			require.Equal(t, noon().Add(20*time.Hour), f.Failure.RetryAt, "what the other side asks for is waited for")
			f, fail = failing()
			fail(box.StepFailure{Class: box.ClassExhausted, RetryAfter: box.Duration(3650 * day), NotBegun: true})
			require.Equal(t, noon().Add(day), f.Failure.RetryAt, "but not for ever: nothing is given up because of what it says")
		})
	}
}

func TestAnAskThatWaits(t *testing.T) {
	t.Parallel()
	w := awake(t)
	ask := box.Ask{Kind: box.AskReclaim, ID: "q"}
	w.facts.Queue(ask)
	w.facts.Queue(ask) // again, before it was answered
	_, done := w.facts.ResultFor("q")
	require.False(t, done, "it is under way, not forgotten")
	w.settle()
	result, done := w.facts.ResultFor("q")
	require.True(t, done)
	require.NotNil(t, result.Reclaim)
	require.Equal(t, 1, w.did(box.StepReclaim))
}

func TestAnOutageBeginsAMinuteAfterADeadline(t *testing.T) {
	t.Parallel()
	t.Run("of a hold", func(t *testing.T) {
		t.Parallel()
		for after, want := range map[time.Duration]time.Duration{late: idle - 2*time.Minute - late, late + 1: idle} {
			w := awake(t)
			w.connect("tab")
			w.settle()
			require.Equal(t, want, w.after(2*time.Minute+after).At.Sub(w.now), "after %s", after)
		}
	})
	t.Run("of an expiry that deletes", func(t *testing.T) {
		t.Parallel()
		for after, want := range map[time.Duration]box.State{late: box.StateUndoWindow, late + 1: box.StateSuspended} {
			w := awake(t, func(s *box.Spec) { s.Policy.OnExpiry = box.OnExpiryDelete })
			w.now = w.toSuspended().At // the notice
			w.now = w.settle().At      // the expiry
			w.now = w.now.Add(after)
			w.settle()
			w.state(want)
		}
	})
}

func TestGivingUpOnABoxThatIsNotReady(t *testing.T) {
	t.Parallel()
	starting := func(t *testing.T, maxRun box.Duration, held bool) *world {
		t.Helper()
		s := spec()
		s.Policy.MaxRun = maxRun
		w := newWorld(t, s)
		w.deaf = true
		w.turn()
		w.state(box.StateStarting)
		if held {
			w.facts.Connect(box.ConnectRequest{Request: box.Request{ID: "c"}, HolderID: "tab", Lease: box.Duration(100 * day)}, w.now)
		}
		return w
	}
	t.Run("comes with the fifth try when nobody waits", func(t *testing.T) {
		t.Parallel()
		w := starting(t, 0, false)
		w.pass(day)
		w.state(box.StateSuspended)
		require.Equal(t, 5, w.did(box.StepAwaitReady))
	})
	t.Run("never comes for who waits, where there is no hard maximum", func(t *testing.T) {
		t.Parallel()
		w := starting(t, box.Never, true)
		w.pass(10 * day)
		w.state(box.StateStarting)
	})
	t.Run("comes at the hard maximum, to the moment", func(t *testing.T) {
		t.Parallel()
		for after, want := range map[time.Duration]box.State{12*time.Hour - 1: box.StateStarting, 12 * time.Hour: box.StateSuspending} {
			w := starting(t, 0, true)
			w.turn() // the first try fails
			w.facts.Advance(w.facts.StateSince.Add(after))
			w.state(want)
		}
	})
}

func TestWhatADeletionShowsOnItsWay(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.toSuspended()
	loss := w.requestDelete()
	w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
	w.state(box.StateExporting) // without an undo window there is none to see

	w = awake(t)
	answer := w.facts.SetPolicy(box.SetPolicyAsk{Request: box.Request{ID: "p"}, Policy: box.Policy{PausedTTL: box.Never}}, w.now)
	require.Contains(t, answer.Risks, "paused_ttl is never: a forgotten box is paid for without end")
}

func TestRepairsAreForgottenAfterAnHour(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]box.State{time.Hour: box.StateSuspended, time.Hour + 1: box.StateRunning} {
		w := awake(t)
		for range 3 {
			w.connect("tab")
			w.phase = box.PhaseFailed
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
			w.settle()
			w.state(box.StateRunning)
		}
		w.facts.Connect(box.ConnectRequest{Request: box.Request{ID: "long"}, HolderID: "tab", Lease: box.Duration(3 * time.Hour)}, w.now)
		w.settle()
		w.now = w.now.Add(after)
		w.phase = box.PhaseFailed
		w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
		w.settle()
		w.state(want)
	}
}
