package box_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// What was begun at the provider cannot be taken back by its owner.
func TestWhoCanStopADeletionUnderAHold(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		f := agreed(at(box.StateExporting))
		f.SuspendedSince, f.Observed = noon().Add(-time.Hour), box.Observation{Phase: box.PhaseSuspended}
		f.Deletion.WithoutHistory = true
		if begun {
			f.State, f.Deletion.Committed = box.StateDeleting, true
		}
		f.Hold = &box.Hold{By: "ops", Since: noon()}
		step := box.Next(f, noon().Add(10*day))
		require.Equal(t, box.StepWait, step.Kind)
		require.Equal(t, box.StepDelete, step.Then)
		want := "operator: hold off; owner: cancel-delete"
		if begun {
			want = "operator: hold off"
		}
		require.Equal(t, want, step.StoppedBy)
	}
}

// A box whose agreed deletion waits does not stay awake meanwhile, whether it
// runs or only starts.
func TestABoxWhoseDeletionIsHeldRests(t *testing.T) {
	t.Parallel()
	for phase, rests := range map[box.Phase]bool{box.PhaseRunning: true, box.PhaseStarting: true, box.PhaseSuspended: false, box.PhaseUnknown: false} {
		f := agreed(at(box.StateExporting))
		f.Observed = box.Observation{Phase: phase}
		f.SetHold(box.HoldSignal{On: true, By: "ops"}, noon())
		f.Advance(noon().Add(time.Hour))
		require.Equal(t, rests, f.State == box.StateRunning, phase)
	}
}
