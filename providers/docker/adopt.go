package docker

import (
	"context"

	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Adopt answers a box of ours, whose ref was lost: by the id or the name of its
// container, or by its name alone when it has none any more.
//
// A container without our labels is always refused. Labels can't be given to it
// later, nothing shows for whom it was made, and it does not run boxd, so that it
// could be neither reached nor resumed. What is in it is copied into a new box.
func (d *Driver) Adopt(ctx context.Context, id string, as box.Identity) (box.Observation, error) {
	if err := driver.Ended(ctx); err != nil {
		return box.Observation{}, err
	}
	if identity, ok := driver.IdentityOf(box.Ref{Name: as.Name(), Epoch: as.Epoch}); !ok || identity.Installation != d.installation {
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "%q is not a box of installation %s", as.Name(), d.installation)
	}
	ctx, s, err := d.connect(ctx)
	if err != nil {
		return box.Observation{}, err
	}
	there, labels, err := s.labelsOf(ctx, id)
	if err != nil {
		return box.Observation{}, err
	}
	own, ok := marked(labels)
	switch {
	case !ok:
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "container %s was not made by boxkeeper, and Docker gives no labels to one that is there; create a box and copy what you need", id)
	case own.Installation != as.Installation || own.Workspace != as.Workspace:
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "container %s is of workspace %s of installation %s; adopt it there", id, own.Workspace, own.Installation)
	}
	f, err := s.find(ctx, own)
	if err != nil {
		return box.Observation{}, err
	}
	if f.container == nil && f.data == nil || there != "" && (f.container == nil || f.container.ID != there) {
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "container %s has the labels of box %s and is not called so: rename it if it is the box; a copy is left alone", id, own.Name())
	}
	return s.observation(f), nil
}

// labelsOf returns the full id and the labels of a container, or only the labels
// of the volume of a box, which may have no container any more.
func (s *session) labelsOf(ctx context.Context, id string) (string, map[string]string, error) {
	short, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	answer, err := s.api.ContainerInspect(short, id, client.ContainerInspectOptions{})
	if err == nil && answer.Container.Config != nil {
		return answer.Container.ID, answer.Container.Config.Labels, nil
	}
	if err == nil {
		return "", nil, box.Errorf(box.ClassUnknown, "the engine does not say what container %s is; ask again", id)
	}
	if !absent(ctx, err) {
		return "", nil, fault(ctx, "read container "+id, err)
	}
	volume, err := s.api.VolumeInspect(short, id, client.VolumeInspectOptions{})
	if absent(ctx, err) || err == nil && volume.Volume.Labels[labelRole] != roleData {
		return "", nil, box.Errorf(box.ClassNotFound, "the engine has no container %s", id)
	}
	if err != nil {
		return "", nil, fault(ctx, "read volume "+id, err)
	}
	return "", volume.Volume.Labels, nil
}
