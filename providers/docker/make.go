package docker

import (
	"context"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// portIn is where boxd listens in its container.
const portIn = 8000

// recipe is what a container is made from. It stands in the labels of the
// volume, so that a container that somebody removed can be made again.
type recipe struct {
	image  string
	labels map[string]string // a person's own
}

func (r recipe) marks(id box.Identity, role string) map[string]string {
	out := marks(id, role)
	out[labelImage] = r.image
	for name, value := range r.labels {
		out[labelUser+name] = value
	}
	return out
}

// recipeOf reads it back.
func recipeOf(labels map[string]string) recipe {
	out := recipe{image: labels[labelImage], labels: map[string]string{}}
	for name, value := range labels {
		if name, ok := strings.CutPrefix(name, labelUser); ok {
			out.labels[name] = value
		}
	}
	return out
}

// make makes the container of a box that has none, and its volume when it has
// none either, and answers what is there then.
func (d *Driver) make(ctx context.Context, s *session, f *found, from recipe, boxd *program) (*found, error) {
	name := f.identity.Name()
	if err := s.free(ctx, f); err != nil {
		return nil, err
	}
	image, err := d.source(ctx, s, f, from, boxd)
	if err != nil {
		return nil, err
	}
	port, err := d.reserve(ctx, s, f)
	if err != nil {
		return nil, err
	}
	if err := s.volume(ctx, name, from.marks(f.identity, roleData), f.identity, roleData); err != nil {
		return nil, err
	}
	err = s.act(ctx, forced, func(ctx context.Context) error {
		_, err := s.api.ContainerCreate(ctx, d.container(s, f.identity, from, image, port))
		return err
	})
	switch {
	case errdefs.IsConflict(err): // another worker was first, or a stranger: the labels tell
	case err != nil:
		err = refusal(ctx, "make the container of box "+name, err)
		if image.snapshot {
			err = ofSnapshot(f.identity, image.name, false, err)
		}
		return nil, err
	}
	made, err := s.find(ctx, f.identity)
	if err == nil && made.container == nil {
		err = box.Errorf(box.ClassAlreadyExists, "a container named %s is there and is not this box; rename or remove it", name)
	}
	return made, err
}

// free refuses a name that a stranger has, and a volume that a container under
// another name uses: that one may be this box, renamed.
func (s *session) free(ctx context.Context, f *found) error {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	name := f.identity.Name()
	answer, err := s.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	switch {
	case absent(ctx, err):
	case err != nil:
		return fault(ctx, "look for a container named "+name, err)
	case named([]string{answer.Container.Name}, name) && !is(configLabels(answer.Container), f.identity, roleBox):
		return box.Errorf(box.ClassAlreadyExists, "container %s is there and is not this box; rename or remove it", name)
	}
	if f.data == nil {
		return nil
	}
	users, err := s.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("volume", f.data.Name)})
	if err != nil {
		return fault(ctx, "look who uses volume "+f.data.Name, err)
	}
	for _, c := range users.Items {
		if named(c.Names, name) && is(c.Labels, f.identity, roleBox) {
			continue // another worker has made it meanwhile
		}
		return box.Errorf(box.ClassFailedPrecondition, "container %s uses the volume of box %s; rename it back if it is the box, or remove it", strings.Join(c.Names, ", "), name)
	}
	return nil
}

func configLabels(c container.InspectResponse) map[string]string {
	if c.Config == nil {
		return nil
	}
	return c.Config.Labels
}

// volume makes a volume, which answers the one that is there under its name. One
// that is older than this call, or another box's, is not ours to use; of any other
// it may be the answer that is wrong.
func (s *session) volume(ctx context.Context, name string, labels map[string]string, id box.Identity, role string) error {
	err := s.act(ctx, quick, func(ctx context.Context) error {
		made, err := s.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Labels: labels})
		wrong := err == nil && !is(made.Volume.Labels, id, role)
		of, another := marked(made.Volume.Labels)
		another = another && (of != id || made.Volume.Labels[labelRole] != "")
		if at := instant(made.Volume.CreatedAt); wrong && !another && (at.IsZero() || !at.Before(s.now.Truncate(time.Second))) {
			return box.Errorf(box.ClassUnknown, "volume %s has not the labels that it was made with; look at it, and remove it if it is not of box %s", name, id.Name())
		}
		if errdefs.IsConflict(err) || wrong {
			return box.Errorf(box.ClassAlreadyExists, "volume %s is there and is not of box %s; remove it", name, id.Name())
		}
		return err
	})
	if err != nil {
		return fault(ctx, "make volume "+name, err)
	}
	return nil
}

// imageOf is what counts of an image.
type imageOf struct {
	name             string
	locale, snapshot bool
}

// image makes sure that the engine has the image, and that boxd can run in it.
func (d *Driver) image(ctx context.Context, s *session, name string, boxd *program) (imageOf, error) {
	if d.opts.Pull == PullAlways {
		if err := s.pull(ctx, name); err != nil {
			return imageOf{}, err
		}
	}
	found, err := s.look(ctx, name)
	if absent(ctx, err) && d.opts.Pull == PullMissing {
		if err := s.pull(ctx, name); err != nil {
			return imageOf{}, err
		}
		found, err = s.look(ctx, name)
	}
	switch {
	case absent(ctx, err):
		return imageOf{}, box.Errorf(box.ClassFailedPrecondition, "the engine has no image %s, and the setting pull is %q; pull the image, or change the setting", name, string(d.opts.Pull))
	case err != nil:
		return imageOf{}, fault(ctx, "read image "+name, err)
	}
	return vet(name, found, boxd)
}

// vet refuses an image in which no box can run.
func vet(name string, found client.ImageInspectResult, boxd *program) (imageOf, error) {
	switch {
	case found.Os != "" && found.Os != "linux":
		return imageOf{}, box.Invalidf("image", "%s is for %s; boxes need Linux", name, found.Os)
	case found.Architecture == "":
		return imageOf{}, box.Errorf(box.ClassUnknown, "the engine does not say what image %s is for; ask again", name)
	case found.Architecture != boxd.arch:
		return imageOf{}, box.Errorf(box.ClassFailedPrecondition, "image %s is for %s and boxd, %s, for %s; configure a boxd of that architecture, or another image", name, found.Architecture, boxd.file.Name(), boxd.arch)
	}
	out := imageOf{name: name}
	if found.Config == nil {
		return out, nil
	}
	if label := foreign(found.Config.Labels); label != "" {
		return imageOf{}, box.Invalidf("image", "%s carries the label %s, by which another program would take the box for its own and remove it; use an image without it", name, label)
	}
	out.locale = slices.ContainsFunc(found.Config.Env, func(one string) bool {
		return strings.HasPrefix(one, "LANG=") || strings.HasPrefix(one, "LC_ALL=")
	})
	return out, nil
}

func (s *session) look(ctx context.Context, image string) (client.ImageInspectResult, error) {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	return s.api.ImageInspect(ctx, image)
}

// pull waits until the engine has the image, as long as its caller does.
func (s *session) pull(ctx context.Context, name string) error {
	if err := driver.Ended(ctx); err != nil {
		return err
	}
	answer, err := s.api.ImagePull(ctx, name, client.ImagePullOptions{})
	if err == nil {
		err = answer.Wait(ctx)
		_ = answer.Close()
	}
	switch {
	case err == nil:
		return nil
	case noImage(ctx, err), errdefs.IsInvalidArgument(err):
		return box.Invalidf("image", "%s cannot be pulled: %v", name, quote(ctx, err))
	}
	if out := fault(ctx, "pull image "+name, err); box.ClassOf(out) != box.ClassUnknown {
		return out
	}
	// A stream that began well tells its failure without a class.
	return box.Errorf(box.ClassUnavailable, "pull image %s: %w", name, quote(ctx, err))
}

// reserve returns the port that is kept for the box, 0 when the engine chooses.
// A volume of the port's name says whose it is: of several that ask for a volume
// at once the engine makes one.
func (d *Driver) reserve(ctx context.Context, s *session, f *found) (uint16, error) {
	for _, v := range f.volumes {
		if port, err := strconv.ParseUint(v.Labels[labelPort], 10, 16); err == nil && v.Labels[labelRole] == rolePort {
			return uint16(port), nil
		}
	}
	ports := d.opts.Ports
	if ports.First == 0 {
		return 0, nil
	}
	short, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	// Volumes that no container uses may be pruned, labels of containers not.
	taken := map[string]bool{}
	used, err := s.api.ContainerList(short, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", labelPort)})
	if err != nil {
		return 0, fault(ctx, "list the ports of boxes", err)
	}
	for _, c := range used.Items {
		taken[c.Labels[labelPort]] = true
	}
	count := int(ports.Last) - int(ports.First) + 1
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(f.identity.Name()))
	for i := range count {
		port := ports.First + uint16((int(hash.Sum32()%uint32(count))+i)%count) //nolint:gosec // below 65536
		text := strconv.Itoa(int(port))
		if taken[text] {
			continue
		}
		labels := marks(f.identity, rolePort)
		labels[labelPort] = text
		err := s.volume(ctx, portVolume(port), labels, f.identity, rolePort)
		if err == nil {
			return port, nil
		}
		if box.ClassOf(err) != box.ClassAlreadyExists {
			return 0, err
		}
	}
	return 0, box.Errorf(box.ClassExhausted, "all ports of %d-%d belong to boxes; delete some, or widen the range", ports.First, ports.Last)
}

// container says what is made. What a start needs is not in it: it would be in
// all that the engine shows and keeps, and stay as it was at the creation.
func (d *Driver) container(s *session, id box.Identity, from recipe, image imageOf, port uint16) client.ContainerCreateOptions {
	argv := append([]string{programIn}, d.opts.Boxd[1:]...)
	argv = append(argv, "--root", boxRoot, "--listen", "0.0.0.0:"+strconv.Itoa(portIn), "--env-file", envFile,
		"--own-passes=false") // boxkeeper suspends the box, and asks before it does
	if len(d.opts.AgentServer) > 0 {
		argv = append(append(argv, "--"), d.opts.AgentServer...)
	}
	inside, _ := network.PortFrom(portIn, network.TCP)
	outside := network.PortBinding{HostIP: d.publishOn}
	labels := from.marks(id, roleBox)
	if image.snapshot {
		labels[labelFrom] = image.name
	}
	if port != 0 {
		outside.HostPort = strconv.Itoa(int(port))
		labels[labelPort] = outside.HostPort
	}
	yes := true
	config := &container.Config{
		Image:        image.name,
		Entrypoint:   argv,
		Labels:       labels,
		ExposedPorts: network.PortSet{inside: {}},
		// An image may want another signal, and boxd ends in order on this one.
		StopSignal:  "SIGTERM",
		StopTimeout: seconds(d.opts.StopTimeout),
		// The image's own check is about the program that it would have started.
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	if !image.locale {
		config.Env = []string{"LANG=C.UTF-8"}
	}
	host := &container.HostConfig{
		// Neither revived nor removed behind our back.
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		NetworkMode:   container.NetworkMode(d.opts.Network),
		PortBindings:  network.PortMap{inside: {outside}},
		Mounts:        []mount.Mount{{Type: mount.TypeVolume, Source: id.Name(), Target: boxRoot}},
		// What agents leave behind must be reaped; boxd waits for its own child only.
		Init: &yes,
	}
	limits := d.opts.Limits
	host.Memory, host.NanoCPUs = limits.MemoryBytes, int64(limits.CPUs*1e9)
	if limits.Processes > 0 {
		host.PidsLimit = &limits.Processes
	}
	if limits.LayerBytes > 0 {
		host.StorageOpt = map[string]string{"size": strconv.FormatInt(limits.LayerBytes, 10)}
	}
	if s.info.LoggingDriver == "json-file" { // which keeps all that a box ever wrote
		host.LogConfig = container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "16m", "max-file": "2"}}
	}
	return client.ContainerCreateOptions{Name: id.Name(), Config: config, HostConfig: host}
}
