//go:build linux

package reclaim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// The sweep of a start that is still under way when a pass moves things must
// not delete them uncounted: the pass would report that it removed nothing.
func TestTheSweepLeavesToAPassWhatItCounts(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r, err := Open(root, Options{})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	r.working.Wait()
	taken := []trashed{{name: "moved"}}
	for _, name := range []string{"moved/file", "left/file"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, trashName, name), 0o700))
	}
	r.own(newRecord(), taken, true)
	require.True(t, r.resume(map[string]string{}))
	require.DirExists(t, filepath.Join(root, trashName, "moved"))
	require.NoDirExists(t, filepath.Join(root, trashName, "left"))
	r.own(nil, taken, false)
	require.False(t, r.resume(map[string]string{}))
	require.NoDirExists(t, filepath.Join(root, trashName, "moved"))
}

// A process that was killed had moved a worktree into the trash: what comes free
// with it counts for the plan that asked for that, if it is the only one.
func TestWhatARemoverMovedBeforeAKillIsCounted(t *testing.T) {
	t.Parallel()
	for _, plans := range []int{1, 2} {
		root := t.TempDir()
		for _, dir := range []string{journalName, trashName + "/" + RemovedPrefix + "1-project"} {
			require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
		}
		require.NoError(t, os.WriteFile(filepath.Join(root, trashName, RemovedPrefix+"1-project/file"), make([]byte, 2<<20), 0o600))
		var id string
		for range plans {
			plan := newRecord()
			plan.State, id = applying, plan.ID
			plan.Items = []item{{ReclaimItem: box.ReclaimItem{Path: "worktrees/x/project", Tier: box.TierRuntime}, Own: true}}
			text, err := json.Marshal(plan)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(root, journalName, id+".json"), text, 0o600))
		}
		r, err := Open(root, Options{})
		require.NoError(t, err)
		t.Cleanup(r.Close)
		r.working.Wait()
		report, err := r.Do(t.Context(), box.ReclaimRequest{PlanID: id})
		require.NoError(t, err)
		require.True(t, report.RemovedLowerBound)
		if plans == 1 {
			require.GreaterOrEqual(t, report.RemovedBytes, int64(2<<20))
		} else {
			require.Zero(t, report.RemovedBytes, "nobody knows which of them it was")
		}
	}
}
