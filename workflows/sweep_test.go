package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workflows"
)

func TestASweepTriesAgainAndAnswersWhatItDeleted(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	at := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	env.SetStartTime(at)
	var a *activities.Exports
	env.RegisterActivity(&activities.Exports{})
	env.OnActivity(a.Sweep, mock.Anything, activities.SweepInput{At: at}).
		Return(activities.SweepReport{}, temporal.NewApplicationError("the store does not answer", string(box.ClassUnavailable))).Times(3)
	env.OnActivity(a.Sweep, mock.Anything, activities.SweepInput{At: at}).Return(activities.SweepReport{Exports: 7}, nil).Once()
	env.ExecuteWorkflow(workflows.SweepExports)
	require.True(t, env.IsWorkflowCompleted())
	var out activities.SweepReport
	require.NoError(t, env.GetWorkflowResult(&out))
	assert.Equal(t, 7, out.Exports)
	env.AssertExpectations(t)
}
