package storagetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// own looks at the one runtime of a conversation through the layout's own rule.
func (s *suite) own(t testing.TB, what func(reclaim.Remover) ([]box.ReclaimItem, error)) box.ReclaimItem {
	t.Helper()
	layout, ok := s.layout.(reclaim.Remover)
	require.True(t, ok)
	items, err := what(layout)
	require.NoError(t, err)
	require.Len(t, items, 1)
	require.Equal(t, s.dirs[ids[0]], items[0].Path)
	require.Equal(t, ids[0], items[0].ConversationID)
	require.Equal(t, box.TierRuntime, items[0].Tier)
	require.NotEmpty(t, items[0].Skipped+items[0].Evidence, "it says why")
	return items[0]
}

func (s *suite) judge(t testing.TB) (skipped string) {
	t.Helper()
	return s.own(t, func(l reclaim.Remover) ([]box.ReclaimItem, error) { return l.Judge(t.Context(), ids[0], false) }).Skipped
}

func (s *suite) remove(t testing.TB, accept bool) (skipped string) {
	t.Helper()
	return s.own(t, func(l reclaim.Remover) ([]box.ReclaimItem, error) { return l.Remove(t.Context(), ids[0], accept) }).Skipped
}

// trashed lists what a Remover put into the trash, and checks that nothing else is
// there.
func (s *suite) trashed(t testing.TB) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(s.root, reclaim.TrashDir, "*"))
	require.NoError(t, err)
	removed, err := filepath.Glob(filepath.Join(s.root, reclaim.TrashDir, reclaim.RemovedPrefix+"*"))
	require.NoError(t, err)
	require.Equal(t, removed, all, "the names say whose they are")
	return removed
}

func (s *suite) removed(t testing.TB) {
	t.Helper()
	dir, beside := s.make(t, ids[0], time.Now()), s.make(t, ids[1], time.Now())
	for _, id := range []string{ids[2], "", "..", "../" + ids[0]} {
		layout, ok := s.layout.(reclaim.Remover)
		require.True(t, ok)
		judged, _ := layout.Judge(t.Context(), id, true)
		require.Empty(t, judged, "%q", id)
		removed, _ := layout.Remove(t.Context(), id, true)
		require.Empty(t, removed, "%q", id)
	}
	require.Empty(t, s.judge(t))
	require.FileExists(t, filepath.Join(s.root, dir, "work"), "a look removes nothing")
	require.Empty(t, s.trashed(t))
	require.Empty(t, s.remove(t, false))
	_, err := os.Lstat(filepath.Join(s.root, dir))
	require.ErrorIs(t, err, os.ErrNotExist)
	trashed := s.trashed(t)
	require.Len(t, trashed, 1)
	require.FileExists(t, filepath.Join(trashed[0], "work"), "others delete it")
	require.FileExists(t, filepath.Join(s.root, beside, "work"))
	require.NotContains(t, s.places(t)[ids[0]].Workspaces, dir)
	again, err := s.layout.(reclaim.Remover).Remove(t.Context(), ids[0], false) //nolint:forcetypeassert,errcheck // checked above
	require.NoError(t, err, "it may be repeated")
	require.Empty(t, again)
	require.Equal(t, trashed, s.trashed(t))
}

func (s *suite) kept(t testing.TB) {
	t.Helper()
	dir := s.make(t, ids[0], time.Now())
	stays := func(accept bool, why string) {
		t.Helper()
		require.NotEmpty(t, s.remove(t, accept), why)
		require.FileExists(t, filepath.Join(s.root, dir, "work"), why)
		require.Empty(t, s.trashed(t), why)
	}
	release, busy, err := s.New(s.root, Writer(s.root)).Hold(t.Context(), ids[0])
	s.needFree(t, busy, err)
	stays(false, "somebody holds it")
	stays(true, "somebody holds it, though it was given up")
	release()
	child := exec.CommandContext(t.Context(), "sleep", "300")
	child.Dir = filepath.Join(s.root, dir)
	require.NoError(t, child.Start())
	stays(true, "a process works in it")
	require.NoError(t, child.Process.Kill())
	_ = child.Wait() // it was killed
	mine := filepath.Join(s.root, dir, "mine")
	require.NoError(t, os.WriteFile(mine, []byte("dear"), 0o600))
	require.NotEmpty(t, s.judge(t), "work of its own")
	stays(false, "work of its own")
	require.FileExists(t, mine)
	require.NoError(t, os.Remove(mine))
	// A link in its place is not followed.
	precious := filepath.Join(filepath.Dir(s.root), "precious")
	require.NoError(t, os.Rename(filepath.Join(s.root, dir), precious))
	require.NoError(t, os.Symlink(precious, filepath.Join(s.root, dir)))
	stays(true, "a link")
	require.NoError(t, os.Remove(filepath.Join(s.root, dir)))
	require.NoError(t, os.Rename(precious, filepath.Join(s.root, dir)))
	require.Empty(t, s.judge(t))
	require.Empty(t, s.remove(t, false), "nothing keeps it any more, nor held it")
}
