package fakebox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

var (
	_ driver.Driver   = (*Driver)(nil)
	_ driver.Lister   = (*Driver)(nil)
	_ driver.Watcher  = (*Driver)(nil)
	_ driver.Adjuster = (*Driver)(nil)
	_ driver.Adopter  = (*Driver)(nil)
	_ driver.Deepener = (*Driver)(nil)
)

// Driver is one installation's view of a [Cloud].
type Driver struct {
	cloud        *Cloud
	installation string
}

// Capabilities returns the row of the cloud.
func (d *Driver) Capabilities() box.Capabilities { return d.cloud.opts.Row }

// Fingerprint returns the account that the cloud talks to now.
func (d *Driver) Fingerprint(ctx context.Context) (string, error) {
	return call(ctx, d.cloud, OpFingerprint, "", func(f Fault) (string, error) {
		if f.Fingerprint != "" {
			return f.Fingerprint, nil
		}
		return d.cloud.account, nil
	})
}

// Create makes the box, or answers the one that is there.
func (d *Driver) Create(ctx context.Context, req driver.CreateRequest) (box.Observation, error) {
	name := req.Identity.Name()
	return call(ctx, d.cloud, OpCreate, name, func(Fault) (box.Observation, error) {
		c := d.cloud
		if req.Identity.Installation != d.installation {
			return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %s is of another installation", name)
		}
		if _, err := req.Start.Variables(nil); err != nil {
			return box.Observation{}, err
		}
		now := c.clock()
		b, ok := c.boxes()[name]
		switch {
		case ok && b.Foreign:
			return box.Observation{}, box.Errorf(box.ClassAlreadyExists, "%s exists and is not ours", name)
		case !ok:
			b = &sandbox{identity: req.Identity, account: c.account}
			c.boxes()[name] = b
		case b.Phase == box.PhaseGone && driver.FenceOf(ctx) == b.fence && !b.fence.IsZero():
			return box.Observation{}, driver.Overtaken(name, b.fence, b.fence) // the very step that deleted it
		}
		if err := c.admit(ctx, b); err != nil {
			return box.Observation{}, err
		}
		if ok && b.Phase != box.PhaseGone {
			return c.observation(b, box.Ref{}), nil
		}
		b.ids = append(b.ids, c.nextID())
		b.billed = now
		b.native = c.bounded(req.Native)
		c.move(b, box.PhaseRunning, now, "created")
		if err := c.start(b, now); err != nil {
			return box.Observation{}, err
		}
		return c.observation(b, box.Ref{}), nil
	})
}

// Observe reads the box.
func (d *Driver) Observe(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return call(ctx, d.cloud, OpObserve, ref.Name, func(f Fault) (box.Observation, error) {
		b, err := d.find(ref)
		if box.ClassOf(err) == box.ClassNotFound {
			return box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: err.Error()}, nil
		}
		if err != nil {
			return box.Observation{}, err
		}
		seen := d.cloud.observation(b, ref)
		if f.Phase != "" {
			seen.Phase = f.Phase
		}
		return seen, nil
	})
}

// Suspend suspends the box.
func (d *Driver) Suspend(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return call(ctx, d.cloud, OpSuspend, ref.Name, func(Fault) (box.Observation, error) {
		c := d.cloud
		if c.opts.Row.Suspend != box.Yes {
			return box.Observation{}, box.Errorf(box.ClassUnsupported, "this cloud cannot suspend")
		}
		b, err := d.find(ref)
		if err != nil {
			return box.Observation{}, err
		}
		if err := d.cloud.admit(ctx, b); err != nil {
			return box.Observation{}, err
		}
		if b.Phase != box.PhaseSuspended {
			// Only a living box has a memory that can be kept.
			b.frozen = c.opts.Row.MemoryKept == box.Yes && b.Phase != box.PhaseFailed
			c.move(b, box.PhaseSuspended, c.clock(), "suspended on request")
		}
		return c.counted(b, ref), nil
	})
}

// Deepen gives up the memory of a suspended box.
func (d *Driver) Deepen(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return call(ctx, d.cloud, OpDeepen, ref.Name, func(Fault) (box.Observation, error) {
		c := d.cloud
		if c.opts.Row.Deepen != box.Yes {
			return box.Observation{}, box.Errorf(box.ClassUnsupported, "this cloud cannot give up memory")
		}
		b, err := d.find(ref)
		if err != nil {
			return box.Observation{}, err
		}
		if err := c.admit(ctx, b); err != nil {
			return box.Observation{}, err
		}
		if b.Phase != box.PhaseSuspended {
			return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "the box is %s; suspend it first", b.Phase)
		}
		if b.frozen {
			b.frozen, b.evidence = false, "memory given up on request"
		}
		return c.counted(b, ref), nil
	})
}

// Resume wakes the box, under a new id where the row says so.
func (d *Driver) Resume(ctx context.Context, ref box.Ref, _ driver.Start) (box.Observation, error) {
	return call(ctx, d.cloud, OpResume, ref.Name, func(Fault) (box.Observation, error) {
		c := d.cloud
		if c.opts.Row.Suspend != box.Yes {
			return box.Observation{}, box.Errorf(box.ClassUnsupported, "this cloud cannot resume")
		}
		b, err := d.find(ref)
		if err != nil {
			return box.Observation{}, err
		}
		if err := d.cloud.admit(ctx, b); err != nil {
			return box.Observation{}, err
		}
		if b.Phase == box.PhaseSuspended || b.Phase == box.PhaseFailed {
			now := c.clock()
			thaw := b.frozen
			b.frozen = false
			c.move(b, box.PhaseRunning, now, "resumed on request")
			b.Wakes++
			b.lastUse = now
			if c.opts.Row.SameIdentity != box.Yes {
				b.ids = append(b.ids, c.nextID())
			}
			switch {
			case !thaw:
				err = c.start(b, now)
			case c.opts.Row.KeyStable != box.Yes:
				err = b.newKey()
			}
			if err != nil {
				return box.Observation{}, err
			}
		}
		return c.observation(b, ref), nil
	})
}

// Adjust sets the native idle timer of a running box, and starts it anew.
func (d *Driver) Adjust(ctx context.Context, ref box.Ref, native box.Native) (box.Observation, error) {
	return call(ctx, d.cloud, OpAdjust, ref.Name, func(Fault) (box.Observation, error) {
		c := d.cloud
		if c.opts.Row.NativeAdjust != box.Yes {
			return box.Observation{}, box.Errorf(box.ClassUnsupported, "this cloud's timers can't be set again")
		}
		b, err := d.find(ref)
		if err != nil {
			return box.Observation{}, err
		}
		if b.Phase != box.PhaseRunning && b.Phase != box.PhaseStarting {
			return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "the box is %s; resume it first", b.Phase)
		}
		b.native, b.lastUse = c.bounded(native), c.clock()
		return c.observation(b, ref), nil
	})
}

// Delete destroys the box.
func (d *Driver) Delete(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return call(ctx, d.cloud, OpDelete, ref.Name, func(Fault) (box.Observation, error) {
		b, err := d.find(ref)
		if box.ClassOf(err) == box.ClassNotFound {
			return box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: err.Error()}, nil
		}
		if err != nil {
			return box.Observation{}, err
		}
		if err := d.cloud.admit(ctx, b); err != nil {
			return box.Observation{}, err
		}
		d.cloud.move(b, box.PhaseGone, d.cloud.clock(), "deleted on request")
		return d.cloud.observation(b, ref), nil
	})
}

// Endpoint answers the URL of the box's agent-server.
func (d *Driver) Endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	return call(ctx, d.cloud, OpEndpoint, ref.Name, func(Fault) (driver.Endpoint, error) {
		c := d.cloud
		b, err := d.find(ref)
		if err != nil {
			return driver.Endpoint{}, err
		}
		if b.Phase != box.PhaseRunning {
			return driver.Endpoint{}, box.Errorf(box.ClassFailedPrecondition, "the box is %s; resume it first", b.Phase)
		}
		if c.opts.Row.LookingIsUse == box.Yes {
			b.lastUse = c.clock()
		}
		at := driver.Endpoint{SessionKey: b.key}
		switch {
		case c.opts.AgentServer != nil:
			at.URL = c.opts.AgentServer(ref.Name)
		case c.opts.Row.URLStable == box.Yes:
			at.URL = "http://" + ref.Name + ".fakebox.invalid"
		default:
			at.URL = fmt.Sprintf("http://%s.%d.fakebox.invalid", ref.Name, b.Starts+b.Wakes)
		}
		return at, nil
	})
}

// List returns the boxes of the installation.
func (d *Driver) List(ctx context.Context, installation string) ([]driver.Listed, error) {
	return call(ctx, d.cloud, OpList, "", func(f Fault) ([]driver.Listed, error) {
		if d.cloud.opts.Row.List != box.Yes {
			return nil, box.Errorf(box.ClassUnsupported, "this cloud cannot list")
		}
		if f.stale != nil {
			return slices.Clone(f.stale[installation]), nil
		}
		return d.cloud.list(installation), nil
	})
}

func (c *Cloud) list(installation string) []driver.Listed {
	var out []driver.Listed
	for _, name := range slices.Sorted(maps.Keys(c.boxes())) {
		b := c.boxes()[name]
		if b.Foreign || b.Phase == box.PhaseGone || b.identity.Installation != installation {
			continue
		}
		out = append(out, driver.Listed{Identity: b.identity, Observation: c.observation(b, box.Ref{})})
	}
	return out
}

// Watch emits what the cloud does by itself, until ctx ends.
func (d *Driver) Watch(ctx context.Context, emit func(driver.Listed)) error {
	c := d.cloud
	if c.opts.Row.Watch != box.Yes {
		return box.Errorf(box.ClassUnsupported, "this cloud does not tell")
	}
	c.mu.Lock()
	next := c.delivered
	c.mu.Unlock()
	for ctx.Err() == nil {
		c.mu.Lock()
		c.settle()
		fresh := slices.Clone(c.changes[next:])
		next = len(c.changes)
		c.delivered = max(c.delivered, next)
		wake := c.changed
		c.mu.Unlock()
		for _, one := range fresh {
			if one.Identity.Installation == d.installation {
				emit(one)
			}
		}
		select {
		case <-ctx.Done():
		case <-wake:
		}
	}
	return nil
}

// ErrorClass maps the errors of this driver.
func (d *Driver) ErrorClass(err error) (box.Class, time.Duration) {
	if e, ok := errors.AsType[*box.Error](err); ok {
		return e.Class, e.RetryAfter
	}
	return box.ClassUnknown, 0
}

// admit refuses a step that a newer one overtook, and remembers this one.
func (c *Cloud) admit(ctx context.Context, b *sandbox) error {
	fence := driver.FenceOf(ctx)
	switch {
	case fence.IsZero() || c.opts.Row.Fence != box.Yes:
		return nil
	case fence.Before(b.fence):
		return driver.Overtaken(b.identity.Name(), fence, b.fence)
	}
	b.fence = fence
	return nil
}

// find returns the box behind ref, or an error: NotFound only under the account
// that the box was made in.
func (d *Driver) find(ref box.Ref) (*sandbox, error) {
	identity, ok := driver.IdentityOf(ref)
	if !ok || identity.Installation != d.installation {
		return nil, box.Errorf(box.ClassFailedPrecondition, "box %q is not of installation %s", ref.Name, d.installation)
	}
	if ref.Fingerprint != d.cloud.account {
		return nil, box.Errorf(box.ClassFailedPrecondition, "the box was made in %q, this is %q", ref.Fingerprint, d.cloud.account)
	}
	b, ok := d.cloud.boxes()[ref.Name]
	switch {
	case ok && b.Foreign:
		return nil, box.Errorf(box.ClassFailedPrecondition, "%s is not ours", ref.Name)
	case !ok || b.Phase == box.PhaseGone || !slices.Contains(b.ids, ref.ID):
		return nil, box.Errorf(box.ClassNotFound, "no box %s with id %s in account %q", ref.Name, ref.ID, ref.Fingerprint)
	}
	return b, nil
}
