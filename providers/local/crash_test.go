package local_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/local"
)

// A worker that was killed leaves exactly the files and processes that were
// there; each case builds that state and lets a new worker go on.
func TestCrashInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	forget := func(keys ...string) func(map[string]any) {
		return func(rec map[string]any) {
			for _, key := range keys {
				delete(rec, key)
			}
		}
	}
	for name, row := range map[string]struct {
		crash func(t *testing.T, r *rig, ref box.Ref) // from a running box
		found box.Phase
		keeps bool // the process that runs is taken over
	}{
		"create: after the record": {
			func(t *testing.T, r *rig, ref box.Ref) {
				t.Helper()
				end(t, r, ref)
				r.edit(t, ref.Name, forget("made", "process", "started", "started_at"))
				if err := os.RemoveAll(r.box(ref.Name)); err != nil {
					t.Fatal(err)
				}
			}, box.PhaseFailed, false,
		},
		"create: after the directory": {
			func(t *testing.T, r *rig, ref box.Ref) {
				t.Helper()
				end(t, r, ref)
				r.edit(t, ref.Name, forget("made", "process", "started", "started_at"))
			}, box.PhaseFailed, false,
		},
		"create: before the start": {
			func(t *testing.T, r *rig, ref box.Ref) {
				t.Helper()
				end(t, r, ref)
				r.edit(t, ref.Name, forget("process", "started", "started_at"))
			}, box.PhaseFailed, false,
		},
		"create: after the start": {
			func(t *testing.T, r *rig, ref box.Ref) {
				t.Helper()
				r.edit(t, ref.Name, forget("process", "started", "started_at"))
			}, box.PhaseRunning, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if row.keeps && runtime.GOOS != "linux" {
				t.Skip("finding an unrecorded process needs Linux")
			}
			r := newRig(t, "", "fake-boxd")
			first := r.open(t, installation)
			ref := made(t, first, "crash")
			pid := reached(t, first, ref).Pid
			row.crash(t, r, ref)

			second := r.open(t, installation)
			if got := phase(t, second, ref); got != row.found {
				t.Errorf("found as %s, want %s", got, row.found)
			}
			if again := made(t, second, "crash"); again != ref {
				t.Errorf("create answered %+v, want %+v", again, ref)
			}
			if now := reached(t, second, ref).Pid; (now == pid) != row.keeps {
				t.Errorf("process %d, before the crash %d; taken over: want %t", now, pid, row.keeps)
			}
			if all := r.processes(t, ref.Name); len(all) != 1 {
				t.Errorf("processes %v, want one", all)
			}
			must(t, "delete")(second.Delete(t.Context(), ref))
			if left := r.Left(t, ref); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// end kills boxd and waits until it is gone.
func end(t *testing.T, r *rig, ref box.Ref) {
	t.Helper()
	pid, _ := r.process(t, ref.Name)
	r.Kill(t, ref)
	await(t, "boxd has ended", func() bool { return state(pid) == "" || state(pid) == "Z" })
}

func TestCrashInTheMiddleOfASuspend(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	ref := made(t, d, "suspend")
	pid := reached(t, d, ref).Pid
	intend := func(rec map[string]any) { rec["intent"], rec["kind"] = "suspend", "stop" }

	// The intent was written and nothing done: still awake, and not proven.
	r.edit(t, ref.Name, intend)
	if got := phase(t, d, ref); got != box.PhaseRunning {
		t.Errorf("the box is %s, want running", got)
	}
	// A resume may not trust a process that was told to end.
	must(t, "resume")(d.Resume(t.Context(), ref, start()))
	if now := reached(t, d, ref).Pid; now == pid {
		t.Error("the resume kept a process that a suspend was ending")
	}
	// The process ended and the outcome was not written.
	r.edit(t, ref.Name, intend)
	end(t, r, ref)
	seen := must(t, "suspend")(r.open(t, installation).Suspend(t.Context(), ref))
	if seen.Phase != box.PhaseSuspended {
		t.Errorf("the box is %s", seen.Phase)
	}
}

func TestCrashInTheMiddleOfAResume(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("finding an unrecorded process needs Linux")
	}
	r := newRig(t, "", "fake-boxd")
	ref := made(t, r.open(t, installation), "resume")
	// Started, and not recorded.
	pid := reached(t, r.open(t, installation), ref).Pid
	r.edit(t, ref.Name, func(rec map[string]any) { delete(rec, "process") })
	second := r.open(t, installation)
	must(t, "resume")(second.Resume(t.Context(), ref, start()))
	if now, _ := r.process(t, ref.Name); now != pid {
		t.Errorf("process %d is recorded, %d runs", now, pid)
	}
	// Intended, and not started.
	end(t, r, ref)
	r.edit(t, ref.Name, func(rec map[string]any) { delete(rec, "process") })
	if got := phase(t, second, ref); got != box.PhaseFailed {
		t.Errorf("the box is %s, want failed", got)
	}
	must(t, "resume")(second.Resume(t.Context(), ref, start()))
	reached(t, second, ref)
	if all := r.processes(t, ref.Name); len(all) != 1 {
		t.Errorf("processes %v, want one", all)
	}
}

func TestSuspendThatIsGivenUpCanBeRepeated(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-stubborn")
	d := r.open(t, installation)
	ref := made(t, d, "given-up")
	reached(t, d, ref)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := d.Suspend(ctx, ref)
	if box.ClassOf(err) != box.ClassDeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("suspend: %v", err)
	}
	if took := time.Since(began); took > r.opts.StopTimeout {
		t.Errorf("it went on for %s after the caller gave up", took)
	}
	if got := phase(t, d, ref); got != box.PhaseRunning {
		t.Errorf("a box whose suspend was given up is %s", got)
	}
	r.opts.StopTimeout = 100 * time.Millisecond
	must(t, "suspend")(r.open(t, installation).Suspend(t.Context(), ref))
}

func TestFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("making a small filesystem needs Linux and root")
	}
	r := newRig(t, "", "fake-boxd")
	if err := os.Mkdir(r.opts.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", r.opts.Dir).CombinedOutput(); err != nil {
		t.Skipf("this machine does not let the test mount: %s", out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", r.opts.Dir).CombinedOutput(); err != nil { //nolint:noctx // at the end of the test
			t.Errorf("unmount: %s", out)
		}
	})
	d := r.open(t, installation)
	there := made(t, d, "there")
	reached(t, d, there)
	fill := filepath.Join(r.opts.Dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	_, err := d.Create(t.Context(), driver.CreateRequest{Identity: identity("full"), Start: start()})
	if box.ClassOf(err) != box.ClassExhausted {
		t.Errorf("create on a full disk: %v", err)
	}
	if _, err := d.Suspend(t.Context(), there); box.ClassOf(err) != box.ClassExhausted {
		t.Errorf("suspend on a full disk: %v", err)
	}
	if got := phase(t, d, there); got != box.PhaseRunning {
		t.Errorf("the box is %s", got)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	must(t, "suspend")(d.Suspend(t.Context(), there))
	reached(t, d, made(t, d, "full"))
}

func TestHalfFrozenBoxIsNotSuspended(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("freezing needs Linux")
	}
	r := newRig(t, local.SuspendFreeze, "fake-family")
	d := r.open(t, installation)
	ref := made(t, d, "half")
	pid := reached(t, d, ref).Pid
	family := children(t, pid)
	r.edit(t, ref.Name, func(rec map[string]any) { rec["intent"], rec["kind"] = "suspend", "freeze" })
	sendSignal(t, family[0], "STOP")
	if got := phase(t, d, ref); got != box.PhaseRunning {
		t.Errorf("a half frozen box is %s", got)
	}
	must(t, "suspend")(d.Suspend(t.Context(), ref))
	must(t, "resume")(d.Resume(t.Context(), ref, start()))
	if now := reached(t, d, ref).Pid; now != pid {
		t.Errorf("process %d, want %d", now, pid)
	}
	await(t, "all run", func() bool { return state(family[0]) != "T" && state(family[1]) != "T" })
	// Frozen processes that were killed leave a suspended box without memory.
	must(t, "suspend")(d.Suspend(t.Context(), ref))
	for _, pid := range append(family, pid) {
		sendSignal(t, pid, "KILL")
	}
	await(t, "the loss of memory is seen", func() bool {
		seen := must(t, "observe")(d.Observe(t.Context(), ref))
		return seen.Phase == box.PhaseSuspended && seen.MemoryKept == box.No
	})
	must(t, "resume")(d.Resume(t.Context(), ref, start()))
	reached(t, d, ref)
}

func TestCrashInTheMiddleOfADelete(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	ref := made(t, d, "delete")
	end(t, r, ref)
	r.edit(t, ref.Name, func(rec map[string]any) { rec["intent"] = "delete" })
	if err := os.Rename(r.box(ref.Name), filepath.Join(r.opts.Dir, "trash", ref.Name)); err != nil {
		t.Fatal(err)
	}
	// The directory is out of sight and not yet gone.
	if got := phase(t, d, ref); got != box.PhaseFailed {
		t.Errorf("a half deleted box is %s", got)
	}
	for what, call := range map[string]func() error{
		"suspend": func() error { _, err := d.Suspend(t.Context(), ref); return err },
		"resume":  func() error { _, err := d.Resume(t.Context(), ref, start()); return err },
	} {
		if err := call(); box.ClassOf(err) != box.ClassFailedPrecondition {
			t.Errorf("%s of a half deleted box: %v", what, err)
		}
	}
	_, err := d.Create(t.Context(), driver.CreateRequest{Identity: identity("delete"), Start: start()})
	if box.ClassOf(err) != box.ClassConflict {
		t.Errorf("create over a half deleted box: %v", err)
	}
	must(t, "delete")(r.open(t, installation).Delete(t.Context(), ref))
	if left := r.Left(t, ref); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
