package box_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// What is just within a limit is taken, and the next is not.
func TestLimitsOfRequests(t *testing.T) {
	t.Parallel()
	conversations := func(n int) error {
		ids := slices.Repeat([]string{strings.Repeat("a", 32)}, n)
		return at(box.StateRunning).CheckAsk(box.Ask{Kind: box.AskReclaim, ID: "a", Reclaim: box.ReclaimRequest{ConversationIDs: ids}})
	}
	reason := func(n int) error {
		return at(box.StateLost).CheckAbandon(box.AbandonAsk{Request: box.Request{ID: "a"}, Reason: strings.Repeat("r", n)})
	}
	boxID := func(id string) error {
		f := at(box.StateCreateFailed)
		f.Ref = box.Ref{}
		return f.CheckAdopt(box.AdoptAsk{Request: box.Request{ID: "a"}, BoxID: id})
	}
	failing := func(times int) error {
		f := at(box.StateRunning)
		f.Failure = &box.Failure{Step: box.StepSuspend, Count: times}
		return f.CheckAbandon(box.AbandonAsk{Request: box.Request{ID: "a"}, Reason: "gone"})
	}
	for name, row := range map[string]struct {
		within, beyond error
		class          box.Class
	}{
		"conversations":    {conversations(box.MaxReclaimConversations), conversations(box.MaxReclaimConversations + 1), box.ClassInvalid},
		"a reason":         {reason(500), reason(501), box.ClassInvalid},
		"a box's id":       {boxID(strings.Repeat("b", 256)), boxID(strings.Repeat("b", 257)), box.ClassInvalid},
		"its last letter":  {boxID("a~"), boxID("a\x7f"), box.ClassInvalid},
		"its first letter": {boxID("!a"), boxID(" a"), box.ClassInvalid},
		"out of reach":     {failing(5), failing(4), box.ClassFailedPrecondition},
	} {
		require.NoError(t, row.within, name)
		require.Equal(t, row.class, box.ClassOf(row.beyond), name)
	}
}

// A look that nothing checks before is refused when as many requests wait as may.
func TestALookDoesNotJoinAFullQueue(t *testing.T) {
	t.Parallel()
	f := at(box.StateRunning)
	ask := func(i int) box.Ask { return box.Ask{Kind: box.AskScan, ID: fmt.Sprint("look-", i)} }
	n := 0
	for ; len(f.Asks) == n && n < 20; n++ {
		f.Queue(ask(n))
	}
	require.Len(t, f.Asks, 6)
	result, ok := f.ResultFor(fmt.Sprint("look-", n-1))
	require.True(t, ok)
	require.Equal(t, box.ClassExhausted, result.Class)
}

// An adoption that a spec asked for has nobody who waits for an answer.
func TestAnAdoptionThatIsDroppedIsAnsweredToWhoAsked(t *testing.T) {
	t.Parallel()
	for _, request := range []string{"", "r-1"} {
		f := at(box.StateCreateFailed)
		f.Ref = box.Ref{}
		f.Adopt = &box.Adoption{ID: "other", RequestID: request, Epoch: 1, From: box.StateCreateFailed}
		f.Failure = &box.Failure{Step: box.StepAdopt, Count: 9}
		f.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d", By: "ana"}}, noon())
		if f.Deletion != nil {
			f.ConfirmDelete(box.ConfirmDelete{Token: f.Deletion.Token, By: "ana"}, noon())
		}
		f.Apply(box.Step{Kind: box.StepDelete}, box.Outcome{Observation: box.Observation{Phase: box.PhaseGone}}, noon())
		_, answered := f.ResultFor(request)
		require.Equal(t, request != "", answered)
		require.Nil(t, f.Adopt)
	}
}

func TestTheSpecOfTheFirstBoxIsTheOneThatWasGiven(t *testing.T) {
	t.Parallel()
	f := at(box.StateRunning)
	f.Policy.Idle = box.Duration(7 * time.Minute)
	require.NotEqual(t, f.Policy.Idle, f.SpecNow().Policy.Idle)
	f.Epoch = 2
	require.Equal(t, f.Policy.Idle, f.SpecNow().Policy.Idle, "a successor has the policy in force")
}

func TestOnlyAnExportAfterATurnTakesTheTurnOff(t *testing.T) {
	t.Parallel()
	for _, purpose := range []box.Purpose{box.PurposeTurn, box.PurposeIdle} {
		f := at(box.StateRunning)
		f.TurnEnded = noon()
		f.Begin(box.Step{Kind: box.StepExport, Purpose: purpose}, noon())
		require.Equal(t, purpose == box.PurposeTurn, f.TurnEnded.IsZero(), purpose)
	}
}

// A refusal as somebody else's is heard by the owner alone: from then on its
// steps count as later than all before.
func TestAConflictBeginsTheStepsAnew(t *testing.T) {
	t.Parallel()
	for _, class := range []box.Class{box.ClassConflict, box.ClassUnavailable} {
		f := at(box.StateRunning)
		before, later := f.Began, noon().Add(time.Hour)
		f.Apply(box.Step{Kind: box.StepAdjust}, box.Outcome{Failed: &box.StepFailure{Class: class, Message: "no"}}, later)
		if class == box.ClassConflict {
			require.Equal(t, later, f.Began)
		} else {
			require.Equal(t, before, f.Began)
		}
	}
}

// What a box came from is told once it runs: made, or woken.
func TestABoxThatRunsIsToldAsMadeOrAsWoken(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		from, settled box.State
		want          box.EventKind
	}{
		"the first one":                     {box.StateStarting, "", box.EventCreated},
		"at once":                           {box.StateCreating, "", box.EventCreated},
		"after one that could not be made":  {box.StateStarting, box.StateCreateFailed, box.EventCreated},
		"a successor":                       {box.StateStarting, box.StateLost, box.EventCreated},
		"one that came up by itself":        {box.StateStarting, box.StateSuspended, box.EventResumed},
		"one that was woken":                {box.StateResuming, box.StateSuspended, box.EventResumed},
		"a lost one that is there again":    {box.StateUnknown, box.StateLost, box.EventResumed},
		"one whose deletion was taken back": {box.StateResuming, box.StateUndoWindow, box.EventResumed},
	} {
		o := box.Outbox{Settled: row.settled}
		require.Equal(t, row.want, box.SettledAs(&o, row.from, box.StateRunning), name)
		require.Equal(t, box.StateRunning, o.Settled, name)
	}
}

// A notice that nobody takes is given up after eight tries, and counted.
func TestANoticeThatNobodyTakesIsCounted(t *testing.T) {
	t.Parallel()
	f := at(box.StateSuspended)
	f.SuspendedSince = noon()
	step := box.Step{Kind: box.StepNotify, At: noon().Add(30 * day)}
	for try := 1; try <= 8; try++ {
		require.Zero(t, f.Outbox.Untold, "before try %d", try)
		f.Apply(step, box.Outcome{Failed: &box.StepFailure{Class: box.ClassUnavailable, Message: "no"}}, noon().Add(time.Duration(try)*time.Hour))
	}
	require.Equal(t, 1, f.Outbox.Untold)
}

func TestOnlyAChangedPolicyIsRecorded(t *testing.T) {
	t.Parallel()
	f := at(box.StateRunning)
	before := f.Durable
	f.SetPolicy(box.SetPolicyAsk{Request: box.Request{ID: "1"}, Policy: box.Policy{Idle: f.Policy.Idle}}, noon())
	require.Equal(t, before, f.Durable)
	f.SetPolicy(box.SetPolicyAsk{Request: box.Request{ID: "2"}, Policy: box.Policy{Idle: f.Policy.Idle + box.Duration(time.Minute)}}, noon())
	require.NotEqual(t, before, f.Durable)
}
