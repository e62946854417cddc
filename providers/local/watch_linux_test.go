package local_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/local"
)

// watcher runs Watch until the test or stop ends.
type watcher struct {
	told chan driver.Listed
	stop func() error
}

func watch(t *testing.T, d *local.Driver) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{told: make(chan driver.Listed, 1000)}
	done := make(chan error, 1)
	go func() { done <- d.Watch(ctx, func(one driver.Listed) { w.told <- one }) }()
	w.stop = func() error { cancel(); return <-done }
	t.Cleanup(func() { cancel() })
	return w
}

func (w *watcher) next(t *testing.T) driver.Listed {
	t.Helper()
	select {
	case one := <-w.told:
		return one
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was told")
	}
	return driver.Listed{}
}

func TestKillIsNoticedAtOnceByEveryWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	maker, other := r.open(t, installation), r.open(t, installation)
	here, there := watch(t, maker), watch(t, other)
	ref := made(t, maker, "killed") // made after both began to watch
	reached(t, maker, ref)
	began := time.Now()
	r.Kill(t, ref)
	one, same := here.next(t), there.next(t)
	// Milliseconds, in truth; the promise is five seconds, on a busy machine too.
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("noticed after %s", took)
	}
	for _, l := range []driver.Listed{one, same} {
		if l.Identity != identity("killed") || l.Observation.Phase != box.PhaseFailed || l.Observation.Ref != ref {
			t.Errorf("told %+v", l)
		}
	}
	if !strings.Contains(one.Observation.Evidence, "signal: killed") {
		t.Errorf("the parent does not say why: %q", one.Observation.Evidence)
	}
	if err := here.stop(); err != nil {
		t.Error(err)
	}
	// A worker that comes later hears of it too, and then of the next end.
	late := watch(t, r.open(t, installation))
	if l := late.next(t); l.Observation.Ref != ref {
		t.Errorf("told %+v", l)
	}
	must(t, "resume")(other.Resume(t.Context(), ref, start()))
	r.Kill(t, ref)
	if l := late.next(t); l.Observation.Phase != box.PhaseFailed {
		t.Errorf("told %+v", l)
	}
}

func TestWatchTellsOfLostMemoryAndOfARemovedDirectory(t *testing.T) {
	t.Parallel()
	r := newRig(t, local.SuspendFreeze, "fake-boxd")
	d := r.open(t, installation)
	w := watch(t, d)
	frozen, removed := made(t, d, "frozen"), made(t, d, "removed")
	must(t, "suspend")(d.Suspend(t.Context(), frozen))
	r.Kill(t, frozen)
	if l := w.next(t); l.Observation.Ref != frozen || l.Observation.Phase != box.PhaseSuspended || l.Observation.MemoryKept != box.No {
		t.Errorf("told %+v", l)
	}
	end(t, r, removed)
	if l := w.next(t); l.Observation.Ref != removed || l.Observation.Phase != box.PhaseFailed {
		t.Errorf("told %+v", l)
	}
	if err := os.RemoveAll(r.box(removed.Name)); err != nil {
		t.Fatal(err)
	}
	if l := w.next(t); l.Observation.Ref != removed || l.Observation.Phase != box.PhaseGone {
		t.Errorf("told %+v", l)
	}
}

func TestWatchEndsWithAnErrorWhenItsPlaceMoves(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	done := make(chan error, 1)
	ready := make(chan struct{})
	ref := made(t, d, "place")
	end(t, r, ref)
	go func() { done <- d.Watch(t.Context(), func(driver.Listed) { close(ready) }) }()
	<-ready
	aside(t, filepath.Join(r.opts.Dir, "control"))
	if err := <-done; box.ClassOf(err) != box.ClassUnknown {
		t.Errorf("watch ended with %v", err)
	}
}

//nolint:paralleltest // it counts the descriptors of the process
func TestManyBoxesAreWatchedAndLeaveNoDescriptorOpen(t *testing.T) {
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	var refs []box.Ref
	for _, workspace := range []string{"a", "b", "c", "d", "e"} {
		refs = append(refs, made(t, d, workspace))
	}
	before := open()
	for range 5 {
		w := watch(t, d)
		must(t, "suspend")(d.Suspend(t.Context(), refs[0]))
		must(t, "resume")(d.Resume(t.Context(), refs[0], start()))
		if err := w.stop(); err != nil {
			t.Fatal(err)
		}
		if len(w.told) != 0 {
			t.Fatalf("told %+v of our own calls", <-w.told)
		}
	}
	await(t, "descriptors are closed", func() bool { return open() <= before })
}
