package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/box"
)

// fleet is boxes that fall due, and when.
type fleet struct {
	name  string
	boxes int
	// apart is between two deadlines; zero puts all into one moment.
	apart time.Duration
	// idles says that the deadline is an idle one, which may move. Otherwise it
	// is the hard maximum, which may not.
	idles bool
}

// BenchmarkLateness measures how late the first activity of a box starts after
// its deadline, beside the least that a user would write instead: a workflow of
// one timer and one activity, with as many and as often, on an engine of its own
// in the same run. The boxes are fake; the engine, its file and the workers are
// real. What is late is told against the armed time, which people are told.
//
// Not among them: 2,000 idle boxes. Their jitter spreads them over 18 seconds,
// two cores take minutes for them, and an idle deadline that is noticed more than
// a minute late gives a fresh window, so that they come in several waves.
//
//	go test ./internal/e2e -run '^$' -bench Lateness -benchtime 1x -timeout 90m
func BenchmarkLateness(b *testing.B) {
	for _, f := range []fleet{
		{name: "1", boxes: 20, apart: 2 * time.Second},
		{name: "100-in-one-second", boxes: 100},
		{name: "2000-in-one-second", boxes: 2000},
		{name: "2000-over-ten-minutes", boxes: 2000, apart: 300 * time.Millisecond},
	} {
		b.Run(f.name, func(b *testing.B) {
			for b.Loop() {
				bare, boxes := bareLateness(b, f), boxLateness(b, f)
				for _, q := range []struct {
					name string
					of   float64
				}{{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}, {"max", 1}} {
					alone, ours := quantile(bare, q.of), quantile(boxes, q.of)
					b.ReportMetric(float64(alone.Microseconds())/1000, "bare-"+q.name+"-ms")
					b.ReportMetric(float64(ours.Microseconds())/1000, "box-"+q.name+"-ms")
				}
			}
		})
	}
}

// TestLateness keeps the benchmark alive, with a few boxes: none is early.
func TestLateness(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fleet{
		"at the hard maximum": {boxes: 3},
		"idle":                {boxes: 3, apart: 50 * time.Millisecond, idles: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for who, late := range map[string][]time.Duration{"bare": bareLateness(t, f), "box": boxLateness(t, f)} {
				require.Len(t, late, f.boxes, who)
				require.GreaterOrEqual(t, slices.Min(late), time.Duration(0), "%s: early", who)
			}
		})
	}
}

// firstDue is when the first of a fleet is due: after all were started.
func (f fleet) firstDue() time.Time {
	return time.Now().Add(10*time.Second + time.Duration(f.boxes)*60*time.Millisecond).Truncate(time.Second)
}

// quantile of durations, each a measured one.
func quantile(of []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// bareLateness is what the engine makes of one timer and one activity.
func bareLateness(tb testing.TB, f fleet) []time.Duration {
	tb.Helper()
	n := startFakeNode(tb, false)
	defer n.stop()
	began := &moments{at: map[string]time.Time{}}
	w := worker.New(n.client, "bare", worker.Options{})
	w.RegisterWorkflow(bareLife)
	w.RegisterActivity(began)
	require.NoError(tb, w.Start())
	defer w.Stop()
	first := f.firstDue()
	due := func(i int) time.Time { return first.Add(time.Duration(i) * f.apart) }
	require.NoError(tb, inParallel(f.boxes, func(i int) error {
		_, err := n.client.ExecuteWorkflow(tb.Context(), client.StartWorkflowOptions{ID: fmt.Sprint("bare-", i), TaskQueue: "bare"}, bareLife, fmt.Sprint("bare-", i), due(i))
		return err
	}))
	require.Less(tb, time.Since(first), -time.Second, "they were not all started before the first was due")
	awaitAll(tb, f, first, began.count)
	late := make([]time.Duration, f.boxes)
	for i := range late {
		late[i] = began.of(fmt.Sprint("bare-", i)).Sub(due(i))
	}
	return late
}

// bareLife is the workflow to compare with.
func bareLife(ctx workflow.Context, id string, due time.Time) error {
	if err := workflow.Sleep(ctx, due.Sub(workflow.Now(ctx))); err != nil {
		return err
	}
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	var m *moments
	return workflow.ExecuteActivity(ctx, m.Note, id).Get(ctx, nil)
}

// moments is an activity that notes when it ran.
type moments struct {
	mu sync.Mutex
	at map[string]time.Time
}

// Note is the activity.
func (m *moments) Note(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at[id] = time.Now()
	return nil
}

func (m *moments) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.at)
}

func (m *moments) of(id string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at[id]
}

// boxLateness is the same of boxes, from the deadline to the first call of the
// first activity: the drain of a box that is to be suspended. The other steps of
// each suspend go on meanwhile and compete for the engine.
func boxLateness(tb testing.TB, f fleet) []time.Duration {
	tb.Helper()
	n := startFakeNode(tb, false)
	defer n.stop()
	first := f.firstDue()
	policy, window := box.Policy{Idle: box.Never, MaxRun: box.Duration(time.Hour)}, time.Hour
	if f.idles {
		policy, window = box.Policy{}, box.DefaultPolicy().Idle.Std()
	}
	names, due := make([]string, f.boxes), make([]time.Time, f.boxes)
	require.NoError(tb, inParallel(f.boxes, func(i int) error {
		facts, err := n.runningSince(tb.Context(), fmt.Sprint("late-", i), policy, first.Add(time.Duration(i)*f.apart-window))
		if err != nil {
			return err
		}
		names[i], due[i] = facts.Ref.Name, facts.WhyAt(time.Now()).NextAt
		return n.carryOn(tb.Context(), facts, 0)
	}))
	require.Less(tb, time.Since(first), -time.Second, "they were not all started before the first was due")
	awaitAll(tb, f, first, n.driver.touched)
	late := make([]time.Duration, f.boxes)
	for i := range late {
		late[i] = n.driver.firstTouch(names[i]).Sub(due[i])
	}
	return late
}

// awaitAll waits until every one of a fleet was seen. It looks rarely, so as to
// take nothing from what is measured.
func awaitAll(tb testing.TB, f fleet, first time.Time, seen func() int) {
	tb.Helper()
	deadline := time.After(time.Until(first) + time.Duration(f.boxes)*(f.apart+200*time.Millisecond) + 2*time.Minute)
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for seen() < f.boxes {
		select {
		case <-deadline:
			tb.Fatalf("%d of %d were seen", seen(), f.boxes)
		case <-tick.C:
		}
	}
}
