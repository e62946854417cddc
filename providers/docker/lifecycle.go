package docker

import (
	"cmp"
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Create makes the volume and the container, and starts boxd in it. What is
// there of an earlier try, or after somebody removed the container, is used.
// Invalid: no image is named, or no box can run in it. FailedPrecondition: boxd is
// no static program of the image's architecture, the image is not there and is not
// to be pulled, or a container under another name uses the volume. AlreadyExists: a
// stranger has the name. Exhausted: no port of the range is free. Conflict: the box
// is being deleted.
func (d *Driver) Create(ctx context.Context, req driver.CreateRequest) (box.Observation, error) {
	if err := driver.Ended(ctx); err != nil {
		return box.Observation{}, err
	}
	name := req.Identity.Name()
	if identity, ok := driver.IdentityOf(box.Ref{Name: name, Epoch: req.Identity.Epoch}); !ok || identity.Installation != d.installation {
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "%q is not a box of installation %s", name, d.installation)
	}
	from := recipe{image: cmp.Or(req.Image, d.opts.DefaultImage), labels: req.Labels}
	if from.image == "" {
		return box.Observation{}, box.Invalidf("image", "is not given, and the instance has no default; name one")
	}
	env, err := environ(name, req.Start)
	if err != nil {
		return box.Observation{}, err
	}
	boxd, err := openProgram(d.opts.Boxd[0])
	if err != nil {
		return box.Observation{}, err
	}
	defer boxd.close()
	unlock, err := d.locks.Take(ctx, name)
	if err != nil {
		return box.Observation{}, err
	}
	defer unlock()
	ctx, s, err := d.connect(ctx)
	if err != nil {
		return box.Observation{}, err
	}
	if err := d.bring(ctx, s, req.Identity, from, boxd, env); err != nil {
		return box.Observation{}, s.after(err)
	}
	_, out, err := s.report(ctx, req.Identity)
	return out, err
}

// bring makes what of a box is not there, and starts what was never started.
func (d *Driver) bring(ctx context.Context, s *session, id box.Identity, from recipe, boxd *program, env []byte) error {
	f, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	if f.deleting {
		return box.Errorf(box.ClassConflict, "box %s is being deleted; finish that first", id.Name())
	}
	if err = d.raise(ctx, s, f, from, boxd, env); err != nil {
		return s.undone(ctx, f, err)
	}
	return nil
}

// raise makes the container of a box that has none, and starts one that never was.
func (d *Driver) raise(ctx context.Context, s *session, f *found, from recipe, boxd *program, env []byte) (err error) {
	if f.container == nil {
		if f, err = d.make(ctx, s, f, from, boxd); err != nil {
			return err
		}
	}
	if f.state() != container.StateCreated || f.intent.suspends(f.life()) {
		return nil
	}
	return s.start(ctx, f, boxd, env)
}

// start copies in what a start needs, and starts a container that does not run.
func (s *session) start(ctx context.Context, f *found, boxd *program, env []byte) error {
	if err := s.fill(ctx, f, boxd, env); err != nil {
		return err
	}
	err := s.act(ctx, forced, func(ctx context.Context) error {
		_, err := s.api.ContainerStart(ctx, f.container.ID, client.ContainerStartOptions{})
		return err
	})
	if err == nil {
		return nil
	}
	err = refusal(ctx, "start box "+f.identity.Name(), err)
	if image := configLabels(*f.container)[labelFrom]; image != "" && f.unstarted() {
		err = ofSnapshot(f.identity, image, true, err)
	}
	return err
}

// report is what is found at the end of a call, and the observation of it.
func (s *session) report(ctx context.Context, id box.Identity) (*found, box.Observation, error) {
	f, err := s.find(ctx, id)
	if err != nil {
		return nil, box.Observation{}, s.after(err)
	}
	return f, s.observation(f), nil
}

// held runs change on a box that is there and ours, under this process's lock, and
// returns what is found after it.
func (d *Driver) held(ctx context.Context, ref box.Ref, change func(ctx context.Context, s *session, f *found) error) (*found, box.Observation, error) {
	unlock, err := d.locks.Take(ctx, ref.Name)
	if err != nil {
		return nil, box.Observation{}, err
	}
	defer unlock()
	ctx, s, id, err := d.own(ctx, ref)
	if err != nil {
		return nil, box.Observation{}, err
	}
	f, err := s.find(ctx, id)
	if err == nil {
		err = f.renamed(ref)
	}
	if err != nil {
		return nil, box.Observation{}, err
	}
	switch {
	case f.container == nil && f.data == nil:
		if err := d.still(ctx, s.print); err != nil {
			return nil, box.Observation{}, err
		}
		return nil, box.Observation{}, box.Errorf(box.ClassNotFound, "there is no box %s on %s", ref.Name, ref.Fingerprint)
	case f.deleting:
		return nil, box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %s is being deleted; finish that", ref.Name)
	}
	if err := change(ctx, s, f); err != nil {
		return nil, box.Observation{}, s.after(err)
	}
	return s.report(ctx, id)
}

// Suspend stops or pauses the container and keeps the volume. A box whose container
// was removed is settled as suspended: nothing of it runs, and its files are there.
// FailedPrecondition: the container is dead; resume the box, or delete it. Unknown:
// what was read afterwards does not prove it; look again.
func (d *Driver) Suspend(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return d.toRest(ctx, ref, func(ctx context.Context, s *session, f *found) error {
		if f.container == nil {
			return nil
		}
		switch f.state() {
		case container.StatePaused:
			return nil
		case container.StateExited, container.StateCreated:
			if f.intent.suspends(f.life()) {
				return nil
			}
			return s.writeIntent(ctx, f, true, SuspendStop)
		case container.StateRunning, container.StateRestarting:
			if d.opts.Suspend == SuspendPause {
				return s.pause(ctx, f)
			}
			return d.stop(ctx, s, f)
		case container.StateRemoving, container.StateDead:
			return box.Errorf(box.ClassFailedPrecondition, "the container of box %s is %s; resume the box or delete it", ref.Name, f.state())
		}
		return box.Errorf(box.ClassUnknown, "the engine calls the container of box %s %q; ask again", ref.Name, string(f.state()))
	})
}

// Deepen stops a box that is paused, so that its memory is free as well. One that
// is suspended without its memory is left alone; one that is not suspended is
// FailedPrecondition, a gone one NotFound. It may be repeated, also when it was
// cut off, and wakes nothing: the engine thaws the processes only to end them.
// Unsupported where boxes are suspended by a stop: there is nothing deeper.
func (d *Driver) Deepen(ctx context.Context, ref box.Ref) (box.Observation, error) {
	if d.opts.Suspend != SuspendPause {
		return box.Observation{}, box.Errorf(box.ClassUnsupported, "boxes of this instance are suspended by a stop, and keep no memory")
	}
	return d.toRest(ctx, ref, func(ctx context.Context, s *session, f *found) error {
		switch seen := f.judge(); {
		case seen.phase == box.PhaseSuspended && !seen.frozen:
			return nil
		case seen.frozen:
			return d.stop(ctx, s, f)
		case f.state() == container.StateRunning:
			// Cut off between the thaw and the end?
			asked, err := s.readIntent(ctx, f.container.ID)
			if err == nil && asked.suspends(f.life()) && asked.Kind == SuspendStop {
				return d.stop(ctx, s, f)
			}
			return errors.Join(err, box.Errorf(box.ClassFailedPrecondition, "box %s runs; suspend it first", ref.Name))
		default:
			return box.Errorf(box.ClassFailedPrecondition, "box %s is %s (%s); suspend it first", ref.Name, seen.phase, seen.evidence)
		}
	})
}

// toRest is held for what must end with a suspended box.
func (d *Driver) toRest(ctx context.Context, ref box.Ref, change func(ctx context.Context, s *session, f *found) error) (box.Observation, error) {
	var kept string
	var bytes int64
	f, out, err := d.held(ctx, ref, func(ctx context.Context, s *session, f *found) (err error) {
		if err = change(ctx, s, f); err == nil {
			kept, err = d.keep(ctx, s, f.identity)
		}
		if err == nil { // before the last reading, which is the proof
			bytes = s.stored(ctx, f)
		}
		return err
	})
	if err == nil && f.bare() {
		out.Phase, out.MemoryKept = box.PhaseSuspended, box.No
	}
	if err == nil && out.Phase != box.PhaseSuspended {
		return box.Observation{}, box.Errorf(box.ClassUnknown, "box %s is %s after its suspend (%s); look again", ref.Name, out.Phase, out.Evidence)
	}
	if err == nil {
		out.Evidence, out.StoredBytes = out.Evidence+kept, bytes
	}
	return out, err
}

// pause reads the state first and after: the engine refuses to pause what is
// paused, with 409.
func (s *session) pause(ctx context.Context, f *found) error {
	if err := s.writeIntent(ctx, f, true, SuspendPause); err != nil {
		return err
	}
	err := s.act(ctx, quick, func(ctx context.Context) error {
		_, err := s.api.ContainerPause(ctx, f.container.ID, client.ContainerPauseOptions{})
		return err
	})
	if err == nil {
		return nil
	}
	now, broken := s.find(ctx, f.identity)
	if broken == nil && now.state() == container.StatePaused {
		return nil
	}
	if broken == nil && now.state() == container.StateRunning {
		broken = s.writeIntent(ctx, now, false, "") // it runs on, and not by accident
	}
	return errors.Join(fault(ctx, "pause box "+f.identity.Name(), err), broken)
}

// stop ends the processes of a container that runs or is paused, in order within
// the time for it, and proves that this run of them is over.
func (d *Driver) stop(ctx context.Context, s *session, f *found) error {
	name := f.identity.Name()
	if err := s.writeIntent(ctx, f, true, SuspendStop); err != nil {
		return err
	}
	err := s.act(ctx, d.opts.StopTimeout+forced, func(ctx context.Context) error {
		_, err := s.api.ContainerStop(ctx, f.container.ID, client.ContainerStopOptions{Timeout: seconds(d.opts.StopTimeout)})
		return err
	})
	if err != nil {
		return fault(ctx, "stop box "+name, err)
	}
	now, err := s.find(ctx, f.identity)
	switch {
	case err != nil:
		return err
	case now.container == nil || now.container.ID != f.container.ID:
		return box.Errorf(box.ClassUnknown, "the container of box %s was replaced while it was stopped; look again", name)
	case now.state() != container.StateExited || now.container.State.FinishedAt == f.container.State.FinishedAt:
		return box.Errorf(box.ClassUnknown, "the engine says that it stopped box %s, and it is %s, finished at %s; look again", name, now.state(), now.container.State.FinishedAt)
	case !now.intent.suspends(now.life()):
		return s.writeIntent(ctx, now, true, SuspendStop) // the box removed it
	}
	return nil
}

// Resume thaws the processes, or starts boxd again on the same volume, in a new
// container where somebody removed the old one. Unavailable: it ended right after
// its start, or the old container is still being removed.
func (d *Driver) Resume(ctx context.Context, ref box.Ref, start driver.Start) (box.Observation, error) {
	env, err := environ(ref.Name, start)
	if err != nil {
		return box.Observation{}, err
	}
	_, out, err := d.held(ctx, ref, func(ctx context.Context, s *session, f *found) error {
		switch f.state() {
		case container.StatePaused:
			return s.unpause(ctx, f)
		case container.StateRunning, container.StateRestarting:
			asked, err := s.readIntent(ctx, f.container.ID)
			if err != nil || !asked.suspends(f.life()) {
				return err
			}
			if asked.Kind == SuspendPause { // its pause did not come, or was undone
				return s.writeIntent(ctx, f, false, "")
			}
			// It was told to end and must not be taken for a running one.
			if err := d.stop(ctx, s, f); err != nil {
				return err
			}
			return d.restart(ctx, s, f, env)
		case container.StateRemoving:
			return box.Errorf(box.ClassUnavailable, "the container of box %s is being removed; ask again", ref.Name)
		case container.StateDead, container.StateCreated, container.StateExited, "":
		}
		return d.restart(ctx, s, f, env)
	})
	if err == nil && out.Phase != box.PhaseRunning {
		return box.Observation{}, box.Errorf(box.ClassUnavailable, "box %s is %s right after it was started (%s); \"docker logs %s\" says more", ref.Name, out.Phase, out.Evidence, ref.Name)
	}
	return out, err
}

// restart starts what does not run, in a new container where the old one is
// gone, or dead: one of those never starts again.
func (d *Driver) restart(ctx context.Context, s *session, f *found, env []byte) error {
	boxd, err := openProgram(d.opts.Boxd[0])
	if err != nil {
		return err
	}
	defer boxd.close()
	if f.state() == container.StateDead {
		if err := s.remove(ctx, f); err != nil {
			return err
		}
		f.container = nil
	}
	if f.container == nil {
		from := recipeOf(f.data.Labels)
		if f, err = d.make(ctx, s, f, from, boxd); err != nil {
			return err
		}
	}
	return s.start(ctx, f, boxd, env)
}

// unpause reads the state after a refusal: to unpause what is not paused is a
// fault of the engine's own (500).
func (s *session) unpause(ctx context.Context, f *found) error {
	if err := s.writeIntent(ctx, f, false, ""); err != nil {
		return err
	}
	err := s.act(ctx, quick, func(ctx context.Context) error {
		_, err := s.api.ContainerUnpause(ctx, f.container.ID, client.ContainerUnpauseOptions{})
		return err
	})
	if err == nil {
		return nil
	}
	if now, broken := s.find(ctx, f.identity); broken == nil && now.state() == container.StateRunning {
		return nil
	}
	return fault(ctx, "unpause box "+f.identity.Name(), err)
}

// remove takes a container away with its own anonymous volumes.
func (s *session) remove(ctx context.Context, f *found) error {
	err := s.act(ctx, forced, func(ctx context.Context) error {
		_, err := s.api.ContainerRemove(ctx, f.container.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		return err
	})
	switch {
	case err == nil, absent(ctx, err):
		return nil
	case errdefs.IsConflict(err): // "removal … is already in progress" (moby#22312)
		return box.Errorf(box.ClassUnavailable, "the container of box %s is being removed; ask again: %w", f.identity.Name(), quote(ctx, err))
	}
	return fault(ctx, "remove the container of box "+f.identity.Name(), err)
}
