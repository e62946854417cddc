package idlelock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/idlelock"
)

// agentServerVariable names a real agent-server's executable; beside it is the
// Python that it runs with, which the tests use.
const agentServerVariable = "BOXKEEPER_TEST_AGENT_SERVER"

func realServer(t *testing.T) (python string) {
	t.Helper()
	executable := os.Getenv(agentServerVariable)
	if executable == "" {
		t.Skip("needs a real agent-server: set " + agentServerVariable + " to its executable (scripts/agent-server.sh installs one)")
	}
	return filepath.Join(filepath.Dir(executable), "python")
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "waited in vain for %s", what)
	}
}

// python starts a script that says "ready" and ends when its input does.
func python(t *testing.T, interpreter, script string, args ...string) (stop func()) {
	t.Helper()
	child := exec.CommandContext(t.Context(), interpreter, append([]string{"-c", script}, args...)...)
	input, err := child.StdinPipe()
	require.NoError(t, err)
	output, err := child.StdoutPipe()
	require.NoError(t, err)
	var faults bytes.Buffer
	child.Stderr = &faults
	require.NoError(t, child.Start())
	ready := make([]byte, len("ready\n"))
	if _, err = io.ReadFull(output, ready); err != nil {
		_ = child.Wait() // what it said is whole only then
		require.NoError(t, err, faults.String())
	}
	return func() {
		input.Close()
		require.NoError(t, child.Wait(), faults.String())
	}
}

func TestPythonAndWeLockOutEachOther(t *testing.T) {
	t.Parallel()
	interpreter := realServer(t)
	dir := conversation(t)
	stop := python(t, interpreter, `
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("ready", flush=True)
    sys.stdin.read()
`, filepath.Join(dir, ".owner_lease.lock"))
	require.Contains(t, hold(t, locker(), dir), "is held by another process")
	stop()
	release, busy, err := locker().Hold(t.Context(), dir)
	require.NoError(t, err)
	require.Empty(t, busy)
	refused := exec.CommandContext(t.Context(), interpreter, "-c", `
import sys
from filelock import FileLock, Timeout
try:
    FileLock(sys.argv[1], timeout=0.2).acquire()
except Timeout:
    sys.exit(0)
sys.exit("locked twice")
`, filepath.Join(dir, ".owner_lease.lock"))
	text, err := refused.CombinedOutput()
	require.NoError(t, err, string(text))
	release()
	require.Error(t, exec.CommandContext(t.Context(), interpreter, append([]string{"-c"}, refused.Args[2:]...)...).Run(), "it gets the lock now")
}

// Versions of filelock before 3.30 remove the lock file as they let go, so that a
// waiter may lock a file without a name. Both sides meet in a directory that only
// one may make at a time.
func TestNobodyGetsInWhileTheLockFileIsRemovedAndMadeAgain(t *testing.T) {
	t.Parallel()
	interpreter := realServer(t)
	dir := t.TempDir()
	meeting := filepath.Join(dir, "meeting")
	stop := python(t, interpreter, `
import os, sys, threading
from filelock import FileLock
over = threading.Event()
def work():
    n = 0
    while not over.is_set() or n < 50:
        with FileLock(sys.argv[1], poll_interval=0.0005):
            os.mkdir(sys.argv[2])
            os.rmdir(sys.argv[2])
            os.unlink(sys.argv[1])
        n += 1
failed = []
def guarded():
    try:
        work()
    except BaseException as e:
        failed.append(repr(e))
workers = [threading.Thread(target=guarded) for _ in range(2)]
for w in workers: w.start()
print("ready", flush=True)
sys.stdin.read()
over.set()
for w in workers: w.join()
sys.exit("; ".join(failed) or 0)
`, filepath.Join(dir, "x.lock"), meeting)
	opened, err := os.Open(dir)
	require.NoError(t, err)
	defer opened.Close()
	got, refused := 0, 0
	for deadline := time.Now().Add(30 * time.Second); got < 300 && time.Now().Before(deadline); {
		release, busy := idlelock.Flock(int(opened.Fd()), "x.lock")
		if busy != "" {
			refused++
			continue
		}
		got++
		require.NoError(t, os.Mkdir(meeting, 0o700), "somebody is in at the same time")
		require.NoError(t, os.Remove(meeting))
		release()
	}
	stop()
	require.Positive(t, got)
	t.Logf("locked %d times, refused %d times", got, refused)
}

// agent is a running agent-server.
type agent struct {
	*exec.Cmd
	url, conversations string
}

// onDemand runs the agent-server and lets it look for idle conversations when a file
// is there: by itself it does so once a minute.
const onDemand = `
import asyncio, os, sys
from openhands.agent_server.__main__ import main
from openhands.agent_server.conversation_service import ConversationService
async def evict(self):
    while True:
        await asyncio.sleep(0.05)
        if os.path.exists(os.environ["EVICT_WHEN"]):
            await self._evict_idle_conversations(self.conversation_idle_ttl_seconds)
name = "_evict_idle_conversations_loop"
getattr(ConversationService, name) # or nothing below shows anything
setattr(ConversationService, name, evict)
main()
`

func startAgent(t *testing.T, interpreter, root string, env ...string) *agent {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // local and instant
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	a := &agent{url: "http://127.0.0.1:" + port, conversations: filepath.Join(root, "conversations")}
	a.Cmd = exec.CommandContext(t.Context(), interpreter, "-c", onDemand, "--host", "127.0.0.1", "--port", port)
	a.Dir = root
	a.Env = append(os.Environ(),
		"HOME="+root, "OH_SECRET_KEY=of-a-test", "OH_ENABLE_VSCODE=false", "OH_PRELOAD_TOOLS=false", "TMUX_TMPDIR="+root,
		"OH_CONVERSATIONS_PATH="+a.conversations, "OH_PERSISTENCE_DIR="+filepath.Join(root, "persistence"), "OH_BASH_EVENTS_DIR="+filepath.Join(root, "bash"))
	a.Env = append(a.Env, env...)
	var output bytes.Buffer
	a.Stdout, a.Stderr = &output, &output
	require.NoError(t, a.Start())
	t.Cleanup(func() {
		_ = a.Process.Kill()
		_ = a.Wait() // it was killed
		if t.Failed() {
			t.Log(output.String())
		}
	})
	await(t, "the agent-server", func() bool {
		status, _, err := a.ask(t.Context(), http.MethodGet, "/ready", "")
		return err == nil && status == http.StatusOK
	})
	return a
}

func (a *agent) ask(ctx context.Context, method, path, body string) (status int, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, a.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, string(answer), err
}

func (a *agent) converse(t *testing.T, root string) (id, dir string) {
	t.Helper()
	status, text, err := a.ask(t.Context(), http.MethodPost, "/api/conversations", fmt.Sprintf(
		`{"workspace":{"kind":"LocalWorkspace","working_dir":%q},"agent":{"kind":"Agent","llm":{"model":"openai/never-called","usage_id":"t"},"tools":[]},"autotitle":false}`,
		filepath.Join(root, "workspace"),
	))
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, status, text)
	var made struct{ ID string }
	require.NoError(t, json.Unmarshal([]byte(text), &made))
	return made.ID, filepath.Join(a.conversations, strings.ReplaceAll(made.ID, "-", ""))
}

func TestTheRealAgentServerAndWeKeepOffEachOther(t *testing.T) {
	t.Parallel()
	interpreter := realServer(t)
	root := t.TempDir()
	evict := filepath.Join(root, "evict")
	server := startAgent(t, interpreter, root, "EVICT_WHEN="+evict, "OH_CONVERSATION_IDLE_TTL_SECONDS=0.5")
	id, dir := server.converse(t, root)
	l := idlelock.New(idlelock.Options{})
	require.Contains(t, hold(t, l, dir), "loaded by the agent-server")
	require.Contains(t, l.Peek(dir), "loaded by the agent-server")

	pause := func() {
		t.Helper()
		status, text, err := server.ask(t.Context(), http.MethodPost, "/api/conversations/prepare-for-sandbox-pause", "")
		require.NoError(t, err)
		require.Equal(t, http.StatusNoContent, status, text)
	}
	pause()
	require.Empty(t, l.Peek(dir))
	release, busy, err := l.Hold(t.Context(), dir)
	require.NoError(t, err)
	require.Empty(t, busy)
	// What loads the conversation waits for us.
	bounded, cancel := context.WithTimeout(t.Context(), time.Second)
	_, _, err = server.ask(bounded, http.MethodGet, "/api/conversations/"+id+"/events/search", "")
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoFileExists(t, filepath.Join(dir, "owner_lease.json"))
	release()
	load := func() {
		t.Helper()
		await(t, "the conversation to be loaded", func() bool {
			status, _, err := server.ask(t.Context(), http.MethodGet, "/api/conversations/"+id+"/events/search", "")
			return err == nil && status == http.StatusOK
		})
		require.Contains(t, hold(t, l, dir), "loaded by the agent-server")
	}
	load()

	require.NoError(t, os.WriteFile(evict, nil, 0o600))
	await(t, "the conversation to be evicted", func() bool { return l.Peek(dir) == "" })
	require.NoError(t, os.Remove(evict))
	require.Empty(t, hold(t, l, dir), "the server let go of it")
	load()

	require.NoError(t, server.Process.Kill())
	require.Error(t, server.Wait())
	require.FileExists(t, filepath.Join(dir, "owner_lease.json"), "a server that was killed leaves its lease")
	require.Empty(t, hold(t, l, dir), "its owner is dead")
}

func TestARealServerWithoutLeasesIsRefused(t *testing.T) {
	t.Parallel()
	interpreter := realServer(t)
	root := t.TempDir()
	server := startAgent(t, interpreter, root, "OH_LEASE_TTL_SECONDS=0", "EVICT_WHEN="+filepath.Join(root, "evict"))
	_, dir := server.converse(t, root)
	_, err := os.Lstat(filepath.Join(dir, "owner_lease.json"))
	require.ErrorIs(t, err, os.ErrNotExist, "a loaded conversation shows no lease")
	why := idlelock.NoLeases(func(string) string { return "0" }, root)
	require.NotEmpty(t, hold(t, idlelock.New(idlelock.Options{Users: nobody, NoLeases: why}), dir))
}
