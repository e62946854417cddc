package box_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func refusedFor(block box.Block) box.Outcome {
	return box.Outcome{Failed: &box.StepFailure{Class: box.ClassExhausted, Message: "as told", Block: block}}
}

// listened returns facts in a state to which somebody listens.
func listened(state box.State) *box.Facts {
	f := at(state)
	f.Outbox.Receivers = []box.Receiver{{Listener: box.Listener{Name: "ops"}}}
	return f
}

func told(f *box.Facts) (out []box.ReasonCode) {
	for _, e := range f.Outbox.Events {
		if e.Kind == box.EventNeedsAttention {
			out = append(out, e.Reason.Code)
		}
	}
	return out
}

func TestAFlagSaysWhatTheAccountLacks(t *testing.T) {
	t.Parallel()
	create, resume := box.Step{Kind: box.StepCreate}, box.Step{Kind: box.StepResume, Purpose: box.PurposeExplicit}
	for block, flag := range map[box.Block]string{box.BlockQuota: "quota-blocked", box.BlockBalance: "balance-blocked"} {
		t.Run("it is told once and stands until the step succeeds", func(t *testing.T) {
			t.Parallel()
			f := listened(box.StateResuming)
			for range 7 {
				f.Apply(resume, refusedFor(block), noon())
				require.Equal(t, []string{flag, "needs-attention"}, f.Flags())
				require.Equal(t, f.Flags(), f.StatusAt(noon()).Flags)
				require.Equal(t, f.Flags(), f.WhyAt(noon()).Flags)
				require.Equal(t, block, f.Blocked())
			}
			require.Equal(t, []box.ReasonCode{box.ReasonCode(flag)}, told(f))
			f.Apply(box.Step{Kind: box.StepObserve}, box.Outcome{Failed: &box.StepFailure{Class: box.ClassUnavailable}}, noon())
			require.Empty(t, f.Flags(), "another failure came")
			f.Apply(resume, refusedFor(block), noon())
			require.Contains(t, f.Flags(), flag)
			require.Len(t, told(f), 1, "told again of the same")
			f.Apply(resume, box.Outcome{Observation: box.Observation{Ref: f.Ref, Phase: box.PhaseRunning}, Ready: true, Listeners: all("ops")}, noon())
			require.Equal(t, box.StateRunning, f.State)
			require.Empty(t, f.Flags())
			f.State = box.StateResuming
			f.Apply(resume, refusedFor(block), noon())
			require.Len(t, told(f), 2, "it was over, and came again")
		})
		t.Run("a create that is not wanted any more is not blocked", func(t *testing.T) {
			t.Parallel()
			f := listened(box.StateCreating)
			f.Apply(create, refusedFor(block), noon())
			require.Contains(t, f.Flags(), flag)
			agreed(f)
			f.Apply(create, refusedFor(block), noon().Add(time.Minute))
			require.Equal(t, box.StateExporting, f.State)
			require.NotContains(t, f.Flags(), flag)
		})
	}
	t.Run("what is no block sets no flag", func(t *testing.T) {
		t.Parallel()
		for _, why := range []box.StepFailure{
			{Class: box.ClassExhausted, Message: "a rate"},
			{Class: box.ClassExhausted, Block: "of a later version"},
			{Class: box.ClassUnavailable, Block: box.BlockQuota},
		} {
			f := listened(box.StateResuming)
			f.Apply(resume, box.Outcome{Failed: &why}, noon())
			require.Empty(t, f.Flags())
			require.Empty(t, told(f))
		}
	})
	t.Run("a blocked deletion keeps it", func(t *testing.T) {
		t.Parallel()
		f := agreed(listened(box.StateExporting))
		f.SuspendedSince = noon()
		wake := box.Step{Kind: box.StepResume, Purpose: box.PurposeMaintenance}
		for range 3 {
			f.Begin(wake, noon())
			f.Apply(wake, refusedFor(box.BlockBalance), noon())
		}
		require.Equal(t, box.StateDeleteBlocked, f.State)
		require.Equal(t, []string{"balance-blocked", "needs-attention"}, f.Flags())
		require.Equal(t, []box.ReasonCode{box.ReasonBalanceBlocked}, told(f))
	})
}
