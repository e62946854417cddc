package sharedworkspace_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/sharedworkspace"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
)

func harness() storagetest.Harness {
	return storagetest.Harness{
		New: func(root string, write storage.Writer) reclaim.Layout {
			return sharedworkspace.New(root, write, sharedworkspace.Options{})
		},
		Make: func(t testing.TB, root, id string, used time.Time) string {
			t.Helper()
			return converse(t, root, id, filepath.Join(root, "workspace/projects", id[:4]), used)
		},
	}
}

// converse makes a conversation that works in dir, and returns dir below root.
func converse(t testing.TB, root, id, dir string, used time.Time) string {
	t.Helper()
	storagetest.Converse(t, root, id, dir, used)
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(root, dir)
	}
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "work"), []byte("dear"), 0o600))
	name, err := filepath.Rel(root, dir)
	require.NoError(t, err)
	return name
}

func TestMain(m *testing.M) { storagetest.Main(m, harness()) }

func TestScenario87And100TheContractOfLayouts(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, harness())
}

func idOf(digit byte) string { return strings.Repeat(string(digit), 32) }

func newBox(t *testing.T) (root string, layout *sharedworkspace.Layout) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, dir := range []string{"conversations", "workspace", "worktrees", "persistence/runtime-control"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	return root, sharedworkspace.New(root, storagetest.Writer(root), sharedworkspace.Options{})
}

func placesOf(t *testing.T, layout reclaim.Layout) map[string]reclaim.Place {
	t.Helper()
	list, err := layout.Places(t.Context())
	require.NoError(t, err)
	out := map[string]reclaim.Place{}
	for _, place := range list {
		out[place.Conversation] = place
	}
	return out
}

func TestADirectoryOfSeveralIsUsedWhileAnyOfThemIs(t *testing.T) {
	t.Parallel()
	root, layout := newBox(t)
	old, recent := time.Now().Add(-90*24*time.Hour), time.Now().Add(-24*time.Hour)
	a, b, c := idOf('a'), idOf('b'), idOf('c')
	converse(t, root, a, filepath.Join(root, "workspace/app"), old)
	converse(t, root, b, filepath.Join(root, "workspace/app/ui"), recent)
	converse(t, root, c, filepath.Join(root, "workspace/apple"), old)
	places := placesOf(t, layout)
	for _, id := range []string{a, b} {
		require.WithinDuration(t, recent, places[id].LastActive, time.Second, "the newest use of them all")
		require.Empty(t, places[id].Runtime, "the other one would lose it")
	}
	require.Empty(t, places[a].Workspaces)
	require.Equal(t, []string{"workspace/app"}, places[b].Workspaces, "listed once, with who used it last")
	require.Equal(t, "workspace/apple", places[c].Runtime, "a name that only begins alike is another directory")
	require.WithinDuration(t, old, places[c].LastActive, time.Second)

	lease := filepath.Join(root, "conversations", b, "owner_lease.json")
	require.NoError(t, os.WriteFile(lease, fmt.Appendf(nil, `{"owner_instance_id":"x","generation":1,"expires_at":%d}`, time.Now().Add(time.Hour).Unix()), 0o600))
	require.Contains(t, placesOf(t, layout)[a].Busy, "shares its directory with "+b)
	_, busy, err := layout.Hold(t.Context(), a)
	require.NoError(t, err)
	require.Contains(t, busy, "shares its directory with "+b)
	release, busy, err := layout.Hold(t.Context(), c)
	require.NoError(t, err)
	require.Empty(t, busy)
	release()
	require.NoError(t, os.Remove(lease))

	release, busy, err = layout.Hold(t.Context(), a)
	require.NoError(t, err)
	require.Empty(t, busy)
	_, busy, err = layout.Hold(t.Context(), b)
	require.NoError(t, err)
	require.NotEmpty(t, busy, "who holds one of them holds them all")
	release()

	require.NoError(t, layout.Archive(t.Context(), a))
	places = placesOf(t, layout)
	require.Empty(t, places[a].Runtime)
	require.Equal(t, "workspace/app", places[b].Runtime, "it is the last that uses it")
	require.NoError(t, layout.Archive(t.Context(), b))
	places = placesOf(t, layout)
	require.Equal(t, "workspace/app", places[b].Runtime, "so that a pass that was cut off is finished")
	require.Empty(t, places[a].Runtime)
}

func TestOnlyTheBoxsOwnDirectoriesAreListed(t *testing.T) {
	t.Parallel()
	root, layout := newBox(t)
	elsewhere, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	rows := map[string]struct {
		id, dir string
		listed  bool
		runtime string
	}{
		"a directory of the workspace":               {idOf('1'), filepath.Join(root, "workspace/one"), true, "workspace/one"},
		"the same, relative to the server":           {idOf('2'), "workspace/two", true, "workspace/two"},
		"a caller's directory":                       {idOf('3'), elsewhere, true, ""},
		"a worktree":                                 {idOf('5'), filepath.Join(root, "worktrees/x/repo"), false, ""},
		"a directory beside the workspace":           {idOf('6'), filepath.Join(root, "persistence/mine"), true, ""},
		"a way out of the workspace":                 {idOf('7'), filepath.Join(root, "workspace") + "/../persistence/other", true, ""},
		"a name that only begins like the workspace": {idOf('8'), filepath.Join(root, "workspaces/x"), true, ""},
	}
	for _, row := range rows {
		converse(t, root, row.id, row.dir, time.Now())
	}
	// A way in through a link is a use of the directory all the same.
	require.NoError(t, os.Symlink("one", filepath.Join(root, "workspace/link")))
	places := placesOf(t, layout)
	for name, row := range rows {
		place, listed := places[row.id]
		require.Equal(t, row.listed, listed, name)
		require.Equal(t, row.runtime, place.Runtime, name)
	}
	converse(t, root, idOf('9'), filepath.Join(root, "workspace/link"), time.Now())
	places = placesOf(t, layout)
	require.Empty(t, places[idOf('1')].Runtime, "two use it now")
	require.Empty(t, places[idOf('9')].Runtime)

	// One with a container is the other layout's.
	require.NoError(t, os.WriteFile(filepath.Join(root, "persistence/runtime-control", idOf('2')+".json"), []byte("{}"), 0o600))
	require.NotContains(t, placesOf(t, layout), idOf('2'))
}

func TestTheWorkspaceItselfIsNeverTaken(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{"the workspace": "workspace", "the box": ".", "above the box": ".."} {
		root, layout := newBox(t)
		a, b := idOf('a'), idOf('b')
		converse(t, root, a, filepath.Join(root, "workspace/app"), time.Now().Add(-24*time.Hour))
		converse(t, root, b, filepath.Join(root, dir), time.Now())
		places := placesOf(t, layout)
		require.Empty(t, places[a].Runtime, name)
		require.Empty(t, places[b].Runtime, name)
		require.WithinDuration(t, time.Now(), places[a].LastActive, time.Minute, name)
		require.NoError(t, layout.Archive(t.Context(), a))
		require.Empty(t, placesOf(t, layout)[a].Runtime, "who works above may use it: %s", name)
	}
}

func TestAnUnreadableConversationKeepsEveryDirectory(t *testing.T) {
	t.Parallel()
	root, layout := newBox(t)
	a, b := idOf('a'), idOf('b')
	converse(t, root, a, filepath.Join(root, "workspace/app"), time.Now())
	converse(t, root, b, filepath.Join(root, "workspace/other"), time.Now())
	require.NoError(t, os.WriteFile(filepath.Join(root, "conversations", b, "meta.json"), []byte("{"), 0o600))
	require.Contains(t, placesOf(t, layout)[a].Busy, b)
	_, busy, err := layout.Hold(t.Context(), a)
	require.NoError(t, err)
	require.Contains(t, busy, b, "it may work anywhere")
	// An empty directory is no conversation.
	require.NoError(t, os.RemoveAll(filepath.Join(root, "conversations", b)))
	require.NoError(t, os.Mkdir(filepath.Join(root, "conversations", b), 0o700))
	require.Empty(t, placesOf(t, layout)[a].Busy)
	require.NoError(t, os.WriteFile(filepath.Join(root, "conversations", b, "owner_lease.json"), []byte("{}"), 0o600))
	require.Contains(t, placesOf(t, layout)[a].Busy, "is being made")
}
