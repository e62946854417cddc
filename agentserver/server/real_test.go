package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// agentServerVariable names the executable of the real agent-server, as
// scripts/agent-server.sh installs it.
const agentServerVariable = "BOXKEEPER_TEST_AGENT_SERVER"

// real is a boxd with the real agent-server behind it.
type real struct {
	*boxd
	direct string // the agent-server's own address
}

// needReal returns the program of the real agent-server.
func needReal(t *testing.T) (program string) {
	t.Helper()
	program = os.Getenv(agentServerVariable)
	if program == "" {
		t.Skip("needs the real agent-server, which needs Python 3.12 or newer: run scripts/agent-server.sh and name what it prints in " + agentServerVariable)
	}
	needLinux(t)
	return program
}

func startReal(t *testing.T) *real {
	t.Helper()
	return startRealIn(t, t.TempDir())
}

// startRealIn starts it over a directory that may hold conversations.
func startRealIn(t *testing.T, root string) *real {
	t.Helper()
	program := needReal(t)
	t.Setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True") // keeps its start off the network
	r := &real{boxd: startBoxd(t, root, "--", program)}
	// It takes some seconds of a processor, which others may be using.
	awaitFor(t, 10*time.Minute, "the agent-server to be ready", func() bool {
		status, _, _ := ask(t, http.MethodGet, r.url+"/ready", "")
		return status == http.StatusOK
	})
	r.direct = "http://127.0.0.1:" + portOfChild(t, r.Process.Pid)
	return r
}

// portOfChild finds the port that boxd gave its agent-server.
func portOfChild(t *testing.T, parent int) string {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, place := range found {
		stat, err := os.ReadFile(place)
		if err != nil || !bytes.Contains(stat, fmt.Appendf(nil, ") S %d ", parent)) && !bytes.Contains(stat, fmt.Appendf(nil, ") R %d ", parent)) {
			continue
		}
		line, err := os.ReadFile(filepath.Join(filepath.Dir(place), "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(string(line), "\x00")
		if at := slices.Index(args, "--port"); at > 0 {
			return args[at+1]
		}
	}
	require.Fail(t, "boxd has no agent-server")
	return ""
}

// converse makes a conversation with n messages, without a model.
func (r *real) converse(t *testing.T, n int) (id string) {
	t.Helper()
	status, text, _ := ask(t, http.MethodPost, r.url+"/api/conversations", fmt.Sprintf(
		`{"workspace":{"kind":"LocalWorkspace","working_dir":%q},"agent":{"kind":"Agent","llm":{"model":"openai/never-called","usage_id":"t","api_key":"sk-canary-1234567890"},"tools":[]},"autotitle":false}`,
		filepath.Join(r.root, "workspace"),
	))
	require.Equal(t, http.StatusCreated, status, text)
	var made struct {
		ID string `json:"id"`
	}
	require.NoError(t, json.Unmarshal([]byte(text), &made))
	for i := range n {
		r.say(t, made.ID, fmt.Sprintf("message %d", i))
	}
	return made.ID
}

func (r *real) say(t *testing.T, id, what string) {
	t.Helper()
	status, text, _ := ask(t, http.MethodPost, r.url+"/api/conversations/"+id+"/events", fmt.Sprintf(`{"role":"user","content":[{"type":"text","text":%q}],"run":false}`, what))
	require.Equal(t, http.StatusOK, status, text)
}

// events are what a server says that a conversation holds, by id.
func (r *real) events(t *testing.T, base, id string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for page := ""; ; {
		status, text, _ := ask(t, http.MethodGet, base+"/api/conversations/"+id+"/events/search?limit=100&page_id="+page, "")
		require.Equal(t, http.StatusOK, status, text)
		var one struct {
			Items []json.RawMessage `json:"items"`
			Next  string            `json:"next_page_id"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &one))
		for _, item := range one.Items {
			var e struct {
				ID string `json:"id"`
			}
			require.NoError(t, json.Unmarshal(item, &e))
			out[e.ID] = canonical(t, item)
		}
		if one.Next == "" {
			return out
		}
		page = one.Next
	}
}

// canonical writes JSON with its keys in order.
func canonical(t *testing.T, text []byte) string {
	t.Helper()
	var value any
	require.NoError(t, json.Unmarshal(text, &value), "%s", text)
	out, err := json.Marshal(value)
	require.NoError(t, err)
	return string(out)
}

// packedEvents are the events in a trajectory, by id.
func packedEvents(t *testing.T, packed string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, content := range unzip(t, packed) {
		if !strings.Contains(name, "/events/event-") {
			continue
		}
		var e struct {
			ID string `json:"id"`
		}
		require.NoError(t, json.Unmarshal([]byte(content), &e))
		out[e.ID] = canonical(t, []byte(content))
	}
	return out
}

func TestInFrontOfTheRealAgentServer(t *testing.T) { //nolint:paralleltest // one server, whose clock is looked at
	r := startReal(t)
	id := r.converse(t, 3)
	for _, one := range []struct { //nolint:paralleltest // as above
		name string
		run  func(t *testing.T, id string)
	}{
		{"nobody can tell that boxd is in front, on any path that is read", r.compare},
		{"our refusals have the agent-server's form", r.refusals},
		{"a browser's page may read ours where it may read the agent-server's", r.origins},
		{"a trajectory is the agent-server's, with more masked and no locks", r.trajectories},
		{"a history that was put back is read and never prompted", r.putBack},
		{"sockets end with the agent-server's codes", r.socketCodes},
		{"Scenario 6: nothing of ours moves the idle clock", r.idleClock},
		{"twenty conversations at once are measured, shrunk and exported while they are written", r.load}, // it ends boxd
	} {
		t.Run(one.name, func(t *testing.T) { one.run(t, id) })
	}
}
