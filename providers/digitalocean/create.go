package digitalocean

import (
	"context"
	"net/http"
	"strings"

	"github.com/digitalocean/godo"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Create looks for the box, then makes its environment and its session. An answer
// that does not come is an error, and the next call looks first: the service takes
// a name only once. Exhausted: no money or no room. Invalid: the service refuses
// what the spec or the options say.
func (d *Driver) Create(ctx context.Context, req driver.CreateRequest) (box.Observation, error) {
	name := req.Identity.Name()
	ref := box.Ref{ID: "unknown", Name: name, Epoch: req.Identity.Epoch}
	if err := driver.Ended(ctx); err != nil {
		return box.Observation{}, err
	}
	if identity, ok := driver.IdentityOf(ref); !ok || identity.Installation != d.installation {
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %q, epoch %d, is not of installation %s", name, ref.Epoch, d.installation)
	}
	if len(name) > mostName {
		return box.Observation{}, box.Invalidf("workspace", "the name %s is longer than the %d characters that DigitalOcean takes; use a shorter one", name, mostName)
	}
	want, err := d.environmentFor(req)
	if err != nil {
		return box.Observation{}, err
	}
	// One at a time in this process; of several workers the service lets one win.
	unlock, err := d.names.Take(ctx, name)
	if err != nil {
		return box.Observation{}, err
	}
	defer unlock()
	if ref.Fingerprint, err = d.Fingerprint(ctx); err != nil {
		return box.Observation{}, err
	}
	found, from, err := d.find(ctx, ref, want.name)
	if err != nil {
		return box.Observation{}, err
	}
	if found != "" { // a list may be behind, so the session is read
		ref.ID = found
		_, seen, err := d.look(ctx, ref)
		return seen, err
	}
	made, err := d.make(ctx, name, from, want)
	if err != nil {
		return box.Observation{}, err
	}
	ref.ID = made.ID
	if made.IdleSeconds != nil {
		return d.observation(ref, *made), nil
	}
	// The timers are to be what the service says that it keeps.
	_, seen, err := d.look(ctx, ref)
	if err == nil && seen.Phase == box.PhaseGone {
		err = box.Errorf(box.ClassUnavailable, "session %s was made and is not found; look again", made.ID)
	}
	if err != nil {
		return box.Observation{}, driver.Unsettled(err)
	}
	return seen, nil
}

// find returns the id of the session that is, or was, the box of ref: one that
// lives, one that its environments were used for, or one that was taken over. It
// also returns the id of the environment called want, if that is there.
func (d *Driver) find(ctx context.Context, ref box.Ref, want string) (found, from string, err error) {
	held, err := d.held(ctx, ref.Name)
	if err != nil || held != nil {
		return idOf(held), "", err
	}
	all, err := d.api.environments(ctx)
	if err != nil {
		return "", "", err
	}
	made, from, err := d.earlier(ctx, ref, want, all)
	if err != nil || made != nil {
		return idOf(made), from, err
	}
	taken, err := d.takenOver(ctx, ref, all)
	return idOf(taken), from, err
}

func idOf(s *session) string {
	if s == nil {
		return ""
	}
	return s.ID
}

// mostName is the service's limit [openapi Jul 2026].
const mostName = 64

// held returns the live session of a name, nil when the service shows none.
// AlreadyExists: it is not ours.
func (d *Driver) held(ctx context.Context, name string) (*session, error) {
	found, err := d.api.sessions(ctx, "", godo.HostedAgentSessionListOptions{Name: name})
	if err != nil {
		return nil, err
	}
	for _, s := range found {
		if !strings.EqualFold(s.Name, name) || over(s.Status) {
			continue
		}
		mine, err := d.made(ctx, s)
		if err != nil {
			return nil, err
		}
		if s.Name != name || !mine || !validID(s.ID) {
			if stands, err := d.stands(ctx, s.ID); err != nil {
				return nil, err
			} else if !stands {
				continue
			}
			return nil, box.Errorf(box.ClassAlreadyExists, "session %s is called %s and was not made by this installation, so it was left alone; give it another name or use another workspace", s.ID, s.Name)
		}
		return &s, nil
	}
	return nil, nil //nolint:nilnil // there is none, which is an answer
}

// stands reports whether a session of a list is there. A list may be behind: one
// that was destroyed, its environment with it, is nobody's.
func (d *Driver) stands(ctx context.Context, id string) (bool, error) {
	if !validID(id) {
		return true, nil
	}
	s, err := d.api.session(ctx, id)
	if statusOf(err) == http.StatusNotFound {
		return false, nil
	}
	return err == nil && !over(s.Status), err
}

// earlier returns what was ever made from the environments of a box that has no
// live session: one that failed, or that was destroyed. It also returns the id of
// the environment called want, if that is there.
func (d *Driver) earlier(ctx context.Context, ref box.Ref, want string, all []environment) (found *session, environment string, err error) {
	for _, e := range all {
		if !strings.HasPrefix(e.Name, d.environmentPrefix(ref.Name)) || !validID(e.ID) {
			continue
		}
		if e.Name == want && environment == "" {
			environment = e.ID
		}
		made, err := d.api.sessions(ctx, e.ID, godo.HostedAgentSessionListOptions{Status: statusAll})
		if err != nil {
			if missing(err) {
				continue // deleted since it was listed
			}
			return nil, "", err
		}
		for _, s := range made {
			if s.Name != ref.Name || !validID(s.ID) {
				continue
			}
			// One that lives, which the list by name did not show yet, goes before
			// one that failed, and that before one that is gone.
			if found == nil || rank(s.Status) > rank(found.Status) {
				found = &s
			}
		}
	}
	return found, environment, nil
}

func rank(status godo.HostedAgentSessionStatus) int {
	switch {
	case status == godo.HostedAgentSessionStatusDestroyed:
		return 0
	case over(status):
		return 1
	}
	return 2
}

// takenOver returns the session that was taken over as the box of ref, nil when
// there is none.
func (d *Driver) takenOver(ctx context.Context, ref box.Ref, all []environment) (*session, error) {
	for at, c := range claims(all) {
		if c.installation != d.installation || c.box != digest(ref.Name) {
			continue
		}
		for _, status := range []godo.HostedAgentSessionStatus{"", godo.HostedAgentSessionStatusFailed} {
			found, err := d.api.sessions(ctx, "", godo.HostedAgentSessionListOptions{Status: status})
			if err != nil {
				return nil, err
			}
			for _, s := range found {
				if digest(s.ID) == at {
					return &s, nil
				}
			}
		}
		return nil, box.Errorf(box.ClassFailedPrecondition, "%s is the name of a session that was taken over and is not there any more; start a new epoch", ref.Name)
	}
	return nil, nil //nolint:nilnil // there is none, which is an answer
}

// make creates what is missing. From is the id of the environment to use, if it is
// there.
//
// The environment stays when the session is refused, and is swept a day later. To
// delete it here would save the secrets in it that day, but another worker may make
// the same box from it between a look and the deletion, and a session without its
// environment is nobody's: it could not be found again, and would be billed.
func (d *Driver) make(ctx context.Context, name, from string, want wanted) (*session, error) {
	if from == "" {
		id, err := d.api.createEnvironment(ctx, want.name, want.manifest, want.hide)
		if err != nil {
			return nil, err // a lost one is found by its name, and two do no harm
		}
		from = id
	}
	d.learn(environment{ID: from, Name: want.name})
	made, err := d.api.createSession(ctx, name, from, d.opts.Region)
	switch status := statusOf(err); {
	case err == nil:
		return &made, nil
	case status == http.StatusConflict && box.ClassOf(err) != box.ClassExhausted, unclear(err) && ctx.Err() == nil:
		// The name is taken, or nobody knows: it may be there now.
		held, broken := d.held(ctx, name)
		switch {
		case broken == nil && held != nil:
			return held, nil
		case box.ClassOf(broken) == box.ClassAlreadyExists:
			return nil, settled(status != http.StatusConflict, broken)
		case status == http.StatusConflict:
			return nil, box.Errorf(box.ClassUnavailable, "%w; the name may be taken by a session that is not listed yet, so look again", err)
		}
		return nil, err
	case status == http.StatusNotFound:
		return nil, box.Errorf(box.ClassUnavailable, "%w; the environment is not there any more, and the next call makes it anew", err)
	}
	return nil, d.full(ctx, err)
}
