package box_test

import (
	"encoding/json"
	"fmt"
	"strings"
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

// Ten updates at most are under way at once, and each waits for its own result:
// none may be pushed out of what is kept before its owner read it.
func TestEveryRequestThatWaitsGetsItsAnswer(t *testing.T) {
	t.Parallel()
	w := awake(t)
	var taken []string
	for i := range 10 {
		ask := box.Ask{Kind: box.AskReclaim, ID: fmt.Sprintf("r-%d", i)}
		err := w.facts.CheckAsk(ask)
		if err != nil {
			require.Equal(t, box.ClassExhausted, box.ClassOf(err))
			require.ErrorContains(t, err, "wait", "what is wrong")
			require.ErrorContains(t, err, "again", "what to do")
			continue
		}
		w.facts.Queue(ask)
		taken = append(taken, ask.ID)
	}
	require.GreaterOrEqual(t, len(taken), 4, "some are served")
	w.facts.Queue(box.Ask{Kind: box.AskScan, ID: "scan:d-1"}) // which no check precedes
	taken = append(taken, "scan:d-1")
	w.exists = false
	w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
	w.settle()
	w.state(box.StateLost)
	for _, id := range taken {
		_, done := w.facts.ResultFor(id)
		require.True(t, done, "whoever asked %s waits for ever", id)
	}
}

// Whatever is said in a signal, which nobody checks before it is taken, the
// facts stay small: they are the input of the next run.
func TestWhatASignalSaysIsCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x\n", 1<<19)
	for name, say := range map[string]func(w *world){
		"a token that is refused": func(w *world) { w.facts.ConfirmDelete(box.ConfirmDelete{Token: long, By: "ana"}, w.now) },
		"who confirms, refused":   func(w *world) { w.facts.ConfirmDelete(box.ConfirmDelete{Token: "t", By: long}, w.now) },
		"who confirms": func(w *world) {
			w.facts.ConfirmDelete(box.ConfirmDelete{Token: w.requestDelete().Token, By: long}, w.now)
		},
		"who cancels nothing":      func(w *world) { w.facts.CancelDelete(box.CancelDelete{By: long}, w.now) },
		"who cancels":              func(w *world) { w.requestDelete(); w.facts.CancelDelete(box.CancelDelete{By: long}, w.now) },
		"where an operation is of": func(w *world) { w.facts.ReportActivity(box.ActivitySignal{Begun: []string{"op"}, Origin: long}, w.now) },
		"who holds":                func(w *world) { w.facts.SetHold(box.HoldSignal{On: true, By: long, Reason: long}, w.now) },
		"what a step failed with": func(w *world) {
			w.facts.Apply(box.Step{Kind: box.StepObserve}, box.Outcome{Failed: &box.StepFailure{Class: box.ClassInternal, Message: long}}, w.now)
		},
		"what a provider says of it": func(w *world) {
			w.facts.Apply(box.Step{Kind: box.StepObserve}, box.Outcome{Observation: box.Observation{Ref: w.facts.Ref, Phase: box.PhaseSuspended, Evidence: long}}, w.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			say(w)
			data, err := json.Marshal(w.facts)
			require.NoError(t, err)
			require.Less(t, len(data), 16<<10)
		})
	}
}

// A box with the most holders there can be is held by those it has.
func TestOperationsOfAFullBoxAreRenewed(t *testing.T) {
	t.Parallel()
	w := awake(t)
	var ids []string
	for i := range 300 {
		ids = append(ids, fmt.Sprintf("op-%d", i))
	}
	w.facts.ReportActivity(box.ActivitySignal{Begun: ids}, w.now)
	full := len(w.facts.Holders)
	require.Equal(t, 256, full)
	for range 5 {
		w.now = w.now.Add(time.Minute)
		w.facts.ReportActivity(box.ActivitySignal{Begun: ids}, w.now)
		w.settle()
		require.Len(t, w.facts.Holders, full)
		require.Equal(t, w.now.Add(2*time.Minute), w.facts.Holders[0].Until)
	}
}

// An operation that ends is no connection that ends, whatever its id.
func TestAnOperationThatEndsReleasesNoConnection(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.connect("same-id")
	w.facts.ReportActivity(box.ActivitySignal{Ended: []string{"same-id"}}, w.now)
	require.Len(t, w.facts.Holders, 1)
	w.facts.Release("same-id", w.now)
	require.Empty(t, w.facts.Holders)
}

// A hard maximum that is made shorter gives a fresh window first, and never
// more than there was: the provider's own end comes no later for it.
func TestAShorterMaximumLengthensNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		native time.Duration
		at     time.Duration
		change box.Policy
		want   time.Duration
	}{
		"a fresh window":                                {0, 11 * time.Hour, box.Policy{MaxRun: box.Duration(time.Hour)}, 11*time.Hour + 15*time.Minute},
		"shortly before the end that there was":         {0, 12*time.Hour - time.Minute, box.Policy{MaxRun: box.Duration(time.Hour)}, 12 * time.Hour},
		"shortly before the provider's end":             {time.Hour, 44 * time.Minute, box.Policy{MaxRun: box.Duration(30 * time.Minute)}, 45 * time.Minute},
		"a margin that is wider now":                    {time.Hour, 25 * time.Minute, box.Policy{DeadMan: box.Duration(40 * time.Minute)}, 40 * time.Minute},
		"a margin that is wider now, shortly before it": {time.Hour, 40 * time.Minute, box.Policy{DeadMan: box.Duration(40 * time.Minute)}, 45 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := row()
			c.MaxRun = box.Span(tt.native)
			w := newWorldAt(t, spec(), c)
			w.settle()
			began := w.now
			w.connect("tab")
			w.facts.Holders[0].Until = w.now.Add(day)
			w.now = began.Add(tt.at)
			w.policy("p", tt.change)
			step := w.settle()
			require.Equal(t, tt.want, step.At.Sub(began), "%+v", step)
		})
	}
}

// A change of who leads is as little retroactive as one of the idle time.
func TestAChangeOfTheLeadGivesAFreshWindow(t *testing.T) {
	t.Parallel()
	c := row()
	c.NativeIdle, c.NativeAdjust = box.Yes, box.Yes
	s := spec()
	s.Policy.Lead = box.LeadProvider
	w := newWorldAt(t, s, c)
	w.settle()
	w.now = w.now.Add(idle + 30*time.Second)
	w.policy("p", box.Policy{Lead: box.LeadOurs})
	step := w.settle()
	w.state(box.StateRunning)
	require.Equal(t, w.now.Add(idle), step.At, "%+v", step)
}

// Frozen for longer than the hard maximum, it is not suspended under its user
// at the thaw: that clock starts afresh too, up to the provider's own end.
func TestAThawStartsTheHardMaximumAfresh(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ native, frozen, want time.Duration }{
		"as long as the policy says":  {0, 300 * day, 300*day + 12*time.Hour},
		"not past the provider's end": {20 * time.Hour, 10 * time.Hour, 20*time.Hour - 15*time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := row()
			c.MaxRun = box.Span(tt.native)
			s := spec()
			s.Policy.Idle = box.Never
			w := newWorldAt(t, s, c)
			w.settle()
			began := w.now
			w.freeze("f1", true)
			w.settle()
			w.now = w.now.Add(tt.frozen)
			w.freeze("f2", false)
			step := w.settle()
			w.state(box.StateRunning)
			require.Equal(t, tt.want, step.At.Sub(began), "%+v", step)
		})
	}
}

// Rule 5 holds for a box that came up without us, too: whoever connects is told
// to come again until its agent-server answers.
func TestABoxThatCameUpWithoutUsIsNotRunningBeforeItAnswers(t *testing.T) {
	t.Parallel()
	for name, reach := range map[string]func(w *world){
		"suspended":   func(w *world) { w.toSuspended() },
		"awaiting":    func(w *world) { w.toAwaiting() },
		"undo window": func(w *world) { w.toSuspended(); w.requestUndo(box.Duration(day)); w.settle() },
		"rebuilt":     func(w *world) { w.toSuspended(); w.rebuild() },
		"lost": func(w *world) {
			w.exists = false
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
			w.settle()
			w.state(box.StateLost)
			w.exists = true
		},
	} {
		for _, answers := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, it answers later: %v", name, answers), func(t *testing.T) {
				t.Parallel()
				w := awake(t)
				reach(w)
				w.phase, w.deaf = box.PhaseRunning, true
				w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
				w.settle()
				w.state(box.StateStarting)
				require.False(t, w.facts.StatusAt(w.now).ExportCovers, "it may have been used")
				r := box.ConnectRequest{Request: box.Request{ID: "c"}, HolderID: "tab"}
				require.NoError(t, w.facts.CheckConnect(r))
				require.Positive(t, w.facts.Connect(r, w.now).RetryAfter)
				if answers {
					w.pass(40 * time.Second)
					w.deaf = false
					w.pass(time.Minute)
					w.state(box.StateRunning)
					require.True(t, w.facts.AwakeSince.After(w.now.Add(-time.Minute)), "its clocks start when it answers")
					return
				}
				w.pass(13 * time.Hour) // it does not cost for ever
				require.Equal(t, box.PhaseSuspended, w.phase)
				require.Contains(t, w.facts.Flags(), "unhealthy")
			})
		}
	}
}
