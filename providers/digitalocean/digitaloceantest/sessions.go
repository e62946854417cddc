package digitaloceantest

import (
	"fmt"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// yamlTypes are the media types of a manifest.
var yamlTypes = []string{"application/x-yaml", "application/yaml", "text/yaml", "text/x-yaml"} //nolint:gochecknoglobals // a constant list

// create makes a session, from a configuration or from a manifest.
func (c *call) create() answer {
	kind, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	switch {
	case kind == "application/json":
		if len(c.body) > maxJSON {
			return refuse(http.StatusRequestEntityTooLarge, "request body is too large")
		}
		return c.createFromConfig()
	case slices.Contains(yamlTypes, kind):
		return c.createFromManifest()
	}
	return refuse(http.StatusUnsupportedMediaType, "content type %q is not supported", kind)
}

func (c *call) createFromConfig() answer {
	var in struct {
		Name           string `json:"name"`
		ConfigID       string `json:"config_id"`
		ResumeOnTopoff bool   `json:"resume_on_topoff"`
		WorkspaceID    string `json:"workspace_id"`
		Region         string `json:"region"`
	}
	if ans, ok := c.decode(&in); !ok {
		return ans
	}
	switch {
	case in.ConfigID == "":
		return refuse(http.StatusBadRequest, "config_id is required")
	case in.Region != "" && in.Region != c.region:
		return refuse(http.StatusBadRequest, "region_mismatch: the request asks for %s and this host serves %s", in.Region, c.region)
	}
	cfg := c.s.config(c, in.ConfigID)
	if cfg == nil {
		return refuse(http.StatusNotFound, "config not found")
	}
	var space *workspace
	if in.WorkspaceID != "" {
		if space = c.s.workspace(c, in.WorkspaceID); space == nil {
			return refuse(http.StatusNotFound, "workspace not found")
		}
		if space.state != "AVAILABLE" {
			return refuse(http.StatusConflict, "workspace is not available")
		}
	}
	ses, ans := c.allocate(in.Name, cfg)
	if ses == nil {
		return ans
	}
	ses.topoff = in.ResumeOnTopoff
	if space != nil {
		space.state, space.holder, ses.space = "ATTACHED", ses.id, space
	}
	return c.created(ses)
}

func (c *call) createFromManifest() answer {
	sp, err := c.s.parseManifest(c.body)
	if err != nil {
		return refuse(http.StatusBadRequest, "%s", err.Error())
	}
	topoff := false
	if text := c.r.URL.Query().Get("resume_on_topoff"); text != "" {
		if topoff, err = strconv.ParseBool(text); err != nil {
			return refuse(http.StatusBadRequest, "resume_on_topoff must be true or false")
		}
	}
	name := sp.name
	if name == "" {
		name = fmt.Sprintf("session-%s-%d", sp.agent, len(c.s.sessions)+1)
	}
	cfg := c.s.newConfig(c, name, sp)
	ses, ans := c.allocate(name, cfg)
	if ses == nil {
		return ans
	}
	c.s.configs = append(c.s.configs, cfg)
	ses.topoff = topoff
	return c.created(ses)
}

// allocate makes the row of a session, or says why not.
func (c *call) allocate(name string, cfg *config) (*session, answer) {
	s := c.s
	if problem := badName(name); problem != "" {
		return nil, refuse(http.StatusBadRequest, "name %s", problem)
	}
	if ans, blocked := c.gate(); blocked {
		return nil, ans
	}
	if s.noSecrets {
		return nil, refuse(http.StatusServiceUnavailable, "secret store is unavailable")
	}
	if cfg.spec.oauth {
		return nil, refuse(http.StatusNotImplemented, "oauth credentials are not implemented")
	}
	if s.holder(c.team, c.region, name) != nil {
		return nil, refuse(http.StatusConflict, "a session named %q already exists", name)
	}
	if quota := c.team.Quota; quota > 0 && s.active(c.team) >= quota {
		return nil, refuse(http.StatusConflict, "team is at the limit of %d active sessions", quota)
	}
	ses := &session{
		id: s.sessionID(), name: name, team: c.team, region: c.region, configID: cfg.id, spec: cfg.spec,
		env: cfg.spec.guestEnv(), created: c.now, boots: true, readyAt: c.now.Add(max(s.opts.Boot, 0)),
	}
	if s.failBoots > 0 {
		s.failBoots--
		ses.boots = false
	}
	ses.bill = Statement{ID: ses.id, Name: name, Team: c.team.Name, Region: c.region, ConfigID: cfg.id, Created: c.now, until: c.now}
	ses.become(s, c.now, provisioning, "")
	s.sessions = append(s.sessions, ses)
	return ses, answer{}
}

func (c *call) created(ses *session) answer {
	return answer{
		status: c.s.opts.CreateStatus, body: map[string]any{"session": ses.json(ses.status, ses.reason)},
		header: c.placed("sessions", ses.id),
	}
}

// placed are the headers that say where a thing was made.
func (c *call) placed(kind, id string) http.Header {
	return http.Header{
		"Location":    {"https://" + apiHostPrefix + c.region + apiHostSuffix + agentsPrefix + "/" + kind + "/" + id},
		"X-Do-Region": {c.region},
	}
}

// sessionID makes the id of a session. The lock is held.
func (s *Server) sessionID() string {
	id := s.newID("session")
	if s.opts.PrefixedIDs {
		return "sess_" + strings.ReplaceAll(id, "-", "")
	}
	return id
}

var (
	nameForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$`)
	uuidForm = regexp.MustCompile(`^[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$`)
)

// badName says what is wrong with a session's name [specification of July 2026].
func badName(name string) string {
	switch {
	case name == "":
		return "is required"
	case !nameForm.MatchString(name):
		return "must be 1 to 64 letters, digits, '-', '.' or '_', and begin and end with a letter or digit"
	case uuidForm.MatchString(name):
		return "must not look like a UUID"
	}
	return ""
}

// holder is the live session with a name. Names are compared without regard to
// case.
func (s *Server) holder(t *team, region, name string) *session {
	for _, ses := range s.sessions {
		if ses.team == t && ses.region == region && ses.live() && strings.EqualFold(ses.name, name) {
			return ses
		}
	}
	return nil
}

// active counts what holds a slot of the quota: paused sessions too
// [docs 6 Nov 2026].
func (s *Server) active(t *team) int {
	n := 0
	for _, ses := range s.sessions {
		if ses.team == t && ses.live() {
			n++
		}
	}
	return n
}

// find returns the session that the path names, or the refusal. A session of
// another region is not there, one of another team is forbidden.
func (c *call) find() (*session, answer) {
	for _, ses := range c.s.sessions {
		if ses.id != c.ids[0] || ses.region != c.region {
			continue
		}
		if ses.team != c.team {
			return nil, refuse(http.StatusForbidden, "session belongs to another team")
		}
		return ses, answer{}
	}
	return nil, refuse(http.StatusNotFound, "session not found")
}

func (c *call) get() answer {
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	if ses.status == destroyed && c.s.opts.ForgetDestroyed {
		return refuse(http.StatusNotFound, "session not found")
	}
	return c.shown(ses)
}

func (c *call) shown(ses *session) answer {
	return ok(map[string]any{"session": ses.json(ses.told(c.now))})
}

func (c *call) pause() answer {
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	switch {
	case c.s.noPause:
		return refuse(http.StatusNotImplemented, "pause is not supported on this substrate")
	case !ses.runs(c.now):
		return refuse(http.StatusConflict, "session is not pauseable: it must be READY or DETACHED")
	case ses.spec.keepWarm:
		return refuse(c.s.opts.KeepWarmPause, "session is kept warm and can't be paused")
	case ses.holds > 0:
		return refuse(http.StatusConflict, "session is busy with a checkpoint, fork or rollback")
	}
	ses.pause(c.s, c.now, manual)
	return done()
}

func (c *call) resume() answer {
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	status, _ := ses.told(c.now)
	switch {
	case c.s.noPause:
		return refuse(http.StatusNotImplemented, "resume is not supported on this substrate")
	case status != paused:
		return refuse(http.StatusConflict, "session is not paused")
	}
	if ans, blocked := c.gate(); blocked {
		return ans
	}
	if ses.status == paused {
		ses.wake(c.s, c.now, "resume")
	}
	return done()
}

func (c *call) destroy() answer {
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	switch {
	case ses.locked:
		return refuse(http.StatusLocked, "session is locked by staff")
	case ses.holds > 0 || ses.held > 0:
		ses.held = max(ses.held-1, 0)
		return refuse(http.StatusConflict, "session is held by a checkpoint, fork or rollback: retry later")
	case ses.status == destroyed || ses.status == destroying:
		if c.s.opts.DeleteAgain == http.StatusNotFound {
			return refuse(http.StatusNotFound, "session not found")
		}
		return answer{status: c.s.opts.DeleteAgain}
	}
	ses.bill.Deletes++
	if ses.status == failed { // it ended before; only the row goes
		ses.become(c.s, c.now, destroyed, "")
		return done()
	}
	ses.destroy(c.s, c.now)
	return done()
}
