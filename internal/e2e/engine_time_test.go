package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine"
)

const day = 24 * time.Hour

func TestFastForward(t *testing.T) {
	t.Parallel()
	e := startEngine(t, engine.Options{DataDir: t.TempDir(), NoUI: true, TimeSkipping: true})
	c := dialEngine(t, e)
	startWorker(t, c)

	t.Run("passes a pending timer of 30 days", func(t *testing.T) {
		t.Parallel()
		startWorkflow(t, c, "month", sleeper, 30*day, "a month has passed")
		inTimer(t, c, "month")
		require.NoError(t, engine.FastForward(t.Context(), c, "month", 29*day))
		require.Equal(t, enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, statusOf(t, c, "month"), "a day is left")
		began := time.Now()
		require.NoError(t, engine.FastForward(t.Context(), c, "month", 25*time.Hour))
		require.Equal(t, "a month has passed", result(t, c, "month"))
		t.Logf("the last day took %s", time.Since(began).Round(time.Millisecond))
		require.NoError(t, engine.FastForward(t.Context(), c, "month", day), "an ended workflow is fine")
	})
	t.Run("goes on across continue-as-new", func(t *testing.T) {
		t.Parallel()
		startWorkflow(t, c, "relay", relay, 6, 10*day)
		inTimer(t, c, "relay")
		began := time.Now()
		require.NoError(t, engine.FastForward(t.Context(), c, "relay", 35*day))
		require.Equal(t, enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, statusOf(t, c, "relay"))
		require.NoError(t, engine.FastForward(t.Context(), c, "relay", 30*day))
		require.Equal(t, "arrived", result(t, c, "relay"))
		t.Logf("60 days in 6 runs took %s", time.Since(began).Round(time.Millisecond))
	})
	t.Run("jumps over every timer on the way", func(t *testing.T) {
		t.Parallel()
		startWorkflow(t, c, "ticks", ticker, 24, time.Hour)
		require.NoError(t, engine.FastForward(t.Context(), c, "ticks", 12*time.Hour))
		d, err := c.DescribeWorkflowExecution(t.Context(), "ticks", "")
		require.NoError(t, err)
		require.Equal(t, enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, d.GetWorkflowExecutionInfo().GetStatus())
		// The server's own bound of 200 would end a month of hourly timers.
		require.Greater(t, d.GetWorkflowExtendedInfo().GetTimeSkippingInfo().GetEffectiveConfig().GetMaxSessionSkipCount(), int32(30*24))
		require.NoError(t, engine.FastForward(t.Context(), c, "ticks", 13*time.Hour))
		require.Equal(t, "ticked", result(t, c, "ticks"))
	})
	t.Run("names a workflow that is not there", func(t *testing.T) {
		t.Parallel()
		err := engine.FastForward(t.Context(), c, "nobody", day)
		require.Equal(t, box.ClassNotFound, box.ClassOf(err), "%v", err)
	})
	t.Run("refuses no time at all", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, box.ClassInvalid, box.ClassOf(engine.FastForward(t.Context(), c, "month", 0)))
	})
}

func TestFastForwardNeedsAnEngineThatAllowsIt(t *testing.T) {
	t.Parallel()
	e := startEngine(t, engine.Options{DataDir: t.TempDir(), NoUI: true})
	c := dialEngine(t, e)
	startWorker(t, c)
	startWorkflow(t, c, "month", sleeper, 30*day, "")
	err := engine.FastForward(t.Context(), c, "month", day)
	require.Equal(t, box.ClassUnsupported, box.ClassOf(err))
	require.ErrorContains(t, err, "without time skipping")
}
