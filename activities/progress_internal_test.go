package activities

import (
	"context"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"
)

// TestAHeartbeatKeepsTheProgressThatWasTold: a step that has nothing new to tell
// goes on beating, and what it told last stays what is shown. It takes the 7 s in
// which the SDK lets a second heartbeat pass.
func TestAHeartbeatKeepsTheProgressThatWasTold(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	seen := make(chan int, 100)
	env.SetOnActivityHeartbeatListener(func(_ *activity.Info, details converter.EncodedValues) {
		var done int
		if !details.HasValues() || details.Get(&done) != nil {
			done = -1
		}
		seen <- done
	})
	step := func(ctx context.Context) error {
		ctx, stop := beat(ctx)
		defer stop()
		tell(ctx, 7)
		for range 2 { // ours, and one that comes by itself
			if done := <-seen; done != 7 {
				t.Errorf("a heartbeat says %d, want 7", done)
			}
		}
		return nil
	}
	env.RegisterActivity(step)
	run := func(ctx workflow.Context) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Hour, HeartbeatTimeout: 9 * time.Second})
		return workflow.ExecuteActivity(ctx, step).Get(ctx, nil)
	}
	env.RegisterWorkflow(run)
	env.SetTestTimeout(time.Minute)
	env.ExecuteWorkflow(run)
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
}
