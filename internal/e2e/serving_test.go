package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// boxkeeperd prepares one with a data directory of its own.
func boxkeeperd(t *testing.T, listen string, args ...string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir = filepath.Join(t.TempDir(), "data")
	cmd = exec.CommandContext(t.Context(), self, append([]string{"as-boxkeeperd"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "BOXKEEPER_DATA=" + dir, "BOXKEEPER_LISTEN=" + listen}
	return cmd, dir
}

// TestProgramsAreToldTheAddresses: with -o json one object is all of standard
// output, and its addresses are those that were picked.
func TestProgramsAreToldTheAddresses(t *testing.T) {
	t.Parallel()
	cmd, dir := boxkeeperd(t, "127.0.0.1:0", "-o", "json", "--no-demo", "--port", "0", "--ui-port", "0")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var notes bytes.Buffer
	cmd.Stderr = &notes
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	first, err := lines.ReadBytes('\n')
	require.NoError(t, err)
	var told struct {
		Data, Engine, Metrics, Exports string
		WebUI                          string `json:"web_ui"`
		Workers                        bool
	}
	require.NoError(t, json.Unmarshal(first, &told), "%s", first)
	assert.Equal(t, dir, told.Data)
	assert.Equal(t, "file://"+dir+"/exports", told.Exports)
	assert.True(t, told.Workers)
	for _, url := range []string{told.Metrics, told.WebUI} {
		resp, err := http.Get(url) //nolint:noctx // of this machine, and the process ends with the test
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusOK, resp.StatusCode, url)
	}
	conn, err := net.Dial("tcp", told.Engine) //nolint:noctx // of this machine
	require.NoError(t, err)
	require.NoError(t, conn.Close())

	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait(), notes.String())
	assert.Empty(t, rest)
	assert.Contains(t, notes.String(), "ready")
}

// TestMistakesOfAStart are exit code 2, and leave no engine behind.
func TestMistakesOfAStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed by the test
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() }) // after the rows
	for _, row := range []struct {
		name   string
		listen string
		args   []string
		want   string
	}{
		{"a command that there is not", "off", []string{"serve"}, `"serve"`},
		{"an argument of the demo", "off", []string{"demo", "now"}, `"now"`},
		{"a taken port of the metrics", taken.Addr().String(), []string{"--no-demo", "--port", "0", "--no-ui"}, "cannot listen on " + taken.Addr().String() + " (BOXKEEPER_LISTEN)"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			cmd, dir := boxkeeperd(t, row.listen, row.args...)
			out, _ := cmd.CombinedOutput() // the exit code is looked at
			assert.Equal(t, 2, cmd.ProcessState.ExitCode(), "%s", out)
			assert.Contains(t, string(out), row.want)
			assert.NoFileExists(t, filepath.Join(dir, "engine", "temporal.db"))
		})
	}
}
