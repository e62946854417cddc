package local_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/local"
)

func step(ctx context.Context, n int) context.Context {
	return driver.WithFence(ctx, box.Fence{Began: 1, Step: n})
}

// lateWorker is another worker process: it makes one call of step 6 and tells
// the class of its answer.
func lateWorker(args []string) int {
	opts := local.Options{Dir: args[0], Command: []string{args[1], "fake-boxd"}}
	d, err := local.New(installation, opts)
	var ref box.Ref
	if err == nil {
		err = json.Unmarshal([]byte(args[3]), &ref)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	ctx := step(context.Background(), 6) //nolint:forbidigo // a process of its own
	fmt.Println("begins")
	switch args[2] {
	case "suspend":
		_, err = d.Suspend(ctx, ref)
	case "resume":
		_, err = d.Resume(ctx, ref, start())
	case "delete":
		_, err = d.Delete(ctx, ref)
	case "create":
		_, err = d.Create(ctx, driver.CreateRequest{Identity: identity("mine"), Start: start()})
	}
	fmt.Println("ended:", box.ClassOf(err))
	return 0
}

// A worker that is cut off in the middle of a call does not know that another
// one went on. When it comes back, what it was about to do must not happen.
func TestAWorkerThatComesBackLateDoesNothing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("seeing that a process stands still needs /proc")
	}
	for name, row := range map[string]struct {
		op   string
		then func(t *testing.T, d *local.Driver, ref box.Ref) // what the others do meanwhile
		want box.Phase
	}{
		"a suspend, after the box was woken again": {"suspend", func(t *testing.T, d *local.Driver, ref box.Ref) {
			t.Helper()
			must(t, "the same step elsewhere")(d.Suspend(step(t.Context(), 6), ref))
			must(t, "the next step")(d.Resume(step(t.Context(), 7), ref, start()))
		}, box.PhaseRunning},
		"a resume, after the box was suspended again": {"resume", func(t *testing.T, d *local.Driver, ref box.Ref) {
			t.Helper()
			must(t, "the next step")(d.Suspend(step(t.Context(), 7), ref))
		}, box.PhaseSuspended},
		"a delete, after it was taken back and the box woken": {"delete", func(t *testing.T, d *local.Driver, ref box.Ref) {
			t.Helper()
			must(t, "the next step")(d.Resume(step(t.Context(), 7), ref, start()))
		}, box.PhaseRunning},
		"a create, after the box was deleted": {"create", func(t *testing.T, d *local.Driver, ref box.Ref) {
			t.Helper()
			must(t, "the next step")(d.Delete(step(t.Context(), 7), ref))
		}, box.PhaseGone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, local.SuspendStop, "fake-boxd")
			d := r.open(t, installation)
			seen := must(t, "create")(d.Create(step(t.Context(), 5), driver.CreateRequest{Identity: identity("mine"), Start: start()}))
			reached(t, d, seen.Ref)

			unlock := r.hold(t, seen.Ref.Name)
			late := r.worker(t, row.op, seen.Ref)
			late.stop(t)
			unlock()
			row.then(t, d, seen.Ref)
			if answer := late.goOn(t); answer != "ended: Conflict" {
				t.Errorf("the late worker says %q", answer)
			}
			if got := phase(t, d, seen.Ref); got != row.want {
				t.Errorf("the box is %q, want %q", got, row.want)
			}
			if left := r.Left(t, seen.Ref); row.want == box.PhaseGone && len(left) > 0 {
				t.Errorf("it is back: %v", left)
			}
		})
	}
}

// hold takes a box's lock, as a third worker does.
func (r *rig) hold(t *testing.T, name string) (release func()) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(r.opts.Dir, "control", name+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { _ = file.Close() }
}

type worker struct {
	*exec.Cmd
	lines *bufio.Scanner
}

// worker starts another worker process and returns when it is in its call.
func (r *rig) worker(t *testing.T, op string, ref box.Ref) *worker {
	t.Helper()
	raw, err := json.Marshal(ref)
	if err != nil {
		t.Fatal(err)
	}
	self := r.opts.Command[0]
	w := &worker{Cmd: exec.CommandContext(t.Context(), self, "fake-worker", r.opts.Dir, self, op, string(raw))}
	out, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.Stderr = os.Stderr
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Process.Kill()
		_ = w.Wait()
	})
	w.lines = bufio.NewScanner(out)
	if got := w.line(); got != "begins" {
		t.Fatalf("the other worker says %q", got)
	}
	return w
}

func (w *worker) line() string {
	w.lines.Scan()
	return strings.TrimSpace(w.lines.Text())
}

func (w *worker) stop(t *testing.T) {
	t.Helper()
	if err := w.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await(t, "the other worker stands still", func() bool { return state(w.Process.Pid) == "T" })
}

func (w *worker) goOn(t *testing.T) string {
	t.Helper()
	if err := w.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	return w.line()
}

func TestADamagedTombIsNoPermission(t *testing.T) {
	t.Parallel()
	r := newRig(t, local.SuspendStop, "fake-boxd")
	d := r.open(t, installation)
	seen := must(t, "create")(d.Create(step(t.Context(), 5), driver.CreateRequest{Identity: identity("mine"), Start: start()}))
	must(t, "delete")(d.Delete(step(t.Context(), 6), seen.Ref))
	tomb := filepath.Join(r.opts.Dir, "fences", seen.Ref.Name+".json")
	if err := os.WriteFile(tomb, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := d.Create(step(t.Context(), 5), driver.CreateRequest{Identity: identity("mine"), Start: start()})
	if box.ClassOf(err) != box.ClassUnknown {
		t.Errorf("create after a damaged tomb: %v", err)
	}
	if left := r.Left(t, seen.Ref); len(left) > 0 {
		t.Errorf("it is back: %v", left)
	}
}
