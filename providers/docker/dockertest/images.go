package dockertest

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/api/types/volume"
)

// stored is an image that the engine has.
type stored struct {
	Image
	id      string
	tags    []string
	from    *stored // what it was committed over; nil for one of a registry
	comment string
	created time.Time
	content map[string][]byte // of all layers
	size    int64             // of its own layer
}

// layers are the digests from the lowest one on.
func (s *stored) layers() []string {
	if s == nil {
		return nil
	}
	return append(s.from.layers(), "sha256:layer-of-"+strings.TrimPrefix(s.id, "sha256:"))
}

func (s *stored) total() int64 {
	if s == nil {
		return 0
	}
	return s.size + s.from.total()
}

const baseSize = 1 << 20

// add stores an image under a name, which another one may have had.
func (e *Engine) add(name string, one *stored) {
	for _, old := range e.images {
		old.tags = slices.DeleteFunc(old.tags, func(tag string) bool { return tag == name })
	}
	one.id, one.created = "sha256:"+random(), e.clock().UTC()
	if name != "" {
		one.tags = []string{name}
	}
	e.images = append(e.images, one)
}

// imageOf takes a name or an id; nil for none.
func (e *Engine) imageOf(name string) *stored {
	for _, one := range e.images {
		if one.id == name || slices.Contains(one.tags, name) || slices.Contains(one.tags, name+":latest") {
			return one
		}
	}
	return nil
}

// routeImage does one call about images.
func (e *Engine) routeImage(w http.ResponseWriter, r *http.Request, path string) {
	name, verb := strings.TrimPrefix(path, "/images/"), ""
	for _, one := range []string{"/json", "/history", "/tag"} {
		if cut, ok := strings.CutSuffix(name, one); ok {
			name, verb = cut, one
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	found := e.imageOf(name)
	switch {
	case name == "json":
		e.listImages(w, r)
	case found == nil:
		refuse(w, http.StatusNotFound, "No such image: %s", name)
	case r.Method == http.MethodDelete:
		e.removeImage(w, found, name)
	case verb == "/tag":
		e.tag(found, r.URL.Query().Get("repo"), r.URL.Query().Get("tag"))
		w.WriteHeader(http.StatusCreated)
	case verb == "/history":
		out := []image.HistoryResponseItem{}
		for one := found; one != nil; one = one.from {
			out = append(out, image.HistoryResponseItem{ID: one.id, Created: one.created.Unix(), Comment: one.comment, Size: one.size, Tags: one.tags})
		}
		answer(w, http.StatusOK, out)
	default:
		config := dockerspec.DockerOCIImageConfig{}
		config.User, config.Labels, config.Env = found.User, found.Labels, found.Env
		answer(w, http.StatusOK, image.InspectResponse{
			ID: found.id, RepoTags: found.tags, Comment: found.comment, Os: "linux", Architecture: found.Architecture, Config: &config,
			Size: found.total(), RootFS: image.RootFS{Type: "layers", Layers: found.layers()},
		})
	}
}

// tag gives an image a name, which another one may have had.
func (e *Engine) tag(found *stored, repo, tag string) {
	name := strings.TrimPrefix(repo, "docker.io/library/") + ":" + tag
	for _, old := range e.images {
		old.tags = slices.DeleteFunc(old.tags, func(one string) bool { return one == name })
	}
	found.tags = append(found.tags, name)
	e.write(events.ImageEventType, events.ActionTag, name)
}

func (e *Engine) listImages(w http.ResponseWriter, r *http.Request) {
	filters, out := filtersOf(r), []image.Summary{}
	for _, one := range e.images {
		tags := one.tags
		if len(tags) == 0 {
			if e.below(one) && r.URL.Query().Get("all") == "" {
				continue
			}
			if tags = []string{}; less(e.api, "1.43") {
				tags = []string{"<none>:<none>"}
			}
		}
		if selects(filters, "label", labelled(one.Labels)) {
			out = append(out, image.Summary{ID: one.id, RepoTags: tags, Labels: one.Labels, Created: one.created.Unix(), Containers: -1, SharedSize: -1, Size: one.total()})
		}
	}
	answer(w, http.StatusOK, out)
}

// removeImage takes a name away, and the image with its last one, unless another
// image stands on it. Nothing is forced.
func (e *Engine) removeImage(w http.ResponseWriter, found *stored, name string) {
	switch byID := found.id == name; {
	case byID && len(found.tags) > 1: // by which of them?
		refuse(w, http.StatusConflict, "conflict: unable to delete %.12s (must be forced) - image is referenced in one or more repositories", found.id)
		return
	case byID && e.below(found):
		refuse(w, http.StatusConflict, "conflict: unable to delete %.12s (cannot be forced) - image has dependent child images", found.id)
		return
	case byID || len(found.tags) == 1:
		for _, b := range e.containers {
			if b.from == found {
				refuse(w, http.StatusConflict, "conflict: unable to remove repository reference %q (must force) - container %.12s is using its referenced image %s", name, b.ID, found.id)
				return
			}
		}
	}
	out := []image.DeleteResponse{}
	named := name
	if found.id == name && len(found.tags) > 0 {
		named = found.tags[0]
	}
	if found.id != named {
		found.tags = slices.DeleteFunc(found.tags, func(tag string) bool { return tag == named })
		e.write(events.ImageEventType, events.ActionUnTag, named)
		out = append(out, image.DeleteResponse{Untagged: named})
	}
	if len(found.tags) == 0 && !e.below(found) {
		e.images = slices.DeleteFunc(e.images, func(one *stored) bool { return one == found })
		if found.id == named { // of others the ledger has the name that was taken away
			e.write(events.ImageEventType, events.ActionDelete, found.id)
		}
		out = append(out, image.DeleteResponse{Deleted: found.id})
	}
	answer(w, http.StatusOK, out)
}

// below reports whether another image stands on this one.
func (e *Engine) below(found *stored) bool {
	return slices.ContainsFunc(e.images, func(one *stored) bool { return one.from == found })
}

// commit makes an image of a container's layer.
func (e *Engine) commit(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.find(query.Get("container"))
	if b == nil {
		refuse(w, http.StatusNotFound, "No such container: %s", query.Get("container"))
		return
	}
	e.hold(&e.committing)
	made := &stored{
		Image: Image{Architecture: b.from.Architecture, User: b.Config.User, Env: b.Config.Env, Files: b.from.Files, Labels: maps.Clone(b.Config.Labels)},
		from:  b.from, comment: query.Get("comment"), content: map[string][]byte{}, size: b.layer(),
	}
	for _, change := range query["changes"] {
		name, value, _ := strings.Cut(strings.TrimPrefix(change, "LABEL "), "=")
		made.Labels[name] = value
	}
	for at, content := range b.files {
		if !b.mounted(at) {
			made.content[at] = content
		}
	}
	name := ""
	if query.Get("repo") != "" {
		name = strings.TrimPrefix(query.Get("repo"), "docker.io/library/") + ":" + query.Get("tag")
	}
	e.add(name, made)
	e.tell(b, events.ActionCommit)
	if name != "" {
		e.write(events.ImageEventType, events.ActionTag, name)
	}
	answer(w, http.StatusCreated, container.CommitResponse{ID: made.id})
}

// hold waits while held calls wait, as an engine goes on when its caller is gone.
func (e *Engine) hold(on *chan struct{}) {
	for *on != nil {
		held := *on
		e.mu.Unlock()
		select {
		case <-held:
		case <-e.closed:
		}
		e.mu.Lock()
	}
}

// mounted reports whether a file is in a volume.
func (b *box) mounted(at string) bool {
	return slices.ContainsFunc(b.HostConfig.Mounts, func(m mount.Mount) bool { return at == m.Target || strings.HasPrefix(at, m.Target+"/") })
}

// changed are the files that are not as they are in the image.
func (b *box) changed() (out []container.FilesystemChange) {
	for at, content := range b.files {
		if old, ok := b.from.content[at]; !b.mounted(at) && (!ok || string(old) != string(content)) {
			out = append(out, container.FilesystemChange{Kind: container.ChangeAdd, Path: at})
		}
	}
	for _, m := range b.HostConfig.Mounts {
		out = append(out, container.FilesystemChange{Kind: container.ChangeAdd, Path: m.Target})
	}
	return out
}

// layer is how much the container holds beside its image.
func (b *box) layer() (size int64) {
	for _, one := range b.changed() {
		size += int64(len(b.files[one.Path]))
	}
	return size
}

// usage answers how much volumes hold: in one word up to 1.51, and in another
// one since.
func (e *Engine) usage(w http.ResponseWriter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	items := []volume.Volume{}
	for _, v := range e.volumes {
		use := volume.UsageData{}
		for _, content := range e.kept[v.Name] {
			use.Size += int64(len(content))
		}
		for _, b := range e.containers {
			if !b.uses(v.Name) {
				continue
			}
			if use.RefCount++; use.RefCount == 1 {
				use.Size = 0 // it has them by now
			}
			for at, content := range b.files {
				if b.mounted(at) {
					use.Size += int64(len(content))
				}
			}
		}
		v.UsageData = &use
		items = append(items, v)
	}
	if less(e.api, "1.52") {
		answer(w, http.StatusOK, map[string]any{"LayersSize": baseSize, "Volumes": items})
		return
	}
	answer(w, http.StatusOK, system.DiskUsage{VolumeUsage: &volume.DiskUsage{Items: items, TotalCount: int64(len(items))}})
}

func (e *Engine) pull(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	asked := strings.TrimPrefix(r.URL.Query().Get("fromImage"), "docker.io/library/")
	for _, name := range []string{asked, asked + ":" + r.URL.Query().Get("tag")} {
		if found, ok := e.registry[name]; ok {
			e.add(name, &stored{Image: found, size: baseSize})
			answer(w, http.StatusOK, map[string]string{"status": "Status: Downloaded newer image"})
			return
		}
	}
	refuse(w, http.StatusNotFound, "pull access denied for %s, repository does not exist or may require 'docker login'", asked)
}
