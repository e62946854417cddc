package e2e_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// TestActivitySignalsAreNotLost sends 5,000 reports of use to one box as fast as
// the engine takes them, from several callers, while its workflow continues as
// new. Each report begins an operation and ends one from ten
// reports before, so that a lost one leaves an operation that never ends, or one
// that never began; a report that is taken twice or late changes nothing more.
func TestActivitySignalsAreNotLost(t *testing.T) {
	t.Parallel()
	const signals, callers, open = 5000, 8, 10
	n := startFakeNode(t, false)
	const ws = "busy"
	facts, err := n.runningSince(t.Context(), ws, box.Policy{Idle: box.Duration(2 * time.Second), HolderLease: box.Duration(time.Hour)}, time.Now())
	require.NoError(t, err)
	facts.Connect(box.ConnectRequest{Request: box.Request{ID: "c"}, HolderID: "test", Lease: box.Duration(time.Hour)}, time.Now())
	require.NoError(t, n.carryOn(t.Context(), facts, 5))

	began := time.Now()
	op := func(caller, i int) string { return fmt.Sprintf("op-%d-%d", caller, i) }
	require.NoError(t, inParallel(callers, func(caller int) error {
		for i := range signals / callers {
			report := box.ActivitySignal{Origin: "canvas", Begun: []string{op(caller, i)}}
			if i >= open {
				report.Ended = []string{op(caller, i-open)}
			}
			if err := n.client.SignalWorkflow(t.Context(), box.WorkflowID(ws), "", box.SignalActivity, report); err != nil {
				return err
			}
		}
		return nil
	}))
	took := time.Since(began)
	want := []string{"test"}
	for caller := range callers {
		for i := range open {
			want = append(want, op(caller, signals/callers-open+i))
		}
	}
	slices.Sort(want)
	eventually(t, within, func() error {
		s, err := n.status(t.Context(), ws)
		if err != nil {
			return err
		}
		var have []string
		for _, h := range s.Holders {
			have = append(have, h.ID)
		}
		slices.Sort(have)
		if !slices.Equal(have, want) {
			return fmt.Errorf("%s, %d holders: %v, want %d", s.State, len(have), have, len(want))
		}
		return nil
	})
	var cost engineCost
	eventually(t, within, func() (err error) { // the list of runs is a moment behind
		cost, err = n.costOf(t.Context(), ws)
		if err == nil && cost.signals != signals {
			err = fmt.Errorf("%d runs hold %d signals", cost.runs, cost.signals)
		}
		return err
	})
	// How often depends on how many reports the engine hands over at once.
	require.Greater(t, cost.runs, 1, "it never continued as new in between")
	t.Logf("%d signals in %s over %d runs: %d events, %d workflow tasks", signals, took.Round(time.Millisecond), cost.runs, cost.events, cost.tasks)

	// Reports end operations; a connection is let go by whoever has it.
	last := box.ActivitySignal{Ended: want}
	require.NoError(t, n.client.SignalWorkflow(t.Context(), box.WorkflowID(ws), "", box.SignalActivity, last))
	release := box.ReleaseRequest{Request: box.Request{ID: "release"}, HolderID: "test"}
	require.NoError(t, n.client.SignalWorkflow(t.Context(), box.WorkflowID(ws), "", box.SignalRelease, release))
	eventually(t, within, func() error {
		s, err := n.status(t.Context(), ws)
		if err == nil && s.State != box.StateSuspended {
			err = fmt.Errorf("state %s, %d holders", s.State, len(s.Holders))
		}
		return err
	})
}
