//go:build linux

package local

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/openhands/boxkeeper/box"
)

func TestHandleIsOfOneProcessOnly(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	p, err := processOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	// The same pid with another start time is another process.
	other := p
	other.start += "1"
	if err := end(t.Context(), other, syscall.SIGKILL, forced); err != nil {
		t.Fatal(err)
	}
	if h, err := openProcess(other); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a handle %v of a process that is not there: %v", h, err)
	}
	if now, err := processOf(p.pid); err != nil || now.dead {
		t.Fatalf("a stranger was killed: %+v, %v", now, err)
	}
	if err := end(t.Context(), p, syscall.SIGKILL, forced); err != nil {
		t.Fatal(err)
	}
	<-waited
	if err := end(t.Context(), p, syscall.SIGKILL, forced); err != nil {
		t.Errorf("a process that has ended: %v", err)
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " S 10 20 30 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 4711 1 2 3"
	want := proc{pid: 7, ppid: 10, group: 30, start: "4711"}
	for _, command := range []string{"sh", "a b", ") R 1 2 3 (", "", "x)\n(y"} {
		got, err := parseStat(7, []byte("7 ("+command+")"+rest))
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", command, got, err)
		}
	}
	for _, text := range []string{"", "7", "7 (sh", "7 (sh) S 1", "7 (sh) S x 20 y" + rest[len(" S 10 20 30"):]} {
		if got, err := parseStat(7, []byte(text)); err == nil {
			t.Errorf("%q reads as %+v", text, got)
		}
	}
}

// The look at the mounts comes first; should one appear behind it, the removal
// itself must stop there.
func TestRemovalStopsAtAMount(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("making a bind mount needs root")
	}
	for _, kind := range []string{"directory", "file"} {
		trash, outside := t.TempDir(), t.TempDir()
		precious, source := filepath.Join(outside, "precious"), outside
		target := filepath.Join(trash, "box", "mounted")
		if err := os.WriteFile(precious, []byte("data"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(target, 0o700); err != nil {
			t.Fatal(err)
		}
		if kind == "file" {
			source, target = precious, filepath.Join(trash, "box", "file")
			if err := os.WriteFile(target, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.CommandContext(t.Context(), "mount", "--bind", source, target).CombinedOutput(); err != nil {
			t.Skipf("this machine does not let the test mount: %s", out)
		}
		err := removeTree(t.Context(), trash, "box")
		if box.ClassOf(err) != box.ClassFailedPrecondition {
			t.Errorf("removal over a mounted %s: %v", kind, err)
		}
		if out, err := exec.CommandContext(t.Context(), "umount", target).CombinedOutput(); err != nil {
			t.Fatalf("unmount: %s", out)
		}
		if err := removeTree(t.Context(), trash, "box"); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(filepath.Join(trash, "box")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
		}
		if raw, err := os.ReadFile(precious); err != nil || string(raw) != "data" {
			t.Errorf("the data outside: %q, %v", raw, err)
		}
	}
}
