package local_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/local"
)

func TestNewRefusesBadOptions(t *testing.T) {
	t.Parallel()
	good := newRig(t, "", "fake-boxd").opts
	for name, row := range map[string]struct {
		field        string
		installation string
		change       func(o *local.Options)
	}{
		"a relative directory":     {"dir", installation, func(o *local.Options) { o.Dir = "boxes" }},
		"no command":               {"command", installation, func(o *local.Options) { o.Command = nil }},
		"a relative command":       {"command", installation, func(o *local.Options) { o.Command = []string{"boxd"} }},
		"an unknown kind":          {"suspend", installation, func(o *local.Options) { o.Suspend = "sleep" }},
		"a negative start timeout": {"start_timeout", installation, func(o *local.Options) { o.StartTimeout = -1 }},
		"a negative stop timeout":  {"stop_timeout", installation, func(o *local.Options) { o.StopTimeout = -1 }},
		"a bad installation":       {"installation", "../../..", func(*local.Options) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := good
			row.change(&opts)
			_, err := local.New(row.installation, opts)
			if box.ClassOf(err) != box.ClassInvalid || !strings.HasPrefix(err.Error(), row.field+": ") {
				t.Errorf("error %v, want Invalid for %s", err, row.field)
			}
		})
	}
}

func TestBoxSeesItsOwnEnvironmentAndNothingOfTheWorker(t *testing.T) {
	r := newRig(t, "", "fake-boxd")
	r.opts.AgentServer = []string{"/usr/bin/agent", "--flag", "a b"}
	t.Setenv("WORKER_ONLY_SECRET", "must not be seen")
	d := r.open(t, installation)
	seen := must(t, "create")(d.Create(t.Context(), driver.CreateRequest{
		Identity: identity("env"),
		Start: driver.Start{
			Env:        map[string]string{"PLAIN": "a=b\nc", "LANG": "de_DE.UTF-8"},
			SecretEnv:  map[string]box.Secret{"TOKEN": "tok-1"},
			SessionKey: "the-session-key",
		},
	}))
	dir, err := filepath.EvalSymlinks(r.box(seen.Ref.Name))
	if err != nil {
		t.Fatal(err)
	}
	got := reached(t, d, seen.Ref)
	want := []string{
		"BOXKEEPER_BOX=" + seen.Ref.Name,
		"HOME=" + dir + "/home",
		"LANG=de_DE.UTF-8",
		"OH_SESSION_API_KEYS_0=the-session-key",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"PLAIN=a=b\nc",
		"TMPDIR=" + dir + "/tmp",
		"TOKEN=tok-1",
	}
	env := slices.DeleteFunc(got.Env, func(v string) bool {
		return strings.HasPrefix(v, "BOXKEEPER_ENGINE=") || strings.HasPrefix(v, "PWD=")
	})
	slices.Sort(env)
	if !slices.Equal(env, want) {
		t.Errorf("environment\n%q\nwant\n%q", env, want)
	}
	args := []string{"--root", dir, "--listen", "127.0.0.1:0", "--own-passes=false", "--", "/usr/bin/agent", "--flag", "a b"}
	if !slices.Equal(got.Args, args) || got.Dir != dir {
		t.Errorf("arguments %q in %s, want %q in %s", got.Args, got.Dir, args, dir)
	}
	// What we keep tells no secret, and only we can read it.
	for _, path := range []string{r.record(seen.Ref.Name), filepath.Join(dir, "run", "boxd.log")} {
		raw, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(raw), "tok-1") || strings.Contains(string(raw), "the-session-key") {
			t.Errorf("%s: %v, or it holds a secret", path, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, err, info.Mode())
		}
	}
}

func TestStartRefusesWhatItCannotMean(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	for field, s := range map[string]driver.Start{
		"env.HOME":                      {Env: map[string]string{"HOME": "/"}},
		"env.BOXKEEPER_BOX":             {Env: map[string]string{"BOXKEEPER_BOX": "x"}},
		"secrets.OH_SESSION_API_KEYS_3": {SecretEnv: map[string]box.Secret{"OH_SESSION_API_KEYS_3": "x"}},
		"env":                           {Env: map[string]string{"A=B": "x"}},
		"env.NUL":                       {Env: map[string]string{"NUL": "a\x00b"}},
		"env.TWICE":                     {Env: map[string]string{"TWICE": "a"}, SecretEnv: map[string]box.Secret{"TWICE": "b"}},
	} {
		_, err := d.Create(t.Context(), driver.CreateRequest{Identity: identity("bad"), Start: s})
		if box.ClassOf(err) != box.ClassInvalid || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("error %v, want Invalid for %s", err, field)
		}
	}
	if left := r.Left(t, box.Ref{Name: identity("bad").Name()}); len(left) > 0 {
		t.Errorf("a refused create left %v", left)
	}
}

func TestHostileNamesAreRefusedAndTouchNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	real := made(t, d, "real")
	for _, workspace := range []string{"../../etc", "a/b", "", "..", "A", "x\x00y", strings.Repeat("a", 41), "a\nb"} {
		if _, err := d.Create(t.Context(), driver.CreateRequest{Identity: identity(workspace), Start: start()}); err == nil {
			t.Errorf("a box was made for workspace %q", workspace)
		}
		ref := real
		ref.Name = identity(workspace).Name()
		ref.ID = ref.Name
		for what, call := range map[string]func() error{
			"observe": func() error { _, err := d.Observe(t.Context(), ref); return err },
			"suspend": func() error { _, err := d.Suspend(t.Context(), ref); return err },
			"delete":  func() error { _, err := d.Delete(t.Context(), ref); return err },
		} {
			if err := call(); box.ClassOf(err) != box.ClassFailedPrecondition {
				t.Errorf("%s of workspace %q: %v", what, workspace, err)
			}
		}
	}
	if got := phase(t, d, real); got != box.PhaseRunning {
		t.Errorf("the real box is %s", got)
	}
}

func TestAnotherWorkerFindsEverything(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-family")
	first := r.open(t, installation)
	running, suspended, killed := made(t, first, "running"), made(t, first, "suspended"), made(t, first, "killed")
	life := r.Life(t, running)
	must(t, "suspend")(first.Suspend(t.Context(), suspended))
	r.Kill(t, killed)

	second := r.open(t, installation)
	await(t, "the kill is seen", func() bool { return phase(t, second, killed) == box.PhaseFailed })
	found, err := second.List(t.Context(), installation)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]box.Phase{}
	for _, one := range found {
		got[one.Identity.Workspace] = one.Observation.Phase
	}
	for workspace, want := range map[string]box.Phase{"running": box.PhaseRunning, "suspended": box.PhaseSuspended, "killed": box.PhaseFailed} {
		if got[workspace] != want {
			t.Errorf("%s is %q, want %q", workspace, got[workspace], want)
		}
	}
	if r.Life(t, made(t, second, "running")) != life {
		t.Error("the second worker started the running box again")
	}
	for _, ref := range []box.Ref{running, suspended, killed} {
		must(t, "delete")(second.Delete(t.Context(), ref))
		if left := r.Left(t, ref); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

func TestSuspendEndsTheWholeFamily(t *testing.T) {
	t.Parallel()
	for _, boxd := range []string{"fake-family", "fake-stubborn"} {
		t.Run(boxd, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "", boxd)
			r.opts.StopTimeout = 300e6
			d := r.open(t, installation)
			ref := made(t, d, "family")
			reached(t, d, ref)
			pid, _ := r.process(t, ref.Name)
			family := append(children(t, pid), pid)
			if boxd == "fake-family" && len(family) != 3 {
				t.Fatalf("processes %v, want three", family)
			}
			seen := must(t, "suspend")(d.Suspend(t.Context(), ref))
			if seen.Phase != box.PhaseSuspended {
				t.Fatal(seen)
			}
			for _, pid := range family {
				if s := state(pid); s != "" && s != "Z" {
					t.Errorf("process %d of %v still runs: %s", pid, family, s)
				}
			}
		})
	}
}

// children returns the pids of the direct children, whatever their environment.
func children(t *testing.T, pid int) []int {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("reading a process's children needs Linux")
	}
	var out []int
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
		if fields[1] == jsonInt(pid) {
			out = append(out, atoi(t, strings.Split(path, "/")[2]))
		}
	}
	return out
}

func jsonInt(n int) string {
	raw, _ := json.Marshal(n)
	return string(raw)
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	var n int
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFreezeStopsTheWholeFamilyAndKeepsIt(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("freezing needs Linux")
	}
	r := newRig(t, local.SuspendFreeze, "fake-family")
	d := r.open(t, installation)
	ref := made(t, d, "frozen")
	reached(t, d, ref)
	pid, _ := r.process(t, ref.Name)
	family := append(children(t, pid), pid)
	seen := must(t, "suspend")(d.Suspend(t.Context(), ref))
	if seen.MemoryKept != box.Yes {
		t.Errorf("memory kept: %s", seen.MemoryKept)
	}
	for _, pid := range family {
		if s := state(pid); s != "T" {
			t.Errorf("process %d is %q, want stopped", pid, s)
		}
	}
	// Another worker, configured to stop, still thaws it.
	r.opts.Suspend = local.SuspendStop
	other := r.open(t, installation)
	must(t, "resume")(other.Resume(t.Context(), ref, start()))
	if now, _ := r.process(t, ref.Name); now != pid || reached(t, other, ref).Pid != pid {
		t.Errorf("process %d after the thaw, want %d", now, pid)
	}
	// And frozen processes can be deleted.
	r.opts.Suspend = local.SuspendFreeze
	must(t, "suspend")(r.open(t, installation).Suspend(t.Context(), ref))
	must(t, "delete")(other.Delete(t.Context(), ref))
	for _, pid := range family {
		if s := state(pid); s != "" && s != "Z" {
			t.Errorf("process %d is left: %s", pid, s)
		}
	}
}

func TestRecycledPidIsNotTouched(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	ref := made(t, d, "mine")
	other := made(t, d, "other")
	reached(t, d, ref)
	victim, _ := r.process(t, other.Name)
	mine, _ := r.process(t, ref.Name)
	// The record of "mine" now names the pid of a living stranger, with a start
	// time that the stranger does not have.
	if err := syscall.Kill(mine, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.edit(t, ref.Name, func(rec map[string]any) {
		p, ok := rec["process"].(map[string]any)
		if !ok {
			t.Fatal("no process")
		}
		p["pid"] = victim
	})
	if got := phase(t, d, ref); got != box.PhaseFailed {
		t.Errorf("a box whose pid was used again is %s", got)
	}
	must(t, "suspend")(d.Suspend(t.Context(), ref))
	must(t, "resume")(d.Resume(t.Context(), ref, start()))
	r.edit(t, ref.Name, func(rec map[string]any) {
		p, ok := rec["process"].(map[string]any)
		if !ok {
			t.Fatal("no process")
		}
		p["boot"] = "another-boot"
	})
	must(t, "delete")(d.Delete(t.Context(), ref))
	if got := phase(t, d, other); got != box.PhaseRunning {
		t.Errorf("the stranger is %s", got)
	}
	if s := state(victim); s == "" || s == "Z" || s == "T" {
		t.Errorf("the stranger's process is %q", s)
	}
	if left := r.Left(t, ref); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestProgramThatIsMissingOrEndsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-exit")
	d := r.open(t, installation)
	ref := made(t, d, "exit")
	var seen box.Observation
	await(t, "the end is seen", func() bool {
		seen = must(t, "observe")(d.Observe(t.Context(), ref))
		return seen.Phase == box.PhaseFailed
	})
	if !strings.Contains(seen.Evidence, "exit status 7") {
		t.Errorf("evidence %q does not say how it ended", seen.Evidence)
	}
	r.opts.Command = []string{filepath.Join(r.opts.Dir, "no-such-program")}
	missing := r.open(t, installation)
	_, err := missing.Create(t.Context(), driver.CreateRequest{Identity: identity("missing"), Start: start()})
	if box.ClassOf(err) != box.ClassFailedPrecondition || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("error %v", err)
	}
	// Nothing is lost: with the program there, the same call goes on.
	whole := r
	whole.opts.Command = newRig(t, "", "fake-boxd").opts.Command
	d = whole.open(t, installation)
	reached(t, d, made(t, d, "missing"))
}

// A reading mixes nothing of before and after: what we do to a box ourselves
// never looks like a failure.
func TestReadersNeverTakeOurOwnCallsForAFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	ref := made(t, d, "read")
	reader := r.open(t, installation)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			seen, err := reader.Observe(t.Context(), ref)
			if err != nil || seen.Phase == box.PhaseFailed || seen.Phase == box.PhaseGone || seen.Phase == box.PhaseUnknown {
				t.Errorf("seen as %q (%s), %v", seen.Phase, seen.Evidence, err)
				return
			}
		}
	}()
	for range 8 {
		must(t, "suspend")(d.Suspend(t.Context(), ref))
		must(t, "resume")(d.Resume(t.Context(), ref, start()))
	}
	close(stop)
	<-done
}
