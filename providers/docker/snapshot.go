package docker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	imagetypes "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// A snapshot is an image of the layer of a box's container: what was installed
// outside of the volume, for the day on which somebody removes the container. It
// is ours when it has the labels and the name. Those that are built on it inherit
// the labels, and have other names.
type snapshot struct {
	id, name string
	ended    time.Time // the end of the run whose layer it is
	nameless bool      // it was to get that name, and did not
}

const (
	// committing bounds one commit, which reads the whole layer. It is less than a
	// step has, so that one that takes too long does not fail the suspend for ever.
	committing = 15 * time.Minute
	// snapshotTag begins the tag of each. The end of the run follows, and what
	// tells two apart that were made of one run: an image whose name is given to
	// another one has none any more, and nobody would know whose it is.
	snapshotTag  = "snapshot-"
	snapshotNote = "boxkeeper snapshot" // the comment of each
)

func snapshotName(id box.Identity, ended time.Time) string {
	return id.Name() + ":" + snapshotTag + strconv.FormatInt(ended.UnixNano(), 10) + "-" + strings.ToLower(rand.Text()[:8])
}

// snapshotOf reads the name of an image, false for one that is not a snapshot's.
func snapshotOf(id box.Identity, name string) (snapshot, bool) {
	name = strings.TrimPrefix(name, "docker.io/library/")
	rest, ok := strings.CutPrefix(name, id.Name()+":"+snapshotTag)
	nanos, _, parts := strings.Cut(rest, "-")
	at, err := strconv.ParseInt(nanos, 10, 64)
	return snapshot{name: name, ended: time.Unix(0, at).UTC()}, ok && parts && err == nil
}

// snapshots lists those of a box, that of the last run first.
func (s *session) snapshots(ctx context.Context, id box.Identity) ([]snapshot, error) {
	images, err := s.images(ctx, id)
	return snapshotsIn(images, id), err
}

// snapshotsIn picks the snapshots of a box out of a list of images.
func snapshotsIn(images []imagetypes.Summary, id box.Identity) (out []snapshot) {
	for _, one := range images {
		for _, name := range one.RepoTags {
			if found, ok := snapshotOf(id, name); ok && is(one.Labels, id, roleSnapshot) {
				found.id = one.ID
				out = append(out, found)
			}
		}
	}
	slices.SortFunc(out, func(a, b snapshot) int { return cmp.Or(b.ended.Compare(a.ended), strings.Compare(b.name, a.name)) })
	return out
}

// images lists those with the labels of a box, or with an installation alone of all.
func (s *session) images(ctx context.Context, id box.Identity) ([]imagetypes.Summary, error) {
	short, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	images, err := s.api.ImageList(short, client.ImageListOptions{Filters: filter(id)})
	if err != nil {
		return nil, fault(ctx, "list the snapshots of box "+id.Name(), err)
	}
	if images.Items == nil { // an engine's list of none is empty, and not null
		return nil, box.Errorf(box.ClassUnknown, "the engine's list of images is none, so nothing that is not in it is proven gone")
	}
	for _, one := range images.Items {
		if !asked(one.Labels, id) {
			return nil, box.Errorf(box.ClassUnknown, "the engine lists image %s without the labels that were asked for, so nothing that it does not list is proven gone", one.ID)
		}
	}
	return images.Items, nil
}

// keep commits the layer of a container that was stopped, unless that was done
// already or nothing is in it. What it says goes with the evidence. An error of
// the engine is no error here: the box is suspended without a snapshot, and would
// not be by a next try. Only the end of ctx is one.
func (d *Driver) keep(ctx context.Context, s *session, id box.Identity) (string, error) {
	if !d.opts.Snapshot {
		return "", nil
	}
	f, err := s.find(ctx, id)
	if err != nil {
		return "", err
	}
	var told string
	switch {
	case f.bare(): // its layer is gone, and may have left an image without a name
		var ours []snapshot
		if ours, err = s.rescued(ctx, id); len(ours) > 0 {
			told = keptAs(ours[0])
		}
	case f.state() != container.StateExited || !f.intent.suspends(f.life()):
		return "", nil // it is frozen, or never ran
	default:
		told, err = s.commit(ctx, f)
	}
	switch over := driver.Ended(ctx); {
	case over != nil:
		return "", over
	case err != nil:
		return box.OneLine(", and no snapshot of its layer is known: "+err.Error(), 400), nil //nolint:nilerr // see above
	}
	return told, nil
}

// commit makes the snapshot, and removes those that it replaces.
func (s *session) commit(ctx context.Context, f *found) (string, error) {
	ended := instant(f.container.State.FinishedAt)
	ours, err := s.snapshots(ctx, f.identity)
	if err != nil {
		return "", err
	}
	ofThisRun := func(one snapshot) bool { return one.ended.Equal(ended) }
	if !slices.ContainsFunc(ours, ofThisRun) {
		if len(ours) == 0 || ours[0].id == f.container.Image {
			if !s.layered(ctx, f) {
				return "", nil
			}
		}
		err := s.capture(ctx, f, ended)
		// An answer may be lost, and the list tells.
		now, broken := s.snapshots(ctx, f.identity)
		switch {
		case broken != nil:
			return "", broken
		case slices.ContainsFunc(now, ofThisRun):
			ours = now
		case err != nil:
			return "", err
		default:
			return "", box.Errorf(box.ClassUnknown, "the engine says that it named the image of the layer, and lists none of that name")
		}
	}
	at := slices.IndexFunc(ours, ofThisRun)
	s.tidy(ctx, f, ours[at], slices.Delete(slices.Clone(ours), at, at+1))
	return keptAs(ours[at]), nil
}

func keptAs(one snapshot) string { return ", its layer kept as image " + one.name }

// layered reports whether anything is in the layer that we did not put there
// ourselves. What cannot be read counts.
func (s *session) layered(ctx context.Context, f *found) bool {
	short, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	answer, err := s.api.ContainerDiff(short, f.container.ID, client.ContainerDiffOptions{})
	if err != nil {
		return true
	}
	return slices.ContainsFunc(answer.Changes, func(one container.FilesystemChange) bool {
		switch at := one.Path; {
		case at == boxRoot, at == ownDir, strings.HasPrefix(at, ownDir+"/"):
			return false
		case at == "/sbin/docker-init", at == "/usr/sbin/docker-init", at == "/sbin", at == "/usr/sbin", at == "/usr": // by the engine, and what lies above
			return false
		}
		return true
	})
}

// withoutSecrets makes sure that the environment of a start is not in the layer:
// one that boxd did not come to read is there still.
func (s *session) withoutSecrets(ctx context.Context, f *found) error {
	for range 2 {
		there, err := s.readFile(ctx, f.container.ID, envFile)
		if err != nil || len(there) == 0 {
			return err
		}
		if err := s.writeFiles(ctx, f, "empty the environment of", []entry{{name: envFile, mode: 0o600, from: bytes.NewReader(nil)}}); err != nil {
			return err
		}
	}
	return box.Errorf(box.ClassUnknown, "the environment of box %s can't be emptied", f.identity.Name())
}

// tidy removes snapshots that newest replaces, and what commits left without a name.
// Those that it stands on stay: they are layers of it, and hold nothing that it does
// not. One that somebody uses stays too, until the box is deleted.
func (s *session) tidy(ctx context.Context, f *found, newest snapshot, older []snapshot) {
	left, _ := s.nameless(ctx, f.identity) // the next one finds them
	for _, one := range left {
		_ = s.removeSnapshot(ctx, f.identity, one)
	}
	if len(older) == 0 {
		return
	}
	top, err := s.look(ctx, newest.name)
	if err != nil {
		return
	}
	for _, one := range older {
		below, err := s.look(ctx, one.name)
		if err != nil || one.id == f.container.Image {
			continue
		}
		if n := len(below.RootFS.Layers); n < len(top.RootFS.Layers) && slices.Equal(below.RootFS.Layers, top.RootFS.Layers[:n]) {
			continue
		}
		_ = s.removeSnapshot(ctx, f.identity, one)
	}
}

// removeSnapshot takes a snapshot away by its name, or one without a name by its id,
// never by force and never what lies below: an image that somebody has built on it, or
// has given another name, stays as theirs. So does one that was given this name since
// the list was read.
func (s *session) removeSnapshot(ctx context.Context, id box.Identity, one snapshot) error {
	by := one.name
	if one.nameless {
		by = one.id
	}
	switch there, err := s.look(ctx, by); {
	case absent(ctx, err):
		return nil
	case err != nil:
		return fault(ctx, "read image "+by, err)
	case there.ID != one.id, one.nameless && hasName(there.RepoTags):
		return nil
	}
	err := s.act(ctx, forced, func(ctx context.Context) error {
		_, err := s.api.ImageRemove(ctx, by, client.ImageRemoveOptions{})
		return err
	})
	switch {
	case err == nil, absent(ctx, err):
		return nil
	case errdefs.IsConflict(err):
		return box.Errorf(box.ClassUnavailable, "image %s of box %s is used by another container; remove that, and delete the box again: %w", by, id.Name(), quote(ctx, err))
	}
	return fault(ctx, "remove image "+by, err)
}

// source is the image that the container of a box is made of: the newest snapshot
// of one that had a container before, else what was asked for.
func (d *Driver) source(ctx context.Context, s *session, f *found, from recipe, boxd *program) (image imageOf, err error) {
	if f.data != nil {
		ours, err := s.rescued(ctx, f.identity)
		if err != nil {
			return imageOf{}, err
		}
		if len(ours) > 0 {
			found, err := s.look(ctx, ours[0].name)
			if err != nil {
				err = fault(ctx, "read image "+ours[0].name, err)
			} else {
				image, err = vet(ours[0].name, found, boxd)
			}
			if err != nil {
				return imageOf{}, ofSnapshot(f.identity, ours[0].name, false, err)
			}
			image.snapshot = true
			return image, nil
		}
	}
	return d.image(ctx, s, from.image, boxd)
}

// ofSnapshot is the error of a container that cannot be made of a snapshot, or not
// started the first time. Nobody takes a snapshot away in order to go on: what was
// installed outside of the volume would be lost without a word. So it says what is
// safe, and what a person can do.
func ofSnapshot(id box.Identity, image string, made bool, err error) error {
	name := id.Name()
	remove := "docker image rm " + image
	if made {
		remove = "docker rm " + name + " && " + remove
	}
	out := &box.Error{Class: box.ClassOf(err), Err: err, Message: "the container of box " + name + " was removed, and no other can be made of its snapshot, image " + image +
		". The box's files are whole in volume " + name + ". If asking again does not help, the image is broken: after \"" + remove + "\" a resume goes on with the snapshot before, or without any, and what was installed outside of " + boxRoot + " since is lost"}
	if e, ok := errors.AsType[*box.Error](err); ok {
		out.RetryAfter = e.RetryAfter
	}
	return out
}
