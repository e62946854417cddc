package server

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// maxOrigins bounds how many pages' rights are remembered.
const maxOrigins = 64

// origins remembers what the agent-server lets a page of another origin read,
// for the times when it is down.
type origins struct {
	mu    sync.Mutex
	known map[string]http.Header
}

// addOrigin lets a browser's page read an answer of ours when the agent-server
// lets it read its own: it knows the origins that were configured.
func (s *Server) addOrigin(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("Origin")
	if origin == "" || s.opts.Upstream == nil {
		return
	}
	rights := s.askOrigin(r, origin)
	if rights == nil {
		rights = s.origins.of(origin)
	} else {
		s.origins.keep(origin, rights)
	}
	maps.Copy(w.Header(), rights)
}

func (o *origins) of(origin string) http.Header {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[origin]
}

func (o *origins) keep(origin string, rights http.Header) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.known) >= maxOrigins {
		clear(o.known)
	}
	o.known[origin] = rights
}

// ours is a writer for an answer of ours to a request that may also pass: a page
// reads it where it may read the agent-server's.
func (s *Server) ours(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	return &readable{ResponseWriter: w, add: sync.OnceFunc(func() { s.addOrigin(w, r) })}
}

type readable struct {
	http.ResponseWriter
	add func()
}

// Unwrap is for http.ResponseController.
func (w *readable) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *readable) WriteHeader(status int) {
	w.add()
	w.ResponseWriter.WriteHeader(status)
}

func (w *readable) Write(p []byte) (int, error) {
	w.add()
	return w.ResponseWriter.Write(p)
}

// preflight answers what a browser asks before a page's request for a path of
// ours. Without the agent-server it says what that said of the page before.
func (s *Server) preflight(w http.ResponseWriter, r *http.Request, methods handlers) {
	origin := r.Header.Get("Origin")
	rights := s.origins.of(origin)
	if rights.Get("Access-Control-Allow-Origin") == "" || s.askOrigin(r, origin) != nil {
		s.pass(w, r)
		return
	}
	maps.Copy(w.Header(), rights)
	w.Header().Set("Access-Control-Allow-Methods", strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
	if wanted := r.Header.Get("Access-Control-Request-Headers"); wanted != "" {
		w.Header().Set("Access-Control-Allow-Headers", wanted)
	}
	w.WriteHeader(http.StatusNoContent)
}

// askOrigin returns the headers with which the agent-server answers an origin,
// nil when it cannot be asked.
func (s *Server) askOrigin(r *http.Request, origin string) http.Header {
	base, up := s.opts.Upstream.Target()
	if !up {
		return nil
	}
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, base.String()+"/alive", nil)
	if err != nil {
		return nil
	}
	request.Header.Set("Origin", origin)
	response, err := s.asks.Do(request)
	if err != nil {
		return nil
	}
	response.Body.Close()
	rights := http.Header{}
	for name, values := range response.Header {
		if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
			rights[name] = values
		}
	}
	return rights
}
