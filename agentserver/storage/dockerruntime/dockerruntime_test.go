package dockerruntime_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/dockerruntime"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
	"github.com/openhands/boxkeeper/box"
)

func noContainer(context.Context) (dockerruntime.Listed, error) {
	return func(string) (string, error) { return "", nil }, nil
}

func harness() storagetest.Harness {
	return storagetest.Harness{
		New: func(root string, write storage.Writer) reclaim.Layout {
			return dockerruntime.New(root, write, dockerruntime.Options{Containers: noContainer})
		},
		Make: func(t testing.TB, root, id string, used time.Time) string {
			t.Helper()
			runtime := makeRuntime(t, root, id, used)
			manifest(t, root, id, filepath.Join(root, runtime, "workspace"))
			return runtime
		},
		Orphans: func(ctx context.Context, l reclaim.Layout) ([]storage.Orphan, error) {
			return l.(*dockerruntime.Layout).Orphans(ctx) //nolint:forcetypeassert,errcheck // made above
		},
	}
}

func makeRuntime(t testing.TB, root, id string, used time.Time) string {
	t.Helper()
	storagetest.Converse(t, root, id, "/workspace", used)
	runtime := filepath.Join("persistence/runtime-data", id)
	for _, dir := range []string{"persistence/.cache/uv", "workspace"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, runtime, dir), 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, runtime, "work"), []byte("dear"), 0o600))
	return runtime
}

func manifest(t testing.TB, root, id, workspace string) {
	t.Helper()
	control := filepath.Join(root, "persistence/runtime-control")
	require.NoError(t, os.MkdirAll(control, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(control, id+".json"), fmt.Appendf(nil, `{"conversation_id":%q,"workspace_path":%q}`, id, workspace), 0o600))
}

func TestMain(m *testing.M) { storagetest.Main(m, harness()) }

func TestScenario87And100TheContractOfLayouts(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, harness())
}

const id = "0123456789abcdef0123456789abcdef"

func newBox(t *testing.T) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, dir := range []string{"conversations", "persistence/runtime-control"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	return root
}

func TestAWorkspaceThatACallerChoseIsNotListed(t *testing.T) {
	t.Parallel()
	root := newBox(t)
	runtime := makeRuntime(t, root, id, time.Now())
	layout := dockerruntime.New(root, storagetest.Writer(root), dockerruntime.Options{Containers: noContainer})
	list, err := layout.Places(t.Context())
	require.NoError(t, err)
	require.Empty(t, list[0].Workspaces, "without a manifest nothing says whose it is")
	require.NoError(t, os.Rename(filepath.Join(root, runtime, "workspace"), filepath.Join(root, "aside")))
	list, err = layout.Places(t.Context())
	require.NoError(t, err)
	require.Equal(t, runtime, list[0].Runtime, "without one it may go, as with a caller's own")
	require.NoError(t, os.Rename(filepath.Join(root, "aside"), filepath.Join(root, runtime, "workspace")))
	for place, own := range map[string]bool{
		"none": false, "/srv/checkout": false, root: false,
		filepath.Join(root, runtime): false, filepath.Join(root, runtime, "workspace", "..", "..", "x"): false,
		filepath.Join(root, runtime, "workspace"): true, filepath.Join(root, runtime, ".", "workspace") + "/": true,
	} {
		manifest(t, root, id, place)
		list, err := layout.Places(t.Context())
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, filepath.Join(runtime, "persistence"), list[0].Home)
		if own {
			require.Equal(t, runtime, list[0].Runtime)
			require.Equal(t, []string{filepath.Join(runtime, "workspace")}, list[0].Workspaces)
		} else {
			require.Empty(t, list[0].Workspaces, place)
			require.Empty(t, list[0].Runtime, "a workspace of which nothing says whose it is would go with it")
		}
	}
}

func TestAContainerKeepsAConversation(t *testing.T) {
	t.Parallel()
	root := newBox(t)
	runtime := makeRuntime(t, root, id, time.Now())
	manifest(t, root, id, filepath.Join(root, runtime, "workspace"))
	runs := func(of string) (string, error) { return "agent-server-conversation-" + of, nil }
	unclear := func(string) (string, error) { return "", errors.New("odd list") }
	for name, tell := range map[string]func(context.Context) (dockerruntime.Listed, error){
		"one that runs":               func(context.Context) (dockerruntime.Listed, error) { return runs, nil },
		"an engine without an answer": func(context.Context) (dockerruntime.Listed, error) { return nil, errors.New("no engine") },
		"an answer that says nothing": func(context.Context) (dockerruntime.Listed, error) { return unclear, nil },
		"nobody to ask":               nil,
	} {
		layout := dockerruntime.New(root, storagetest.Writer(root), dockerruntime.Options{Containers: tell})
		places, err := layout.Places(t.Context())
		require.NoError(t, err, name)
		require.Contains(t, places[0].Busy, "container", "a plan says so beforehand: %s", name)
		release, busy, err := layout.Hold(t.Context(), id)
		require.NoError(t, err, name)
		require.Contains(t, busy, "container", name)
		require.Nil(t, release, name)
		require.Equal(t, box.ClassConflict, box.ClassOf(layout.Archive(t.Context(), id)), name)
		require.NoFileExists(t, filepath.Join(root, "persistence/runtime-control", id+".archived.json"), "the marker goes again: %s", name)
	}
}

func TestWhoWritesTheManifestKeepsAConversation(t *testing.T) {
	t.Parallel()
	root := newBox(t)
	runtime := makeRuntime(t, root, id, time.Now())
	manifest(t, root, id, filepath.Join(root, runtime, "workspace"))
	first := dockerruntime.New(root, storagetest.Writer(root), dockerruntime.Options{Containers: noContainer})
	release, busy, err := first.Hold(t.Context(), id)
	require.NoError(t, err)
	require.Empty(t, busy)
	release()
	lock := lockFile(t, filepath.Join(root, "persistence/runtime-control", id+".json.lock"))
	_, busy, err = first.Hold(t.Context(), id)
	require.NoError(t, err)
	require.Contains(t, busy, id+".json.lock is held")
	lock()
	release, busy, err = first.Hold(t.Context(), id)
	require.NoError(t, err)
	require.Empty(t, busy, "nothing stays locked after a hold that did not come about")
	release()
}

func TestARuntimeThatNothingSpeaksOfIsForgotten(t *testing.T) {
	t.Parallel()
	root := newBox(t)
	makeRuntime(t, root, id, time.Now())
	layout := dockerruntime.New(root, storagetest.Writer(root), dockerruntime.Options{Containers: noContainer})
	orphans, err := layout.Orphans(t.Context())
	require.NoError(t, err)
	require.Empty(t, orphans, "its history speaks of it")
	require.NoError(t, os.RemoveAll(filepath.Join(root, "conversations", id)))
	manifest(t, root, id, "/srv")
	orphans, err = layout.Orphans(t.Context())
	require.NoError(t, err)
	require.Empty(t, orphans, "its manifest speaks of it")
	_, busy, err := layout.Hold(t.Context(), id)
	require.NoError(t, err)
	require.Contains(t, busy, "no history")
	require.NoError(t, os.Remove(filepath.Join(root, "persistence/runtime-control", id+".json")))
	orphans, err = layout.Orphans(t.Context())
	require.NoError(t, err)
	require.Len(t, orphans, 1)
	require.True(t, orphans[0].Forgotten)
	require.Equal(t, id, orphans[0].Conversation)
	places, err := layout.Places(t.Context())
	require.NoError(t, err)
	require.Empty(t, places)
}

func TestAForgottenRuntimeGoesWhenNobodyIsAtIt(t *testing.T) {
	t.Parallel()
	root := newBox(t)
	runtime := makeRuntime(t, root, id, time.Now())
	name := ""
	layout := dockerruntime.New(root, storagetest.Writer(root), dockerruntime.Options{
		Containers: func(context.Context) (dockerruntime.Listed, error) {
			return func(string) (string, error) { return name, nil }, nil
		},
	}).Forgotten()
	places := func() []reclaim.Place {
		t.Helper()
		list, err := layout.Places(t.Context())
		require.NoError(t, err)
		return list
	}
	require.Empty(t, places(), "its history speaks of it")
	_, _, err := layout.Hold(t.Context(), id)
	require.Equal(t, box.ClassNotFound, box.ClassOf(err))
	require.Equal(t, box.ClassConflict, box.ClassOf(layout.Archive(t.Context(), id)))
	require.NoError(t, os.RemoveAll(filepath.Join(root, "conversations", id)))
	list := places()
	require.Len(t, list, 1)
	require.Contains(t, list[0].Busy, "less than a day ago", "it may be in the making")
	old := time.Now().Add(-25 * time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(root, runtime), old, old))
	list = places()
	require.Equal(t, runtime, list[0].Runtime)
	require.Equal(t, []string{runtime + "/workspace"}, list[0].Workspaces, "what is in it is judged before it goes")
	require.Empty(t, list[0].Busy)
	name = "agent-server-conversation-x"
	require.Contains(t, places()[0].Busy, name)
	_, busy, err := layout.Hold(t.Context(), id)
	require.NoError(t, err)
	require.Contains(t, busy, name)
	name = ""
	lock := lockFile(t, filepath.Join(root, "persistence/runtime-control", id+".json.lock"))
	_, busy, err = layout.Hold(t.Context(), id)
	require.NoError(t, err)
	require.NotEmpty(t, busy)
	lock()
	release, busy, err := layout.Hold(t.Context(), id)
	require.NoError(t, err)
	if busy == "" {
		release()
	} else {
		require.Contains(t, busy, "needs Linux")
	}
	require.NoError(t, layout.Archive(t.Context(), id))
	require.NoFileExists(t, filepath.Join(root, "persistence/runtime-control", id+".archived.json"))
	require.Equal(t, box.ClassNotFound, box.ClassOf(layout.Archive(t.Context(), "..")))
}
