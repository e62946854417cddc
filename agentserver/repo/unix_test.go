package repo_test

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

func makePipe(t *testing.T, file string) {
	t.Helper()
	require.NoError(t, syscall.Mkfifo(file, 0o600))
}

// requireEnded waits for the process whose number is in file to be gone.
func requireEnded(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		state, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil && syscall.Kill(pid, 0) != nil || strings.Contains(string(state), ") Z ")
	}, 10*time.Second, 10*time.Millisecond, "what git started ended with it")
}

func TestARepositoryOfAnotherUserIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("giving files away needs root")
	}
	git, dir := newGit(t), newRepo(t)
	_ = open(t, git, dir)
	for _, part := range []string{".", ".git", ".git/config"} {
		at := filepath.Join(dir, part)
		require.NoError(t, os.Chown(at, 65534, 65534))
		_, err := git.Open(t.Context(), dir)
		require.ErrorContains(t, err, "dubious ownership", part)
		require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
		_, err = git.IgnoredDirs(t.Context(), dir)
		require.Error(t, err)
		require.NoError(t, os.Chown(at, 0, 0))
	}
}

// Where nothing can be written, there is no answer, and no other one either.
func TestWithoutRoomForAStandInThereIsNoAnswer(t *testing.T) {
	t.Parallel()
	dir := newRepo(t)
	git, err := repo.New(repo.Options{Scratch: []string{"/nonexistent", filepath.Join(dir, "a.txt")}})
	require.NoError(t, err)
	_, err = git.Open(t.Context(), dir)
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err))
}

func TestObjectsThatAreBorrowedAreBundled(t *testing.T) {
	t.Parallel()
	git, lender := newGit(t), newRepo(t)
	dir := filepath.Join(t.TempDir(), "borrower")
	do(t, lender, "clone", "-q", "--shared", lender, dir)
	write(t, filepath.Join(dir, "a.txt"), "own\n")
	do(t, dir, "commit", "-q", "-a", "-m", "own")
	r := open(t, git, dir)
	refs, err := r.Rescued(t.Context())
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "bundle")
	out, err := os.Create(file)
	require.NoError(t, err)
	require.NoError(t, r.Bundle(t.Context(), out, refs))
	require.NoError(t, out.Close())
	require.NoError(t, os.Rename(lender, lender+".gone"))
	clone := filepath.Join(t.TempDir(), "clone")
	do(t, dir+"/..", "clone", "-q", "--mirror", file, clone)
	do(t, clone, "fsck", "--full")
	require.Error(t, r.Bundle(t.Context(), io.Discard, refs), "with the lender gone there is no whole bundle")
}
