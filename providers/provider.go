package providers

import (
	"context"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Options says whose boxes a [Provider] keeps. Both fields are required.
type Options struct {
	// Installation is 8 lower-case hex digits. Boxes of another installation are
	// never touched.
	Installation string
	// Keys derives the keys of this installation's boxes.
	Keys KeySource
}

// Provider is one configured instance of a provider. Every method returns a
// [box.Error] whose class says what to do, and a nil error is a proof of what
// the method's name says. All methods are safe for concurrent use and safe to
// repeat; none retries.
type Provider struct {
	name         string
	installation string
	keys         KeySource
	row          box.Capabilities
	driver       driver.Driver
}

// New returns the instance called name over d. It refuses a driver whose row
// is incomplete or claims what the driver does not implement, so that a wrong
// claim shows at start and not in the middle of a box's life.
func New(name string, d driver.Driver, opts *Options) (*Provider, error) {
	switch {
	case !box.ValidInstance(name):
		return nil, box.Invalidf("provider", "%q is not a name for an instance; use 1 to 40 of a-z, 0-9 and \"-\"", name)
	case d == nil:
		return nil, box.Invalidf("provider."+name, "has no driver")
	case opts == nil || !driver.ValidInstallation(opts.Installation):
		return nil, box.Invalidf("installation", "must be 8 lower-case hex digits, the same for every worker of this installation")
	case opts.Keys.IsZero():
		return nil, box.Invalidf("installation_secret", "is not set; the keys of boxes are derived from it")
	}
	row := d.Capabilities()
	if missing := row.Missing(); len(missing) > 0 {
		return nil, box.Errorf(box.ClassInternal, "the row of driver %q answers nothing for %v", row.Driver, missing)
	}
	if _, ok := d.(driver.Lister); row.List == box.Yes && !ok {
		return nil, box.Errorf(box.ClassInternal, "driver %q claims List and does not implement it", row.Driver)
	}
	if _, ok := d.(driver.Watcher); row.Watch == box.Yes && !ok {
		return nil, box.Errorf(box.ClassInternal, "driver %q claims Watch and does not implement it", row.Driver)
	}
	if _, ok := d.(driver.Adopter); row.Adopt == box.Yes && !ok {
		return nil, box.Errorf(box.ClassInternal, "driver %q claims Adopt and does not implement it", row.Driver)
	}
	if _, ok := d.(driver.Adjuster); row.NativeAdjust == box.Yes && !ok {
		return nil, box.Errorf(box.ClassInternal, "driver %q claims NativeAdjust and does not implement it", row.Driver)
	}
	if _, ok := d.(driver.Deepener); row.Deepen == box.Yes && !ok {
		return nil, box.Errorf(box.ClassInternal, "driver %q claims Deepen and does not implement it", row.Driver)
	}
	if row.Deepen == box.Yes && (row.Suspend != box.Yes || row.MemoryKept != box.Yes) {
		return nil, box.Errorf(box.ClassInternal, "driver %q claims Deepen, and that a suspend keeps no memory", row.Driver)
	}
	return &Provider{name: name, installation: opts.Installation, keys: opts.Keys, row: row, driver: d}, nil
}

// Name returns the name of the instance.
func (p *Provider) Name() string { return p.name }

// Capabilities returns the driver's row. It is constant and sends nothing.
func (p *Provider) Capabilities() box.Capabilities { return p.row }

// Fingerprint returns the account, region or engine that the instance talks to
// now, without a secret.
func (p *Provider) Fingerprint(ctx context.Context) (string, error) {
	return p.fingerprint(ctx, "identify", "", nil)
}

// Create makes the box of spec and epoch and starts it with start, to which the
// box's own keys are added. It is idempotent by the box's name: a repeated call,
// also after an unclear outcome, answers the one box.
//
// AlreadyExists means that the name belongs to a box that is not ours; it was
// left alone.
func (p *Provider) Create(ctx context.Context, spec box.Spec, epoch int, start driver.Start) (box.Observation, error) {
	const op = "create"
	if err := spec.Validate(); err != nil {
		return box.Observation{}, p.fail(op, "", err, nil)
	}
	if spec.Adopt != "" {
		return box.Observation{}, p.fail(op, "", box.Invalidf("adopt", "the spec takes over box %s, so none is created; adopt it", spec.Adopt), nil)
	}
	if spec.Provider != p.name {
		return box.Observation{}, p.fail(op, "", box.Invalidf("provider", "the spec is for %q, this instance is %q", spec.Provider, p.name), nil)
	}
	if epoch < 1 {
		return box.Observation{}, p.fail(op, "", box.Invalidf("epoch", "%d is not an epoch; the first is 1", epoch), nil)
	}
	plan, err := box.Plan(spec.Policy, p.row)
	if err != nil {
		return box.Observation{}, p.fail(op, "", err, nil)
	}
	identity := box.Identity{Installation: p.installation, Workspace: spec.Workspace, Epoch: epoch}
	name := identity.Name()
	start, err = p.withKeys(start, identity)
	if err != nil {
		return box.Observation{}, p.fail(op, name, err, secretsOf(start))
	}
	secrets := secretsOf(start)
	before, err := p.fingerprint(ctx, op, name, secrets)
	if err != nil {
		return box.Observation{}, err
	}
	seen, err := p.driver.Create(ctx, driver.CreateRequest{
		Identity: identity,
		Image:    spec.Image,
		Labels:   spec.Labels,
		Start:    start,
		Native:   plan.Native,
	})
	if err != nil {
		return box.Observation{}, p.fail(op, name, err, secrets)
	}
	seen.Ref.Provider = p.name
	seen.Evidence = secrets.text(seen.Evidence)
	switch {
	case seen.Ref.ID == "" || seen.Ref.Name != name || seen.Ref.Epoch != epoch:
		return box.Observation{}, p.refuse(box.ClassUnknown, op, name, "the answer names the box %q, epoch %d; look at the provider before going on", seen.Ref.Name, seen.Ref.Epoch)
	case seen.Ref.Fingerprint != before:
		return box.Observation{}, p.refuse(box.ClassUnknown, op, name, "the box was made in %q while the instance says that it talks to %q", seen.Ref.Fingerprint, before)
	case seen.Phase == box.PhaseGone:
		return box.Observation{}, p.refuse(box.ClassFailedPrecondition, op, name, "a box of this name was made before and is gone; start a new epoch")
	}
	return seen, nil
}

// Observe reads the box on the control plane and never wakes it. PhaseGone is
// answered only when two readings agree and each was made under the ref's
// fingerprint; an absence seen anywhere else is an error of class Unknown.
func (p *Provider) Observe(ctx context.Context, ref box.Ref) (box.Observation, error) {
	const op = "observe"
	if _, err := p.own(ctx, op, ref); err != nil {
		return box.Observation{}, err
	}
	seen, err := p.read(ctx, op, ref)
	if err != nil || seen.Phase != box.PhaseGone {
		return seen, err
	}
	return p.read(ctx, op, ref)
}

// Suspend makes the box stop costing compute while its files are kept. A nil
// error proves PhaseSuspended. A suspended box is left alone. NotFound: the box
// is not there.
func (p *Provider) Suspend(ctx context.Context, ref box.Ref) (box.Observation, error) {
	const op = "suspend"
	if _, err := p.mutable(ctx, op, ref, p.row.Suspend); err != nil {
		return box.Observation{}, err
	}
	seen, err := p.driver.Suspend(ctx, ref)
	if err != nil {
		return box.Observation{}, p.absent(ctx, op, ref, err, nil)
	}
	if seen.Phase != box.PhaseSuspended {
		return box.Observation{}, p.refuse(box.ClassUnknown, op, ref.Name, "the answer is %q, which proves nothing; look again", seen.Phase)
	}
	return p.same(op, ref, seen)
}

// Deepen suspends a box deeper whose memory is kept: its files stay, its memory
// is given up. A nil error proves that. A suspended box that keeps no memory is
// left alone. It never wakes a box, and refuses one that is not suspended:
// FailedPrecondition. NotFound: the box is not there. After any other error the
// box may be awake: observe it before anything else.
func (p *Provider) Deepen(ctx context.Context, ref box.Ref) (box.Observation, error) {
	const op = "deepen the suspend of"
	if _, err := p.mutable(ctx, op, ref, p.row.Deepen); err != nil {
		return box.Observation{}, err
	}
	deepener, ok := p.driver.(driver.Deepener)
	if !ok {
		return box.Observation{}, p.refuse(box.ClassUnsupported, op, ref.Name, "a suspended box can't be suspended deeper")
	}
	seen, err := deepener.Deepen(ctx, ref)
	if err != nil {
		return box.Observation{}, p.absent(ctx, op, ref, err, nil)
	}
	switch {
	case seen.Phase != box.PhaseSuspended || seen.MemoryKept != box.No:
		return box.Observation{}, p.refuse(box.ClassUnknown, op, ref.Name, "the answer is %q with memory kept: %s, which proves nothing; look again", seen.Phase, seen.MemoryKept)
	case seen.Ref.ID != ref.ID:
		return box.Observation{}, p.refuse(box.ClassUnknown, op, ref.Name, "the answer is about the id %q, which was %q; look again", seen.Ref.ID, ref.ID)
	}
	return p.same(op, ref, seen)
}

// Resume wakes a suspended box, or starts a failed one, with start, to which the
// box's own keys are added. The ref in the answer may differ and replaces the
// old one. It does not wait for the agent-server. NotFound: the box is not
// there, and nothing was made in its place.
func (p *Provider) Resume(ctx context.Context, ref box.Ref, start driver.Start) (box.Observation, error) {
	const op = "resume"
	identity, err := p.mutable(ctx, op, ref, p.row.Suspend)
	if err != nil {
		return box.Observation{}, err
	}
	start, err = p.withKeys(start, identity)
	secrets := secretsOf(start)
	if err != nil {
		return box.Observation{}, p.fail(op, ref.Name, err, secrets)
	}
	seen, err := p.driver.Resume(ctx, ref, start)
	if err != nil {
		return box.Observation{}, p.absent(ctx, op, ref, err, secrets)
	}
	seen.Evidence = secrets.text(seen.Evidence)
	if seen.Phase != box.PhaseStarting && seen.Phase != box.PhaseRunning {
		return box.Observation{}, p.refuse(box.ClassUnknown, op, ref.Name, "the answer is %q, which proves nothing; look again", seen.Phase)
	}
	return p.same(op, ref, seen)
}

// Adjust sets the provider's own timers of a running box again, which also
// starts them anew; the answer's Native is what the provider says afterwards.
// It never wakes a box: FailedPrecondition. NotFound: the box is not there.
func (p *Provider) Adjust(ctx context.Context, ref box.Ref, native box.Native) (box.Observation, error) {
	const op = "adjust"
	if _, err := p.mutable(ctx, op, ref, p.row.NativeAdjust); err != nil {
		return box.Observation{}, err
	}
	adjuster, ok := p.driver.(driver.Adjuster)
	if !ok {
		return box.Observation{}, p.refuse(box.ClassUnsupported, op, ref.Name, "the provider's timers can't be set again")
	}
	seen, err := adjuster.Adjust(ctx, ref, native)
	if err != nil {
		return box.Observation{}, p.absent(ctx, op, ref, err, nil)
	}
	return p.same(op, ref, seen)
}

// Delete destroys the box and all that we own beside it, from every phase. A
// nil error proves PhaseGone: the driver's answer and a further reading agree,
// both under the ref's fingerprint. A box that is gone already is a success.
func (p *Provider) Delete(ctx context.Context, ref box.Ref) (box.Observation, error) {
	const op = "delete"
	if _, err := p.mutable(ctx, op, ref, box.Yes); err != nil {
		return box.Observation{}, err
	}
	seen, err := p.driver.Delete(ctx, ref)
	if err != nil {
		return box.Observation{}, p.fail(op, ref.Name, err, nil)
	}
	if seen.Phase != box.PhaseGone {
		return box.Observation{}, p.refuse(box.ClassUnavailable, op, ref.Name, "the provider still answers %q; look again later", seen.Phase)
	}
	again, err := p.read(ctx, op, ref)
	if err != nil {
		return box.Observation{}, driver.Unsettled(err) // it was told, so no refusal of a reading says that it was not
	}
	if again.Phase != box.PhaseGone {
		return box.Observation{}, p.refuse(box.ClassUnavailable, op, ref.Name, "the provider said gone and then %q; look again later", again.Phase)
	}
	return p.same(op, ref, seen)
}
