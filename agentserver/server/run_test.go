package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/box"
)

// boxd is one running boxd process.
type boxd struct {
	*exec.Cmd
	root, url string
	out       *buffer
	ended     chan error
}

// buffer is a bytes.Buffer that a process may write to while a test reads.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

func startBoxd(t *testing.T, root string, args ...string) *boxd {
	t.Helper()
	b := &boxd{root: root, out: &buffer{}, ended: make(chan error, 1)}
	b.Cmd = exec.Command(self(t), append([]string{"--root", root, "--listen", "127.0.0.1:0"}, args...)...) //nolint:noctx // ended in its own order
	b.Env = append(os.Environ(), "SERVER_TEST_ROLE=boxd", "OH_SESSION_API_KEYS_0="+key)
	b.Stdout, b.Stderr = b.out, b.out
	b.WaitDelay = time.Second
	// One that was killed leaves its address behind.
	_ = os.Remove(filepath.Join(root, "run/address"))
	require.NoError(t, b.Start())
	go func() { b.ended <- b.Wait() }()
	t.Cleanup(func() {
		_ = b.Process.Kill()
		select {
		case <-b.ended:
		case <-time.After(10 * time.Second):
		}
		if t.Failed() {
			t.Log(b.out.String())
		}
	})
	await(t, "the address", func() bool {
		text, err := os.ReadFile(filepath.Join(root, "run/address"))
		b.url = strings.TrimSpace(string(text))
		return err == nil
	})
	return b
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	awaitFor(t, 30*time.Second, what, done)
}

func awaitFor(t *testing.T, most time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(most); !done(); time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "waited in vain for %s", what)
	}
}

// ask sends one request with the key.
func ask(t *testing.T, method, url, body string) (status int, answer string, header http.Header) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("X-Session-API-Key", key)
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text), response.Header
}

func useOf(t *testing.T, b *boxd) agentserver.Use {
	t.Helper()
	status, text, _ := ask(t, http.MethodGet, b.url+"/api/boxd/use", "")
	require.Equal(t, http.StatusOK, status, text)
	var use agentserver.Use
	require.NoError(t, json.Unmarshal([]byte(text), &use))
	return use
}

func running(t *testing.T, b *boxd) {
	t.Helper()
	await(t, "the agent-server", func() bool { return useOf(t, b).Server.State == "running" })
}

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: " + runtime.GOOS + " does not end children with their parent")
	}
}

func childPid(t *testing.T, b *boxd) (pid int, environment string) {
	t.Helper()
	status, text, _ := ask(t, http.MethodGet, b.url+"/environment", "")
	require.Equal(t, http.StatusOK, status, text)
	found := regexp.MustCompile(`pid=(\d+)`).FindStringSubmatch(text)
	require.NotNil(t, found, text)
	pid, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return pid, text
}

func TestBoxdAloneServesAndEndsInOrder(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "new", "box")
	b := startBoxd(t, root)
	address, err := os.ReadFile(filepath.Join(root, "run/address"))
	require.NoError(t, err)
	require.Regexp(t, `^http://127\.0\.0\.1:\d+\n$`, string(address))
	for _, name := range []string{"conversations", "persistence", "workspace", "bash_events", "home", "tmp", "run", ".trash"} {
		info, err := os.Stat(filepath.Join(root, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), name)
	}
	require.Equal(t, "none", useOf(t, b).Server.State)
	require.NoError(t, b.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-b.ended, "exit code 0")
	b.ended <- nil
	require.NoFileExists(t, filepath.Join(root, "run/address"))
}

func TestTheAgentServerGetsTheBoxAndTheKey(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	b := startBoxd(t, root, "--", self(t))
	running(t, b)
	_, text := childPid(t, b)
	for _, want := range []string{
		"cwd=" + root, "OH_SESSION_API_KEYS_0=" + key, "HOME=" + root + "/home", "OH_CONVERSATIONS_PATH=" + root + "/conversations",
		"OH_PERSISTENCE_DIR=" + root + "/persistence", "OH_WORKSPACE_PATH=" + root + "/workspace", "OH_BASH_EVENTS_DIR=" + root + "/bash_events",
		"OH_CONVERSATION_WORKTREE_ROOT=" + root + "/worktrees", "TMUX_TMPDIR=" + root + "/tmp", "OH_ENABLE_VSCODE=false", "OH_PRELOAD_TOOLS=false",
		"GIT_CEILING_DIRECTORIES=" + root,
	} {
		require.Contains(t, text, want+"\n")
	}
	secret := regexp.MustCompile(`OH_SECRET_KEY=([0-9a-f]{64})\n`).FindStringSubmatch(text)
	require.NotNil(t, secret)
	require.NoError(t, b.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-b.ended)
	b.ended <- nil
	again := startBoxd(t, root, "--", self(t))
	running(t, again)
	_, text = childPid(t, again)
	require.Contains(t, text, secret[0], "the same for the box's whole life")
	require.NotContains(t, again.out.String(), key)
	require.NotContains(t, again.out.String(), secret[1])
}

func TestAnAgentServerThatDiesIsStartedAgain(t *testing.T) {
	t.Parallel()
	b := startBoxd(t, t.TempDir(), "--", self(t))
	running(t, b)
	first, _ := childPid(t, b)
	_, _, _ = ask(t, http.MethodGet, b.url+"/die", "")
	await(t, "a restart to show", func() bool { return useOf(t, b).Server.Restarts == 1 })
	use := useOf(t, b)
	require.Equal(t, "exit status 3", use.Server.LastExit)
	if use.Server.State == "restarting" {
		status, text, header := ask(t, http.MethodGet, b.url+"/api/conversations/search", "")
		if status != http.StatusNotFound { // it may be back by now
			require.Equal(t, http.StatusServiceUnavailable, status)
			require.Contains(t, text, `"detail":"Internal Server Error","exception":"503: `)
			require.NotEmpty(t, header.Get("Retry-After"))
		}
		status, _, _ = ask(t, http.MethodGet, b.url+"/api/storage", "")
		require.Equal(t, http.StatusOK, status, "our endpoints answer meanwhile")
	}
	running(t, b)
	second, _ := childPid(t, b)
	require.NotEqual(t, first, second)
}

func TestACommandThatIsNotThereShows(t *testing.T) {
	t.Parallel()
	b := startBoxd(t, t.TempDir(), "--", "/none/such/agent-server")
	await(t, "the failure to show", func() bool { return strings.Contains(useOf(t, b).Server.LastExit, "no such file") })
	status, text, _ := ask(t, http.MethodGet, b.url+"/ready", "")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, text, "restarting")
	require.NoError(t, b.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-b.ended)
	b.ended <- nil
}

func TestAKilledBoxdLeavesNoAgentServer(t *testing.T) {
	t.Parallel()
	needLinux(t)
	root := t.TempDir()
	b := startBoxd(t, root, "--", self(t), "--ignore-term", "--leave-a-process")
	running(t, b)
	pid, _ := childPid(t, b)
	var left int
	await(t, "the detached process", func() bool {
		text, err := os.ReadFile(filepath.Join(root, "left.pid"))
		left, _ = strconv.Atoi(string(text))
		return err == nil && left > 0
	})
	require.True(t, alive(pid))
	require.NoError(t, b.Process.Kill())
	<-b.ended
	b.ended <- nil
	await(t, "the agent-server to end", func() bool { return !alive(pid) })
	require.True(t, alive(left), "what left the session lives until the next start")
	again := startBoxd(t, root)
	await(t, "the detached process to end", func() bool { return !alive(left) })
	require.Equal(t, "none", useOf(t, again).Server.State)
}

func TestAnOrderlyEndTakesEverythingAlong(t *testing.T) {
	t.Parallel()
	needLinux(t)
	root := t.TempDir()
	b := startBoxd(t, root, "--", self(t), "--leave-a-process")
	running(t, b)
	pid, _ := childPid(t, b)
	text, err := os.ReadFile(filepath.Join(root, "left.pid"))
	require.NoError(t, err)
	left, err := strconv.Atoi(string(text))
	require.NoError(t, err)
	require.NoError(t, b.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-b.ended)
	b.ended <- nil
	require.False(t, alive(pid))
	await(t, "the detached process to end", func() bool { return !alive(left) })
}

func TestOneBoxHasOneBoxd(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	b := startBoxd(t, root)
	var out bytes.Buffer
	code := server.Run(t.Context(), []string{"--root", root}, func(string) string { return key }, &out, &out)
	require.Equal(t, 1, code)
	require.Contains(t, out.String(), "another boxd serves this box")
	require.NotEmpty(t, useOf(t, b).Digest, "the first one is not disturbed")
	require.FileExists(t, filepath.Join(root, "run/address"))
}

func TestACommandLineThatIsNotUnderstoodIsRefused(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	keyed := func(name string) string { return map[string]string{"OH_SESSION_API_KEYS_0": key}[name] }
	root := t.TempDir()
	bad := filepath.Join(root, "catalogue.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{"version":1,"rules":[{"id":"x","tier":"caches","in":"home","path":".cache/x"}]}`), 0o600))
	for name, row := range map[string]struct {
		args []string
		env  func(string) string
		says string
	}{
		"no root":               {nil, keyed, "--root"},
		"no key":                {[]string{"--root", root}, none, "OH_SESSION_API_KEYS_0"},
		"insecure and public":   {[]string{"--root", root, "--insecure", "--listen", "0.0.0.0:0"}, none, "--insecure"},
		"a command without --":  {[]string{"--root", root, "agent-server"}, keyed, "--"},
		"an unknown flag":       {[]string{"--rot", root}, keyed, "rot"},
		"a listen that is none": {[]string{"--root", root, "--listen", "8000"}, keyed, "--listen"},
		"days that are none":    {[]string{"--root", root, "--retention", "30d"}, keyed, "--retention"},
		"days before now":       {[]string{"--root", root, "--retention", "-1"}, keyed, "--retention"},
		"days without end":      {[]string{"--root", root, "--retention", "Inf"}, keyed, "--retention"},
		"an age that is none":   {[]string{"--root", root, "--bash-events-days", "NaN"}, keyed, "--bash-events-days"},
		"a base path without /": {[]string{"--root", root, "--base-path", "a"}, keyed, "--base-path"},
		"a budget of 85 disks":  {[]string{"--root", root, "--disk-high", "85"}, keyed, "budget.high"},
		"a low mark alone":      {[]string{"--root", root, "--disk-low", "0.5"}, keyed, "budget.low"},
		"no catalogue there":    {[]string{"--root", root, "--catalogue", "/none/such"}, keyed, "--catalogue"},
		"a bad catalogue":       {[]string{"--root", root, "--catalogue", bad}, keyed, "rules[0].holds_all"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			require.Equal(t, 2, server.Run(t.Context(), row.args, row.env, &out, &errs))
			require.Contains(t, errs.String(), row.says)
			require.NotContains(t, errs.String(), key)
		})
	}
	var out, errs bytes.Buffer
	require.Equal(t, 0, server.Run(t.Context(), []string{"--help"}, none, &out, &errs))
	require.Contains(t, out.String(), "-base-path")
	require.Empty(t, errs.String())
	out.Reset()
	require.Equal(t, 0, server.Run(t.Context(), []string{"--version"}, none, &out, &errs), "no key and no directory are needed to say it")
	require.Regexp(t, `^boxd \S+, .*go1\S* \w+/\w+\n$`, out.String())
	require.Empty(t, errs.String())
}

func TestATakenPortIsSaid(t *testing.T) {
	t.Parallel()
	b := startBoxd(t, t.TempDir())
	var out bytes.Buffer
	code := server.Run(t.Context(), []string{"--root", t.TempDir(), "--listen", strings.TrimPrefix(b.url, "http://")},
		func(string) string { return key }, &out, &out)
	require.Equal(t, 1, code)
	require.Contains(t, out.String(), "choose another address with --listen")
}

func TestLeftOverPackedFilesGoAtTheNextStart(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	conversations := filepath.Join(root, "conversations")
	id := strings.Repeat("a", 32)
	require.NoError(t, os.MkdirAll(filepath.Join(conversations, id), 0o755))
	for _, name := range []string{id, strings.Repeat("b", 32), "notes"} {
		require.NoError(t, os.WriteFile(filepath.Join(conversations, name+".zip"), []byte("x"), 0o600))
	}
	startBoxd(t, root, "--", self(t))
	require.NoFileExists(t, filepath.Join(conversations, id+".zip"))
	require.FileExists(t, filepath.Join(conversations, strings.Repeat("b", 32)+".zip"), "its source is not there")
	require.FileExists(t, filepath.Join(conversations, "notes.zip"))
}

func TestServerInfoGainsOurCapabilitiesAndKeepsItsBytes(t *testing.T) {
	t.Parallel()
	b := startBoxd(t, t.TempDir(), "--", self(t))
	running(t, b)
	_, text, _ := ask(t, http.MethodGet, b.url+"/server_info", "")
	require.True(t, strings.HasPrefix(text, `{"uptime": 5, "idle_time":  42, "capabilities": [ "a_v1" ,"`), text)
	require.True(t, strings.HasSuffix(text, `], "odd":1.50}`), text)
	require.InDelta(t, 42, useOf(t, b).IdleSeconds, 0.5, "the agent-server's own clock")
	client, err := agentserver.New(agentserver.Options{URL: b.url, SessionKey: box.Secret(key)})
	require.NoError(t, err)
	info, err := client.Info(t.Context())
	require.NoError(t, err)
	require.True(t, info.Has(agentserver.CapabilityUse) && info.Has(agentserver.CapabilityDrain) && info.Has("a_v1"))
}

func TestAnEmptyKeyIsRefused(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), self(t), "--root", t.TempDir())
	cmd.Env = append(os.Environ(), "SERVER_TEST_ROLE=boxd", "OH_SESSION_API_KEYS_0=")
	err := cmd.Run()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 2, exit.ExitCode(), "an empty key is no key")
}

func TestBoxdEndsWhenItsDirectoryIsGone(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "box")
	require.NoError(t, os.Mkdir(root, 0o755))
	b := startBoxd(t, root)
	require.NoError(t, os.RemoveAll(root))
	select {
	case err := <-b.ended:
		b.ended <- err
		var code *exec.ExitError
		require.ErrorAs(t, err, &code)
		require.Equal(t, 1, code.ExitCode())
	case <-time.After(30 * time.Second):
		t.Fatal("it still runs")
	}
	require.Contains(t, b.out.String(), "is gone, so there is nothing to serve")
}
