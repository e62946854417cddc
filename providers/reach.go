package providers

import (
	"context"
	"maps"
	"net/url"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Endpoint says how to reach the agent-server of a running box. The answer
// holds credentials: use it at once, never store or log it. FailedPrecondition:
// resume the box first. Unavailable: it has no address yet, ask again.
func (p *Provider) Endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	const op = "find the endpoint of"
	// The key goes to whoever answers there, so the place is checked as for a
	// mutating call.
	identity, err := p.mutable(ctx, op, ref, box.Yes)
	if err != nil {
		return driver.Endpoint{}, err
	}
	at, err := p.driver.Endpoint(ctx, ref)
	if err != nil {
		return driver.Endpoint{}, p.absent(ctx, op, ref, err, nil)
	}
	place, err := url.Parse(at.URL)
	if err != nil || place.Host == "" || place.User != nil || (place.Scheme != "http" && place.Scheme != "https") {
		// The URL is not repeated: it may hold a credential.
		return driver.Endpoint{}, p.refuse(box.ClassUnknown, op, ref.Name, "the answer is not an http or https address")
	}
	if at.SessionKey == "" {
		at.SessionKey = p.keys.SessionKey(identity.Workspace, identity.Epoch)
	}
	return at, nil
}

// List returns every box of this installation, suspended ones included. Boxes
// of others are left out. An incomplete list is an error.
func (p *Provider) List(ctx context.Context) ([]driver.Listed, error) {
	const op = "list"
	lister, ok := p.driver.(driver.Lister)
	if p.row.List != box.Yes || !ok {
		return nil, p.refuse(box.ClassUnsupported, op, "", "this provider cannot list boxes; their refs are in the ledger")
	}
	if err := ctx.Err(); err != nil {
		return nil, p.fail(op, "", err, nil)
	}
	before, err := p.fingerprint(ctx, op, "", nil)
	if err != nil {
		return nil, err
	}
	found, err := lister.List(ctx, p.installation)
	if err != nil {
		return nil, p.fail(op, "", err, nil)
	}
	after, err := p.fingerprint(ctx, op, "", nil)
	if err != nil {
		return nil, err
	}
	if before != after {
		return nil, p.refuse(box.ClassUnknown, op, "", "the instance moved from %q to %q while listing; list again", before, after)
	}
	out := make([]driver.Listed, 0, len(found))
	for _, one := range found {
		if mine, ok := p.mine(one); ok {
			if mine.Observation.Ref.Fingerprint != after {
				return nil, p.refuse(box.ClassUnknown, op, "", "box %s is listed under %q, the instance talks to %q", mine.Observation.Ref.Name, mine.Observation.Ref.Fingerprint, after)
			}
			out = append(out, mine)
		}
	}
	return out, nil
}

// Watch calls emit for each box of this installation that ends or changes by
// itself, first for those that did so while nobody watched, until ctx ends. It
// then returns nil. A box that is said to be gone is read again before that is
// believed. emit may be called from several goroutines, and twice for one
// change.
func (p *Provider) Watch(ctx context.Context, emit func(driver.Listed)) error {
	const op = "watch"
	watcher, ok := p.driver.(driver.Watcher)
	if p.row.Watch != box.Yes || !ok {
		return p.refuse(box.ClassUnsupported, op, "", "this provider does not tell when a box ends; look at it instead")
	}
	err := watcher.Watch(ctx, func(one driver.Listed) {
		mine, ok := p.mine(one)
		if !ok {
			return
		}
		if mine.Observation.Phase == box.PhaseGone {
			seen, err := p.Observe(ctx, mine.Observation.Ref)
			if err != nil {
				seen = box.Observation{Ref: mine.Observation.Ref, Phase: box.PhaseUnknown, Evidence: "said to be gone, which could not be proven"}
			}
			mine.Observation = seen
		}
		emit(mine)
	})
	if err == nil || ctx.Err() != nil {
		return nil //nolint:nilerr // the caller ended it
	}
	return p.fail(op, "", err, nil)
}

// mine returns one with its ref completed, and false for a box that is not
// provably this installation's: such a box is never touched, so it is never
// shown either.
func (p *Provider) mine(one driver.Listed) (driver.Listed, bool) {
	id, ref := one.Identity, one.Observation.Ref
	if id.Installation != p.installation || id.Epoch < 1 || box.ValidateWorkspace(id.Workspace) != nil {
		return one, false
	}
	if ref.Name != id.Name() || ref.Epoch != id.Epoch || ref.ID == "" {
		return one, false
	}
	one.Observation.Ref.Provider = p.name
	return one, true
}

// own returns the identity behind ref when the ref is this instance's and this
// installation's.
func (p *Provider) own(ctx context.Context, op string, ref box.Ref) (box.Identity, error) {
	if err := ctx.Err(); err != nil {
		return box.Identity{}, p.fail(op, ref.Name, err, nil)
	}
	if ref.IsZero() {
		return box.Identity{}, p.fail(op, "", box.Invalidf("ref", "names no box"), nil)
	}
	if ref.Provider != p.name {
		return box.Identity{}, p.refuse(box.ClassFailedPrecondition, op, ref.Name, "the box is at provider instance %q", ref.Provider)
	}
	identity, ok := driver.IdentityOf(ref)
	switch {
	case !ok:
		return box.Identity{}, p.refuse(box.ClassFailedPrecondition, op, ref.Name, "the name and epoch %d are not those of a box of ours", ref.Epoch)
	case identity.Installation != p.installation:
		return box.Identity{}, p.refuse(box.ClassFailedPrecondition, op, ref.Name, "it belongs to installation %s, this is %s", identity.Installation, p.installation)
	case ref.ID == "" || ref.Fingerprint == "":
		return box.Identity{}, p.refuse(box.ClassFailedPrecondition, op, ref.Name, "the ref lacks the provider's id or the fingerprint that it was made under")
	}
	return identity, nil
}

// mutable gates a call that changes something: the claim, the ref, and the
// place that the instance talks to now.
func (p *Provider) mutable(ctx context.Context, op string, ref box.Ref, claim box.Tri) (box.Identity, error) {
	if claim != box.Yes {
		return box.Identity{}, p.refuse(box.ClassUnsupported, op, ref.Name, "provider %q cannot do this", p.row.Driver)
	}
	identity, err := p.own(ctx, op, ref)
	if err != nil {
		return identity, err
	}
	now, err := p.fingerprint(ctx, op, ref.Name, nil)
	if err != nil {
		return identity, err
	}
	if now != ref.Fingerprint {
		return identity, p.refuse(box.ClassFailedPrecondition, op, ref.Name, "the box was made in %q and the instance now talks to %q; point it back", ref.Fingerprint, now)
	}
	return identity, nil
}

func (p *Provider) fingerprint(ctx context.Context, op, name string, secrets secrets) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", p.fail(op, name, err, secrets)
	}
	now, err := p.driver.Fingerprint(ctx)
	if err != nil {
		return "", p.fail(op, name, err, secrets)
	}
	if now == "" {
		return "", p.refuse(box.ClassUnknown, op, name, "the instance does not say where it talks to")
	}
	return now, nil
}

// read is one reading of the driver, with an absence checked against the place
// after the reading: before it would prove nothing.
func (p *Provider) read(ctx context.Context, op string, ref box.Ref) (box.Observation, error) {
	seen, err := p.driver.Observe(ctx, ref)
	if err != nil {
		return box.Observation{}, p.fail(op, ref.Name, err, nil)
	}
	if seen.Phase != box.PhaseGone {
		return p.same(op, ref, seen)
	}
	now, err := p.fingerprint(ctx, op, ref.Name, nil)
	if err != nil {
		return box.Observation{}, err
	}
	if now != ref.Fingerprint {
		return box.Observation{}, p.refuse(box.ClassUnknown, op, ref.Name, "it was not found in %q, but was made in %q", now, ref.Fingerprint)
	}
	return p.same(op, ref, seen)
}

// same refuses an answer about another box, and completes the ref.
func (p *Provider) same(op string, ref box.Ref, seen box.Observation) (box.Observation, error) {
	seen.Ref.Provider = p.name
	if seen.Ref.Name != ref.Name || seen.Ref.Epoch != ref.Epoch || seen.Ref.Fingerprint != ref.Fingerprint || seen.Ref.ID == "" {
		return box.Observation{}, p.refuse(box.ClassUnknown, op, ref.Name, "the answer is about %q, epoch %d; look again", seen.Ref.Name, seen.Ref.Epoch)
	}
	return seen, nil
}

// absent wraps err, and turns a NotFound from another place into Unknown.
func (p *Provider) absent(ctx context.Context, op string, ref box.Ref, err error, secrets secrets) error {
	wrapped := p.fail(op, ref.Name, err, secrets)
	if box.ClassOf(wrapped) != box.ClassNotFound {
		return wrapped
	}
	now, broken := p.fingerprint(ctx, op, ref.Name, secrets)
	if broken != nil || now != ref.Fingerprint {
		return p.refuse(box.ClassUnknown, op, ref.Name, "it was not found, but the instance no longer talks to %q for certain", ref.Fingerprint)
	}
	return wrapped
}

// withKeys adds the box's own keys. Names that carry them are ours alone.
func (p *Provider) withKeys(start driver.Start, identity box.Identity) (driver.Start, error) {
	full := driver.Start{
		Env:        start.Env,
		SecretEnv:  make(map[string]box.Secret, len(start.SecretEnv)+1),
		SessionKey: p.keys.SessionKey(identity.Workspace, identity.Epoch),
	}
	maps.Copy(full.SecretEnv, start.SecretEnv)
	if start.SessionKey != "" {
		return full, box.Invalidf("session_key", "is derived and cannot be given")
	}
	for name := range start.Env {
		if box.ReservedEnv(name) {
			return full, box.Invalidf("env."+name, "is set by boxkeeper; leave it out")
		}
	}
	for name := range start.SecretEnv {
		if box.ReservedEnv(name) {
			return full, box.Invalidf("secrets."+name, "is set by boxkeeper; leave it out")
		}
		if _, twice := start.Env[name]; twice {
			return full, box.Invalidf("env."+name, "is given under secrets too; keep one of them")
		}
	}
	full.SecretEnv["OH_SECRET_KEY"] = p.keys.EncryptionKey(identity.Workspace, identity.Epoch)
	return full, nil
}
