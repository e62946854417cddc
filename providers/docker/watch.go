package docker

import (
	"context"
	"io"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Watch follows the engine's events of our containers, after it has told of the
// boxes that ended earlier. It ends with an error when the stream does: whoever
// watches again hears of what it missed.
//
// It also removes images of commits that ended after their box was deleted, when it
// begins and when one ends.
//
// Of a container and a volume that others removed together nothing is told: that
// cannot be told from the end of a deletion of ours.
func (d *Driver) Watch(ctx context.Context, emit func(driver.Listed)) error {
	// The stream is open for as long as it lasts, and so is not the call that asks.
	stream, cancel := context.WithCancel(ctx)
	defer cancel()
	_, s, err := d.connect(ctx)
	if err != nil {
		return quiet(ctx, err)
	}
	told := s.api.Events(stream, client.EventsListOptions{Filters: make(client.Filters).
		Add("type", string(events.ContainerEventType)).
		Add("label", labelInstallation+"="+d.installation).
		Add("event", string(events.ActionDie), string(events.ActionDestroy), string(events.ActionPause), string(events.ActionUnPause), string(events.ActionCommit))})
	// After the stream is open: what changes from here on is in it.
	all, err := s.all(ctx, d.installation)
	if err != nil {
		return quiet(ctx, err)
	}
	for _, f := range all {
		d.tell(s, f, emit)
	}
	d.swept(ctx, s, box.Identity{Installation: d.installation})
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-told.Err:
			if err == nil {
				err = io.EOF
			}
			return quiet(ctx, fault(ctx, "listen to the engine; watch again", err))
		case event := <-told.Messages:
			if err := d.heard(ctx, event, emit); err != nil {
				return quiet(ctx, err)
			}
		}
	}
}

// quiet is no error once the watcher has had enough.
func quiet(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// heard looks at the box of an event. The event itself is old already.
func (d *Driver) heard(ctx context.Context, event events.Message, emit func(driver.Listed)) error {
	id, ok := marked(event.Actor.Attributes)
	if !ok || id.Installation != d.installation || event.Actor.Attributes["name"] != id.Name() {
		return nil // a copy, or a name that only looks like ours
	}
	ctx, s, err := d.connect(ctx)
	if err != nil {
		return err
	}
	if event.Action == events.ActionCommit {
		d.swept(ctx, s, id)
		return nil
	}
	f, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	if f.state() == container.StateRunning {
		if f.intent, err = s.readIntent(ctx, f.container.ID); err != nil {
			return err
		}
		if event.Action == events.ActionUnPause && f.intent.suspends(f.life()) && f.intent.Kind == SuspendPause {
			emit(driver.Listed{Identity: id, Observation: s.observation(f)}) // somebody thawed it
		}
		return nil
	}
	d.tell(s, f, emit)
	return nil
}

// swept sweeps, and goes on when that fails: the next look finds what is left.
func (d *Driver) swept(ctx context.Context, s *session, of box.Identity) {
	if err := d.sweep(ctx, s, of); err != nil {
		d.opts.Logger.Warn("images of boxes that are gone may be left; they are looked for again", "error", box.OneLine(err.Error(), 400))
	}
}

// tell emits what a box has become, if that was not our doing.
func (d *Driver) tell(s *session, f *found, emit func(driver.Listed)) {
	if f.deleting {
		return
	}
	seen := f.judge()
	asked := f.intent.suspends(f.life())
	switch {
	case f.state() == container.StateCreated: // its start was refused, and whoever started it knows
		return
	case seen.phase == box.PhaseFailed:
	case seen.frozen && !asked: // somebody paused it
	case seen.phase == box.PhaseSuspended && !seen.frozen && f.intent.Kind == SuspendPause: // it ended while it was paused
	default:
		return
	}
	emit(driver.Listed{Identity: f.identity, Observation: s.observation(f)})
}
