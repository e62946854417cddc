package server

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	ondisk "github.com/openhands/boxkeeper/agentserver/storage"
)

// archivedText is what an agent-server itself answers for a conversation whose
// container it archived.
const archivedText = "Conversation runtime was archived; its history is read-only"

const conversationsPath = "/api/conversations"

// target is the conversation that a request is about.
type target struct {
	id   string
	tail string // what follows the id in its path
	// elsewhere says that the path itself does not name it, or is a socket's.
	elsewhere bool
}

// targetsOf returns the conversations that a request is about, in any of the
// forms and places that agent-servers take: in its path, a socket's path, the
// query of releases that sent a request on by it, or the header by which a
// request for a model goes on with one.
func targetsOf(r *http.Request) []target {
	var out []target
	if to, ok := targetOf(r.URL); ok {
		out = append(out, to)
	}
	named := append(r.URL.Query()["cid"], r.Header.Values(reuseHeader)...)
	for _, name := range named {
		if id, ok := ondisk.ParseID(name); ok {
			out = append(out, target{id: id, elsewhere: true})
		}
	}
	return out
}

// targetOf returns the conversation that a path names.
func targetOf(asked *url.URL) (target, bool) {
	// Servers of both kinds of conversation have the routes a second time here.
	place := strings.Replace(asked.Path, "/_docker/", "/", 1)
	if rest, ok := strings.CutPrefix(place, conversationsPath+"/"); ok {
		name, tail, _ := strings.Cut(rest, "/")
		if id, ok := ondisk.ParseID(name); ok {
			return target{id: id, tail: tail}, true
		}
	}
	for _, prefix := range []string{"/sockets/events/", "/sockets/session/"} {
		if name, ok := strings.CutPrefix(place, prefix); ok {
			if id, ok := ondisk.ParseID(strings.TrimSuffix(name, "/")); ok {
				return target{id: id, elsewhere: true}, true
			}
		}
	}
	return target{}, false
}

// serveArchived answers a request about a conversation that is
// conversation-archived, and reports whether it did. What reads the history is
// served, from the disk where an agent-server would load the conversation for it;
// a deletion passes. Everything else would prompt it or start its runtime, as far
// as anybody knows, and is refused.
func (s *Server) serveArchived(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodOptions {
		return false
	}
	w = s.ours(w, r)
	return slices.ContainsFunc(targetsOf(r), func(to target) bool { return s.serveArchivedOf(w, r, to) })
}

func (s *Server) serveArchivedOf(w http.ResponseWriter, r *http.Request, to target) bool {
	archived, err := s.isArchived(to.id)
	switch {
	case err != nil && !isPlainRead(r):
		refuse(w, http.StatusServiceUnavailable, "cannot tell whether this conversation is archived: "+err.Error())
		return true
	case err != nil, !archived, r.Method == http.MethodDelete && to.tail == "" && !to.elsewhere:
		return false
	case !isSocket(r) && s.bearsNothing(r):
		return false // the agent-server says what it says to strangers; a socket's key comes later
	}
	if (r.Method == http.MethodGet || r.Method == http.MethodHead) && !to.elsewhere && !isSocket(r) {
		if done, read := s.readArchived(w, r, to); read {
			return done
		}
	}
	refuse(w, http.StatusGone, archivedText)
	return true
}

// isPlainRead reports whether a request could only read the history, were it to
// pass.
func isPlainRead(r *http.Request) bool { return !isSocket(r) && !startsWork(r) }

// isArchived reports whether a conversation is conversation-archived.
func (s *Server) isArchived(id string) (bool, error) {
	root, err := os.OpenRoot(s.opts.Root)
	if err != nil {
		return false, err
	}
	defer root.Close()
	archived, _, err := ondisk.Archived(root, id)
	return archived, err
}

// bearsNothing reports whether a request carries no credential of any kind.
func (s *Server) bearsNothing(r *http.Request) bool {
	return s.opts.Key != "" && r.Header.Get("X-Session-API-Key") == "" && r.Header.Get("Authorization") == "" && r.Header.Get("Cookie") == ""
}

// readArchived serves what reads a history; read is false for a route that is
// none of these, and done for one that may pass.
func (s *Server) readArchived(w http.ResponseWriter, r *http.Request, to target) (done, read bool) {
	if to.tail == "" && s.opts.Upstream != nil {
		if _, up := s.opts.Upstream.Target(); up {
			return false, true // a look that loads nothing
		}
	}
	serve := s.archivedRead(r, to)
	switch {
	case serve == nil:
		return false, false
	case !s.allowed(r):
		refuse(w, http.StatusUnauthorized, "Unauthorized")
	default:
		serve(w)
	}
	return true, true
}

// archivedRead returns what serves a read from the disk, nil for a route that is
// none.
func (s *Server) archivedRead(r *http.Request, to target) func(http.ResponseWriter) {
	inner := r.Clone(r.Context())
	inner.URL.Path = conversationsPath + "/" + to.id
	inner.Method = http.MethodGet // the answer to HEAD is cut by whoever sends it
	eventID, isEvent := strings.CutPrefix(to.tail, "events/")
	name, isTrajectory := strings.CutPrefix(to.tail, "file/download-trajectory/")
	switch {
	case to.tail == "":
		return func(w http.ResponseWriter) { s.fromDisk(w, inner) }
	case to.tail == "runtime":
		return func(w http.ResponseWriter) { s.getArchivedRuntime(w, to.id) }
	case to.tail == "events/search", to.tail == "events/count":
		inner.URL.Path += "/" + to.tail
		return func(w http.ResponseWriter) { s.fromDisk(w, inner) }
	case isEvent && eventID != "" && !strings.Contains(eventID, "/"):
		return func(w http.ResponseWriter) { s.getArchivedEvent(w, to.id, eventID) }
	case isTrajectory:
		return func(w http.ResponseWriter) {
			if id, ok := ondisk.ParseID(name); !ok || id != to.id {
				refuse(w, http.StatusUnprocessableEntity, "Trajectory must belong to the selected conversation")
				return
			}
			inner.URL.Path = trajectoryPath + to.id
			if methods := s.own(inner.URL.Path); methods != nil {
				methods[http.MethodGet](w, inner)
			} else {
				s.fromDisk(w, inner)
			}
		}
	}
	return nil
}

// getArchivedRuntime says of the runtime what an agent-server with containers
// says.
func (s *Server) getArchivedRuntime(w http.ResponseWriter, id string) {
	if _, ok := s.there(w, id); !ok {
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"runtime_status": "missing", "can_resume": false, "runtime_error": nil})
}

var eventName = regexp.MustCompile(`^[0-9a-fA-F-]{8,64}$`)

// getArchivedEvent serves one event from the disk.
func (s *Server) getArchivedEvent(w http.ResponseWriter, id, name string) {
	root, err := os.OpenRoot(s.opts.Root)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	defer root.Close()
	dir := path.Join(ondisk.ConversationsDir, id, "events")
	entries, err := ondisk.List(root, dir)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	for _, entry := range entries {
		if !eventName.MatchString(name) || !strings.HasSuffix(entry.Name(), "-"+name+".json") {
			continue
		}
		text, err := ondisk.ReadFile(root, path.Join(dir, entry.Name()), maxEvent)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			refuse(w, http.StatusInternalServerError, err.Error())
		default:
			writeJSON(w, http.StatusOK, json.RawMessage(text))
		}
		return
	}
	refuse(w, http.StatusNotFound, "Not Found")
}

// there answers 404 for a conversation that is not in the box.
func (s *Server) there(w http.ResponseWriter, id string) (archived, ok bool) {
	root, err := os.OpenRoot(s.opts.Root)
	if err == nil {
		defer root.Close()
		ok, err = ondisk.Exists(root, id)
	}
	if err == nil {
		archived, _, err = ondisk.Archived(root, id)
	}
	switch {
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error())
		return false, false
	case !ok:
		refuse(w, http.StatusNotFound, "Conversation not found")
	}
	return archived, ok
}
