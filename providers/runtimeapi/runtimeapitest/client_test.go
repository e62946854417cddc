package runtimeapitest_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

const key = "runtime-api-key"

func start(t *testing.T, opts runtimeapitest.Options) *runtimeapitest.Service {
	t.Helper()
	s, err := runtimeapitest.Start(opts)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// client speaks plain HTTP, written from the public description alone.
type client struct {
	t    *testing.T
	s    *runtimeapitest.Service
	http *http.Client
	key  string
}

func dial(t *testing.T, s *runtimeapitest.Service) *client {
	t.Helper()
	c := s.Client()
	t.Cleanup(c.CloseIdleConnections)
	return &client{t, s, c, key}
}

func (c *client) do(method, url, header, value string, body any) (int, []byte, error) {
	c.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(c.t, err)
	req, err := http.NewRequestWithContext(c.t.Context(), method, url, bytes.NewReader(text))
	require.NoError(c.t, err)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if value != "" {
		req.Header.Set(header, value)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return resp.StatusCode, out, err
}

type object = map[string]any

func (c *client) call(method, path string, body any) (int, object) {
	c.t.Helper()
	status, text, err := c.do(method, c.s.URL()+path, "X-API-Key", c.key, body)
	require.NoError(c.t, err)
	var out object
	require.NoError(c.t, json.Unmarshal(text, &out), "%s", text)
	return status, out
}

// box asks at the address of a box.
func (c *client) box(url, path, sessionKey string) int {
	c.t.Helper()
	status, _, err := c.do(http.MethodGet, url+path, "X-Session-API-Key", sessionKey, nil)
	require.NoError(c.t, err)
	return status
}

func body(session string) object {
	return object{
		"image": "ghcr.io/openhands/agent-server:latest-python", "command": "/usr/local/bin/openhands-agent-server --port 60000", "working_dir": "/",
		"environment": object{"A": "b"}, "session_id": session, "resource_factor": 2, "runtime_class": "sysbox-runc",
		"run_as_user": 10001, "run_as_group": 10001, "fs_group": 10001, "image_pull_policy": "IfNotPresent",
	}
}

func (c *client) start(session string) object {
	c.t.Helper()
	status, out := c.call(http.MethodPost, "/start", body(session))
	require.Equal(c.t, http.StatusOK, status, out)
	return out
}

func text(t *testing.T, o object, name string) string {
	t.Helper()
	out, ok := o[name].(string)
	require.True(t, ok, "%s is %v", name, o[name])
	return out
}
