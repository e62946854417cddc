package workflows_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
)

// fakeStore stands in for activities.Exports.
type fakeStore struct {
	queues []string
	closed []activities.DeleteInput
	left   []activities.AbandonInput
}

func (s *fakeStore) CloseUnmade(ctx context.Context, in activities.DeleteInput) (box.Outcome, error) {
	s.queues, s.closed = append(s.queues, activity.GetInfo(ctx).TaskQueue), append(s.closed, in)
	return box.Outcome{Observation: box.Observation{Phase: box.PhaseGone, Evidence: "no box was made"}}, nil
}

func (s *fakeStore) CloseAbandoned(ctx context.Context, in activities.AbandonInput) (box.Outcome, error) {
	s.queues, s.left = append(s.queues, activity.GetInfo(ctx).TaskQueue), append(s.left, in)
	return box.Outcome{}, nil
}

// unservedPlay is a life at an instance whose worker is away from the start.
func unservedPlay(t *testing.T, cadence int) (*play, *fakeStore) {
	t.Helper()
	p, store := newPlay(t), &fakeStore{}
	p.cadence = cadence
	for _, kind := range []box.StepKind{box.StepCreate, box.StepDelete, box.StepAbandon} {
		p.box.fail[kind] = temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil)
	}
	p.prepare = func(env *testsuite.TestWorkflowEnvironment) { env.RegisterActivity(store) }
	return p, store
}

// deletes asks for a deletion and confirms it.
func (p *play) deletes(at time.Duration) {
	var token string
	p.update(at, box.UpdateRequestDelete, box.RequestDeleteAsk{Request: id("d")}, func(answer any, err error) {
		if loss, ok := answer.(box.Loss); ok && err == nil {
			token = loss.Token
		}
	})
	p.at(at+time.Second, func(env *testsuite.TestWorkflowEnvironment) {
		env.SignalWorkflow(box.SignalConfirmDelete, box.ConfirmDelete{Token: token, By: "ana"})
	})
}

func TestABoxAtAnInstanceThatNobodyServes(t *testing.T) {
	t.Parallel()
	for _, cadence := range []int{0, 1, 2, 3} {
		t.Run("why names the worker that is missing", func(t *testing.T) {
			t.Parallel()
			p, _ := unservedPlay(t, cadence)
			asked := false
			p.at(time.Second, func(env *testsuite.TestWorkflowEnvironment) {
				asked = true
				var why box.Why
				value, err := env.QueryWorkflow(box.QueryWhy)
				require.NoError(t, err)
				require.NoError(t, value.Get(&why))
				require.Contains(t, why.NextReason.Text, "no worker serves local (task queue boxkeeper-local)")
				require.True(t, why.Failure.Unserved)
			})
			p.stop(time.Minute)
			_ = p.run()
			require.True(t, asked)
		})
		t.Run("it is deleted by another worker", func(t *testing.T) {
			t.Parallel()
			p, store := unservedPlay(t, cadence)
			p.deletes(time.Hour)
			require.NoError(t, p.run())
			require.Len(t, store.closed, 1)
			require.Equal(t, []string{box.StoreQueue}, store.queues)
			require.Zero(t, p.did(box.StepDelete), "no provider is asked")
		})
		t.Run("it is abandoned by another worker", func(t *testing.T) {
			t.Parallel()
			p, store := unservedPlay(t, cadence)
			p.update(time.Hour, box.UpdateAbandon, box.AbandonAsk{Request: id("a"), Reason: "the account is closed"}, nil)
			require.NoError(t, p.run())
			require.Len(t, store.left, 1)
			require.Equal(t, "the account is closed", store.left[0].Abandonment.Reason)
			require.Equal(t, []string{box.StoreQueue}, store.queues)
		})
		t.Run("it goes on when one is up", func(t *testing.T) {
			t.Parallel()
			p, store := unservedPlay(t, cadence)
			p.at(time.Hour, func(*testsuite.TestWorkflowEnvironment) {
				delete(p.box.fail, box.StepCreate)
				delete(p.box.fail, box.StepDelete)
			})
			p.deletes(2 * time.Hour)
			require.NoError(t, p.run())
			require.Equal(t, 1, p.box.creates)
			require.Empty(t, store.closed, "it was made, so its provider is told")
			require.NotZero(t, p.did(box.StepDelete))
		})
	}
}

// A second try that no worker took comes after a first one that a worker did take:
// the engine gives what became of that as the cause.
func TestATryThatAWorkerTookIsNotOneThatNobodyTook(t *testing.T) {
	t.Parallel()
	crashed := temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START,
		temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_HEARTBEAT, nil))
	t.Run("a create", func(t *testing.T) {
		t.Parallel()
		p, store := unservedPlay(t, 0)
		p.box.fail[box.StepCreate] = crashed
		p.deletes(time.Hour)
		p.stop(3 * time.Hour)
		require.Error(t, p.run(), "it waits for the instance, which alone can say whether there is a box")
		require.Empty(t, store.closed)
	})
	t.Run("a suspend", func(t *testing.T) {
		t.Parallel()
		p := newPlay(t)
		asked := false
		p.update(time.Minute, box.UpdateSuspend, id("s"), nil)
		p.box.fail[box.StepSuspend] = crashed
		p.at(2*time.Minute, func(env *testsuite.TestWorkflowEnvironment) {
			asked = true
			var why box.Why
			value, err := env.QueryWorkflow(box.QueryWhy)
			require.NoError(t, err)
			require.NoError(t, value.Get(&why))
			require.NotNil(t, why.Failure)
			require.False(t, why.Failure.Unserved)
			require.Equal(t, box.ClassDeadlineExceeded, why.Failure.Class)
			require.NotZero(t, p.did(box.StepObserve), "the provider may have been told, so it is asked")
		})
		p.stop(3 * time.Minute)
		_ = p.run()
		require.True(t, asked)
	})
}

// A run of an earlier release goes on as it did: its history has no other
// commands.
func TestARunOfAnEarlierReleaseWaitsForItsProvider(t *testing.T) {
	t.Parallel()
	p, store := unservedPlay(t, 0)
	prepare := p.prepare
	p.prepare = func(env *testsuite.TestWorkflowEnvironment) {
		prepare(env)
		env.OnGetVersion("unserved", workflow.DefaultVersion, workflow.Version(1)).Return(workflow.DefaultVersion)
	}
	p.deletes(time.Hour)
	p.stop(3 * time.Hour)
	require.Error(t, p.run(), "it waits")
	require.Empty(t, store.closed)
	require.NotZero(t, p.did(box.StepDelete))
}

// The engine tries some steps twice. One whose second try no worker took may have
// been carried out by the first.
func TestAStepThatAWorkerTookOnceIsNotCalledUnserved(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]error{
		"its first try had no answer": temporal.NewApplicationError("no answer", string(box.ClassUnavailable)),
		"its first worker was killed": temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_HEARTBEAT, nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t)
			p.box.fail[box.StepSuspend] = temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, first)
			asked := false
			p.at(16*time.Minute, func(env *testsuite.TestWorkflowEnvironment) {
				asked = true
				var status box.Status
				value, err := env.QueryWorkflow(box.QueryStatus)
				require.NoError(t, err)
				require.NoError(t, value.Get(&status))
				require.Equal(t, box.StepSuspend, status.Failure.Step)
				require.False(t, status.Failure.Unserved, "a worker told the provider")
				require.NotZero(t, p.did(box.StepObserve), "the box may be suspended, and is not looked at")
			})
			p.stop(17 * time.Minute)
			_ = p.run()
			require.True(t, asked)
		})
	}
}
