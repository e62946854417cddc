package server_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
)

// The workspace is ours to answer for: with the key, by GET alone, and without a
// word to the agent-server, whose idle clock then has nothing to move it.
func TestTheWorkspaceIsAnsweredWithoutTheAgentServer(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	address, root, up := front(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) }, "/box-1")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "workspace"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "workspace/plan.md"), []byte("four"), 0o600))
	for _, down := range []bool{false, true} {
		up.down.Store(down)
		for _, path := range []string{"/api/workspace/unsaved", "/api/workspace/export"} {
			response, err := keyless(t, http.MethodGet, address+path, nil)
			require.NoError(t, err)
			response.Body.Close()
			require.Equal(t, http.StatusUnauthorized, response.StatusCode)
			status, _, _ := ask(t, http.MethodPost, address+path, "")
			require.Equal(t, http.StatusMethodNotAllowed, status)
		}
		status, text, header := ask(t, http.MethodGet, address+"/api/workspace/export", "")
		if status == http.StatusNotImplemented {
			t.Skip("this system cannot look into a workspace:", text)
		}
		require.Equal(t, http.StatusOK, status, text)
		require.Equal(t, "application/zstd", header.Get("Content-Type"))
		manifest, err := agentserver.VerifyWorkspace(bytes.NewReader([]byte(text)))
		require.NoError(t, err)
		require.EqualValues(t, 1, manifest.Files)
		var unsaved box.Unsaved
		get(t, address+"/api/workspace/unsaved", &unsaved)
		require.EqualValues(t, 1, unsaved.PlainFiles)
	}
	require.Zero(t, asked.Load())
}

// A reader that goes away in the middle frees the turn of the next one, and until
// then holds up exports alone.
func TestAnExportThatNobodyReadsEnds(t *testing.T) {
	t.Parallel()
	address, root, _ := front(t, nil, "")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "workspace"), 0o755))
	big, err := os.Create(filepath.Join(root, "workspace/big"))
	require.NoError(t, err)
	block := make([]byte, 1<<20)
	state := uint64(1)
	for range 32 {
		for i := range block {
			state = state*6364136223846793005 + 1442695040888963407
			block[i] = byte(state >> 56)
		}
		_, err = big.Write(block)
		require.NoError(t, err)
	}
	require.NoError(t, big.Close())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/api/workspace/export", nil)
	require.NoError(t, err)
	request.Header.Set("X-Session-API-Key", key)
	response, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(t, err)
	defer response.Body.Close()
	if response.StatusCode == http.StatusNotImplemented {
		t.Skip("this system cannot look into a workspace")
	}
	_, err = io.CopyN(io.Discard, response.Body, 1<<20)
	require.NoError(t, err)
	var unsaved box.Unsaved
	get(t, address+"/api/workspace/unsaved", &unsaved)
	require.EqualValues(t, 1, unsaved.PlainFiles)
	cancel()
	status, _, _ := ask(t, http.MethodGet, address+"/api/workspace/export", "")
	require.Equal(t, http.StatusOK, status)
}
