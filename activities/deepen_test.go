package activities_test

import (
	"context"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

func keepsMemory(c *box.Capabilities) { c.MemoryKept, c.Deepen = box.Yes, box.Yes }

func TestAMemoryIsGivenUpWithProof(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, keepsMemory)
	target := r.made("e1-s3")
	fails(r, box.ClassFailedPrecondition, r.boxes.Deepen, target) // it runs
	if r.phase() != box.PhaseRunning {
		t.Fatalf("it is %s", r.phase())
	}
	if out := do(r, r.boxes.Suspend, target); out.Observation.MemoryKept != box.Yes || out.Capabilities == nil || out.Capabilities.Deepen != box.Yes {
		t.Fatalf("a suspend answers %+v", out)
	}
	entries := len(r.ledger())
	for range 2 {
		if out := do(r, r.boxes.Deepen, target); out.Observation.Phase != box.PhaseSuspended || out.Observation.MemoryKept != box.No {
			t.Errorf("the answer is %+v", out.Observation)
		}
	}
	if got := r.steps.last(); got != "deepen fake " {
		t.Errorf("recorded is %q", got)
	}
	if len(r.ledger()) != entries {
		t.Error("the ledger tells of what a reading shows")
	}
	r.cloud.Inject(fakebox.Fault{Op: fakebox.OpDeepen, Class: box.ClassExhausted, RetryAfter: time.Minute})
	if failure := fails(r, box.ClassExhausted, r.boxes.Deepen, target); failure.RetryAfter != box.Duration(time.Minute) {
		t.Errorf("to be tried again after %s", failure.RetryAfter)
	}
	r.cloud.Vanish(name)
	fails(r, box.ClassNotFound, r.boxes.Deepen, target)
}

func TestAProviderThatCannotIsNotAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	target := r.made("e1-s3")
	do(r, r.boxes.Suspend, target)
	fails(r, box.ClassUnsupported, r.boxes.Deepen, target)
	if r.calls(fakebox.OpDeepen) != 0 {
		t.Error("a request was sent")
	}
}

// A step that a newer one overtook takes no memory from a box that was woken and
// suspended again since.
func TestALateDeepenIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, keepsMemory)
	late := r.made("e1-s3")
	late.Fence = box.Fence{Began: 1, Step: 3}
	newer := late
	newer.Fence.Step = 4
	do(r, r.boxes.Suspend, newer)
	fails(r, box.ClassConflict, r.boxes.Deepen, late)
	seen, err := r.boxes.Provider.Observe(t.Context(), late.Ref)
	if err != nil || seen.MemoryKept != box.Yes {
		t.Errorf("it is %+v, %v", seen, err)
	}
}

// The provider's call is not cut by a cancellation: half of it would leave the
// box awake.
func TestADeepenThatWasBegunIsFinished(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, keepsMemory)
	target := r.made("e1-s3")
	do(r, r.boxes.Suspend, target)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out, err := run(ctx, r, r.boxes.Deepen, target)
	if err != nil || out.Observation.MemoryKept != box.No {
		t.Errorf("%+v, %v", out, err)
	}
}
