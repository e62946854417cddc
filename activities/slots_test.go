package activities_test

import (
	"context"
	"testing"
	"time"

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
	receipt := do(r, r.boxes.Export, activities.ExportInput{Target: target}).Receipt
	require.Equal(t, 2, receipt.Events)
	for what, move := range map[string]func(context.Context) (box.Outcome, error){
		"export": func(ctx context.Context) (box.Outcome, error) {
			return run(ctx, r, r.boxes.Export, activities.ExportInput{Target: target})
		},
		"verify": func(ctx context.Context) (box.Outcome, error) {
			return run(ctx, r, r.boxes.VerifyExport, activities.DeleteInput{Target: target, Spec: spec(), Epoch: 1, Receipt: receipt, By: "ana"})
		},
		"restore": func(ctx context.Context) (box.Outcome, error) {
			return run(ctx, r, r.boxes.Restore, activities.RestoreInput{Target: target, Receipt: receipt})
		},
	} {
		r.boxes.Transfers <- struct{}{} // somebody's history is on its way
		ctx, giveUp := context.WithCancel(t.Context())
		moved := make(chan error, 1)
		go func() {
			_, err := move(ctx)
			moved <- err
		}()
		do(r, r.boxes.Observe, target) // does not wait
		select {
		case err := <-moved:
			t.Errorf("%s did not wait: %v", what, err)
		case <-time.After(300 * time.Millisecond): // long enough for one that does not wait
			giveUp()
			require.Equal(t, box.ClassCanceled, activities.FailureOf(<-moved).Class, what)
		}
		giveUp()
		<-r.boxes.Transfers
		require.Empty(t, r.boxes.Transfers, "a slot was not given back")
	}
}
