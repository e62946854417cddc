package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workflows"
)

func requireInvalid(t *testing.T, err error, says string) {
	t.Helper()
	var refused *temporal.ApplicationError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, string(box.ClassInvalid), refused.Type())
	require.Contains(t, refused.Message(), says)
}

// Callers in other languages send what no Go type would: it is refused like any
// other wrong value, and leaves nothing behind.
func TestARequestThatDoesNotFitIsRefusedWithItsField(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	refused := 0
	for name, row := range map[string]struct {
		update, says string
		sent         map[string]any
	}{
		"a bare number": {box.UpdateConnect, "lease: 120 is not a duration", map[string]any{"request_id": "1", "holder_id": "tab", "lease": 120}},
		"words":         {box.UpdateSetPolicy, `policy.idle: "2 minutes" is not a duration`, map[string]any{"request_id": "2", "policy": map[string]any{"idle": "2 minutes"}}},
		"a text":        {box.UpdateKeep, "on: string was sent where true or false belongs", map[string]any{"request_id": "3", "on": "yes"}},
	} {
		p.update(minute, row.update, row.sent, func(answer any, err error) {
			if err == nil {
				t.Errorf("%s was taken: %+v", name, answer)
				return
			}
			requireInvalid(t, err, row.says)
			refused++
		})
	}
	p.update(2*minute, box.UpdateConnect, map[string]any{"request_id": "1", "holder_id": "tab", "not_a_field": true}, nil)
	statusOf(p, 2*minute+time.Second, func(s box.Status) {
		require.Len(t, s.Holders, 1, "a refused id can be used again, and an unknown field is ignored")
		require.Equal(t, box.DefaultPolicy().Idle, s.Policy.Idle)
		require.Empty(t, s.Flags)
	})
	p.stop(3 * minute)
	require.Error(t, p.run())
	require.Equal(t, 3, refused)
}

func TestAStartThatDoesNotFitFailsWithItsField(t *testing.T) {
	t.Parallel()
	env := newEnvironment()
	env.SetStartWorkflowOptions(startOptions("login-page"))
	env.RegisterWorkflowWithOptions(workflows.Box, workflow.RegisterOptions{Name: box.WorkflowType})
	env.ExecuteWorkflow(box.WorkflowType, map[string]any{"spec": map[string]any{"version": 1, "workspace": "login-page", "provider": "local", "policy": map[string]any{"idle": 900}}})
	requireInvalid(t, env.GetWorkflowError(), "spec.policy.idle: 900 is not a duration")
}
