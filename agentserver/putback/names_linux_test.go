package putback_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Names in a box are bytes.
func TestARepositoryWhoseNameIsNoTextComesBack(t *testing.T) {
	t.Parallel()
	old, clone := newBox(t)
	do(t, clone, "checkout", "-q", "-b", "caf\xe9")
	for _, name := range []string{"b\xfe", "b\xff"} {
		dir := filepath.Join(old, "workspace", name)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		do(t, dir, "init", "-q", "-b", "main")
		commit(t, dir, name+"\n")
		do(t, dir, "worktree", "add", "-q", "-b", "other", filepath.Join(old, "worktrees", name))
	}
	archive, _ := export(t, old)
	root := freshBox(t)
	putBack(t, root, archive)
	sameWork(t, old, root)
	require.Equal(t, "caf\xe9", do(t, filepath.Join(root, "workspace/project"), "symbolic-ref", "--short", "HEAD"))
	for _, name := range []string{"workspace/b\xfe", "workspace/b\xff", "worktrees/b\xfe", "worktrees/b\xff"} {
		require.Equal(t, do(t, filepath.Join(old, name), "log", "--format=%H %s", "HEAD"), do(t, filepath.Join(root, name), "log", "--format=%H %s", "HEAD"))
		require.Empty(t, do(t, filepath.Join(root, name), "status", "--porcelain"))
	}
}
