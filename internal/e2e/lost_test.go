package e2e_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

// refused runs a command that must be refused because of the state.
func (i *installation) refused(args ...string) {
	i.t.Helper()
	_, code := i.run(args...)
	require.Equal(i.t, 4, code, "boxkeeper %v", args)
}

// loses removes a suspended box behind everybody's back and lets that be
// noticed.
func (i *installation) loses(workspace string) {
	i.t.Helper()
	_, code := i.run("box", "suspend", workspace)
	require.Zero(i.t, code)
	s := i.await(workspace, within, box.StateSuspended)
	require.NoError(i.t, os.RemoveAll(i.boxDir(s)))
	i.await(workspace, within, box.StateLost)
}

// A box that is gone without us is a person's to decide on: a new one with its
// history, an empty one, or none. Epochs go on, and nothing is destroyed while a
// hold is on.
func TestALostBoxIsRestoredAndReplaced(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the local provider proves that a box is gone by /proc")
	}
	i := newInstallation(t)
	const ws = "phoenix"
	id := i.written(ws, "--idle", "1h")
	notes := filepath.Join("workspace", "notes", "plan.md")
	first := filepath.Join(i.boxDir(i.await(ws, within, box.StateRunning)), notes)
	require.NoError(t, os.MkdirAll(filepath.Dir(first), 0o700))
	require.NoError(t, os.WriteFile(first, []byte("nobody pushed this"), 0o600))
	i.loses(ws)
	i.refused("box", "connect", ws, "--holder", "h")
	i.refused("box", "resume", ws)

	before := i.await(ws, within, box.StateLost)
	require.Equal(t, 3, before.Export.Events)
	_, code := i.run("box", "restore", ws)
	require.Zero(t, code)
	s := i.await(ws, within, box.StateRunning)
	require.Equal(t, 2, s.Epoch)
	require.NotEqual(t, before.Ref.ID, s.Ref.ID)
	require.DirExists(t, filepath.Join(i.boxDir(s), "conversations"), "the history is in the new box")
	text, err := os.ReadFile(filepath.Join(i.boxDir(s), notes))
	require.NoError(t, err, "and so is the workspace")
	require.Equal(t, "nobody pushed this", string(text))
	again := answerOf[box.Receipt](i, "box", "export", ws)
	require.Equal(t, before.Export.Digest, again.Digest, "it is the same history, event by event")
	i.requireHistory(ws, id, 3)

	i.loses(ws)
	_, code = i.run("box", "replace", ws)
	require.Zero(t, code)
	s = i.await(ws, within, box.StateRunning)
	require.Equal(t, 3, s.Epoch)
	conversations, err := os.ReadDir(filepath.Join(i.boxDir(s), "conversations"))
	require.True(t, err == nil || os.IsNotExist(err))
	require.Empty(t, conversations, "a replacement is empty")

	_, code = i.run("box", "policy", ws, "--paused-ttl", "10d")
	require.Zero(t, code)
	_, code = i.run("box", "hold", ws, "--reason", "an incident")
	require.Zero(t, code)
	loss := answerOf[box.Loss](i, "box", "delete", ws)
	_, code = i.run("box", "confirm", ws, "--token", loss.Token)
	require.Zero(t, code)
	held := i.await(ws, within, box.StateExporting, box.StateSuspended, box.StateUndoWindow)
	require.Contains(t, held.Flags, "held")
	require.DirExists(t, i.boxDir(held))
	_, code = i.run("box", "hold", ws, "--off")
	require.Zero(t, code)
	i.await(ws, within, box.StateBoxArchived)
	i.golden(ws, "restored")
	i.requireHistory(ws, id, 3)
}

// A box that was made before boxkeeper is taken over as it is, and one that
// nobody can reach any more is given up on record: its id stays closed.
func TestABoxIsAdoptedAndAnotherAbandoned(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the local provider finds boxes by /proc")
	}
	i := newInstallation(t)
	i.written("first", "--idle", "1h") // the provider's directory is there
	stray := filepath.Join(i.dir, "boxes", "local", "boxes", "an-old-session")
	require.NoError(t, os.MkdirAll(filepath.Join(stray, "conversations"), 0o700))
	id, err := agentservertest.WriteConversation(filepath.Join(stray, "conversations"), agentservertest.Conversation{
		Events: []agentservertest.Event{{Text: "from before"}},
	})
	require.NoError(t, err)
	_, code := i.run("box", "adopt", "local", "an-old-session", "--workspace", "found", "--owner", "ann")
	require.Zero(t, code)
	s := i.await("found", within, box.StateSuspended)
	require.DirExists(t, filepath.Join(i.boxDir(s), "conversations", id), "what was in it is in it")
	require.Len(t, i.boxPids(), 1, "nothing was woken")
	_, code = i.run("box", "adopt", "local", s.Ref.ID, "--workspace", "thief", "--owner", "eve")
	require.Zero(t, code)
	require.Contains(t, i.await("thief", within, box.StateCreateFailed).Reason.Text, "was not taken over")
	loss := answerOf[box.Loss](i, "box", "delete", "found")
	require.False(t, loss.Covered, "somebody may have worked in it")
	_, code = i.run("box", "confirm", "found", "--token", loss.Token, "--wait")
	require.Equal(t, 7, code, "nobody had seen what is in it: it was read and exported, and must be confirmed anew")
	loss = answerOf[box.Loss](i, "box", "delete", "found")
	require.True(t, loss.Covered)
	require.Equal(t, 1, loss.Events)
	_, code = i.run("box", "confirm", "found", "--token", loss.Token, "--wait")
	require.Zero(t, code)
	require.NoDirExists(t, i.boxDir(s))
	i.requireHistory("found", id, 1)
	i.golden("found", "adopted")

	i.refused("box", "abandon", "first", "--reason", "no need to look any more")
	pids := i.boxPids()
	require.Len(t, pids, 1)
	_, code = i.run("box", "abandon", "first", "--reason", "the account is closed", "--force")
	require.Zero(t, code)
	left := i.await("first", within, box.StateAbandoned)
	require.Contains(t, left.Reason.Text, "the account is closed")
	require.Equal(t, pids, i.boxPids(), "nothing was done to the box")
	i.golden("first", "abandoned")
	out, code := i.run("box", "create", "first")
	require.NotZero(t, code, out)
	require.False(t, strings.Contains(out, "created"))
}
