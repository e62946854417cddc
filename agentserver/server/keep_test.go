package server_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBoxdArchivesAndKeepsHouse(t *testing.T) {
	t.Parallel()
	needLinux(t)
	root := t.TempDir()
	id := strings.Repeat("a", 32)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "conversations", id), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "bash_events"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "conversations", id, "meta.json"), []byte(`{"workspace":{"working_dir":"/srv"}}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "conversations", id, "base_state.json"), []byte(`{}`), 0o600))
	old := filepath.Join(root, "bash_events", "20200101000000000000_BashCommand_"+id)
	require.NoError(t, os.WriteFile(old, nil, 0o600))
	require.NoError(t, os.Chtimes(old, time.Unix(1577836800, 0), time.Unix(1577836800, 0)))

	b := startBoxd(t, root, "--retention", "off", "--", self(t))
	running(t, b)
	at := b.url + "/api/conversations/" + id + "/retention"
	status, text, _ := ask(t, http.MethodPut, at, `{"mode":"on_stop"}`)
	require.Equal(t, http.StatusConflict, status, text)
	require.FileExists(t, old, "kept, since no age is set")
	require.NoError(t, b.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-b.ended)
	b.ended <- nil

	b = startBoxd(t, root, "--retention", "30", "--bash-events-days", "7", "--", self(t))
	running(t, b)
	at = b.url + "/api/conversations/" + id + "/retention"
	status, text, _ = ask(t, http.MethodPut, at, `{"mode":"on_stop"}`)
	require.Equal(t, http.StatusOK, status, text)
	await(t, "the old record to go", func() bool { _, err := os.Lstat(old); return err != nil })
	await(t, "a note of the pass", func() bool { _, err := os.Lstat(filepath.Join(root, "run/retention-clock.json")); return err == nil })
	require.NoError(t, b.Process.Kill())
	<-b.ended
	b.ended <- nil
	b = startBoxd(t, root, "--retention", "30", "--", self(t))
	status, text, _ = ask(t, http.MethodGet, b.url+"/api/conversations/"+id+"/retention", "")
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"mode":"on_stop"}`, text)
}
