package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/engine"
)

// TestKillAnything lets one box live its whole life while one of the three
// processes is killed with SIGKILL at three different points; the end is the
// same each time: nothing lost, nothing doubled, nothing left.
func TestKillAnything(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("finding and killing box processes needs /proc")
	}
	for name, kill := range map[string]func(i *installation){
		"engine": func(i *installation) { i.engine.kill(); i.checkFile(); i.startEngine() },
		"worker": func(i *installation) { i.worker.kill(); i.startWorker() },
		"box":    func(i *installation) { i.killBoxes() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newInstallation(t)
			i.lifeWithKills(name, func() { kill(i) })
		})
	}
}

// checkFile runs SQLite's own check on the file that a kill left.
func (i *installation) checkFile() {
	i.t.Helper()
	require.NoError(i.t, engine.IntegrityCheck(i.t.Context(), i.dir))
}

func (i *installation) lifeWithKills(victim string, kill func()) {
	t := i.t
	const ws = "victim"
	_, code := i.run("box", "create", ws, "--idle", "3s", "--paused-ttl", "8s", "--notice", "2s", "--undo", "3s", "--wait")
	require.Zero(t, code)
	answerOf[box.ConnectAnswer](i, "box", "connect", ws, "--holder", "agent", "--lease", "1h")
	s := i.await(ws, within, box.StateRunning)
	id, err := agentservertest.WriteConversation(filepath.Join(i.boxDir(s), "conversations"), agentservertest.Conversation{
		Title: "kept", Events: []agentservertest.Event{{Text: "one"}, {Text: "two"}, {Text: "three"}},
	})
	require.NoError(t, err)
	fillCache(t, i.boxDir(s))

	kill()               // the first point: awake, someone is connected
	if victim == "box" { // it is started again for its user
		eventually(t, within, func() error {
			why := answerOf[box.Why](i, "box", "why", ws)
			last := why.Transitions[len(why.Transitions)-1]
			if pids := i.boxPids(); len(pids) != 1 || last.To != box.StateRunning || len(why.Transitions) < 3 {
				return fmt.Errorf("%d processes, state %s after %d transitions", len(pids), last.To, len(why.Transitions))
			}
			return nil
		})
	}
	i.await(ws, within, box.StateRunning)
	answerOf[box.ActionAnswer](i, "box", "release", ws, "--holder", "agent")

	i.await(ws, within, box.StateDraining, box.StateSuspending, box.StateSuspended)
	kill() // the second point: on the way to suspended
	i.await(ws, 3*time.Minute, box.StateSuspended, box.StateAwaitingConfirm)
	require.Empty(t, i.boxPids(), "a suspended box has processes")

	answerOf[box.ConnectAnswer](i, "box", "connect", ws, "--holder", "agent", "--lease", "1h")
	i.await(ws, 2*time.Minute, box.StateRunning)
	answerOf[box.ActionAnswer](i, "box", "release", ws, "--holder", "agent")
	i.await(ws, 3*time.Minute, box.StateSuspended, box.StateAwaitingConfirm)

	loss := answerOf[box.Loss](i, "box", "delete", ws)
	require.Equal(t, 1, loss.Conversations)
	_, code = i.run("box", "confirm", ws, "--token", loss.Token)
	require.Zero(t, code)
	kill() // the third point: a confirmed deletion is under way
	i.await(ws, 3*time.Minute, box.StateBoxArchived)

	require.Empty(t, i.boxPids())
	left, err := filepath.Glob(filepath.Join(i.dir, "boxes", "local", "boxes", "bk-*"))
	require.NoError(t, err)
	require.Empty(t, left, "the box's directory is still there")
	i.requireHistory(ws, id, 3)
	i.requireLedger(ws)
	i.golden(ws, "killed-"+victim)
	_, code = i.run("box", "create", ws)
	require.Equal(t, 4, code, "a closed id started again")
}

func (i *installation) requireHistory(ws, id string, events int) {
	i.t.Helper()
	out, code := i.run("box", "history", ws, "--verify", "-o", "json")
	require.Zero(i.t, code)
	var h struct {
		Verified      bool `json:"verified"`
		Conversations []struct {
			ID     string `json:"id"`
			Events int    `json:"events"`
		} `json:"conversations"`
	}
	require.NoError(i.t, json.Unmarshal([]byte(out), &h))
	require.True(i.t, h.Verified)
	require.Len(i.t, h.Conversations, 1)
	require.Equal(i.t, id, h.Conversations[0].ID)
	require.Equal(i.t, events, h.Conversations[0].Events)
}

// requireLedger reads the ledger: one box was made, one tombstone was set, last.
func (i *installation) requireLedger(ws string) {
	i.t.Helper()
	store, err := exports.Open(i.t.Context(), "file://"+filepath.Join(i.dir, "exports"))
	require.NoError(i.t, err)
	defer store.Close() //nolint:errcheck // only read
	entries, err := store.Ledger(i.t.Context(), ws)
	require.NoError(i.t, err)
	refs := map[string]bool{}
	for _, e := range entries {
		if e.Kind == exports.KindCreated {
			var c struct {
				Observation box.Observation `json:"observation"`
			}
			require.NoError(i.t, json.Unmarshal(e.Data, &c))
			refs[c.Observation.Ref.ID] = true
		}
	}
	require.Len(i.t, refs, 1, "more than one box was made")
	require.Equal(i.t, exports.KindDeleted, entries[len(entries)-1].Kind)
}

// cacheFile is what fillCache makes, below a box's directory.
const cacheFile = "home/.cache/pip/http-v2/x.body"

func fillCache(t *testing.T, boxDir string) {
	t.Helper()
	fillCacheWith(t, boxDir, 4<<20)
}

// fillCacheWith is fillCache with so many bytes: what is freed is what the disk has
// more of, so they have to be more than others write while it is measured.
func fillCacheWith(t *testing.T, boxDir string, bytes int) {
	t.Helper()
	name := filepath.Join(boxDir, cacheFile)
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	require.NoError(t, err)
	_, err = file.Write(make([]byte, bytes))
	require.NoError(t, err)
	require.NoError(t, file.Sync()) // until then it may take no room on the disk, and none is freed with it
	require.NoError(t, file.Close())
}

// TestAKilledBoxIsNoticed kills a box while nobody is connected: it is noticed
// within five seconds, without polling, also by a worker that started later.
func TestAKilledBoxIsNoticed(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("watching processes needs Linux's pidfd")
	}
	i := newInstallation(t)
	for _, ws := range []string{"noticed", "noticed-later"} {
		_, code := i.run("box", "create", ws, "--idle", "1h", "--wait")
		require.Zero(t, code)
		if ws == "noticed-later" { // the watch is the new worker's
			i.worker.kill()
			i.startWorker()
		}
		require.Len(t, i.boxPids(), 1)
		i.killBoxes()
		began := time.Now()
		s := i.await(ws, 5*time.Second, box.StateSuspended)
		t.Logf("%s: noticed and settled after %s: %s", ws, time.Since(began), s.Reason.Text)
		require.Contains(t, s.Flags, "unhealthy")
	}
}
