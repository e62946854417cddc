package fakebox

import (
	"context"
	"slices"

	"github.com/openhands/boxkeeper/box"
)

// Adopt answers a box of ours, and takes over one that somebody else made and
// nobody marked.
func (d *Driver) Adopt(ctx context.Context, id string, as box.Identity) (box.Observation, error) {
	return call(ctx, d.cloud, OpAdopt, id, func(Fault) (box.Observation, error) {
		c := d.cloud
		if c.opts.Row.Adopt != box.Yes {
			return box.Observation{}, box.Errorf(box.ClassUnsupported, "this cloud cannot adopt")
		}
		if as.Installation != d.installation {
			return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %s is of another installation", as.Name())
		}
		name, b := c.byID(id)
		switch {
		case b == nil:
			return box.Observation{}, box.Errorf(box.ClassNotFound, "no box has the id %s in account %q", id, c.account)
		case !b.Foreign && (b.identity.Installation != as.Installation || b.identity.Workspace != as.Workspace):
			return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %s is marked as workspace %s of installation %s; adopt it there", id, b.identity.Workspace, b.identity.Installation)
		case !b.Foreign:
			return c.observation(b, box.Ref{}), nil
		}
		if other, taken := c.boxes()[as.Name()]; taken && other != b && other.Phase != box.PhaseGone {
			return box.Observation{}, box.Errorf(box.ClassAlreadyExists, "%s exists and is another box", as.Name())
		}
		delete(c.boxes(), name)
		b.Foreign, b.identity, b.account = false, as, c.account
		c.boxes()[as.Name()] = b
		return c.observation(b, box.Ref{}), nil
	})
}

// byID finds a box that is there by the id that the cloud gave it.
func (c *Cloud) byID(id string) (name string, found *sandbox) {
	for at, b := range c.boxes() {
		if b.Phase != box.PhaseGone && slices.Contains(b.ids, id) {
			return at, b
		}
	}
	return "", nil
}

// ID returns the id that the cloud gave the box of a name, also to one that
// [Cloud.Plant] put there.
func (c *Cloud) ID(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.boxes()[name]
	if !ok {
		return ""
	}
	return b.ids[len(b.ids)-1]
}
