package server_test

import (
	"archive/zip"
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ours lists every endpoint of boxd: none may move the idle clock.
var ours = []struct {
	method, path, body string
}{
	{"GET", "/api/boxd/use", ""},
	{"GET", "/api/storage", ""},
	{"POST", "/api/storage/reclaim", `{"dry_run":true}`},
	{"POST", "/api/storage/reclaim", `{"tiers":["caches"]}`},
	{"GET", "/api/file/download-trajectory/{id}", ""},
	{"GET", "/api/conversations/{id}/file/download-trajectory/{id}", ""},
	{"POST", "/api/boxd/drain", `{"lease_seconds":5}`},
	{"GET", "/api/boxd/use", ""},
	{"DELETE", "/api/boxd/drain", ""},
	{"PUT", "/api/boxd/history/{new}", ""},
	{"GET", "/api/conversations/{id}/retention", ""},
	{"PUT", "/api/conversations/{id}/retention", `{"mode":"days","days":3}`},
	{"GET", "/api/workspace/unsaved", ""},
	{"GET", "/api/workspace/export", ""},
}

// fillCache gives reclaim something to take.
func (r *real) fillCache(t *testing.T) (cache string) {
	t.Helper()
	cache = filepath.Join(r.root, "home/.npm/_cacache")
	for _, name := range []string{"index-v5/x", "content-v2/blob"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(cache, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(cache, name), bytes.Repeat([]byte("x"), 1<<20), 0o600))
	}
	return cache
}

func (r *real) idle(t *testing.T) float64 {
	t.Helper()
	var info struct {
		Idle float64 `json:"idle_time"`
	}
	get(t, r.direct+"/server_info", &info)
	return info.Idle
}

func (r *real) idleClock(t *testing.T, id string) {
	t.Helper()
	settle := func() {
		await(t, "the idle clock to be past 2 s", func() bool { return r.idle(t) >= 2 })
	}
	fresh := strings.Repeat("9", 32)
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	for _, name := range []string{"/meta.json", "/events/event-00000-12345678.json"} {
		entry, err := archive.Create(fresh + name)
		require.NoError(t, err)
		_, err = entry.Write([]byte("{}"))
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	r.fillCache(t)
	settle()
	for _, one := range ours {
		if strings.Contains(one.path, "{new}") {
			one.body = packed.String()
		}
		before := r.idle(t)
		path := strings.NewReplacer("{id}", id, "{new}", fresh).Replace(one.path)
		status, text, _ := ask(t, one.method, r.url+path, one.body)
		require.Less(t, status, http.StatusBadRequest, "%s %s: %s", one.method, path, text)
		require.GreaterOrEqual(t, r.idle(t), before, "%s %s moved the idle clock", one.method, path)
	}
	// The control: these do move it, so that the rows above can fail.
	for _, row := range []struct{ method, path, body string }{
		{"POST", "/api/bash/execute_bash_command", `{"command":"true"}`},
		{"GET", "/api/git/changes?path=" + filepath.Join(r.root, "workspace"), ""},
	} {
		settle()
		before := r.idle(t)
		_, _, _ = ask(t, row.method, r.url+row.path, row.body)
		require.Less(t, r.idle(t), before, "%s %s does not move the idle clock any more", row.method, row.path)
	}
}
