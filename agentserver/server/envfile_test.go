package server_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/server"
)

// A start may get its environment in a file, which nothing that starts later in
// the box must find.
func TestTheEnvironmentFileIsReadOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "env")
	// The process itself is given another key: the file's counts.
	require.NoError(t, os.WriteFile(file, []byte("OH_SESSION_API_KEYS_0=of-the-file\x00GREETING=two\nlines=x\x00"), 0o600))
	b := startBoxd(t, t.TempDir(), "--env-file", file, "--", self(t))
	require.NoFileExists(t, file)
	said := func(path, key string) (status int, body string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+path, nil)
		require.NoError(t, err)
		request.Header.Set("X-Session-API-Key", key)
		response, err := http.DefaultTransport.RoundTrip(request)
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}
	await(t, "the agent-server", func() bool { status, _ := said("/environment", "of-the-file"); return status == http.StatusOK })
	_, environment := said("/environment", "of-the-file")
	require.Contains(t, environment, "\nGREETING=two\nlines=x\n")
	require.Contains(t, environment, "\nOH_SESSION_API_KEYS_0=of-the-file\n")
	for given, want := range map[string]int{"of-the-file": http.StatusOK, key: http.StatusUnauthorized} {
		status, _ := said("/api/boxd/use", given)
		require.Equal(t, want, status)
	}
}

func TestABadEnvironmentFileIsRefused(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"cut off":         "A=1\x00B=secret-value",
		"no value at all": "A=1\x00secret-value\x00",
		"no name":         "=secret-value\x00",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "env")
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			var out, faults strings.Builder
			code := server.Run(t.Context(), []string{"--root", t.TempDir(), "--env-file=" + file}, func(string) string { return "" }, &out, &faults)
			require.Equal(t, 1, code)
			require.Contains(t, faults.String(), "--env-file: entry ")
			require.NotContains(t, faults.String()+out.String(), "secret-value")
		})
	}
	var faults strings.Builder
	code := server.Run(t.Context(), []string{"--root", t.TempDir(), "--env-file", filepath.Join(t.TempDir(), "none")}, func(string) string { return "" }, &faults, &faults)
	require.Equal(t, 1, code)
	require.Contains(t, faults.String(), "let boxkeeper start the box")
}
