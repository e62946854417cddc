package server

import (
	"maps"
	"net/http"
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
	rights := s.askOrigin(r, origin)
	s.origins.mu.Lock()
	defer s.origins.mu.Unlock()
	if rights == nil {
		rights = s.origins.known[origin]
	} else {
		if len(s.origins.known) >= maxOrigins {
			clear(s.origins.known)
		}
		s.origins.known[origin] = rights
	}
	maps.Copy(w.Header(), rights)
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
