package activities_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"

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

// late is a bucket in which something happens right after one of its lists.
type late struct {
	*flaky
	list int // which one
	then func()
}

func (b *late) ListPaged(ctx context.Context, opts *driver.ListOptions) (*driver.ListPage, error) {
	page, err := b.flaky.ListPaged(ctx, opts)
	if b.list--; b.list == 0 {
		b.then()
	}
	return page, err
}

// A create that an engine began which is gone may run still. Whichever comes first:
// no box is made for a workspace that is closed as one without a box.
func TestNoBoxIsMadeWhileItsWorkspaceIsClosedAsOneWithout(t *testing.T) {
	t.Parallel()
	for list := 1; list <= 4; list++ {
		r := newRig(t, nil)
		under := &flaky{objects: map[string][]byte{}}
		creating := creating("e1-s1-earlier")
		r.boxes.Store = exports.New(blob.NewBucket(under), exports.Options{SpoolDir: t.TempDir()})
		var made error
		create := func() { _, made = run(t.Context(), r, r.boxes.Create, creating) }
		bucket := &late{flaky: under, list: list, then: create}
		store := exports.New(blob.NewBucket(bucket), exports.Options{SpoolDir: t.TempDir()})
		in := activities.DeleteInput{Target: activities.Target{Workspace: workspace, Step: "e1-s3-anew"}, Spec: spec(), Epoch: 1, NeverReady: true, By: "ana"}
		_, closed := run(t.Context(), r, (&activities.Exports{Store: store}).CloseUnmade, in)
		if bucket.list > 0 {
			require.NoError(t, closed)
			create()
		}
		require.NotEqual(t, made == nil, closed == nil, "after list %d: one of them wins, created: %v, closed: %v", list, made, closed)
		asked := slices.ContainsFunc(r.cloud.Calls(), func(c fakebox.Call) bool { return c.Op == fakebox.OpCreate })
		require.Equal(t, made == nil, asked, "after list %d", list)
	}
}
