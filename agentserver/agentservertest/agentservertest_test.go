package agentservertest_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
)

func start(t *testing.T, opts agentservertest.Options) *agentservertest.Server {
	t.Helper()
	s, err := agentservertest.Start(opts)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func call(t *testing.T, method, url, body string) (int, []byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("X-Session-API-Key", "k")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

func whole(content []byte) bool {
	_, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	return err == nil
}

func TestAConversationIsLaidOutAsAnAgentServerDoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	id, err := agentservertest.WriteConversation(dir, agentservertest.Conversation{
		ID: "C6FD979F-c3cf-487f-836a-5af2a620c03e", Title: "a talk",
		Events: []agentservertest.Event{{Text: "one"}, {Source: "agent", Text: "two"}, {ID: "12345678-0000-4000-8000-000000000000", Raw: json.RawMessage(`{"kind":"Odd"}`)}},
	})
	require.NoError(t, err)
	require.Equal(t, "c6fd979fc3cf487f836a5af2a620c03e", id)
	name, err := agentservertest.AppendEvent(dir, agentservertest.Dashed(id), agentservertest.Event{Text: "three"})
	require.NoError(t, err)
	entries, err := os.ReadDir(filepath.Join(dir, id, "events"))
	require.NoError(t, err)
	require.Len(t, entries, 4)
	for i, entry := range entries {
		require.Regexp(t, `^event-0000`+string(rune('0'+i))+`-[0-9a-f-]{36}\.json$`, entry.Name())
	}
	require.Contains(t, entries[3].Name(), name)
	for _, file := range []string{"meta.json", "base_state.json"} {
		text, err := os.ReadFile(filepath.Join(dir, id, file))
		require.NoError(t, err)
		require.True(t, json.Valid(text))
	}
	_, err = agentservertest.WriteConversation(dir, agentservertest.Conversation{ID: id})
	require.ErrorContains(t, err, "already")
	for _, bad := range []agentservertest.Conversation{{ID: "../x"}, {ID: "zz"}, {Events: []agentservertest.Event{{ID: "../../x"}}}} {
		_, err := agentservertest.WriteConversation(dir, bad)
		require.Error(t, err)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "a refused one leaves nothing")
}

func TestFaultsAreWhatTheySay(t *testing.T) {
	t.Parallel()
	s := start(t, agentservertest.Options{Key: "k"})
	id, err := agentservertest.WriteConversation(s.Conversations(), agentservertest.Conversation{Events: make([]agentservertest.Event, 50)})
	require.NoError(t, err)
	download := s.URL + "/api/file/download-trajectory/" + id
	_, content, err := call(t, http.MethodGet, download, "")
	require.NoError(t, err)
	require.True(t, whole(content))

	s.Break(agentservertest.Faults{ShortZip: map[string]bool{id: true}})
	_, short, err := call(t, http.MethodGet, download, "")
	require.NoError(t, err, "nothing on the wire shows it")
	require.False(t, whole(short))

	s.Break(agentservertest.Faults{CutZip: map[string]bool{id: true}})
	_, _, err = call(t, http.MethodGet, download, "")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)

	s.Break(agentservertest.Faults{Collide: true})
	broken := make(chan bool, 10)
	var all sync.WaitGroup
	for range cap(broken) {
		all.Go(func() {
			_, content, err := call(t, http.MethodGet, download, "")
			broken <- err != nil || !whole(content)
		})
	}
	all.Wait()
	found := 0
	for range cap(broken) {
		if <-broken {
			found++
		}
	}
	require.Positive(t, found)

	s.Break(agentservertest.Faults{Miscount: map[string]int{id: 5}})
	_, content, err = call(t, http.MethodGet, s.URL+"/api/conversations/"+id+"/events/count", "")
	require.NoError(t, err)
	require.Equal(t, "55", strings.TrimSpace(string(content)))

	s.Break(agentservertest.Faults{HangAfter: 1})
	_, _, err = call(t, http.MethodGet, s.URL+"/alive", "")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/alive", nil)
	require.NoError(t, err)
	_, err = http.DefaultTransport.RoundTrip(request) //nolint:bodyclose // there is no answer
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestChangesAreUpstreamsOwn(t *testing.T) {
	t.Parallel()
	s := start(t, agentservertest.Options{Key: "k", Plain: true, BasePath: "/p"})
	id := strings.Repeat("ab", 16)
	for _, row := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/api/conversations", `{"conversation_id":"` + id + `"}`, 201, agentservertest.Dashed(id)},
		{"POST", "/api/conversations", `{"conversation_id":"` + id + `"}`, 200, agentservertest.Dashed(id)},
		{"POST", "/api/conversations/" + id + "/events", `{"role":"user","content":[{"type":"text","text":"hi"}],"run":false}`, 200, "true"},
		{"GET", "/api/conversations/" + id + "/events/count", "", 200, "1"},
		{"PATCH", "/api/conversations/" + strings.Repeat("0", 32), `{}`, 200, `false`},
		{"POST", "/api/conversations/" + strings.Repeat("0", 32) + "/pause", "", 400, "Bad Request"},
		{"POST", "/api/conversations/" + id + "/pause", "", 200, "true"},
		{"GET", "/api/conversations/count?status=paused", "", 200, "1"},
		{"DELETE", "/api/conversations/" + id, "", 200, "true"},
		{"DELETE", "/api/conversations/" + id, "", 400, "Bad Request"},
		{"GET", "/api/boxd/use", "", 404, "Not Found"},
	} {
		status, text, err := call(t, row.method, s.URL+row.path, row.body)
		require.NoError(t, err)
		require.Equal(t, row.status, status, "%s %s %s", row.method, row.path, text)
		require.Contains(t, string(text), row.says)
	}
}
