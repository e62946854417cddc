package server_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

// whole is a box with a bit of everything, as a boxd finds it.
type whole struct {
	t    *testing.T
	root string // as given to boxd
}

const longUnused = 40 * 24 * time.Hour

func newWhole(t *testing.T) *whole {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	w := &whole{t, filepath.Join(t.TempDir(), "box")}
	require.NoError(t, os.MkdirAll(filepath.Join(w.root, "conversations"), 0o700))
	require.NoError(t, os.Chmod(w.root, 0o700))
	return w
}

func (w *whole) git(dir string, args ...string) {
	w.t.Helper()
	agentservertest.Git(w.t, dir, args...)
}

func (w *whole) write(name, content string) {
	w.t.Helper()
	name = filepath.Join(w.root, name)
	require.NoError(w.t, os.MkdirAll(filepath.Dir(name), 0o700))
	require.NoError(w.t, os.WriteFile(name, []byte(content), 0o600))
}

// project makes a clone whose remote has all of it, with dependencies.
func (w *whole) project(name string) {
	w.t.Helper()
	remote := w.t.TempDir()
	w.git(remote, "init", "-q", "--bare", "-b", "main")
	dir := filepath.Join(w.root, name)
	require.NoError(w.t, os.MkdirAll(dir, 0o700))
	w.git(dir, "init", "-q", "-b", "main")
	w.write(name+"/.gitignore", "node_modules/\n")
	w.write(name+"/package.json", "{}")
	w.write(name+"/package-lock.json", "{}")
	w.git(dir, "add", "-A")
	w.git(dir, "commit", "-q", "-m", "first")
	w.git(dir, "remote", "add", "origin", remote)
	w.git(dir, "push", "-q", "-u", "origin", "main")
	w.modules(name)
}

// modules installs the dependencies of a project.
func (w *whole) modules(name string) {
	w.t.Helper()
	w.write(name+"/node_modules/.package-lock.json", "{}")
	w.write(name+"/node_modules/pad/index.js", strings.Repeat("x", 100_000))
}

// conversation makes one that works in a directory and is long unused.
func (w *whole) conversation(id, dir string) {
	w.t.Helper()
	used := time.Now().Add(-longUnused)
	_, err := agentservertest.WriteConversation(filepath.Join(w.root, "conversations"), agentservertest.Conversation{
		ID: id, WorkingDir: dir, Events: []agentservertest.Event{{Text: "hello", At: used}},
	})
	require.NoError(w.t, err)
	require.NoError(w.t, filepath.WalkDir(filepath.Join(w.root, "conversations", id), func(at string, _ os.DirEntry, err error) error {
		require.NoError(w.t, err)
		return os.Chtimes(at, used, used)
	}))
}

func (w *whole) runtime(id string) string {
	return "persistence/runtime-data/" + id
}

// contained makes a conversation with a container of its own, whose workspace
// is not a repository and holds one.
func (w *whole) contained(id string) {
	w.t.Helper()
	w.conversation(id, "/workspace")
	w.write(w.runtime(id)+"/persistence/x", "x")
	w.project(w.runtime(id) + "/workspace/project")
	manifest, err := json.Marshal(map[string]string{"workspace_path": filepath.Join(w.root, w.runtime(id), "workspace")})
	require.NoError(w.t, err)
	w.write("persistence/runtime-control/"+id+".json", string(manifest))
}

// All work lies in repositories below the directory where work is done, which is
// none itself.
func TestABoxWhoseWorkIsAllPushedIsClean(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	w.project("workspace/project")
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(w.root, link))
	for _, root := range []string{w.root, link} {
		b := startBoxd(t, root)
		var found box.Unsaved
		get(t, b.url+"/api/workspace/unsaved", &found)
		require.True(t, found.Clean, "%+v", found)
		require.Len(t, found.Repositories, 1)
		status, text, _ := ask(t, http.MethodGet, b.url+"/api/workspace/export", "")
		require.Equal(t, http.StatusOK, status)
		manifest, err := agentserver.VerifyWorkspace(bytes.NewReader([]byte(text)))
		require.NoError(t, err)
		require.Empty(t, manifest.Incomplete)
		require.EqualValues(t, 3, manifest.Files, "without the dependencies")
		b.stop(t)
	}
}

// A history that was taken in lies elsewhere on the disk than the others, and
// has nothing that a retention could be about.
func TestAHistoryThatWasTakenInIsMeasuredAndHasNoRetention(t *testing.T) {
	t.Parallel()
	from, to := newWhole(t), newWhole(t)
	from.conversation(liveID, "/workspace")
	first := startBoxd(t, from.root)
	status, packed, _ := ask(t, http.MethodGet, first.url+"/api/file/download-trajectory/"+liveID, "")
	require.Equal(t, http.StatusOK, status)
	second := startBoxd(t, to.root)
	status, text, _ := ask(t, http.MethodPut, second.url+"/api/boxd/history/"+liveID, packed)
	require.Equal(t, http.StatusCreated, status, text)
	var told box.StorageStatus
	get(t, second.url+"/api/storage", &told)
	require.Len(t, told.Conversations, 1)
	require.Positive(t, told.Conversations[0].HistoryBytes)
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		status, text, _ = ask(t, method, second.url+"/api/conversations/"+liveID+"/retention", `{"mode":"on_stop"}`)
		require.Equal(t, http.StatusGone, status, text)
	}
}

// engine puts a container engine without containers in the way.
func engine(t *testing.T) (path string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docker"), []byte("#!/bin/sh\nexit 0\n"), 0o700))
	return dir + ":" + os.Getenv("PATH")
}

func (w *whole) status(b *boxd) map[string]box.ConversationStorage {
	w.t.Helper()
	var told box.StorageStatus
	get(w.t, b.url+"/api/storage", &told)
	out := map[string]box.ConversationStorage{}
	for _, one := range told.Conversations {
		out[one.ID] = one
	}
	return out
}

// With its runtime a conversation leaves the list of its layout; its history
// stays, and so does what is known of it.
func TestAnArchivedConversationWithoutItsRuntimeIsToldAsArchived(t *testing.T) {
	w := newWhole(t)
	w.contained(liveID)
	t.Setenv("PATH", engine(t))
	b := startBoxd(t, w.root)
	status, text, _ := ask(t, http.MethodPost, b.url+"/api/storage/reclaim", `{"tiers":["runtime"],"conversation_ids":["`+liveID+`"]}`)
	require.Equal(t, http.StatusOK, status, text)
	require.NoDirExists(t, filepath.Join(w.root, w.runtime(liveID)), text)
	one := w.status(b)[liveID]
	require.Equal(t, "archived", one.State)
	require.Positive(t, one.ArchivedSeconds)
	require.Positive(t, one.HistoryBytes)
	status, _, _ = ask(t, http.MethodPost, b.url+"/api/conversations/"+liveID+"/run", "")
	require.Equal(t, http.StatusGone, status)
}

// takeRuntime asks for the runtime of a conversation and returns why the
// directory in which it works was left.
func (w *whole) takeRuntime(b *boxd, id, dir string) (left string) {
	w.t.Helper()
	status, text, _ := ask(w.t, http.MethodPost, b.url+"/api/storage/reclaim", `{"tiers":["runtime"],"conversation_ids":["`+id+`"]}`)
	require.Equal(w.t, http.StatusOK, status, text)
	var report box.ReclaimReport
	require.NoError(w.t, json.Unmarshal([]byte(text), &report))
	for _, one := range report.Items {
		if one.Path == dir && one.Tier == box.TierRuntime {
			return one.Skipped
		}
	}
	require.Fail(w.t, "it is not in the report", text)
	return ""
}

// The directory of a conversation may be the repository that worktrees of others
// belong to, which hold nothing of their own then.
func TestTheRepositoryOfAnothersWorktreeStays(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	const dir = "workspace/app"
	w.project(dir)
	w.conversation(archivedID, filepath.Join(w.root, dir))
	tree := filepath.Join(w.root, "worktrees", agentservertest.Dashed(liveID), "app")
	w.git(filepath.Join(w.root, dir), "worktree", "add", "-q", "-b", "openhands/"+liveID, tree)
	w.conversation(liveID, tree)
	b := startBoxd(t, w.root)
	require.Contains(t, w.takeRuntime(b, archivedID, dir), "worktree")
	w.git(tree, "status")
	w.git(filepath.Join(w.root, dir), "worktree", "remove", tree)
	require.Empty(t, w.takeRuntime(b, archivedID, dir))
	require.NoDirExists(t, filepath.Join(w.root, dir))
}

// A conversation-archived conversation has no work any more, but somebody else
// may have some where it worked.
func TestWorkWhereAnArchivedConversationWorkedStays(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	const dir = "workspace/app"
	w.project(dir)
	w.conversation(archivedID, filepath.Join(w.root, dir))
	w.write("persistence/runtime-control/"+archivedID+".archived.json", "{}")
	w.write(dir+"/notes.md", "by hand")
	b := startBoxd(t, w.root)
	require.Contains(t, w.takeRuntime(b, archivedID, dir), "holds unsaved work")
	require.FileExists(t, filepath.Join(w.root, dir, "notes.md"))
}

func TestWhatIsRescuedStaysInTheBox(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	outside := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(w.root, "persistence"), 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(w.root, "persistence/rescue")))
	cmd := exec.CommandContext(t.Context(), self(t), "--root", w.root)
	cmd.Env = append(os.Environ(), "SERVER_TEST_ROLE=boxd", "OH_SESSION_API_KEYS_0="+key)
	var said buffer
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(10 * time.Second):
		require.Fail(t, "boxd serves")
	}
	require.Contains(t, said.String(), "persistence/rescue")
}

// stop ends boxd in order.
func (b *boxd) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, b.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-b.ended)
	b.ended <- nil
}
