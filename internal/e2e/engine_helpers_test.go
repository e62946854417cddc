package e2e_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/openhands/boxkeeper/internal/engine"
)

// engineQueue is the task queue of the workflows in this package's engine
// tests.
const engineQueue = "engine-tests"

// within bounds every wait of the engine tests; none takes near as long.
const within = 60 * time.Second

func startEngine(t *testing.T, o engine.Options) *engine.Engine {
	t.Helper()
	if o.Logger == nil {
		o.Logger = zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))
	}
	e, err := engine.Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(e.Stop)
	return e
}

func dialEngine(t *testing.T, e *engine.Engine) client.Client {
	t.Helper()
	c, err := client.DialContext(t.Context(), client.Options{
		HostPort: e.Address(), Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// startWorker runs a worker with the engine tests' workflows until stop.
func startWorker(t *testing.T, c client.Client) (stop func()) {
	t.Helper()
	w := newWorker(c)
	require.NoError(t, w.Start())
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			w.Stop()
		}
	}
	t.Cleanup(stop)
	return stop
}

func newWorker(c client.Client) worker.Worker {
	w := worker.New(c, engineQueue, worker.Options{WorkflowPanicPolicy: worker.FailWorkflow})
	w.RegisterWorkflow(sleeper)
	w.RegisterWorkflow(relay)
	w.RegisterWorkflow(ticker)
	w.RegisterWorkflow(attributed)
	return w
}

func statusOf(t *testing.T, c client.Client, id string) enumspb.WorkflowExecutionStatus {
	t.Helper()
	d, err := c.DescribeWorkflowExecution(t.Context(), id, "")
	require.NoError(t, err)
	return d.GetWorkflowExecutionInfo().GetStatus()
}

func startWorkflow(t *testing.T, c client.Client, id string, fn any, args ...any) client.WorkflowRun {
	t.Helper()
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: id, TaskQueue: engineQueue,
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
	}, fn, args...)
	require.NoError(t, err)
	return run
}

func result(t *testing.T, c client.Client, id string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var got string
	require.NoError(t, c.GetWorkflow(ctx, id, "").Get(ctx, &got))
	return got
}

// sleeper ends after d with a word.
func sleeper(ctx workflow.Context, d time.Duration, word string) (string, error) {
	return word, workflow.Sleep(ctx, d)
}

// relay sleeps once per run and continues as new, legs times in all.
func relay(ctx workflow.Context, legs int, each time.Duration) (string, error) {
	if err := workflow.Sleep(ctx, each); err != nil {
		return "", err
	}
	if legs > 1 {
		return "", workflow.NewContinueAsNewError(ctx, relay, legs-1, each)
	}
	return "arrived", nil
}

// ticker sleeps many times in one run.
func ticker(ctx workflow.Context, times int, each time.Duration) (string, error) {
	for range times {
		if err := workflow.Sleep(ctx, each); err != nil {
			return "", err
		}
	}
	return "ticked", nil
}

// attributed sets the search attribute BoxEpoch.
func attributed(ctx workflow.Context, epoch int64) error {
	return workflow.UpsertTypedSearchAttributes(ctx, temporal.NewSearchAttributeKeyInt64("BoxEpoch").ValueSet(epoch))
}

// inTimer waits until the workflow's first task is done and its timer is set.
func inTimer(t *testing.T, c client.Client, id string) {
	t.Helper()
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		history := c.GetWorkflowHistory(t.Context(), id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for history.HasNext() {
			event, err := history.Next()
			require.NoError(collect, err)
			if event.GetEventType() == enumspb.EVENT_TYPE_TIMER_STARTED {
				return
			}
		}
		collect.Errorf("no timer yet")
	}, within, 20*time.Millisecond)
}
