package dockertest

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/api/types/volume"
)

// route does one call.
func (e *Engine) route(w http.ResponseWriter, r *http.Request, path string) {
	part := strings.Split(strings.TrimPrefix(path, "/"), "/")
	last := part[len(part)-1]
	switch {
	case path == "/_ping":
		w.WriteHeader(http.StatusOK)
	case path == "/info":
		e.mu.Lock()
		defer e.mu.Unlock()
		answer(w, http.StatusOK, system.Info{ID: e.id, Name: "fake", OSType: "linux", Architecture: "x86_64", LoggingDriver: "json-file", SystemTime: e.now(), ServerVersion: "fake"})
	case path == "/events":
		e.events(w, r)
	case path == "/networks/none":
		e.mu.Lock()
		defer e.mu.Unlock()
		answer(w, http.StatusOK, network.Inspect{Network: network.Network{Name: "none", ID: e.data}})
	case path == "/containers/create":
		e.create(w, r)
	case path == "/containers/json":
		e.list(w, r)
	case path == "/volumes/create" || part[0] == "volumes":
		e.volume(w, r, last)
	case path == "/images/create":
		e.pull(w, r)
	case part[0] == "images":
		e.routeImage(w, r, path)
	case path == "/commit":
		e.commit(w, r)
	case path == "/system/df":
		e.usage(w)
	case part[0] == "containers" && len(part) > 1:
		e.mu.Lock()
		defer e.mu.Unlock()
		b := e.find(part[1])
		switch {
		case b == nil:
			refuse(w, http.StatusNotFound, "No such container: %s", part[1])
		case r.Method == http.MethodDelete:
			e.remove(w, r, b)
		case last == "archive":
			e.archive(w, r, b)
		default:
			e.act(w, r, b, last)
		}
	default:
		refuse(w, http.StatusNotFound, "page not found")
	}
}

// volumeNamed makes a volume, or answers the one that is there.
func (e *Engine) volumeNamed(name string, labels map[string]string) volume.Volume {
	if _, ok := e.volumes[name]; !ok {
		e.write(events.VolumeEventType, events.ActionCreate, name)
		e.volumes[name] = volume.Volume{Name: name, Driver: "local", Scope: "local", Labels: labels, CreatedAt: e.now()}
	}
	return e.volumes[name]
}

func (e *Engine) volume(w http.ResponseWriter, r *http.Request, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	found, ok := e.volumes[name]
	switch {
	case r.Method == http.MethodPost:
		var asked volume.CreateRequest
		_ = json.NewDecoder(r.Body).Decode(&asked)
		answer(w, http.StatusCreated, e.volumeNamed(asked.Name, asked.Labels))
	case name == "volumes":
		filters, out := filtersOf(r), volume.ListResponse{Volumes: []volume.Volume{}}
		for _, v := range e.volumes {
			if selects(filters, "label", labelled(v.Labels)) {
				out.Volumes = append(out.Volumes, v)
			}
		}
		answer(w, http.StatusOK, out)
	case !ok:
		refuse(w, http.StatusNotFound, "get %s: no such volume", name)
	case r.Method == http.MethodGet:
		answer(w, http.StatusOK, found)
	default:
		for _, b := range e.containers {
			if b.uses(name) {
				refuse(w, http.StatusConflict, "remove %s: volume is in use - [%s]", name, b.ID)
				return
			}
		}
		delete(e.volumes, name)
		delete(e.kept, name)
		e.write(events.VolumeEventType, events.ActionDestroy, name)
		w.WriteHeader(http.StatusNoContent)
	}
}

// events sends what happens, as it happens.
func (e *Engine) events(w http.ResponseWriter, r *http.Request) {
	const room = 1000
	heard := make(chan events.Message, room)
	e.mu.Lock()
	e.watchers[heard] = true
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.watchers, heard)
		e.mu.Unlock()
	}()
	filters := filtersOf(r)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-e.closed:
			return
		case one := <-heard:
			if !selects(filters, "label", labelled(one.Actor.Attributes)) ||
				!selects(filters, "event", func(v string) bool { return v == string(one.Action) }) {
				continue
			}
			_ = json.NewEncoder(w).Encode(one)
			_ = flush.Flush()
		}
	}
}
