package activities_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

func TestAResumeDoesNotWaitBehindExports(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	target := r.made("e1-s2")
	r.write(agentservertest.Conversation{Events: events(2)})
	r.boxes.Transfers = make(activities.Slots, 1)
	r.boxes.Transfers <- struct{}{} // somebody's history is on its way
	began := len(r.server.Paths())

	ctx, giveUp := context.WithCancel(t.Context())
	exported := make(chan error, 1)
	go func() {
		_, err := run(ctx, r, r.boxes.Export, activities.ExportInput{Target: target})
		exported <- err
	}()
	do(r, r.boxes.Observe, target)
	select {
	case err := <-exported:
		t.Fatalf("the export did not wait: %v", err)
	default:
	}
	giveUp()
	require.Equal(t, box.ClassCanceled, activities.FailureOf(<-exported).Class)
	require.Len(t, r.server.Paths(), began, "a box that waits for its turn is left in peace")

	<-r.boxes.Transfers
	receipt := do(r, r.boxes.Export, activities.ExportInput{Target: target}).Receipt
	require.Equal(t, 2, receipt.Events)
	in := activities.DeleteInput{Target: target, Spec: spec(), Epoch: 1, Receipt: receipt, By: "ana"}
	require.Empty(t, do(r, r.boxes.VerifyExport, in).Problem)
	require.Empty(t, r.boxes.Transfers, "a slot was not given back")

	r.boxes.Transfers <- struct{}{}
	require.NoError(t, r.store.Close())
	ctx, giveUp = context.WithCancel(t.Context())
	giveUp()
	_, err := run(ctx, r, r.boxes.VerifyExport, in)
	require.Equal(t, box.ClassCanceled, activities.FailureOf(err).Class, "the store was read without a slot")
	_, err = run(ctx, r, r.boxes.Restore, activities.RestoreInput{Target: target, Receipt: receipt})
	require.Equal(t, box.ClassCanceled, activities.FailureOf(err).Class)
}
