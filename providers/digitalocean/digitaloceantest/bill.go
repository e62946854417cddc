package digitaloceantest

import (
	"maps"
	"strings"
	"time"
)

// Statement is the bill of one session, and what happened to it. Durations are
// of the server's clock.
type Statement struct {
	ID, Name, Team, Region, ConfigID string
	Foreign                          bool // made by Plant
	Created                          time.Time
	Ended                            time.Time // zero while it is there
	Status                           string    // without its prefix
	PauseReason                      string

	// Provisioning is the time until it ran; whether the service bills it is
	// unknown. Running is what compute is billed for, Paused is storage only.
	Provisioning, Running, Paused time.Duration

	Pauses  map[string]int // by reason
	Wakes   map[string]int // by cause: resume, input, hitl, trigger, topoff
	Deletes int            // by the API; an end without one came out of band

	until time.Time // of what is accounted
	freed time.Time // when its name and its slot were free again
}

// Alive says whether it costs something or holds a slot and a name.
func (s Statement) Alive() bool {
	switch s.Status {
	case destroyed, failed, destroying:
		return false
	}
	return true
}

// WokenUp is the number of wakes of all causes.
func (s Statement) WokenUp() int {
	n := 0
	for _, times := range s.Wakes {
		n += times
	}
	return n
}

// Bill returns the statements of all sessions, the oldest first.
func (s *Server) Bill() []Statement {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	now := s.time()
	out := make([]Statement, len(s.sessions))
	for i, ses := range s.sessions {
		ses.account(now)
		st := ses.bill
		st.Status, st.PauseReason, st.Ended = ses.status, ses.reason, ses.ended
		st.Pauses, st.Wakes = maps.Clone(st.Pauses), maps.Clone(st.Wakes)
		out[i] = st
	}
	return out
}

// Audit is what a test of a whole life asks at its end. Foreign sessions count
// only where it says so.
type Audit struct {
	Alive   []string            // names of sessions that still cost something
	Double  []string            // names that two live sessions had at one time, in lower case
	Created map[string][]string // ids by name
	Deleted []string            // names of sessions that the API deleted, foreign ones too
	// ForeignGone are the foreign sessions that are no more: each is a wrong
	// delete.
	ForeignGone []string
	// ForeignTouched are the foreign sessions that were paused or woken.
	ForeignTouched []string
	Running        time.Duration // of all sessions together
}

// Audit sums up the bill.
func (s *Server) Audit() Audit {
	bill := s.Bill()
	out := Audit{Created: map[string][]string{}}
	for i, st := range bill {
		if st.Deletes > 0 {
			out.Deleted = append(out.Deleted, st.Name)
		}
		if st.Foreign {
			if !st.Alive() {
				out.ForeignGone = append(out.ForeignGone, st.Name)
			}
			if st.Pauses[manual] > 0 || st.WokenUp() > 0 {
				out.ForeignTouched = append(out.ForeignTouched, st.Name)
			}
			continue
		}
		out.Running += st.Running
		out.Created[st.Name] = append(out.Created[st.Name], st.ID)
		if st.Alive() {
			out.Alive = append(out.Alive, st.Name)
		}
		for _, earlier := range bill[:i] {
			// Two regions of one team can hold the same name.
			if strings.EqualFold(earlier.Name, st.Name) && earlier.Team == st.Team && (earlier.freed.IsZero() || earlier.freed.After(st.Created)) {
				out.Double = append(out.Double, strings.ToLower(st.Name))
			}
		}
	}
	return out
}
