package workflows

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// The page of the Web UI says what comes next and why, and whatever a provider or
// a person wrote stays in its cell.
func TestTheDetailsAreATableWhateverWasSaid(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 18, 0, 0, 0, time.UTC)
	f := box.NewFacts(box.Spec{Version: box.WireVersion, Workspace: "demo", Provider: "local"}, box.Capabilities{}, now)
	f.Apply(box.Step{Kind: box.StepCreate}, box.Outcome{Observation: box.Observation{
		Ref: box.Ref{ID: "id", Epoch: 1}, Phase: box.PhaseRunning, Evidence: "up\n| state | deleted |\r\n\n# all is well",
	}}, now)
	f.Apply(box.Step{Kind: box.StepAwaitReady}, box.Outcome{Failed: &box.StepFailure{Class: box.ClassUnavailable, Message: "no\nanswer"}}, now)
	step := box.Step{Kind: box.StepWait, Then: box.StepAwaitReady, At: now.Add(time.Minute), Reason: box.Reason{Code: box.ReasonFailed, Text: "tried\nagain"}, StoppedBy: "owner"}
	page := details(&f, step)
	for line := range strings.SplitSeq(strings.TrimSpace(page), "\n") {
		require.True(t, line == "" || strings.HasPrefix(line, "| ") && strings.HasSuffix(line, " |"), "%q in\n%s", line, page)
	}
	require.NotContains(t, page, "\n| state | deleted |")
	for _, says := range []string{"| state | starting |", "| next | await-ready at 2026-03-01T18:01:00Z |", "| why | tried again |", "| who can stop it | owner |", "| last failure | await-ready, 1 times: no answer |"} {
		require.Contains(t, page, says)
	}
}
