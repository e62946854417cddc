package server_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
)

func unzip(t *testing.T, text string) map[string]string {
	t.Helper()
	archive, err := zip.NewReader(strings.NewReader(text), int64(len(text)))
	require.NoError(t, err)
	out := map[string]string{}
	for _, file := range archive.File {
		read, err := file.Open()
		require.NoError(t, err)
		content, err := io.ReadAll(read)
		require.NoError(t, err)
		out[file.Name] = string(content)
	}
	return out
}

// entriesOf returns the names in a zip, for goroutines of a test.
func entriesOf(text string) (names []string, err error) {
	archive, err := zip.NewReader(strings.NewReader(text), int64(len(text)))
	if err != nil {
		return nil, err
	}
	for _, file := range archive.File {
		names = append(names, file.Name)
	}
	return names, nil
}

func TestATrajectoryHoldsNoCredentialAndNothingFromOutside(t *testing.T) {
	t.Parallel()
	address, conversations := alone(t, 2)
	id := fmt.Sprintf("%032x", 2)
	dir := filepath.Join(conversations, id)
	const secret, token = "sk-live-canary", "gAAAAABrDFNcEdCYtMHQJeEfgqYI-phGbuKP8AZvBBJVZjPv2PEBTIvWvb5hs8-JwDzjIxnQPgRLOyLm0HtzpvDsrKs_N1xVHA=="
	outside := filepath.Join(t.TempDir(), "outside.json")
	require.NoError(t, os.WriteFile(outside, []byte("outside"), 0o600))
	write := func(name, content string) {
		place := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(place), 0o755))
		require.NoError(t, os.WriteFile(place, []byte(content), 0o600))
	}
	write("base_state.json", `{"agent":{"llm":{"api_key":"`+secret+`"}},"execution_status":"idle"}`)
	write("events/event-00002-aaaaaaaa-0000-4000-8000-000000000000.json", `{"text":"it said Bearer `+token+` and more","n":1.50}`)
	write("events/event-00003-bbbbbbbb-0000-4000-8000-000000000000.json", `{"broken: "api_key": "`+secret+`", `+token) // no valid JSON
	write("bash_events/a.jsonl", `{"api\u005fkey":"`+secret+`"}`+"\n"+`{"x":"`+token+`"}`+"\n")
	write("acp/credentials.json", secret)
	write("owner_lease.json", "{}")
	write("meta.json.tmp", secret)
	write("plain.txt", "as it is")
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link.json")))
	require.NoError(t, os.Symlink(filepath.Dir(outside), filepath.Join(dir, "linked")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe.json"), 0o600))

	status, first, header := ask(t, http.MethodGet, address+"/api/file/download-trajectory/"+agentservertest.Dashed(id), "")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, `attachment; filename="`+id+`.zip"`, header.Get("Content-Disposition"))
	files := unzip(t, first)
	for name, content := range files {
		require.True(t, strings.HasPrefix(name, id+"/"), name)
		require.NotContains(t, content, secret, name)
		require.NotContains(t, content, "gAAAA", name)
		require.NotContains(t, content, "outside", name)
	}
	for _, name := range []string{"owner_lease.json", "meta.json.tmp", "acp/credentials.json", "link.json", "pipe.json", "linked/outside.json"} {
		require.NotContains(t, files, id+"/"+name)
	}
	require.Equal(t, `{"text":"it said Bearer ********** and more","n":1.50}`, files[id+"/events/event-00002-aaaaaaaa-0000-4000-8000-000000000000.json"], "byte for byte") //nolint:testifylint // bytes, not meaning
	require.Equal(t, "as it is", files[id+"/plain.txt"])
	_, second, _ := ask(t, http.MethodGet, address+"/api/file/download-trajectory/"+id, "")
	require.Equal(t, first, second, "the same history, the same bytes")
}

func TestDownloadsAtOnceAreAllWhole(t *testing.T) {
	t.Parallel()
	address, conversations := alone(t, 3)
	id := fmt.Sprintf("%032x", 3)
	require.NoError(t, os.WriteFile(filepath.Join(conversations, id, "a.bin"), bytes.Repeat([]byte("0123456789abcdef"), 1<<17), 0o600))
	_, want, _ := ask(t, http.MethodGet, address+"/api/file/download-trajectory/"+id, "")
	got := make(chan string, 40)
	for range cap(got) {
		go func() {
			request, err := http.NewRequest(http.MethodGet, address+"/api/file/download-trajectory/"+id, nil) //nolint:noctx // a test
			if err != nil {
				got <- err.Error()
				return
			}
			request.Header.Set("X-Session-API-Key", key)
			response, err := http.DefaultTransport.RoundTrip(request)
			if err != nil {
				got <- err.Error()
				return
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			got <- string(text) + fmt.Sprint(err)
		}()
	}
	for range cap(got) {
		require.True(t, want+"<nil>" == <-got, "another archive") //nolint:testifylint // megabytes are not shown
	}
	require.Len(t, unzip(t, want), 8)
}

func TestAHistoryThatCannotBePackedBreaksTheDownloadOff(t *testing.T) {
	t.Parallel()
	address, conversations := alone(t, 1)
	id := fmt.Sprintf("%032x", 1)
	// Nested deeper than is packed, after enough that the answer has begun.
	require.NoError(t, os.WriteFile(filepath.Join(conversations, id, "a.bin"), bytes.Repeat([]byte("x"), 1<<20), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(conversations, id, strings.Repeat("z/", 50)), 0o755))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/api/file/download-trajectory/"+id, nil)
	require.NoError(t, err)
	request.Header.Set("X-Session-API-Key", key)
	response, err := http.DefaultTransport.RoundTrip(request)
	if err == nil {
		require.Equal(t, http.StatusOK, response.StatusCode)
		_, err = io.ReadAll(response.Body)
		response.Body.Close()
	}
	require.Error(t, err, "a part never passes for the whole")
}
