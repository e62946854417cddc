package e2e_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/openhands/boxkeeper/internal/engine"
)

func TestEngineUI(t *testing.T) {
	t.Parallel()
	e := startEngine(t, engine.Options{DataDir: t.TempDir()})
	c := dialEngine(t, e)
	_, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "box/demo one", TaskQueue: engineQueue},
		sleeper, time.Hour, "")
	require.NoError(t, err)

	code, page := ask(t, http.MethodGet, e.UIURL()+"/", "")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, page, "<html")
	require.Equal(t, e.UIURL()+"/namespaces/default/workflows/box%2Fdemo%20one", e.WorkflowURL("box/demo one"))
	code, _ = ask(t, http.MethodGet, e.WorkflowURL("box/demo one"), "")
	require.Equal(t, http.StatusOK, code)

	code, text := ask(t, http.MethodGet, e.UIURL()+"/api/v1/settings", "")
	require.Equal(t, http.StatusOK, code)
	var settings map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &settings))
	for _, name := range []string{"WorkflowTerminateDisabled", "WorkflowCancelDisabled", "WorkflowResetDisabled", "WorkflowPauseDisabled", "BatchActionsDisabled", "DisableNewsFetch"} {
		require.Equal(t, true, settings[name], name)
	}
	require.Equal(t, "default", settings["DefaultNamespace"])

	// The API behind the page works, shows the workflow, and terminates none.
	workflowAPI := e.UIURL() + "/api/v1/namespaces/default/workflows/box%2Fdemo%20one"
	code, text = ask(t, http.MethodGet, workflowAPI, "")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "box/demo one")
	for _, end := range []string{"/terminate", "/cancel", "/reset", "/pause"} {
		code, text = ask(t, http.MethodPost, workflowAPI+end, "{}")
		require.Equal(t, http.StatusForbidden, code, "%s: %s", end, text)
		require.Contains(t, text, "delete the box instead")
	}
	code, text = ask(t, http.MethodPost, e.UIURL()+"/api/v1/namespaces/default/batch-operations/job", "{}")
	require.Equal(t, http.StatusForbidden, code, text)
	d, err := c.DescribeWorkflowExecution(t.Context(), "box/demo one", "")
	require.NoError(t, err)
	require.Equal(t, "Running", d.GetWorkflowExecutionInfo().GetStatus().String())
}

func TestEngineUIAnswersOnlyUnderALocalName(t *testing.T) {
	t.Parallel()
	e := startEngine(t, engine.Options{DataDir: t.TempDir()})
	for host, want := range map[string]int{
		"":                      http.StatusOK, // the address itself
		"localhost:9999":        http.StatusOK, // through a tunnel
		"[::1]:80":              http.StatusOK,
		"attacker.example":      http.StatusMisdirectedRequest,
		"127.0.0.1.nip.example": http.StatusMisdirectedRequest,
		"10.1.2.3:8233":         http.StatusMisdirectedRequest,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.UIURL()+"/healthz", nil)
		require.NoError(t, err)
		req.Host = host
		res, err := uiClient().Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, want, res.StatusCode, "host %q", host)
	}
}

func TestEngineUIRefusesForgedRequests(t *testing.T) {
	t.Parallel()
	e := startEngine(t, engine.Options{DataDir: t.TempDir()})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		e.UIURL()+"/api/v1/namespaces/default/workflows/box%2Fx/cancel", strings.NewReader("{}"))
	require.NoError(t, err)
	req.Header.Set("Origin", "https://attacker.example")
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	res, err := uiClient().Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusForbidden, res.StatusCode)
}

func TestEngineWithoutUIHasNoLinks(t *testing.T) {
	t.Parallel()
	e := startEngine(t, engine.Options{DataDir: t.TempDir(), NoUI: true})
	require.Empty(t, e.UIURL())
	require.Empty(t, e.WorkflowURL("box/demo"))
}

func uiClient() *http.Client {
	return &http.Client{Timeout: within, Transport: &http.Transport{DisableKeepAlives: true}}
}

// ask sends a request as the UI's own page does, with its token.
func ask(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	const token = "0123456789abcdef0123456789abcdef"
	req.AddCookie(&http.Cookie{Name: "_csrf", Value: token})
	req.Header.Set("X-CSRF-Token", token)
	res, err := uiClient().Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(text)
}
