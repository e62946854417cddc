package box_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// Scenarios that no other table of rules holds; docs/scenarios.md lists all.

func TestScenariosOfIdle(t *testing.T) {
	t.Parallel()
	t.Run("Scenario 4: a forwarded port is use for whoever holds the box meanwhile, and the contract says that nothing else sees it", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		for range 60 {
			r := box.ConnectRequest{Request: box.Request{ID: fmt.Sprint(w.now.Unix()), By: "canvas"}, HolderID: "rdp", Origin: "port-forward 3389"}
			require.NoError(t, w.facts.CheckConnect(r))
			w.facts.Connect(r, w.now)
			w.pass(time.Minute)
		}
		w.state(box.StateRunning)
		require.Equal(t, "held by connection port-forward 3389", w.facts.WhyAt(w.now).NextReason.Text)
		page, err := os.ReadFile(filepath.Join("..", "docs", "contract.md"))
		require.NoError(t, err)
		require.Contains(t, string(page), "A forwarded port, a shell or a remote desktop is not seen by itself")
	})
	t.Run("Scenario 17: a poll that tells the true age of the use extends nothing, and one that holds the box is named", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		for range 44 {
			w.facts.ReportActivity(box.ActivitySignal{Origin: "exec ps", IdleFor: box.Duration(w.now.Sub(w.facts.AwakeSince))}, w.now)
			w.pass(20 * time.Second)
		}
		w.state(box.StateRunning)
		w.pass(20 * time.Second)
		w.state(box.StateSuspended)

		w = awake(t)
		w.connect("user")
		w.facts.Release("user", w.now)
		for range 180 {
			w.facts.ReportActivity(box.ActivitySignal{Origin: "exec ps", Begun: []string{"poll"}}, w.now)
			w.pass(20 * time.Second)
		}
		why := w.facts.WhyAt(w.now)
		require.Len(t, why.Holders, 1)
		require.Equal(t, "exec ps", why.Holders[0].Origin)
		require.Equal(t, box.Duration(time.Hour), why.Holders[0].Age)
	})
	t.Run("Scenario 18: an operation that only renews, and says nothing, is not ended", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.begun("tool-call")
		for range 180 {
			require.NoError(t, w.facts.CheckRenew(box.RenewRequest{HolderID: "tool-call"}))
			w.facts.Renew(box.RenewRequest{HolderID: "tool-call"}, w.now)
			w.pass(time.Minute)
		}
		w.state(box.StateRunning)
		require.Zero(t, w.did(box.StepQuiesce))
	})
	t.Run("Scenario 21: work near the provider's wall is suspended before it, and nothing touches the box afterwards", func(t *testing.T) {
		t.Parallel()
		w := newWorldAt(t, spec(), row1(time.Hour))
		w.settle()
		start := w.now
		for range 45 {
			w.begun("work")
			w.pass(time.Minute)
		}
		w.state(box.StateSuspended)
		require.Equal(t, 45*time.Minute, w.now.Sub(start))
		require.True(t, w.stored[w.digest()])
		before := len(w.log)
		w.pass(26 * day)
		require.Len(t, w.log, before, "nothing was done while it slept: %v", w.log)
	})
	t.Run("Scenario 63: with an idle time of a minute a box is released within that of the end of its run", func(t *testing.T) {
		t.Parallel()
		w := awake(t, func(s *box.Spec) { s.Policy.Idle = box.Duration(time.Minute) })
		for range 6 {
			w.begun("run")
			w.pass(30 * time.Second)
		}
		w.facts.ReportActivity(box.ActivitySignal{Ended: []string{"run"}}, w.now)
		ended := w.now
		w.pass(time.Hour)
		w.state(box.StateSuspended)
		require.LessOrEqual(t, w.facts.SuspendedSince.Sub(ended), time.Minute)
	})
}

func TestScenariosOfTimersAndRaces(t *testing.T) {
	t.Parallel()
	t.Run("Scenario 8: who pinned it is remembered by what one run hands to the next", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.facts.Freeze(box.SwitchAsk{Request: box.Request{ID: "f", By: "ana"}, On: true}, w.now)
		w.facts = copied(w.facts)
		w.pass(40 * day)
		w.state(box.StateRunning)
		require.Contains(t, w.facts.Flags(), "frozen")
	})
	t.Run("Scenario 38: a box that was woken does not inherit the idle clock from before", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		w.pass(65 * time.Minute)
		w.connect("tab")
		w.settle()
		w.state(box.StateRunning)
		w.facts.Release("tab", w.now)
		require.Equal(t, w.now.Add(idle), w.settle().At)
		w.pass(7 * time.Second)
		w.state(box.StateRunning)
	})
	t.Run("Scenario 39: after a resume the hard maximum is the policy's again", func(t *testing.T) {
		t.Parallel()
		w := awake(t, func(s *box.Spec) { s.Policy.MaxRun = box.Duration(day) })
		w.toSuspended()
		w.connect("tab")
		w.settle()
		start := w.now
		for w.facts.State == box.StateRunning {
			w.connect("tab")
			w.pass(time.Minute)
		}
		require.Equal(t, day, w.facts.Transitions[len(w.facts.Transitions)-3].At.Sub(start))
		require.Equal(t, box.ReasonWall, w.facts.Transitions[len(w.facts.Transitions)-3].Reason.Code)
	})
	t.Run("Scenario 41: what a dead owner holds ends with its lease, and the idle time counts from its last renewal", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.begun("call-that-hangs")
		renewed := w.now
		w.pass(2 * time.Minute)
		require.Empty(t, w.facts.Holders)
		w.pass(idle)
		w.state(box.StateSuspended)
		require.Equal(t, renewed.Add(idle), w.facts.SuspendedSince)
	})
	t.Run("Scenario 44: who comes while the provider suspends is told to come again, and is let in then", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		var answer box.ConnectAnswer
		var refusal error
		w.between = func(step box.Step) {
			if step.Kind == box.StepSuspend {
				w.between = nil
				refusal = w.facts.CheckAsk(box.Ask{Kind: box.AskReclaim, ID: "q"})
				r := box.ConnectRequest{Request: box.Request{ID: "c", By: "ana"}, HolderID: "tab"}
				require.NoError(t, w.facts.CheckConnect(r))
				answer = w.facts.Connect(r, w.now)
			}
		}
		w.pass(idle)
		require.Equal(t, box.StateSuspending, answer.State)
		require.Positive(t, answer.RetryAfter)
		require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(refusal))
		require.ErrorContains(t, refusal, "connect first")
		w.state(box.StateRunning)
	})
	t.Run("Scenario 74: a box whose agent-server is silent while the provider says that it runs ends suspended, and people are told", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.deaf = true
		w.pass(day)
		w.state(box.StateSuspended)
		require.Contains(t, w.facts.Flags(), "unhealthy")
		require.False(t, w.facts.StatusAt(w.now).ExportCovers, "nobody saw what was said last")
		w.pass(30 * day)
		w.state(box.StateAwaitingConfirm)
		require.Equal(t, 2, w.did(box.StepNotify), "before the end and at it")
	})
	t.Run("Scenario 112: a box that is up is not running before its agent-server answers", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.deaf = true
		w.pass(10 * time.Second)
		w.state(box.StateStarting)
		require.Equal(t, box.PhaseRunning, w.phase)
		w.deaf = false
		w.pass(time.Minute)
		w.state(box.StateRunning)
	})
}

func TestScenariosOfLoss(t *testing.T) {
	t.Parallel()
	t.Run("Scenario 80: what nobody answers for is kept, its export for 90 days, and a confirmed deletion can be taken back", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toAwaiting()
		w.pass(400 * day)
		w.state(box.StateAwaitingConfirm)
		require.True(t, w.exists)
		require.GreaterOrEqual(t, w.facts.Policy.ExportLife, box.Duration(30*day))
		loss := w.requestDelete()
		require.Contains(t, strings.Join(loss.NotExported, "\n"), "push or copy what you need", "a person is told that files are not exported")
		w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
		w.pass(23 * time.Hour)
		w.state(box.StateUndoWindow)
		w.facts.CancelDelete(box.CancelDelete{By: "ana"}, w.now)
		w.pass(day)
		w.state(box.StateSuspended)
		require.True(t, w.exists)
	})
	t.Run("Scenario 115: what the provider allows is shown as what is in force, with a warning", func(t *testing.T) {
		t.Parallel()
		c := row1(12 * time.Hour)
		c.PausedLife = box.Span(10 * day)
		plan, err := box.Plan(box.Policy{PausedTTL: box.Duration(30 * day), MaxRun: box.Duration(day)}, c)
		require.NoError(t, err)
		require.Equal(t, box.Duration(12*time.Hour-15*time.Minute), plan.Policy.MaxRun)
		risks := strings.Join(plan.Risks, "\n")
		require.Contains(t, risks, "the provider ends a box after 12h, so max_run is 11h45m")
		require.Contains(t, risks, "the provider destroys a suspended box after 10d, so it is woken and suspended again before")
	})
}
