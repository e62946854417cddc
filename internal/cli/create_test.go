package cli_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"

	"github.com/openhands/boxkeeper/box"
)

func TestAProviderThatNobodyServesUsesUpNoID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		fake.unserved = map[string]bool{"boxkeeper-nope": true, "boxkeeper-local": true}
		got := runWith(t, fake, "box", "create", "mine", "--provider", "nope")
		assert.Equal(t, 5, got.code)
		assert.Contains(t, got.stderr, `serves "nope" (task queue boxkeeper-nope)`)
		assert.Contains(t, got.stderr, "the id mine is still free")
		assert.Contains(t, got.stderr, "--unserved")
		require.Empty(t, fake.started)

		got = runWith(t, fake, "box", "create", "mine", "--provider", "nope", "--unserved")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Contains(t, got.stderr, "no worker serves the task queue boxkeeper-nope now")
		again := runWith(t, fake, "box", "create", "mine", "--provider", "nope")
		assert.Equal(t, 0, again.code, again.stderr)
		assert.Contains(t, again.stdout, "exists already", "what is there is found, served or not")

		known := runWith(t, fake, "box", "create", "other")
		assert.Equal(t, 0, known.code, "this machine knows the instance: its worker is only down")
		assert.Contains(t, known.stderr, "no worker serves the task queue boxkeeper-local now")
		waited := runWith(t, fake, "box", "create", "third", "--wait")
		assert.Equal(t, 5, waited.code)
		assert.Contains(t, waited.stderr, "workspace third is recorded")
	})
}

// What a provider can do is the workers' to know where this machine has no instance
// of its name: a policy that asks for its own timer is not refused for that.
func TestAProviderThatIsNotKnownHereMayLead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		got := runWith(t, fake, "box", "create", "mine", "--provider", "cloud", "--lead", "provider", "--idle", "10m")
		require.Equal(t, 0, got.code, got.stderr)
		require.Len(t, fake.started, 1)
		known := runWith(t, fake, "box", "create", "other", "--lead", "provider", "--idle", "10m")
		assert.Equal(t, 2, known.code, "this machine knows that a local box has no such timer")
		assert.Contains(t, known.stderr, "policy.lead: provider local has no idle timer")
		require.Len(t, fake.started, 1)
	})
}

func started(continued string) *historypb.HistoryEvent {
	return &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
		WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{ContinuedExecutionRunId: continued},
	}}
}

func activity() *historypb.HistoryEvent {
	return &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_ActivityTaskScheduledEventAttributes{
		ActivityTaskScheduledEventAttributes: &historypb.ActivityTaskScheduledEventAttributes{},
	}}
}

func failed() *historypb.HistoryEvent {
	return &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_WorkflowExecutionFailedEventAttributes{
		WorkflowExecutionFailedEventAttributes: &historypb.WorkflowExecutionFailedEventAttributes{},
	}}
}

func TestTheIDOfAWorkflowThatDidNothingIsFreeAgain(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		status  enumspb.WorkflowExecutionStatus
		history []*historypb.HistoryEvent
		free    bool
	}{
		"it was refused with its spec":            {enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, []*historypb.HistoryEvent{started(""), failed()}, true},
		"it failed after it had called something": {enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, []*historypb.HistoryEvent{started(""), activity(), failed()}, false},
		"it failed in a later run":                {enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, []*historypb.HistoryEvent{started("run-0"), failed()}, false},
		"its history cannot be read to the end":   {enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, []*historypb.HistoryEvent{started("")}, false},
		"it was terminated":                       {enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, []*historypb.HistoryEvent{started(""), failed()}, false},
		"it was cancelled":                        {enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, []*historypb.HistoryEvent{started(""), failed()}, false},
		"it timed out":                            {enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT, []*historypb.HistoryEvent{started(""), failed()}, false},
		"it ended as it should":                   {enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, []*historypb.HistoryEvent{started(""), failed()}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake()
			fake.closed["mine"] = row.status
			fake.failed = map[string][]*historypb.HistoryEvent{"mine": row.history}
			got := runWith(t, fake, "box", "create", "mine", "--owner", "ann")
			if !row.free {
				assert.Equal(t, 4, got.code, got.stderr)
				assert.Empty(t, fake.started)
				return
			}
			require.Equal(t, 0, got.code, got.stderr)
			require.Len(t, fake.started, 1)
			assert.Equal(t, box.WorkflowID("mine"), fake.started[0].ID)
		})
	}
}
