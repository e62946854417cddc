package box_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// A step that no worker took says nothing of the box.

// untaken ends a step that waited for a worker in vain.
func (w *world) untaken(step box.Step) {
	w.now = w.now.Add(2 * time.Minute)
	w.facts.Apply(step, box.Outcome{Failed: &box.StepFailure{
		Class: box.ClassUnavailable, NotBegun: true, Unserved: true, Message: "no worker serves " + w.facts.Spec.Provider,
	}}, w.now)
}

// next waits for what is due and begins it.
func (w *world) next(kind box.StepKind) box.Step {
	w.t.Helper()
	if f := w.facts.Failure; f != nil && f.RetryAt.After(w.now) {
		w.now = f.RetryAt
	}
	return w.step(kind)
}

func TestABoxThatWasNeverMadeIsDeletedWithoutItsProvider(t *testing.T) {
	t.Parallel()
	for name, confirm := range map[string]func(w *world){
		"confirmed between two tries": func(w *world) {
			w.untaken(w.next(box.StepCreate))
			w.untaken(w.next(box.StepCreate))
			w.confirm(w.requestDelete().Token)
		},
		"confirmed while the create waits for a worker": func(w *world) {
			step := w.next(box.StepCreate)
			w.confirm(w.requestDelete().Token)
			w.untaken(step)
		},
		"asked for again after the store did not answer": func(w *world) {
			w.untaken(w.next(box.StepCreate))
			w.confirm(w.requestDelete().Token)
			step := w.next(box.StepDelete)
			w.facts.Apply(step, box.Outcome{Failed: &box.StepFailure{Class: box.ClassUnavailable, NotBegun: true, Message: "the store does not answer"}}, w.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, spec())
			confirm(w)
			step := w.next(box.StepDelete)
			require.True(t, step.AnyWorker, "no worker of the instance is needed for what never was%s", w.told())
			w.finish(step)
			w.state(box.StateBoxArchived)
			require.Zero(t, w.did(box.StepExport))
		})
	}
}

// The tombstone may be written and its answer lost: who wrote it, or any other
// worker of the store, can say so, and no provider can.
func TestAnEndWithoutAProviderWhoseAnswerIsLostNeedsNoneEither(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec())
	w.untaken(w.next(box.StepCreate))
	w.confirm(w.requestDelete().Token)
	for range 3 {
		w.failed(w.next(box.StepDelete), box.ClassDeadlineExceeded)
		w.state(box.StateDeleting)
		require.True(t, w.facts.Deletion.Unclear)
	}
	step := w.next(box.StepDelete)
	require.True(t, step.AnyWorker, "the provider was told nothing%s", w.told())
	w.untaken(step)
	w.state(box.StateDeleting)
	step = w.next(box.StepDelete)
	require.True(t, step.AnyWorker)
	w.finish(step)
	w.state(box.StateBoxArchived)
}

func TestABoxThatMayHaveBeenMadeWaitsForAWorkerOfItsProvider(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(w *world){
		"a create ended without an answer": func(w *world) {
			w.untaken(w.next(box.StepCreate))
			w.failed(w.next(box.StepCreate), box.ClassDeadlineExceeded)
		},
		"its ledger could not be read": func(w *world) {
			step := w.next(box.StepCreate)
			w.facts.Apply(step, box.Outcome{Failed: &box.StepFailure{Class: box.ClassUnavailable, NotBegun: true, Message: "the store does not answer"}}, w.now)
		},
		"a rebuild": func(w *world) {
			w.facts.Revive(w.now)
			w.untaken(w.next(box.StepCreate))
		},
		"facts of a release that did not count": func(w *world) {
			w.untaken(w.next(box.StepCreate))
			w.facts.Unserved = 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, spec())
			before(w)
			w.confirm(w.requestDelete().Token)
			step := w.next(box.StepDelete)
			require.False(t, step.AnyWorker, "only its provider can say whether it is there")
			moves := 0
			for range 5 {
				w.untaken(step)
				w.state(box.StateDeleting)
				if moves == 0 {
					moves = len(w.facts.Transitions)
				}
				require.Len(t, w.facts.Transitions, moves, "it goes round%s", w.told())
				why := w.facts.WhyAt(w.now)
				require.Contains(t, why.NextReason.Text, "no worker serves")
				require.Contains(t, why.StoppedBy, "cancel-delete")
				require.LessOrEqual(t, w.facts.Failure.RetryAt.Sub(w.now), 10*time.Minute, "a worker that is up again is waited for, not a long pause")
				step = w.next(box.StepDelete)
			}
			require.True(t, w.facts.Failure.Unserved)
			w.finish(step)
			w.state(box.StateBoxArchived)
		})
	}
}

func TestADeletionThatNoWorkerTookCanBeTakenBack(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.toSuspended()
	w.confirm(w.requestDelete().Token)
	w.untaken(w.step(box.StepDelete))
	w.state(box.StateDeleting)
	require.NoError(t, w.facts.CheckSwitch(box.SwitchAsk{Request: box.Request{ID: "f"}, On: true}), "the provider was not told")
	require.ErrorContains(t, w.facts.CheckConnect(box.ConnectRequest{Request: box.Request{ID: "c"}, HolderID: "h"}), "cancel-delete first")
	require.ErrorContains(t, w.facts.CheckRequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d"}}), "cancel-delete takes it back")
	w.freeze("f", true)
	w.now = w.facts.Failure.RetryAt
	w.settle()
	w.state(box.StateDeleting)
	require.True(t, w.exists, "frozen: it is not tried again")
	w.freeze("g", false)
	w.cancel()
	w.settle()
	require.True(t, w.exists)
	require.Nil(t, w.facts.Deletion)
	w.state(box.StateSuspended)

	w.confirm(w.requestDelete().Token)
	w.step(box.StepDelete)
	w.cancel()
	require.NotNil(t, w.facts.Deletion, "while it is under way a worker may have taken it")
}

func TestABoxWithoutAWorkerIsWaitedForAndNotTakenForIll(t *testing.T) {
	t.Parallel()
	t.Run("one that starts", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.deaf = true
		w.finish(w.step(box.StepCreate))
		w.state(box.StateStarting)
		for range 8 {
			w.untaken(w.next(box.StepAwaitReady))
		}
		require.NotContains(t, w.facts.Flags(), "unhealthy")
		require.Contains(t, w.facts.Flags(), "needs-attention")
		w.deaf = false
		w.now = w.facts.Failure.RetryAt
		w.settle()
		w.state(box.StateRunning)
	})
	t.Run("one that is woken for the export of a deletion", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		w.facts.Receipt = box.Receipt{}
		w.confirm(w.requestDelete().Token)
		for range 8 {
			w.untaken(w.next(box.StepResume))
			w.state(box.StateExporting)
		}
	})
	t.Run("one that is suspended", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.now = w.now.Add(idle)
		w.untaken(w.step(box.StepSuspend))
		require.False(t, w.facts.Look, "nothing was done, so there is nothing to look at")
		w.connect("tab")
		w.settle()
		w.state(box.StateRunning)
	})
}

func TestABoxWithoutAWorkerCanBeAbandoned(t *testing.T) {
	t.Parallel()
	abandon := box.AbandonAsk{Request: box.Request{ID: "a", By: "ops"}, Reason: "the account is closed"}
	w := newWorld(t, spec())
	step := w.next(box.StepCreate)
	early := w.facts.CheckAbandon(abandon)
	require.ErrorContains(t, early, "a worker may be making it now", "a worker may take it at any moment")
	require.NotContains(t, early.Error(), "within reach", "nobody knows of a box")
	w.untaken(step)
	require.NoError(t, w.facts.CheckAbandon(abandon))
	w.facts.Abandon(abandon, w.now)
	step = w.next(box.StepAbandon)
	require.True(t, step.AnyWorker, "it is a word in the ledger, which needs no provider")
	w.finish(step)
	w.state(box.StateAbandoned)
	result, done := w.facts.ResultFor("a")
	require.True(t, done)
	require.Empty(t, result.Error)
	text := w.facts.WhyAt(w.now).Because.Text
	require.Contains(t, text, "the account is closed")
	require.NotContains(t, text, "may still exist", "no worker ever took a step of it")
	require.NotContains(t, w.facts.WhyAt(w.now).NextReason.Text, "may still exist")
	require.NotContains(t, w.facts.AbandonAnswer().Text, "may still exist")

	late := newWorld(t, spec()) // asked for while the next try waits for a worker
	late.untaken(late.next(box.StepCreate))
	step = late.next(box.StepCreate)
	late.facts.Abandon(abandon, late.now)
	late.untaken(step)
	step = late.next(box.StepAbandon)
	require.True(t, step.AnyWorker)
	late.finish(step)
	require.NotContains(t, late.facts.WhyAt(late.now).Because.Text, "may still exist")

	made := awake(t)
	made.now = made.now.Add(idle)
	made.untaken(made.step(box.StepQuiesce))
	require.NoError(t, made.facts.CheckAbandon(abandon), "nobody can reach it")
	made.facts.Abandon(abandon, made.now)
	step = made.next(box.StepAbandon)
	require.True(t, step.AnyWorker)
	made.finish(step)
	require.Contains(t, made.facts.WhyAt(made.now).Because.Text, "may still exist")
}

// Before the first step was waited for in vain, or taken, nothing is known of a
// box, and nothing is said as though one were there.
func TestWhatIsSaidOfABoxThatNobodyKnows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec())
	step := w.next(box.StepCreate)
	loss := w.requestDelete()
	require.Contains(t, loss.NotExported[0], "no box of it is known")
	w.confirm(loss.Token)
	require.Contains(t, w.facts.WhyAt(w.now).NextReason.Text, "nobody knows of a box")
	w.untaken(step)
	require.Contains(t, w.facts.WhyAt(w.now).NextReason.Text, "no worker")

	forced := newWorld(t, spec())
	step = forced.next(box.StepCreate)
	forced.facts.Abandon(box.AbandonAsk{Request: box.Request{ID: "a", By: "ops"}, Reason: "misspelt", Force: true}, forced.now)
	require.Contains(t, forced.facts.AbandonAnswer().Text, "if it has a box, that may still exist")
	forced.untaken(step)
	forced.finish(forced.next(box.StepAbandon))
	text := forced.facts.WhyAt(forced.now).Because.Text
	require.Contains(t, text, "there is no box")
	require.NotContains(t, text, "may still exist")

	unmade := newWorld(t, spec())
	unmade.untaken(unmade.next(box.StepCreate))
	require.Contains(t, unmade.requestDelete().NotExported[0], "so there is no box")

	require.Contains(t, box.LedgerAbandonment{}.LeavesBox(), "if it has a box")
	require.Contains(t, box.LedgerAbandonment{Ref: box.Ref{ID: "1"}}.LeavesBox(), "the box may still exist")
}

func TestWhyNamesTheMissingWorkerAndTheWayOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec())
	w.untaken(w.next(box.StepCreate))
	why := w.facts.WhyAt(w.now)
	require.Contains(t, why.NextReason.Text, "no worker serves")
	require.True(t, strings.Contains(why.StoppedBy, "request-delete") && strings.Contains(why.StoppedBy, "abandon"), why.StoppedBy)
}

func TestAConnectCanAskForANewLook(t *testing.T) {
	t.Parallel()
	w := awake(t)
	ask := func(id string, within box.Duration) box.ConnectAnswer {
		t.Helper()
		r := box.ConnectRequest{Request: box.Request{ID: id}, HolderID: "tab", LookWithin: within}
		require.NoError(t, w.facts.CheckConnect(r))
		return w.facts.Connect(r, w.now)
	}
	w.now = w.now.Add(time.Minute)
	answer := ask("a", 0)
	require.Equal(t, box.Duration(time.Minute), answer.Seen.Age)
	require.False(t, w.facts.Look, "nobody asked for one")
	ask("b", box.Duration(time.Minute))
	require.False(t, w.facts.Look, "equal is new enough")
	answer = ask("c", box.Duration(time.Minute)-1)
	require.True(t, w.facts.Look)
	require.Equal(t, answer.Seen, ask("c", box.Duration(time.Minute)-1).Seen, "a repeat is told too")
	before := w.did(box.StepObserve)
	w.settle()
	require.Equal(t, before+1, w.did(box.StepObserve))
	w.state(box.StateRunning)
	require.Zero(t, ask("d", 1).Seen.Age)
	require.Error(t, w.facts.CheckConnect(box.ConnectRequest{Request: box.Request{ID: "e"}, HolderID: "tab", LookWithin: box.Never}))

	w.facts.Release("tab", w.now)
	w.toSuspended()
	w.now = w.now.Add(time.Hour)
	ask("f", 1)
	require.False(t, w.facts.Look, "the wake looks by itself")
}
