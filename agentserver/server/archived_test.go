package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/retention"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/sharedworkspace"
)

const (
	archivedID = "aaaaaaaabbbb4ccc8dddeeeeeeeeeeee"
	liveID     = "11111111222243338444555555555555"
	gone       = "Conversation runtime was archived; its history is read-only"
)

// kept is a box whose agent-server a test plays: it makes and deletes
// conversations and answers 200 to everything else.
type kept struct {
	address, root string
	up            *behind
	rules         *retention.Rules

	rights string // the origin whose pages may read its answers

	mu    sync.Mutex
	seen  []string // requests that reached the agent-server, with their bodies
	fail  int      // the status of its next answer, without doing anything
	early bool     // that answer comes before it reads the request
}

// requests returns what reached the agent-server since the last call.
func (k *kept) requests() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := k.seen
	k.seen = nil
	return out
}

func (k *kept) play(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	early, fail := k.early, k.fail
	k.mu.Unlock()
	if early {
		w.Header().Set("Connection", "close") // or the library reads what is to come
		w.WriteHeader(fail)
		return
	}
	body, _ := io.ReadAll(r.Body)
	if k.rights != "" && r.Header.Get("Origin") == k.rights {
		w.Header().Set("Access-Control-Allow-Origin", k.rights)
		w.Header().Add("Vary", "Origin")
	}
	if r.URL.Path == "/alive" {
		return // asked by boxd
	}
	k.mu.Lock()
	k.seen = append(k.seen, r.Method+" "+r.URL.Path+" "+string(body))
	k.fail = 0
	k.mu.Unlock()
	if fail != 0 {
		w.WriteHeader(fail)
		return
	}
	conversations := filepath.Join(k.root, "conversations")
	switch {
	case r.Header.Get("X-Session-API-Key") != key:
		w.WriteHeader(http.StatusUnauthorized)
	case r.Method == http.MethodPost && r.URL.Path == "/api/conversations":
		var asked struct {
			ConversationID string `json:"conversation_id"`
		}
		_ = json.Unmarshal(body, &asked)
		id, err := agentservertest.WriteConversation(conversations, agentservertest.Conversation{ID: asked.ConversationID})
		if err == nil {
			w.WriteHeader(http.StatusCreated)
		}
		fmt.Fprintf(w, `{"id":%q}`, agentservertest.Dashed(id))
	case r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/runtime"):
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodDelete:
		_ = os.RemoveAll(filepath.Join(conversations, strings.ReplaceAll(filepath.Base(r.URL.Path), "-", "")))
		_, _ = io.WriteString(w, `{"success":true}`)
	default:
		_, _ = io.WriteString(w, `{"from":"the agent-server"}`)
	}
}

func keep(t *testing.T, change func(*retention.Options)) *kept {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	k := &kept{root: root}
	for _, dir := range []string{"conversations", "workspace", "persistence"} {
		require.NoError(t, os.Mkdir(filepath.Join(root, dir), 0o700))
	}
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	real := httptest.NewServer(http.HandlerFunc(k.play))
	t.Cleanup(real.Close)
	k.up = &behind{}
	k.up.base, err = k.up.base.Parse(real.URL)
	require.NoError(t, err)
	k.rules = retention.NewRules(root, r.WriteFile)
	opts := retention.Options{Layouts: []reclaim.Layout{sharedworkspace.New(root, r.WriteFile, sharedworkspace.Options{})}}
	if change != nil {
		change(&opts)
	}
	web := httptest.NewServer(server.New(server.Options{
		Root: root, Key: key, Reclaim: r, BasePath: "/box-1", Upstream: k.up,
		Keeping: &server.Keeping{Rules: k.rules, Keeper: retention.New(root, k.rules, opts)},
	}))
	t.Cleanup(web.Close)
	k.address = web.URL + "/box-1"
	for _, id := range []string{archivedID, liveID} {
		_, err := agentservertest.WriteConversation(filepath.Join(root, "conversations"), agentservertest.Conversation{
			ID: id, WorkingDir: filepath.Join(root, "workspace", id), Title: "of " + id,
			Events: []agentservertest.Event{{ID: agentservertest.Dashed(id), Text: "hello", At: time.Now().Add(-time.Hour)}},
		})
		require.NoError(t, err)
	}
	return k
}

func (k *kept) archive(t *testing.T, id string) {
	t.Helper()
	root, err := os.OpenRoot(k.root)
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, storage.Archive(root, id, func(name string, content []byte) error {
		return os.WriteFile(filepath.Join(k.root, name), content, 0o600)
	}))
}

// spellings are forms of an id that an agent-server takes for the same.
func spellings(id string) []string {
	dashed := agentservertest.Dashed(id)
	return []string{id, dashed, strings.ToUpper(dashed), "%7B" + dashed + "%7D", "urn:uuid:" + dashed}
}

func TestWhatPromptsAnArchivedConversationIsGone(t *testing.T) {
	t.Parallel()
	k := keep(t, nil)
	k.archive(t, archivedID)
	routes := []string{
		"POST /run", "POST /pause", "POST /interrupt", "POST /events", "POST /ask_agent", "POST /condense", "POST /goal", "POST /goal/stop", "POST /navigate",
		"POST /fork", "POST /children", "POST /switch_llm", "POST /switch_profile", "POST /switch_acp_model", "POST /secrets", "POST /confirmation_policy",
		"POST /security_analyzer", "POST /load_plugin", "POST /credential-bindings/x", "POST /events/respond_to_confirmation",
		"POST /runtime/reprovision", "POST /runtime/credentials", "DELETE /runtime", "PATCH ", "PUT ", "POST ",
		"GET /workspace", "GET /workspace/a/b.txt", "GET /file/download", "POST /file/upload", "GET /file/archive", "GET /git/changes", "GET /git/diff",
		"POST /bash/execute_bash_command", "GET /bash/bash_events/search", "GET /vscode/url", "GET /agent_final_response",
		"GET /a-route-of-tomorrow", "POST /a-route-of-tomorrow", "DELETE /a-route-of-tomorrow", "PROPFIND /x", "POST /run/", "GET /events", "GET /events/search/more",
	}
	for _, down := range []bool{false, true} {
		k.up.down.Store(down)
		for _, route := range routes {
			method, tail, _ := strings.Cut(route, " ")
			for _, id := range spellings(archivedID) {
				status, text, _ := ask(t, method, k.address+"/api/conversations/"+id+tail, "{}")
				require.Equal(t, http.StatusGone, status, "%s of %s: %s", route, id, text)
				require.JSONEq(t, `{"detail":"`+gone+`"}`, text)
			}
			if !down {
				status, _, _ := ask(t, method, k.address+"/api/conversations/"+liveID+tail, "{}")
				require.NotEqual(t, http.StatusGone, status, "%s of another", route)
			}
		}
		for _, path := range []string{
			"/sockets/events/" + agentservertest.Dashed(archivedID), "/sockets/session/" + archivedID + "?x=1",
			"/_docker/sockets/events/" + archivedID, "/api/_docker/conversations/" + archivedID + "/agent_final_response",
			"/api/git/changes?path=/x&cid=" + archivedID,
		} {
			status, text, _ := ask(t, http.MethodGet, k.address+path, "")
			require.Equal(t, http.StatusGone, status, path)
			require.Contains(t, text, gone)
		}
		status, _, _ := ask(t, http.MethodPost, k.address+"/api/conversations", `{"conversation_id":"`+agentservertest.Dashed(archivedID)+`","initial_message":{}}`)
		require.Equal(t, http.StatusGone, status, "to make it again would prompt it")
	}
	for _, one := range k.requests() {
		require.NotContains(t, strings.ReplaceAll(strings.ToLower(one), "-", ""), archivedID, "nothing reached the agent-server")
	}
	// A socket's key comes after the connection, so that it is refused before.
	response, err := keyless(t, http.MethodGet, k.address+"/sockets/events/"+archivedID, nil)
	require.NoError(t, err)
	response.Body.Close()
	require.Equal(t, http.StatusGone, response.StatusCode)
	response, err = keyless(t, http.MethodPost, k.address+"/api/conversations/"+archivedID+"/run", nil)
	require.NoError(t, err)
	response.Body.Close()
	require.Contains(t, []int{http.StatusUnauthorized, http.StatusServiceUnavailable}, response.StatusCode, "strangers learn nothing")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, k.address+"/api/conversations/"+archivedID+"/workspace/x", nil)
	require.NoError(t, err)
	request.Header.Set("Cookie", "oh_workspace_session_key=x")
	response, err = http.DefaultTransport.RoundTrip(request)
	require.NoError(t, err)
	response.Body.Close()
	require.Equal(t, http.StatusGone, response.StatusCode, "a cookie opens the files of a workspace")
}

// A request for a model goes on with the conversation that a header names.
func TestARequestForAModelDoesNotPromptAnArchivedConversation(t *testing.T) {
	t.Parallel()
	k := keep(t, nil)
	k.archive(t, archivedID)
	look := func(id, given string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, k.address+"/v1/chat/completions?cid="+liveID, strings.NewReader("{}"))
		require.NoError(t, err)
		request.Header.Set("X-OpenHands-ServerConversation-ID", id)
		if given != "" {
			request.Header.Set("Authorization", "Bearer "+given)
		}
		response, err := http.DefaultTransport.RoundTrip(request)
		require.NoError(t, err)
		response.Body.Close()
		return response.StatusCode
	}
	for _, id := range spellings(archivedID)[:3] {
		require.Equal(t, http.StatusGone, look(id, key), id)
	}
	require.Empty(t, k.requests())
	require.Equal(t, http.StatusUnauthorized, look(archivedID, ""), "strangers learn nothing")
	require.NotEqual(t, http.StatusGone, look(liveID, key))
}

// To some servers a path ends at a "#", which none may hold.
func TestAPathWithAFragmentIsRefused(t *testing.T) {
	t.Parallel()
	k := keep(t, nil)
	k.archive(t, archivedID)
	for _, line := range []string{
		"GET /box-1/sockets/events/" + archivedID + "#", "PATCH /box-1/api/conversations/" + archivedID + "#x", "POST /box-1/api/conversations#",
	} {
		connection, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(k.address, "http://"), "/box-1")) //nolint:noctx // local and instant
		require.NoError(t, err)
		_, err = fmt.Fprintf(connection, "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Session-API-Key: %s\r\nContent-Length: 0\r\n\r\n", line, key)
		require.NoError(t, err)
		answer, err := io.ReadAll(connection)
		require.NoError(t, err)
		require.NoError(t, connection.Close())
		require.Contains(t, string(answer), "HTTP/1.1 400 ", line)
	}
	require.Empty(t, k.requests())
}

// The agent-server reads more forms of JSON than we do.
func TestNoFormOfJSONMakesAnArchivedConversationAgain(t *testing.T) {
	t.Parallel()
	k := keep(t, nil)
	k.archive(t, archivedID)
	plain := `{"conversation_id":"` + archivedID + `"}`
	wide := func(start string, order func(byte) string) string {
		for i := range len(plain) {
			start += order(plain[i])
		}
		return start
	}
	for name, body := range map[string]string{
		"with a mark":            "\xef\xbb\xbf" + plain,
		"of two bytes":           wide("", func(b byte) string { return string([]byte{b, 0}) }),
		"of two bytes, marked":   wide("\xfe\xff", func(b byte) string { return string([]byte{0, b}) }),
		"of four bytes":          wide("", func(b byte) string { return string([]byte{b, 0, 0, 0}) }),
		"with a number of none":  `{"x":NaN,"conversation_id":"` + archivedID + `"}`,
		"with one beyond bounds": `{"x":-Infinity,"conversation_id":"` + archivedID + `"}`,
	} {
		status, text, _ := ask(t, http.MethodPost, k.address+"/api/conversations", body)
		require.Equal(t, http.StatusUnprocessableEntity, status, "%s: %s", name, text)
		require.Contains(t, text, `"type":"json_invalid"`, name)
		require.Empty(t, k.requests(), name)
	}
	status, _, _ := ask(t, http.MethodPost, k.address+"/api/conversations", "{")
	require.Equal(t, http.StatusCreated, status, "what nobody reads is the agent-server's to refuse")
}

// Whoever has no key must not make boxd keep what they send.
func TestTheBodyOfAStrangerIsNotKept(t *testing.T) {
	t.Parallel()
	k := keep(t, nil)
	reader, writer := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, k.address+"/api/conversations", reader)
	require.NoError(t, err)
	k.mu.Lock()
	k.early, k.fail = true, http.StatusUnauthorized
	k.mu.Unlock()
	go func() { _, _ = writer.Write([]byte(`{"never":"ends`)) }()
	response, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(t, err)
	response.Body.Close()
	require.NoError(t, writer.Close())
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
}

func TestTheHistoryOfAnArchivedConversationIsServed(t *testing.T) {
	t.Parallel()
	k := keep(t, nil)
	k.archive(t, archivedID)
	at := k.address + "/api/conversations/" + agentservertest.Dashed(archivedID)
	for _, down := range []bool{false, true} {
		k.up.down.Store(down)
		for tail, part := range map[string]string{
			"/runtime":       `{"can_resume":false,"runtime_error":null,"runtime_status":"missing"}`,
			"/events/count":  `1`,
			"/events/search": `"hello"`,
			"/events/" + agentservertest.Dashed(archivedID): `"hello"`,
		} {
			status, text, _ := ask(t, http.MethodGet, at+tail, "")
			require.Equal(t, http.StatusOK, status, tail)
			require.Contains(t, text, part, tail)
			require.Empty(t, k.requests(), "the agent-server would load it: %s", tail)
			response, err := keyless(t, http.MethodGet, at+tail, nil)
			require.NoError(t, err)
			response.Body.Close()
			require.NotEqual(t, http.StatusOK, response.StatusCode, "not without the key: %s", tail)
			k.requests()
		}
		status, text, _ := ask(t, http.MethodGet, at, "")
		require.Equal(t, http.StatusOK, status)
		if down {
			require.Contains(t, text, "of "+archivedID)
		} else {
			require.Contains(t, text, "the agent-server", "a look at the catalogue loads nothing")
		}
		k.requests()
		status, _, _ = ask(t, http.MethodGet, at+"/events/"+agentservertest.Dashed(liveID), "")
		require.Equal(t, http.StatusNotFound, status)
		for _, tail := range []string{"/events/..%2F..", "/events/%2A", "/events/json"} {
			status, _, _ = ask(t, http.MethodGet, at+tail, "")
			require.Contains(t, []int{http.StatusNotFound, http.StatusGone}, status, tail)
		}
		status, text, header := ask(t, http.MethodGet, at+"/file/download-trajectory/"+archivedID, "")
		require.Equal(t, http.StatusOK, status, text)
		require.Contains(t, header.Get("Content-Disposition"), archivedID+".zip")
		require.True(t, strings.HasPrefix(text, "PK"))
		status, _, _ = ask(t, http.MethodGet, at+"/file/download-trajectory/"+liveID, "")
		require.Equal(t, http.StatusUnprocessableEntity, status)
		k.requests()
	}
	k.up.down.Store(false)
	status, _, _ := ask(t, http.MethodOptions, at+"/run", "")
	require.Equal(t, http.StatusOK, status, "a browser asks before it reads a refusal")
}

func TestDeletingAnArchivedConversationRemovesItsMarkerAndItsRule(t *testing.T) {
	t.Parallel()
	k := keep(t, nil)
	status, _, _ := ask(t, http.MethodPut, k.address+"/api/conversations/"+archivedID+"/retention", `{"mode":"days","days":1}`)
	require.Equal(t, http.StatusOK, status)
	k.archive(t, archivedID)
	marker := filepath.Join(k.root, "persistence/runtime-control", archivedID+".archived.json")
	rule := filepath.Join(k.root, "run/retention", archivedID+".json")
	require.FileExists(t, rule)
	// One that the agent-server did not delete stays archived.
	k.fail = http.StatusInternalServerError
	status, _, _ = ask(t, http.MethodDelete, k.address+"/api/conversations/"+archivedID, "")
	require.Equal(t, http.StatusInternalServerError, status)
	require.FileExists(t, marker)
	require.FileExists(t, rule)
	k.up.down.Store(true)
	status, _, _ = ask(t, http.MethodDelete, k.address+"/api/conversations/"+archivedID, "")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.FileExists(t, marker)
	k.up.down.Store(false)
	status, text, _ := ask(t, http.MethodDelete, k.address+"/api/conversations/"+agentservertest.Dashed(archivedID), "")
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"success":true}`, text)
	require.NoFileExists(t, marker)
	require.NoFileExists(t, rule)
	status, _, _ = ask(t, http.MethodPost, k.address+"/api/conversations", `{"conversation_id":"`+archivedID+`"}`)
	require.Equal(t, http.StatusCreated, status, "its id is free again")
	status, _, _ = ask(t, http.MethodPost, k.address+"/api/conversations/"+archivedID+"/run", "")
	require.Equal(t, http.StatusOK, status)
}

// boxd or the agent-server may be killed when the history has gone and the marker
// has not: then its id is free all the same.
func TestAMarkerThatOutlivedItsConversationKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	k := keep(t, nil)
	k.archive(t, archivedID)
	require.NoError(t, os.RemoveAll(filepath.Join(k.root, "conversations", archivedID)))
	status, text, _ := ask(t, http.MethodPost, k.address+"/api/conversations", `{"conversation_id":"`+archivedID+`"}`)
	require.Equal(t, http.StatusCreated, status, text)
	status, _, _ = ask(t, http.MethodPost, k.address+"/api/conversations/"+archivedID+"/run", "")
	require.Equal(t, http.StatusOK, status)
}
