package providers_test

import (
	"context"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// shallow answers a deepen with something else than its proof.
type shallow struct {
	*fakebox.Driver
	answer func(ref box.Ref) box.Observation
}

func (s shallow) Deepen(_ context.Context, ref box.Ref) (box.Observation, error) {
	return s.answer(ref), nil
}

func TestADeepenIsBelievedOnItsProofOnly(t *testing.T) {
	t.Parallel()
	proof := func(ref box.Ref) box.Observation {
		return box.Observation{Ref: ref, Phase: box.PhaseSuspended, MemoryKept: box.No}
	}
	for name, row := range map[string]struct {
		change func(o *box.Observation)
		want   box.Class
	}{
		"the proof":                {func(*box.Observation) {}, ""},
		"it runs":                  {func(o *box.Observation) { o.Phase = box.PhaseRunning }, box.ClassUnknown},
		"it ended":                 {func(o *box.Observation) { o.Phase = box.PhaseFailed }, box.ClassUnknown},
		"its memory is there":      {func(o *box.Observation) { o.MemoryKept = box.Yes }, box.ClassUnknown},
		"it does not say":          {func(o *box.Observation) { o.MemoryKept = box.Unknown }, box.ClassUnknown},
		"it is under another id":   {func(o *box.Observation) { o.Ref.ID = "fb-77" }, box.ClassUnknown},
		"it is another box":        {func(o *box.Observation) { o.Ref.Name = "bk-ffffffff-theirs-1" }, box.ClassUnknown},
		"it is of another epoch":   {func(o *box.Observation) { o.Ref.Epoch = 2 }, box.ClassUnknown},
		"it is in another account": {func(o *box.Observation) { o.Ref.Fingerprint = "another" }, box.ClassUnknown},
	} {
		cloud := fakebox.New(&fakebox.Options{Row: laddered()})
		p := over(t, shallow{cloud.Driver(installation), func(ref box.Ref) box.Observation {
			o := proof(ref)
			row.change(&o)
			return o
		}})
		_, err := p.Deepen(t.Context(), made(t, p, "proof"))
		wantClass(t, name, err, row.want)
	}
}

// A NotFound from a place that the instance does not talk to any more is no
// proof, and neither is one of an account that changed on the way.
func TestADeepenKeepsToItsPlace(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(&fakebox.Options{Row: laddered()})
	p := over(t, cloud.Driver(installation))
	ref := made(t, p, "place")
	if _, err := p.Suspend(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	cloud.Vanish(ref.Name)
	_, err := p.Deepen(t.Context(), ref)
	wantClass(t, "gone", err, box.ClassNotFound)
	cloud.Inject(fakebox.Fault{Op: fakebox.OpFingerprint, Skip: 1, Fingerprint: "another"})
	_, err = p.Deepen(t.Context(), ref)
	wantClass(t, "gone in another account", err, box.ClassUnknown)
	cloud.SwapAccount("another")
	_, err = p.Deepen(t.Context(), ref)
	wantClass(t, "another account", err, box.ClassFailedPrecondition)
	for _, c := range cloud.Calls() {
		if c.Op == fakebox.OpDeepen && c.Box != ref.Name {
			t.Errorf("sent for %q", c.Box)
		}
	}
}
