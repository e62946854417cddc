package runtimeapitest_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

// agentServerVariable names the executable of the real agent-server, as
// scripts/agent-server.sh installs it; the public client is beside it.
const agentServerVariable = "BOXKEEPER_TEST_AGENT_SERVER"

// TestThePublicClient drives the fake with the client that the service's own
// users have: what the fake gets wrong in the same way as the driver shows here.
func TestThePublicClient(t *testing.T) {
	t.Parallel()
	program := os.Getenv(agentServerVariable)
	if program == "" {
		t.Skip("needs the public Python client: run scripts/agent-server.sh and name what it prints in " + agentServerVariable)
	}
	for name, opts := range map[string]runtimeapitest.Options{
		"path": {Starting: 1},
		"host": {HostStyle: true, NoIngress: 1},
	} { // the client waits for 2 s after each look
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, opts)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			python := exec.CommandContext(ctx, filepath.Join(filepath.Dir(program), "python"), filepath.Join("testdata", "client.py"), s.URL(), key)
			home := t.TempDir()
			python.Env = append(os.Environ(), "HOME="+home, "LITELLM_LOCAL_MODEL_COST_MAP=True", "OPENHANDS_SUPPRESS_BANNER=1", "NO_PROXY=*")
			if !opts.HostStyle {
				// Version 1.58.2 asserts that the address it got equals the one that its HTTP
				// library keeps, which adds a slash to a path: it works only without asserts.
				python.Env = append(python.Env, "PYTHONOPTIMIZE=1")
			}
			out, err := python.CombinedOutput()
			require.NoError(t, err, "%s", out)
			_, line, ok := strings.Cut(string(out), "SEEN ")
			require.True(t, ok, "%s", out)
			var seen map[string]any
			require.NoError(t, json.NewDecoder(strings.NewReader(line)).Decode(&seen))

			boxes := s.Boxes()
			require.Len(t, boxes, 1, "one session is one box")
			b := boxes[0]
			require.Equal(t, map[string]any{
				"host": b.URL, "runtime_id": b.RuntimeID, "attached to": b.RuntimeID, "resumed": b.RuntimeID,
				"started": 200.0, "paused": 503.0, "old key": 401.0, "new key": 200.0, "stopped": 404.0,
			}, seen)
			require.Equal(t, runtimeapitest.StatusStopped, b.Status)
			require.Equal(t, []any{2, 3, "stop"}, []any{b.Wakes, b.Lives, b.Ended})
			for _, call := range s.Calls() {
				if call.Op != runtimeapitest.OpBox {
					require.Less(t, call.Status, 405, "%s %s", call.Method, call.Path)
				}
				if call.Op == runtimeapitest.OpStart {
					require.Equal(t, http.StatusOK, call.Status, "the client's own fields are all known: %v", call.Fields)
				}
			}
		})
	}
}
