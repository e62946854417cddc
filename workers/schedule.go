package workers

import (
	"context"
	"errors"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/box"
)

const (
	sweepEvery    = 24 * time.Hour
	scheduleBound = 30 * time.Second
	scheduleAgain = time.Minute
)

// schedule makes sure that the exports whose life is over are swept once a day,
// by whichever worker is up. One that is there already, or was paused or changed
// by a person, stays as it is.
func (s *Set) schedule(ctx context.Context) {
	for {
		err := s.scheduleOnce(ctx)
		switch {
		case err == nil, ctx.Err() != nil, errors.Is(err, temporal.ErrScheduleAlreadyRunning):
			return
		}
		if _, never := errors.AsType[*serviceerror.Unimplemented](err); never {
			s.opts.Logger.Warn("this Temporal has no schedules, so exports are swept only by \"boxkeeper fleet sweep\"", zap.Error(err))
			return
		}
		s.opts.Logger.Warn("the sweep of exports is not scheduled yet; it is tried again", zap.Error(err))
		select {
		case <-ctx.Done():
			return
		case <-time.After(scheduleAgain):
		}
	}
}

func (s *Set) scheduleOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, scheduleBound)
	defer cancel()
	_, err := s.client.ScheduleClient().Create(ctx, client.ScheduleOptions{
		ID:   box.ScheduleSweepExports,
		Spec: client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: sweepEvery}}, Jitter: sweepEvery / 24},
		Action: &client.ScheduleWorkflowAction{
			ID: box.ScheduleSweepExports, Workflow: box.WorkflowSweepExports, TaskQueue: box.TaskQueue,
			WorkflowExecutionTimeout: sweepEvery,
		},
		Overlap: enumspb.SCHEDULE_OVERLAP_POLICY_SKIP, CatchupWindow: time.Hour, // one pass does the work of many
		Note: "deletes the exports of box-archived workspaces whose time is over (export_life); pause it to keep them",
	})
	return err
}
