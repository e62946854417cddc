package dockertest

import (
	"archive/tar"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/api/types/network"
)

const never = "0001-01-01T00:00:00Z"

func (e *Engine) now() string { return e.clock().UTC().Format(time.RFC3339Nano) }

func (e *Engine) create(w http.ResponseWriter, r *http.Request) {
	var asked container.CreateRequest
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Config == nil {
		refuse(w, http.StatusBadRequest, "invalid JSON: %v", err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	name := r.URL.Query().Get("name")
	image := e.imageOf(asked.Image)
	switch {
	case strings.ContainsAny(name, "/ "):
		refuse(w, http.StatusBadRequest, "Invalid container name (%s), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed", name)
		return
	case image == nil:
		refuse(w, http.StatusNotFound, "No such image: %s", asked.Image)
		return
	case name != "" && e.find(name) != nil:
		refuse(w, http.StatusConflict, "Conflict. The container name %q is already in use by container %q.", "/"+name, e.find(name).ID)
		return
	}
	b := &box{from: image, files: map[string][]byte{}, owners: map[string][2]int{}}
	maps.Copy(b.files, image.content)
	b.ID, b.Name, b.Created, b.Image = random(), "/"+name, e.now(), image.id
	b.Config, b.HostConfig = asked.Config, asked.HostConfig
	if b.HostConfig == nil {
		b.HostConfig = &container.HostConfig{}
	}
	if b.Config.User == "" {
		b.Config.User = image.User
	}
	labels := map[string]string{}
	maps.Copy(labels, image.Labels)
	maps.Copy(labels, b.Config.Labels)
	b.Config.Labels = labels
	b.State = &container.State{Status: container.StateCreated, StartedAt: never, FinishedAt: never}
	b.NetworkSettings = &container.NetworkSettings{Ports: network.PortMap{}}
	for _, m := range b.HostConfig.Mounts {
		e.volumeNamed(m.Source, nil)
		maps.Copy(b.files, e.kept[m.Source])
	}
	e.containers[b.ID] = b
	e.tell(b, events.ActionCreate)
	answer(w, http.StatusCreated, container.CreateResponse{ID: b.ID, Warnings: []string{}})
}

func (e *Engine) list(w http.ResponseWriter, r *http.Request) {
	filters := filtersOf(r)
	e.mu.Lock()
	defer e.mu.Unlock()
	out := []container.Summary{}
	for _, b := range e.containers {
		uses := func(name string) bool { return b.uses(name) }
		if r.URL.Query().Get("all") == "" && !b.State.Running ||
			!selects(filters, "label", labelled(b.Config.Labels)) || !selects(filters, "volume", uses) {
			continue
		}
		out = append(out, container.Summary{ID: b.ID, Names: []string{b.Name}, Image: b.Config.Image, State: b.State.Status, Labels: b.Config.Labels})
	}
	answer(w, http.StatusOK, out)
}

func (b *box) uses(name string) bool {
	for _, m := range b.HostConfig.Mounts {
		if m.Source == name {
			return true
		}
	}
	return false
}

// act does what a verb of the API says to a container that is there.
func (e *Engine) act(w http.ResponseWriter, r *http.Request, b *box, verb string) {
	switch verb {
	case "json":
		said := b.InspectResponse
		if r.URL.Query().Get("size") != "" {
			size, all := b.layer(), b.layer()+b.from.total()
			said.SizeRw, said.SizeRootFs = &size, &all
		}
		answer(w, http.StatusOK, said)
	case "changes":
		answer(w, http.StatusOK, b.changed())
	case "start":
		e.start(w, b)
	case "stop":
		if !b.State.Running {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		e.hold(&e.stopping)
		e.end(b, 0)
		w.WriteHeader(http.StatusNoContent)
	case "kill":
		if !b.State.Running {
			refuse(w, http.StatusConflict, "Cannot kill container: %s: Container %s is not running", b.ID, b.ID)
			return
		}
		e.end(b, 137)
		w.WriteHeader(http.StatusNoContent)
	case "pause":
		if !b.State.Running || b.State.Paused {
			refuse(w, http.StatusConflict, "Container %s is not running, or is already paused", b.ID)
			return
		}
		b.State.Status, b.State.Paused, b.paused = container.StatePaused, true, make(chan struct{})
		e.tell(b, events.ActionPause)
		w.WriteHeader(http.StatusNoContent)
	case "unpause":
		if !b.State.Paused {
			refuse(w, http.StatusInternalServerError, "Container %s is not paused", b.ID)
			return
		}
		b.State.Status, b.State.Paused = container.StateRunning, false
		close(b.paused)
		b.paused = nil
		e.tell(b, events.ActionUnPause)
		w.WriteHeader(http.StatusNoContent)
	case "rename":
		b.Name = "/" + r.URL.Query().Get("name")
		w.WriteHeader(http.StatusNoContent)
	default:
		refuse(w, http.StatusNotFound, "page not found")
	}
}

func (e *Engine) start(w http.ResponseWriter, b *box) {
	switch {
	case b.State.Paused:
		refuse(w, http.StatusConflict, "cannot start a paused container, try unpause instead")
		return
	case b.State.Running:
		w.WriteHeader(http.StatusNotModified)
		return
	case b.State.Dead:
		refuse(w, http.StatusConflict, "container is marked for removal and cannot be started")
		return
	}
	fail := func(status, exit int, text string) {
		b.State.ExitCode, b.State.Error = exit, text
		refuse(w, status, "%s", text)
	}
	if len(b.Config.Entrypoint) > 0 {
		program := b.Config.Entrypoint[0]
		if _, ok := b.files[program]; !ok && !slices.Contains(b.from.Files, program) {
			fail(http.StatusBadRequest, 127, "OCI runtime create failed: exec: "+program+": no such file or directory")
			return
		}
	}
	ports := network.PortMap{}
	for inside, bindings := range b.HostConfig.PortBindings {
		if _, exposed := b.Config.ExposedPorts[inside]; !exposed {
			continue
		}
		for _, one := range bindings {
			port := one.HostPort
			if port == "" {
				port = "0"
			}
			got, err := e.serve(b, port)
			if err != nil {
				fail(http.StatusInternalServerError, 128, "driver failed programming external connectivity: "+err.Error())
				return
			}
			ports[inside] = append(ports[inside], network.PortBinding{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: got})
		}
	}
	b.NetworkSettings.Ports = ports
	*b.State = container.State{Status: container.StateRunning, Running: true, Pid: 1000, StartedAt: e.now(), FinishedAt: b.State.FinishedAt}
	// Like boxd, which reads its environment and removes it.
	if at := slices.Index(b.Config.Entrypoint, "--env-file"); at >= 0 {
		file := b.Config.Entrypoint[at+1]
		b.files[file+".read"] = b.files[file]
		delete(b.files, file)
	}
	e.tell(b, events.ActionStart)
	w.WriteHeader(http.StatusNoContent)
}

// end ends a container's processes.
func (e *Engine) end(b *box, code int) {
	e.unserve(b)
	*b.State = container.State{Status: container.StateExited, ExitCode: code, StartedAt: b.State.StartedAt, FinishedAt: e.now()}
	b.NetworkSettings.Ports = network.PortMap{}
	e.tell(b, events.ActionDie)
	if b.HostConfig.AutoRemove {
		delete(e.containers, b.ID)
		e.tell(b, events.ActionDestroy)
	}
}

func (e *Engine) remove(w http.ResponseWriter, r *http.Request, b *box) {
	if b.State.Running && r.URL.Query().Get("force") == "" {
		refuse(w, http.StatusConflict, "You cannot remove a running container %s. Stop the container before attempting removal or force remove", b.ID)
		return
	}
	if b.State.Running {
		e.end(b, 137)
	}
	for _, m := range b.HostConfig.Mounts {
		left := maps.Clone(b.files)
		maps.DeleteFunc(left, func(at string, _ []byte) bool { return !strings.HasPrefix(at, m.Target+"/") })
		e.kept[m.Source] = left
	}
	delete(e.containers, b.ID)
	e.tell(b, events.ActionDestroy)
	w.WriteHeader(http.StatusNoContent)
}

// archive reads and writes files, in every state of a container.
func (e *Engine) archive(w http.ResponseWriter, r *http.Request, b *box) {
	name := r.URL.Query().Get("path")
	if r.Method == http.MethodPut {
		packed := tar.NewReader(r.Body)
		for {
			head, err := packed.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				refuse(w, http.StatusInternalServerError, "%v", err)
				return
			}
			at := path.Join("/", name, head.Name)
			b.owners[at] = [2]int{head.Uid, head.Gid}
			if head.Typeflag == tar.TypeReg {
				b.files[at], _ = io.ReadAll(packed)
			}
		}
		w.WriteHeader(http.StatusOK)
		return
	}
	content, ok := b.files[name]
	if !ok {
		refuse(w, http.StatusNotFound, "Could not find the file %s in container %s", name, b.ID)
		return
	}
	stat, _ := json.Marshal(container.PathStat{Name: path.Base(name), Size: int64(len(content)), Mode: 0o600})
	w.Header().Set("X-Docker-Container-Path-Stat", base64.StdEncoding.EncodeToString(stat))
	w.Header().Set("Content-Type", "application/x-tar")
	out := tar.NewWriter(w)
	_ = out.WriteHeader(&tar.Header{Name: path.Base(name), Size: int64(len(content)), Mode: 0o600, Typeflag: tar.TypeReg})
	_, _ = out.Write(content)
	_ = out.Close()
}

// tell sends an event to who listens.
func (e *Engine) tell(b *box, action events.Action) {
	e.write(events.ContainerEventType, action, strings.TrimPrefix(b.Name, "/"))
	attributes := map[string]string{"name": strings.TrimPrefix(b.Name, "/"), "image": b.Config.Image}
	maps.Copy(attributes, b.Config.Labels)
	for watcher := range e.watchers {
		select {
		case watcher <- events.Message{Type: events.ContainerEventType, Action: action, Actor: events.Actor{ID: b.ID, Attributes: attributes}, TimeNano: e.clock().UnixNano()}:
		default: // one that does not listen misses it
		}
	}
}
