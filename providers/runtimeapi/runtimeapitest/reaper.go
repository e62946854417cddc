package runtimeapitest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"time"
)

// anything reports whether a box lives that a reaper may still change.
func (s *Service) anything() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boxes {
		switch b.Status {
		case StatusRunning:
			return true
		case StatusPaused:
			if s.opts.Dead > 0 {
				return true
			}
		}
	}
	return false
}

// reap is one run of the cleanup job. It asks each box for its idle time, as
// the real one does inside the cluster; that is no use.
func (s *Service) reap() {
	type running struct {
		b       *sandbox
		life    int
		handler http.Handler
	}
	var awake []running
	s.mu.Lock()
	for _, b := range s.boxes {
		switch {
		case b.Status == StatusPaused && s.opts.Dead > 0 && s.now.Sub(b.since) >= s.opts.Dead:
			s.stop(b, "dead reaper")
		case b.Status == StatusRunning && s.opts.MaxRun > 0 && s.now.Sub(b.began) >= s.opts.MaxRun:
			if s.opts.MaxRunStops {
				s.stop(b, "cap")
			} else {
				s.pause(b, "cap")
			}
		case b.Status == StatusRunning && s.opts.Idle > 0:
			awake = append(awake, running{b, b.Lives, b.handler})
		}
	}
	s.mu.Unlock()
	for _, one := range awake { // without the lock: the handler is the caller's
		idle, ok := idleTime(one.handler)
		if !ok || idle < s.opts.Idle {
			continue
		}
		s.mu.Lock()
		if one.b.Status == StatusRunning && one.b.Lives == one.life {
			s.pause(one.b, "idle reaper")
		}
		s.mu.Unlock()
	}
}

// idleTime asks an agent-server. One that does not answer is left alone; what
// the real reaper does then is unknown.
func idleTime(h http.Handler) (time.Duration, bool) {
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/server_info", http.NoBody)) //nolint:noctx // in the same process
	var info struct {
		IdleTime *float64 `json:"idle_time"`
	}
	if answer.Code != http.StatusOK || json.Unmarshal(answer.Body.Bytes(), &info) != nil || info.IdleTime == nil {
		return 0, false
	}
	return time.Duration(*info.IdleTime * float64(time.Second)), true
}
