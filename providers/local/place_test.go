package local_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/local"
)

func TestRemovedDirectoryIsLostAndNotReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	ref := made(t, d, "lost")
	end(t, r, ref)
	if err := os.RemoveAll(r.box(ref.Name)); err != nil {
		t.Fatal(err)
	}
	if got := phase(t, d, ref); got != box.PhaseGone {
		t.Errorf("the box is %s, want gone", got)
	}
	if _, err := d.Resume(t.Context(), ref, start()); box.ClassOf(err) != box.ClassNotFound {
		t.Errorf("resume: %v", err)
	}
	if _, err := d.Create(t.Context(), driver.CreateRequest{Identity: identity("lost"), Start: start()}); box.ClassOf(err) != box.ClassFailedPrecondition {
		t.Errorf("create: %v", err)
	}
	if _, err := os.Lstat(r.box(ref.Name)); err == nil {
		t.Error("an empty directory took the place of a lost one")
	}
	must(t, "delete")(d.Delete(t.Context(), ref))
}

func TestPlaceThatIsMovedMixedOrUnmountedProvesNothing(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		damage   func(t *testing.T, dir string)
		reopens  bool // as another place
		sentence string
	}{
		"boxes/ is not mounted": {func(t *testing.T, dir string) {
			t.Helper()
			aside(t, filepath.Join(dir, "boxes"))
			if err := os.Mkdir(filepath.Join(dir, "boxes"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, false, "mount or restore it"},
		"boxes/ is another engine's": {func(t *testing.T, dir string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, "boxes", ".engine-id"), []byte(strings.Repeat("ab", 16)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, false, "disagree"},
		"the id is lost": {func(t *testing.T, dir string) {
			t.Helper()
			aside(t, filepath.Join(dir, "engine-id"))
		}, false, "is missing but"},
		"the id is damaged": {func(t *testing.T, dir string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, "engine-id"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, false, "does not hold an id"},
		"the directory was emptied": {func(t *testing.T, dir string) {
			t.Helper()
			aside(t, dir)
		}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "", "fake-boxd")
			d := r.open(t, installation)
			ref := made(t, d, "place")
			must(t, "suspend")(d.Suspend(t.Context(), ref))
			row.damage(t, r.opts.Dir)
			if seen, err := d.Observe(t.Context(), ref); err == nil {
				t.Errorf("the box is %q", seen.Phase)
			}
			if _, err := d.Delete(t.Context(), ref); err == nil {
				t.Error("delete succeeded")
			}
			if found, err := d.List(t.Context(), installation); err == nil {
				t.Errorf("the list is %v", found)
			}
			again, err := local.New(installation, r.opts)
			if !row.reopens {
				if err == nil || !strings.Contains(err.Error(), row.sentence) {
					t.Errorf("opened again: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if seen, err := again.Observe(t.Context(), ref); err == nil {
				t.Errorf("in another place the box is %q", seen.Phase)
			}
		})
	}
}

func aside(t *testing.T, path string) {
	t.Helper()
	if err := os.Rename(path, path+".aside"); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedRecordIsAnErrorAndNeverAnAbsence(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty": "", "cut": `{"version":1,`, "newer": `{"version":2}`, "another's": `{"version":1,"identity":{"installation":"0a1b2c3d","workspace":"other","epoch":1}}`,
	} {
		r := newRig(t, "", "fake-boxd")
		d := r.open(t, installation)
		ref := made(t, d, "damaged")
		if err := os.WriteFile(r.record(ref.Name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for what, call := range map[string]func() error{
			"observe": func() error { _, err := d.Observe(t.Context(), ref); return err },
			"delete":  func() error { _, err := d.Delete(t.Context(), ref); return err },
			"resume":  func() error { _, err := d.Resume(t.Context(), ref, start()); return err },
			"list":    func() error { _, err := d.List(t.Context(), installation); return err },
		} {
			if err := call(); box.ClassOf(err) != box.ClassUnknown {
				t.Errorf("%s with a record that is %s: %v", what, name, err)
			}
		}
		if all := r.processes(t, ref.Name); len(all) != 1 {
			t.Errorf("%s: processes %v, want the one", name, all)
		}
	}
}
