package digitaloceantest

import (
	"net/http"
	"slices"
	"time"
)

// workspace is a persistent one: files that outlive sessions.
type workspace struct {
	id, name  string
	team      *team
	region    string
	state     string
	holder    string
	limit     int32
	key, body string // of the create
	created   time.Time
	saved     time.Time
	freeAt    time.Time
}

// letGo is the end of the session that held it: its files are saved.
func (w *workspace) letGo(s *Server, at time.Time) {
	w.state, w.freeAt = "RELEASING", at.Add(s.opts.Releasing)
	if s.opts.Releasing <= 0 {
		w.release()
	}
}

func (w *workspace) release() { w.state, w.holder, w.saved = "AVAILABLE", "", w.freeAt }

// workspace finds one of the caller's team and region. The lock is held.
func (s *Server) workspace(c *call, id string) *workspace {
	for _, w := range s.spaces {
		if w.id == id && w.team == c.team && w.region == c.region {
			return w
		}
	}
	return nil
}

func (w *workspace) json() map[string]any {
	out := map[string]any{
		"workspace_id": w.id, "state": w.state, "size_limit_gib": w.limit, "bytes_used": 0,
		"created_at": stamp(w.created), "updated_at": stamp(w.created),
		"created_by": w.team.UserUUID, "updated_by": w.team.UserUUID,
	}
	if w.name != "" {
		out["name"] = w.name
	}
	if w.holder != "" {
		out["attached_session_id"] = w.holder
	}
	if !w.saved.IsZero() {
		out["last_saved_at"] = stamp(w.saved)
	}
	return out
}

// workspaceCreate may be repeated with one Idempotency-Key for 24 hours.
func (c *call) workspaceCreate() answer {
	var in struct {
		Limit int32  `json:"size_limit_gib"`
		Name  string `json:"name"`
	}
	key, body := c.r.Header.Get("Idempotency-Key"), string(c.body)
	if key != "" {
		for _, w := range c.s.spaces {
			if w.team != c.team || w.key != key || c.now.Sub(w.created) >= 24*time.Hour {
				continue
			}
			if w.body != body {
				return refuse(http.StatusUnprocessableEntity, "idempotency key reused with a different request")
			}
			return ok(map[string]any{"workspace": w.json()})
		}
	}
	if ans, ok := c.decode(&in); !ok {
		return ans
	}
	if in.Limit < 1 || in.Limit > 100 {
		return refuse(http.StatusBadRequest, "size_limit_gib must be between 1 and 100")
	}
	w := &workspace{
		id: c.s.newID("workspace"), name: in.Name, team: c.team, region: c.region, state: "AVAILABLE", limit: in.Limit,
		key: key, body: body, created: c.now,
	}
	c.s.spaces = append(c.s.spaces, w)
	return answer{status: http.StatusCreated, body: map[string]any{"workspace": w.json()}}
}

func (c *call) workspaceGet() answer {
	w := c.s.workspace(c, c.ids[0])
	if w == nil {
		return refuse(http.StatusNotFound, "workspace not found")
	}
	return ok(map[string]any{"workspace": w.json()})
}

func (c *call) workspaceList() answer {
	state := c.r.URL.Query().Get("state")
	known := []string{"", "AVAILABLE", "ATTACHING", "ATTACHED", "RELEASING", "FAILED", "DELETING"}
	if !slices.Contains(known, state) {
		return refuse(http.StatusBadRequest, "state is not a workspace state")
	}
	var rows []row
	for i, w := range slices.Backward(c.s.spaces) {
		if w.team == c.team && w.region == c.region && (state == "" || w.state == state) {
			rows = append(rows, row{i, w.json()})
		}
	}
	return c.page("workspaces", rows)
}

func (c *call) workspaceDelete() answer {
	w := c.s.workspace(c, c.ids[0])
	switch {
	case w == nil:
		return refuse(http.StatusNotFound, "workspace not found")
	case w.state != "AVAILABLE" && w.state != "FAILED":
		return refuse(http.StatusConflict, "workspace is in use by a session")
	}
	c.s.spaces = slices.DeleteFunc(c.s.spaces, func(x *workspace) bool { return x == w })
	return done()
}
