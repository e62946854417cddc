package runtimeapitest

import (
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// ingress answers at the address of a box: 404 when there is none, 503 while it
// is paused, 502 until it can be reached, 401 below /api for a key that is not
// the present one, and else what the box answers.
func (s *Service) ingress(w http.ResponseWriter, r *http.Request, id string) {
	fault := s.take(OpBox)
	at := s.log(Call{Op: OpBox, Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header.Clone()})
	s.before(r, fault)
	if fault.Status != 0 && !fault.Done {
		s.answered(at, fault.Status)
		fault.write(w)
		return
	}
	status, key, handler := s.reach(id)
	if status == http.StatusOK && strings.HasPrefix(s.inner(r, id), "/api/") && subtle.ConstantTimeCompare([]byte(r.Header.Get("X-Session-API-Key")), []byte(key)) == 0 {
		status = http.StatusUnauthorized // [guess: the exact code]
	}
	s.answered(at, status)
	switch status {
	case http.StatusOK:
	case http.StatusUnauthorized:
		answer{status, map[string]any{"detail": "Unauthorized"}}.write(w, nil)
		return
	default: // the ingress itself speaks HTML
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		_, _ = w.Write([]byte("<html><body><h1>" + http.StatusText(status) + "</h1></body></html>"))
		return
	}
	if s.opts.HostStyle {
		handler.ServeHTTP(w, r)
		return
	}
	http.StripPrefix("/"+id, handler).ServeHTTP(w, r)
}

// inner is the path as the box sees it.
func (s *Service) inner(r *http.Request, id string) string {
	if s.opts.HostStyle {
		return r.URL.Path
	}
	return strings.TrimPrefix(r.URL.Path, "/"+id)
}

func (s *Service) reach(id string) (status int, key string, handler http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.byID("", id)
	switch {
	case b == nil || b.Status == StatusStopped:
		return http.StatusNotFound, "", nil
	case b.Status == StatusPaused:
		return http.StatusServiceUnavailable, "", nil
	case b.handler == nil || b.resuming > 0 || b.starting > 0 || b.notReady > 0:
		return http.StatusBadGateway, "", nil
	case b.noIngress > 0:
		b.noIngress--
		return http.StatusBadGateway, "", nil
	}
	return http.StatusOK, b.key, b.handler
}

// agentServer is the small agent-server of a box: what a client looks at first,
// and an idle clock that moves with the work that moves the real one.
func (s *Service) agentServer(b *sandbox) http.Handler {
	m := http.NewServeMux()
	answers := func(value any, work bool) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if work {
				s.Use(b.RuntimeID)
			}
			answer{http.StatusOK, value}.write(w, nil)
		}
	}
	ok := map[string]any{"status": "ok"}
	m.HandleFunc("GET /alive", answers(ok, false))
	m.HandleFunc("GET /health", answers(ok, false))
	m.HandleFunc("GET /ready", answers(map[string]any{"status": "ready"}, false))
	m.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		uptime, idle := s.now.Sub(b.began), s.now.Sub(b.used)
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"title": "OpenHands Agent Server", "version": "1.58.2", "capabilities": []string{},
			"uptime": int(uptime / time.Second), "idle_time": int(idle / time.Second),
			"runtime_idle_timeout_seconds": int(s.opts.Idle / time.Second),
		})
	})
	m.HandleFunc("GET /api/conversations/count", answers(0, false))
	m.HandleFunc("POST /api/conversations/prepare-for-sandbox-pause", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	m.HandleFunc("POST /api/bash/execute_bash_command", answers(map[string]any{"exit_code": 0, "stdout": "", "stderr": ""}, true))
	m.HandleFunc("GET /api/file/archive", answers(map[string]any{}, true)) // an export moves the clock
	m.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answer{http.StatusNotFound, map[string]any{"detail": "Not Found"}}.write(w, nil)
	})
	return m
}
