package server_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

const page = "http://localhost:3001"

// askFrom sends a request of a page of another origin.
func askFrom(t *testing.T, origin, method, url string) (status int, header http.Header) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	require.NoError(t, err)
	request.Header.Set("Origin", origin)
	if method == http.MethodOptions {
		request.Header.Set("Access-Control-Request-Method", http.MethodPost)
		request.Header.Set("Access-Control-Request-Headers", "content-type,x-session-api-key")
	} else {
		request.Header.Set("X-Session-API-Key", key)
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(t, err)
	response.Body.Close()
	return response.StatusCode, response.Header
}

// openTo is a box whose agent-server lets one page read it, and an archived
// conversation.
func openTo(t *testing.T) *kept {
	t.Helper()
	k := keep(t, nil)
	k.archive(t, archivedID)
	k.rights = page
	return k
}

// A page that may not read a refusal sees a broken network, and its user too.
func TestAPageReadsEveryAnswerOfOursThatItMayReadOfTheAgentServer(t *testing.T) {
	t.Parallel()
	k := openTo(t)
	status, _, _ := ask(t, http.MethodPost, k.address+"/api/boxd/drain", `{"lease_seconds":60}`)
	require.Equal(t, http.StatusOK, status)
	for _, row := range []struct {
		method, path string
		status       int
	}{
		{http.MethodPost, "/api/conversations/" + archivedID + "/run", http.StatusGone},
		{http.MethodGet, "/api/conversations/" + archivedID + "/events/count", http.StatusOK},
		{http.MethodPost, "/api/conversations/" + liveID + "/run", http.StatusServiceUnavailable}, // drained
		{http.MethodGet, "/api/storage", http.StatusOK},
	} {
		for origin, want := range map[string]string{page: page, "https://evil.example": ""} {
			status, header := askFrom(t, origin, row.method, k.address+row.path)
			require.Equal(t, row.status, status, row.path)
			require.Equal(t, want, header.Get("Access-Control-Allow-Origin"), "%s from %s", row.path, origin)
			require.LessOrEqual(t, len(header.Values("Access-Control-Allow-Origin")), 1)
		}
	}
	status, _, _ = ask(t, http.MethodDelete, k.address+"/api/boxd/drain", "")
	require.Equal(t, http.StatusNoContent, status)
	status, header := askFrom(t, page, http.MethodPost, k.address+"/api/conversations/"+liveID+"/run")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, []string{page}, header.Values("Access-Control-Allow-Origin"), "what passes has it once")
}

func TestAPageReachesOursWhileTheAgentServerIsDown(t *testing.T) {
	t.Parallel()
	k := openTo(t)
	status, _ := askFrom(t, page, http.MethodGet, k.address+"/api/storage") // it is known from here on
	require.Equal(t, http.StatusOK, status)
	k.up.down.Store(true)
	for origin, allowed := range map[string]bool{page: true, "https://evil.example": false} {
		status, header := askFrom(t, origin, http.MethodOptions, k.address+"/api/storage/reclaim")
		if !allowed {
			require.Equal(t, http.StatusServiceUnavailable, status)
			require.Empty(t, header.Get("Access-Control-Allow-Origin"))
			continue
		}
		require.Equal(t, http.StatusNoContent, status)
		require.Equal(t, origin, header.Get("Access-Control-Allow-Origin"))
		require.Equal(t, "POST", header.Get("Access-Control-Allow-Methods"))
		require.Contains(t, header.Get("Access-Control-Allow-Headers"), "x-session-api-key")
		status, header = askFrom(t, origin, http.MethodGet, k.address+"/api/storage")
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, origin, header.Get("Access-Control-Allow-Origin"))
		status, header = askFrom(t, origin, http.MethodGet, k.address+"/api/tools/")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, origin, header.Get("Access-Control-Allow-Origin"), "it may read that the agent-server is down")
	}
}
