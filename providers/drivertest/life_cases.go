package drivertest

import (
	"testing"

	"github.com/openhands/boxkeeper/box"
)

func testSuspendResumeFive(t *testing.T, b *bench) {
	ref := b.made(t, "five")
	for range 2 { // a second round must work like the first
		for range five {
			ref = b.suspended(t, ref)
			if got := b.phase(t, ref); got != box.PhaseSuspended {
				t.Fatalf("the box is %q after suspend", got)
			}
		}
		for range five {
			ref = b.resumed(t, ref)
		}
		b.runs(t, ref)
	}
	one(t, b, ref)
	// Resuming a running box leaves its processes alone.
	if life, ok := b.h.(Life); ok {
		before := life.Life(t, ref)
		ref = b.resumed(t, ref)
		if after := life.Life(t, ref); after != before {
			t.Errorf("resume of a running box changed its life from %q to %q", before, after)
		}
	}
}

func testSuspendResumeCancelled(t *testing.T, b *bench) {
	ref := b.made(t, "cancelled")
	_, err := b.suspend(ended(t), ref)
	b.wantClass(t, "suspend with an ended context", err, box.ClassCanceled)
	ref = b.suspended(t, ref)
	_, err = b.resume(ended(t), ref)
	b.wantClass(t, "resume with an ended context", err, box.ClassCanceled)
	ref = b.resumed(t, ref)
	one(t, b, ref)
}

func testSuspendResumeLost(t *testing.T, b *bench) {
	ref := b.made(t, "lost")
	b.wire.loseNext()
	_, err := b.suspend(t.Context(), ref)
	b.wantClass(t, "suspend whose answer is lost", err, box.ClassUnavailable)
	if got := b.phase(t, ref); got != box.PhaseSuspended {
		t.Errorf("the box is %q after a suspend whose answer was lost", got)
	}
	ref = b.suspended(t, ref)
	b.wire.loseNext()
	_, err = b.resume(t.Context(), ref)
	b.wantClass(t, "resume whose answer is lost", err, box.ClassUnavailable)
	// The caller still holds the ref from before.
	ref = b.resumed(t, ref)
	b.runs(t, ref)
	one(t, b, ref)
}

func testSurvives(t *testing.T, b *bench) {
	ref := b.made(t, "survives")
	before := b.runs(t, ref)
	life, looks := b.h.(Life)
	var first string
	if looks {
		first = life.Life(t, ref)
	}
	seen, err := b.suspend(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if seen.MemoryKept != b.row.MemoryKept {
		t.Errorf("suspend says memory kept: %s, the row says %s", seen.MemoryKept, b.row.MemoryKept)
	}
	resumed := b.resumed(t, seen.Ref)
	after := b.runs(t, resumed)
	claim(t, "same_identity", b.row.SameIdentity, ref.ID == resumed.ID)
	claim(t, "key_stable", b.row.KeyStable, before.SessionKey == after.SessionKey)
	if b.row.URLStable == box.Yes {
		// The other direction cannot be seen once: an address may come back by luck.
		claim(t, "url_stable", b.row.URLStable, before.URL == after.URL)
	}
	if looks {
		claim(t, "memory_kept", b.row.MemoryKept, first == life.Life(t, resumed))
	} else {
		t.Log("memory_kept was not checked: the harness cannot tell lives apart")
	}
}

func claim(t *testing.T, what string, says box.Tri, is bool) {
	t.Helper()
	if (says == box.Yes) != is {
		t.Errorf("%s is claimed as %s, seen: %t", what, says, is)
	}
}

// testStored: what the provider keeps is never less than nothing, and of a box
// that does not rest nothing is said.
func testStored(t *testing.T, b *bench) {
	ref := b.made(t, "stored")
	check := func(what string, seen box.Observation, err error) box.Ref {
		t.Helper()
		switch {
		case err != nil:
			t.Fatalf("%s: %v", what, err)
		case seen.StoredBytes < 0:
			t.Errorf("%s says that %d bytes are stored", what, seen.StoredBytes)
		case seen.StoredBytes > 0 && seen.Phase != box.PhaseSuspended:
			t.Errorf("%s says that %d bytes are stored for a box that is %q", what, seen.StoredBytes, seen.Phase)
		}
		return seen.Ref
	}
	for range 2 {
		seen, err := b.observe(t.Context(), ref)
		check("observe", seen, err)
		seen, err = b.suspend(t.Context(), ref)
		ref = check("suspend", seen, err)
		if b.row.Deepen == box.Yes {
			seen, err = b.deepen(t.Context(), ref)
			ref = check("deepen", seen, err)
		}
		seen, err = b.observe(t.Context(), ref)
		check("observe", seen, err)
		seen, err = b.resume(t.Context(), ref)
		ref = check("resume", seen, err)
	}
	if b.row.List == box.Yes {
		listed, err := b.list(t.Context())
		if err != nil {
			t.Fatalf("list: %v", err)
		}
		for _, one := range listed {
			check("list", one.Observation, nil)
		}
	}
}

func testLooking(t *testing.T, b *bench) {
	ref := b.suspended(t, b.made(t, "looking"))
	life, looks := b.h.(Life)
	var before string
	if looks {
		before = life.Life(t, ref)
	}
	for range 20 {
		if got := b.phase(t, ref); got != box.PhaseSuspended {
			t.Fatalf("the box is %q after it was looked at", got)
		}
		if b.row.List == box.Yes {
			b.names(t)
		}
		_, err := b.endpoint(t.Context(), ref)
		b.wantClass(t, "endpoint of a suspended box", err, box.ClassFailedPrecondition)
	}
	if looks && life.Life(t, ref) != before {
		t.Error("looking changed the life of the box")
	}
}

func testKilled(t *testing.T, b *bench) {
	killer, ok := b.h.(Killer)
	if !ok {
		t.Skip("the harness cannot kill a box")
	}
	killed := func(workspace string) box.Ref {
		ref := b.made(t, workspace)
		killer.Kill(t, ref)
		await(t, "the box is seen as failed", func() bool {
			now := b.phase(t, ref)
			if now == box.PhaseGone {
				t.Fatal("a killed box is said to be gone")
			}
			return now == box.PhaseFailed
		})
		return ref
	}
	ref := killed("looked-at")
	_, err := b.endpoint(t.Context(), ref)
	b.wantClass(t, "endpoint of a killed box", err, box.ClassFailedPrecondition)
	if seen, err := b.create(t.Context(), "looked-at"); err != nil || seen.Ref.ID != ref.ID {
		t.Errorf("create over a killed box of ours answered %+v, %v", seen.Ref, err)
	}
	if b.row.Suspend == box.Yes {
		ref = killed("suspended")
		for range five {
			ref = b.suspended(t, ref)
		}
		ref = killed("resumed")
		for range five {
			ref = b.resumed(t, ref)
		}
		b.runs(t, ref)
	}
	ref = killed("deleted")
	for range five {
		b.deleted(t, ref)
	}
}

func testEndpoint(t *testing.T, b *bench) {
	ref := b.made(t, "endpoint")
	at := b.runs(t, ref)
	if at.URL == "" {
		t.Error("no URL")
	}
	if _, full := b.target.(portable); full && at.SessionKey == "" {
		t.Error("the portable type gave no key")
	}
	_, err := b.endpoint(ended(t), ref)
	b.wantClass(t, "endpoint with an ended context", err, box.ClassCanceled)
	ref = b.suspended(t, ref)
	_, err = b.endpoint(t.Context(), ref)
	b.wantClass(t, "endpoint of a suspended box", err, box.ClassFailedPrecondition)
	ref = b.resumed(t, ref)
	b.runs(t, ref)
	b.deleted(t, ref)
	_, err = b.endpoint(t.Context(), ref)
	b.wantClass(t, "endpoint of a gone box", err, box.ClassNotFound)
	if puzzler, ok := b.h.(Puzzler); ok {
		puzzler.Puzzle(t, ref)
		if seen, err := b.observe(t.Context(), ref); err == nil && seen.Phase != box.PhaseUnknown {
			t.Errorf("a box that nobody can tell is %q (%s)", seen.Phase, seen.Evidence)
		}
		_, err = b.endpoint(t.Context(), ref)
		b.wantClass(t, "endpoint of a box whose phase is unknown", err, box.ClassUnknown, box.ClassUnavailable)
	}
}
