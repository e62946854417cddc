package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// realBoxd starts boxd in front of a real agent-server, and waits for it.
func realBoxd(t *testing.T, root string) *boxd {
	t.Helper()
	executable := os.Getenv(agentServerVariable)
	if executable == "" {
		t.Skip("needs a real agent-server: set " + agentServerVariable + " to its executable (scripts/agent-server.sh installs one)")
	}
	b := startBoxd(t, root, "--", executable)
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if status, _, _ := ask(t, http.MethodGet, b.url+"/ready", ""); status == http.StatusOK {
			return b
		}
		require.True(t, time.Now().Before(deadline), "the agent-server never gets ready")
	}
}

// create makes a conversation with a real agent-server, without a run.
func (b *boxd) create(t *testing.T, more string) (id string) {
	t.Helper()
	status, text, _ := askJSON(t, http.MethodPost, b.url+"/api/conversations", fmt.Sprintf(
		`{"workspace":{"kind":"LocalWorkspace","working_dir":%q},"agent":{"kind":"Agent","llm":{"model":"openai/never-called","usage_id":"t"},"tools":[]},"autotitle":false%s}`,
		filepath.Join(b.root, "workspace/app"), more,
	))
	require.Equal(t, http.StatusCreated, status, text)
	var made struct{ ID string }
	require.NoError(t, json.Unmarshal([]byte(text), &made))
	return made.ID
}

// askJSON sends one request whose body says what it is, as a real agent-server
// wants it.
func askJSON(t *testing.T, method, url, body string) (status int, answer string, header http.Header) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("X-Session-API-Key", key)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text), response.Header
}

func (b *boxd) idle(t *testing.T) float64 {
	t.Helper()
	status, text, _ := ask(t, http.MethodGet, b.url+"/server_info", "")
	require.Equal(t, http.StatusOK, status, text)
	var info struct {
		Idle float64 `json:"idle_time"`
	}
	require.NoError(t, json.Unmarshal([]byte(text), &info))
	return info.Idle
}

// Scenario 6: retention, reads of an archived conversation and refusals move no
// idle clock.
func TestScenario6RetentionAndArchivingWithARealAgentServer(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	b := realBoxd(t, root)
	id := b.create(t, `,"retention":{"mode":"days","days":30}`)
	hex := strings.ReplaceAll(id, "-", "")
	at := b.url + "/api/conversations/" + id
	status, text, _ := askJSON(t, http.MethodPost, at+"/events", `{"role":"user","content":[{"type":"text","text":"hello"}],"run":false}`)
	require.Equal(t, http.StatusOK, status, text)
	told := func(want string) {
		t.Helper()
		status, text, _ := ask(t, http.MethodGet, at+"/retention", "")
		require.Equal(t, http.StatusOK, status, text)
		require.JSONEq(t, want, text)
	}
	told(`{"mode":"days","days":30}`)
	status, text, _ = ask(t, http.MethodPost, b.url+"/api/boxd/drain", `{"lease_seconds":1}`)
	require.Equal(t, http.StatusOK, status, text)
	status, text, _ = ask(t, http.MethodPost, b.url+"/api/conversations/prepare-for-sandbox-pause", "")
	require.Equal(t, http.StatusNoContent, status, text)
	status, _, _ = ask(t, http.MethodDelete, b.url+"/api/boxd/drain", "")
	require.Equal(t, http.StatusNoContent, status)
	lease := filepath.Join(root, "conversations", hex, "owner_lease.json")
	require.NoFileExists(t, lease)
	state, err := os.Stat(filepath.Join(root, "conversations", hex, "base_state.json"))
	require.NoError(t, err)

	// What follows is maintenance: the clock goes on, and nothing is loaded.
	start, began := b.idle(t), time.Now()
	status, _, _ = ask(t, http.MethodPut, at+"/retention", `{"mode":"on_stop"}`)
	require.Equal(t, http.StatusOK, status)
	told(`{"mode":"on_stop"}`)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "persistence/runtime-control"), 0o700))
	marker := filepath.Join(root, "persistence/runtime-control", hex+".archived.json")
	require.NoError(t, os.WriteFile(marker, []byte(`{"archived_at":"2026-11-29T12:00:00+00:00"}`), 0o600))
	reads := func() {
		t.Helper()
		for tail, part := range map[string]string{"": `"id"`, "/runtime": `"missing"`, "/events/search": "hello", "/events/count": "", "/file/download-trajectory/" + hex: "PK"} {
			status, text, _ := ask(t, http.MethodGet, at+tail, "")
			require.Equal(t, http.StatusOK, status, "%s: %s", tail, text)
			require.Contains(t, text, part)
		}
		for _, route := range []string{"POST /run", "POST /events", "POST /fork", "PATCH ", "GET /agent_final_response", "GET /git/changes", "POST /runtime/reprovision"} {
			method, tail, _ := strings.Cut(route, " ")
			status, text, _ := ask(t, method, at+tail, "{}")
			require.Equal(t, http.StatusGone, status, "%s: %s", route, text)
		}
	}
	for time.Since(began) < 3*time.Second || b.idle(t) < start+2 {
		reads()
		require.Less(t, time.Since(began), time.Minute, "the idle clock stands still")
	}
	require.InDelta(t, start+time.Since(began).Seconds(), b.idle(t), 2)
	require.NoFileExists(t, lease, "the agent-server never loaded it")
	after, err := os.Stat(filepath.Join(root, "conversations", hex, "base_state.json"))
	require.NoError(t, err)
	require.Equal(t, state.ModTime(), after.ModTime(), "nor was its last use moved")

	// Without the agent-server the same is said.
	require.NoError(t, syscall.Kill(childOf(t, b.Process.Pid), syscall.SIGKILL))
	await(t, "boxd to notice", func() bool { return useOf(t, b).Server.State == "restarting" })
	reads()

	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if status, _, _ = ask(t, http.MethodGet, b.url+"/ready", ""); status == http.StatusOK {
			break
		}
		require.True(t, time.Now().Before(deadline), "the agent-server is never started again")
	}
	status, text, _ = ask(t, http.MethodDelete, at, "")
	require.Equal(t, http.StatusOK, status, text)
	require.NoFileExists(t, marker)
	require.NoFileExists(t, filepath.Join(root, "run/retention", hex+".json"))
	status, _, _ = ask(t, http.MethodGet, at, "")
	require.Equal(t, http.StatusNotFound, status)
}

// childOf returns the first child of a process.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// The name of a program may hold anything, a bracket too.
		rest := string(text[strings.LastIndexByte(string(text), ')')+1:])
		var state string
		var parent int
		if _, err := fmt.Sscan(rest, &state, &parent); err == nil && parent == pid {
			var child int
			_, err = fmt.Sscan(string(text), &child)
			require.NoError(t, err)
			return child
		}
	}
	t.Fatal("it has no child")
	return 0
}
