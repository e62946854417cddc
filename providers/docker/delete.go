package docker

import (
	"context"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
)

// Delete removes the container, then the snapshots, and then every volume with
// the box's labels. A mark that deletion began comes first and goes last, so that
// what is left by one that was cut off is never taken for a box that lost its
// container. Unavailable: a container of somebody else uses a volume or a snapshot,
// or the removal is under way; delete it again.
func (d *Driver) Delete(ctx context.Context, ref box.Ref) (box.Observation, error) {
	unlock, err := d.locks.Take(ctx, ref.Name)
	if err != nil {
		return box.Observation{}, err
	}
	defer unlock()
	ctx, s, id, err := d.own(ctx, ref)
	if err != nil {
		return box.Observation{}, err
	}
	out, err := d.erase(ctx, s, id, ref)
	return out, s.after(err)
}

func (d *Driver) erase(ctx context.Context, s *session, id box.Identity, ref box.Ref) (box.Observation, error) {
	gone := box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: "the engine lists no container, no volume and no snapshot with its labels"}
	f, err := s.find(ctx, id)
	if err == nil {
		err = f.renamed(ref)
	}
	if err != nil {
		return box.Observation{}, err
	}
	ours, left, err := s.kept(ctx, id)
	if err != nil {
		return box.Observation{}, err
	}
	if f.nothing() && len(ours)+len(left) == 0 {
		return gone, d.still(ctx, s.print)
	}
	mark := deletingVolume(ref.Name)
	if !f.deleting {
		if err := s.volume(ctx, mark, marks(id, roleDeleting), id, roleDeleting); err != nil {
			return box.Observation{}, err
		}
	}
	if f.container != nil {
		if err := s.remove(ctx, f); err != nil {
			return box.Observation{}, err
		}
	}
	if err := s.removeImages(ctx, id, append(ours, left...), &gone); err != nil {
		return box.Observation{}, err
	}
	// Once more: one whose name somebody gave to another image has none now.
	if left, err = s.nameless(ctx, id); err != nil {
		return box.Observation{}, err
	}
	if err := s.removeImages(ctx, id, left, &gone); err != nil {
		return box.Observation{}, err
	}
	for _, v := range f.volumes {
		if v.Name == mark {
			continue
		}
		if err := s.removeVolume(ctx, v.Name, ref.Name); err != nil {
			return box.Observation{}, err
		}
	}
	if err := s.removeVolume(ctx, mark, ref.Name); err != nil {
		return box.Observation{}, err
	}
	if f, err = s.find(ctx, id); err != nil {
		return box.Observation{}, err
	}
	if ours, left, err = s.kept(ctx, id); err != nil {
		return box.Observation{}, err
	}
	if !f.nothing() || len(ours)+len(left) > 0 {
		return box.Observation{}, box.Errorf(box.ClassUnavailable, "box %s is not gone yet; delete it again", ref.Name)
	}
	return gone, d.still(ctx, s.print)
}

// removeImages removes images in their order, the upper ones first, and adds those
// without a name to the evidence: nobody knew of them.
func (s *session) removeImages(ctx context.Context, id box.Identity, all []snapshot, gone *box.Observation) error {
	for _, one := range all {
		if err := s.removeSnapshot(ctx, id, one); err != nil {
			return err
		}
		if one.nameless {
			gone.Evidence += "; image " + one.id + " of a commit that nobody waited for was removed"
		}
	}
	return nil
}

func (s *session) removeVolume(ctx context.Context, name, of string) error {
	err := s.act(ctx, forced, func(ctx context.Context) error {
		_, err := s.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
		return err
	})
	switch {
	case err == nil, absent(ctx, err):
		return nil
	case errdefs.IsConflict(err):
		return box.Errorf(box.ClassUnavailable, "volume %s of box %s is used by another container; remove that, and delete the box again: %w", name, of, quote(ctx, err))
	}
	return fault(ctx, "remove volume "+name, err)
}
