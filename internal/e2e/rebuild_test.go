package e2e_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// rebuilds is the answer of a rebuild.
type rebuilds struct {
	Workspaces []struct{ Workspace, Result, Text string }
}

// rebuild runs a rebuild and returns what became of each workspace.
func (i *installation) rebuild(args ...string) map[string]string {
	i.t.Helper()
	out := map[string]string{}
	for _, w := range answerOf[rebuilds](i, append([]string{"fleet", "rebuild"}, args...)...).Workspaces {
		out[w.Workspace] = w.Result
	}
	return out
}

// remembered is a show or a why that the ledger answers.
func remembered[A any](i *installation, command, workspace string) A {
	i.t.Helper()
	var answer A
	out, code := i.run("box", command, workspace, "-o", "json")
	require.Equal(i.t, 8, code, "%s answers from the ledger", command)
	require.NoError(i.t, json.Unmarshal([]byte(out), &answer))
	return answer
}

// noted waits until the ledger of a workspace ends with an entry of this kind.
func (i *installation) noted(workspace string, kind exports.Kind) {
	i.t.Helper()
	store, err := exports.Open(i.t.Context(), "file://"+filepath.Join(i.dir, "exports"))
	require.NoError(i.t, err)
	defer store.Close() //nolint:errcheck // only read
	eventually(i.t, within, func() error {
		entries, err := store.Ledger(i.t.Context(), workspace)
		if err == nil && (len(entries) == 0 || entries[len(entries)-1].Kind != kind) {
			err = fmt.Errorf("the ledger of %s does not end with %s", workspace, kind)
		}
		return err
	})
}

// written creates a workspace with one conversation in it and returns the
// conversation's id.
func (i *installation) written(workspace string, flags ...string) string {
	i.t.Helper()
	_, code := i.run(append([]string{"box", "create", workspace, "--wait"}, flags...)...)
	require.Zero(i.t, code)
	s := i.await(workspace, within, box.StateRunning)
	id, err := agentservertest.WriteConversation(filepath.Join(i.boxDir(s), "conversations"), agentservertest.Conversation{
		Title: "kept", Events: []agentservertest.Event{{Text: "one"}, {Text: "two"}, {Text: "three"}},
	})
	require.NoError(i.t, err)
	return id
}

// Rule 32: the engine's data is lost, and every box comes back from its ledger
// with its epoch, its deadlines and its receipt. A closed id stays closed.
func TestEveryBoxComesBackAfterTheLossOfTheEngine(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("finding and killing box processes needs /proc")
	}
	i := newInstallation(t)
	id := i.written("resting", "--idle", "3s")
	i.written("awake", "--idle", "1h")
	i.written("closed", "--idle", "1h")
	loss := answerOf[box.Loss](i, "box", "delete", "closed")
	_, code := i.run("box", "confirm", "closed", "--token", loss.Token, "--wait")
	require.Zero(t, code)
	i.await("resting", within, box.StateSuspended)
	_, code = i.run("box", "policy", "resting", "--paused-ttl", "10d")
	require.Zero(t, code)
	_, code = i.run("box", "keep", "awake")
	require.Zero(t, code)
	i.noted("resting", exports.KindMarks)
	i.noted("awake", exports.KindMarks)
	before, pids := i.await("resting", within, box.StateSuspended), i.boxPids()
	require.Len(t, pids, 1)
	require.True(t, before.ExportCovers)

	i.worker.kill()
	i.engine.kill()
	require.NoError(t, os.RemoveAll(filepath.Join(i.dir, "engine")))
	said := remembered[box.Status](i, "show", "resting")
	require.Equal(t, box.SourceLedger, said.Source)
	require.Equal(t, box.StateSuspended, said.State)
	require.Equal(t, before.Export, said.Export)
	require.Equal(t, before.Policy, said.Policy)
	why := remembered[box.Why](i, "why", "awake")
	require.Equal(t, box.SourceLedger, why.Source)
	closed := answerOf[box.Status](i, "box", "show", "closed")
	require.Equal(t, box.StateBoxArchived, closed.State)
	_, code = i.run("box", "history", "resting", "--verify")
	require.Zero(t, code)

	i.startEngine()
	require.Contains(t, i.engine.text(), `nobody watches their boxes: awake, resting; "boxkeeperd fleet rebuild" brings them back`)
	i.startWorker()
	require.Equal(t, map[string]string{"awake": "would-rebuild", "resting": "would-rebuild", "closed": "closed"}, i.rebuild("--dry-run"))
	require.Equal(t, map[string]string{"awake": "rebuilt", "resting": "rebuilt", "closed": "closed"}, i.rebuild())
	require.Equal(t, map[string]string{"awake": "watched", "resting": "watched", "closed": "closed"}, i.rebuild())

	var after box.Status
	eventually(t, within, func() error { // read, and that noted
		if after = i.await("resting", within, box.StateSuspended); after.Next != box.StepNotify {
			return fmt.Errorf("next is %s", after.Next)
		}
		return nil
	})
	require.Equal(t, before.Epoch, after.Epoch)
	require.Equal(t, before.Export, after.Export)
	require.Equal(t, before.Policy, after.Policy)
	require.Equal(t, before.Ref, after.Ref)
	require.True(t, after.SuspendedSince.Equal(before.SuspendedSince), "suspended since %s, was %s", after.SuspendedSince, before.SuspendedSince)
	require.True(t, after.NextAt.Equal(before.NextAt), "next at %s, was %s", after.NextAt, before.NextAt)
	require.True(t, after.ExportCovers)
	awake := i.await("awake", within, box.StateRunning)
	require.Contains(t, awake.Flags, "kept")
	require.Equal(t, pids, i.boxPids(), "the same process goes on, and nothing was woken")

	_, code = i.run("box", "create", "closed")
	require.Zero(t, code, "the engine has forgotten it; the ledger has not")
	refused := i.await("closed", within, box.StateCreateFailed)
	require.Contains(t, refused.Reason.Text, "stays closed")

	loss = answerOf[box.Loss](i, "box", "delete", "resting")
	require.True(t, loss.Covered)
	_, code = i.run("box", "confirm", "resting", "--token", loss.Token, "--wait")
	require.Zero(t, code)
	_, err := os.Stat(i.boxDir(after))
	require.ErrorIs(t, err, os.ErrNotExist)
	i.requireHistory("resting", id, 3)
	require.Equal(t, pids, i.boxPids(), "the deletion of a suspended box woke nothing")
}

// Rule 32: a terminated workflow leaves its box running; it is said as such, and
// comes back.
func TestATerminatedWorkflowComesBack(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("finding and killing box processes needs /proc")
	}
	i := newInstallation(t)
	i.written("ended", "--idle", "1h")
	before, pids := i.await("ended", within, box.StateRunning), i.boxPids()
	c, err := client.DialContext(t.Context(), client.Options{
		HostPort: fmt.Sprintf("127.0.0.1:%d", i.port), Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	require.NoError(t, err)
	defer c.Close()
	terminate := func() {
		require.NoError(t, c.TerminateWorkflow(t.Context(), box.WorkflowID("ended"), "", "by mistake"))
	}

	terminate()
	said := remembered[box.Status](i, "show", "ended")
	require.Equal(t, before.Ref, said.Ref)
	_, code := i.run("box", "create", "ended")
	require.Equal(t, 4, code, "an id that was used starts again")
	require.Equal(t, map[string]string{"ended": "rebuilt"}, i.rebuild("ended"))
	after := i.await("ended", within, box.StateRunning)
	require.Equal(t, before.Ref, after.Ref)
	require.Equal(t, pids, i.boxPids())

	// A deletion that was confirmed and not begun must be confirmed again.
	loss := answerOf[box.Loss](i, "box", "delete", "ended", "--undo", "1h")
	_, code = i.run("box", "confirm", "ended", "--token", loss.Token)
	require.Zero(t, code)
	i.await("ended", within, box.StateUndoWindow)
	terminate()
	require.Equal(t, map[string]string{"ended": "rebuilt"}, i.rebuild())
	rested := i.await("ended", within, box.StateSuspended)
	require.Nil(t, rested.Deletion)
	_, code = i.run("box", "confirm", "ended", "--token", loss.Token)
	require.Equal(t, 4, code, "a token from before is good again")
	loss = answerOf[box.Loss](i, "box", "delete", "ended")
	_, code = i.run("box", "confirm", "ended", "--token", loss.Token, "--wait")
	require.Zero(t, code)
	require.Empty(t, i.boxPids())
	require.Equal(t, map[string]string{"ended": "closed"}, i.rebuild())
}
