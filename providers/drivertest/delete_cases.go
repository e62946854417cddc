package drivertest

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// nothing checks that nothing of ref is left.
func nothing(t *testing.T, b *bench, ref box.Ref) {
	t.Helper()
	if got := b.phase(t, ref); got != box.PhaseGone {
		t.Errorf("the box is %q, want gone", got)
	}
	if b.row.List == box.Yes && slices.Contains(b.names(t), ref.Name) {
		t.Errorf("%s is listed after delete", ref.Name)
	}
	nothingLeft(t, b, ref)
}

// nothingLeft looks before any other call: a later one may find gone what was
// only on its way when the driver said so.
func nothingLeft(t *testing.T, b *bench, ref box.Ref) {
	t.Helper()
	if finder, ok := b.h.(Leftover); ok {
		if left := finder.Left(t, ref); len(left) > 0 {
			t.Errorf("left behind by a delete without an error: %v", left)
		}
	}
}

func testDeleteRunning(t *testing.T, b *bench) {
	ref, kept := b.made(t, "deleted"), b.made(t, "kept")
	for range five {
		b.deleted(t, ref)
		nothingLeft(t, b, ref)
	}
	nothing(t, b, ref)
	one(t, b, kept)
}

func testDeleteSuspended(t *testing.T, b *bench) {
	ref, kept := b.suspended(t, b.made(t, "deleted")), b.suspended(t, b.made(t, "kept"))
	for range five {
		b.deleted(t, ref)
		nothingLeft(t, b, ref)
	}
	nothing(t, b, ref)
	if got := b.phase(t, kept); got != box.PhaseSuspended {
		t.Errorf("the other box is %q", got)
	}
}

func testDeleteCancelled(t *testing.T, b *bench) {
	ref := b.made(t, "cancelled")
	_, err := b.remove(ended(t), ref)
	b.wantClass(t, "delete with an ended context", err, box.ClassCanceled)
	b.deleted(t, ref)
	nothing(t, b, ref)
}

func testDeleteLost(t *testing.T, b *bench) {
	ref := b.made(t, "lost")
	b.wire.loseNext()
	_, err := b.remove(t.Context(), ref)
	b.wantClass(t, "delete whose answer is lost", err, box.ClassUnavailable)
	nothing(t, b, ref)
	b.deleted(t, ref)
}

func testDeleteAtOnce(t *testing.T, b *bench) {
	ref := b.made(t, "at-once")
	var group sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		group.Go(func() { _, errs[i] = b.remove(t.Context(), ref) })
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			b.wantClass(t, "delete by several at once", err, box.ClassConflict, box.ClassUnavailable)
		}
	}
	b.deleted(t, ref)
	nothing(t, b, ref)
}

func testNever(t *testing.T, b *bench) {
	ref := b.made(t, "there")
	never := ref
	never.ID = ref.ID + "0"
	never.Name = box.Identity{Installation: ours, Workspace: "never", Epoch: 1}.Name()
	if got := b.phase(t, never); got != box.PhaseGone {
		t.Errorf("a box that never was is %q", got)
	}
	b.deleted(t, never)
	one(t, b, ref)
}

func testGone(t *testing.T, b *bench) {
	ref := b.made(t, "gone")
	b.deleted(t, ref)
	for range five {
		_, err := b.suspend(t.Context(), ref)
		b.wantClass(t, "suspend of a gone box", err, box.ClassNotFound)
		_, err = b.resume(t.Context(), ref)
		b.wantClass(t, "resume of a gone box", err, box.ClassNotFound)
	}
	nothing(t, b, ref)
}

func testList(t *testing.T, b *bench) {
	if b.row.List != box.Yes {
		t.Log("nothing to check: the driver claims no list")
		return
	}
	if names := b.names(t); len(names) != 0 {
		t.Fatalf("boxes %v in an empty place", names)
	}
	want := []string{b.made(t, "a").Name, b.made(t, "b").Name}
	if b.row.Suspend == box.Yes {
		ref := b.suspended(t, b.made(t, "c"))
		want = append(want, ref.Name)
	}
	theirs := bare{b.h.Driver(t, others), others}
	if _, err := theirs.create(t.Context(), "theirs"); err != nil {
		t.Fatal(err)
	}
	got := b.names(t)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("boxes %v, want %v", got, want)
	}
	if _, err := b.list(ended(t)); b.class(err) != box.ClassCanceled {
		t.Errorf("list with an ended context: %v", err)
	}
}

func testWatch(t *testing.T, b *bench) {
	if b.row.Watch != box.Yes {
		t.Log("nothing to check: the driver claims no watch")
		return
	}
	killer, ok := b.h.(Killer)
	if !ok {
		t.Skip("the harness cannot kill a box")
	}
	early, late := b.made(t, "early"), b.made(t, "late")
	killer.Kill(t, early)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan driver.Listed, 100)
	done := make(chan error, 1)
	go func() { done <- b.watch(ctx, func(one driver.Listed) { told <- one }) }()
	known := map[string]bool{} // a watcher may tell twice
	expect := func(ref box.Ref) {
		t.Helper()
		defer func() { known[ref.Name] = true }()
		await(t, "the end of "+ref.Name+" is told", func() bool {
			select {
			case one := <-told:
				if known[one.Observation.Ref.Name] {
					return false
				}
				if one.Observation.Ref.Name != ref.Name {
					t.Fatalf("told of %s, %s", one.Observation.Ref.Name, one.Observation.Phase)
				}
				return one.Observation.Phase == box.PhaseFailed
			default:
				return false
			}
		})
	}
	expect(early)
	if b.row.Suspend == box.Yes {
		// Our own calls are no news; what comes next must be the kill.
		late = b.suspended(t, late)
		if b.row.Deepen == box.Yes {
			b.deepened(t, late)
		}
		late = b.resumed(t, late)
		b.runs(t, late)
	}
	gone := b.made(t, "deleted")
	b.deleted(t, gone)
	killer.Kill(t, late)
	expect(late)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("watch ended with %v", err)
	}
}
