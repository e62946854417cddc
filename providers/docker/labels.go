package docker

import (
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// The labels of what is ours, below a prefix that is ours alone. A person's own
// labels stand below labelUser: under their own names they could be what another
// program takes its containers by, and removes them.
const (
	labelPrefix       = "com.github.openhands.boxkeeper."
	labelInstallation = labelPrefix + "installation"
	labelWorkspace    = labelPrefix + "workspace"
	labelEpoch        = labelPrefix + "epoch"
	labelRole         = labelPrefix + "role"
	labelImage        = labelPrefix + "image"    // as it was asked for
	labelPort         = labelPrefix + "port"     // the one that is kept for the box
	labelFrom         = labelPrefix + "from"     // the snapshot that a container was made of
	labelSnapshot     = labelPrefix + "snapshot" // the name that a commit is to get
	labelUser         = labelPrefix + "label."
)

// The roles of what is labelled.
const (
	roleBox      = "box"      // the container
	roleData     = "data"     // the volume with all that the box must not lose
	rolePort     = "port"     // a volume that says whose a port is
	roleSnapshot = "snapshot" // an image of the container's layer
	roleDeleting = "deleting" // a volume that says that the box is being deleted
)

// foreign returns the first label by which another program owns its containers,
// empty for none. An image may carry one, and its containers inherit it: such a
// box would be removed by its other owner.
func foreign(labels map[string]string) string {
	for _, label := range []string{"ai.openhands.runtime-owner", "ai.openhands.conversation-id", "sandbox_spec_id"} {
		if _, ok := labels[label]; ok {
			return label
		}
	}
	return ""
}

func portVolume(port uint16) string     { return "boxkeeper-port-" + strconv.Itoa(int(port)) }
func deletingVolume(name string) string { return name + ".deleting" }

// marks are the labels of an identity, for one role.
func marks(id box.Identity, role string) map[string]string {
	return map[string]string{
		labelInstallation: id.Installation,
		labelWorkspace:    id.Workspace,
		labelEpoch:        strconv.Itoa(id.Epoch),
		labelRole:         role,
	}
}

// marked reads the identity out of labels. It is false for a part that is
// missing or not as we write it: such a thing is not ours.
func marked(labels map[string]string) (box.Identity, bool) {
	epoch, err := strconv.Atoi(labels[labelEpoch])
	if err != nil || strconv.Itoa(epoch) != labels[labelEpoch] {
		return box.Identity{}, false
	}
	id := box.Identity{Installation: labels[labelInstallation], Workspace: labels[labelWorkspace], Epoch: epoch}
	again, ok := driver.IdentityOf(box.Ref{Name: id.Name(), Epoch: epoch})
	return id, ok && again == id
}

// is reports whether labels are those of id in one role.
func is(labels map[string]string, id box.Identity, role string) bool {
	got, ok := marked(labels)
	return ok && got == id && labels[labelRole] == role
}

// rightName reports whether a volume is called as its labels say. One that
// somebody made with the labels of ours, as a copy, is left alone.
func rightName(v volume.Volume, id box.Identity) bool {
	switch v.Labels[labelRole] {
	case roleData:
		return v.Name == id.Name()
	case roleDeleting:
		return v.Name == deletingVolume(id.Name())
	case rolePort:
		port, err := strconv.ParseUint(v.Labels[labelPort], 10, 16)
		return err == nil && v.Name == portVolume(uint16(port))
	}
	return false
}

// asked reports whether labels are among those that filter selects.
func asked(labels map[string]string, id box.Identity) bool {
	return labels[labelInstallation] == id.Installation &&
		(id.Workspace == "" || labels[labelWorkspace] == id.Workspace && labels[labelEpoch] == strconv.Itoa(id.Epoch))
}

// filter selects by the labels of one identity, or of an installation.
func filter(id box.Identity) client.Filters {
	f := make(client.Filters).Add("label", labelInstallation+"="+id.Installation)
	if id.Workspace != "" {
		f.Add("label", labelWorkspace+"="+id.Workspace, labelEpoch+"="+strconv.Itoa(id.Epoch))
	}
	return f
}

// named reports whether names of a list, which come with a slash and with those
// of links among them, hold name.
func named(names []string, name string) bool {
	for _, one := range names {
		if strings.TrimPrefix(one, "/") == name {
			return true
		}
	}
	return false
}
