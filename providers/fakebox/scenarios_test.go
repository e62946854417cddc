package fakebox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// native returns a cloud that suspends a box by itself after 20 minutes without
// use, and where looking into the box is use.
func native() (*fakebox.Cloud, *fakebox.Driver) {
	row := fakebox.DefaultRow()
	row.NativeIdle, row.LookingIsUse = box.Yes, box.Yes
	cloud := fakebox.New(&fakebox.Options{Row: row, NativeIdle: 20 * time.Minute})
	return cloud, cloud.Driver(installation)
}

func TestScenariosAtAProviderWithAnIdleTimerOfItsOwn(t *testing.T) {
	t.Parallel()
	t.Run("Scenario 13 and 20: reading and listing boxes on the control plane, as a pass does, is no use", func(t *testing.T) {
		t.Parallel()
		cloud, d := native()
		ref := made(t, d, "watched")
		for range 10 {
			cloud.Advance(2 * time.Minute)
			_, err := d.Observe(t.Context(), ref)
			require.NoError(t, err)
			_, err = d.List(t.Context(), installation)
			require.NoError(t, err)
		}
		s, _ := cloud.Statement(ref.Name)
		require.Equal(t, box.PhaseSuspended, s.Phase)
		require.Equal(t, 20*time.Minute, s.Awake)
		for _, c := range cloud.Calls() {
			require.Contains(t, []fakebox.Op{fakebox.OpCreate, fakebox.OpObserve, fakebox.OpList, fakebox.OpFingerprint}, c.Op)
		}
	})
	t.Run("Scenario 30: a box that was resumed is suspended by its idle timer again, not destroyed", func(t *testing.T) {
		t.Parallel()
		cloud, d := native()
		ref := made(t, d, "twice")
		for range 3 {
			cloud.Advance(21 * time.Minute)
			s, _ := cloud.Statement(ref.Name)
			require.Equal(t, box.PhaseSuspended, s.Phase)
			seen, err := d.Resume(t.Context(), ref, driver.Start{})
			require.NoError(t, err)
			require.Equal(t, box.PhaseRunning, seen.Phase)
		}
		cloud.Advance(21 * time.Minute)
		s, _ := cloud.Statement(ref.Name)
		require.Equal(t, box.PhaseSuspended, s.Phase)
		require.Equal(t, 3, s.Wakes)
	})
	t.Run("a policy of the create call sets the timer where the cloud has no other", func(t *testing.T) {
		t.Parallel()
		row := fakebox.DefaultRow()
		row.NativeIdle = box.Yes
		cloud := fakebox.New(&fakebox.Options{Row: row})
		d := cloud.Driver(installation)
		for name, p := range map[string]box.Policy{"set": box.DefaultPolicy(), "never": {Idle: box.Never}, "unset": {}} {
			_, err := d.Create(t.Context(), driver.CreateRequest{Identity: box.Identity{Installation: installation, Workspace: name, Epoch: 1}, Policy: p})
			require.NoError(t, err)
		}
		cloud.Advance(30 * time.Minute)
		for name, want := range map[string]box.Phase{"set": box.PhaseSuspended, "never": box.PhaseRunning, "unset": box.PhaseRunning} {
			s, ok := cloud.Statement(box.Identity{Installation: installation, Workspace: name, Epoch: 1}.Name())
			require.True(t, ok)
			require.Equal(t, want, s.Phase, name)
		}
	})
}
