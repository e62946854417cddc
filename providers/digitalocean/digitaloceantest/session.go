package digitaloceantest

import (
	"net/http"
	"slices"
	"time"
)

// The states of a session, without their prefix on the wire.
const (
	statusPrefix = "SESSION_STATUS_"

	provisioning = "PROVISIONING"
	ready        = "READY"
	detached     = "DETACHED"
	updating     = "UPDATING"
	paused       = "PAUSED"
	destroying   = "DESTROYING"
	destroyed    = "DESTROYED"
	failed       = "FAILED"
)

// The reasons of a pause.
const (
	manual      = "manual"
	idle        = "idle"
	zeroBalance = "zero_balance"
)

// session is one row. Its status is what is true; told says what a read shows.
type session struct {
	id, name   string
	team       *team
	region     string
	configID   string
	spec       *spec
	env        map[string]string // with the values of secrets
	status     string
	reason     string // of a pause
	claimed    string // a status that reads show instead
	odd        string // a pause reason that reads show instead
	topoff     bool
	unfinished bool // a run was cut by the pause
	created    time.Time
	ended      time.Time
	lastEvent  time.Time
	history    []change

	sandbox  string
	guest    *guest
	ingress  *ingress
	space    *workspace
	parent   string
	fork     string
	forkFrom string
	update   *update
	saved    []*checkpoint

	boots     bool      // it will come up
	readyAt   time.Time // end of PROVISIONING
	shownAt   time.Time // until then a resumed session is told as PAUSED
	openAt    time.Time // until then port 8000 is closed
	used      time.Time // the idle clock
	turnEnds  time.Time // of a run, zero if none
	goneAt    time.Time // end of DESTROYING
	updatedAt time.Time // end of UPDATING

	holds  int // checkpoints, forks and rollbacks under way
	held   int // deletes that are still to be refused with 409
	locked bool
	bill   Statement
}

// change is one entry of a session's past, for reads that are behind.
type change struct {
	serial         int
	at             time.Time
	status, reason string
}

// due is what happens next to this session by itself.
func (ses *session) due(s *Server) (time.Time, func(time.Time)) {
	switch ses.status {
	case provisioning:
		return ses.readyAt, func(at time.Time) {
			if !ses.boots {
				ses.finish(s, at, failed)
				return
			}
			ses.start(s, at)
		}
	case ready, detached:
		if !ses.turnEnds.IsZero() {
			return ses.turnEnds, func(at time.Time) {
				ses.turnEnds, ses.unfinished, ses.used = time.Time{}, false, at
				ses.lastEvent = at // run.completed
			}
		}
		if !ses.spec.keepWarm && ses.holds == 0 {
			return ses.used.Add(ses.spec.idle), func(at time.Time) { ses.pause(s, at, idle) }
		}
	case updating:
		return ses.updatedAt, func(at time.Time) {
			ses.update.end(at)
			ses.lastEvent = at // session.updated
			ses.become(s, at, ready, "")
			ses.broke(s, at)
		}
	case destroying:
		return ses.goneAt, func(at time.Time) { ses.finish(s, at, destroyed) }
	}
	return time.Time{}, nil
}

// become changes the status, and puts the time until then on the bill.
func (ses *session) become(s *Server, at time.Time, status, reason string) {
	ses.account(at)
	ses.status, ses.reason = status, reason
	if !ses.live() && ses.bill.freed.IsZero() {
		ses.bill.freed = at
	}
	s.changes++
	ses.history = append(ses.history, change{s.changes, at, status, reason})
}

// account puts the time since the last change on the bill.
func (ses *session) account(at time.Time) {
	spent := at.Sub(ses.bill.until)
	switch ses.status {
	case provisioning:
		ses.bill.Provisioning += spent
	case ready, detached, updating:
		ses.bill.Running += spent
	case paused:
		ses.bill.Paused += spent
	}
	ses.bill.until = at
}

// start is the end of PROVISIONING.
func (ses *session) start(s *Server, at time.Time) {
	ses.newSandbox(s)
	ses.used, ses.openAt = at, at.Add(s.opts.PortLag)
	ses.lastEvent = at // run.sandbox_allocated
	ses.become(s, at, ready, "")
	ses.broke(s, at)
}

// broke pauses what came up for a team that has no balance any more.
func (ses *session) broke(s *Server, at time.Time) {
	if ses.team.balance <= 0 {
		ses.pause(s, at, zeroBalance)
	}
}

// newSandbox replaces the sandbox, and with it what listens in it.
func (ses *session) newSandbox(s *Server) {
	ses.revoke(s)
	if ses.guest != nil {
		ses.guest.end()
	}
	ses.sandbox, ses.guest = "sbx-"+s.newID("sandbox"), nil
}

// pause freezes what runs. The caller has checked that it may.
func (ses *session) pause(s *Server, at time.Time, reason string) {
	ses.unfinished = !ses.turnEnds.IsZero()
	ses.turnEnds, ses.shownAt = time.Time{}, time.Time{}
	ses.revoke(s)
	ses.become(s, at, paused, reason)
	if ses.guest != nil {
		ses.guest.freeze(true)
	}
	if ses.bill.Pauses == nil {
		ses.bill.Pauses = map[string]int{}
	}
	ses.bill.Pauses[reason]++
}

// wake brings back what is paused. The sandbox, and what runs in it, is the
// same; its ingress is not.
func (ses *session) wake(s *Server, at time.Time, cause string) {
	ses.used, ses.openAt, ses.shownAt = at, at.Add(s.opts.PortLag), at.Add(s.opts.ResumeLag)
	ses.odd = ""
	if ses.guest != nil {
		ses.guest.freeze(false)
	}
	ses.become(s, at, ready, "")
	if ses.bill.Wakes == nil {
		ses.bill.Wakes = map[string]int{}
	}
	ses.bill.Wakes[cause]++
}

// destroy begins the end.
func (ses *session) destroy(s *Server, at time.Time) {
	if s.opts.Destroying > 0 {
		ses.stop(s)
		ses.goneAt = at.Add(s.opts.Destroying)
		ses.become(s, at, destroying, "")
		return
	}
	ses.finish(s, at, destroyed)
}

// finish is the end, by destruction or failure.
func (ses *session) finish(s *Server, at time.Time, status string) {
	ses.stop(s)
	ses.ended = at
	ses.become(s, at, status, "")
	if ses.space != nil {
		ses.space.letGo(s, at)
	}
}

// stop ends what runs in the sandbox.
func (ses *session) stop(s *Server) {
	ses.revoke(s)
	if ses.guest != nil {
		ses.guest.end()
		ses.guest = nil
	}
	ses.turnEnds, ses.shownAt, ses.saved = time.Time{}, time.Time{}, nil
}

// told is the status that reads and checks go by.
func (ses *session) told(now time.Time) (status, reason string) {
	if ses.status == ready && now.Before(ses.shownAt) {
		return paused, ses.lastReason()
	}
	return ses.status, ses.reason
}

func (ses *session) lastReason() string {
	for _, ch := range slices.Backward(ses.history) {
		if ch.status == paused {
			return ch.reason
		}
	}
	return manual
}

func (ses *session) runs(now time.Time) bool {
	status, _ := ses.told(now)
	return status == ready || status == detached
}

func (ses *session) live() bool {
	switch ses.status {
	case destroying, destroyed, failed:
		return false
	}
	return true
}

// use resets the idle clock.
func (ses *session) use(now time.Time, off bool) {
	if !off {
		ses.used = now
	}
}

// describe is the session as hooks get it.
func (ses *session) describe() Session {
	return Session{
		ID: ses.id, Name: ses.name, Region: ses.region, ConfigID: ses.configID, SandboxID: ses.sandbox, Env: ses.env,
	}
}

// listener returns what listens on port 8000, nil for a closed port. The lock
// is held; the hook is called without it, so the caller looks again at what it
// knew.
func (ses *session) listener(s *Server) *guest {
	if !ses.spec.served || s.opts.AgentServer == nil || s.time().Before(ses.openAt) || !ses.runs(s.time()) || s.closed {
		return nil
	}
	if ses.guest == nil {
		ses.guest = newGuest(s, ses.describe(), func(d Session) http.Handler { return s.opts.AgentServer(d) })
	}
	return ses.guest
}

// json is the session as the wire has it: what is absent is left out, never
// null [fixtures of the client, v1.240.0].
func (ses *session) json(status, reason string) map[string]any {
	out := map[string]any{
		"session_id": ses.id, "name": ses.name, "agent_kind": ses.spec.kind, "created_at": stamp(ses.created),
		"origin":    map[string]any{"product": "direct", "verified": true},
		"config_id": ses.configID, "region": ses.region, "team_id": ses.team.ID,
		"keep_warm": ses.spec.keepWarm, "idle_timeout_seconds": int64(ses.spec.idle.Seconds()),
	}
	out["status"] = statusPrefix + status
	if ses.claimed != "" {
		out["status"] = ses.claimed
	}
	if status == paused {
		out["pause_reason"] = reason
		if ses.odd != "" {
			out["pause_reason"] = ses.odd
		}
	}
	if !ses.lastEvent.IsZero() {
		out["last_event_at"] = stamp(ses.lastEvent)
	}
	for key, value := range map[string]string{
		"sandbox_id": ses.sandbox, "parent_session_id": ses.parent, "fork_id": ses.fork, "fork_from_checkpoint_id": ses.forkFrom,
	} {
		if value != "" {
			out[key] = value
		}
	}
	if ses.topoff {
		out["resume_on_topoff"] = true
	}
	if ses.space != nil {
		out["workspace_id"] = ses.space.id
	}
	if ses.update != nil {
		out["update"] = ses.update.json()
		if ses.update.drifted() {
			out["config_drifted"] = true
			out["manifest"] = ses.spec.manifest
		}
	}
	return out
}

// stamp writes a time as the service does, with microseconds.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00") }
