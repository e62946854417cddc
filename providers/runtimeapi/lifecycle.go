package runtimeapi

import (
	"context"
	"net/url"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// soon is when to ask again for a change that is under way; public clients poll
// every 2 to 10 s.
const soon = 5 * time.Second

type byID struct {
	RuntimeID string `json:"runtime_id"`
}

// Observe reads the session. It never asks the box.
func (d *Driver) Observe(ctx context.Context, ref box.Ref) (box.Observation, error) {
	if err := d.own(ctx, ref); err != nil {
		return box.Observation{}, err
	}
	seen, _, err := d.see(ctx, ref)
	return seen, err
}

// change reads the box of ref under its lock, and hands it to do when it is
// there.
func (d *Driver) change(ctx context.Context, ref box.Ref, do func(seen box.Observation) (box.Observation, error)) (box.Observation, error) {
	if err := d.own(ctx, ref); err != nil {
		return box.Observation{}, err
	}
	release, err := d.locks.Take(ctx, ref.Name)
	if err != nil {
		return box.Observation{}, err
	}
	defer release()
	seen, _, err := d.see(ctx, ref)
	switch {
	case err != nil:
		return box.Observation{}, err
	case seen.Phase == box.PhaseGone:
		return box.Observation{}, box.Errorf(box.ClassNotFound, "there is no box %s: %s", ref.Name, seen.Evidence)
	case seen.Phase == box.PhaseUnknown:
		return box.Observation{}, box.Errorf(box.ClassUnknown, "box %s says %s, which is not known; look again", ref.Name, seen.Evidence)
	}
	return do(seen)
}

// Suspend pauses the box. A pause can take minutes: Unavailable until the
// session says twice that it is paused.
func (d *Driver) Suspend(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return d.change(ctx, ref, func(seen box.Observation) (box.Observation, error) {
		if seen.Phase == box.PhaseSuspended {
			return d.paused(ctx, ref)
		}
		if err := d.order(ctx, "/pause", ref); err != nil {
			return box.Observation{}, err
		}
		if _, err := d.paused(ctx, ref); err != nil {
			return box.Observation{}, driver.Unsettled(err)
		}
		seen, err := d.paused(ctx, ref)
		return seen, driver.Unsettled(err)
	})
}

// paused reads the box and returns it when it is suspended.
func (d *Driver) paused(ctx context.Context, ref box.Ref) (box.Observation, error) {
	seen, _, err := d.see(ctx, ref)
	switch {
	case err != nil:
		return box.Observation{}, err
	case seen.Phase == box.PhaseGone:
		return box.Observation{}, box.Errorf(box.ClassNotFound, "box %s ended while it was paused: %s", ref.Name, seen.Evidence)
	case seen.Phase != box.PhaseSuspended:
		return box.Observation{}, &box.Error{Class: box.ClassUnavailable, RetryAfter: soon, Message: "box " + ref.Name + " is being paused (" + seen.Evidence + "); ask again"}
	}
	return seen, nil
}

// Resume resumes a paused or broken box. Its environment stays that of its
// creation: the service takes none here. The key is a new one.
func (d *Driver) Resume(ctx context.Context, ref box.Ref, _ driver.Start) (box.Observation, error) {
	return d.change(ctx, ref, func(seen box.Observation) (box.Observation, error) {
		if awake(seen) {
			return seen, nil
		}
		r, err := d.api.post(ctx, "/resume", byID{ref.ID}, nil)
		if err != nil {
			return box.Observation{}, err
		}
		if r.absent() {
			return box.Observation{}, d.vanished(ctx, ref, r)
		}
		s, err := readSession(r, ref.Name)
		if err != nil {
			return box.Observation{}, err
		}
		if answer := d.observation(ref, s); s.RuntimeID == ref.ID && awake(answer) {
			return answer, nil
		}
		if seen, _, err = d.see(ctx, ref); err != nil {
			return box.Observation{}, driver.Unsettled(err)
		}
		if !awake(seen) {
			return box.Observation{}, &box.Error{Class: box.ClassUnavailable, RetryAfter: soon, Message: "box " + ref.Name + " is being resumed (" + seen.Evidence + "); ask again"}
		}
		return seen, nil
	})
}

func awake(seen box.Observation) bool {
	return seen.Phase == box.PhaseRunning || seen.Phase == box.PhaseStarting
}

// order sends a change whose answer is checked by another read.
func (d *Driver) order(ctx context.Context, path string, ref box.Ref) error {
	r, err := d.api.post(ctx, path, byID{ref.ID}, nil)
	switch {
	case err != nil:
		return err
	case r.absent():
		return d.vanished(ctx, ref, r)
	}
	return r.done()
}

// vanished is the error for a box that was there and that a change did not find.
func (d *Driver) vanished(ctx context.Context, ref box.Ref, r *reply) error {
	seen, _, err := d.see(ctx, ref)
	switch {
	case err != nil:
		return err
	case seen.Phase == box.PhaseGone:
		return box.Errorf(box.ClassNotFound, "box %s ended meanwhile: %s", ref.Name, seen.Evidence)
	}
	return box.Errorf(box.ClassUnknown, "%s says 404 for box %s, and /sessions says %s; look again", r.Method, ref.ID, seen.Evidence)
}

// Endpoint reads the address and the key afresh: each resume changes the key,
// and it is null while the box is paused.
func (d *Driver) Endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	if err := d.own(ctx, ref); err != nil {
		return driver.Endpoint{}, err
	}
	seen, s, err := d.see(ctx, ref)
	if err != nil {
		return driver.Endpoint{}, err
	}
	if err := driver.Unreachable(ref.Name, seen.Phase, seen.Evidence); err != nil {
		return driver.Endpoint{}, err
	}
	if s.URL == "" || s.Key == "" {
		return driver.Endpoint{}, box.Errorf(box.ClassUnavailable, "box %s runs and has no address or no key yet; ask again", ref.Name)
	}
	at, err := url.Parse(s.URL)
	switch {
	case err != nil || at.Host == "" || at.User != nil || at.Scheme != "https" && at.Scheme != "http":
		return driver.Endpoint{}, box.Errorf(box.ClassUnknown, "the address of box %s is not an http or https address", ref.Name)
	case at.Scheme == "http" && !d.opts.AllowHTTP && !loopback(at.Hostname()):
		return driver.Endpoint{}, box.Errorf(box.ClassFailedPrecondition, "the address of box %s is http://, which would send its key in the clear; let the install use https, or set plain_http to allow", ref.Name)
	}
	return driver.Endpoint{URL: s.URL, SessionKey: s.Key}, nil
}
