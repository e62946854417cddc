package local_test

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/local"
)

// deep is a frozen box and the processes that it consists of.
func deep(t *testing.T, workspace string) (r *rig, d *local.Driver, ref box.Ref, family []int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("freezing needs Linux")
	}
	r = newRig(t, local.SuspendFreeze, "fake-family")
	d = r.open(t, installation)
	ref = made(t, d, workspace)
	reached(t, d, ref)
	pid, _ := r.process(t, ref.Name)
	family = append(children(t, pid), pid)
	must(t, "suspend")(d.Suspend(t.Context(), ref))
	return r, d, ref, family
}

func ended(t *testing.T, family []int) {
	t.Helper()
	for _, pid := range family {
		if s := state(pid); s != "" && s != "Z" {
			t.Errorf("process %d is left: %s", pid, s)
		}
	}
}

func TestDeepenEndsTheWholeFamilyAndKeepsTheFiles(t *testing.T) {
	t.Parallel()
	r, d, ref, family := deep(t, "deep")
	kept := r.box(ref.Name) + "/work"
	if err := os.WriteFile(kept, []byte("hours of it"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := must(t, "observe")(d.Observe(t.Context(), ref))
	seen := must(t, "deepen")(d.Deepen(t.Context(), ref))
	if seen.MemoryKept != box.No || seen.Phase != box.PhaseSuspended || seen.Age < before.Age {
		t.Errorf("it is %+v, and was %+v: the suspend goes on", seen, before)
	}
	ended(t, family)
	if text, err := os.ReadFile(kept); err != nil || string(text) != "hours of it" {
		t.Errorf("the work is %q, %v", text, err)
	}
	must(t, "resume")(d.Resume(t.Context(), ref, start()))
	if pid, _ := r.process(t, ref.Name); pid == family[len(family)-1] {
		t.Error("the same process goes on")
	}
	reached(t, d, ref)
}

// A worker that ended between its record and the last kill leaves a box that is
// frozen, whose record says that it was to end.
func TestAnInterruptedDeepenIsFinishedOrForgotten(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(t *testing.T, d *local.Driver, ref box.Ref){
		"finished": func(t *testing.T, d *local.Driver, ref box.Ref) {
			t.Helper()
			if seen := must(t, "deepen")(d.Deepen(t.Context(), ref)); seen.MemoryKept != box.No {
				t.Errorf("memory kept: %s", seen.MemoryKept)
			}
		},
		"a resume starts it anew": func(t *testing.T, d *local.Driver, ref box.Ref) {
			t.Helper()
			must(t, "resume")(d.Resume(t.Context(), ref, start()))
			reached(t, d, ref)
		},
		"a delete takes all of it": func(t *testing.T, d *local.Driver, ref box.Ref) {
			t.Helper()
			must(t, "delete")(d.Delete(t.Context(), ref))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, d, ref, family := deep(t, "half")
			r.edit(t, ref.Name, func(rec map[string]any) { rec["kind"] = "stop" })
			if seen := must(t, "observe")(d.Observe(t.Context(), ref)); seen.MemoryKept != box.Yes {
				t.Fatalf("half way its memory is kept: %s", seen.MemoryKept)
			}
			then(t, d, ref)
			ended(t, family)
		})
	}
}

// Frozen processes that ended by themselves left nothing to give up.
func TestDeepenOfABoxWhoseFrozenProcessesEnded(t *testing.T) {
	t.Parallel()
	r, d, ref, family := deep(t, "killed")
	r.Kill(t, ref)
	for root := family[len(family)-1]; state(root) != "" && state(root) != "Z"; { // one that is ending is not frozen, so it is not suspended
		time.Sleep(time.Millisecond)
	}
	for range 2 {
		if seen := must(t, "deepen")(d.Deepen(t.Context(), ref)); seen.MemoryKept != box.No {
			t.Errorf("memory kept: %s", seen.MemoryKept)
		}
	}
	ended(t, family[len(family)-1:])
}
