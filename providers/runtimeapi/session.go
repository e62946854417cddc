package runtimeapi

import (
	"context"
	"fmt"
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver/httpdriver"
)

// session is what the service says of one box. Fields may be null or missing.
type session struct {
	RuntimeID string     `json:"runtime_id"`
	SessionID string     `json:"session_id"`
	URL       string     `json:"url"`
	Key       box.Secret `json:"session_api_key"` // null while it is paused
	Status    string     `json:"status"`
	PodStatus string     `json:"pod_status"`
	// Only for the evidence; their form is not certain.
	RestartCount   any `json:"restart_count"`
	RestartReasons any `json:"restart_reasons"`
}

// phase is what the two statuses mean together. What is not known is unknown,
// and nothing here leads to a /stop.
func (s session) phase() box.Phase {
	status, pod := lower(s.Status), lower(s.PodStatus)
	switch status {
	case "running", "starting":
		switch pod {
		case "failed", "crashloopbackoff":
			return box.PhaseFailed
		case "pending", "running", "not found": // older servers say running too early
			return box.PhaseStarting
		case "", "ready":
			if status == "starting" {
				return box.PhaseStarting
			}
			return box.PhaseRunning
		}
		return box.PhaseUnknown
	case "paused":
		return box.PhaseSuspended
	case "stopped": // a stop deletes the volume
		return box.PhaseGone
	case "error":
		return box.PhaseFailed
	}
	return box.PhaseUnknown
}

func lower(text string) string { return strings.ToLower(strings.TrimSpace(text)) }

// evidence is what the service said, without addresses, keys and logs.
func (s session) evidence() string {
	parts := []string{fmt.Sprintf("status %q", clean(s.Status))}
	if s.PodStatus != "" {
		parts = append(parts, fmt.Sprintf("pod %q", clean(s.PodStatus)))
	}
	if n, ok := s.RestartCount.(float64); ok && n > 0 {
		parts = append(parts, fmt.Sprintf("restarts %.0f", n))
	}
	if reasons, ok := s.RestartReasons.([]any); ok {
		for _, reason := range reasons[:min(3, len(reasons))] {
			if text, ok := reason.(string); ok {
				parts = append(parts, fmt.Sprintf("%q", clean(text)))
			}
		}
	}
	return strings.Join(parts, ", ")
}

// look reads the session of a name. It is nil when the service itself says that
// there is none.
func (d *Driver) look(ctx context.Context, name string) (*session, error) {
	r, err := d.api.get(ctx, "/sessions/"+name)
	if err != nil {
		return nil, err
	}
	if r.absent() {
		return nil, nil //nolint:nilnil // absent is an answer
	}
	return readSession(r, name)
}

// readSession reads an answer about the session of a name.
func readSession(r *reply, name string) (*session, error) {
	var s session
	if err := r.read(&s); err != nil {
		return nil, err
	}
	switch {
	case s.SessionID != name:
		return nil, box.Errorf(box.ClassUnknown, "%s: the answer is about session %q and not %q; look again", r.Method, clean(s.SessionID), name)
	case !httpdriver.PathSafe(s.RuntimeID):
		return nil, box.Errorf(box.ClassUnknown, "%s: the answer names no runtime_id, or none that can be in an address; look again", r.Method)
	}
	return &s, nil
}

// namesakes are the boxes that /list shows under a name or an id. That it shows
// none is no proof: it speaks against an absence, never for one.
func (d *Driver) namesakes(ctx context.Context, name, id string) (found []session, err error) {
	all, _, err := d.listed(ctx)
	for _, s := range all {
		if (s.SessionID == name || s.RuntimeID == id) && s.phase() != box.PhaseGone {
			found = append(found, s)
		}
	}
	return found, err
}

// listed reads /list: the boxes of the account, other programs' too. whole is
// false when it does not hold as many as it says, or one without a name.
func (d *Driver) listed(ctx context.Context) (all []session, whole bool, err error) {
	r, err := d.api.get(ctx, "/list")
	if err != nil {
		return nil, false, err
	}
	var list struct {
		Total    *int       `json:"total"`
		Runtimes *[]session `json:"runtimes"`
	}
	if err := r.read(&list); err != nil {
		return nil, false, err
	}
	if list.Runtimes == nil {
		return nil, false, box.Errorf(box.ClassUnknown, "%s: the answer holds no list of boxes; look again", r.Method)
	}
	whole = list.Total != nil && *list.Total == len(*list.Runtimes)
	for _, s := range *list.Runtimes {
		if s.SessionID == "" || s.RuntimeID == "" {
			whole = false
			continue
		}
		all = append(all, s)
	}
	return all, whole, nil
}

// see reads the box of ref. Gone is answered only when the session's own read
// and the list agree; the portable type reads twice.
func (d *Driver) see(ctx context.Context, ref box.Ref) (box.Observation, *session, error) {
	s, err := d.look(ctx, ref.Name)
	if err != nil {
		return box.Observation{}, nil, err
	}
	if s != nil && s.phase() != box.PhaseGone {
		if s.RuntimeID != ref.ID {
			return box.Observation{}, nil, box.Errorf(box.ClassUnknown, "session %s is box %s now, and this was box %s; look at both at the service", ref.Name, s.RuntimeID, clean(ref.ID))
		}
		return d.observation(ref, s), s, nil
	}
	others, err := d.namesakes(ctx, ref.Name, ref.ID)
	if err != nil {
		return box.Observation{}, nil, err
	}
	if len(others) > 0 {
		return box.Observation{}, nil, box.Errorf(box.ClassUnknown, "/sessions does not show box %s, and /list shows box %s of session %s as %s; look again", clean(ref.ID), clean(others[0].RuntimeID), clean(others[0].SessionID), others[0].evidence())
	}
	gone := box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: "/sessions says 404, and /list does not show it"}
	if s != nil {
		gone.Evidence = "/sessions says " + s.evidence() + ", and /list does not show it"
	}
	return gone, nil, nil
}

// observation is s as the box of ref.
func (d *Driver) observation(ref box.Ref, s *session) box.Observation {
	ref.ID = s.RuntimeID
	seen := box.Observation{Ref: ref, Phase: s.phase(), Evidence: s.evidence()}
	if seen.Phase == box.PhaseSuspended {
		seen.MemoryKept = box.No
	}
	if !d.opts.IdleReaper.IsNever() {
		seen.Native = &box.Native{Idle: d.opts.IdleReaper}
	}
	return seen
}
