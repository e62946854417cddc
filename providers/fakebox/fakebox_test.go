package fakebox_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/drivertest"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

const installation = "0a1b2c3d"

type harness struct {
	cloud *fakebox.Cloud
	row   box.Capabilities
}

func (h harness) Driver(_ *testing.T, installation string) driver.Driver {
	return h.cloud.Driver(installation)
}

func (h harness) Row() box.Capabilities                { return h.row }
func (h harness) Plant(_ *testing.T, name string)      { h.cloud.Plant(name) }
func (h harness) Stray(*testing.T) string              { h.cloud.Plant("stray"); return h.cloud.ID("stray") }
func (h harness) Kill(_ *testing.T, ref box.Ref)       { h.cloud.Kill(ref.Name, "killed") }
func (h harness) statement(n string) fakebox.Statement { s, _ := h.cloud.Statement(n); return s }

func (h harness) Untouched(_ *testing.T, name string) bool {
	s := h.statement(name)
	return s.Foreign && s.Phase == box.PhaseRunning && s.Starts == 1 && s.Wakes == 0
}

func (h harness) Life(_ *testing.T, ref box.Ref) string {
	return strconv.Itoa(h.statement(ref.Name).Starts)
}

func (h harness) Move(*testing.T) (back func()) {
	h.cloud.SwapAccount("another")
	return func() { h.cloud.SwapAccount("fakebox") }
}

func (h harness) Left(_ *testing.T, ref box.Ref) []string {
	if s := h.statement(ref.Name); s.Phase != box.PhaseGone {
		return []string{string(s.Phase)}
	}
	return nil
}

// rows are the kinds of provider that the fake imitates.
func rows() map[string]box.Capabilities {
	stop := fakebox.DefaultRow()
	freeze := stop
	freeze.MemoryKept = box.Yes
	ladder := freeze
	ladder.Deepen = box.Yes
	moving := stop
	moving.SameIdentity, moving.URLStable, moving.KeyStable = box.No, box.No, box.No
	rotating := freeze
	rotating.KeyStable, rotating.LookingIsUse = box.No, box.Yes
	bare := stop
	bare.Suspend, bare.List, bare.Watch = box.No, box.No, box.No
	native := stop
	native.NativeIdle, native.Lead = box.Yes, box.LeadProvider
	net := stop
	net.NativeIdle, net.NativeAdjust, net.NativeIdleMost = box.Yes, box.Yes, box.Span(45*time.Minute)
	return map[string]box.Capabilities{
		"stops": stop, "freezes": freeze, "freezes, then stops": ladder, "changes identity": moving,
		"rotates keys": rotating, "claims nothing": bare, "suspends by itself": native, "takes new timers": net,
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, row := range rows() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.RunConformance(t, func(*testing.T) drivertest.Harness {
				return harness{cloud: fakebox.New(&fakebox.Options{Row: row, NativeIdle: time.Hour}), row: row}
			})
		})
	}
}

func made(t *testing.T, d driver.Driver, workspace string) box.Ref {
	t.Helper()
	seen, err := d.Create(t.Context(), driver.CreateRequest{Identity: box.Identity{Installation: installation, Workspace: workspace, Epoch: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return seen.Ref
}

func TestBillFollowsTheClockAndEndsWithTheBox(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(nil)
	d := cloud.Driver(installation)
	ref := made(t, d, "bill")
	cloud.Advance(10 * time.Minute)
	for range 3 { // repeated calls are not billed twice
		if _, err := d.Suspend(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	cloud.Advance(24 * time.Hour)
	if _, err := d.Resume(t.Context(), ref, driver.Start{}); err != nil {
		t.Fatal(err)
	}
	cloud.Advance(time.Minute)
	if _, err := d.Delete(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	cloud.Advance(time.Hour)
	got, ok := cloud.Statement(ref.Name)
	want := fakebox.Statement{Phase: box.PhaseGone, Awake: 11 * time.Minute, Suspended: 24 * time.Hour, Wakes: 1, Starts: 2}
	if !ok || got != want {
		t.Errorf("statement %+v, want %+v", got, want)
	}
}

func TestSuspendsAndDestroysByItselfAtTheTimeItSays(t *testing.T) {
	t.Parallel()
	row := fakebox.DefaultRow()
	row.NativeIdle, row.PausedLife = box.Yes, box.Span(48*time.Hour)
	cloud := fakebox.New(&fakebox.Options{Row: row, NativeIdle: 20 * time.Minute})
	ref := made(t, cloud.Driver(installation), "native")
	cloud.Advance(15 * time.Minute)
	cloud.Use(ref.Name)
	cloud.Advance(19 * time.Minute)
	if s, _ := cloud.Statement(ref.Name); s.Phase != box.PhaseRunning {
		t.Fatalf("%s before the idle time is over", s.Phase)
	}
	// One step over both walls: each happens at its own time.
	cloud.Advance(100 * time.Hour)
	got, _ := cloud.Statement(ref.Name)
	want := fakebox.Statement{Phase: box.PhaseGone, Awake: 35 * time.Minute, Suspended: 48 * time.Hour, Starts: 1}
	if got != want {
		t.Errorf("statement %+v, want %+v", got, want)
	}
}

func TestLongestRunSuspends(t *testing.T) {
	t.Parallel()
	row := fakebox.DefaultRow()
	row.MaxRun = box.Span(12 * time.Hour)
	cloud := fakebox.New(&fakebox.Options{Row: row})
	ref := made(t, cloud.Driver(installation), "wall")
	cloud.Advance(12*time.Hour - 1)
	if s, _ := cloud.Statement(ref.Name); s.Phase != box.PhaseRunning {
		t.Fatalf("%s before the wall", s.Phase)
	}
	cloud.Advance(1)
	if s, _ := cloud.Statement(ref.Name); s.Phase != box.PhaseSuspended {
		t.Fatalf("%s at the wall", s.Phase)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(nil)
	d := cloud.Driver(installation)
	ref := made(t, d, "faults")

	cloud.Inject(fakebox.Fault{Op: fakebox.OpSuspend, Skip: 1, Class: box.ClassExhausted, RetryAfter: time.Minute})
	if _, err := d.Suspend(t.Context(), ref); err != nil {
		t.Fatalf("the first call must pass: %v", err)
	}
	_, err := d.Suspend(t.Context(), ref)
	if class, wait := d.ErrorClass(err); class != box.ClassExhausted || wait != time.Minute {
		t.Errorf("class %q, wait %s", class, wait)
	}
	if _, err := d.Suspend(t.Context(), ref); err != nil {
		t.Errorf("the third call must pass: %v", err)
	}

	cloud.Inject(fakebox.Fault{Op: fakebox.OpList, Stale: true})
	other := made(t, d, "newer")
	if found, err := d.List(t.Context(), installation); err != nil || len(found) != 1 {
		t.Errorf("a stale list holds %d boxes, %v", len(found), err)
	}
	if found, err := d.List(t.Context(), installation); err != nil || len(found) != 2 {
		t.Errorf("the next list holds %d boxes, %v", len(found), err)
	}

	cloud.Inject(fakebox.Fault{Op: fakebox.OpResume, Lost: true})
	if _, err := d.Resume(t.Context(), ref, driver.Start{}); box.ClassOf(err) != box.ClassUnavailable {
		t.Errorf("a lost answer is %v", err)
	}
	if s, _ := cloud.Statement(ref.Name); s.Phase != box.PhaseRunning {
		t.Errorf("the work of a lost answer was not done: %s", s.Phase)
	}

	cloud.Vanish(other.Name)
	if seen, err := d.Observe(t.Context(), other); err != nil || seen.Phase != box.PhaseGone {
		t.Errorf("a vanished box is %q, %v", seen.Phase, err)
	}
	calls := cloud.Calls()
	if last := calls[len(calls)-1]; last.Op != fakebox.OpObserve || last.Box != other.Name || last.Class != "" {
		t.Errorf("the last call in the log is %+v", last)
	}
}

func TestHangEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cloud := fakebox.New(nil)
		cloud.Inject(fakebox.Fault{Op: fakebox.OpCreate, Hang: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := cloud.Driver(installation).Create(ctx, driver.CreateRequest{Identity: box.Identity{Installation: installation, Workspace: "hang", Epoch: 1}})
		if !errors.Is(err, context.DeadlineExceeded) || box.ClassOf(err) != box.ClassDeadlineExceeded {
			t.Errorf("a call that hung ended with %v", err)
		}
		made(t, cloud.Driver(installation), "hang")
	})
}

func TestSwappedAccountHidesBoxesWithoutProof(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(nil)
	d := cloud.Driver(installation)
	ref := made(t, d, "account")
	cloud.SwapAccount("another")
	if seen, err := d.Observe(t.Context(), ref); err == nil {
		t.Errorf("a box of the other account is %q", seen.Phase)
	}
	cloud.SwapAccount("fakebox")
	if seen, err := d.Observe(t.Context(), ref); err != nil || seen.Phase != box.PhaseRunning {
		t.Errorf("the box came back as %q, %v", seen.Phase, err)
	}
}

func TestLookingIsUseWhereTheRowSaysSo(t *testing.T) {
	t.Parallel()
	for looking, want := range map[box.Tri]box.Phase{box.Yes: box.PhaseRunning, box.No: box.PhaseSuspended} {
		row := fakebox.DefaultRow()
		row.NativeIdle, row.LookingIsUse = box.Yes, looking
		cloud := fakebox.New(&fakebox.Options{Row: row, NativeIdle: 20 * time.Minute})
		d := cloud.Driver(installation)
		ref := made(t, d, "polled")
		cloud.Advance(15 * time.Minute)
		if _, err := d.Observe(t.Context(), ref); err != nil { // the control plane is free
			t.Fatal(err)
		}
		if _, err := d.Endpoint(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		cloud.Advance(10 * time.Minute)
		if s, _ := cloud.Statement(ref.Name); s.Phase != want {
			t.Errorf("looking is use: %s, the box is %s, want %s", looking, s.Phase, want)
		}
	}
}

// What memory is billed for, and what a watcher hears when it is lost.
func TestMemoryIsBilledUntilItIsGivenUp(t *testing.T) {
	t.Parallel()
	row := fakebox.DefaultRow()
	row.MemoryKept, row.Deepen, row.PausedLife = box.Yes, box.Yes, box.Span(48*time.Hour)
	for name, test := range map[string]struct {
		end  func(*fakebox.Cloud, *fakebox.Driver, box.Ref)
		want time.Duration
		told int
	}{
		"given up":        {func(_ *fakebox.Cloud, d *fakebox.Driver, ref box.Ref) { _, _ = d.Deepen(t.Context(), ref) }, time.Hour, 0},
		"lost":            {func(c *fakebox.Cloud, _ *fakebox.Driver, ref box.Ref) { c.LoseMemory(ref.Name); c.LoseMemory(ref.Name) }, time.Hour, 1},
		"kept to the end": {func(*fakebox.Cloud, *fakebox.Driver, box.Ref) {}, 48 * time.Hour, 0},
	} {
		cloud := fakebox.New(&fakebox.Options{Row: row})
		d := cloud.Driver(installation)
		ref := made(t, d, "memory")
		if _, err := d.Suspend(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		cloud.Advance(time.Hour)
		told := make(chan driver.Listed, 10)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Watch(ctx, func(one driver.Listed) { told <- one }) }()
		test.end(cloud, d, ref)
		for range test.told {
			if one := <-told; one.Observation.Phase != box.PhaseSuspended || one.Observation.MemoryKept != box.No {
				t.Errorf("%s: told of %+v", name, one.Observation)
			}
		}
		cancel()
		if err := <-done; err != nil || len(told) != 0 {
			t.Errorf("%s: %v, %d more told", name, err, len(told))
		}
		cloud.Advance(100 * time.Hour) // over its retention, too
		if s, _ := cloud.Statement(ref.Name); s.Memory != test.want || s.Suspended != 48*time.Hour || s.Phase != box.PhaseGone {
			t.Errorf("%s: statement %+v, want %s of memory", name, s, test.want)
		}
	}
}
