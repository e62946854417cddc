package server_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
)

// A whole export goes into a box whose real agent-server is up: the history is
// served, the workspace is there, and its idle clock does not move.
func TestAWholeExportGoesIntoABoxWithTheRealAgentServer(t *testing.T) { //nolint:paralleltest // a start of a large program
	needReal(t)
	old, _, _ := worked(t)
	id, err := agentservertest.WriteConversation(filepath.Join(old.root, "conversations"), agentservertest.Conversation{
		Title: "t", Events: []agentservertest.Event{{ID: "00000000-0000-4000-8000-000000000001", Text: "hello"}},
	})
	require.NoError(t, err)
	store, receipt := exported(t, old.url)
	require.True(t, receipt.Archive.Held())
	r := startReal(t)
	c := connect(t, r.url)
	before, at := r.idle(t), time.Now()
	require.NoError(t, store.Restore(t.Context(), "ws", receipt, nil, agentserver.History{Client: c}, nil))
	files, err := store.Workspace(t.Context(), "ws", receipt)
	require.NoError(t, err)
	tar := files.Tar(t.Context())
	defer tar.Close()
	out, err := c.RestoreWorkspace(t.Context(), receipt.Archive.SHA256, tar, receipt.Archive.Bytes)
	require.NoError(t, err)
	require.Empty(t, out.Notes)
	require.GreaterOrEqual(t, r.idle(t)+2, before+time.Since(at).Seconds(), "its idle clock goes on")
	require.Equal(t, 1, served(t, store, r.url, id))
	status, text, _ := ask(t, http.MethodPost, r.url+"/api/conversations/"+id+"/events", `{"role":"user","content":[]}`)
	require.Equal(t, http.StatusGone, status, text)
	require.Equal(t, unsavedOf(t, old), unsavedOf(t, r.boxd))
	content, err := os.ReadFile(filepath.Join(r.root, "workspace/project/b.txt"))
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(content, []byte("betabeta")))
}
