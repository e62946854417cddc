package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/box"
)

// A conversation whose repository lends objects to another one's is not archived,
// by nobody, until that one stands alone.
func TestARepositoryThatAnotherBorrowsFromStays(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.Chmod(root, 0o700)) // as a box is: nobody else's process is in it
	git := func(dir string, args ...string) string { return agentservertest.Git(t, dir, args...) }
	remote, lender, borrower := filepath.Join(t.TempDir(), "remote"), filepath.Join(root, "workspace/a"), filepath.Join(root, "workspace/b")
	require.NoError(t, os.Mkdir(remote, 0o700))
	git(remote, "init", "-q", "-b", "main")
	git(remote, "commit", "-q", "--allow-empty", "-m", "first")
	require.NoError(t, os.Mkdir(filepath.Join(root, "conversations"), 0o700))
	git(root, "clone", "-q", remote, lender)
	git(root, "clone", "-q", "--reference", lender, "file://"+remote, borrower)
	a, b := strings.Repeat("a", 32), strings.Repeat("b", 32)
	for id, dir := range map[string]string{a: lender, b: borrower} {
		_, err := agentservertest.WriteConversation(filepath.Join(root, "conversations"), agentservertest.Conversation{
			ID: id, WorkingDir: dir, CreatedAt: time.Now().Add(-100 * 24 * time.Hour),
			Events: []agentservertest.Event{{Text: "hello", At: time.Now().Add(-99 * 24 * time.Hour)}},
		})
		require.NoError(t, err)
	}
	frees, err := server.Assemble(root)
	require.NoError(t, err)
	t.Cleanup(frees.Close)
	archive := func(id string) string {
		t.Helper()
		report, err := frees.Do(t.Context(), box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{id}})
		require.NoError(t, err)
		for i := range report.Items {
			if report.Items[i].Tier == box.TierRuntime {
				return report.Items[i].Skipped
			}
		}
		t.Fatalf("nothing of tier runtime: %+v", report)
		return ""
	}
	why := archive(a)
	require.Contains(t, why, "is needed")
	require.Contains(t, why, "workspace/b borrows objects")
	require.DirExists(t, lender)
	require.NoFileExists(t, filepath.Join(root, "persistence/runtime-control", a+".archived.json"), "nor is it marked")
	git(borrower, "fsck", "--full")

	git(borrower, "repack", "-q", "-a", "-d")
	require.NoError(t, os.Remove(filepath.Join(borrower, ".git/objects/info/alternates")))
	require.Empty(t, archive(a))
	require.NoDirExists(t, lender)
	git(borrower, "fsck", "--full")
	require.Empty(t, archive(b), "and that one goes as well")
}
