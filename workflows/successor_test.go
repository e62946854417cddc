package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/openhands/boxkeeper/box"
)

// vanish makes the box disappear at the provider, and tells.
func (p *play) vanish(after time.Duration) {
	p.at(after, func(env *testsuite.TestWorkflowEnvironment) {
		p.box.phase = box.PhaseGone
		env.SignalWorkflow(box.SignalObserved, box.ObservedSignal{ID: "w", Observation: p.box.seen()})
	})
}

// lostAt is a play whose box did some work, was suspended, and is lost after
// half an hour.
func lostAt(t *testing.T, cadence int) *play {
	t.Helper()
	p := newPlay(t)
	p.cadence = cadence
	p.at(time.Minute, func(*testsuite.TestWorkflowEnvironment) { p.box.events = 5 })
	p.vanish(30 * minute)
	return p
}

func answered(t *testing.T, into *box.ActionAnswer) func(any, error) {
	t.Helper()
	return func(answer any, err error) {
		require.NoError(t, err)
		*into, _ = answer.(box.ActionAnswer)
	}
}

func TestALostBoxIsRestoredAtEveryCadence(t *testing.T) {
	t.Parallel()
	for _, cadence := range []int{0, 1, 3} {
		p := lostAt(t, cadence)
		var answer box.ActionAnswer
		p.update(40*minute, box.UpdateConnect, box.ConnectRequest{Request: id("c"), HolderID: "tab"}, func(_ any, err error) {
			require.ErrorContains(t, err, "restore")
		})
		p.update(41*minute, box.UpdateRestore, id("r"), answered(t, &answer))
		p.update(42*minute, box.UpdateRestore, id("r"), nil) // a repeat
		statusOf(p, 43*minute, func(s box.Status) {
			require.Equal(t, box.StateRunning, s.State)
			require.Equal(t, 2, s.Epoch)
			require.Equal(t, 5, s.Events)
			require.Equal(t, 1, s.Export.Epoch, "the receipt of the old epoch stays readable")
			require.Len(t, s.Former, 1)
		})
		p.signal(44*minute, box.SignalObserved, box.ObservedSignal{Observation: box.Observation{
			Ref: box.Ref{Provider: "local", ID: "id-1", Name: "bk-0-demo-1", Epoch: 1, Fingerprint: "here"}, Phase: box.PhaseRunning,
		}})
		statusOf(p, 45*minute, func(s box.Status) {
			require.Contains(t, s.Flags, "needs-attention")
			require.Equal(t, box.ReasonSeenAgain, s.Reason.Code)
		})
		p.stop(46 * minute)
		_ = p.run()
		require.Contains(t, answer.Text, "5 events")
		require.Equal(t, []int64{1, 2}, p.epochs, "lists show the epoch, written when it changes")
		require.Equal(t, 2, p.box.creates, "cadence %d: %v", cadence, p.box.log)
	}
}

func TestAnAdoptionIsAnsweredWhenItIsKnown(t *testing.T) {
	t.Parallel()
	for _, cadence := range []int{0, 1} {
		p := lostAt(t, cadence)
		p.box.fail[box.StepAdopt] = temporal.NewNonRetryableApplicationError("no answer", string(box.ClassUnavailable), nil)
		p.at(42*minute, func(*testsuite.TestWorkflowEnvironment) { delete(p.box.fail, box.StepAdopt) })
		refusals := 0
		p.update(35*minute, box.UpdateAdopt, box.AdoptAsk{Request: id("no"), BoxID: "a b"}, func(_ any, err error) {
			require.ErrorContains(t, err, "box_id: ")
			refusals++
		})
		p.update(36*minute, box.UpdateReplace, box.Request{}, func(_ any, err error) {
			require.ErrorContains(t, err, "request_id: ")
			refusals++
		})
		var answer box.ActionAnswer
		p.update(40*minute, box.UpdateAdopt, box.AdoptAsk{Request: id("a"), BoxID: "an-old-session"}, answered(t, &answer))
		statusOf(p, 41*minute, func(s box.Status) { require.Equal(t, box.StateCreating, s.State) })
		p.stop(50 * minute)
		_ = p.run()
		require.Equal(t, 2, refusals)
		require.Equal(t, box.StateRunning, answer.State)
		require.Contains(t, answer.Text, "belongs to this workspace")
		require.Equal(t, 1, p.box.creates)
	}
	p := lostAt(t, 0)
	var refusal error
	p.update(40*minute, box.UpdateAdopt, box.AdoptAsk{Request: id("a"), BoxID: "foreign"}, func(_ any, err error) { refusal = err })
	statusOf(p, 41*minute, func(s box.Status) { require.Equal(t, box.StateLost, s.State) })
	p.stop(42 * minute)
	_ = p.run()
	require.ErrorContains(t, refusal, "adopt it there")
}

func TestAStartThatAdoptsCreatesNothing(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	p.spec.Adopt = "an-old-session"
	statusOf(p, minute, func(s box.Status) {
		require.Equal(t, box.StateRunning, s.State)
		require.Equal(t, box.ReasonAdopted, s.Reason.Code)
	})
	p.stop(2 * minute)
	_ = p.run()
	require.Zero(t, p.box.creates)
}

func TestAnAbandonedWorkspaceEndsWithAnAnswer(t *testing.T) {
	t.Parallel()
	for _, cadence := range []int{0, 1} {
		p := lostAt(t, cadence)
		var answer box.ActionAnswer
		p.update(40*minute, box.UpdateAbandon, box.AbandonAsk{Request: id("x"), Reason: "the account is closed"}, answered(t, &answer))
		require.NoError(t, p.run(), "it ends in order")
		require.Equal(t, box.StateAbandoned, answer.State)
		require.Equal(t, box.StepAbandon, p.box.log[len(p.box.log)-1])
		require.Zero(t, p.now.Sub(p.start.Add(40*minute)).Round(minute))
	}
}

func TestAHoldKeepsADeletionWaiting(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	var token string
	p.signal(minute, box.SignalHold, box.HoldSignal{On: true, By: "ops", Reason: "an incident"})
	p.update(20*minute, box.UpdateRequestDelete, box.RequestDeleteAsk{Request: id("d")}, func(answer any, err error) {
		require.NoError(t, err)
		loss, _ := answer.(box.Loss)
		token = loss.Token
	})
	p.at(21*minute, func(env *testsuite.TestWorkflowEnvironment) {
		env.SignalWorkflow(box.SignalConfirmDelete, box.ConfirmDelete{Token: token, By: "ana"})
	})
	statusOf(p, 10*day, func(s box.Status) {
		require.Equal(t, box.StateExporting, s.State)
		require.Contains(t, s.Flags, "held")
		require.Equal(t, box.PhaseSuspended, p.box.phase)
	})
	p.signal(11*day, box.SignalHold, box.HoldSignal{})
	require.NoError(t, p.run())
	require.Equal(t, box.PhaseGone, p.box.phase)
	require.NotContains(t, p.box.log, box.StepReclaim)
}
