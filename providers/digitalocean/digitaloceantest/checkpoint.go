package digitaloceantest

import (
	"net/http"
	"slices"
	"time"
)

// checkpoint is a save point of a session; it dies with the session.
type checkpoint struct {
	id, label, kind string
	created         time.Time
	status          string
	place           int
}

func (cp *checkpoint) json(ses *session) map[string]any {
	out := map[string]any{
		"checkpoint_id": cp.id, "session_id": ses.id, "status": cp.status, "kind": cp.kind, "created_at": stamp(cp.created),
	}
	if cp.label != "" {
		out["label"] = cp.label
	}
	if cp.status == "READY" {
		out["size_bytes"] = 734003200
	}
	return out
}

// mayHold refuses what a checkpoint, fork or rollback can't be taken from.
func (c *call) mayHold(ses *session) (answer, bool) {
	switch {
	case !ses.runs(c.now):
		return refuse(http.StatusConflict, "session is not running"), true
	case !ses.turnEnds.IsZero():
		return refuse(http.StatusConflict, "a turn is active"), true
	case ses.holds > 0:
		return refuse(http.StatusConflict, "session is busy with a checkpoint, fork or rollback"), true
	}
	return answer{}, false
}

// hold keeps a session from being deleted or paused until the clock has moved
// on, and answers then. What was begun goes on when the client leaves.
func (c *call) hold(ses *session, finish func(*call) answer) answer {
	if c.s.opts.Saving <= 0 {
		return finish(c)
	}
	s, until := c.s, c.now.Add(c.s.opts.Saving)
	ses.holds++
	var ans answer
	s.at(until, func() {
		ses.holds--
		again := *c
		again.now = until
		ans = finish(&again)
	})
	return answer{until: until, then: func() answer { return ans }}
}

func (c *call) checkpoint() answer {
	var in struct {
		Label string `json:"label"`
	}
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	if ans, ok := c.decode(&in); !ok {
		return ans
	}
	if ans, no := c.mayHold(ses); no {
		return ans
	}
	cp := &checkpoint{
		id: "cp_" + c.s.newID("checkpoint")[9:], label: in.Label, kind: "explicit", created: c.now, status: "PENDING", place: c.s.serial,
	}
	ses.saved = append(ses.saved, cp)
	return c.hold(ses, func(c *call) answer {
		if !ses.live() {
			cp.status = "FAILED"
			return refuse(http.StatusConflict, "session ended")
		}
		cp.status = "READY"
		ses.lastEvent = c.now // run.state_checkpointed
		return ok(map[string]any{"checkpoint": cp.json(ses)})
	})
}

func (c *call) checkpointList() answer {
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	var rows []row
	for _, cp := range slices.Backward(ses.saved) {
		rows = append(rows, row{cp.place, cp.json(ses)})
	}
	return c.page("checkpoints", rows)
}

// saved finds the checkpoint with an id; nil if it is not there.
func (ses *session) savedAs(id string) *checkpoint {
	for _, cp := range ses.saved {
		if cp.id == id {
			return cp
		}
	}
	return nil
}

func (c *call) checkpointGet() answer {
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	cp := ses.savedAs(c.ids[1])
	if cp == nil {
		return refuse(http.StatusNotFound, "checkpoint not found")
	}
	return ok(map[string]any{"checkpoint": cp.json(ses)})
}

// checkpointDelete may be repeated.
func (c *call) checkpointDelete() answer {
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	if cp := ses.savedAs(c.ids[1]); cp != nil && cp.status == "PENDING" {
		return refuse(http.StatusConflict, "checkpoint is being taken")
	}
	ses.saved = slices.DeleteFunc(ses.saved, func(cp *checkpoint) bool { return cp.id == c.ids[1] })
	return ok(map[string]any{"checkpoint_id": c.ids[1], "deleted": true})
}

// usable finds a checkpoint that can be gone back to.
func (c *call) usable(ses *session, id string) (answer, bool) {
	cp := ses.savedAs(id)
	switch {
	case cp == nil:
		return refuse(http.StatusNotFound, "checkpoint not found"), false
	case cp.status != "READY":
		return refuse(http.StatusConflict, "checkpoint is not ready"), false
	case ses.space != nil:
		return refuse(http.StatusConflict, "not available with a persistent workspace"), false
	}
	return answer{}, true
}

// rollback keeps the id of the session and replaces its sandbox.
func (c *call) rollback() answer {
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	if ans, ok := c.usable(ses, c.ids[1]); !ok {
		return ans
	}
	if ans, no := c.mayHold(ses); no {
		return ans
	}
	return c.hold(ses, func(c *call) answer {
		if !ses.live() {
			return refuse(http.StatusConflict, "session ended")
		}
		ses.newSandbox(c.s)
		ses.used, ses.openAt = c.now, c.now.Add(c.s.opts.PortLag)
		return c.shown(ses)
	})
}

// fork makes all children or none.
func (c *call) fork() answer {
	var in struct {
		From  string `json:"from_checkpoint_id"`
		Count *int   `json:"count"`
	}
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	if ans, ok := c.decode(&in); !ok {
		return ans
	}
	count := 1
	if in.Count != nil {
		count = *in.Count
	}
	if count < 1 || count > 4 {
		return refuse(http.StatusBadRequest, "count must be from 1 to 4")
	}
	if in.From != "" {
		if ans, ok := c.usable(ses, in.From); !ok {
			return ans
		}
	} else if ses.space != nil {
		return refuse(http.StatusConflict, "not available with a persistent workspace")
	}
	if ans, no := c.mayHold(ses); no {
		return ans
	}
	if ans, blocked := c.gate(); blocked {
		return ans
	}
	if quota := c.team.Quota; quota > 0 && c.s.active(c.team)+count > quota {
		return refuse(http.StatusConflict, "team is at the limit of %d active sessions", quota)
	}
	return c.hold(ses, func(c *call) answer { return c.forked(ses, in.From, count) })
}

func (c *call) forked(ses *session, from string, count int) answer {
	if !ses.live() {
		return refuse(http.StatusConflict, "session ended")
	}
	if from == "" {
		cp := &checkpoint{
			id: "cp_" + c.s.newID("checkpoint")[9:], kind: "implicit", created: c.now, status: "READY", place: c.s.serial,
		}
		ses.saved, from = append(ses.saved, cp), cp.id
	}
	var bodies []map[string]any
	for range count {
		id := c.s.sessionID()
		child := &session{
			id: id, name: "fork-" + id[:18], team: ses.team, region: ses.region, configID: ses.configID, spec: ses.spec, env: ses.env,
			created: c.now, boots: true, readyAt: c.now.Add(max(c.s.opts.Boot, 0)),
			parent: ses.id, fork: "fork-" + id[9:13], forkFrom: from,
		}
		child.bill = Statement{
			ID: id, Name: child.name, Team: ses.team.Name, Region: ses.region, ConfigID: ses.configID, Created: c.now, until: c.now,
		}
		child.become(c.s, c.now, provisioning, "")
		c.s.sessions = append(c.s.sessions, child)
		bodies = append(bodies, child.json(child.status, child.reason))
	}
	return ok(map[string]any{"sessions": bodies})
}
