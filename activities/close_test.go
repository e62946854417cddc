package activities_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

func TestAWorkspaceThatNoWorkerEverTookIsClosedByTheStoreAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	store := &activities.Exports{Store: r.store, Notify: notifier{who: []box.Listener{{Name: "ops"}}}}
	in := activities.DeleteInput{Target: activities.Target{Workspace: workspace, Step: "e1-s3-run"}, Spec: spec(), Epoch: 1, NeverReady: true, By: "ana"}
	for range 3 {
		out := do(r, store.CloseUnmade, in)
		require.Equal(t, box.PhaseGone, out.Observation.Phase)
		require.Contains(t, out.Observation.Evidence, "no box was made")
		require.Equal(t, []box.Listener{{Name: "ops"}}, out.Listeners, "who listens is told of the end")
	}
	require.Empty(t, r.cloud.Calls(), "no provider is asked")
	require.Equal(t, box.StateBoxArchived, r.said().State)
	fails(r, box.ClassFailedPrecondition, r.boxes.Create, creating("e1-s1"))
	require.Equal(t, []string{"deleted/e1-deleted"}, r.ledger(), "the id stays closed")
}

func TestAWorkspaceThatTheLedgerKnowsIsNotClosedAsOneThatNeverWas(t *testing.T) {
	t.Parallel()
	in := activities.DeleteInput{Target: activities.Target{Workspace: workspace, Step: "e1-s3-anew"}, Spec: spec(), Epoch: 1, NeverReady: true, By: "ana"}
	for name, before := range map[string]func(r *rig){
		"it has a box": func(r *rig) { r.made("e1-s1") },
		"a box was asked for": func(r *rig) {
			r.cloud.Inject(fakebox.Fault{Op: fakebox.OpCreate, Class: box.ClassInvalid})
			_, err := run(r.t.Context(), r, r.boxes.Create, creating("e1-s1"))
			require.Error(r.t, err)
		},
		"it was abandoned": func(r *rig) {
			_, err := r.store.AppendLedger(r.t.Context(), workspace, exports.Entry{ID: "x", Kind: exports.KindAbandoned, Epoch: 1})
			require.NoError(r.t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			before(r)
			there := r.ledger()
			require.NotEmpty(t, there)
			fails(r, box.ClassFailedPrecondition, (&activities.Exports{Store: r.store}).CloseUnmade, in)
			require.Equal(t, there, r.ledger())
		})
	}
}

func TestAStoreThatIsAwayClosesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	require.NoError(t, r.store.Close())
	store := &activities.Exports{Store: r.store}
	in := activities.DeleteInput{Target: activities.Target{Workspace: workspace, Step: "e1-s3-run"}, Spec: spec(), Epoch: 1}
	_, err := run(t.Context(), r, store.CloseUnmade, in)
	require.Error(t, err)
	failure := activities.FailureOf(err)
	require.True(t, failure.Class.Retryable(), "%+v", failure)
	require.True(t, failure.NotBegun, "the provider was told nothing")
}

func TestAnotherWorkerRecordsTheEndOfAWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	target := r.made("e1-s2")
	in := activities.AbandonInput{Target: target, Epoch: 1, Abandonment: box.Abandonment{RequestID: "x", By: "ops", Reason: "the account is closed", Unserved: true}}
	for range 2 {
		do(r, (&activities.Exports{Store: r.store}).CloseAbandoned, in)
	}
	require.Equal(t, box.StateAbandoned, r.said().State)
	require.Equal(t, "the account is closed", r.said().Abandonment.Reason)
}
