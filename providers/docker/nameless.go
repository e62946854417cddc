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
	err = s.act(ctx, quick, func(ctx context.Context) error {
		_, err := s.api.ImageTag(ctx, client.ImageTagOptions{Source: one.id, Target: one.name})
		return err
	})
	if err != nil {
		return fault(ctx, "name image "+one.name, err)
	}
	// Another worker may have deleted the box meanwhile: it has not seen this.
	now, err := s.find(ctx, f.identity)
	if err != nil || !now.nothing() {
		return err
	}
	one.nameless = false
	return errors.Join(box.Errorf(box.ClassConflict, "box %s was deleted while its layer was committed", f.identity.Name()), s.removeSnapshot(ctx, f.identity, one))
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

// nameless lists what commits of ours left that did not come to be named. Images that
// others commit from what is ours inherit its labels, and have another comment.
func (s *session) nameless(ctx context.Context, id box.Identity) ([]snapshot, error) {
	images, err := s.images(ctx, id)
	if err != nil {
		return nil, err
	}
	var out []snapshot
	for _, one := range images {
		found, ok := snapshotOf(id, one.Labels[labelSnapshot])
		if !ok || hasName(one.RepoTags) || !is(one.Labels, id, roleSnapshot) {
			continue
		}
		switch there, err := s.look(ctx, one.ID); {
		case absent(ctx, err):
		case err != nil:
			return nil, fault(ctx, "read image "+one.ID, err)
		case there.Comment == snapshotNote && !hasName(there.RepoTags):
			found.id, found.nameless = one.ID, true
			out = append(out, found)
		}
	}
	return out, nil
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
	unlock, err := d.locks.Take(ctx, id.Name())
	if err != nil {
		return err
	}
	defer unlock()
	if err := driver.Ended(ctx); err != nil {
		return err
	}
	f, err := s.find(ctx, id)
	if err != nil || !f.nothing() || len(f.copies) > 0 { // a copy may be the box under another name
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
