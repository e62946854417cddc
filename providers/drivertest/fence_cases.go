package drivertest

import (
	"context"
	"sync"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// at returns a context of the step with this number.
func at(t *testing.T, step int) context.Context {
	t.Helper()
	return driver.WithFence(t.Context(), box.Fence{Began: 1_700_000_000_000, Step: step})
}

func testFence(t *testing.T, b *bench) {
	if b.row.Fence != box.Yes {
		t.Log("nothing to check: the driver claims no fence")
		return
	}
	took := func(what string, seen box.Observation, err error) box.Ref {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return seen.Ref
	}
	refused := func(what string, _ box.Observation, err error) {
		t.Helper()
		b.wantClass(t, what, err, box.ClassConflict)
	}
	awake := func(ref box.Ref) {
		t.Helper()
		if got := b.phase(t, ref); got != box.PhaseRunning && got != box.PhaseStarting {
			t.Fatalf("the box is %q", got)
		}
	}
	const workspace = "fenced"
	seen, err := b.create(at(t, 5), workspace)
	ref := took("create", seen, err)
	seen, err = b.suspend(at(t, 6), ref)
	ref = took("suspend", seen, err)
	seen, err = b.resume(at(t, 7), ref)
	ref = took("resume", seen, err)
	for range five {
		seen, err = b.suspend(at(t, 6), ref)
		refused("a suspend that comes late", seen, err)
		awake(ref)
		seen, err = b.remove(at(t, 6), ref)
		refused("a delete that comes late", seen, err)
		awake(ref)
		seen, err = b.create(at(t, 5), workspace)
		refused("a create that comes late", seen, err)
		seen, err = b.resume(at(t, 7), ref)
		ref = took("the same step again", seen, err)
	}
	seen, err = b.suspend(t.Context(), ref)
	ref = took("a suspend without a fence", seen, err)
	seen, err = b.resume(at(t, 6), ref)
	refused("a resume that comes late", seen, err)
	if got := b.phase(t, ref); got != box.PhaseSuspended {
		t.Fatalf("the box is %q after a resume that came late", got)
	}
	// A life that began later is newer, however few its steps.
	later := driver.WithFence(t.Context(), box.Fence{Began: 1_700_000_000_001, Step: 1})
	seen, err = b.resume(later, ref)
	ref = took("the first step of a later life", seen, err)
	seen, err = b.remove(later, ref)
	took("delete", seen, err)
	for range five {
		for _, late := range []context.Context{at(t, 5), at(t, 99), later} {
			seen, err = b.create(late, workspace)
			refused("a create that comes after the deletion", seen, err)
		}
		_, err = b.resume(at(t, 7), ref)
		b.wantClass(t, "a resume that comes after the deletion", err, box.ClassNotFound, box.ClassConflict)
	}
	nothing(t, b, ref)
}

func testFenceAtOnce(t *testing.T, b *bench) {
	if b.row.Fence != box.Yes {
		t.Log("nothing to check: the driver claims no fence")
		return
	}
	if b.row.SameIdentity != box.Yes {
		t.Log("nothing to check: the ref changes with each resume, so that late steps have an old one")
		return
	}
	seen, err := b.create(at(t, 1), "at-once")
	if err != nil {
		t.Fatal(err)
	}
	// A driver without a fence ends as the newest step wants by luck, one time in four.
	const rounds, steps = 8, 8
	for round := range rounds {
		errs := make([]error, steps)
		var group sync.WaitGroup
		for i := range steps {
			fence := 2 + round*steps + i
			group.Go(func() {
				if i%2 == 0 {
					_, errs[i] = b.resume(at(t, fence), seen.Ref)
				} else {
					_, errs[i] = b.suspend(at(t, fence), seen.Ref)
				}
			})
		}
		group.Wait()
		if errs[steps-1] != nil {
			t.Errorf("the newest step: %v", errs[steps-1])
		}
		for _, err := range errs {
			if err != nil {
				b.wantClass(t, "a step that was overtaken", err, box.ClassConflict)
			}
		}
		if got := b.phase(t, seen.Ref); got != box.PhaseSuspended {
			t.Fatalf("the box is %q, the newest step suspended it", got)
		}
	}
}
