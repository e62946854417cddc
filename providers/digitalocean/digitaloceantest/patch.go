package digitaloceantest

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// update is the latest change of a session's live configuration.
type update struct {
	id, session     string
	state           string
	sections        []string
	env, secrets    map[string]string
	target          *session
	started, ending time.Time
}

// end is when the change is in force.
func (u *update) end(at time.Time) {
	u.state, u.ending = "APPLIED", at
	maps.Copy(u.target.env, u.env)
	maps.Copy(u.target.env, u.secrets)
}

func (u *update) drifted() bool { return u.state == "APPLIED" }

func (u *update) json() map[string]any {
	out := map[string]any{
		"update_id": u.id, "session_id": u.session, "kind": "update", "state": u.state, "sections": u.sections,
		"started_at": stamp(u.started),
	}
	if !u.ending.IsZero() {
		out["finished_at"] = stamp(u.ending)
	}
	return out
}

// patch changes one of two things: the consent to be resumed, or the live
// configuration; never both.
func (c *call) patch() answer {
	var in struct {
		ResumeOnTopoff *bool   `json:"resume_on_topoff"`
		ManifestYAML   *string `json:"manifest_yaml"`
	}
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	if ans, ok := c.decode(&in); !ok {
		return ans
	}
	switch {
	case in.ResumeOnTopoff == nil && in.ManifestYAML == nil:
		return refuse(http.StatusBadRequest, "nothing to change")
	case in.ResumeOnTopoff != nil && in.ManifestYAML != nil:
		return refuse(http.StatusBadRequest, "resume_on_topoff and manifest_yaml can't be combined")
	case !ses.live():
		return refuse(http.StatusConflict, "session has ended")
	case in.ResumeOnTopoff != nil:
		ses.topoff = *in.ResumeOnTopoff
		return c.shown(ses)
	}
	return c.reconfigure(ses, *in.ManifestYAML)
}

// reconfigure takes a partial manifest: tools, env and secrets [client v1.239].
func (c *call) reconfigure(ses *session, text string) answer {
	var doc map[string]yaml.Node
	if yaml.Unmarshal([]byte(text), &doc) != nil || len(doc) == 0 {
		return refuse(http.StatusBadRequest, "manifest_yaml is not a YAML mapping")
	}
	u := &update{session: ses.id, state: "APPLYING", target: ses, started: c.now, env: map[string]string{}, secrets: map[string]string{}}
	p := parser{spec: &spec{env: u.env, secrets: u.secrets, manifest: map[string]any{}}}
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		switch key {
		case "tools", "env", "secrets":
		case "permissions", "model":
			return refuse(http.StatusNotImplemented, "%s can't be changed yet", key)
		default:
			return refuse(http.StatusUnprocessableEntity, "requires_new_session: %s can't be changed in a session", key)
		}
		node := doc[key]
		if err := p.key(key, &node); err != nil {
			return refuse(http.StatusBadRequest, "%s", err.Error())
		}
		u.sections = append(u.sections, key)
	}
	u.env = p.spec.env
	for _, value := range u.secrets {
		c.s.secrets[value] = true
	}
	if !ses.runs(c.now) {
		return refuse(http.StatusConflict, "session is not running or is already updating")
	}
	changed := slices.Contains(u.sections, "tools")
	for _, part := range []map[string]string{u.env, u.secrets} {
		for key, value := range part {
			changed = changed || ses.env[key] != value
		}
	}
	body := func(outcome string) map[string]any {
		return map[string]any{"session": ses.json(ses.told(c.now)), "outcome": outcome}
	}
	if !changed {
		return ok(body("UNCHANGED"))
	}
	u.id = c.s.newID("update")
	ses.update, ses.updatedAt = u, c.now.Add(c.s.opts.Updating)
	ses.become(c.s, c.now, updating, "")
	return answer{status: http.StatusAccepted, body: body("ACCEPTED")}
}
