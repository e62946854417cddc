package drivertest

import (
	"testing"

	"github.com/openhands/boxkeeper/box"
)

// within is what a provider of this row makes of a timer that it is told.
func within(row box.Capabilities, n box.Native) box.Native {
	n.Idle = max(n.Idle, box.Duration(row.NativeIdleLeast))
	if row.NativeIdleMost > 0 {
		n.Idle = min(n.Idle, box.Duration(row.NativeIdleMost))
	}
	return n
}

func (b *bench) readsBack(t *testing.T, what string, seen box.Observation, want box.Native) {
	t.Helper()
	if seen.Native == nil || *seen.Native != want {
		t.Errorf("%s reads back the timers %+v, want %+v", what, seen.Native, want)
	}
}

func testNative(t *testing.T, b *bench) {
	if b.row.NativeIdle != box.Yes {
		t.Log("nothing to check: the driver claims no idle timer")
		return
	}
	made, err := b.create(t.Context(), "native")
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	b.readsBack(t, "create", made, told(b.row))
	seen, err := b.observe(t.Context(), made.Ref)
	if err != nil {
		t.Fatalf("observe: %v", err)
	}
	b.readsBack(t, "observe", seen, told(b.row))
}

func testAdjust(t *testing.T, b *bench) {
	if b.row.NativeAdjust != box.Yes {
		t.Log("nothing to check: the driver claims no timer that can be set again")
		return
	}
	ref := b.made(t, "adjust")
	want := within(b.row, box.Native{Idle: told(b.row).Idle * 2})
	for range five {
		seen, err := b.adjust(t.Context(), ref, want)
		if err != nil {
			t.Fatalf("adjust: %v", err)
		}
		b.readsBack(t, "adjust", seen, want)
	}
	_, err := b.adjust(ended(t), ref, want)
	b.wantClass(t, "adjust with an ended context", err, box.ClassCanceled)
	b.wire.loseNext()
	_, err = b.adjust(t.Context(), ref, want)
	b.wantClass(t, "adjust whose answer is lost", err, box.ClassUnavailable)
	one(t, b, ref)
	if b.row.Suspend == box.Yes {
		ref = b.suspended(t, ref)
		_, err = b.adjust(t.Context(), ref, want)
		b.wantClass(t, "adjust of a suspended box", err, box.ClassFailedPrecondition)
		if got := b.phase(t, ref); got != box.PhaseSuspended {
			t.Errorf("adjusting left a suspended box %q", got)
		}
	}
	b.deleted(t, ref)
	_, err = b.adjust(t.Context(), ref, want)
	b.wantClass(t, "adjust of a gone box", err, box.ClassNotFound)
}
