package putback_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
)

// Names in a box are bytes.
func TestARepositoryWhoseNameIsNoTextComesBack(t *testing.T) {
	t.Parallel()
	old, clone := agentservertest.ClonedBox(t)
	agentservertest.Git(t, clone, "checkout", "-q", "-b", "caf\xe9")
	for _, name := range []string{"b\xfe", "b\xff"} {
		dir := filepath.Join(old, "workspace", name)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		agentservertest.Git(t, dir, "init", "-q", "-b", "main")
		agentservertest.Commit(t, dir, name+"\n")
		agentservertest.Git(t, dir, "worktree", "add", "-q", "-b", "other", filepath.Join(old, "worktrees", name))
	}
	archive, _ := export(t, old)
	root := freshBox(t)
	putBack(t, root, archive)
	sameWork(t, old, root)
	require.Equal(t, "caf\xe9", agentservertest.Git(t, filepath.Join(root, "workspace/project"), "symbolic-ref", "--short", "HEAD"))
	for _, name := range []string{"workspace/b\xfe", "workspace/b\xff", "worktrees/b\xfe", "worktrees/b\xff"} {
		require.Equal(t, agentservertest.Git(t, filepath.Join(old, name), "log", "--format=%H %s", "HEAD"), agentservertest.Git(t, filepath.Join(root, name), "log", "--format=%H %s", "HEAD"))
		require.Empty(t, agentservertest.Git(t, filepath.Join(root, name), "status", "--porcelain"))
	}
}
