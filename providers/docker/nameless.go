package docker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// capture commits the layer and then gives the image its name. The name comes last,
// since an engine finishes a commit whose caller is gone [20.10.24, 30 Nov 2026]: what
// that leaves is nobody's snapshot, and may be taken away when its box is gone, while
// a snapshot may be all that is left of a box that somebody removed by hand. An image
// that an earlier try left of this run gets its name now.
func (s *session) capture(ctx context.Context, f *found, ended time.Time) error {
	one, err := s.leftOf(ctx, f.identity, ended)
	if err != nil {
		return err
	}
	if !one.nameless {
		if err := s.withoutSecrets(ctx, f); err != nil {
			return err
		}
		failed := s.act(ctx, committing, func(ctx context.Context) error {
			_, err := s.api.ContainerCommit(ctx, f.container.ID, client.ContainerCommitOptions{Comment: snapshotNote, NoPause: true, Changes: []string{
				"LABEL " + labelRole + "=" + roleSnapshot, "LABEL " + labelSnapshot + "=" + snapshotName(f.identity, ended),
			}})
			return err
		})
		one, err = s.leftOf(ctx, f.identity, ended) // the answer may be lost
		switch {
		case err != nil:
			return err
		case !one.nameless && failed != nil:
			return fault(ctx, "commit the layer of box "+f.identity.Name(), failed)
		case !one.nameless:
			return box.Errorf(box.ClassUnknown, "the engine says that it committed the layer of box %s, and lists no image of it", f.identity.Name())
		}
	}
	return s.name(ctx, f.identity, one)
}

// name makes a snapshot of a nameless image: under the name that it was to get, or
// under another one where that is another image's by now, which would have none then.
func (s *session) name(ctx context.Context, id box.Identity, one snapshot) error {
	switch there, err := s.look(ctx, one.name); {
	case absent(ctx, err):
	case err != nil:
		return fault(ctx, "read image "+one.name, err)
	case there.ID == one.id: // another worker was first
		return nil
	default:
		one.name = snapshotName(id, one.ended)
	}
	err := s.act(ctx, quick, func(ctx context.Context) error {
		_, err := s.api.ImageTag(ctx, client.ImageTagOptions{Source: one.id, Target: one.name})
		return err
	})
	if err != nil {
		return fault(ctx, "name image "+one.name, err)
	}
	// Another worker may have deleted the box meanwhile: it has not seen this.
	now, err := s.find(ctx, id)
	if err != nil || !now.nothing() || len(now.copies) > 0 {
		return err
	}
	one.nameless = false
	return errors.Join(box.Errorf(box.ClassConflict, "box %s was deleted while its layer was committed", id.Name()), s.removeSnapshot(ctx, id, one))
}

// rescued lists the snapshots of a box whose container is gone, after the image of its
// last run has its name: where a commit outlived its caller, and somebody removed the
// container before the next try, that is all that is left of the layer.
func (s *session) rescued(ctx context.Context, id box.Identity) ([]snapshot, error) {
	ours, left, err := s.kept(ctx, id)
	if err != nil || len(left) == 0 || len(ours) > 0 && !left[0].ended.After(ours[0].ended) {
		return ours, err
	}
	if err := s.name(ctx, id, left[0]); err != nil {
		return nil, err
	}
	ours, err = s.snapshots(ctx, id)
	if err == nil && (len(ours) == 0 || !ours[0].ended.Equal(left[0].ended)) {
		err = box.Errorf(box.ClassUnknown, "the engine says that it named image %s, and lists none of that name", left[0].id)
	}
	return ours, err
}

// leftOf is a nameless image of the run that ended then; one that is not nameless is
// none.
func (s *session) leftOf(ctx context.Context, id box.Identity, ended time.Time) (snapshot, error) {
	left, err := s.nameless(ctx, id)
	if at := slices.IndexFunc(left, func(one snapshot) bool { return one.ended.Equal(ended) }); at >= 0 {
		return left[at], err
	}
	return snapshot{}, err
}

// nameless lists what commits of ours left that did not come to be named, that of the
// last run first. Images that others commit from what is ours inherit its labels, and
// have another comment.
func (s *session) nameless(ctx context.Context, id box.Identity) ([]snapshot, error) {
	_, left, err := s.kept(ctx, id)
	return left, err
}

// kept lists all images of a box that are ours: its snapshots as snapshots does, and
// those without a name as nameless does.
func (s *session) kept(ctx context.Context, id box.Identity) (ours, left []snapshot, err error) {
	images, err := s.images(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	for _, one := range images {
		found, ok := snapshotOf(id, one.Labels[labelSnapshot])
		if !ok || hasName(one.RepoTags) || !is(one.Labels, id, roleSnapshot) {
			continue
		}
		switch there, err := s.look(ctx, one.ID); {
		case absent(ctx, err):
		case err != nil:
			return nil, nil, fault(ctx, "read image "+one.ID, err)
		case there.Comment == snapshotNote && !hasName(there.RepoTags):
			found.id, found.nameless = one.ID, true
			left = append(left, found)
		}
	}
	slices.SortStableFunc(left, func(a, b snapshot) int { return b.ended.Compare(a.ended) })
	return snapshotsIn(images, id), left, nil
}

// hasName reports whether an image has a name. Lists of engines before API 1.43 give
// a word to those that have none.
func hasName(tags []string) bool {
	return slices.ContainsFunc(tags, func(tag string) bool { return tag != "<none>:<none>" })
}

// sweep removes what commits left of boxes of which there is nothing else: such a
// commit ended after its box was deleted, so nothing of the box has seen it. No box can
// need it, as it is no snapshot yet. It is told to the log: no box is left that could
// tell it.
func (d *Driver) sweep(ctx context.Context, s *session, of box.Identity) error {
	images, err := s.images(ctx, of)
	if err != nil {
		return err
	}
	boxes := map[box.Identity]bool{}
	for _, one := range images {
		if id, ok := marked(one.Labels); ok && one.Labels[labelRole] == roleSnapshot && !hasName(one.RepoTags) {
			boxes[id] = true
		}
	}
	var all []error
	for id := range boxes {
		all = append(all, d.sweepBox(ctx, s, id))
	}
	return errors.Join(all...)
}

func (d *Driver) sweepBox(ctx context.Context, s *session, id box.Identity) error {
	// Before the lock: a suspend has it for as long as its commit takes, and who
	// watches the other boxes waits for none that is there.
	if gone, err := s.gone(ctx, id); err != nil || !gone {
		return err
	}
	unlock, err := d.locks.Take(ctx, id.Name())
	if err != nil {
		return err
	}
	defer unlock()
	if err := driver.Ended(ctx); err != nil {
		return err
	}
	if gone, err := s.gone(ctx, id); err != nil || !gone {
		return err
	}
	left, err := s.nameless(ctx, id)
	if err != nil {
		return err
	}
	var all []error
	for _, one := range left {
		if err := s.removeSnapshot(ctx, id, one); err != nil { // one that somebody uses keeps no other
			all = append(all, err)
			continue
		}
		d.opts.Logger.Info("removed an image of a box that is gone: its commit ended after the box", "box", id.Name(), "image", one.id)
	}
	return errors.Join(all...)
}

// gone reports whether nothing is left of a box but images without a name. A copy may
// be the box under another name, and a snapshot says that nobody deleted it.
func (s *session) gone(ctx context.Context, id box.Identity) (bool, error) {
	f, err := s.find(ctx, id)
	if err != nil || !f.nothing() || len(f.copies) > 0 {
		return false, err
	}
	ours, err := s.snapshots(ctx, id)
	return err == nil && len(ours) == 0, err
}
