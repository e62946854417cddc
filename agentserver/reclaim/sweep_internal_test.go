//go:build linux

package reclaim

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// held makes an entry of the trash that a process uses until release is called.
func held(t *testing.T, root string) (release func()) {
	t.Helper()
	place := filepath.Join(root, trashName, "left", "below")
	require.NoError(t, os.MkdirAll(place, 0o755))
	user := exec.CommandContext(t.Context(), "sleep", "600")
	user.Dir = place
	require.NoError(t, user.Start())
	release = func() { _ = user.Process.Kill(); _ = user.Wait() }
	t.Cleanup(release)
	return release
}

// lines hands on each line of a log.
type lines chan<- string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestWhatAProcessUsedInTheTrashGoesWhenItEnds(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	release := held(t, root)
	told := make(chan string, 1)
	r, err := Open(root, Options{Log: slog.New(slog.NewTextHandler(lines(told), nil))})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	require.Contains(t, <-told, "in use by process", "the first try leaves it")
	require.DirExists(t, filepath.Join(root, trashName, "left", "below"))
	release()
	r.working.Wait() // ends by itself when nothing is left
	require.NoDirExists(t, filepath.Join(root, trashName, "left"))
}

func TestWhatIsLeftInTheTrashIsToldOnce(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	var log bytes.Buffer
	r, err := Open(root, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	r.working.Wait() // the trash is empty: nobody looks after it from here on
	held(t, root)
	told := map[string]string{}
	for range 3 {
		require.True(t, r.resume(told))
	}
	require.Equal(t, 1, strings.Count(log.String(), "in use by process"), log.String())
}

func TestATreeDeeperThanTheDescriptorsIsRemoved(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, trashName, "left"), 0o755))
	// Closed at exec: a program that another test starts meanwhile must not
	// inherit it and be a user of the trash.
	const flags = unix.O_DIRECTORY | unix.O_RDONLY | unix.O_CLOEXEC
	at, err := unix.Open(filepath.Join(root, trashName, "left"), flags, 0)
	require.NoError(t, err)
	for range 1000 {
		require.NoError(t, unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", flags, 0)
		require.NoError(t, err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	r, err := Open(root, Options{})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	r.working.Wait()
	entries, err := os.ReadDir(filepath.Join(root, trashName))
	require.NoError(t, err)
	require.Empty(t, entries)
}
