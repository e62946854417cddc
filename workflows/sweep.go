package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
)

// sweepWithin ends a pass before the next one of the schedule begins.
const sweepWithin = 20 * time.Hour

// SweepExports is one pass over the exports whose life is over. A schedule
// starts it; what one pass does not come to is left to the next.
func SweepExports(ctx workflow.Context) (activities.SweepReport, error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:              box.StoreQueue,
		ScheduleToCloseTimeout: sweepWithin,
		StartToCloseTimeout:    sweepWithin,
		HeartbeatTimeout:       time.Minute,
		WaitForCancellation:    true,
		RetryPolicy:            &temporal.RetryPolicy{InitialInterval: time.Minute, BackoffCoefficient: 2, MaximumInterval: time.Hour},
		Summary:                "delete the exports of box-archived workspaces whose time is over",
	})
	var a *activities.Exports
	var report activities.SweepReport
	err := workflow.ExecuteActivity(ctx, a.Sweep, activities.SweepInput{At: workflow.Now(ctx)}).Get(ctx, &report)
	return report, err
}
