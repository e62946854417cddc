package digitaloceantest

import (
	"fmt"
	"strings"
	"time"
)

// Sessions lists what is there, the oldest first, ended ones included.
func (s *Server) Sessions() []Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Session, len(s.sessions))
	for i, ses := range s.sessions {
		out[i] = ses.describe()
	}
	return out
}

// on runs something on the session with an id or a name, the newest one of
// that name. It panics when there is none: the test is wrong.
func (s *Server) on(idOrName string, do func(*session, time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	var found *session
	for _, ses := range s.sessions {
		if ses.id == idOrName || strings.EqualFold(ses.name, idOrName) {
			found = ses
		}
	}
	if found == nil {
		panic("digitaloceantest: there is no session " + idOrName)
	}
	do(found, s.time())
	s.settle()
}

// Plant makes a session of the team with that token that no API call made: a
// colleague's, in a shared account. It runs already and returns its id.
func (s *Server) Plant(token, region, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	now := s.time()
	t := s.teams[token]
	if t == nil {
		panic("digitaloceantest: no team has that token")
	}
	ses := &session{
		id: s.sessionID(), name: name, team: t, region: region, configID: s.newID("config"), created: now,
		spec: &spec{agent: "claude-code", kind: "AGENT_KIND_CLAUDE_CODE", keepWarm: true, idle: s.opts.Idle}, env: map[string]string{},
	}
	ses.bill = Statement{ID: ses.id, Name: name, Team: t.Name, Region: region, ConfigID: ses.configID, Created: now, Foreign: true, until: now}
	ses.become(s, now, provisioning, "")
	s.sessions = append(s.sessions, ses)
	ses.start(s, now)
	return ses.id
}

// PauseNow pauses a session that runs, out of band: as idle, by staff, or for
// a reason of the future.
func (s *Server) PauseNow(idOrName, reason string) {
	s.on(idOrName, func(ses *session, now time.Time) {
		if ses.status == ready || ses.status == detached {
			ses.pause(s, now, reason)
		}
	})
}

// ResumeNow wakes a paused session out of band; cause is what the bill says.
func (s *Server) ResumeNow(idOrName, cause string) {
	s.on(idOrName, func(ses *session, now time.Time) {
		if ses.status == paused {
			ses.wake(s, now, cause)
		}
	})
}

// DestroyNow ends a live session out of band.
func (s *Server) DestroyNow(idOrName string) {
	s.on(idOrName, func(ses *session, now time.Time) {
		if ses.live() {
			ses.destroy(s, now)
		}
	})
}

// FailNow lets a live session fail.
func (s *Server) FailNow(idOrName string) {
	s.on(idOrName, func(ses *session, now time.Time) {
		if ses.live() {
			ses.finish(s, now, failed)
		}
	})
}

// FailBoots lets the next creates end in FAILED instead of READY.
func (s *Server) FailBoots(creates int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failBoots = creates
}

// Attach says whether a client is attached to a session that runs: READY or
// DETACHED.
func (s *Server) Attach(idOrName string, attached bool) {
	s.on(idOrName, func(ses *session, now time.Time) {
		switch {
		case attached && ses.status == detached:
			ses.become(s, now, ready, "")
		case !attached && ses.status == ready:
			ses.become(s, now, detached, "")
		}
	})
}

// Claim makes reads tell this status, whatever is true; empty tells the truth
// again. It is what the wire says, with its prefix.
func (s *Server) Claim(idOrName, status string) {
	s.on(idOrName, func(ses *session, _ time.Time) { ses.claimed = status })
}

// ClaimReason makes reads tell this reason of a pause, until the next wake.
func (s *Server) ClaimReason(idOrName, reason string) {
	s.on(idOrName, func(ses *session, _ time.Time) { ses.odd = reason })
}

// Lock is the lock of staff: deleting answers 423.
func (s *Server) Lock(idOrName string, locked bool) {
	s.on(idOrName, func(ses *session, _ time.Time) { ses.locked = locked })
}

// HoldDelete refuses that many deletes with 409, as a checkpoint does.
func (s *Server) HoldDelete(idOrName string, deletes int) {
	s.on(idOrName, func(ses *session, _ time.Time) { ses.held = deletes })
}

// ClosePort closes port 8000 for a while, though the session is READY.
func (s *Server) ClosePort(idOrName string, d time.Duration) {
	s.on(idOrName, func(ses *session, now time.Time) {
		ses.openAt = now.Add(d)
		if ses.guest != nil {
			ses.guest.drop()
		}
	})
}

// Work lets the agent run for a while, as a model or a tool does: the session
// is in use and its last event moves.
func (s *Server) Work(idOrName string, d time.Duration) {
	s.on(idOrName, func(ses *session, now time.Time) {
		if ses.status == ready || ses.status == detached {
			ses.run(now, d)
		}
	})
}

// IdleAt is when a session pauses by itself if nothing happens, zero if it
// never does.
func (s *Server) IdleAt(idOrName string) time.Time {
	var at time.Time
	s.on(idOrName, func(ses *session, _ time.Time) {
		if (ses.status == ready || ses.status == detached) && ses.turnEnds.IsZero() && !ses.spec.keepWarm {
			at = ses.used.Add(ses.spec.idle)
		}
	})
	return at
}

// Bind binds a trigger to a session, and returns its id.
func (s *Server) Bind(idOrName, name string) string {
	id := ""
	s.on(idOrName, func(ses *session, _ time.Time) {
		id = s.newID("trigger")
		s.triggers = append(s.triggers, &trigger{id: id, name: name, team: ses.team, session: ses.id})
	})
	return id
}

// SetBalance is a change of a team's balance, in dollars. At zero, whatever
// runs is paused; when it is positive again, sessions that agreed to it and
// whose last run was cut go on by themselves [docs 8 Oct 2026].
func (s *Server) SetBalance(token string, dollars float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	t, now := s.teams[token], s.time()
	if t == nil {
		panic("digitaloceantest: no team has that token")
	}
	t.balance = dollars
	t.prepaid.Balance, t.prepaid.Blocked = fmt.Sprintf("%.2f", dollars), dollars <= 0
	for _, ses := range s.sessions {
		switch {
		case ses.team != t:
		case dollars <= 0 && (ses.status == ready || ses.status == detached):
			ses.pause(s, now, zeroBalance)
		case dollars > 0 && ses.status == paused && ses.reason == zeroBalance && ses.topoff && ses.unfinished:
			ses.wake(s, now, "topoff")
			ses.run(now, s.opts.Turn)
		}
	}
}

// SetPrepayment sets what the balance is told as, and nothing else.
func (s *Server) SetPrepayment(token string, p Prepayment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.teams[token] == nil {
		panic("digitaloceantest: no team has that token")
	}
	s.teams[token].prepaid = p
}

// SetTeam changes what a team is and may do. Its token and what it owns stay,
// so another UUID is another account behind the same token.
func (s *Server) SetTeam(token string, change func(*Team)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.teams[token] == nil {
		panic("digitaloceantest: no team has that token")
	}
	change(&s.teams[token].Team)
	s.teams[token].Token = token
}

// Unsupported makes whole operations answer 501, as other substrates and
// older sandboxes do.
func (s *Server) Unsupported(pause, ingress bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noPause, s.noIngress = pause, ingress
}

// SecretsDown makes creates answer 503.
func (s *Server) SecretsDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noSecrets = down
}
