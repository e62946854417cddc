package dockerruntime_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/dockerruntime"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
)

// agentServerVariable names a real agent-server's executable; beside it is the
// Python that it runs with.
const agentServerVariable = "BOXKEEPER_TEST_AGENT_SERVER"

// outer is a real agent-server in Docker mode: it starts a container for each
// conversation. No image of an agent-server can be had everywhere, so what runs
// in them is a stand-in, testdata/conversation.
type outer struct {
	root, url       string
	program, python string
	env             []string
}

func newOuter(t *testing.T, e *engine) *outer {
	t.Helper()
	program := os.Getenv(agentServerVariable)
	if program == "" {
		t.Skip("needs a real agent-server: set " + agentServerVariable + " to its executable (scripts/agent-server.sh installs one)")
	}
	o := &outer{root: newBox(t), program: program, python: filepath.Join(filepath.Dir(program), "python")}
	at := func(name string) string { return filepath.Join(o.root, name) }
	o.env = append(os.Environ(),
		"HOME="+t.TempDir(), "DOCKER_HOST="+e.host, "LITELLM_LOCAL_MODEL_COST_MAP=True", "OPENHANDS_SUPPRESS_BANNER=1",
		"OH_CONVERSATIONS_PATH="+at("conversations"), "OH_PERSISTENCE_DIR="+at("persistence"), "OH_BASH_EVENTS_DIR="+at("bash_events"),
		"OH_SECRET_KEY=a-key-for-a-test", "OH_CONVERSATION_RUNTIME=docker", "OH_CONVERSATION_IMAGE="+e.image,
		"OH_ENABLE_VSCODE=0", "OH_PRELOAD_TOOLS=0", "OH_CONVERSATION_CONTAINER_STARTUP_TIMEOUT=900",
	)
	return o
}

// start starts the server, which ends with the test.
func (o *outer) start(t *testing.T, e *engine) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // local and instant
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	listener.Close()
	o.url = "http://" + net.JoinHostPort(host, port)

	server := exec.CommandContext(t.Context(), o.program, "--host", host, "--port", port)
	server.Dir, server.Env = t.TempDir(), o.env
	var log bytes.Buffer
	server.Stdout, server.Stderr = &log, &log
	// Asked to end, it ends its containers.
	server.Cancel = func() error { return server.Process.Signal(syscall.SIGTERM) }
	server.WaitDelay = time.Minute
	require.NoError(t, server.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Wait() }()
	t.Cleanup(func() {
		<-ended
		if t.Failed() {
			t.Log(log.String())
		}
		if left := e.clean("ps", "--all", "--quiet", "--filter", "label="+ownerLabel+"="+o.owner()); left != "" {
			e.clean(append([]string{"rm", "--force"}, strings.Fields(left)...)...)
		}
	})
	// It takes some seconds of a processor, which others may be using.
	await(t, "the agent-server to be ready", func() bool {
		select {
		case <-ended:
			require.Fail(t, "the agent-server ended", log.String())
		default:
		}
		status, _ := o.try(t, http.MethodGet, "/ready", "")
		return status == http.StatusOK
	})
}

// owner is the mark of a server's containers, by which it finds them again.
func (o *outer) owner() string {
	sum := sha256.Sum256([]byte(filepath.Join(o.root, "conversations") + "\x00" + filepath.Join(o.root, "persistence")))
	return hex.EncodeToString(sum[:])[:24]
}

func (o *outer) try(t *testing.T, method, path, body string) (status int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, o.url+path, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: 15 * time.Minute}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	read, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(read)
}

func (o *outer) ask(t *testing.T, method, path, body string, want int) string {
	t.Helper()
	status, text := o.try(t, method, path, body)
	require.Equal(t, want, status, "%s %s: %s", method, path, text)
	return text
}

// converse starts a conversation, in a workspace that the server makes when none
// is named, and returns its id in 32 digits.
func (o *outer) converse(t *testing.T, workspace string) (id string) {
	t.Helper()
	body := map[string]any{
		"agent":     map[string]any{"kind": "Agent", "llm": map[string]any{"model": "openai/never-called", "usage_id": "t"}, "tools": []any{}},
		"autotitle": false,
	}
	if workspace != "" {
		body["workspace"] = map[string]any{"kind": "LocalWorkspace", "working_dir": workspace}
	}
	text, err := json.Marshal(body)
	require.NoError(t, err)
	var made struct {
		ID string `json:"id"`
	}
	require.NoError(t, json.Unmarshal([]byte(o.ask(t, http.MethodPost, "/api/conversations", string(text), http.StatusCreated)), &made))
	id, ok := storage.ParseID(made.ID)
	require.True(t, ok, made.ID)
	return id
}

// stored is a runtime as the server's own code reads it from the disk.
type stored struct {
	LastActive float64  `json:"last_active"`
	Home       string   `json:"home"`
	Workspaces []string `json:"workspaces"`
	Archived   bool     `json:"archived"`
}

// readRuntimes answers each line of its input with what is on the disk then.
const readRuntimes = `
import json, sys
from openhands.agent_server.config import get_default_config
from openhands.agent_server.docker_runtime.registry import DockerConversationRegistry
registry = DockerConversationRegistry(get_default_config())
for line in sys.stdin:
    print("RUNTIMES", json.dumps({r.id.hex: {
        "last_active": r.last_active, "home": str(r.home), "workspaces": [str(w) for w in r.workspaces],
        "archived": registry.is_archived(r.id),
    } for r in registry.reclaimer.storage.runtimes()}), flush=True)
`

// reader starts the server's own code and returns a function that reads with it.
func (o *outer) reader(t *testing.T) func() map[string]stored {
	t.Helper()
	script := exec.CommandContext(t.Context(), o.python, "-c", readRuntimes)
	script.Dir, script.Env = t.TempDir(), o.env
	input, err := script.StdinPipe()
	require.NoError(t, err)
	output, err := script.StdoutPipe()
	require.NoError(t, err)
	var faults bytes.Buffer
	script.Stderr = &faults
	require.NoError(t, script.Start())
	t.Cleanup(func() { _ = script.Wait() }) // it was killed
	lines := bufio.NewScanner(output)
	return func() map[string]stored {
		t.Helper()
		_, err := io.WriteString(input, "\n")
		require.NoError(t, err)
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "RUNTIMES "); ok {
				found := map[string]stored{}
				require.NoError(t, json.Unmarshal([]byte(text), &found), text)
				return found
			}
		}
		_ = script.Wait() // what it said is whole only then
		require.Fail(t, "the server's own code ended", faults.String())
		return nil
	}
}

func TestARealDockerOuterServerLaysOutWhatWeRead(t *testing.T) {
	t.Parallel()
	e := realEngine(t)
	o := newOuter(t, e)
	read := o.reader(t) // it loads what the server loads, so they start at once
	o.start(t, e)
	chosen := filepath.Join(o.root, "workspace")
	require.NoError(t, os.Mkdir(chosen, 0o700))
	first, second := o.converse(t, ""), o.converse(t, chosen)
	layout := dockerruntime.New(o.root, storagetest.Writer(o.root), dockerruntime.Options{
		Containers: e.containers(),
	})
	places := func() map[string]reclaim.Place {
		t.Helper()
		list, err := layout.Places(t.Context())
		require.NoError(t, err)
		found := map[string]reclaim.Place{}
		for _, place := range list {
			found[place.Conversation] = place
		}
		return found
	}
	same := func() {
		t.Helper()
		theirs, ours := read(), places()
		require.Len(t, ours, len(theirs))
		for id, their := range theirs {
			our := ours[id]
			require.Equal(t, their.Home, filepath.Join(o.root, our.Home))
			require.Len(t, our.Workspaces, len(their.Workspaces))
			for i, workspace := range their.Workspaces {
				require.Equal(t, workspace, filepath.Join(o.root, our.Workspaces[i]))
			}
			require.Equal(t, their.Archived, our.Archived)
			// We take what shows a later use too.
			require.GreaterOrEqual(t, our.LastActive.UnixMicro()+1, int64(their.LastActive*1e6))
		}
	}
	busy := func(id string) string {
		t.Helper()
		release, busy, err := layout.Hold(t.Context(), id)
		require.NoError(t, err)
		if busy == "" {
			release()
		}
		return busy
	}

	// Both run. What a caller named is nobody's to free.
	same()
	require.Equal(t, "persistence/runtime-data/"+first, places()[first].Runtime)
	require.Equal(t, []string{"persistence/runtime-data/" + first + "/workspace"}, places()[first].Workspaces)
	require.Equal(t, "persistence/runtime-data/"+second, places()[second].Runtime)
	require.Empty(t, places()[second].Workspaces)
	require.FileExists(t, filepath.Join(chosen, "work"))
	containers := e.docker(t, nil, "ps", "--format", "{{.Names}}", "--filter", "label="+ownerLabel+"="+o.owner())
	require.Len(t, strings.Fields(containers), 2)
	for _, id := range []string{first, second} {
		require.Contains(t, o.ask(t, http.MethodGet, "/api/conversations/"+id+"/runtime", "", http.StatusOK), `"available"`)
		name, ok := strings.CutPrefix(busy(id), "in use by container ")
		require.True(t, ok, busy(id))
		require.Contains(t, containers, strings.TrimSuffix(name, " (running)"))
		require.Equal(t, busy(id), places()[id].Busy)
	}
	orphans, err := layout.Orphans(t.Context())
	require.NoError(t, err)
	require.Empty(t, orphans)

	// One is let go, and its cache goes into the server's own trash.
	require.DirExists(t, filepath.Join(o.root, places()[first].Home, ".cache"))
	o.ask(t, http.MethodDelete, "/api/conversations/"+first+"/runtime", "", http.StatusNoContent)
	await(t, "the engine to remove what was stopped", func() bool { return busy(first) == "" })
	require.NoDirExists(t, filepath.Join(o.root, places()[first].Home, ".cache"))
	require.Contains(t, busy(second), "in use by container")
	same()
	orphans, err = layout.Orphans(t.Context())
	require.NoError(t, err)
	require.Empty(t, orphans, "the trash is the server's")

	// Archived by us, it is so for the server, which starts no container for it.
	require.NoError(t, layout.Archive(t.Context(), first))
	require.Error(t, layout.Archive(t.Context(), second), "it runs")
	same()
	require.True(t, places()[first].Archived)
	require.Contains(t, o.ask(t, http.MethodGet, "/api/conversations/"+first+"/runtime", "", http.StatusOK), `"can_resume":false`)
	o.ask(t, http.MethodPost, "/api/conversations/"+first+"/runtime/reprovision", "", http.StatusGone)
	require.Empty(t, busy(first))

	// Deleted there, nothing is left that we would take for anybody's.
	o.ask(t, http.MethodDelete, "/api/conversations/"+first, "", http.StatusOK)
	require.Len(t, places(), 1)
	same()
	orphans, err = layout.Orphans(t.Context())
	require.NoError(t, err)
	require.Empty(t, orphans)
	require.NoFileExists(t, filepath.Join(o.root, storage.ControlDir, first+".archived.json"))

	// While we hold it, the server can't write its manifest.
	o.ask(t, http.MethodDelete, "/api/conversations/"+second+"/runtime", "", http.StatusNoContent)
	await(t, "the engine to remove what was stopped", func() bool { return busy(second) == "" })
	release, why, err := layout.Hold(t.Context(), second)
	require.NoError(t, err)
	require.Empty(t, why)
	locked := exec.CommandContext(t.Context(), o.python, "-c", fmt.Sprintf(`
import sys
from filelock import FileLock, Timeout
try:
    FileLock(%q, timeout=0.2).acquire()
except Timeout:
    sys.exit(0)
sys.exit("locked twice")
`, filepath.Join(o.root, storage.ControlDir, second+".json.lock")))
	text, err := locked.CombinedOutput()
	require.NoError(t, err, string(text))
	release()
}
