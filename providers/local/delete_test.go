package local_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/openhands/boxkeeper/box"
)

func sendSignal(t *testing.T, pid int, name string) {
	t.Helper()
	sig := map[string]syscall.Signal{"STOP": syscall.SIGSTOP, "KILL": syscall.SIGKILL}[name]
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
	if name == "STOP" {
		await(t, "the process is stopped", func() bool { return state(pid) == "T" })
	}
}

func TestDeleteFollowsNoLink(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	ref := made(t, d, "links")
	outside := t.TempDir()
	precious := filepath.Join(outside, "precious")
	if err := os.WriteFile(precious, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	inside := r.box(ref.Name)
	for link, to := range map[string]string{
		"to-dir": outside, "to-file": precious, "home/up": "../../..", "loop": "loop", "dangling": "/nowhere",
	} {
		if err := os.Symlink(to, filepath.Join(inside, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(precious, filepath.Join(inside, "hard")); err != nil {
		t.Fatal(err)
	}
	must(t, "delete")(d.Delete(t.Context(), ref))
	if left := r.Left(t, ref); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if raw, err := os.ReadFile(precious); err != nil || string(raw) != "data" {
		t.Errorf("the data outside: %q, %v", raw, err)
	}
}

func TestDeleteRemovesWhatIsHardToRemove(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	ref := made(t, d, "hard")
	at := filepath.Join(r.box(ref.Name), "home")
	for _, name := range []string{"-rf", "a\nb", "\xff\xfe", "sp ace", strings.Repeat("n", 255), "*"} {
		if err := os.Mkdir(filepath.Join(at, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, name, name), nil, 0o000); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(at, name), 0o000); err != nil {
			t.Fatal(err)
		}
	}
	// Deeper than any path may be long, and than descriptors should be held.
	const depth = 700
	root, err := os.OpenRoot(at)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := root.Mkdir("deeper", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := root.OpenRoot("deeper")
		if err != nil {
			t.Fatal(err)
		}
		if err := root.Close(); err != nil {
			t.Fatal(err)
		}
		root = next
	}
	if err := root.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 1500 { // more than one reading of a directory
		if err := os.WriteFile(filepath.Join(at, fmt.Sprint("file-", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(at, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "delete")(d.Delete(t.Context(), ref))
	if left := r.Left(t, ref); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestDeleteRefusesAMountAndTouchesNothing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("making a bind mount needs Linux and root")
	}
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	ref := made(t, d, "mount")
	outside := t.TempDir() // the same filesystem: its device number tells nothing
	precious := filepath.Join(outside, "precious")
	if err := os.WriteFile(precious, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(r.box(ref.Name), "home", "with space")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mount", "--bind", outside, target).CombinedOutput(); err != nil {
		t.Skipf("this machine does not let the test mount: %s", out)
	}
	unmounted := false
	unmount := func() {
		if out, err := exec.Command("umount", "-l", target).CombinedOutput(); err != nil && !unmounted { //nolint:noctx // also at the end of the test
			t.Errorf("unmount: %s", out)
		}
		unmounted = true
	}
	t.Cleanup(func() {
		if !unmounted {
			unmount()
		}
	})
	pid := reached(t, d, ref).Pid
	_, err := d.Delete(t.Context(), ref)
	if box.ClassOf(err) != box.ClassFailedPrecondition || !strings.Contains(err.Error(), "with space") {
		t.Errorf("delete over a mount: %v", err)
	}
	if raw, err := os.ReadFile(precious); err != nil || string(raw) != "data" {
		t.Fatalf("the data outside: %q, %v", raw, err)
	}
	if now := reached(t, d, ref).Pid; now != pid {
		t.Error("a refused delete ended the box")
	}
	unmount()
	must(t, "delete")(d.Delete(t.Context(), ref))
	if raw, err := os.ReadFile(precious); err != nil || string(raw) != "data" {
		t.Fatalf("the data outside: %q, %v", raw, err)
	}
}

// What lies in a box's directory is the box's: links there must not lead our
// own writes and reads out of it.
func TestHostileContentLeadsNowhere(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	precious := filepath.Join(outside, "address")
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"run is a link out": func(t *testing.T, dir string) {
			t.Helper()
			replace(t, filepath.Join(dir, "run"), outside)
		},
		"the log is a link out": func(t *testing.T, dir string) {
			t.Helper()
			replace(t, filepath.Join(dir, "run", "boxd.log"), precious)
		},
		"the log is a pipe": func(t *testing.T, dir string) {
			t.Helper()
			path := filepath.Join(dir, "run", "boxd.log")
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if err := os.WriteFile(precious, []byte("data"), 0o600); err != nil {
			t.Fatal(err)
		}
		r := newRig(t, "", "fake-boxd")
		d := r.open(t, installation)
		ref := made(t, d, "hostile")
		reached(t, d, ref)
		must(t, "suspend")(d.Suspend(t.Context(), ref))
		spoil(t, r.box(ref.Name))
		if _, err := d.Resume(t.Context(), ref, start()); box.ClassOf(err) != box.ClassFailedPrecondition {
			t.Errorf("%s: resume: %v", name, err)
		}
		if raw, err := os.ReadFile(precious); err != nil || string(raw) != "data" {
			t.Errorf("%s: the data outside: %q, %v", name, raw, err)
		}
		must(t, "delete")(d.Delete(t.Context(), ref))
		if raw, err := os.ReadFile(precious); err != nil || string(raw) != "data" {
			t.Errorf("%s: the data outside after delete: %q, %v", name, raw, err)
		}
	}
}

func replace(t *testing.T, path, to string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func TestAddressIsBelievedOnlyOnThisMachine(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	ref := made(t, d, "address")
	reached(t, d, ref)
	path := filepath.Join(r.box(ref.Name), "run", "address")
	for _, text := range []string{
		"", "http://example.com:80", "http://127.0.0.1:80@example.com:80", "http://127.0.0.1", "http://127.0.0.1:0",
		"https://127.0.0.1:80", "http://10.0.0.1:80", "http://127.0.0.1:80/path", "http://127.0.0.1:99999", strings.Repeat("x", 100000),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if at, err := d.Endpoint(t.Context(), ref); box.ClassOf(err) != box.ClassUnknown {
			t.Errorf("%.40q gives %q, %v", text, at.URL, err)
		}
	}
	if err := os.WriteFile(path, []byte("http://127.0.0.1:8080\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if at, err := d.Endpoint(t.Context(), ref); err != nil || at.URL != "http://127.0.0.1:8080" || at.SessionKey != "" {
		t.Errorf("endpoint %+v, %v", at, err)
	}
}
