package drivertest

import (
	"testing"

	"github.com/openhands/boxkeeper/box"
)

// deepens reports whether the driver claims it, and says so if not. The other
// direction is among what is not claimed.
func (b *bench) deepens(t *testing.T) bool {
	t.Helper()
	if b.row.Deepen != box.Yes {
		t.Log("nothing to check: the driver claims no deeper suspend")
	}
	return b.row.Deepen == box.Yes
}

// memory fails the test unless the box is suspended and keeps its memory or not.
func (b *bench) memory(t *testing.T, ref box.Ref, want box.Tri) {
	t.Helper()
	seen, err := b.observe(t.Context(), ref)
	if err != nil {
		t.Fatalf("observe: %v", err)
	}
	if seen.Phase != box.PhaseSuspended || seen.MemoryKept != want {
		t.Fatalf("the box is %q with memory kept: %s, want it suspended with %s (%s)", seen.Phase, seen.MemoryKept, want, seen.Evidence)
	}
}

func (b *bench) deepened(t *testing.T, ref box.Ref) {
	t.Helper()
	seen, err := b.deepen(t.Context(), ref)
	if err != nil {
		t.Fatalf("deepen: %v", err)
	}
	if seen.Phase != box.PhaseSuspended || seen.MemoryKept != box.No || seen.Ref != ref {
		t.Fatalf("deepen answered %q with memory kept: %s under %+v, want it under %+v", seen.Phase, seen.MemoryKept, seen.Ref, ref)
	}
}

func testDeepen(t *testing.T, b *bench) {
	if !b.deepens(t) {
		return
	}
	life, looks := b.h.(Life)
	ref := b.made(t, "deeper")
	for range 2 { // a second round must work like the first
		b.runs(t, ref)
		var before string
		if looks {
			before = life.Life(t, ref)
		}
		ref = b.suspended(t, ref)
		b.memory(t, ref, box.Yes)
		for range five {
			b.deepened(t, ref)
			b.memory(t, ref, box.No)
		}
		_, err := b.endpoint(t.Context(), ref)
		b.wantClass(t, "endpoint of a box that was suspended deeper", err, box.ClassFailedPrecondition)
		// A suspend finds it suspended, and must leave it as it is.
		ref = b.suspended(t, ref)
		b.memory(t, ref, box.No)
		ref = b.resumed(t, ref)
		b.runs(t, ref)
		if looks && life.Life(t, ref) == before {
			t.Errorf("its processes went on where they were (%s), so its memory was kept", before)
		}
	}
	if !looks {
		t.Log("whether memory is kept was not checked: the harness cannot tell lives apart")
	}
	one(t, b, ref)
	ref = b.suspended(t, ref)
	b.deepened(t, ref)
	b.deleted(t, ref)
	nothing(t, b, ref)
}

func testDeepenBroken(t *testing.T, b *bench) {
	if !b.deepens(t) {
		return
	}
	ref := b.suspended(t, b.made(t, "deeper-broken"))
	_, err := b.deepen(ended(t), ref)
	b.wantClass(t, "deepen with an ended context", err, box.ClassCanceled)
	b.memory(t, ref, box.Yes)
	b.wire.loseNext()
	_, err = b.deepen(t.Context(), ref)
	b.wantClass(t, "deepen whose answer is lost", err, box.ClassUnavailable)
	b.memory(t, ref, box.No)
	b.deepened(t, ref)
	ref = b.resumed(t, ref)
	b.runs(t, ref)
	one(t, b, ref)
}

func testDeepenRefused(t *testing.T, b *bench) {
	if !b.deepens(t) {
		return
	}
	ref := b.made(t, "deeper-refused")
	reached := b.runs(t, ref)
	life, looks := b.h.(Life)
	var before string
	if looks {
		before = life.Life(t, ref)
	}
	for range five {
		_, err := b.deepen(t.Context(), ref)
		b.wantClass(t, "deepen of a running box", err, box.ClassFailedPrecondition)
	}
	if after := b.runs(t, ref); after.URL != reached.URL {
		t.Errorf("it is at %s, and was at %s", after.URL, reached.URL)
	}
	if looks && life.Life(t, ref) != before {
		t.Error("refusing it changed the life of the box")
	}
	if b.row.Fence == box.Yes {
		seen, err := b.suspend(at(t, 5), ref)
		if err != nil {
			t.Fatalf("suspend: %v", err)
		}
		ref = seen.Ref
		_, err = b.deepen(at(t, 4), ref)
		b.wantClass(t, "a deepen that comes late", err, box.ClassConflict)
		b.memory(t, ref, box.Yes)
	} else {
		ref = b.suspended(t, ref)
	}
	b.deepened(t, ref)
	b.deleted(t, ref)
	_, err := b.deepen(t.Context(), ref)
	b.wantClass(t, "deepen of a gone box", err, box.ClassNotFound)
	nothing(t, b, ref)
}
