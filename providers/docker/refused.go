package docker

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
)

// forGood is in the chain of an error with which the engine itself refuses a
// container in a way that no further try gets past.
type forGood struct{ error }

func (r forGood) Unwrap() error { return r.error }

// refusal is the fault of a container that cannot be made or started. The engine is
// certain where it calls the request itself wrong, and where the network is not
// there that the container is to be in [engine 20.10, 30 Nov 2026: an unknown
// runtime is 400 at the create, a program that cannot run 400 and an unknown network
// 404 at the start]. A port that is taken is its 500, and may be free later.
func refusal(ctx context.Context, what string, err error) error {
	h, ok := ctx.Value(heardKey{}).(*heard)
	own := ok && !h.foreign.Load() && !h.long.Load()
	switch {
	case own && h.status.Load() == http.StatusBadRequest && classOf(ctx, err) == box.ClassInvalid:
		return &box.Error{Class: box.ClassInvalid, Message: what, Err: forGood{quote(ctx, err)}}
	case says(ctx, err, "network ") && strings.Contains(strings.ToLower(err.Error()), " not found"):
		return &box.Error{Class: box.ClassFailedPrecondition, Message: what + ": make the network, or name another in the setting network", Err: forGood{quote(ctx, err)}}
	}
	return fault(ctx, what, err)
}

// undone takes back what was made of a box that never ran, by this call or by an
// earlier one that did not live to its end, after the engine refused it for good, and
// returns the refusal: nothing is done then. Nothing is taken back that may have run,
// by force, or that anything uses, and no volume that holds anything, unless it was
// made by this call: before is what was there at its beginning. Where something
// is left the outcome is not certain, and the box is looked at again.
func (s *session) undone(ctx context.Context, before *found, why error) error {
	if _, certain := errors.AsType[forGood](why); !certain {
		return why
	}
	id := before.identity
	f, err := s.find(ctx, id)
	if err != nil {
		return errors.Join(why, err)
	}
	switch {
	case f.deleting, f.container != nil && !f.unstarted(): // another worker was luckier
		return why
	case before.data != nil && f.data != nil && !s.hollow(ctx, f):
		return why
	}
	if f.container != nil {
		err := s.act(ctx, forced, func(ctx context.Context) error {
			_, err := s.api.ContainerRemove(ctx, f.container.ID, client.ContainerRemoveOptions{RemoveVolumes: true})
			return err
		})
		if err != nil && !absent(ctx, err) {
			return errors.Join(why, fault(ctx, "remove the container of box "+id.Name()+", which never ran", err))
		}
	}
	for _, v := range f.volumes {
		if err := s.removeVolume(ctx, v.Name, id.Name()); err != nil {
			return errors.Join(why, err)
		}
	}
	left, err := s.find(ctx, id)
	switch {
	case err != nil:
		return errors.Join(why, err)
	case left.nothing():
		s.acted = false
	}
	return why
}

// hollow reports whether nothing is in the volume of a box and it has left no image, as
// it is with one that never ran. Where the engine does not say so in time, or not for
// certain, it is not.
func (s *session) hollow(ctx context.Context, f *found) bool {
	short, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	holds, ok := s.holds(short, f.data.Name)
	ours, left, err := s.kept(ctx, f.identity)
	return ok && holds == 0 && err == nil && len(ours)+len(left) == 0
}
