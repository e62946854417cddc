package activities_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// onDisk gives a rig a store in a directory, and returns the directory.
func (r *rig) onDisk() string {
	r.t.Helper()
	dir := filepath.Join(r.t.TempDir(), "exports")
	store, err := exports.OpenWith(r.t.Context(), "file://"+dir, exports.Options{SpoolDir: r.t.TempDir()})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = store.Close() })
	r.store, r.boxes.Store = store, store
	return dir
}

// exported makes a box with one conversation and exports it.
func (r *rig) exported() (in activities.DeleteInput, conversation string) {
	r.t.Helper()
	conversation = r.write(agentservertest.Conversation{Events: events(4)})
	target := r.made("e1-s2")
	receipt := do(r, r.boxes.Export, activities.ExportInput{Target: target}).Receipt
	target.Step = "e1-s3"
	return activities.DeleteInput{Target: target, Spec: spec(), Epoch: 1, Receipt: receipt, By: "ana"}, conversation
}

// objects lists the files of a store whose path holds part.
func objects(t *testing.T, dir, part string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.Contains(path, part) {
			out = append(out, path)
		}
		return err
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("no object with %q in its name, %v", part, err)
	}
	return out
}

func TestNothingIsDestroyedWithoutAWholeExport(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(t *testing.T, dir string, in *activities.DeleteInput){
		"a history that was lost": func(t *testing.T, dir string, _ *activities.DeleteInput) {
			t.Helper()
			for _, path := range objects(t, dir, ".zip") {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
		},
		"a history that was cut": func(t *testing.T, dir string, _ *activities.DeleteInput) {
			t.Helper()
			for _, path := range objects(t, dir, ".zip") {
				if err := os.Truncate(path, 100); err != nil {
					t.Fatal(err)
				}
			}
		},
		"a manifest that was lost": func(t *testing.T, dir string, in *activities.DeleteInput) {
			t.Helper()
			for _, path := range objects(t, dir, filepath.Base(in.Receipt.Key)) {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
		},
		"no receipt":              func(_ *testing.T, _ string, in *activities.DeleteInput) { in.Receipt = box.Receipt{} },
		"another box's receipt":   func(_ *testing.T, _ string, in *activities.DeleteInput) { in.Workspace = "other" },
		"a receipt that was made": func(_ *testing.T, _ string, in *activities.DeleteInput) { in.Receipt.Events++ },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			dir := r.onDisk()
			in, _ := r.exported()
			spoil(t, dir, &in)
			if out := do(r, r.boxes.VerifyExport, in); out.Problem == "" {
				t.Error("verify has no problem with it")
			}
			failure := fails(r, box.ClassFailedPrecondition, r.boxes.Delete, in)
			if !strings.Contains(failure.Message, "nothing was destroyed") || r.phase() != box.PhaseRunning || r.calls(fakebox.OpDelete) != 0 {
				t.Errorf("it says %q; the provider says %s after %d calls", failure.Message, r.phase(), r.calls(fakebox.OpDelete))
			}
			for _, entry := range r.ledger() {
				if strings.HasPrefix(entry, "delete") {
					t.Errorf("the ledger records %s", entry)
				}
			}
		})
	}
}

// A store that cannot be read is no verdict on the export.
func TestAStoreThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in, _ := r.exported()
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := run(t.Context(), r, r.boxes.VerifyExport, in)
	if err == nil || out.Problem != "" {
		t.Errorf("the answer is %+v, %v", out, err)
	}
	if _, err := run(t.Context(), r, r.boxes.Delete, in); err == nil || r.phase() != box.PhaseRunning {
		t.Errorf("%v; the provider says %s", err, r.phase())
	}
}

// What was read back whole a moment ago is looked at right before the
// destruction, and whatever was touched meanwhile is read again.
func TestAnExportThatWasSpoiledAfterItsProofIsNoticed(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		spoil func(path string) error
		part  string
	}{
		"a history that was lost":             {os.Remove, ".zip"},
		"a history that was cut":              {func(path string) error { return os.Truncate(path, 100) }, ".zip"},
		"a history of the same length":        {flip, ".zip"},
		"a manifest that was lost":            {os.Remove, "manifest.json"},
		"a manifest of the same length":       {flip, "manifest.json"},
		"a manifest that was written and cut": {func(path string) error { return os.Truncate(path, 10) }, "manifest.json"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			dir := r.onDisk()
			in, _ := r.exported()
			if out := do(r, r.boxes.VerifyExport, in); out.Problem != "" {
				t.Fatal(out.Problem)
			}
			for _, path := range objects(t, dir, row.part) {
				if err := row.spoil(path); err != nil {
					t.Fatal(err)
				}
			}
			fails(r, box.ClassFailedPrecondition, r.boxes.Delete, in)
			if r.phase() != box.PhaseRunning {
				t.Errorf("the provider says %s", r.phase())
			}
		})
	}
}

// flip changes one byte in place.
func flip(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	data[len(data)/2] ^= 1
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// A history is read whole once for its deletion, however large it is. That it
// is not read twice shows in what only a read would find: a byte that changed
// while the file's length and time did not.
func TestAProvenExportIsNotReadTwice(t *testing.T) {
	t.Parallel()
	silently := func(t *testing.T, dir string) {
		t.Helper()
		for _, path := range objects(t, dir, ".zip") {
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := flip(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, time.Time{}, before.ModTime()); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("by the process that proved it", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		dir := r.onDisk()
		in, _ := r.exported()
		do(r, r.boxes.VerifyExport, in)
		silently(t, dir)
		do(r, r.boxes.Delete, in)
	})
	t.Run("but by every other process", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		dir := r.onDisk()
		in, _ := r.exported()
		do(r, r.boxes.VerifyExport, in)
		silently(t, dir)
		other := &activities.Boxes{Provider: r.boxes.Provider, Store: r.store, Notify: r.boxes.Notify, Secret: r.boxes.Secret}
		fails(r, box.ClassFailedPrecondition, other.Delete, in)
	})
}

// The drain that comes before an export ends by itself: what was said since is
// found right before the destruction, whatever the export says.
func TestHistoryThatAppearedSinceTheExportIsNotDestroyed(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		r := newRig(t, &agentservertest.Options{Plain: plain})
		in, conversation := r.exported()
		r.append(conversation)
		if out := do(r, r.boxes.VerifyExport, in); !strings.Contains(out.Problem, "used after the export") {
			t.Errorf("plain %v: verify says %q", plain, out.Problem)
		}
		fails(r, box.ClassFailedPrecondition, r.boxes.Delete, in)
		if r.calls(fakebox.OpDelete) != 0 {
			t.Errorf("plain %v: the provider was told", plain)
		}
		in.Receipt = do(r, r.boxes.Export, activities.ExportInput{Target: in.Target, Previous: in.Receipt}).Receipt
		if out := do(r, r.boxes.VerifyExport, in); out.Problem != "" {
			t.Errorf("plain %v: %s", plain, out.Problem)
		}
		if !plain && r.open() {
			t.Error("the door is open before the destruction")
		}
		do(r, r.boxes.Delete, in)
		if r.phase() != box.PhaseGone {
			t.Errorf("plain %v: the provider says %s", plain, r.phase())
		}
	}
}

func TestABoxThatIsAwakeAndSilentIsNotDestroyed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in, _ := r.exported()
	r.server.Break(agentservertest.Faults{Dormant: true})
	fails(r, box.ClassUnavailable, r.boxes.VerifyExport, in)
	fails(r, box.ClassUnavailable, r.boxes.Delete, in)
	in.WithoutHistory = true // a person accepted the loss
	do(r, r.boxes.Delete, in)
	if r.phase() != box.PhaseGone {
		t.Errorf("the provider says %s", r.phase())
	}
}

func TestDeleteEndsWithProofAndOneTombstone(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in, _ := r.exported()
	do(r, r.boxes.Suspend, in.Target)
	looks := len(r.server.Paths())
	for _, step := range []string{"e1-s4", "e1-s4", "e1-s5"} { // repeated, and repeated by a later attempt
		in.Step = step
		if out := do(r, r.boxes.Delete, in); out.Observation.Phase != box.PhaseGone {
			t.Fatalf("the answer is %+v", out.Observation)
		}
	}
	if got := len(r.server.Paths()); got != looks {
		t.Errorf("a suspended box was looked into: %v", r.server.Paths()[looks:])
	}
	tombstones := slices.DeleteFunc(r.ledger(), func(e string) bool { return !strings.HasPrefix(e, "deleted/") })
	if !slices.Equal(tombstones, []string{"deleted/e1-deleted"}) {
		t.Errorf("tombstones %v", tombstones)
	}
	closed, entry, err := r.store.Closed(t.Context(), workspace)
	if !closed || err != nil || !strings.Contains(string(entry.Data), in.Receipt.SHA256) || !strings.Contains(string(entry.Data), `"by":"ana"`) {
		t.Errorf("closed %v, %v: %s", closed, err, entry.Data)
	}
	if _, err := r.store.Verify(t.Context(), workspace, in.Receipt); err != nil {
		t.Errorf("the history is not readable: %v", err)
	}
}

// Scenario 73 and 84: of all answers only a proven absence is a success.
func TestScenario73AndDeleteErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in, _ := r.exported()
	for _, class := range []box.Class{
		box.ClassUnauthorized, box.ClassExhausted, box.ClassInternal, box.ClassUnavailable, box.ClassNotFound, box.ClassDeadlineExceeded,
	} {
		r.cloud.Inject(fakebox.Fault{Op: fakebox.OpDelete, Class: class})
		fails(r, class, r.boxes.Delete, in)
		if closed, _, err := r.store.Closed(t.Context(), workspace); closed || err != nil {
			t.Fatalf("%s closed the workspace, %v", class, err)
		}
	}
	r.cloud.SwapAccount("another")
	if _, err := run(t.Context(), r, r.boxes.Delete, in); err == nil {
		t.Error("an absence in another account is a success")
	}
	r.cloud.SwapAccount("fakebox")
	r.cloud.Vanish(name)
	if out := do(r, r.boxes.Delete, in); out.Observation.Phase != box.PhaseGone {
		t.Errorf("the answer is %+v", out.Observation)
	}
}

// A box whose create never answered may exist all the same. The bubble's clock
// makes the second look free.
func TestABoxThatNeverWasConfirmedIsFound(t *testing.T) {
	t.Parallel()
	never := activities.DeleteInput{Target: activities.Target{Workspace: workspace, Step: "e1-s2"}, Spec: spec(), Epoch: 1, NeverReady: true, By: "ana"}
	for what, row := range map[string]struct {
		fault fakebox.Fault
		gone  bool // the box was there
	}{
		"it is listed":        {fakebox.Fault{Op: fakebox.OpCreate, Lost: true}, true},
		"it never was made":   {fakebox.Fault{Op: fakebox.OpCreate, Class: box.ClassUnavailable}, false},
		"the first list lags": {fakebox.Fault{Op: fakebox.OpCreate, Lost: true}, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRigAt(t, "http://127.0.0.1:1")
				if strings.Contains(what, "lags") {
					r.cloud.Inject(fakebox.Fault{Op: fakebox.OpList, Stale: true})
				}
				r.cloud.Inject(row.fault)
				fails(r, box.ClassUnavailable, r.boxes.Create, creating("e1-s1"))
				if _, was := r.cloud.Statement(name); was != row.gone {
					t.Fatalf("there is a box: %v", was)
				}
				out := do(r, r.boxes.Delete, never)
				if s, was := r.cloud.Statement(name); was && s.Phase != box.PhaseGone {
					t.Errorf("it is left behind: %s; the answer is %+v", s.Phase, out.Observation)
				}
				if closed, _, err := r.store.Closed(t.Context(), workspace); !closed || err != nil {
					t.Errorf("closed %v, %v", closed, err)
				}
			})
		})
	}
	t.Run("a provider that cannot list is no proof", func(t *testing.T) {
		t.Parallel()
		r := newRigAt(t, "http://127.0.0.1:1", func(c *box.Capabilities) { c.List = box.No })
		r.cloud.Inject(fakebox.Fault{Op: fakebox.OpCreate, Lost: true})
		fails(r, box.ClassUnavailable, r.boxes.Create, creating("e1-s1"))
		fails(r, box.ClassUnsupported, r.boxes.Delete, never)
		if closed, _, _ := r.store.Closed(t.Context(), workspace); closed {
			t.Error("the workspace was closed over a box that may live")
		}
	})
	t.Run("a list that fails is no proof", func(t *testing.T) {
		t.Parallel()
		r := newRigAt(t, "http://127.0.0.1:1")
		r.cloud.Inject(fakebox.Fault{Op: fakebox.OpList, Class: box.ClassUnauthorized})
		fails(r, box.ClassUnauthorized, r.boxes.Delete, never)
	})
}

// A long transfer tells how far it is, to the engine and to whoever listens.
func TestProgressIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for range 3 {
		r.write(agentservertest.Conversation{Events: events(2)})
	}
	var told counter
	last := exports.Progress{}
	r.boxes.Progress = func(of string, p exports.Progress) {
		if of != workspace || p.Done > p.Total {
			t.Errorf("progress of %s: %+v", of, p)
		}
		last = p
		told.add()
	}
	target := r.made("e1-s2")
	do(r, r.boxes.Export, activities.ExportInput{Target: target, Drained: true})
	if told.count() < 3 || last.Total != 3 || last.Done != 3 || r.beats.count() == 0 {
		t.Errorf("told %d times, last %+v, %d heartbeats", told.count(), last, r.beats.count())
	}
	if left := drainLeft(t, r.server.URL); left < 2*time.Minute {
		t.Errorf("the door was not kept closed: %s", left)
	}
}
