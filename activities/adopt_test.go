package activities_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

func adopting(id, step string) activities.AdoptInput {
	s := spec()
	s.Adopt = id
	return activities.AdoptInput{Spec: s, BoxID: id, Epoch: 1, Least: 1, Step: step, WorkflowID: box.WorkflowID(workspace)}
}

func TestAdoptIsRecordedBeforeAndAfterAndCreatesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.cloud.Plant("an-old-session")
	in := adopting(r.cloud.ID("an-old-session"), "e1-s1")
	r.cloud.Inject(fakebox.Fault{Op: fakebox.OpAdopt, Lost: true})
	fails(r, box.ClassUnavailable, r.boxes.Adopt, in)
	require.Equal(t, []string{"adopt-intent/e1-s1-adopt-intent"}, r.ledger())
	in.Step = "e1-s2"
	out := do(r, r.boxes.Adopt, in)
	require.Equal(t, name, out.Observation.Ref.Name)
	require.True(t, out.Ready)
	require.Equal(t, "fakebox", out.Capabilities.Driver)
	require.Equal(t, "adopted/e1-s2-adopted", r.ledger()[2])
	require.Zero(t, r.calls(fakebox.OpCreate))
	require.Zero(t, r.calls(fakebox.OpResume))
	entries, err := r.store.Ledger(t.Context(), workspace)
	require.NoError(t, err)
	require.Contains(t, string(entries[2].Data), in.BoxID)
	require.Contains(t, string(entries[2].Data), name)
	create := creating("e1-s3")
	create.Spec = in.Spec
	failure := fails(r, box.ClassInvalid, r.boxes.Create, create)
	require.Contains(t, failure.Message, "adopt", "a spec that adopts creates nothing")
	require.Zero(t, r.calls(fakebox.OpCreate))
}

func TestAdoptRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	target := r.made("e1-s2")
	other := adopting(target.Ref.ID, "e1-s9")
	other.Spec.Workspace, other.WorkflowID = "other", box.WorkflowID("other")
	failure := fails(r, box.ClassFailedPrecondition, r.boxes.Adopt, other)
	require.Contains(t, failure.Message, "adopt it there")
	replaced := adopting(target.Ref.ID, "e3-s1")
	replaced.Epoch, replaced.Least = 3, 2
	failure = fails(r, box.ClassFailedPrecondition, r.boxes.Adopt, replaced)
	require.Contains(t, failure.Message, "epoch 1, which was replaced")
	failure = fails(r, box.ClassFailedPrecondition, r.boxes.Adopt, adopting("fb-99", "e1-s3"))
	require.Contains(t, failure.Message, "has box 1 already", "it must not be forgotten")
	absent := adopting("fb-99", "e2-s3")
	absent.Epoch = 2
	fails(r, box.ClassNotFound, r.boxes.Adopt, absent)
	theirs := adopting("fb-98", "e2-s5")
	theirs.Epoch, theirs.Spec.Owner = 2, "eve"
	failure = fails(r, box.ClassFailedPrecondition, r.boxes.Adopt, theirs)
	require.Contains(t, failure.Message, "another owner's")
	wrong := adopting(target.Ref.ID, "e1-s4")
	wrong.WorkflowID = "box/another"
	fails(r, box.ClassInvalid, r.boxes.Adopt, wrong)
	require.Equal(t, box.PhaseRunning, r.phase())
	t.Run("a workspace that is closed", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		r.cloud.Plant("stray")
		_, err := r.store.AppendLedger(t.Context(), workspace, exports.Entry{ID: "x", Kind: exports.KindAbandoned, Epoch: 1})
		require.NoError(t, err)
		failure := fails(r, box.ClassFailedPrecondition, r.boxes.Adopt, adopting(r.cloud.ID("stray"), "e1-s1"))
		require.False(t, failure.NotBegun, "it is for good")
		require.Zero(t, r.calls(fakebox.OpAdopt))
	})
	t.Run("a provider that cannot", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil, func(c *box.Capabilities) { c.Adopt = box.No })
		fails(r, box.ClassUnsupported, r.boxes.Adopt, adopting("fb-1", "e1-s1"))
		require.Zero(t, r.calls(fakebox.OpAdopt))
	})
}

func TestAbandonIsALedgerEntryAndNothingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	target := r.made("e1-s2")
	calls := len(r.cloud.Calls())
	in := activities.AbandonInput{Target: target, Epoch: 1, Abandonment: box.Abandonment{RequestID: "x", By: "ops", Reason: "the account is closed"}}
	for range 3 {
		do(r, r.boxes.Abandon, in)
	}
	require.Len(t, r.cloud.Calls(), calls, "the provider is asked nothing")
	require.True(t, slices.Contains(r.ledger(), "abandoned/e1-s2-abandoned"))
	closed, last, err := r.store.Closed(t.Context(), workspace)
	require.NoError(t, err)
	require.True(t, closed)
	require.Contains(t, string(last.Data), "the account is closed")
	require.Contains(t, string(last.Data), target.Ref.ID)
	anew := in
	anew.Step, anew.Marks = "e1-s9", nil // of a workflow that was started again on the id
	do(r, r.boxes.Abandon, anew)
	require.False(t, slices.Contains(r.ledger(), "abandoned/e1-s9-abandoned"), "once is for ever")

	unknown := activities.AbandonInput{Target: activities.Target{Workspace: "third", Step: "e1-s1"}, Epoch: 1, Abandonment: in.Abandonment}
	do(r, r.boxes.Abandon, unknown) // a box that never was known
}

// lostWith exports a history of a box that is lost then, and returns a rig whose
// new boxes have another server inside.
func lostWith(t *testing.T, fresh *agentservertest.Options) (r *rig, receipt box.Receipt) {
	t.Helper()
	r = newRig(t, nil)
	target := r.made("e1-s2")
	for _, n := range []int{3, 1, 4} {
		r.write(agentservertest.Conversation{Events: events(n)})
	}
	receipt = do(r, r.boxes.Export, activities.ExportInput{Target: target}).Receipt
	r.cloud.Vanish(name)
	next := newRig(t, fresh)
	next.boxes.Store, next.store = r.store, r.store
	return next, receipt
}

func successor(r *rig, receipt box.Receipt) activities.Target {
	r.t.Helper()
	in := creating("e2-s1")
	in.Epoch, in.Restore = 2, receipt
	out := do(r, r.boxes.Create, in)
	return activities.Target{Workspace: workspace, Ref: out.Observation.Ref, Step: "e2-s2"}
}

func TestRestoreIsReadBack(t *testing.T) {
	t.Parallel()
	r, receipt := lostWith(t, nil)
	target := successor(r, receipt)
	in := activities.RestoreInput{Target: target, Receipt: receipt}
	for range 2 { // it may be repeated
		out := do(r, r.boxes.Restore, in)
		require.Equal(t, receipt.Digest, out.Use.Digest)
		require.Equal(t, 8, out.Use.Events)
		require.Equal(t, 3, out.Use.Conversations)
	}
	ledger := r.ledger()
	require.Equal(t, "restored/e2-s2-restored", ledger[len(ledger)-1])
	again := do(r, r.boxes.Export, activities.ExportInput{Target: target, Previous: receipt})
	require.Equal(t, receipt.Digest, again.Receipt.Digest)
	require.Equal(t, 2, again.Receipt.Epoch)
	puts := 0
	for _, p := range r.server.Paths() {
		if strings.HasPrefix(p, "PUT /api/boxd/history/") {
			puts++
		}
	}
	require.Equal(t, 3, puts, "a repeat puts nothing in twice")
}

func TestRestoreNeverClaimsWhatIsNotThere(t *testing.T) {
	t.Parallel()
	t.Run("a box that takes no history in", func(t *testing.T) {
		t.Parallel()
		r, receipt := lostWith(t, &agentservertest.Options{Older: true})
		failure := fails(r, box.ClassUnsupported, r.boxes.Restore, activities.RestoreInput{Target: successor(r, receipt), Receipt: receipt})
		require.Contains(t, failure.Message, "replace takes the box as it is")
	})
	t.Run("a box that holds something else", func(t *testing.T) {
		t.Parallel()
		r, receipt := lostWith(t, nil)
		target := successor(r, receipt)
		r.write(agentservertest.Conversation{Events: events(1)})
		fails(r, box.ClassUnknown, r.boxes.Restore, activities.RestoreInput{Target: target, Receipt: receipt})
		require.NotContains(t, r.ledger(), "restored/e2-s2-restored")
	})
	t.Run("a box that does not answer", func(t *testing.T) {
		t.Parallel()
		r, receipt := lostWith(t, nil)
		target := successor(r, receipt)
		r.server.Break(agentservertest.Faults{Page: true})
		fails(r, box.ClassUnavailable, r.boxes.Restore, activities.RestoreInput{Target: target, Receipt: receipt})
	})
	t.Run("an export that is damaged makes no box", func(t *testing.T) {
		t.Parallel()
		r, receipt := lostWith(t, nil)
		receipt.Key = strings.Replace(receipt.Key, "e1-s2", "e1-s9", 1)
		in := creating("e2-s1")
		in.Epoch, in.Restore = 2, receipt
		failure := fails(r, box.ClassFailedPrecondition, r.boxes.Create, in)
		require.Contains(t, failure.Message, "no box was made")
		require.False(t, failure.NotBegun, "trying again does not mend it")
		require.Zero(t, r.calls(fakebox.OpCreate))
	})
}
