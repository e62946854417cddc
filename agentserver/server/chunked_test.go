package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// Options in a body of unknown length arrive like any other: a dry run that was
// sent in chunks removes nothing.
func TestScenario29OptionsInAChunkedBodyArrive(t *testing.T) {
	t.Parallel()
	address, conversations := alone(t, 1)
	blob := filepath.Join(filepath.Dir(conversations), "home/.npm/_cacache/content-v2/blob")
	index := filepath.Join(filepath.Dir(conversations), "home/.npm/_cacache/index-v5/x")
	for _, file := range []string{blob, index} {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	}
	body := struct{ io.Reader }{strings.NewReader(`{"dry_run": true, "tiers": ["caches"]}`)} // its length cannot be asked for
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+"/api/storage/reclaim", body)
	require.NoError(t, err)
	require.Zero(t, request.ContentLength, "sent in chunks")
	request.Header.Set("X-Session-API-Key", key)
	response, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(t, err)
	defer response.Body.Close()
	if response.StatusCode == http.StatusNotImplemented {
		t.Skip("this system cannot reclaim")
	}
	require.Equal(t, http.StatusOK, response.StatusCode)
	var report box.ReclaimReport
	require.NoError(t, json.NewDecoder(response.Body).Decode(&report))
	require.True(t, report.DryRun)
	require.FileExists(t, blob)
}
