package repo_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
)

// A file in a workspace names where its repository lies, and a link where a part
// of that does: also a file server that does not answer.
func TestARepositoryOnAStoppedFileServerIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	far := t.TempDir()
	storagetest.StuckServer(t, far, unix.S_IFDIR|0o755)
	git, err := repo.New(repo.Options{Timeout: 200 * time.Millisecond, Scratch: []string{t.TempDir()}})
	require.NoError(t, err)
	pointed := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(pointed, ".git"), []byte("gitdir: "+far+"/x\n"), 0o600))
	linked := newRepo(t)
	require.NoError(t, os.Symlink(far, filepath.Join(linked, ".git/rebase-merge")))
	results := make(chan error)
	go func() {
		defer close(results)
		for range 3 {
			_, err := git.IgnoredDirs(t.Context(), pointed)
			results <- err
		}
		r, err := git.Open(t.Context(), linked)
		if err != nil {
			return
		}
		defer r.Close()
		for range 3 {
			_, err = r.Remembered()
			results <- err
		}
	}()
	for range 6 {
		select {
		case err, ok := <-results:
			require.True(t, ok, "the repository itself opens")
			require.Error(t, err)
		case <-time.After(time.Minute):
			require.Fail(t, "it waits for the file server")
		}
	}
}
