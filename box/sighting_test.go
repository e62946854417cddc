package box_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func TestWhyTellsWhatTheProviderSaidLast(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	facts := box.NewFacts(spec(), row(), now)
	require.Nil(t, facts.WhyAt(now).Seen, "nothing was seen yet")
	ref := box.Ref{Provider: "test", ID: "1", Name: "bk-1", Epoch: 1, Fingerprint: "here"}
	create := box.Step{Kind: box.StepCreate}
	facts.Begin(create, now)
	facts.Apply(create, box.Outcome{Observation: box.Observation{Ref: ref, Phase: box.PhaseRunning, Evidence: "it runs"}, Ready: true}, now)

	want := &box.Sighting{Phase: box.PhaseRunning, At: now, Age: box.Duration(time.Minute), Evidence: "it runs"}
	require.Equal(t, want, facts.WhyAt(now.Add(time.Minute)).Seen)
	require.Equal(t, want, facts.StatusAt(now.Add(time.Minute)).Seen)

	tell := func(id string, phase box.Phase) string {
		facts.Observe(box.ObservedSignal{ID: id, Observation: box.Observation{Ref: ref, Phase: phase}})
		return facts.WhyAt(now).Seen.ToldBy
	}
	require.Empty(t, tell("w-1", box.PhaseRunning), "what fits makes nobody look")
	require.Equal(t, "w-2", tell("w-2", box.PhaseFailed))
	require.Equal(t, "w-2", tell("w-3", box.PhaseRunning))
	require.Empty(t, tell("a b\x1b", box.PhaseFailed), "an id that no request may have is not shown")
}

// What a suspended box costs was counted when it was suspended. A look does not
// count it again, and a box that runs has no such figure.
func TestStoredBytesAreOfTheSuspendedBox(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	ref := box.Ref{Provider: "test", ID: "1", Name: "bk-1", Epoch: 1, Fingerprint: "here"}
	claims := row()
	for name, row := range map[string]struct {
		seen []box.Observation
		want int64
	}{
		"suspended":                    {[]box.Observation{{Phase: box.PhaseSuspended, StoredBytes: 7}}, 7},
		"looked at":                    {[]box.Observation{{Phase: box.PhaseSuspended, StoredBytes: 7}, {Phase: box.PhaseSuspended}}, 7},
		"counted again":                {[]box.Observation{{Phase: box.PhaseSuspended, StoredBytes: 7}, {Phase: box.PhaseSuspended, StoredBytes: 5}}, 5},
		"running":                      {[]box.Observation{{Phase: box.PhaseSuspended, StoredBytes: 7}, {Phase: box.PhaseRunning}}, 0},
		"running, and said to be 9":    {[]box.Observation{{Phase: box.PhaseRunning, StoredBytes: 9}}, 0},
		"suspended again, not counted": {[]box.Observation{{Phase: box.PhaseSuspended, StoredBytes: 7}, {Phase: box.PhaseRunning}, {Phase: box.PhaseSuspended}}, 0},
		"gone":                         {[]box.Observation{{Phase: box.PhaseSuspended, StoredBytes: 7}, {Phase: box.PhaseGone}}, 0},
		"less than nothing":            {[]box.Observation{{Phase: box.PhaseSuspended, StoredBytes: -7}}, 0},
	} {
		facts := box.NewFacts(spec(), claims, now)
		for _, seen := range row.seen {
			seen.Ref = ref
			step := box.Step{Kind: box.StepObserve}
			facts.Begin(step, now)
			facts.Apply(step, box.Outcome{Observation: seen}, now)
		}
		require.Equal(t, row.want, facts.StatusAt(now).Seen.StoredBytes, name)
	}
}
