package runtimeapi

import (
	"context"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Delete stops the box, which deletes its volume, and returns when the service
// has said twice that it is gone. A /stop without a success is Unavailable or
// worse, also when it was carried out: the next call finds that out.
func (d *Driver) Delete(ctx context.Context, ref box.Ref) (box.Observation, error) {
	if err := d.own(ctx, ref); err != nil {
		return box.Observation{}, err
	}
	release, err := d.locks.Take(ctx, ref.Name)
	if err != nil {
		return box.Observation{}, err
	}
	defer release()
	doomed, err := d.doomed(ctx, ref)
	if err != nil {
		return box.Observation{}, err
	}
	for i, id := range doomed {
		if err := d.stop(ctx, id); err != nil {
			if i > 0 {
				err = driver.Unsettled(err)
			}
			return box.Observation{}, err
		}
	}
	var seen box.Observation
	for range 2 {
		if seen, _, err = d.see(ctx, ref); err != nil {
			if len(doomed) > 0 {
				err = driver.Unsettled(err)
			}
			return box.Observation{}, err
		}
		if seen.Phase != box.PhaseGone {
			return box.Observation{}, &box.Error{Class: box.ClassUnavailable, RetryAfter: soon, Message: "box " + ref.Name + " is being stopped (" + seen.Evidence + "); ask again"}
		}
	}
	d.settle(ref.Name)
	return seen, nil
}

// doomed names the boxes that have to be stopped, the one of ref last: a call
// that is cut off before it is stopped can be repeated. A second box of the same
// name was made by starts at once (see tellOfSecond): /sessions does not lead to
// it, and it costs money. Where the session is another box than the one of ref,
// nothing is stopped: somebody may be at work in it.
func (d *Driver) doomed(ctx context.Context, ref box.Ref) ([]string, error) {
	s, err := d.look(ctx, ref.Name)
	if err != nil {
		return nil, err
	}
	found, err := d.namesakes(ctx, ref.Name, ref.ID)
	if err != nil {
		return nil, err
	}
	there := s != nil && s.phase() != box.PhaseGone
	if there && s.RuntimeID != ref.ID {
		return nil, box.Errorf(box.ClassFailedPrecondition, "session %s is box %s now, and box %s was to be deleted; nothing was stopped: look at both at the service and stop what nobody needs", ref.Name, s.RuntimeID, clean(ref.ID))
	}
	var out []string
	for _, other := range found {
		switch {
		case other.SessionID != ref.Name:
			return nil, box.Errorf(box.ClassFailedPrecondition, "box %s belongs to session %q now, and was of %s; nothing was stopped", clean(ref.ID), clean(other.SessionID), ref.Name)
		case other.RuntimeID == ref.ID:
			there = true
		default:
			out = append(out, other.RuntimeID)
		}
	}
	switch {
	case there:
		return append(out, ref.ID), nil
	case len(out) > 0:
		// The list may lag behind an earlier /stop.
		return nil, box.Errorf(box.ClassUnknown, "box %s is gone, and /list shows another box %s of session %s; look again, and if it stays, look at it at the service and stop it there", clean(ref.ID), clean(out[0]), ref.Name)
	}
	return nil, nil
}

// stop deletes one box. One that the service does not know is gone already.
func (d *Driver) stop(ctx context.Context, id string) error {
	r, err := d.api.post(ctx, "/stop", byID{id}, nil)
	switch {
	case err != nil:
		return err
	case r.absent():
		return nil
	}
	return r.done()
}
