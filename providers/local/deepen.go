package local

import (
	"context"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Deepen ends the frozen processes of a suspended box where they stand, so that
// none of them runs once more, and keeps the directory. Nothing of what they had
// written is lost; what was in their memory is.
func (d *Driver) Deepen(ctx context.Context, ref box.Ref) (box.Observation, error) {
	if d.opts.Suspend != SuspendFreeze {
		return box.Observation{}, box.Errorf(box.ClassUnsupported, "boxes are not frozen here, so there is no memory to give up")
	}
	out, err := d.held(ctx, ref, func(rec *record, seen sight) error {
		if seen.phase != box.PhaseSuspended {
			return box.Errorf(box.ClassFailedPrecondition, "box %s is %s (%s); only a suspended one can be suspended deeper", ref.Name, seen.phase, seen.evidence)
		}
		if !seen.frozen {
			return nil
		}
		rec.Intent, rec.Kind = intentSuspend, SuspendStop
		if rec.SuspendedAt.IsZero() { // somebody else stopped them, or the call that did it did not get to write this
			rec.SuspendedAt = time.Now().UTC()
		}
		if err := d.place.write(rec); err != nil {
			return err
		}
		return d.stop(ctx, rec, 0)
	})
	if err == nil && (out.Phase != box.PhaseSuspended || out.MemoryKept != box.No) {
		return box.Observation{}, box.Errorf(box.ClassUnknown, "box %s is %s after its memory was given up (%s); look again", ref.Name, out.Phase, out.Evidence)
	}
	return out, err
}
