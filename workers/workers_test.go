package workers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/converter"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/workers"
)

func TestNewRefusesWithTheFieldNamed(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(o *workers.Options)
		field  string
	}{
		"no export store":              {func(o *workers.Options) { o.Store = nil }, "exports"},
		"no way to resolve secrets":    {func(o *workers.Options) { o.Secret = nil }, "secrets"},
		"fewer transfers than none":    {func(o *workers.Options) { o.Transfers = -1 }, "transfers"},
		"nothing to serve":             {func(o *workers.Options) { o.Providers, o.NoWorkflows = nil, true }, "providers"},
		"an instance configured twice": {func(o *workers.Options) { o.Providers = append(o.Providers, o.Providers[0]) }, "providers.fake"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			row.change(&r.opts)
			_, err := workers.New(r.client, r.opts)
			var said *box.Error
			require.ErrorAs(t, err, &said)
			assert.Equal(t, box.ClassInvalid, said.Class)
			assert.Equal(t, row.field, said.Field)
		})
	}
}

func TestEachQueueIsServedUnderTheInstallationsName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(t)
	for _, p := range r.asked(t, "workflow boxkeeper", "activity boxkeeper-fake") {
		id, ok := workers.InstallationOf(p.identity)
		assert.True(t, ok, p.identity)
		assert.Equal(t, installation, id)
		assert.NotEqual(t, "activity boxkeeper", p.kind+" "+p.queue, "credentials live with the instance's own queue")
	}
}

func TestWithoutWorkflowsOnlyTheInstanceIsServed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.opts.NoWorkflows, r.opts.Installation = true, ""
	r.start(t)
	for _, p := range r.asked(t, "activity boxkeeper-fake") {
		assert.Equal(t, "activity", p.kind)
		_, ok := workers.InstallationOf(p.identity)
		assert.False(t, ok, "%s tells no installation", p.identity)
	}
}

func TestIdentityTellsTheInstallation(t *testing.T) {
	t.Parallel()
	id, ok := workers.InstallationOf(workers.Identity(installation))
	assert.True(t, ok)
	assert.Equal(t, installation, id)
	for _, other := range []string{"", "7@host@", "7@host@boxkeeper-", "7@host@boxkeeper-0A1B2C3D", "7@host@boxkeeper-0a1b2c3d-x"} {
		_, ok := workers.InstallationOf(other)
		assert.False(t, ok, other)
	}
}

// A worker that was killed keeps the tasks of its workflows for so long, but for
// what a provider says.
func TestTasksWaitTenSecondsForTheirWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.task = firstTask(t, box.Input{Spec: box.Spec{Version: box.WireVersion, Workspace: "mine", Provider: "fake"}})
	r.start(t)
	done := next(t, "the first task", r.completed)
	require.NotEmpty(t, done.GetCommands(), "the workflow is registered under its name and asks for its first step")
	assert.Equal(t, 10*time.Second, done.GetStickyAttributes().GetScheduleToStartTimeout().AsDuration())
	assert.NotEmpty(t, done.GetStickyAttributes().GetWorkerTaskQueue().GetName())
}

func TestASpecThatIsWrongEndsTheWorkflowAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.task = firstTask(t, box.Input{Spec: box.Spec{Version: box.WireVersion, Workspace: "mine"}})
	r.start(t)
	done := next(t, "the first task", r.completed)
	require.Len(t, done.GetCommands(), 1)
	require.Equal(t, enumspb.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION, done.GetCommands()[0].GetCommandType())
	failure := done.GetCommands()[0].GetFailWorkflowExecutionCommandAttributes().GetFailure()
	assert.Equal(t, string(box.ClassInvalid), failure.GetApplicationFailureInfo().GetType())
	assert.Contains(t, failure.GetMessage(), "provider")
}

// made creates a box and returns the name that the cloud knows it by.
func made(t *testing.T, p *providers.Provider, workspace string) string {
	t.Helper()
	seen, err := p.Create(t.Context(), box.Spec{Version: box.WireVersion, Workspace: workspace, Provider: "fake"}, 1, driver.Start{})
	require.NoError(t, err)
	return seen.Ref.Name
}

func TestWhatAProviderSaysReachesTheWorkflow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	core, logs := observer.New(zapcore.WarnLevel)
	r.opts.Logger, r.opts.Namespace = zap.New(core), "elsewhere"
	// A server that refuses it delays the signal and does not lose it.
	r.set("reset", serviceerror.ToStatus(serviceerror.NewPermissionDenied("not yours", "")).Err())
	mine, other := made(t, r.opts.Providers[0], "mine"), made(t, r.opts.Providers[0], "other")
	r.cloud.Kill(mine, "killed before anybody watched")
	r.start(t)
	told := next(t, "a signal", r.signals)
	assert.Equal(t, "box/mine", told.GetWorkflowExecution().GetWorkflowId())
	freed := next(t, "a workflow that may go to any worker", r.resets)
	assert.Equal(t, "box/mine", freed.GetExecution().GetWorkflowId())
	assert.Empty(t, freed.GetExecution().GetRunId())
	assert.Equal(t, "elsewhere", freed.GetNamespace())
	assert.Empty(t, told.GetWorkflowExecution().GetRunId(), "whichever run it is by then")
	assert.Equal(t, box.SignalObserved, told.GetSignalName())
	var seen box.ObservedSignal
	require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(told.GetInput(), &seen))
	assert.Equal(t, box.PhaseFailed, seen.Observation.Phase)
	assert.Equal(t, mine, seen.Observation.Ref.Name)
	assert.Equal(t, "fake", seen.Observation.Ref.Provider)
	require.NoError(t, box.CheckRequest(box.Request{ID: seen.ID}), "an id that why can show")
	assert.Empty(t, logs.All())

	r.set("signal", serviceerror.ToStatus(serviceerror.NewNotFound("no such workflow")).Err())
	r.cloud.Kill(other, "killed")
	next(t, "a signal to a workflow that is not there", r.signals)
	r.set("signal", serviceerror.ToStatus(serviceerror.NewInvalidArgument("no")).Err())
	r.cloud.Kill(made(t, r.opts.Providers[0], "third"), "killed")
	next(t, "a signal that is refused", r.signals)
	require.Eventually(t, func() bool { return logs.Len() > 0 }, 10*time.Second, 10*time.Millisecond)
	require.Len(t, logs.All(), 1, "that nobody owns a box is not this one's to report")
	assert.Equal(t, "third", logs.All()[0].ContextMap()["workspace"])
}

func TestStopIsSafeToRepeatAndBeforeAStart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set, err := workers.New(r.client, r.opts)
	require.NoError(t, err)
	set.Stop()
	require.NoError(t, set.Start())
	set.Stop()
	set.Stop()
}

func TestTheSweepOfExportsIsScheduledOnceADay(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]error{
		"new":                        nil,
		"there already":              serviceerror.NewWorkflowExecutionAlreadyStarted("there", "r", "s"),
		"this Temporal has none":     serviceerror.NewUnimplemented("no schedules"),
		"it cannot be reached today": serviceerror.NewUnavailable("later"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			if refusal != nil {
				r.set("schedule", refusal)
			}
			r.start(t) // and does not wait for it
			got := next(t, "the schedule", r.schedules)
			assert.Equal(t, box.ScheduleSweepExports, got.GetScheduleId())
			spec, start := got.GetSchedule().GetSpec(), got.GetSchedule().GetAction().GetStartWorkflow()
			require.Len(t, spec.GetInterval(), 1)
			assert.Equal(t, 24*time.Hour, spec.GetInterval()[0].GetInterval().AsDuration())
			assert.Equal(t, box.WorkflowSweepExports, start.GetWorkflowType().GetName())
			assert.Equal(t, box.TaskQueue, start.GetTaskQueue().GetName())
			r.asked(t, "activity "+box.StoreQueue)
		})
	}
}
