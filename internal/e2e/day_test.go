package e2e_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// caller is what keeps a box awake: reports of use at a distance, or a hold that
// is renewed.
type caller struct {
	name  string
	every time.Duration
	holds bool
}

// BenchmarkBoxDay counts what a day of an awake box costs in the engine, by how
// often its caller reports. An hour is played at fifty times the speed, every
// length in it alike, and the counts are taken times 24; so they are those of an
// engine that keeps up.
//
//	go test ./internal/e2e -run '^$' -bench BoxDay -benchtime 1x -timeout 30m
func BenchmarkBoxDay(b *testing.B) {
	for b.Loop() {
		for _, cost := range awakeFor(b, time.Hour, 50) {
			b.ReportMetric(float64(24*cost.events), cost.name+"-events/day")
			b.ReportMetric(float64(24*cost.actions), cost.name+"-actions/day")
			b.ReportMetric(float64(24*cost.timers), cost.name+"-timers/day")
			b.ReportMetric(float64(24*cost.tasks), cost.name+"-tasks/day")
		}
	}
}

// TestBoxDay keeps the benchmark alive, and pins that each report costs one task
// at most and that no report sets a timer.
func TestBoxDay(t *testing.T) {
	t.Parallel()
	for _, cost := range awakeFor(t, 6*time.Minute, 50) {
		require.NotZero(t, cost.signals, cost.name)
		require.LessOrEqual(t, cost.events, 4*cost.signals+5*cost.timers+10, "%s: %+v", cost.name, cost)
		if cost.name != "held" {
			require.LessOrEqual(t, cost.timers, 2, "%s: %+v", cost.name, cost)
		}
	}
}

type dayCost struct {
	name string
	engineCost
}

// awakeFor plays a time with each kind of caller at once, a box for each.
func awakeFor(tb testing.TB, played time.Duration, speed int) []dayCost {
	tb.Helper()
	n := startFakeNode(tb, false)
	defer n.stop()
	fast := func(d time.Duration) time.Duration { return d / time.Duration(speed) }
	defaults := box.DefaultPolicy()
	policy := box.Policy{Idle: box.Duration(fast(defaults.Idle.Std())), HolderLease: box.Duration(fast(defaults.HolderLease.Std()))}
	callers := []caller{
		{name: "every-5s", every: 5 * time.Second},
		{name: "every-30s", every: 30 * time.Second},
		{name: "held", every: time.Minute, holds: true},
	}
	costs := make([]dayCost, len(callers))
	var wait sync.WaitGroup
	failed := make(chan error, len(callers))
	for i, c := range callers {
		wait.Go(func() {
			cost, err := n.awake(tb.Context(), c, policy, fast(played), fast(c.every))
			costs[i] = dayCost{c.name, cost}
			failed <- err
		})
	}
	wait.Wait()
	for range callers {
		require.NoError(tb, <-failed)
	}
	return costs
}

func (n *fakeNode) awake(ctx context.Context, c caller, policy box.Policy, played, every time.Duration) (engineCost, error) {
	ws := "day-" + c.name
	facts, err := n.runningSince(ctx, ws, policy, time.Now())
	if err != nil {
		return engineCost{}, err
	}
	name, signal := box.SignalActivity, any(box.ActivitySignal{Origin: "canvas"})
	if c.holds {
		name, signal = box.SignalRenew, box.RenewRequest{HolderID: "tab"}
		facts.Connect(box.ConnectRequest{Request: box.Request{ID: "c"}, HolderID: "tab"}, time.Now())
	}
	if err := n.carryOn(ctx, facts, 0); err != nil {
		return engineCost{}, err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	sent := 0
	for end := time.Now().Add(played); time.Now().Before(end); sent++ {
		<-tick.C
		if err := n.client.SignalWorkflow(ctx, box.WorkflowID(ws), "", name, signal); err != nil {
			return engineCost{}, err
		}
	}
	var cost engineCost
	for began := time.Now(); cost.signals < sent; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > within {
			return cost, fmt.Errorf("%s: %d of %d signals are in the history", c.name, cost.signals, sent)
		}
		if cost, err = n.costOf(ctx, ws); err != nil {
			return cost, err
		}
	}
	s, err := n.status(ctx, ws)
	if err == nil && s.State != box.StateRunning {
		err = fmt.Errorf("%s: it is %s", c.name, s.State)
	}
	return cost, err
}
