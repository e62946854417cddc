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
	// One process drives both: to load the client's modules takes ten seconds.
	names := []string{"path", "host"}
	services := []*runtimeapitest.Service{
		start(t, runtimeapitest.Options{Starting: 1}), start(t, runtimeapitest.Options{HostStyle: true, NoIngress: 1}),
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	python := exec.CommandContext(ctx, filepath.Join(filepath.Dir(program), "python"), filepath.Join("testdata", "client.py"), key, services[0].URL(), services[1].URL())
	python.Env = append(os.Environ(), "HOME="+t.TempDir(), "LITELLM_LOCAL_MODEL_COST_MAP=True", "OPENHANDS_SUPPRESS_BANNER=1", "NO_PROXY=*")
	out, err := python.CombinedOutput()
	require.NoError(t, err, "%s", out)
	lines := strings.Split(string(out), "SEEN ")[1:]
	require.Len(t, lines, len(services), "%s", out)
	for i, s := range services {
		t.Run(names[i], func(t *testing.T) {
			t.Parallel()
			var seen map[string]any
			require.NoError(t, json.NewDecoder(strings.NewReader(lines[i])).Decode(&seen))

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
