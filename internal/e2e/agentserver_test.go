package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
)

// agentServerVariable names the executable of the real agent-server, as
// scripts/agent-server.sh installs it.
const agentServerVariable = "BOXKEEPER_TEST_AGENT_SERVER"

// realWithin is what a box with the real agent-server gets for each step: its
// Python takes up to half a minute to start, and twice that where other builds
// use the machine.
const realWithin = 3 * time.Minute

// TestRealAgentServer lets a box with the real OpenHands agent-server behind
// boxd live its whole life. Conversations are made and events appended over its
// own API, without a model; what the export holds at the end is compared with
// what it answered, event by event.
func TestRealAgentServer(t *testing.T) {
	t.Parallel()
	server := os.Getenv(agentServerVariable)
	if server == "" {
		t.Skip("needs the real agent-server, which needs Python 3.12 or newer: run scripts/agent-server.sh and name what it prints in " + agentServerVariable)
	}
	command, err := json.Marshal([]string{server})
	require.NoError(t, err)
	i := newInstallation(t, "BOXKEEPER_PROVIDERS_LOCAL_AGENT_SERVER="+string(command))

	const ws = "real"
	_, code := i.run("box", "create", ws, "--idle", "6s", "--paused-ttl", "15s", "--notice", "5s", "--undo", "2s", "--wait",
		"--env", "LITELLM_LOCAL_MODEL_COST_MAP=True") // keeps its start off the network
	require.Zero(t, code)
	answerOf[box.ConnectAnswer](i, "box", "connect", ws, "--holder", "agent", "--lease", "1h")
	s := i.await(ws, realWithin, box.StateRunning)
	api := i.api(s, ws)

	var info struct {
		Version      string   `json:"version"`
		Capabilities []string `json:"capabilities"`
	}
	api.call(http.MethodGet, "/server_info", nil, &info)
	t.Logf("agent-server %s", info.Version)
	require.Contains(t, info.Capabilities, "storage_reclaim_v1", "boxd is not in front")

	wrote := map[string][]string{}
	for n := range 3 {
		id := api.converse(n + 2)
		wrote[id] = api.events(id)
		require.GreaterOrEqual(t, len(wrote[id]), n+2)
	}
	fillCacheWith(t, i.boxDir(s), 128<<20)
	answerOf[box.ActionAnswer](i, "box", "release", ws, "--holder", "agent")

	suspended := i.await(ws, realWithin, box.StateSuspended)
	require.True(t, suspended.ExportCovers, "the export does not cover the last use: %+v", suspended.Failure)
	require.Empty(t, i.boxPids(), "the agent-server outlived its box")
	require.Positive(t, suspended.Reclaimed)

	answerOf[box.ConnectAnswer](i, "box", "connect", ws, "--holder", "agent", "--lease", "1h")
	i.await(ws, realWithin, box.StateRunning)
	again := i.api(i.await(ws, realWithin, box.StateRunning), ws)
	for id, events := range wrote {
		require.Equal(t, events, again.events(id)[:len(events)], "a conversation changed across the suspend")
	}
	api.url = again.url
	extra := again.converse(1)
	wrote[extra] = again.events(extra)
	answerOf[box.ActionAnswer](i, "box", "release", ws, "--holder", "agent")

	i.await(ws, realWithin, box.StateAwaitingConfirm)
	loss := answerOf[box.Loss](i, "box", "delete", ws)
	require.True(t, loss.Covered)
	require.Equal(t, len(wrote), loss.Conversations)
	_, code = i.run("box", "confirm", ws, "--token", loss.Token)
	require.Zero(t, code)
	i.await(ws, realWithin, box.StateBoxArchived)
	_, err = os.Stat(i.boxDir(s))
	require.ErrorIs(t, err, os.ErrNotExist)

	for id, events := range wrote {
		out, code := i.run("box", "history", ws, id, "-o", "json")
		require.Zero(t, code)
		exported := map[string]string{}
		for line := range strings.Lines(out) {
			var e struct {
				ID    string          `json:"id"`
				Event json.RawMessage `json:"event"`
			}
			require.NoError(t, json.Unmarshal([]byte(line), &e))
			exported[e.ID] = canonical(t, e.Event)
		}
		for _, event := range events {
			var e struct {
				ID string `json:"id"`
			}
			require.NoError(t, json.Unmarshal([]byte(event), &e))
			require.Equal(t, event, exported[e.ID], "event %s of conversation %s", e.ID, id)
		}
	}
}

// serverAPI is the agent-server's API as a client of the box sees it.
type serverAPI struct {
	t      *testing.T
	url    string
	key    string
	dir    string
	header map[string]box.Secret // of a provider's ingress
}

// api returns the API of a running box: its address is in its directory, its
// key is derived.
func (i *installation) api(s box.Status, ws string) *serverAPI {
	t := i.t
	address, err := os.ReadFile(filepath.Join(i.boxDir(s), "run", "address"))
	require.NoError(t, err)
	raw, err := os.ReadFile(filepath.Join(i.dir, "installation.key"))
	require.NoError(t, err)
	keys, err := providers.NewKeySource(box.Secret(strings.TrimSpace(string(raw))))
	require.NoError(t, err)
	return &serverAPI{t: t, url: strings.TrimSpace(string(address)), key: keys.SessionKey(ws, s.Epoch).Reveal(), dir: i.boxDir(s)}
}

func (a *serverAPI) call(method, path string, body, answer any) {
	t := a.t
	t.Helper()
	var in io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		require.NoError(t, err)
		in = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, a.url+path, in)
	require.NoError(t, err)
	for name, value := range a.header {
		request.Header.Set(name, value.Reveal())
	}
	request.Header.Set("X-Session-API-Key", a.key)
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Timeout: within}).Do(request)
	require.NoError(t, err)
	defer response.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Less(t, response.StatusCode, 300, "%s %s: %s", method, path, text)
	if answer != nil {
		require.NoError(t, json.Unmarshal(text, answer), "%s", text)
	}
}

// converse makes a conversation and appends messages; no model is called.
func (a *serverAPI) converse(messages int) string {
	var made struct {
		ID string `json:"id"`
	}
	a.call(http.MethodPost, "/api/conversations", map[string]any{
		"workspace": map[string]any{"kind": "LocalWorkspace", "working_dir": filepath.Join(a.dir, "workspace")},
		"agent":     map[string]any{"kind": "Agent", "llm": map[string]any{"model": "openai/never-called", "usage_id": "t"}, "tools": []any{}},
		"autotitle": false,
	}, &made)
	for n := range messages {
		a.say(made.ID, fmt.Sprintf("message %d %s", n, uuid.NewString()))
	}
	return strings.ReplaceAll(made.ID, "-", "")
}

// say appends one message to a conversation.
func (a *serverAPI) say(id, text string) {
	a.call(http.MethodPost, "/api/conversations/"+id+"/events", map[string]any{
		"role": "user", "run": false, "content": []any{map[string]any{"type": "text", "text": text}},
	}, nil)
}

// events returns the events that the agent-server answers, in a canonical form.
func (a *serverAPI) events(id string) []string {
	var out []string
	page := ""
	for {
		var answer struct {
			Items []json.RawMessage `json:"items"`
			Next  *string           `json:"next_page_id"`
		}
		a.call(http.MethodGet, "/api/conversations/"+id+"/events/search?limit=100"+page, nil, &answer)
		for _, item := range answer.Items {
			if !bytes.Contains(item, []byte("ConversationStateUpdateEvent")) { // not stored as an event
				out = append(out, canonical(a.t, item))
			}
		}
		if answer.Next == nil || *answer.Next == "" {
			sort.Strings(out)
			return out
		}
		page = "&page_id=" + *answer.Next
	}
}

// canonical writes JSON with sorted keys, so that two encoders can be compared.
func canonical(t *testing.T, raw []byte) string {
	t.Helper()
	var v any
	require.NoError(t, json.Unmarshal(raw, &v))
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}
