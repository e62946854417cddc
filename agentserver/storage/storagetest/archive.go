package storagetest

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

func (s *suite) archive(t testing.TB) {
	t.Helper()
	dir := s.make(t, ids[0], time.Now())
	require.NoError(t, s.layout.Archive(t.Context(), ids[0]))
	place := s.places(t)[ids[0]]
	require.True(t, place.Archived)
	require.WithinDuration(t, time.Now(), place.ArchivedAt, time.Minute)
	s.goes(t, &place, dir) // so that a pass that was cut off is finished
	marker := filepath.Join(s.root, storage.ControlDir, ids[0]+".archived.json")
	first, err := os.ReadFile(marker)
	require.NoError(t, err)
	require.NoError(t, s.layout.Archive(t.Context(), ids[0]))
	again, err := os.ReadFile(marker)
	require.NoError(t, err)
	require.Equal(t, string(first), string(again), "the first time stands")
	require.FileExists(t, filepath.Join(s.root, dir, "work"), "archiving moves nothing itself")
	require.NoError(t, os.RemoveAll(filepath.Join(s.root, dir)))
	require.NoError(t, s.layout.Archive(t.Context(), ids[0]), "also when the runtime has gone")
}

func (s *suite) killed(t testing.TB) {
	t.Helper()
	s.make(t, ids[0], time.Now())
	self, err := os.Executable()
	require.NoError(t, err)
	control := filepath.Join(s.root, storage.ControlDir)
	require.NoError(t, os.MkdirAll(control, 0o700))
	whole := 0
	for i := range 10 {
		child := exec.CommandContext(t.Context(), self, "-test.run=^$") //nolint:gosec // the test itself
		child.Env = append(os.Environ(), archiveVariable+"="+s.root)    //nolint:forbidigo // for a process of the suite itself
		require.NoError(t, child.Start())
		// Killed at its first step in this directory, or some steps later.
		for range 1 + i%4*5 {
			s.await(t, control, child)
		}
		require.NoError(t, child.Process.Kill())
		require.Error(t, child.Wait())
		if place := s.places(t)[ids[0]]; place.Archived {
			whole++
			require.False(t, place.ArchivedAt.IsZero(), "a marker that is there is whole")
		}
	}
	require.NoError(t, s.layout.Archive(t.Context(), ids[0]))
	require.True(t, s.places(t)[ids[0]].Archived)
	t.Logf("killed 10 times, %d with a marker", whole)
}

// await returns when the child has changed something in dir.
func (s *suite) await(t testing.TB, dir string, child *exec.Cmd) {
	t.Helper()
	var before, now unix.Stat_t
	require.NoError(t, unix.Stat(dir, &before))
	for deadline := time.Now().Add(30 * time.Second); ; {
		require.NoError(t, unix.Stat(dir, &now))
		if now.Mtim != before.Mtim {
			return
		}
		require.True(t, time.Now().Before(deadline), "process %d archives nothing", child.Process.Pid)
		runtime.Gosched()
	}
}

func (s *suite) unknown(t testing.TB) {
	t.Helper()
	s.make(t, ids[0], time.Now())
	for _, id := range []string{ids[1], "", ".", "..", "../" + ids[0], ids[0] + "/..", strings.ToUpper(ids[0]), ids[0] + "\n"} {
		release, busy, err := s.layout.Hold(t.Context(), id)
		require.Nil(t, release)
		require.Empty(t, busy)
		require.Equal(t, box.ClassNotFound, box.ClassOf(err), "hold %q: %v", id, err)
		require.Equal(t, box.ClassNotFound, box.ClassOf(s.layout.Archive(t.Context(), id)), "archive %q", id)
	}
	_, err := os.Lstat(filepath.Join(s.root, storage.ControlDir, ids[1]+".archived.json"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func (s *suite) foreign(t testing.TB) {
	t.Helper()
	dir := s.make(t, ids[0], time.Now())
	names := []string{
		"notes", "a\nb", "tab\there", "\xff\xfe", ids[0] + ".old", strings.ToUpper(ids[1]), strings.ToUpper(storage.Dashed(ids[1])), "-rf",
	}
	within := []string{storage.ConversationsDir}
	for above := filepath.Dir(dir); above != "."; above = filepath.Dir(above) {
		within = append(within, above)
	}
	theirs := func(each func(file string)) {
		for _, above := range within {
			for _, name := range names {
				each(filepath.Join(s.root, above, name, "theirs"))
			}
		}
	}
	theirs(func(file string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte("dear"), 0o600))
	})
	require.Len(t, s.places(t), 1)
	release, busy, err := s.layout.Hold(t.Context(), ids[0])
	s.needFree(t, busy, err)
	require.NoError(t, s.layout.Archive(t.Context(), ids[0]))
	release()
	theirs(func(file string) { require.FileExists(t, file) })
	if s.Orphans == nil {
		return
	}
	orphans, err := s.Orphans(t.Context(), s.layout)
	require.NoError(t, err)
	var listed []string
	for _, orphan := range orphans {
		require.NotEmpty(t, orphan.Reason)
		require.False(t, orphan.Forgotten, "nothing says what %q is", orphan.Path)
		listed = append(listed, filepath.Base(orphan.Path))
	}
	slices.Sort(listed)
	slices.Sort(names)
	require.Equal(t, names, listed)
}

func (s *suite) empty(t testing.TB) {
	t.Helper()
	require.Empty(t, s.places(t))
	require.NoError(t, os.RemoveAll(filepath.Join(s.root, "persistence")))
	require.NoError(t, os.RemoveAll(filepath.Join(s.root, storage.ConversationsDir)))
	require.Empty(t, s.places(t), "also without the directories")
	require.NoError(t, syscall.Access(s.root, unix.W_OK))
}
