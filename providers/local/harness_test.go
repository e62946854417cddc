package local_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/drivertest"
	"github.com/openhands/boxkeeper/providers/local"
)

const installation = "0a1b2c3d"

// rig is one directory with its drivers.
type rig struct {
	opts local.Options
}

func newRig(t *testing.T, kind local.SuspendKind, boxd string) *rig {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{opts: local.Options{
		Dir:         filepath.Join(t.TempDir(), "local boxes"), // a space must do no harm
		Command:     []string{self, boxd},
		Suspend:     kind,
		StopTimeout: 5 * time.Second,
	}}
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if runtime.GOOS != "linux" { // no /proc: only the driver finds processes
			for _, installation := range []string{installation, "ffee0011"} {
				d := r.open(t, installation)
				found, err := d.List(ctx, installation)
				for _, one := range found {
					_, deleted := d.Delete(ctx, one.Observation.Ref)
					err = errors.Join(err, deleted)
				}
				if err != nil {
					t.Logf("processes may be left: %v", err)
				}
			}
			return
		}
		for _, p := range r.processes(t, "") {
			_ = syscall.Kill(p, syscall.SIGKILL) // its marker says that it is this test's
		}
		await(t, "all processes of the test have ended", func() bool { return len(r.processes(t, "")) == 0 })
	})
	return r
}

func (r *rig) Driver(t *testing.T, installation string) driver.Driver {
	t.Helper()
	return r.open(t, installation)
}

func (r *rig) open(t *testing.T, installation string) *local.Driver {
	t.Helper()
	d, err := local.New(installation, r.opts)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (r *rig) Row() box.Capabilities {
	row := box.Capabilities{
		Driver: "local", Suspend: box.Yes, MemoryKept: box.No, SameIdentity: box.Yes,
		URLStable: box.No, KeyStable: box.Yes, LookingIsUse: box.No, List: box.Yes, Watch: box.Yes,
		ExportNeedsRunning: box.Yes, Fence: box.Yes, NativeIdle: box.No, NativeAdjust: box.No, Deepen: box.No, Adopt: box.Yes, Lead: box.LeadOurs,
		ResumeWait:   box.Span(time.Minute),
		SuspendProof: "no process of the box left, its directory there",
		DeleteProof:  "directory and processes gone, on the same machine and engine id",
	}
	if runtime.GOOS != "linux" {
		row.Watch = box.No
	}
	if r.opts.Suspend == local.SuspendFreeze {
		row.MemoryKept, row.Deepen = box.Yes, box.Yes
		row.SuspendProof = "every process of the box stopped, its directory there"
	}
	return row
}

func (r *rig) box(name string) string    { return filepath.Join(r.opts.Dir, "boxes", name) }
func (r *rig) record(name string) string { return filepath.Join(r.opts.Dir, "control", name+".json") }

func (r *rig) Plant(t *testing.T, name string) {
	t.Helper()
	if err := os.Mkdir(r.box(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.box(name), "theirs"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Puzzle makes the directory of a box that no record is of.
func (r *rig) Puzzle(t *testing.T, ref box.Ref) {
	t.Helper()
	if err := os.Mkdir(r.box(ref.Name), 0o700); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) Untouched(t *testing.T, name string) bool {
	t.Helper()
	entries, err := os.ReadDir(r.box(name))
	if err != nil || len(entries) != 1 {
		return false
	}
	raw, err := os.ReadFile(filepath.Join(r.box(name), "theirs"))
	return err == nil && string(raw) == "precious"
}

func (r *rig) Stray(t *testing.T) string {
	t.Helper()
	r.Plant(t, "an-old-session")
	return "an-old-session"
}

func (r *rig) Kill(t *testing.T, ref box.Ref) {
	t.Helper()
	pid, _ := r.process(t, ref.Name)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) Life(t *testing.T, ref box.Ref) string {
	t.Helper()
	pid, start := r.process(t, ref.Name)
	return fmt.Sprint(pid, "@", start)
}

func (r *rig) Left(t *testing.T, ref box.Ref) []string {
	t.Helper()
	var out []string
	for _, dir := range []string{"boxes", "control", "trash"} {
		found, err := filepath.Glob(filepath.Join(r.opts.Dir, dir, ref.Name+"*"))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	for _, pid := range r.processes(t, ref.Name) {
		out = append(out, "process "+strconv.Itoa(pid))
	}
	return out
}

// process reads who the record names as boxd.
func (r *rig) process(t *testing.T, name string) (pid int, start string) {
	t.Helper()
	var rec struct {
		Process struct {
			PID   int    `json:"pid"`
			Start string `json:"start"`
		} `json:"process"`
	}
	raw, err := os.ReadFile(r.record(name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &rec); err != nil || rec.Process.PID <= 1 {
		t.Fatalf("record %s: %v", raw, err)
	}
	return rec.Process.PID, rec.Process.Start
}

// edit changes fields of a record, as a crash or a forger would leave it.
func (r *rig) edit(t *testing.T, name string, change func(rec map[string]any)) {
	t.Helper()
	raw, err := os.ReadFile(r.record(name))
	if err != nil {
		t.Fatal(err)
	}
	rec := map[string]any{}
	if err := json.Unmarshal(raw, &rec); err != nil {
		t.Fatal(err)
	}
	change(rec)
	if raw, err = json.Marshal(rec); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.record(name), raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// processes finds, by its own means, the living processes that were started in
// a box of this rig, without a marker too; name "" means any.
func (r *rig) processes(t *testing.T, name string) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(r.opts.Dir)
	if err != nil {
		return nil
	}
	var out []int
	for _, path := range stats {
		env, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		args, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		at := []byte(filepath.Join(dir, "boxes", name))
		if err != nil || !bytes.Contains(args, at) && !bytes.Contains(env, append([]byte("HOME="), at...)) {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		if state(pid) != "Z" && state(pid) != "" {
			out = append(out, pid)
		}
	}
	return out
}

// state is the letter of a process, empty when there is none.
func state(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	return fields[0]
}

func identity(workspace string) box.Identity {
	return box.Identity{Installation: installation, Workspace: workspace, Epoch: 1}
}

func start() driver.Start { return driver.Start{SessionKey: "the-session-key"} }

func made(t *testing.T, d driver.Driver, workspace string) box.Ref {
	t.Helper()
	seen, err := d.Create(t.Context(), driver.CreateRequest{Identity: identity(workspace), Start: start()})
	if err != nil {
		t.Fatal(err)
	}
	return seen.Ref
}

func phase(t *testing.T, d driver.Driver, ref box.Ref) box.Phase {
	t.Helper()
	seen, err := d.Observe(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return seen.Phase
}

func must(t *testing.T, what string) func(box.Observation, error) box.Observation {
	t.Helper()
	return func(seen box.Observation, err error) box.Observation {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return seen
	}
}

func reached(t *testing.T, d driver.Driver, ref box.Ref) about {
	t.Helper()
	var url string
	await(t, "the box has an address", func() bool {
		at, err := d.Endpoint(t.Context(), ref)
		if err != nil && box.ClassOf(err) != box.ClassUnavailable {
			t.Fatal(err)
		}
		url = at.URL
		return err == nil
	})
	return ask(t, url, start().SessionKey.Reveal())
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not in time", what)
		}
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	kinds := []local.SuspendKind{local.SuspendStop}
	if runtime.GOOS == "linux" {
		kinds = append(kinds, local.SuspendFreeze)
	}
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			drivertest.RunConformance(t, func(t *testing.T) drivertest.Harness {
				t.Helper()
				return newRig(t, kind, "fake-boxd")
			})
		})
	}
}
