package drivertest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// five is how often each mutating call is repeated.
const five = 5

func ended(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// one checks that exactly the box of ref is there.
func one(t *testing.T, b *bench, ref box.Ref) {
	t.Helper()
	if got := b.phase(t, ref); got != box.PhaseRunning && got != box.PhaseStarting {
		t.Errorf("the box is %q, want running", got)
	}
	if b.row.List == box.Yes {
		if names := b.names(t); !slices.Equal(names, []string{ref.Name}) {
			t.Errorf("boxes %v, want only %s", names, ref.Name)
		}
	}
}

func testCreateFive(t *testing.T, b *bench) {
	want := box.Identity{Installation: ours, Workspace: "five", Epoch: 1}
	var first box.Ref
	for i := range five {
		seen, err := b.create(t.Context(), want.Workspace)
		if err != nil {
			t.Fatalf("create %d: %v", i+1, err)
		}
		if seen.Phase != box.PhaseRunning && seen.Phase != box.PhaseStarting {
			t.Fatalf("create %d answered %q", i+1, seen.Phase)
		}
		if i == 0 {
			first = seen.Ref
		}
		if seen.Ref != first {
			t.Fatalf("create %d answered %+v, before %+v", i+1, seen.Ref, first)
		}
	}
	if first.ID == "" || first.Name != want.Name() || first.Epoch != 1 || first.Fingerprint == "" {
		t.Errorf("the ref is incomplete: %+v", first)
	}
	one(t, b, first)
	// Another worker resolves the same name to the same box.
	other := bare{b.h.Driver(t, ours), ours}
	seen, err := other.create(t.Context(), want.Workspace)
	if err != nil || seen.Ref.ID != first.ID {
		t.Errorf("another worker's create answered %+v, %v", seen.Ref, err)
	}
	one(t, b, first)
}

func testCreateAtOnce(t *testing.T, b *bench) {
	const many = 8
	refs := make([]box.Ref, many)
	errs := make([]error, many)
	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			seen, err := b.create(t.Context(), "at-once")
			refs[i], errs[i] = seen.Ref, err
		})
	}
	group.Wait()
	for i := range many {
		if errs[i] != nil && b.class(errs[i]) != box.ClassConflict {
			t.Fatalf("create %d: %v", i, errs[i])
		}
		if errs[i] == nil && refs[0] != refs[i] && errs[0] == nil {
			t.Errorf("create answered %+v and %+v", refs[0], refs[i])
		}
	}
	one(t, b, b.made(t, "at-once"))
}

func testCreateCancelled(t *testing.T, b *bench) {
	_, err := b.create(ended(t), "cancelled")
	b.wantClass(t, "create with an ended context", err, box.ClassCanceled)
	one(t, b, b.made(t, "cancelled"))
}

func testCreateLost(t *testing.T, b *bench) {
	b.wire.loseNext()
	_, err := b.create(t.Context(), "lost")
	b.wantClass(t, "create whose answer is lost", err, box.ClassUnavailable)
	one(t, b, b.made(t, "lost"))
}

// testCreateReserved: a variable of ours would be another box's name or key, and
// one that no environment can hold is lost on the way, or cuts another one off.
func testCreateReserved(t *testing.T, b *bench) {
	for what, change := range map[string]func(*driver.Start){
		"a variable of boxkeeper":  func(s *driver.Start) { s.Env["BOXKEEPER_BOX"] = "x" },
		"a session key":            func(s *driver.Start) { s.Env["OH_SESSION_API_KEYS_0"] = "x" },
		"another session key":      func(s *driver.Start) { s.SecretEnv["OH_SESSION_API_KEYS_1"] = "reserved-4711" },
		"a secret of boxkeeper":    func(s *driver.Start) { s.SecretEnv["BOXKEEPER_BOX"] = "reserved-4711" },
		"a name that is none":      func(s *driver.Start) { s.Env["A=B"] = "x" },
		"a secret without a name":  func(s *driver.Start) { s.SecretEnv[""] = "reserved-4711" },
		"a value with a NUL byte":  func(s *driver.Start) { s.Env["SUITE_SETTING"] = "x\x00y" },
		"a secret with a NUL byte": func(s *driver.Start) { s.SecretEnv["SUITE_TOKEN"] = "reserved-4711\x00y" },
		"a name of both kinds":     func(s *driver.Start) { s.SecretEnv["SUITE_SETTING"] = "reserved-4711" },
	} {
		with := start()
		change(&with)
		_, err := b.createWith(t.Context(), "reserved", with)
		b.wantClass(t, "create with "+what, err, box.ClassInvalid)
		if err != nil && strings.Contains(err.Error(), "reserved-4711") {
			t.Errorf("the error about %s repeats the secret", what)
		}
	}
	if b.row.List == box.Yes {
		if names := b.names(t); len(names) > 0 {
			t.Errorf("what was refused made %v", names)
		}
	}
}

func testCreateForeign(t *testing.T, b *bench) {
	planter, ok := b.h.(Planter)
	if !ok {
		t.Skip("the harness cannot plant a foreign box")
	}
	name := box.Identity{Installation: ours, Workspace: "foreign", Epoch: 1}.Name()
	planter.Plant(t, name)
	for range five {
		_, err := b.create(t.Context(), "foreign")
		b.wantClass(t, "create over a foreign box", err, box.ClassAlreadyExists)
	}
	ref := b.made(t, "neighbour")
	ref.Name = name
	for what, call := range mutations(t, b) {
		if call(ref) == nil && what != "delete" {
			t.Errorf("%s of a foreign box succeeded", what)
		}
	}
	if !planter.Untouched(t, name) {
		t.Error("the foreign box was touched")
	}
	if b.row.List == box.Yes && slices.Contains(b.names(t), name) {
		t.Error("the foreign box is listed as ours")
	}
}

// mutations are the calls that change a box that is there.
func mutations(t *testing.T, b *bench) map[string]func(ref box.Ref) error {
	t.Helper()
	all := map[string]func(ref box.Ref) error{
		"suspend": func(ref box.Ref) error { _, err := b.suspend(t.Context(), ref); return err },
		"resume":  func(ref box.Ref) error { _, err := b.resume(t.Context(), ref); return err },
		"delete":  func(ref box.Ref) error { _, err := b.remove(t.Context(), ref); return err },
	}
	if b.row.Deepen == box.Yes {
		all["deepen"] = func(ref box.Ref) error { _, err := b.deepen(t.Context(), ref); return err }
	}
	return all
}

func testOtherInstallation(t *testing.T, b *bench) {
	ref := b.made(t, "mine")
	theirs := bare{b.h.Driver(t, others), others}
	calls := map[string]func() error{
		"observe":  func() error { _, err := theirs.observe(t.Context(), ref); return err },
		"suspend":  func() error { _, err := theirs.suspend(t.Context(), ref); return err },
		"resume":   func() error { _, err := theirs.resume(t.Context(), ref); return err },
		"delete":   func() error { _, err := theirs.remove(t.Context(), ref); return err },
		"endpoint": func() error { _, err := theirs.endpoint(t.Context(), ref); return err },
	}
	if b.row.Deepen == box.Yes {
		calls["deepen"] = func() error { _, err := theirs.deepen(t.Context(), ref); return err }
	}
	for what, call := range calls {
		err := call()
		allowed := []box.Class{box.ClassFailedPrecondition}
		if b.row.Suspend != box.Yes {
			allowed = append(allowed, box.ClassUnsupported)
		}
		if err == nil {
			t.Errorf("%s by another installation succeeded", what)
			continue
		}
		(&bench{target: theirs}).wantClass(t, what+" by another installation", err, allowed...)
	}
	one(t, b, ref)
}

func testOtherFingerprint(t *testing.T, b *bench) {
	ref := b.made(t, "place")
	moved := ref
	moved.Fingerprint = ref.Fingerprint + "-elsewhere"
	absent := moved
	absent.Name = box.Identity{Installation: ours, Workspace: "never-made", Epoch: 1}.Name()
	for _, elsewhere := range []box.Ref{moved, absent} {
		if seen, err := b.observe(t.Context(), elsewhere); err == nil {
			t.Errorf("observe under another fingerprint answered %q", seen.Phase)
		}
		for what, call := range mutations(t, b) {
			if b.row.Suspend != box.Yes && what != "delete" {
				continue
			}
			b.wantClass(t, what+" under another fingerprint", call(elsewhere), box.ClassFailedPrecondition)
		}
	}
	one(t, b, ref)
}

// testMoved: the same credential, or the same name of a setting, leads to
// another account, where our boxes are not.
func testMoved(t *testing.T, b *bench) {
	mover, ok := b.h.(Mover)
	if !ok {
		t.Log("nothing to check: the harness cannot exchange its place for another one")
		return
	}
	ref := b.made(t, "moved")
	print, err := b.wire.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	back := mover.Move(t)
	if now, err := b.wire.Fingerprint(t.Context()); err != nil || now == print {
		t.Errorf("the fingerprint of another place is %q, %v", now, err)
	}
	for range five {
		if seen, err := b.observe(t.Context(), ref); err == nil && seen.Phase != box.PhaseUnknown {
			t.Errorf("observe in another place answered %q", seen.Phase)
		}
		for what, call := range mutations(t, b) {
			if b.row.Suspend != box.Yes && what != "delete" {
				continue
			}
			err := call(ref)
			if class := b.class(err); err == nil || class == box.ClassNotFound {
				t.Errorf("%s in another place: class %q (%v)", what, class, err)
			}
		}
		if _, err := b.endpoint(t.Context(), ref); err == nil {
			t.Error("there is an endpoint in another place")
		}
	}
	if b.row.List == box.Yes {
		if found, err := b.list(t.Context()); err == nil && len(found) != 0 {
			t.Errorf("%d boxes are listed in another place", len(found))
		}
	}
	back()
	one(t, b, ref)
}
