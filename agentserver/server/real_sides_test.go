package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clocks are fields that differ between two looks.
var clocks = []string{"uptime", "idle_time", "error_id", "updated_at"}

func without(value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, inner := range value {
			if !slices.Contains(clocks, name) {
				out[name] = without(inner)
			}
		}
		return out
	case []any:
		for i := range value {
			value[i] = without(value[i])
		}
	}
	return value
}

func (r *real) compare(t *testing.T, id string) {
	t.Helper()
	_, text, _ := ask(t, http.MethodGet, r.direct+"/openapi.json", "")
	var api struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	require.NoError(t, json.Unmarshal([]byte(text), &api))
	require.Greater(t, len(api.Paths), 100)
	fill := strings.NewReplacer("{conversation_id}", id, "{runtime_conversation_id}", id, "{file_path}", "none.txt", "{event_id}", id, "{command_id}", id, "{sha}", "HEAD")
	compared, slow := 0, []string{}
	client := &http.Client{Timeout: 5 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	look := func(base, target, key string) (status int, header http.Header, body string, err error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+target, nil)
		require.NoError(t, err)
		request.Header.Set("X-Session-API-Key", key)
		request.Header.Set("Accept-Encoding", "gzip") // by hand, so that nothing is unpacked
		request.Host = "box.example"
		response, err := client.Do(request)
		if err != nil {
			return 0, nil, "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		header = plainHeader(response.Header)
		return response.StatusCode, header, string(text), err
	}
	targets := []string{"/openapi.json", "/docs", "/redoc", "/none", "/api/none", "/api/conversations/", "/static/none", "/api/conversations?ids=" + id, "/api/file/search_subdirs?path=" + r.root}
	for _, place := range slices.Sorted(maps.Keys(api.Paths)) {
		if _, reads := api.Paths[place]["get"]; !reads || strings.Contains(place, "download-trajectory") || place == "/server_info" {
			continue // ours
		}
		targets = append(targets, fill.Replace(place))
	}
	for _, target := range targets {
		for _, key := range []string{key, "wrong"} {
			status, header, body, err := look(r.direct, target, key)
			if err != nil {
				slow = append(slow, target) // it asks the network
				continue
			}
			gotStatus, gotHeader, gotBody, err := look(r.url, target, key)
			require.NoError(t, err, target)
			require.Equal(t, status, gotStatus, target)
			var a, b any
			if json.Unmarshal([]byte(body), &a) == nil && json.Unmarshal([]byte(gotBody), &b) == nil {
				require.Equal(t, without(a), without(b), target)
				for _, h := range []http.Header{header, gotHeader} {
					if len(body) != len(gotBody) {
						h.Del("Content-Length")
					}
				}
			} else {
				require.Equal(t, body, gotBody, target)
			}
			require.Equal(t, header, gotHeader, target)
			compared++
		}
	}
	t.Logf("%d answers compared; not compared, since they take over 5 s: %v", compared, slow)
	require.Greater(t, compared, 100)

	var direct, through map[string]any
	_, text, _ = ask(t, http.MethodGet, r.direct+"/server_info", "")
	require.NoError(t, json.Unmarshal([]byte(text), &direct))
	_, text, _ = ask(t, http.MethodGet, r.url+"/server_info", "")
	require.NoError(t, json.Unmarshal([]byte(text), &through))
	theirs, ok := direct["capabilities"].([]any)
	require.True(t, ok)
	ours, ok := through["capabilities"].([]any)
	require.True(t, ok)
	require.Equal(t, theirs, ours[:len(theirs)])
	require.Contains(t, ours, "storage_status_v1")
	require.Contains(t, ours, "history_import_v1")
	delete(direct, "capabilities")
	delete(through, "capabilities")
	require.Equal(t, without(direct), without(through), "nothing else is lost")
}

// refusals holds ours against the agent-server's.
func (r *real) refusals(t *testing.T, _ string) {
	t.Helper()
	type form struct {
		status int
		keys   []string // of the body, and of its first fault
		allow  bool
		media  string
	}
	look := func(method, target, sent, key string) (form, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, r.url+target, strings.NewReader(sent))
		require.NoError(t, err)
		if key != "" {
			request.Header.Set("X-Session-API-Key", key)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultTransport.RoundTrip(request)
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		var body map[string]any
		require.NoError(t, json.Unmarshal(text, &body), "%s", text)
		f := form{status: response.StatusCode, keys: slices.Sorted(maps.Keys(body)), allow: response.Header.Get("Allow") != "", media: response.Header.Get("Content-Type")}
		if faults, ok := body["detail"].([]any); ok {
			fault, ok := faults[0].(map[string]any)
			require.True(t, ok)
			delete(fault, "ctx") // the words of the agent-server's own library
			f.keys = append(f.keys, slices.Sorted(maps.Keys(fault))...)
			f.keys = append(f.keys, fmt.Sprint(fault["type"], fault["loc"]))
		}
		return f, string(text)
	}
	for name, row := range map[string]struct{ method, ours, theirs, body, theirBody, key string }{
		"no key":                {"GET", "/api/boxd/use", "/api/conversations/count", "", "", ""},
		"another key":           {"GET", "/api/storage", "/api/conversations/count", "", "", "wrong"},
		"another method":        {"PUT", "/api/boxd/use", "/api/conversations/count", "", "", key},
		"and that without key":  {"POST", "/api/boxd/use", "/api/conversations/count", "", "", ""},
		"nothing there":         {"GET", "/api/boxd/nothing", "/api/nothing", "", "", ""},
		"an id that is none":    {"GET", "/api/file/download-trajectory/xyz", "/api/conversations/xyz", "", "", key},
		"an id that is unknown": {"GET", "/api/file/download-trajectory/" + strings.Repeat("d", 32), "/api/conversations/" + strings.Repeat("d", 32), "", "", key},
		"no body":               {"POST", "/api/storage/reclaim", "/api/conversations", "", "", key},
		"no JSON":               {"POST", "/api/storage/reclaim", "/api/conversations", "{", "{", key},
	} {
		ours, text := look(row.method, row.ours, row.body, row.key)
		theirs, theirText := look(row.method, row.theirs, row.theirBody, row.key)
		require.Equal(t, theirs, ours, "%s: %s is not like %s", name, text, theirText)
	}
	_, text := look("POST", "/api/boxd/drain", `{"lease_seconds":"sk-a-secret"}`, key)
	require.NotContains(t, text, "sk-a-secret")
}

func (r *real) origins(t *testing.T, _ string) {
	t.Helper()
	look := func(method, target, origin string) map[string][]string {
		request, err := http.NewRequestWithContext(t.Context(), method, r.url+target, nil)
		require.NoError(t, err)
		request.Header.Set("X-Session-API-Key", key)
		request.Header.Set("Origin", origin)
		if method == http.MethodOptions {
			request.Header.Set("Access-Control-Request-Method", "POST")
			request.Header.Set("Access-Control-Request-Headers", "x-session-api-key")
		}
		response, err := http.DefaultTransport.RoundTrip(request)
		require.NoError(t, err)
		response.Body.Close()
		out := map[string][]string{"status": {fmt.Sprint(response.StatusCode)}}
		for name, values := range response.Header {
			if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
				out[name] = values
			}
		}
		return out
	}
	for _, origin := range []string{"http://localhost:3001", "https://evil.example"} {
		for _, method := range []string{http.MethodOptions, http.MethodGet} {
			require.Equal(t, look(method, "/api/conversations/count", origin), look(method, "/api/boxd/use", origin), "%s from %s", method, origin)
		}
	}
	require.Contains(t, look(http.MethodGet, "/api/storage", "http://localhost:3001"), "Access-Control-Allow-Origin")
}

func (r *real) trajectories(t *testing.T, id string) {
	t.Helper()
	hex := strings.ReplaceAll(id, "-", "")
	const token = "gAAAAABrDFNcEdCYtMHQJeEfgqYI-phGbuKP8AZvBBJVZjPv2PEBTIvWvb5hs8-JwDzjIxnQPgRLOyLm0HtzpvDsrKs_N1xVHA=="
	r.say(t, id, "it printed "+token+" here")
	dir := filepath.Join(r.root, "conversations", hex)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "acp"), 0o700))
	for name, content := range map[string]string{
		"extra.json": `{"llm":{"api_key":"sk-canary-1234567890"},"n":1.50,"t":"` + token + `"}`, "lines.jsonl": `{"api_key":"sk-canary-1234567890"}` + "\n" + `{"a":1}` + "\n",
		"notes.txt": "as it is", "acp/credentials.json": `{"a":"sk-canary-1234567890"}`, "half.json.tmp": "{",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	status, theirs, _ := ask(t, http.MethodGet, r.direct+"/api/file/download-trajectory/"+id, "")
	require.Equal(t, http.StatusOK, status)
	status, ours, header := ask(t, http.MethodGet, r.url+"/api/file/download-trajectory/"+id, "")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "application/octet-stream", header.Get("Content-Type"))
	require.Equal(t, `attachment; filename="`+hex+`.zip"`, header.Get("Content-Disposition"))
	want, got := unzip(t, theirs), unzip(t, ours)
	for name := range want {
		if base := filepath.Base(name); strings.HasSuffix(base, ".lock") || base == "owner_lease.json" || strings.HasSuffix(base, ".marker") {
			delete(want, name)
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
	for name, content := range want {
		content = strings.ReplaceAll(content, token, "**********") // more than it masks
		if strings.HasSuffix(name, ".json") {
			require.Equal(t, canonical(t, []byte(content)), canonical(t, []byte(got[name])), name)
		} else if !strings.HasSuffix(name, ".jsonl") {
			require.Equal(t, content, got[name], name)
		}
		require.NotContains(t, got[name], "sk-canary", name)
		require.NotContains(t, got[name], "gAAAA", name)
	}
	require.Contains(t, theirs+want[hex+"/extra.json"], "**********", "the agent-server masks as well, or this compares nothing")
	for _, name := range []string{"extra.json", "lines.jsonl", "notes.txt", "half.json.tmp"} {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "acp")))
}

func (r *real) putBack(t *testing.T, other string) {
	t.Helper()
	id := r.converse(t, 4)
	hex := strings.ReplaceAll(id, "-", "")
	before := r.events(t, r.url, id)
	c := connect(t, r.url)
	packed := trajectory(t, c, id)
	_, err := put(t, c, id, packed)
	require.Error(t, err, "it is in the box")
	status, text, _ := ask(t, http.MethodDelete, r.url+"/api/conversations/"+id, "")
	require.Equal(t, http.StatusOK, status, text)
	_, err = put(t, c, id, packed)
	require.NoError(t, err)

	require.Equal(t, before, r.events(t, r.url, id), "event by event")
	require.Equal(t, packed, trajectory(t, c, id))
	var n int
	get(t, r.url+"/api/conversations/"+id+"/events/count", &n)
	require.Len(t, before, n)
	var one struct {
		ID     string `json:"id"`
		Status string `json:"execution_status"`
	}
	get(t, r.url+"/api/conversations/"+hex, &one)
	require.Equal(t, id, one.ID)
	get(t, r.url+"/api/conversations/count", &n)
	require.Equal(t, 2, n)
	var page struct {
		Items []struct {
			ID string `json:"id"`
		} `json:"items"`
		Next *string `json:"next_page_id"`
	}
	get(t, r.url+"/api/conversations/search?limit=1", &page)
	require.Equal(t, id, page.Items[0].ID, "the newest first")
	require.NotNil(t, page.Next)
	get(t, r.url+"/api/conversations/search?limit=1&page_id="+*page.Next, &page)
	require.Equal(t, other, page.Items[0].ID)
	require.Nil(t, page.Next)
	var batch []*struct {
		ID string `json:"id"`
	}
	get(t, r.url+"/api/conversations?ids="+id+"&ids="+other+"&ids="+strings.Repeat("e", 32), &batch)
	require.Equal(t, id, batch[0].ID)
	require.Equal(t, other, batch[1].ID)
	require.Nil(t, batch[2])

	start := `{"conversation_id":"%s","workspace":{"kind":"LocalWorkspace","working_dir":"/tmp"},"agent":{"kind":"Agent","llm":{"model":"openai/x","usage_id":"t"},"tools":[]}}`
	for _, row := range []struct{ method, path, body string }{
		{"POST", "/api/conversations/" + id + "/run", ""},
		{"POST", "/api/conversations/" + id + "/events", `{"role":"user","content":[]}`},
		{"PATCH", "/api/conversations/" + hex, `{"title":"x"}`},
		{"POST", "/api/conversations/{" + id + "}/fork", "{}"},
		{"POST", "/api/conversations/" + id + "/runtime/reprovision", ""},
		{"GET", "/api/conversations/" + id + "/agent_final_response", ""},
		{"GET", "/api/conversations/" + id + "/workspace/x", ""},
		{"GET", "/sockets/session/" + id, ""},
		{"POST", "/api/conversations", fmt.Sprintf(start, id)},
		{"POST", "/api/conversations/", fmt.Sprintf(start, "urn:uuid:"+strings.ToUpper(id))},
		{"POST", "/api/conversations", `{"conversation_id":"` + other + `","conversation\u005fid":"` + hex + `"}`},
	} {
		status, text, _ := ask(t, row.method, r.url+row.path, row.body)
		require.Equal(t, http.StatusGone, status, "%s %s: %s", row.method, row.path, text)
		require.Contains(t, text, "its history is read-only")
	}
	status, _, _ = ask(t, http.MethodPost, r.url+"/api/conversations", "\xef\xbb\xbf"+fmt.Sprintf(start, id))
	require.Equal(t, http.StatusUnprocessableEntity, status, "what is not read is not passed on")
	status, _, _ = ask(t, http.MethodGet, r.direct+"/api/conversations/"+id, "")
	require.Equal(t, http.StatusNotFound, status, "the agent-server never sees it")
	require.NoDirExists(t, filepath.Join(r.root, "conversations", hex))
	r.converse(t, 1) // others are made as before
	status, text, _ = ask(t, http.MethodDelete, r.url+"/api/conversations/"+id, "")
	require.Equal(t, http.StatusOK, status, text)
	status, _, _ = ask(t, http.MethodGet, r.url+"/api/conversations/"+id, "")
	require.Equal(t, http.StatusNotFound, status)
}

func (r *real) socketCodes(t *testing.T, id string) {
	t.Helper()
	for name, row := range map[string]struct {
		path, key string
		code      uint16
	}{
		"another key":             {"/sockets/events/" + id, "wrong", 4001},
		"an unknown conversation": {"/sockets/events/" + strings.Repeat("d", 32), key, 4004},
	} {
		for _, base := range []string{r.direct, r.url} {
			require.Equal(t, row.code, closeCode(t, base+row.path, row.key), "%s at %s", name, base)
		}
	}
}
