package box_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func TestAPassIsCountedOnceHoweverOftenItIsToldOf(t *testing.T) {
	t.Parallel()
	w := awake(t)
	n := 0
	reclaim := func(r box.ReclaimReport) {
		n++
		w.facts.Queue(box.Ask{Kind: box.AskReclaim, ID: fmt.Sprint("ask-", n)})
		step := box.Next(w.facts, w.now)
		require.Equal(t, box.StepReclaim, step.Kind)
		w.facts.Begin(step, w.now)
		w.facts.Apply(step, box.Outcome{Reclaim: r}, w.now)
	}
	for _, row := range []struct {
		report box.ReclaimReport
		want   int64
	}{
		{box.ReclaimReport{PlanID: "a", FreedBytes: 5, RemovedBytes: 4, Pending: true}, 5},
		{box.ReclaimReport{PlanID: "a", FreedBytes: 20, RemovedBytes: 19}, 20}, // its end
		{box.ReclaimReport{PlanID: "a", FreedBytes: 20, RemovedBytes: 19}, 20},
		{box.ReclaimReport{PlanID: "b", FreedBytes: 7, RemovedBytes: 7}, 27},
		{box.ReclaimReport{PlanID: "a", FreedBytes: 20, RemovedBytes: 19}, 27}, // late
		{box.ReclaimReport{PlanID: "c", FreedBytes: 9}, 27},                    // somebody else's bytes
		{box.ReclaimReport{PlanID: "d", FreedBytes: -3, RemovedBytes: 2}, 27},  // somebody wrote meanwhile
		{box.ReclaimReport{PlanID: "e", DryRun: true, FreedBytes: 1, RemovedBytes: 1}, 27},
		{box.ReclaimReport{FreedBytes: 1, RemovedBytes: 1}, 28}, // of a release that names none
		{box.ReclaimReport{FreedBytes: 1, RemovedBytes: 1}, 29},
	} {
		reclaim(row.report)
		require.Equal(t, row.want, w.facts.StatusAt(w.now).Reclaimed, "%+v", row.report)
	}
	for i := range 100 {
		reclaim(box.ReclaimReport{PlanID: fmt.Sprint("p", i), FreedBytes: 1, RemovedBytes: 1})
	}
	require.LessOrEqual(t, len(w.facts.Passes), 8)
}
