package e2e_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/openhands/boxkeeper/box"
)

// TestAMistakeUsesUpNoID makes the two mistakes of a first start on a real
// engine: a provider that nobody serves, and a wrong spec from a raw client.
func TestAMistakeUsesUpNoID(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	const ws = "mistaken"
	out, code := i.run("box", "create", ws, "--provider", "nope")
	require.Equal(t, 5, code, out)

	c, err := client.DialContext(t.Context(), client.Options{HostPort: fmt.Sprintf("127.0.0.1:%d", i.port)})
	require.NoError(t, err)
	defer c.Close()
	wrong := box.Input{Spec: box.Spec{Version: box.WireVersion, Workspace: ws, Provider: "local", Env: map[string]string{"API_KEY": "x"}}}
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: box.WorkflowID(ws), TaskQueue: box.TaskQueue, WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
	}, box.WorkflowType, wrong)
	require.NoError(t, err)
	require.ErrorContains(t, run.Get(t.Context(), nil), "env.API_KEY")

	out, code = i.run("box", "create", ws, "--idle", "1h", "--wait")
	require.Zero(t, code, out)
	out, code = i.run("check")
	require.Zero(t, code, out)
	require.Regexp(t, `ok +installation of the workers +[0-9a-f]{8}, that of this machine`, out)

	require.NoError(t, c.TerminateWorkflow(t.Context(), box.WorkflowID(ws), "", "a mistake of another kind"))
	out, code = i.run("box", "create", ws)
	require.Equal(t, 4, code, "its box may exist: %s", out)
}
