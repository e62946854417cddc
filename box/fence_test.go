package box_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func TestFencesOnlyGrow(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	spec := box.Spec{Version: box.WireVersion, Workspace: "mine", Provider: "local"}
	facts := box.NewFacts(spec, box.Capabilities{}, now)
	last := facts.Fence()
	require.False(t, last.IsZero())
	step := func(why string) {
		t.Helper()
		facts.Begin(box.Step{Kind: box.StepObserve}, now)
		require.True(t, last.Before(facts.Fence()), why)
		require.False(t, facts.Fence().Before(last), why)
		last = facts.Fence()
	}
	step("a later step")
	step("and the next")

	data, err := json.Marshal(facts)
	require.NoError(t, err)
	facts = box.Facts{}
	require.NoError(t, json.Unmarshal(data, &facts))
	require.Equal(t, last, facts.Fence(), "continue-as-new carries it")
	step("after continue-as-new")

	facts = box.NewFacts(spec, box.Capabilities{}, now.Add(time.Second))
	step("a workflow of the same id that begins anew, however few its steps")

	old := box.Facts{Steps: 7}
	require.True(t, old.Fence().Before(last), "one from before there were fences is older than all")
	require.False(t, last.Before(last), "a retry of one step is not older")
}
