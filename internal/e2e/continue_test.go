package e2e_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

// TestContinueAsNewAtEveryTurn lives a whole life in which each turn ends the
// run and begins another, on the real engine: requests, holds, deadlines and
// receipts are carried along.
func TestContinueAsNewAtEveryTurn(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	c, err := client.DialContext(t.Context(), client.Options{HostPort: fmt.Sprintf("127.0.0.1:%d", i.port)})
	require.NoError(t, err)
	defer c.Close()
	const ws = "relay"
	_, err = c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: box.WorkflowID(ws), TaskQueue: box.TaskQueue}, box.WorkflowType, box.Input{
		TurnsPerRun: 1,
		Spec: box.Spec{Version: box.WireVersion, Workspace: ws, Provider: "local", Policy: box.Policy{
			Idle: box.Duration(2 * time.Second), PausedTTL: box.Duration(8 * time.Second), Notice: box.Duration(2 * time.Second), Undo: box.Duration(2 * time.Second),
		}},
	})
	require.NoError(t, err)
	s := i.await(ws, within, box.StateRunning)
	id, err := agentservertest.WriteConversation(filepath.Join(i.boxDir(s), "conversations"), agentservertest.Conversation{
		Events: []agentservertest.Event{{Text: "one"}, {Text: "two"}},
	})
	require.NoError(t, err)
	first := answerOf[box.ConnectAnswer](i, "box", "connect", ws, "--holder", "agent", "--lease", "1h", "--request-id", "c-1")
	again := answerOf[box.ConnectAnswer](i, "box", "connect", ws, "--holder", "agent", "--lease", "1h", "--request-id", "c-1")
	require.Equal(t, first.HolderID, again.HolderID)
	answerOf[box.ActionAnswer](i, "box", "release", ws, "--holder", "agent")
	i.await(ws, within, box.StateSuspended, box.StateAwaitingConfirm)
	i.await(ws, within, box.StateAwaitingConfirm)
	loss := answerOf[box.Loss](i, "box", "delete", ws)
	require.True(t, loss.Covered)
	_, code := i.run("box", "confirm", ws, "--token", loss.Token)
	require.Zero(t, code)
	i.await(ws, within, box.StateBoxArchived)
	i.requireHistory(ws, id, 2)
	i.requireLedger(ws)

	eventually(t, within, func() error {
		runs, err := c.CountWorkflow(t.Context(), &workflowservice.CountWorkflowExecutionsRequest{Query: "WorkflowId = '" + box.WorkflowID(ws) + "'"})
		if err == nil && runs.GetCount() < 6 {
			err = fmt.Errorf("%d runs", runs.GetCount())
		}
		return err
	})
	i.golden(ws, "continued")
}
