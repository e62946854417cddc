package box_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// What a reading of the whole found, one test for each kind of fault.

// A user came to a wake of ours, worked, and the workflow was lost: no export
// covers what they did, whatever the ledger says of the suspend before.
func TestAUserInAMaintenanceWakeIsNotForgottenByARebuild(t *testing.T) {
	t.Parallel()
	c := row()
	c.PausedLife = box.Span(20 * day)
	for _, noted := range []bool{false, true} {
		w := newWorldAt(t, spec(), c)
		w.toSuspended()
		w.now = w.now.Add(17 * day)
		came := false
		w.between = func(step box.Step) {
			if !came && step.Kind == box.StepResume {
				came = true
				w.connect("tab")
			}
		}
		if noted {
			w.settle()
		} else {
			for w.facts.State != box.StateRunning {
				w.turn()
			}
		}
		w.state(box.StateRunning)
		w.work(false)
		w.phase = box.PhaseSuspended // by its provider, before anybody looks
		w.between = nil
		w.rebuild()
		w.settle()
		require.True(t, !w.facts.StatusAt(w.now).ExportCovers || w.stored[w.digest()], "noted %v: it is called covered and is nowhere", noted)
		if noted {
			require.True(t, w.facts.SuspendedSince.After(w.now.Add(-time.Hour)), "the paused clock is that of the new suspend: %s", w.facts.SuspendedSince)
		}
	}
}

// Neither a deletion that waits nor a notice that nobody takes lets the provider
// destroy what must be kept.
func TestARenewalIsHeldUpByNothing(t *testing.T) {
	t.Parallel()
	for name, wear := range map[string]func(w *world){
		"an undo window that is frozen": func(w *world) {
			w.requestUndo(box.Duration(day))
			w.freeze("f", true)
		},
		"a hold over an agreed deletion": func(w *world) {
			w.facts.SetHold(box.HoldSignal{On: true}, w.now)
			w.requestUndo(box.Duration(day))
		},
		"a notice that nobody takes": func(w *world) {
			w.fail[box.StepNotify] = box.ClassUnavailable
			w.facts.Policy.OnExpiry = box.OnExpiryDelete
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := row()
			c.PausedLife = box.Span(20 * day)
			w := newWorldAt(t, spec(), c)
			w.toSuspended()
			wear(w)
			for range 60 {
				w.pass(day)
				require.Less(t, w.now.Sub(w.facts.SuspendedAt), 20*day, "the provider destroyed it in %s%s", w.facts.State, w.told())
			}
			require.True(t, w.exists)
		})
	}
}

func TestAHoldOverAFailingDeletionSurvivesARebuild(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.toSuspended()
	w.fail[box.StepDelete] = box.ClassUnavailable
	w.confirm(w.requestDelete().Token)
	w.settle()
	w.state(box.StateDeleting)
	w.facts.SetHold(box.HoldSignal{On: true, By: "ops"}, w.now)
	w.settle()
	delete(w.fail, box.StepDelete)
	w.rebuild()
	w.pass(day)
	require.True(t, w.exists, "destroyed under a hold%s", w.told())
	require.Contains(t, w.facts.Flags(), "held")
}

func TestAPolicyThatDeletesNoMoreTakesItsDeletionBack(t *testing.T) {
	t.Parallel()
	s := spec()
	s.Policy.OnExpiry = box.OnExpiryDelete
	w := newWorld(t, s)
	w.until(w.toSuspended(), 0)
	w.until(w.settle(), 0)
	w.settle()
	w.state(box.StateUndoWindow)
	r := box.SetPolicyAsk{Request: box.Request{ID: "p"}, Policy: box.Policy{OnExpiry: box.OnExpiryAsk}}
	require.NoError(t, w.facts.CheckSetPolicy(r))
	w.facts.SetPolicy(r, w.now)
	w.pass(2 * day)
	require.True(t, w.exists)
	require.Nil(t, w.facts.Deletion)
}

func TestALostBoxThatIsThereAgainStartsItsClocksAnew(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.toSuspended()
	w.now = w.now.Add(5 * day)
	w.vanish()
	w.state(box.StateLost)
	w.exists, w.phase = true, box.PhaseRunning
	w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
	w.settle()
	w.state(box.StateRunning)
	require.True(t, w.facts.SuspendedSince.IsZero())
	w.pass(10 * time.Minute)
	w.state(box.StateRunning) // no wall of five days ago

	w = awake(t)
	w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "x"})
	w.settle()
	w.work(false)
	w.vanish()
	require.False(t, w.facts.StatusAt(w.now).ExportCovers, "who knows what was said last")
}

func TestAUserDoesNotWaitBehindAFailedRenewal(t *testing.T) {
	t.Parallel()
	c := row()
	c.PausedLife = box.Span(20 * day)
	w := newWorldAt(t, spec(), c)
	w.toSuspended()
	w.fail[box.StepResume] = box.ClassExhausted
	w.pass(17*day + 12*time.Hour)
	delete(w.fail, box.StepResume)
	w.connect("tab")
	w.settle()
	w.state(box.StateRunning)
}

func TestAnAbandonmentThatADeletionOvertookIsAnswered(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.toSuspended()
	w.confirm(w.requestDelete().Token)
	step := w.step(box.StepDelete)
	w.facts.Abandon(box.AbandonAsk{Request: box.Request{ID: "a"}, Reason: "gone", Force: true}, w.now)
	w.finish(step)
	w.state(box.StateBoxArchived)
	result, ok := w.facts.ResultFor("a")
	require.True(t, ok)
	require.Equal(t, box.ClassFailedPrecondition, result.Class)
}
