package storagetest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/storage"
)

// Converse makes a conversation of the box at root that nobody uses and that was
// used last at used. workingDir is only recorded.
func Converse(t testing.TB, root, id, workingDir string, used time.Time) {
	t.Helper()
	conversations := filepath.Join(root, storage.ConversationsDir)
	require.NoError(t, os.MkdirAll(conversations, 0o700))
	_, err := agentservertest.WriteConversation(conversations, agentservertest.Conversation{
		ID: id, WorkingDir: workingDir, CreatedAt: used.Add(-time.Hour),
		Events: []agentservertest.Event{{Text: "hello", At: used}},
	})
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(conversations, id, "events", "*"))
	require.NoError(t, err)
	for _, file := range append(files, filepath.Join(conversations, id, "base_state.json")) {
		require.NoError(t, os.Chtimes(file, used, used))
	}
}

// Worktree makes a conversation that works in a git worktree of its own, whose
// file "work" is committed, and returns the worktree below root.
func Worktree(t testing.TB, root, id string, used time.Time) string {
	t.Helper()
	project := filepath.Join(root, storage.WorkspaceDir, "project")
	if _, err := os.Lstat(project); err != nil {
		agentservertest.Git(t, root, "init", "-q", "-b", "main", project)
		require.NoError(t, os.WriteFile(filepath.Join(project, "work"), []byte("dear"), 0o600))
		agentservertest.Git(t, project, "add", "work")
		agentservertest.Git(t, project, "commit", "-q", "-m", "first")
	}
	tree := filepath.Join(storage.WorktreesDir, storage.Dashed(id), "project")
	agentservertest.Git(t, project, "worktree", "add", "-q", "-b", "openhands/"+id, filepath.Join(root, tree))
	Converse(t, root, id, filepath.Join(root, tree), used)
	return tree
}
