package local

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Create makes the directory and starts boxd in it.
func (d *Driver) Create(ctx context.Context, req driver.CreateRequest) (box.Observation, error) {
	if err := driver.Ended(ctx); err != nil {
		return box.Observation{}, err
	}
	name := req.Identity.Name()
	ref := box.Ref{ID: name, Name: name, Epoch: req.Identity.Epoch}
	if identity, ok := driver.IdentityOf(ref); !ok || identity.Installation != d.installation {
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "%q is not a box of installation %s", name, d.installation)
	}
	print, err := d.place.fingerprint()
	if err != nil {
		return box.Observation{}, err
	}
	ref.Fingerprint = print
	env, err := d.environ(name, req.Start)
	if err != nil {
		return box.Observation{}, err
	}
	unlock, err := d.place.lock(ctx, name)
	if err != nil {
		return box.Observation{}, err
	}
	defer unlock()
	rec, err := d.place.read(name)
	if err != nil {
		return box.Observation{}, err
	}
	if rec == nil {
		if err := d.mayReturn(ctx, name); err != nil {
			return box.Observation{}, err
		}
		if rec, err = d.register(req); err != nil {
			return box.Observation{}, err
		}
	}
	if rec.Identity != req.Identity {
		return box.Observation{}, box.Errorf(box.ClassAlreadyExists, "%s exists and is not this box", name)
	}
	if err := d.admit(ctx, rec); err != nil {
		return box.Observation{}, err
	}
	if rec.Intent == intentDelete {
		return box.Observation{}, box.Errorf(box.ClassConflict, "box %s is being deleted; finish that first", name)
	}
	if err := d.makeDir(rec); err != nil {
		return box.Observation{}, err
	}
	if !rec.Started && rec.Intent == intentRun {
		if err := d.spawn(ctx, rec, env); err != nil {
			return box.Observation{}, err
		}
	}
	return d.report(ref)
}

// register writes the record of a new box, before anything else of it exists.
func (d *Driver) register(req driver.CreateRequest) (*record, error) {
	name := req.Identity.Name()
	seen, _, err := d.look(name)
	if err != nil {
		return nil, err
	}
	if seen.phase != box.PhaseGone {
		return nil, box.Errorf(box.ClassAlreadyExists, "%s is there and not ours (%s); move it away", d.place.box(name), seen.evidence)
	}
	rec := &record{
		Version:   recordVersion,
		Identity:  req.Identity,
		Image:     req.Image,
		Labels:    maps.Clone(req.Labels),
		Intent:    intentRun,
		CreatedAt: time.Now().UTC(),
	}
	return rec, d.place.write(rec)
}

// makeDir makes the directory once. One that was there and is not any more is
// lost, and an empty one must not take its place.
func (d *Driver) makeDir(rec *record) error {
	name := rec.Identity.Name()
	if !rec.Made {
		if err := os.Mkdir(d.place.box(name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return ioError("make the directory of box "+name, err)
		}
		if err := syncDir(d.place.boxes()); err != nil {
			return err
		}
		rec.Made = true
		if err := d.place.write(rec); err != nil {
			return err
		}
	}
	info, err := os.Lstat(d.place.box(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return box.Errorf(box.ClassFailedPrecondition, "box %s was made before and its directory is gone; start a new epoch", name)
	case err != nil:
		return ioError("look at the directory of box "+name, err)
	case !info.IsDir():
		return box.Errorf(box.ClassFailedPrecondition, "%s is not a directory; put the box's own back", d.place.box(name))
	}
	return nil
}

// report is the observation at the end of a call, under the lock.
func (d *Driver) report(ref box.Ref) (box.Observation, error) {
	seen, _, err := d.look(ref.Name)
	if err != nil {
		return box.Observation{}, err
	}
	return d.observation(ref, seen), nil
}

// held runs change on a box that is there and ours, under its lock.
func (d *Driver) held(ctx context.Context, ref box.Ref, change func(rec *record, seen sight) error) (box.Observation, error) {
	present, err := d.own(ctx, ref)
	if err != nil {
		return box.Observation{}, err
	}
	absent := box.Errorf(box.ClassNotFound, "there is no box %s in %s", ref.ID, ref.Fingerprint)
	if !present {
		return box.Observation{}, absent
	}
	unlock, err := d.place.lock(ctx, ref.Name)
	if err != nil {
		return box.Observation{}, err
	}
	defer unlock()
	seen, rec, err := d.look(ref.Name)
	switch {
	case err != nil:
		return box.Observation{}, err
	case seen.phase == box.PhaseGone:
		if _, err := d.own(ctx, ref); err != nil { // unmounted meanwhile?
			return box.Observation{}, err
		}
		return box.Observation{}, absent
	case rec == nil:
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %s has no record (%s); restore it or remove the rest by hand", ref.Name, seen.evidence)
	}
	if err := d.admit(ctx, rec); err != nil {
		return box.Observation{}, err
	}
	switch {
	case rec.Intent == intentDelete:
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %s is being deleted; finish that", ref.Name)
	case !rec.Made:
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %s was not made to the end; create it again or delete it", ref.Name)
	case !seen.dir:
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %s has no directory (%s); put it back or delete the box", ref.Name, seen.evidence)
	}
	if err := change(rec, seen); err != nil {
		return box.Observation{}, err
	}
	return d.report(ref)
}

// Suspend stops or freezes the processes and keeps the directory.
func (d *Driver) Suspend(ctx context.Context, ref box.Ref) (box.Observation, error) {
	out, err := d.held(ctx, ref, func(rec *record, seen sight) error {
		if rec.Intent == intentSuspend && seen.phase == box.PhaseSuspended {
			if rec.SuspendedAt.IsZero() { // the call that did it did not get to write this
				rec.SuspendedAt = time.Now().UTC()
				return d.place.write(rec)
			}
			return nil
		}
		rec.Intent, rec.Kind, rec.SuspendedAt = intentSuspend, SuspendStop, time.Time{}
		freeze := d.opts.Suspend == SuspendFreeze && seen.leader != nil || seen.frozen
		if freeze {
			rec.Kind = SuspendFreeze
		}
		if err := d.place.write(rec); err != nil {
			return err
		}
		if freeze {
			if err := d.freeze(ctx, rec); err != nil {
				return errors.Join(err, d.rollBack(ctx, rec))
			}
		} else if err := d.stop(ctx, rec, d.opts.StopTimeout); err != nil {
			return err
		}
		rec.SuspendedAt = time.Now().UTC()
		return d.place.write(rec)
	})
	if err == nil && out.Phase != box.PhaseSuspended {
		return box.Observation{}, box.Errorf(box.ClassUnknown, "box %s is %s after its suspend (%s); look again", ref.Name, out.Phase, out.Evidence)
	}
	return out, err
}

// rollBack lets a box run on that could not be frozen, also when the caller
// has given up: half of its processes stopped is no state to leave it in.
func (d *Driver) rollBack(ctx context.Context, rec *record) error {
	rec.Intent = intentRun
	return errors.Join(d.thaw(context.WithoutCancel(ctx), rec), d.place.write(rec))
}

// Resume thaws the processes, or starts boxd again in the same directory.
func (d *Driver) Resume(ctx context.Context, ref box.Ref, start driver.Start) (box.Observation, error) {
	env, err := d.environ(ref.Name, start)
	if err != nil {
		return box.Observation{}, err
	}
	out, err := d.held(ctx, ref, func(rec *record, seen sight) error {
		interrupted := rec.Intent == intentSuspend && rec.Kind == SuspendStop
		if seen.leader != nil && !interrupted {
			if rec.Process == nil { // a worker ended between its start and its record
				return d.spawn(ctx, rec, env)
			}
			if rec.Intent == intentRun && !anyStopped(seen.alive) {
				return nil
			}
			rec.Intent, rec.SuspendedAt = intentRun, time.Time{}
			return errors.Join(d.place.write(rec), d.thaw(ctx, rec))
		}
		// A box that was told to end must not be taken for a running one, and
		// leftovers of a dead one must not meet its successor.
		grace := time.Duration(0)
		if interrupted {
			grace = d.opts.StopTimeout
		}
		if err := d.stop(ctx, rec, grace); err != nil {
			return err
		}
		if err := driver.Ended(ctx); err != nil {
			return err
		}
		rec.Intent, rec.Process, rec.SuspendedAt = intentRun, nil, time.Time{}
		if err := d.place.write(rec); err != nil {
			return err
		}
		return d.spawn(ctx, rec, env)
	})
	if err == nil && out.Phase != box.PhaseRunning {
		return box.Observation{}, box.Errorf(box.ClassUnavailable, "box %s ended right after it was started (%s); its log is %s", ref.Name, out.Evidence, filepath.Join(d.place.box(ref.Name), logFile))
	}
	return out, err
}

func anyStopped(all []proc) bool {
	for _, p := range all {
		if p.stopped {
			return true
		}
	}
	return false
}

// Delete ends the processes and removes the directory, the record last.
func (d *Driver) Delete(ctx context.Context, ref box.Ref) (box.Observation, error) {
	present, err := d.own(ctx, ref)
	if err != nil {
		return box.Observation{}, err
	}
	gone := box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: "no record, no directory and no process of it on this machine"}
	if !present {
		return gone, nil
	}
	name := ref.Name
	unlock, err := d.place.lock(ctx, name)
	if err != nil {
		return box.Observation{}, err
	}
	defer unlock()
	seen, rec, err := d.look(name)
	switch {
	case err != nil:
		return box.Observation{}, err
	case rec == nil && seen.phase == box.PhaseGone:
		return gone, nil
	case rec == nil:
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %s has no record (%s); restore it or remove the rest by hand", name, seen.evidence)
	}
	if err := d.admit(ctx, rec); err != nil {
		return box.Observation{}, err
	}
	// Refused before anything is touched, not when half of it is gone.
	for _, dir := range []string{d.place.box(name), d.trashed(name)} {
		if err := refuseMounts(dir); err != nil {
			return box.Observation{}, err
		}
	}
	rec.Intent = intentDelete
	if err := d.place.write(rec); err != nil {
		return box.Observation{}, err
	}
	grace := d.opts.StopTimeout
	if seen.frozen {
		grace = 0
	}
	if err := d.stop(ctx, rec, grace); err != nil {
		return box.Observation{}, err
	}
	if err := d.discard(ctx, name); err != nil {
		return box.Observation{}, err
	}
	if _, err := d.own(ctx, ref); err != nil { // unmounted meanwhile?
		return box.Observation{}, err
	}
	if err := d.place.entomb(name, rec.Fence); err != nil {
		return box.Observation{}, err
	}
	if err := d.place.forget(name); err != nil {
		return box.Observation{}, err
	}
	d.mu.Lock()
	delete(d.children, name)
	d.mu.Unlock()
	return gone, nil
}

func (d *Driver) trashed(name string) string { return d.place.trash() + "/" + name }

// discard moves the directory aside, which cannot be half done, and then
// removes it.
func (d *Driver) discard(ctx context.Context, name string) error {
	remove := func() error {
		if err := removeTree(ctx, d.place.trash(), name); err != nil {
			return err
		}
		return syncDir(d.place.trash())
	}
	// What an earlier attempt left must go first: its name is needed.
	if err := remove(); err != nil {
		return err
	}
	err := os.Rename(d.place.box(name), d.trashed(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		if err := refuseMounts(d.place.box(name)); err != nil {
			return err
		}
		return ioError("move the directory of box "+name+" aside", err)
	}
	if err := errors.Join(syncDir(d.place.boxes()), syncDir(d.place.trash())); err != nil {
		return err
	}
	return remove()
}

// Endpoint reads the address that boxd wrote. The box keeps the key that it was
// started with, so none is in the answer.
func (d *Driver) Endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	seen, err := d.Observe(ctx, ref)
	if err != nil {
		return driver.Endpoint{}, err
	}
	if err := driver.Unreachable(ref.Name, seen.Phase, seen.Evidence); err != nil {
		return driver.Endpoint{}, err
	}
	at, err := d.address(ref.Name)
	if err != nil {
		return driver.Endpoint{}, err
	}
	return driver.Endpoint{URL: at}, nil
}
