package activities_test

import (
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// A box that was awake when it was exported may have been used until it ended
// or was suspended by its provider: that export is not the last word.
func TestABoxThatEndedAfterItsExportIsNotDestroyedOnIt(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(r *rig){
		"it ended by itself": func(r *rig) { r.cloud.Kill(name, "out of memory") },
		"its provider suspended it": func(r *rig) {
			r.cloud.Advance(time.Hour)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil, func(c *box.Capabilities) { c.NativeIdle = box.Yes })
			in, _ := r.exported()
			in.Awake = true
			end(r)
			if r.phase() == box.PhaseRunning {
				t.Fatal("it still runs")
			}
			if out := do(r, r.boxes.VerifyExport, in); !strings.Contains(out.Problem, "may have been used in between") {
				t.Errorf("the problem is %q", out.Problem)
			}
			fails(r, box.ClassFailedPrecondition, r.boxes.Delete, in)
			if r.calls(fakebox.OpDelete) != 0 {
				t.Error("the provider was told to destroy it")
			}
			in.Awake = false // it was suspended by us, behind a closed door
			in.Step = "e1-s9"
			if do(r, r.boxes.Delete, in); r.phase() != box.PhaseGone {
				t.Errorf("it is %s", r.phase())
			}
		})
	}
}

func TestTheProvidersTimersAreSetAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, func(c *box.Capabilities) { c.NativeIdle, c.NativeAdjust = box.Yes, box.Yes })
	target := r.made("e1-s1")
	want := box.Native{Idle: box.Duration(time.Hour)}
	for range 2 {
		out := do(r, r.boxes.Adjust, activities.AdjustInput{Target: target, Native: want})
		if n := out.Observation.Native; n == nil || *n != want {
			t.Errorf("it reads back %+v", n)
		}
	}
	r.cloud.Advance(2 * time.Hour)
	fails(r, box.ClassFailedPrecondition, r.boxes.Adjust, activities.AdjustInput{Target: target, Native: want})
	if r.phase() != box.PhaseSuspended {
		t.Errorf("adjusting it left it %s", r.phase())
	}
}
