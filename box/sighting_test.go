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
