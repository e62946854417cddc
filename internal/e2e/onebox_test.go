package e2e_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// TestOneProcessCarriesOn kills boxkeeperd, with engine and workers in it, and
// starts it again: the demo box is where it was, and its timer fires. An orderly
// end does the same.
func TestOneProcessCarriesOn(t *testing.T) {
	t.Parallel()
	i := &installation{t: t, dir: filepath.Join(t.TempDir(), "data"), port: freePort(t)}
	i.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "BOXKEEPER_DATA=" + i.dir, "BOXKEEPER_LISTEN=off",
		fmt.Sprintf("TEMPORAL_ADDRESS=127.0.0.1:%d", i.port),
	}
	t.Cleanup(i.killBoxes)
	start := func() *process {
		p := startProcess(t, i.env, "boxkeeperd", "--port", fmt.Sprint(i.port), "--ui-port", "0")
		p.await("ready")
		return p
	}
	first := start()
	first.await("created, and its agent-server answers")
	_, code := i.run("box", "policy", "demo", "--idle", "8s")
	require.Zero(t, code)
	first.kill()

	second := start()
	second.await("suspended: no process of it left") // the timer fired in the new process
	require.Empty(t, i.boxPids())
	require.NoError(t, second.cmd.Process.Signal(os.Interrupt))
	<-second.done
	require.Zero(t, second.cmd.ProcessState.ExitCode(), second.text())
	require.Contains(t, second.text(), "the next start carries on")

	third := start()
	answerOf[box.ConnectAnswer](i, "box", "connect", "demo", "--holder", "person")
	third.await("held by")
	s := i.await("demo", within, box.StateRunning)
	require.Equal(t, 1, s.Epoch)
	taken := startProcess(t, i.env, "boxkeeperd", "--data", filepath.Join(t.TempDir(), "other"), "--port", fmt.Sprint(i.port), "--ui-port", "0")
	<-taken.done
	require.NotZero(t, taken.cmd.ProcessState.ExitCode())
	require.Contains(t, taken.text(), "--port")
	require.Contains(t, taken.text(), fmt.Sprint(i.port))
}

// TestFrozenBoxKeepsItsMemory suspends by freezing: the processes stand still
// and go on where they were.
func TestFrozenBoxKeepsItsMemory(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("freezing needs Linux")
	}
	i := newInstallation(t, "BOXKEEPER_PROVIDERS_LOCAL_SUSPEND=freeze")
	const ws = "frozen"
	_, code := i.run("box", "create", ws, "--idle", "2s", "--wait")
	require.Zero(t, code)
	before := i.boxPids()
	require.Len(t, before, 1)
	i.await(ws, within, box.StateSuspended)
	require.Equal(t, before, i.boxPids(), "freezing keeps the process")
	require.Equal(t, "T", stateOf(t, before[0]))

	answerOf[box.ConnectAnswer](i, "box", "connect", ws, "--holder", "person", "--lease", "1h")
	s := i.await(ws, within, box.StateRunning)
	require.Equal(t, before, i.boxPids(), "the same process goes on")
	require.NotEqual(t, "T", stateOf(t, before[0]))

	loss := answerOf[box.Loss](i, "box", "delete", ws)
	_, code = i.run("box", "confirm", ws, "--token", loss.Token, "--wait")
	require.Zero(t, code)
	require.Empty(t, i.boxPids())
	_, err := os.Stat(i.boxDir(s))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// stateOf returns the state letter of a process.
func stateOf(t *testing.T, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[0]
}
