package runtimeapitest

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"time"
)

// The statuses of a box.
const (
	StatusStarting = "starting"
	StatusRunning  = "running"
	StatusPaused   = "paused"
	StatusStopped  = "stopped"
	StatusError    = "error"
)

// Box is what the service knows of one box, also after its end.
type Box struct {
	RuntimeID, SessionID string
	// Status is what is so; answers may lag behind it.
	Status string
	URL    string
	Image  string
	// Running and Paused are billed by the service's clock.
	Running, Paused time.Duration
	Wakes           int // a paused or broken box that was started again
	Lives           int // times that its processes began anew
	// Ended says what stopped it: "stop", "dead reaper" or "cap".
	Ended string
	// PausedBy says what paused it last: "pause", "idle reaper" or "cap".
	PausedBy string
}

// sandbox is one box of the service.
type sandbox struct {
	Box
	tenant  string
	env     map[string]string
	key     string
	handler http.Handler
	since   time.Time // of the status
	billed  time.Time
	used    time.Time // of the small agent-server's idle clock
	began   time.Time // of its processes
	crash   string    // pod_status of a broken one
	crashes []string  // why its pod was started again

	starting, notReady, noIngress, pausing, resuming int // readings to go
}

func random() string {
	raw := make([]byte, 8)
	_, _ = rand.Read(raw) // never fails [crypto/rand, since Go 1.24]
	return hex.EncodeToString(raw)
}

// find returns the box of a session as the service shows it: the newest one
// that lives, else the newest one. It is nil when there was none.
func (s *Service) find(tenant, sessionID string) *sandbox {
	var last *sandbox
	for _, b := range s.boxes {
		if b.tenant == tenant && b.SessionID == sessionID && (b.Status != StatusStopped || last == nil || last.Status == StatusStopped) {
			last = b
		}
	}
	return last
}

func (s *Service) byID(tenant, runtimeID string) *sandbox {
	for _, b := range s.boxes {
		if (tenant == "" || b.tenant == tenant) && b.RuntimeID == runtimeID {
			return b
		}
	}
	return nil
}

// create adds a box and starts it.
func (s *Service) create(tenant string, req *startRequest) *sandbox {
	b := &sandbox{
		Box:    Box{RuntimeID: random(), SessionID: req.SessionID, Image: req.Image},
		tenant: tenant, env: req.Environment, since: s.now, billed: s.now,
	}
	b.URL = s.URL() + "/" + b.RuntimeID
	if s.opts.HostStyle {
		b.URL = "http://" + b.RuntimeID + ".localhost" + s.addr[len("127.0.0.1"):]
	}
	s.boxes = append(s.boxes, b)
	s.start(b)
	return b
}

// start begins the processes of b anew, with a new key.
func (s *Service) start(b *sandbox) {
	s.move(b, StatusRunning)
	b.Lives++
	b.key = random() + random()
	b.used, b.began, b.crash = s.now, s.now, ""
	b.starting, b.notReady, b.noIngress = s.opts.Starting, s.opts.NotReady, s.opts.NoIngress
	b.pausing, b.resuming = 0, 0
	if s.opts.Box == nil {
		b.handler = s.agentServer(b)
		return
	}
	b.handler = s.opts.Box(Life{RuntimeID: b.RuntimeID, SessionID: b.SessionID, Key: b.key, Environment: b.env})
}

// wake starts a paused or broken box.
func (s *Service) wake(b *sandbox) {
	paused := b.Status == StatusPaused
	b.Wakes++
	s.start(b)
	if paused {
		b.resuming = s.opts.Resuming
	}
}

func (s *Service) pause(b *sandbox, by string) {
	if b.Status == StatusPaused {
		return
	}
	if b.Status == StatusRunning && by == "pause" {
		b.pausing = s.opts.Pausing
	}
	s.move(b, StatusPaused)
	b.PausedBy, b.handler, b.key = by, nil, ""
	b.starting, b.notReady, b.noIngress, b.resuming = 0, 0, 0, 0
}

func (s *Service) stop(b *sandbox, by string) {
	s.move(b, StatusStopped)
	b.Ended, b.handler, b.key = by, nil, ""
}

func (s *Service) move(b *sandbox, status string) {
	b.bill(s.now)
	b.Status, b.since = status, s.now
}

func (b *sandbox) bill(until time.Time) {
	span := max(0, until.Sub(b.billed))
	switch b.Status {
	case StatusRunning, StatusStarting, StatusError:
		b.Running += span
	case StatusPaused:
		b.Paused += span
	}
	b.billed = until
}

// told is the status and pod_status that an answer shows. Only a reading of the
// box itself lets a change come nearer.
func (b *sandbox) told(reading bool) (status, pod string) {
	count := func(left *int) bool {
		if *left == 0 {
			return false
		}
		if reading {
			*left--
		}
		return true
	}
	switch {
	case b.Status == StatusPaused && count(&b.pausing):
		return StatusRunning, "ready"
	case b.Status == StatusPaused, b.Status == StatusStopped:
		return b.Status, "not found"
	case b.Status == StatusError:
		return StatusError, b.crash
	case count(&b.resuming):
		return StatusPaused, "not found"
	case count(&b.starting):
		return StatusStarting, "pending"
	case count(&b.notReady):
		return StatusRunning, "running"
	}
	return StatusRunning, "ready"
}

// Plant puts a running box there that another program made with the first key.
func (s *Service) Plant(sessionID string) Box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.create(s.opts.Keys[0], &startRequest{SessionID: sessionID, Image: "planted"}).Box
}

// Pause pauses a box behind its owner's back, as the idle reaper does.
func (s *Service) Pause(runtimeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.byID("", runtimeID); b != nil && b.Status != StatusStopped {
		s.pause(b, "idle reaper")
	}
}

// Crash breaks a box: its processes end, its volume stays. The pod status is
// what is told, such as "crashloopbackoff" or "failed".
func (s *Service) Crash(runtimeID, podStatus string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.byID("", runtimeID); b != nil && b.Status != StatusStopped {
		s.move(b, StatusError)
		b.crash, b.handler = podStatus, nil
		b.crashes = append(b.crashes, "OOMKilled")
	}
}

// Stop deletes a box behind its owner's back.
func (s *Service) Stop(runtimeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.byID("", runtimeID); b != nil && b.Status != StatusStopped {
		s.stop(b, "stop")
	}
}

// Use moves the idle clock of the small agent-server in a box, as work does.
func (s *Service) Use(runtimeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.byID("", runtimeID); b != nil {
		b.used = s.now
	}
}
