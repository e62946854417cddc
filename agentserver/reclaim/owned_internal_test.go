//go:build linux

package reclaim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
	r.own(taken, true)
	require.True(t, r.resume(map[string]string{}))
	require.DirExists(t, filepath.Join(root, trashName, "moved"))
	require.NoDirExists(t, filepath.Join(root, trashName, "left"))
	r.own(taken, false)
	require.False(t, r.resume(map[string]string{}))
	require.NoDirExists(t, filepath.Join(root, trashName, "moved"))
}
