package workflows_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// The baseline is a workflow that owns a sandbox, as it is written first: it
// creates one, runs commands in it, suspends it when it is idle, and deletes it
// on request. It passes its own happy path, and nothing in it is wrong on
// purpose. The tests in defects_test.go hold it beside ours.

// baselineCommand is what a caller has run in the sandbox.
type baselineCommand struct {
	ID    string        `json:"id"`
	Takes time.Duration `json:"takes"`
	Fails bool          `json:"fails,omitzero"`
}

// Names of the baseline's signals.
const (
	baselineRun     = "command"
	baselineSuspend = "suspend"
	baselineResume  = "resume"
	baselineDelete  = "delete"
	baselineReport  = "activity"
)

// baselineBoxes are its activities, over the same fake provider as ours.
type baselineBoxes struct {
	driver *fakebox.Driver
	beats  map[string]time.Duration
	made   int
}

func (b *baselineBoxes) note(ctx context.Context, name string) {
	b.beats[name] = activity.GetInfo(ctx).HeartbeatTimeout
}

// Create gives each sandbox a name of its own.
func (b *baselineBoxes) Create(ctx context.Context) (box.Ref, error) {
	b.note(ctx, "create")
	b.made++
	name := fmt.Sprintf("sandbox-%d", b.made) // stands for a UUID
	seen, err := b.driver.Create(ctx, driver.CreateRequest{Identity: box.Identity{Installation: defectsInstallation, Workspace: name, Epoch: 1}})
	return seen.Ref, err
}

// Run runs a command; in the tests its time passes on the virtual clock.
func (b *baselineBoxes) Run(ctx context.Context, c baselineCommand) error {
	b.note(ctx, "run")
	if c.Fails {
		return temporal.NewNonRetryableApplicationError("exit code 1", "CommandFailed", nil)
	}
	return nil
}

// Suspend suspends the sandbox.
func (b *baselineBoxes) Suspend(ctx context.Context, ref box.Ref) error {
	b.note(ctx, "suspend")
	_, err := b.driver.Suspend(ctx, ref)
	return err
}

// Resume wakes the sandbox.
func (b *baselineBoxes) Resume(ctx context.Context, ref box.Ref) error {
	b.note(ctx, "resume")
	_, err := b.driver.Resume(ctx, ref, driver.Start{})
	return err
}

// Delete destroys the sandbox.
func (b *baselineBoxes) Delete(ctx context.Context, ref box.Ref) error {
	b.note(ctx, "delete")
	_, err := b.driver.Delete(ctx, ref)
	return err
}

func baselineOptions(ctx workflow.Context) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 2 * time.Hour,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumAttempts: 3},
	})
}

// baseline owns one sandbox that is suspended after idle without a command.
func baseline(ctx workflow.Context, idle time.Duration) error {
	ctx = baselineOptions(ctx)
	var b *baselineBoxes
	var ref box.Ref
	if err := workflow.ExecuteActivity(ctx, b.Create).Get(ctx, &ref); err != nil {
		return err
	}
	return baselineServe(ctx, ref, idle, func() {})
}

// baselineChanged is the baseline with defect (a) half repaired: it arms the
// timer after the creation as well. It passes the same happy path, and breaks
// each sandbox that was created before it is deployed.
func baselineChanged(ctx workflow.Context, idle time.Duration) error {
	ctx = baselineOptions(ctx)
	var b *baselineBoxes
	var ref box.Ref
	if err := workflow.ExecuteActivity(ctx, b.Create).Get(ctx, &ref); err != nil {
		return err
	}
	first, stop := workflow.WithCancel(ctx)
	workflow.Go(first, func(ctx workflow.Context) {
		if workflow.Sleep(ctx, idle) == nil {
			_ = workflow.ExecuteActivity(ctx, b.Suspend, ref).Get(ctx, nil)
		}
	})
	return baselineServe(ctx, ref, idle, stop)
}

func baselineServe(ctx workflow.Context, ref box.Ref, idle time.Duration, stopTimer func()) error {
	log := workflow.GetLogger(ctx)
	var b *baselineBoxes
	suspended, deleted := false, false
	idleOver := workflow.NewBufferedChannel(ctx, 16)
	armTimer := func(ctx workflow.Context) {
		timer, cancel := workflow.WithCancel(ctx)
		stopTimer = cancel
		workflow.Go(timer, func(ctx workflow.Context) {
			if workflow.Sleep(ctx, idle) == nil {
				idleOver.Send(ctx, true)
			}
		})
	}
	suspend := func() {
		if err := workflow.ExecuteActivity(ctx, b.Suspend, ref).Get(ctx, nil); err != nil {
			log.Error("suspend failed", "error", err)
			return
		}
		suspended = true
	}
	resume := func(ctx workflow.Context) error {
		if !suspended {
			return nil
		}
		err := workflow.ExecuteActivity(ctx, b.Resume, ref).Get(ctx, nil)
		suspended = suspended && err != nil
		return err
	}
	s := workflow.NewSelector(ctx)
	s.AddReceive(workflow.GetSignalChannel(ctx, baselineRun), func(c workflow.ReceiveChannel, _ bool) {
		var command baselineCommand
		c.Receive(ctx, &command)
		workflow.Go(ctx, func(ctx workflow.Context) {
			stopTimer()
			err := resume(ctx)
			if err == nil {
				err = workflow.ExecuteActivity(ctx, b.Run, command).Get(ctx, nil)
			}
			if err != nil {
				log.Error("command failed", "id", command.ID, "error", err)
				return
			}
			armTimer(ctx)
		})
	})
	s.AddReceive(idleOver, func(c workflow.ReceiveChannel, _ bool) {
		c.Receive(ctx, nil)
		suspend()
	})
	s.AddReceive(workflow.GetSignalChannel(ctx, baselineSuspend), func(c workflow.ReceiveChannel, _ bool) {
		c.Receive(ctx, nil)
		suspend()
	})
	s.AddReceive(workflow.GetSignalChannel(ctx, baselineResume), func(c workflow.ReceiveChannel, _ bool) {
		c.Receive(ctx, nil)
		if err := resume(ctx); err != nil {
			log.Error("resume failed", "error", err)
		}
	})
	s.AddReceive(workflow.GetSignalChannel(ctx, baselineReport), func(c workflow.ReceiveChannel, _ bool) {
		c.Receive(ctx, nil)
		log.Debug("in use")
	})
	s.AddReceive(workflow.GetSignalChannel(ctx, baselineDelete), func(c workflow.ReceiveChannel, _ bool) {
		c.Receive(ctx, nil)
		deleted = true
	})
	for !deleted {
		s.Select(ctx)
	}
	if err := workflow.ExecuteActivity(ctx, b.Delete, ref).Get(ctx, nil); err != nil {
		return errors.Join(errors.New("delete the sandbox"), err)
	}
	return nil
}
