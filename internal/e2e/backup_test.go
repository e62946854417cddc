package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

// daemonCommand runs a command of boxkeeperd to its end.
func daemonCommand(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, append([]string{"as-boxkeeperd"}, args...)...)
	cmd.Env = env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() < 0) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// backupAnswer is what the two commands print with -o json.
type backupAnswer struct {
	File    string `json:"file"`
	Data    string `json:"data"`
	Entries int    `json:"entries"`
	Bytes   int64  `json:"bytes"`
	SHA256  string `json:"sha256"`
	Boxes   bool   `json:"boxes"`
	LeftOut []struct {
		What  string `json:"what"`
		Count int    `json:"count"`
	} `json:"left_out"`
	Outside []string `json:"outside"`
	Next    []string `json:"next"`
}

func daemonAnswer(t *testing.T, env []string, args ...string) backupAnswer {
	t.Helper()
	out, errs, code := daemonCommand(t, env, append(args, "-o", "json")...)
	require.Zero(t, code, errs)
	var answer backupAnswer
	require.NoError(t, json.Unmarshal([]byte(out), &answer), out)
	return answer
}

// withData is an environment for another data directory and engine.
func (i *installation) withData(dir string, port int) []string {
	return append(append([]string{}, i.env...), "BOXKEEPER_DATA="+dir, fmt.Sprintf("TEMPORAL_ADDRESS=127.0.0.1:%d", port))
}

// restored starts an installation on what a backup was restored to.
func (i *installation) restored(t *testing.T, file string) (*installation, backupAnswer) {
	t.Helper()
	next := &installation{t: t, dir: filepath.Join(t.TempDir(), "restored"), port: freePort(t)}
	next.env = i.withData(next.dir, next.port)
	answer := daemonAnswer(t, next.env, "restore", file)
	require.Equal(t, next.dir, answer.Data)
	next.checkFile()
	next.startEngine()
	next.startWorker()
	t.Cleanup(next.killBoxes)
	return next, answer
}

// TestBackupAndRestore takes two backups while engine, worker and boxes run,
// loses all of them, and goes on from each backup elsewhere.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	const asleep, awake = "asleep", "awake"
	ids, dirs := map[string]string{}, map[string]string{}
	for _, ws := range []string{asleep, awake} {
		_, code := i.run("box", "create", ws, "--idle", "1h", "--wait")
		require.Zero(t, code)
		s := i.await(ws, within, box.StateRunning)
		id, err := agentservertest.WriteConversation(filepath.Join(i.boxDir(s), "conversations"), agentservertest.Conversation{
			Title: ws, Events: []agentservertest.Event{{Text: "one"}, {Text: "two"}, {Text: "three"}},
		})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(i.boxDir(s), "workspace", "mine.txt"), []byte("of "+ws), 0o600))
		ids[ws], dirs[ws] = id, s.Ref.Name
	}
	_, code := i.run("box", "suspend", asleep, "--wait", "--timeout", "2m")
	require.Zero(t, code)
	before := i.await(asleep, within, box.StateSuspended)

	at := t.TempDir()
	whole, small := filepath.Join(at, "whole"), filepath.Join(at, "small")
	made := daemonAnswer(t, i.env, "backup", whole)
	require.True(t, made.Boxes)
	require.Empty(t, made.Outside)
	require.False(t, daemonAnswer(t, i.env, "backup", "--no-boxes", small).Boxes)
	i.refusals(t, whole)

	i.engine.kill()
	i.worker.kill()
	i.killBoxes()
	require.NoError(t, os.Rename(i.dir, i.dir+".lost"))

	t.Run("whole", func(t *testing.T) {
		t.Parallel()
		next, answer := i.restored(t, whole)
		require.Equal(t, made.SHA256, answer.SHA256)
		require.Equal(t, made.Entries, answer.Entries)
		s := next.await(asleep, within, box.StateSuspended)
		require.Equal(t, before.Ref, s.Ref)
		require.Equal(t, before.SuspendedSince, s.SuspendedSince)
		next.requireHistory(asleep, ids[asleep], 3)
		// The one that ran has no process here, which is noticed; its files are there.
		next.await(awake, within, box.StateSuspended)
		for _, ws := range []string{asleep, awake} {
			_, code := next.run("box", "resume", ws, "--wait", "--timeout", "2m")
			require.Zero(t, code)
			next.await(ws, within, box.StateRunning)
			dir := filepath.Join(next.dir, "boxes", "local", "boxes", dirs[ws])
			text, err := os.ReadFile(filepath.Join(dir, "workspace", "mine.txt"))
			require.NoError(t, err)
			require.Equal(t, "of "+ws, string(text))
			require.DirExists(t, filepath.Join(dir, "conversations", ids[ws]))
		}
		require.Len(t, next.boxPids(), 2)
	})
	t.Run("without boxes", func(t *testing.T) {
		t.Parallel()
		next, answer := i.restored(t, small)
		require.Contains(t, strings.Join(answer.Next, "\n"), "seen as lost unless its directory is put back")
		next.requireHistory(asleep, ids[asleep], 3)
		next.await(asleep, within, box.StateSuspended)
		_, code := next.run("box", "resume", asleep)
		require.Zero(t, code)
		next.await(asleep, 2*time.Minute, box.StateLost)
		// It is never replaced by an empty one.
		require.NoDirExists(t, filepath.Join(next.dir, "boxes", "local", "boxes", dirs[asleep]))
		next.requireHistory(asleep, ids[asleep], 3)
	})
}

// refusals are the answers to what must not be done while the engine runs.
func (i *installation) refusals(t *testing.T, file string) {
	t.Helper()
	for _, tt := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"restore", file}, 4, "is in use by process"},
		{[]string{"backup", file}, 4, "is there already: name another file"},
		{[]string{"backup"}, 2, "needs the name of the file"},
		{[]string{"restore"}, 2, "needs the name of the file"},
		{[]string{"backup", file + "1", "more"}, 2, `"more" is one too many`},
		{[]string{"backup", "--boxes", file + "1"}, 2, "unknown flag"},
		{[]string{"restore", file + "1"}, 4, "is in use by process"},
		{[]string{"backup", filepath.Join(i.dir, "x")}, 2, "would be lost with it"},
		{[]string{"backup", filepath.Join(file, "x")}, 2, "make it first"},
	} {
		out, errs, code := daemonCommand(t, i.env, tt.args...)
		require.Equal(t, tt.code, code, "%v: %s", tt.args, errs)
		require.Contains(t, errs, tt.text)
		require.Empty(t, out)
	}
	_, errs, code := daemonCommand(t, i.withData(filepath.Join(t.TempDir(), "new"), 1), "restore", file+"1", "-o", "json")
	require.Equal(t, 2, code)
	var refused struct {
		Error struct{ Class, Field string }
	}
	require.NoError(t, json.Unmarshal([]byte(errs), &refused), errs)
	require.Equal(t, "Invalid", refused.Error.Class)
	require.Equal(t, "file", refused.Error.Field)

	// What is elsewhere is not in a backup, and is said to be missing.
	elsewhere := t.TempDir()
	out, errs, code := daemonCommand(t, append(append([]string{}, i.env...), "BOXKEEPER_EXPORTS=file://"+elsewhere), "backup", "--no-boxes", file+"2")
	require.Zero(t, code, errs)
	require.Contains(t, out, "not in it the export store file://"+elsewhere)
	require.Contains(t, out, "holds the installation key")
}
