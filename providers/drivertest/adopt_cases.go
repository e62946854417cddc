package drivertest

import (
	"testing"

	"github.com/openhands/boxkeeper/box"
)

// adopts reports whether there is anything to check.
func adopts(t *testing.T, b *bench) bool {
	t.Helper()
	if b.row.Adopt != box.Yes {
		t.Log("nothing to check: the driver does not adopt")
	}
	return b.row.Adopt == box.Yes
}

func testAdoptOurs(t *testing.T, b *bench) {
	if !adopts(t, b) {
		return
	}
	ref := b.made(t, "ours")
	b.runs(t, ref) // one that is starting changes by itself
	before := b.phase(t, ref)
	for range five {
		seen, err := b.adopt(t.Context(), ref.ID, "ours")
		if err != nil || seen.Ref != ref || seen.Phase != before {
			t.Fatalf("adopt answered %+v, %v, want %+v %s", seen, err, ref, before)
		}
	}
	one(t, b, ref)
	if b.row.Suspend != box.Yes {
		return
	}
	ref = b.suspended(t, ref)
	if seen, err := b.adopt(t.Context(), ref.ID, "ours"); err != nil || seen.Phase != box.PhaseSuspended {
		t.Errorf("adopting a suspended box answered %+v, %v", seen, err)
	}
	if got := b.phase(t, ref); got != box.PhaseSuspended {
		t.Errorf("adopting a suspended box left it %s", got)
	}
}

func testAdoptStray(t *testing.T, b *bench) {
	if !adopts(t, b) {
		return
	}
	strayer, ok := b.h.(Strayer)
	if !ok {
		t.Skip("the harness cannot make a box that nobody marked")
	}
	id := strayer.Stray(t)
	taken := b.made(t, "taken")
	_, err := b.adopt(t.Context(), id, "taken")
	b.wantClass(t, "adopt under the name of another box", err, box.ClassAlreadyExists)
	b.deleted(t, taken)
	_, err = b.adopt(ended(t), id, "found")
	b.wantClass(t, "adopt with an ended context", err, box.ClassCanceled)
	b.wire.loseNext()
	_, err = b.adopt(t.Context(), id, "found")
	b.wantClass(t, "adopt whose answer is lost", err, box.ClassUnavailable)
	var ref box.Ref
	for i := range five {
		seen, err := b.adopt(t.Context(), id, "found")
		if err != nil {
			t.Fatalf("adopt %d: %v", i+1, err)
		}
		if i > 0 && seen.Ref != ref {
			t.Fatalf("adopt %d answered %+v, before %+v", i+1, seen.Ref, ref)
		}
		ref = seen.Ref
	}
	want := box.Identity{Installation: ours, Workspace: "found", Epoch: 1}.Name()
	if ref.Name != want || ref.ID == "" || ref.Epoch != 1 || ref.Fingerprint == "" {
		t.Errorf("the ref is incomplete: %+v", ref)
	}
	_, err = b.adopt(t.Context(), ref.ID, "another")
	b.wantClass(t, "adopt for a second workspace", err, box.ClassFailedPrecondition)
	// From here on it is a box like any other.
	if b.row.List == box.Yes {
		if names := b.names(t); len(names) != 1 || names[0] != want {
			t.Errorf("boxes %v, want only %s", names, want)
		}
	}
	if b.row.Suspend == box.Yes {
		ref = b.suspended(t, ref)
		ref = b.resumed(t, ref)
		b.runs(t, ref)
	}
	b.deleted(t, ref)
}

func testAdoptRefused(t *testing.T, b *bench) {
	if !adopts(t, b) {
		return
	}
	mine := b.made(t, "mine")
	_, err := b.adopt(t.Context(), mine.ID, "yours")
	b.wantClass(t, "adopt of another workspace's box", err, box.ClassFailedPrecondition)
	one(t, b, mine)
	theirs := bare{b.h.Driver(t, others), others}
	_, err = theirs.adopt(t.Context(), mine.ID, "mine")
	(&bench{target: theirs}).wantClass(t, "adopt by another installation", err, box.ClassFailedPrecondition)
	one(t, b, mine)
	_, err = b.adopt(t.Context(), "no-such-box", "nobody")
	b.wantClass(t, "adopt of what is not there", err, box.ClassNotFound)
	b.deleted(t, mine)
	_, err = b.adopt(t.Context(), mine.ID, "mine")
	b.wantClass(t, "adopt of a deleted box", err, box.ClassNotFound)
}
