package box_test

import (
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

func TestWhyTellsTheLastDecisionAndItsFacts(t *testing.T) {
	t.Parallel()
	w := awake(t)
	decided := func(step box.StepKind, from box.State) box.Grounds {
		t.Helper()
		d := w.facts.WhyAt(w.now).Decided
		if d == nil || d.Step != step || d.State != from || d.Reason.Text == "" {
			t.Fatalf("the last decision is %+v, want %s in %s", d, step, from)
		}
		return d.Facts
	}
	used := w.now
	w.now = w.now.Add(idle)
	w.step(box.StepQuiesce)
	if g := decided(box.StepQuiesce, box.StateRunning); !g.LastUse.Equal(used) || g.IdleAfter != w.facts.Policy.Idle || g.Holders != 0 || g.ExportCovers || !g.WallAt.After(w.now) {
		t.Errorf("an idle suspend went by %+v", g)
	}
	w.facts.Apply(box.Step{Kind: box.StepQuiesce, Purpose: box.PurposeIdle}, box.Outcome{Use: w.use()}, w.now)
	notice := w.settle()
	if g := decided(box.StepSuspend, box.StateSuspending); !g.ExportCovers || g.ExportSHA256 == "" {
		t.Errorf("the suspend went by %+v", g)
	}
	w.now = notice.At
	w.settle()
	if g := decided(box.StepNotify, box.StateSuspended); !g.SuspendedSince.Equal(w.facts.SuspendedSince) || g.ExpiresAt.Sub(g.SuspendedSince) != 30*24*time.Hour || g.LastSeen != box.PhaseSuspended {
		t.Errorf("the notice went by %+v", g)
	}
	w.connect("tab")
	w.settle()
	if g := decided(box.StepResume, box.StateSuspended); g.Holders != 1 {
		t.Errorf("the resume went by %+v", g)
	}
	w.facts.Suspend(box.Request{ID: "s", By: "ana"}, w.now)
	w.failed(w.step(box.StepQuiesce), box.ClassUnavailable)
	w.now = w.facts.Failure.RetryAt
	w.step(box.StepQuiesce)
	if g := decided(box.StepQuiesce, box.StateDraining); g.Wanted != box.UpdateSuspend || g.Failures != 1 {
		t.Errorf("the asked suspend went by %+v", g)
	}
	w.facts.Apply(box.Step{Kind: box.StepQuiesce, Purpose: box.PurposeExplicit}, box.Outcome{Use: w.use()}, w.now)
	w.settle()
	w.confirm(w.requestDelete().Token)
	w.settle()
	if g := decided(box.StepDelete, box.StateExporting); g.ConfirmedBy != "ana" || !g.ExportVerified || !g.ExportCovers || g.WithoutHistory {
		t.Errorf("the deletion went by %+v", g)
	}
}
