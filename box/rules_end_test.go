package box_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func abandonAsk(force bool) box.AbandonAsk {
	return box.AbandonAsk{Request: box.Request{ID: "end", By: "ops"}, Reason: "the account is closed", Force: force}
}

func TestAbandonIsForWhatCannotBeHad(t *testing.T) {
	t.Parallel()
	failing := func(kind box.StepKind) func(*world) {
		return func(w *world) { w.fail[kind] = box.ClassUnauthorized; w.pass(2 * day) }
	}
	for name, row := range map[string]struct {
		reach func(*world)
		may   bool
	}{
		"a box that runs is within reach":          {func(*world) {}, false},
		"one that is suspended is within reach":    {func(w *world) { w.toSuspended() }, false},
		"one that is lost is not":                  {func(w *world) { w.toSuspended(); w.vanish() }, true},
		"one that cannot be suspended any more":    {func(w *world) { failing(box.StepSuspend)(w) }, true},
		"one that cannot be read any more":         {func(w *world) { w.facts.Look = true; failing(box.StepObserve)(w) }, true},
		"one whose deletion fails at the provider": {func(w *world) { w.toSuspended(); w.confirm(w.requestDelete().Token); failing(box.StepDelete)(w) }, true},
		"one whose deletion waits for an export":   {func(w *world) { w.badStore = true; w.toSuspended(); w.confirm(w.requestDelete().Token); w.settle() }, false},
		"one whose wake failed once is within reach": {func(w *world) {
			w.toSuspended()
			w.connect("t")
			w.failed(w.step(box.StepResume), box.ClassUnavailable)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			row.reach(w)
			err := w.facts.CheckAbandon(abandonAsk(false))
			if !row.may {
				refused(t, err, box.ClassFailedPrecondition, "request-delete", "force", "costing money")
			} else {
				require.NoError(t, err, w.told())
			}
			require.NoError(t, w.facts.CheckAbandon(abandonAsk(true)))
			w.facts.Abandon(abandonAsk(!row.may), w.now)
			end := w.settle()
			require.Equal(t, box.StepFinish, end.Kind)
			w.state(box.StateAbandoned)
			require.Empty(t, w.resultOf("end").Error)
			why := w.facts.WhyAt(w.now)
			require.Equal(t, box.ReasonAbandoned, why.Because.Code)
			require.Contains(t, why.Because.Text, "the account is closed")
			require.Contains(t, why.Because.Text, "may still exist and cost money")
			for _, check := range []error{
				w.facts.CheckConnect(box.ConnectRequest{Request: box.Request{ID: "x"}, HolderID: "h"}), w.facts.CheckResume(box.Request{ID: "x"}),
				w.facts.CheckReplace(box.Request{ID: "x"}), w.facts.CheckRequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "x"}}),
			} {
				refused(t, check, box.ClassFailedPrecondition, "may still exist", "another workspace id")
			}
		})
	}
}

func TestAnAbandonmentIsRecordedOrTakenBack(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"", "  ", "two\nlines", strings.Repeat("x", 501)} {
		w := lost(t)
		ask := abandonAsk(false)
		ask.Reason = reason
		refused(t, w.facts.CheckAbandon(ask), box.ClassInvalid, "reason: ")
	}
	t.Run("while it cannot be recorded the box is not forgotten", func(t *testing.T) {
		t.Parallel()
		w := lost(t)
		w.fail[box.StepAbandon] = box.ClassUnavailable
		w.facts.Abandon(abandonAsk(false), w.now)
		w.pass(time.Hour)
		w.state(box.StateLost)
		refused(t, w.facts.CheckReplace(box.Request{ID: "r"}), box.ClassFailedPrecondition, "being abandoned")
		delete(w.fail, box.StepAbandon)
		w.pass(time.Hour)
		w.state(box.StateAbandoned)
	})
	t.Run("one that the ledger refuses is answered, and the watch goes on", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.fail[box.StepAbandon] = box.ClassInvalid
		w.facts.Abandon(abandonAsk(true), w.now)
		w.settle()
		require.Equal(t, box.ClassInvalid, w.resultOf("end").Class)
		w.pass(idle)
		w.state(box.StateSuspended)
	})
	t.Run("it ends the wait of what runs, and answers what was asked", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.facts.Queue(box.Ask{Kind: box.AskReclaim, ID: "ask"})
		step := w.step(box.StepReclaim)
		require.False(t, box.Interrupts(w.facts, step))
		w.facts.Abandon(abandonAsk(true), w.now)
		require.True(t, box.Interrupts(w.facts, step))
		w.settle()
		w.state(box.StateAbandoned)
		require.Equal(t, box.ClassFailedPrecondition, w.resultOf("ask").Class)
	})
}

func (w *world) hold(on bool) {
	w.facts.SetHold(box.HoldSignal{On: on, By: "ops", Reason: "an incident"}, w.now)
}

func TestAHoldStopsWhatDestroys(t *testing.T) {
	t.Parallel()
	for name, reach := range map[string]func(*world){
		"a deletion of a suspended box":     func(w *world) { w.toSuspended(); w.hold(true); w.confirm(w.requestDelete().Token) },
		"a deletion of a running box":       func(w *world) { w.hold(true); w.confirm(w.requestDelete().Token) },
		"a hold that comes after the drain": func(w *world) { w.confirm(w.requestDelete().Token); w.step(box.StepVerifyExport); w.hold(true) },
		"a deletion by policy":              func(w *world) { w.hold(true); w.pass(32 * day) },
		"an undo window that ends":          func(w *world) { w.toSuspended(); w.requestUndo(box.Duration(day)); w.hold(true) },
		"a deletion that a person accepted without history": func(w *world) {
			w.blind()
			w.hold(true)
			w.waive(w.requestDelete().Token)
		},
		"a box that never answered": func(w *world) {
			w.toSuspended()
			w.vanish()
			w.deaf = true
			w.replace("r")
			w.step(box.StepAwaitReady)
			w.hold(true)
			w.confirm(w.requestDelete().Token)
		},
		"the next try of a deletion that failed": func(w *world) {
			w.toSuspended()
			w.confirm(w.requestDelete().Token)
			w.failed(w.step(box.StepDelete), box.ClassUnavailable)
			w.hold(true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := awake(t, deletes)
			w.events = 3
			reach(w)
			w.pass(60 * day) // world.check fails at a destruction
			require.True(t, w.exists, w.told())
			require.Equal(t, box.PhaseSuspended, w.phase, "it does not stay awake for as long as a hold lasts%s", w.told())
			require.Contains(t, w.facts.Flags(), "held")
			why := w.facts.WhyAt(w.now)
			require.Equal(t, box.ReasonOnHold, why.NextReason.Code, w.told())
			require.Equal(t, box.StepDelete, why.Next, "it says what would happen")
			require.Contains(t, why.NextReason.Text, "ops")
			require.Contains(t, why.NextReason.Text, "an incident")
			require.Contains(t, why.StoppedBy, "hold off")
			w.hold(false)
			w.pass(2 * day)
			w.state(box.StateBoxArchived)
			require.NotContains(t, w.facts.Flags(), "held")
		})
	}
}

// A box whose deletion waits for a hold is suspended meanwhile, also when that
// does not work at once.
func TestAHoldTriesToSuspendWhatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec())
	w.deaf = true
	w.step(box.StepAwaitReady)
	w.hold(true)
	w.fail[box.StepSuspend] = box.ClassUnavailable
	w.confirm(w.requestDelete().Token)
	w.pass(time.Hour)
	require.Equal(t, box.PhaseRunning, w.phase)
	delete(w.fail, box.StepSuspend)
	w.pass(time.Hour)
	require.Equal(t, box.PhaseSuspended, w.phase, w.told())
	require.True(t, w.exists)
}

func TestAHoldStopsNothingElse(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.hold(true)
	since := w.facts.Hold.Since
	w.now = w.now.Add(time.Minute)
	w.hold(true)
	require.Equal(t, since, w.facts.Hold.Since, "a repeat is no new hold")
	refused(t, w.facts.CheckAsk(box.Ask{Kind: box.AskReclaim, ID: "r"}), box.ClassFailedPrecondition, "dry run", "lifted")
	require.NoError(t, w.facts.CheckAsk(box.Ask{Kind: box.AskReclaim, ID: "r", Reclaim: box.ReclaimRequest{DryRun: true}}))
	w.events = 4
	notice := w.toSuspended()
	require.Equal(t, 1, w.did(box.StepExport), "exports go on")
	require.Zero(t, w.did(box.StepReclaim), "nothing is reclaimed on the way")
	require.Contains(t, w.facts.StatusAt(w.now).Reason.Text, "nothing was reclaimed")
	w.until(notice, 0)
	w.settle()
	require.Equal(t, 1, w.did(box.StepNotify), "notices go on")
	w.connect("tab")
	w.settle()
	w.state(box.StateRunning)
}

func TestAHoldThatComesWhileAPassRuns(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.facts.Queue(box.Ask{Kind: box.AskReclaim, ID: "a"})
	w.hold(true)
	require.Equal(t, box.ClassFailedPrecondition, w.resultOf("a").Class)
	w.hold(false)
	w.now = w.now.Add(idle)
	step := w.step(box.StepReclaim)
	require.False(t, box.Interrupts(w.facts, step))
	w.hold(true)
	require.True(t, box.Interrupts(w.facts, step))
	w.settle()
	w.state(box.StateSuspended)
}

func TestAHoldsTextIsCut(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.facts.SetHold(box.HoldSignal{On: true, By: "a\x00b\nc", Reason: strings.Repeat("é", 1000)}, w.now)
	require.Equal(t, "a b c", w.facts.Hold.By)
	require.Len(t, []rune(w.facts.Hold.Reason), 256)
}
