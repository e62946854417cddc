package digitalocean

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"github.com/digitalocean/godo"
	"go.yaml.in/yaml/v3"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// A session has no labels and cannot be renamed, so one that somebody else made is
// marked beside it: by an environment that nothing runs from, called
//
//	bka-<digest of the session's id>-<installation>-<digest of the box's name>
//
// Its manifest holds the box's name. Every installation sees the marks of all
// others, so a session is taken over once: of several marks the oldest counts.
const claimMark = "bka-"

var claimForm = regexp.MustCompile(`^bka-([0-9a-f]{16})-([0-9a-f]{8})-([0-9a-f]{16})$`)

// claimLife is how long a mark is believed without reading it again. Before a box
// is destroyed it is read afresh.
const claimLife = time.Minute

// claim is the mark of a session that was taken over.
type claim struct {
	environment                string // id
	at                         time.Time
	session, installation, box string // as in the name
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digestDigits]
}

func (d *Driver) claimName(session, name string) string {
	return claimMark + digest(session) + "-" + d.installation + "-" + digest(name)
}

// claims returns the mark that counts of each session, by the digest of its id.
func claims(all []environment) map[string]claim {
	out := map[string]claim{}
	for _, e := range all {
		parts := claimForm.FindStringSubmatch(e.Name)
		if parts == nil || !validID(e.ID) {
			continue
		}
		at, _ := time.Parse(time.RFC3339Nano, e.CreatedAt) // zero when it cannot be read; then the ids decide
		c := claim{environment: e.ID, at: at, session: parts[1], installation: parts[2], box: parts[3]}
		first, taken := out[c.session]
		if !taken || c.at.Before(first.at) || c.at.Equal(first.at) && c.environment < first.environment {
			out[c.session] = c
		}
	}
	return out
}

// Adopt answers a session of ours, and takes over one that carries no mark. It
// wakes nothing; it takes back the consent to be resumed by the service when the
// team's balance is restored. Its agent-server keeps the key that its maker gave
// it.
func (d *Driver) Adopt(ctx context.Context, id string, as box.Identity) (box.Observation, error) {
	if err := driver.Ended(ctx); err != nil {
		return box.Observation{}, err
	}
	ref := box.Ref{ID: id, Name: as.Name(), Epoch: as.Epoch}
	switch identity, ok := driver.IdentityOf(ref); {
	case !ok || identity.Installation != d.installation:
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "%q is not a box of installation %s", as.Name(), d.installation)
	case !validID(id):
		return box.Observation{}, box.Errorf(box.ClassNotFound, "%q is not the id of a session", id)
	}
	var err error
	if ref.Fingerprint, err = d.Fingerprint(ctx); err != nil {
		return box.Observation{}, err
	}
	unlock, err := d.names.Take(ctx, as.Name())
	if err != nil {
		return box.Observation{}, err
	}
	defer unlock()
	s, err := d.api.session(ctx, id)
	switch {
	case missing(err):
		if _, err := d.absent(ctx, ref); err != nil {
			return box.Observation{}, err
		}
		return box.Observation{}, box.Errorf(box.ClassNotFound, "no session has the id %s in %s", id, ref.Fingerprint)
	case err != nil:
		return box.Observation{}, err
	case s.Status == godo.HostedAgentSessionStatusDestroyed || s.Status == godo.HostedAgentSessionStatusDestroying:
		return box.Observation{}, box.Errorf(box.ClassNotFound, "session %s is %s", id, short(s.Status))
	}
	if strings.HasPrefix(s.Name, "bk-") {
		return d.adoptNamed(ctx, ref, s, as)
	}
	if err := d.take(ctx, ref, s); err != nil {
		return box.Observation{}, err
	}
	if s.ResumeOnTopoff {
		if s, err = d.api.keepOff(ctx, s); err != nil {
			return box.Observation{}, driver.Unsettled(err) // it is ours, by its mark
		}
	}
	return d.observation(ref, s), nil
}

// adoptNamed is Adopt for a session that some installation made.
func (d *Driver) adoptNamed(ctx context.Context, ref box.Ref, s session, as box.Identity) (box.Observation, error) {
	identity, ok := d.identityOf(s.Name)
	if ok && identity.Workspace == as.Workspace {
		mine, err := d.made(ctx, s)
		if err != nil {
			return box.Observation{}, err
		}
		if mine {
			ref.Name, ref.Epoch = s.Name, identity.Epoch
			return d.observation(ref, s), nil
		}
	}
	return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "session %s is called %s, so it is another workspace's or another installation's; adopt it there", s.ID, d.api.clean(s.Name, nil))
}

// take marks a session as the box of ref, unless it is marked already.
func (d *Driver) take(ctx context.Context, ref box.Ref, s session) error {
	all, err := d.api.environments(ctx)
	if err != nil {
		return err
	}
	marks := claims(all)
	if done, err := d.taken(marks, ref); done || err != nil {
		return err
	}
	for _, c := range marks {
		if c.installation == d.installation && c.box == digest(ref.Name) {
			return box.Errorf(box.ClassAlreadyExists, "%s is the name of another session that was taken over; start a new epoch", ref.Name)
		}
	}
	lives, lived, err := d.everMade(ctx, ref, all)
	switch {
	case err != nil:
		return err
	case lives || lived:
		return box.Errorf(box.ClassAlreadyExists, "%s exists or existed and is another session; start a new epoch", ref.Name)
	}
	text, err := yaml.Marshal(manifest{
		Name: ref.Name, Agent: d.opts.AgentKind, Template: d.opts.Template, IdleTimeout: idleText(0),
		Env: map[string]string{"BOXKEEPER_BOX": ref.Name, "BOXKEEPER_SESSION": s.ID},
	})
	if err != nil {
		return box.Errorf(box.ClassInternal, "write the mark of session %s: it cannot be encoded", s.ID)
	}
	mark, err := d.api.createEnvironment(ctx, d.claimName(s.ID, ref.Name), text, nil)
	if err != nil {
		return err
	}
	// Another one may have marked it at the same time: the oldest mark counts.
	if all, err = d.api.environments(ctx); err != nil {
		return driver.Unsettled(err)
	}
	done, err := d.taken(claims(all), ref)
	switch {
	case err != nil:
		if broken := d.api.deleteEnvironment(ctx, mark); broken != nil {
			d.opts.Logger.WarnContext(ctx, "a mark that does not count stays", "environment", mark, "error", broken)
		}
		return err
	case !done:
		return box.Errorf(box.ClassUnavailable, "session %s was marked and the mark is not listed yet; look again", s.ID)
	}
	return nil
}

// taken reports whether a session is marked as the box of ref. FailedPrecondition:
// as another one.
func (d *Driver) taken(marks map[string]claim, ref box.Ref) (bool, error) {
	c, marked := marks[digest(ref.ID)]
	if !marked {
		return false, nil
	}
	if c.installation != d.installation || c.box != digest(ref.Name) {
		return false, box.Errorf(box.ClassFailedPrecondition, "session %s was taken over by installation %s for another box; adopt it there", ref.ID, c.installation)
	}
	return true, nil
}

// everMade reports whether a session of the name of ref lives, or ever did.
func (d *Driver) everMade(ctx context.Context, ref box.Ref, all []environment) (lives, lived bool, err error) {
	held, err := d.held(ctx, ref.Name)
	if err != nil || held != nil {
		return held != nil, false, err
	}
	found, _, err := d.earlier(ctx, ref, "", all)
	return false, found != nil, err
}

// claimed reports whether a session that is not called as ref says was taken over
// for it. Not found means that nothing may be done to it.
func (d *Driver) claimed(ctx context.Context, ref box.Ref, fresh bool) (bool, error) {
	key := d.claimName(ref.ID, ref.Name)
	d.mu.Lock()
	at, known := d.marks[key]
	d.mu.Unlock()
	if known && !fresh && time.Since(at) < claimLife {
		return true, nil
	}
	now := time.Now()
	all, err := d.api.environments(ctx)
	if err != nil {
		return false, err
	}
	c, marked := claims(all)[digest(ref.ID)]
	ours := marked && c.installation == d.installation && c.box == digest(ref.Name)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.marks, key)
	if ours {
		d.marks[key] = now
	}
	return ours, nil
}

// adopted returns the identity of a session that was taken over, as its mark says,
// and false for one that is not ours.
func (d *Driver) adopted(ctx context.Context, marks map[string]claim, s session) (box.Identity, bool, error) {
	c, marked := marks[digest(s.ID)]
	if !marked || c.installation != d.installation || strings.HasPrefix(s.Name, "bk-") {
		return box.Identity{}, false, nil
	}
	d.mu.Lock()
	name, known := d.configs[c.environment+"/box"]
	d.mu.Unlock()
	if !known {
		text, err := d.api.manifestOf(ctx, c.environment)
		if err != nil {
			return box.Identity{}, false, err
		}
		name = nameIn(text, func(name string) bool { return digest(name) == c.box })
		d.learn(environment{ID: c.environment + "/box", Name: name})
	}
	identity, ok := d.identityOf(name)
	if !ok {
		return box.Identity{}, false, box.Errorf(box.ClassUnknown, "environment %s marks session %s and does not say for which box; look at it", c.environment, s.ID)
	}
	return identity, true, nil
}

// nameIn returns the first text in a JSON document that is wanted: how the service
// gives a manifest back is its own affair.
func nameIn(document json.RawMessage, wanted func(string) bool) string {
	var all any
	if json.Unmarshal(document, &all) != nil {
		return ""
	}
	var find func(v any) string
	find = func(v any) string {
		switch v := v.(type) {
		case string:
			if wanted(v) {
				return v
			}
		case []any:
			for _, one := range v {
				if found := find(one); found != "" {
					return found
				}
			}
		case map[string]any:
			for _, one := range v {
				if found := find(one); found != "" {
					return found
				}
			}
		}
		return ""
	}
	return find(all)
}
