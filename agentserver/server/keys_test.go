package server_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestABoxdThatStartsAgainIsOpen(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	b := startBoxd(t, root, "--", self(t))
	running(t, b)
	status, text, _ := ask(t, http.MethodPost, b.url+"/api/boxd/drain", `{"lease_seconds":3600}`)
	require.Equal(t, http.StatusOK, status, text)
	status, _, header := ask(t, http.MethodPost, b.url+"/api/conversations", "{}")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Equal(t, "10", header.Get("Retry-After"), "it may be opened long before the lease ends")
	require.Greater(t, useOf(t, b).DrainSeconds, 3000.0)
	require.NoError(t, b.Process.Kill())
	<-b.ended
	b.ended <- nil
	again := startBoxd(t, root, "--", self(t))
	require.Zero(t, useOf(t, again).DrainSeconds, "and says so")
	running(t, again)
	status, _, _ = ask(t, http.MethodPost, again.url+"/api/conversations", "{}")
	require.Equal(t, http.StatusNotFound, status, "the agent-server answers")
}

func TestEveryKeyOfTheAgentServerIsAKeyOfOurs(t *testing.T) {
	t.Setenv("OH_SESSION_API_KEYS_1", "another-key")
	b := startBoxd(t, t.TempDir())
	for given, want := range map[string]int{key: 200, "another-key": 200, "third": 401, "": 401} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/api/boxd/use", nil)
		require.NoError(t, err)
		request.Header.Set("X-Session-API-Key", given)
		response, err := http.DefaultTransport.RoundTrip(request)
		require.NoError(t, err)
		response.Body.Close()
		require.Equal(t, want, response.StatusCode, "%q", given)
	}
}

// With a public address that has a path, the agent-server takes the path off:
// what is ours is ours with it as well, and what is shut is shut.
func TestThePathOfThePublicAddressIsNoWayAround(t *testing.T) {
	t.Setenv("OH_WEB_URL", "https://host.example/box-1/")
	b := startBoxd(t, t.TempDir(), "--", self(t))
	running(t, b)
	for _, path := range []string{"/api/boxd/use", "/box-1/api/boxd/use"} {
		status, text, _ := ask(t, http.MethodGet, b.url+path, "")
		require.Equal(t, http.StatusOK, status, path)
		require.Contains(t, text, `"digest"`, path)
	}
	status, _, _ := ask(t, http.MethodPost, b.url+"/box-1/api/boxd/drain", `{"lease_seconds":60}`)
	require.Equal(t, http.StatusOK, status)
	for _, path := range []string{"/v1/models", "/box-1/v1/models"} {
		status, _, _ = ask(t, http.MethodGet, b.url+path, "")
		require.Equal(t, http.StatusServiceUnavailable, status, path)
	}
	status, _, _ = ask(t, http.MethodGet, b.url+"/box-1/server_info", "")
	require.Equal(t, http.StatusNotFound, status, "the agent-server gets the path as it was given")
}

// What is asked of the server as a whole is the agent-server's to answer too.
func TestAQuestionAboutTheWholeServerPasses(t *testing.T) {
	t.Parallel()
	b := startBoxd(t, t.TempDir(), "--", self(t))
	running(t, b)
	connection, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://")) //nolint:noctx // local and instant
	require.NoError(t, err)
	defer connection.Close()
	_, err = fmt.Fprint(connection, "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	answer, err := io.ReadAll(connection)
	require.NoError(t, err)
	require.Contains(t, string(answer), "HTTP/1.1 404 ", "as the one behind it answers")
}
