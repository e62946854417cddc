package drivertest

import (
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// RunConformance runs the suite. newHarness is called once for each case, and
// cleans up with t.Cleanup.
func RunConformance(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	for _, over := range []string{"driver", "provider"} {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			for _, c := range cases() {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					h := newHarness(t)
					wire := &lossy{Driver: h.Driver(t, ours)}
					b := &bench{h: h, wire: wire, row: wire.Capabilities()}
					if over == "driver" {
						b.target = bare{wire, ours}
					} else {
						b.target = newPortable(t, wire, ours)
					}
					if c.needsSuspend && b.row.Suspend != box.Yes {
						t.Log("nothing to check: the driver claims no suspend")
						return
					}
					c.run(t, b)
				})
			}
		})
	}
	t.Run("wire", func(t *testing.T) {
		t.Parallel()
		runWire(t, newHarness)
	})
}

type testcase struct {
	name         string
	needsSuspend bool
	run          func(t *testing.T, b *bench)
}

func cases() []testcase {
	return []testcase{
		{"the row is complete, constant and as expected", false, testRow},
		{"the fingerprint is constant and not empty", false, testFingerprint},
		{"what is not claimed is Unsupported and sends nothing", false, testNotClaimed},
		{"an unknown error has class Unknown", false, testUnknownError},
		{"create five times makes one box", false, testCreateFive},
		{"create by eight at once makes one box", false, testCreateAtOnce},
		{"create with an ended context can be repeated", false, testCreateCancelled},
		{"create with a lost answer can be repeated", false, testCreateLost},
		{"create refuses variables that are ours to set and makes nothing", false, testCreateReserved},
		{"create refuses a foreign box of our name and leaves it alone", false, testCreateForeign},
		{"another installation can do nothing to our box", false, testOtherInstallation},
		{"another fingerprint can do nothing and proves nothing", false, testOtherFingerprint},
		{"another account, region or engine proves nothing of our box", false, testMoved},
		{"suspend and resume five times each", true, testSuspendResumeFive},
		{"suspend and resume with an ended context can be repeated", true, testSuspendResumeCancelled},
		{"suspend and resume with a lost answer can be repeated", true, testSuspendResumeLost},
		{"what survives a resume is what the row claims", true, testSurvives},
		{"the memory of a suspended box can be given up, and that wakes nothing", true, testDeepen},
		{"giving up memory with an ended context or a lost answer can be repeated", true, testDeepenBroken},
		{"giving up memory is for boxes at rest only", true, testDeepenRefused},
		{"what a box costs at rest is said of a suspended box only", true, testStored},
		{"observing and listing wake nothing", true, testLooking},
		{"a killed box is not gone, and every call works on it", false, testKilled},
		{"an endpoint is for running boxes only", true, testEndpoint},
		{"delete five times, from running", false, testDeleteRunning},
		{"delete five times, from suspended", true, testDeleteSuspended},
		{"delete with an ended context can be repeated", false, testDeleteCancelled},
		{"delete with a lost answer can be repeated", false, testDeleteLost},
		{"delete by four at once", false, testDeleteAtOnce},
		{"a box that never was is gone", false, testNever},
		{"nothing wakes a gone box or takes its place", true, testGone},
		{"adopting a box of ours answers it as it is", false, testAdoptOurs},
		{"adopting a box that nobody marked makes it ours, once", false, testAdoptStray},
		{"adopting what is not to be had is refused and touches nothing", false, testAdoptRefused},
		{"the provider's own timers are as they were told", false, testNative},
		{"the provider's own timers can be set again, and that wakes nothing", false, testAdjust},
		{"the list holds our boxes, suspended ones included, and no others", false, testList},
		{"a step that a newer one overtook is refused, also after the end", true, testFence},
		{"of steps that come at once the newest wins", true, testFenceAtOnce},
		{"a watcher is told of an end, also of an earlier one, and not of our own calls", false, testWatch},
	}
}

func testRow(t *testing.T, b *bench) {
	if missing := b.row.Missing(); len(missing) > 0 {
		t.Errorf("the row answers nothing for %v", missing)
	}
	if b.row != b.h.Row() {
		t.Errorf("row %+v, want %+v", b.row, b.h.Row())
	}
	b.made(t, "row")
	if again := b.wire.Capabilities(); again != b.row {
		t.Errorf("the row changed to %+v", again)
	}
	if _, ok := b.wire.Driver.(driver.Lister); b.row.List == box.Yes && !ok {
		t.Error("claims List and does not implement it")
	}
	if _, ok := b.wire.Driver.(driver.Adjuster); b.row.NativeAdjust == box.Yes && !ok {
		t.Error("claims NativeAdjust and does not implement it")
	}
	if _, ok := b.wire.Driver.(driver.Deepener); b.row.Deepen == box.Yes && !ok {
		t.Error("claims Deepen and does not implement it")
	}
	if _, ok := b.wire.Driver.(driver.Watcher); b.row.Watch == box.Yes && !ok {
		t.Error("claims Watch and does not implement it")
	}
	if _, ok := b.wire.Driver.(driver.Adopter); b.row.Adopt == box.Yes && !ok {
		t.Error("claims Adopt and does not implement it")
	}
}

func testFingerprint(t *testing.T, b *bench) {
	first, err := b.wire.Fingerprint(t.Context())
	if err != nil || first == "" {
		t.Fatalf("fingerprint %q, %v", first, err)
	}
	ref := b.made(t, "print")
	second := b.h.Driver(t, ours)
	for _, d := range []driver.Driver{b.wire, second} {
		if now, err := d.Fingerprint(t.Context()); err != nil || now != first {
			t.Errorf("fingerprint %q, %v, want %q", now, err, first)
		}
	}
	if ref.Fingerprint != first {
		t.Errorf("the ref carries %q, want %q", ref.Fingerprint, first)
	}
}

func testNotClaimed(t *testing.T, b *bench) {
	if b.row.Suspend == box.Yes && b.row.List == box.Yes && b.row.Watch == box.Yes && b.row.NativeAdjust == box.Yes && b.row.Adopt == box.Yes && b.row.Deepen == box.Yes {
		t.Log("nothing to check: the driver claims everything")
		return
	}
	ref := b.made(t, "claims")
	_, direct := b.target.(portable)
	quiet := func(what string, call func() error) {
		before := b.wire.count()
		b.wantClass(t, what, call(), box.ClassUnsupported)
		if direct && b.wire.count() != before {
			t.Errorf("%s: a request was sent", what)
		}
	}
	if b.row.Suspend != box.Yes {
		quiet("suspend", func() error { _, err := b.suspend(t.Context(), ref); return err })
		quiet("resume", func() error { _, err := b.resume(t.Context(), ref); return err })
		if got := b.phase(t, ref); got != box.PhaseRunning && got != box.PhaseStarting {
			t.Errorf("the box is %q after calls that are not supported", got)
		}
	}
	if b.row.Deepen != box.Yes {
		quiet("deepen", func() error { _, err := b.deepen(t.Context(), ref); return err })
	}
	if b.row.List != box.Yes {
		quiet("list", func() error { _, err := b.list(t.Context()); return err })
	}
	if b.row.Adopt != box.Yes {
		quiet("adopt", func() error { _, err := b.adopt(t.Context(), ref.ID, "claims"); return err })
	}
	if b.row.NativeAdjust != box.Yes {
		quiet("adjust", func() error {
			_, err := b.adjust(t.Context(), ref, box.Native{Idle: box.Duration(time.Hour)})
			return err
		})
	}
	if b.row.Watch != box.Yes {
		quiet("watch", func() error { return b.watch(t.Context(), func(driver.Listed) {}) })
	}
}

func testUnknownError(t *testing.T, b *bench) {
	if class, wait := b.wire.Driver.ErrorClass(errLost); class != box.ClassUnknown || wait != 0 {
		t.Errorf("class %q, wait %s, want Unknown and none", class, wait)
	}
}
