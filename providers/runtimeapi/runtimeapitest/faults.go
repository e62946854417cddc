package runtimeapitest

import (
	"net/http"
	"time"
)

// Op names one call of the service.
type Op string

// The calls. OpBox is any request to a box's own address.
const (
	OpStart       Op = "start"
	OpStop        Op = "stop"
	OpPause       Op = "pause"
	OpResume      Op = "resume"
	OpSession     Op = "session"
	OpBatch       Op = "batch"
	OpRuntime     Op = "runtime"
	OpList        Op = "list"
	OpRegistry    Op = "registry_prefix"
	OpImage       Op = "image_exists"
	OpBuild       Op = "build"
	OpBuildStatus Op = "build_status"
	OpBox         Op = "box"
)

// Fault makes calls of one kind go wrong. Before and Between only run a
// function; of the other effects the first that is set is used. OpBox knows
// Before, Hang, Drop and Status.
type Fault struct {
	Op Op
	// Skip lets that many calls pass first.
	Skip int
	// Times is how many calls go wrong; zero means one, negative all.
	Times int
	// For makes all calls go wrong until the service's clock has moved so far.
	For time.Duration

	// Before runs first, as something that happens at the same time.
	Before func()
	// Between runs in a /start after the look whether the session exists and before
	// the box is made: another /start meanwhile makes a second box, as the service
	// did before OpenHands PR 8564.
	Between func()

	// Hang waits until the caller gives up; nothing is done.
	Hang bool
	// Drop breaks the connection; nothing is done.
	Drop bool
	// Lost does the work and breaks the connection.
	Lost bool
	// Status answers this with Header and Body, without doing anything, or with
	// Done after doing it.
	Status int
	Header http.Header
	Body   string
	Done   bool
	// Edit changes the fields of the answer.
	Edit func(answer map[string]any)

	until time.Time
}

// Call is one entry of the log.
type Call struct {
	Op     Op
	Method string
	Path   string // with the query
	Header http.Header
	Fields map[string]any // of the JSON body
	At     time.Time
	Status int // what was answered, zero for a broken connection
}

// Inject adds a fault to the script. Faults of one kind take effect in the
// order they were added.
func (s *Service) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Times == 0 {
		f.Times = 1
	}
	if f.For > 0 {
		f.Times, f.until = -1, s.now.Add(f.For)
	}
	s.faults = append(s.faults, &f)
}

// take takes the fault for one call of op, the zero Fault if there is none.
func (s *Service) take(op Op) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		switch {
		case f.Op != op || f.Times == 0 || !f.until.IsZero() && !s.now.Before(f.until):
			continue
		case f.Skip > 0:
			f.Skip--
			return Fault{}
		case f.Times > 0:
			f.Times--
		}
		return *f
	}
	return Fault{}
}

// Heal ends every fault.
func (s *Service) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}
