package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine"
)

const week = 7 * day

// BenchmarkWeek counts what a week of suspended boxes asks of the engine, the
// provider and the boxes.
//
//	go test ./internal/e2e -run '^$' -bench Week -benchtime 1x -timeout 30m
func BenchmarkWeek(b *testing.B) {
	for b.Loop() {
		got := suspendedWeek(b, 1000)
		b.ReportMetric(float64(got.engine), "engine-requests")
		b.ReportMetric(float64(got.provider), "provider-requests")
		b.ReportMetric(float64(got.boxes), "box-requests")
		b.ReportMetric(float64(got.tasks), "workflow-tasks")
	}
}

// TestASuspendedWeekAsksNothing lets a week pass for suspended boxes: nobody is
// asked anything. A box whose notice falls into that week shows that the count
// counts: the engine is asked for it, the provider and the box still are not.
func TestASuspendedWeekAsksNothing(t *testing.T) {
	t.Parallel()
	require.Equal(t, asked{}, suspendedWeek(t, 50))
}

// asked is how many requests were made: by the workers to the engine, beside
// waiting for work; to the provider; to boxes. tasks are the workflow tasks that
// boxes were given.
type asked struct{ engine, provider, boxes, tasks int }

func suspendedWeek(tb testing.TB, boxes int) asked {
	tb.Helper()
	n := startFakeNode(tb, true)
	defer n.stop()
	const told = "told"
	require.NoError(tb, inParallel(boxes, func(i int) error {
		facts, err := n.suspendedSince(tb.Context(), fmt.Sprint("week-", i), box.Policy{}, time.Now())
		if err != nil {
			return err
		}
		return n.carryOn(tb.Context(), facts, 0)
	}))
	for i := range boxes {
		awaitTimer(tb, n, fmt.Sprint("week-", i))
	}
	count := func() asked {
		made := asked{provider: len(n.cloud.Calls()), boxes: len(n.inside.Paths())}
		for _, requests := range n.worked.reset() {
			made.engine += requests
		}
		return made
	}
	before := count()
	require.Positive(tb, before.engine)
	require.Positive(tb, before.provider)
	require.NoError(tb, inParallel(boxes, func(i int) error {
		return engine.FastForward(tb.Context(), n.client, box.WorkflowID(fmt.Sprint("week-", i)), week)
	}))
	after := count()
	made := asked{engine: after.engine, provider: after.provider - before.provider, boxes: after.boxes - before.boxes}
	for i := range boxes {
		cost, err := n.costOf(tb.Context(), fmt.Sprint("week-", i))
		require.NoError(tb, err)
		require.Equal(tb, 1, cost.runs)
		made.tasks += cost.tasks - 1 // the first one set the timer
	}

	// One that was suspended 25 days ago: its notice is due on the second day.
	facts, err := n.suspendedSince(tb.Context(), told, box.Policy{}, time.Now().Add(-25*day))
	require.NoError(tb, err)
	require.NoError(tb, n.carryOn(tb.Context(), facts, 0))
	awaitTimer(tb, n, told)
	before = count()
	require.NoError(tb, engine.FastForward(tb.Context(), n.client, box.WorkflowID(told), 4*day))
	var cost engineCost
	for began := time.Now(); cost.tasks < 3 && time.Since(began) < within; time.Sleep(20 * time.Millisecond) {
		cost, err = n.costOf(tb.Context(), told)
		require.NoError(tb, err)
	}
	require.Equal(tb, 3, cost.tasks, "its timer, its notice, and the rest after it")
	after = count()
	require.Positive(tb, after.engine)
	require.Equal(tb, before.provider, after.provider)
	require.Equal(tb, before.boxes, after.boxes)
	return made
}

// awaitTimer waits until a box's workflow sleeps.
func awaitTimer(tb testing.TB, n *fakeNode, workspace string) {
	tb.Helper()
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		d, err := n.client.DescribeWorkflowExecution(tb.Context(), box.WorkflowID(workspace), "")
		require.NoError(tb, err)
		if d.GetWorkflowExecutionInfo().GetHistoryLength() >= 5 { // started, one task, the timer
			return
		}
		require.Less(tb, time.Since(began), within, "%s sets no timer", workspace)
	}
}
