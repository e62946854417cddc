package activities_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

func TestScenariosOfActivities(t *testing.T) {
	t.Parallel()
	t.Run("Scenario 57: what runs is ended in order before the box is suspended, also by a person's wish", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		r.write(agentservertest.Conversation{Events: events(3)})
		target := r.made("e1-s2")
		r.server.Break(agentservertest.Faults{Running: 1})
		since := len(r.server.Paths())
		out := do(r, r.boxes.Quiesce, activities.QuiesceInput{Target: target})
		require.Empty(t, out.Busy)
		require.True(t, slices.Contains(r.asked(since), "POST "+pausePath), "asked was %v", r.asked(since))
		do(r, r.boxes.Suspend, target)
		r.server.Break(agentservertest.Faults{})
		do(r, r.boxes.Resume, activities.ResumeInput{Target: target})
		require.Zero(t, do(r, r.boxes.Scan, target).Use.Running)
	})
	t.Run("Scenario 72: a box that is suspended already is suspended, however often it is asked for", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		target := r.made("e1-s2")
		for range 5 {
			require.Equal(t, box.PhaseSuspended, do(r, r.boxes.Suspend, target).Observation.Phase)
		}
		require.Zero(t, r.calls(fakebox.OpDelete))
	})
	t.Run("Scenario 65, 79 and 108: a create sets the provider's own timer, longer than ours, to suspend and not to destroy", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil, func(c *box.Capabilities) { c.NativeIdle = box.Yes })
		in := creating("e1-s1")
		in.Spec.Policy.Idle = box.Duration(40 * time.Minute)
		do(r, r.boxes.Create, in)
		r.cloud.Advance(54 * time.Minute)
		require.Equal(t, box.PhaseRunning, r.phase(), "ours is due at 40 minutes and has a margin of 15")
		r.cloud.Advance(2 * time.Minute) // nobody of ours did anything: no owner is left
		require.Equal(t, box.PhaseSuspended, r.phase())
	})
	t.Run("Scenario 111: an address and a key that change with a resume are read afresh for the next call", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil, func(c *box.Capabilities) { c.URLStable, c.KeyStable, c.SameIdentity = box.No, box.No, box.No })
		target := r.made("e1-s2")
		do(r, r.boxes.Suspend, target)
		moved, err := agentservertest.Start(agentservertest.Options{Root: t.TempDir()})
		require.NoError(t, err)
		t.Cleanup(moved.Close)
		r.url = moved.URL
		before := len(r.server.Paths())
		out := do(r, r.boxes.Resume, activities.ResumeInput{Target: target})
		require.True(t, out.Ready)
		require.NotEqual(t, target.Ref.ID, out.Observation.Ref.ID)
		target.Ref = out.Observation.Ref
		require.NotNil(t, do(r, r.boxes.Scan, target).Use)
		require.NotEmpty(t, moved.Paths())
		require.Len(t, r.server.Paths(), before, "nobody asks at the old address")
	})
}
