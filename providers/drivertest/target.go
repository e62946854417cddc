package drivertest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
)

// target is what the cases call: the bare driver, or the portable type over it.
type target interface {
	create(ctx context.Context, workspace string) (box.Observation, error)
	createWith(ctx context.Context, workspace string, with driver.Start) (box.Observation, error)
	observe(ctx context.Context, ref box.Ref) (box.Observation, error)
	suspend(ctx context.Context, ref box.Ref) (box.Observation, error)
	deepen(ctx context.Context, ref box.Ref) (box.Observation, error)
	resume(ctx context.Context, ref box.Ref) (box.Observation, error)
	remove(ctx context.Context, ref box.Ref) (box.Observation, error)
	endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error)
	adjust(ctx context.Context, ref box.Ref, native box.Native) (box.Observation, error)
	list(ctx context.Context) ([]driver.Listed, error)
	watch(ctx context.Context, emit func(driver.Listed)) error
	adopt(ctx context.Context, id, workspace string) (box.Observation, error)
	class(err error) box.Class
}

// start is what boxes of the suite are started with.
func start() driver.Start {
	return driver.Start{
		Env:       map[string]string{"SUITE_SETTING": "plain value"},
		SecretEnv: map[string]box.Secret{"SUITE_TOKEN": "suite-secret-value-5e1f"},
	}
}

// suiteKey is the session key of boxes that the bare driver makes.
const suiteKey box.Secret = "suite-session-key-77aa"

type bare struct {
	driver       driver.Driver
	installation string
}

func (b bare) create(ctx context.Context, workspace string) (box.Observation, error) {
	return b.createWith(ctx, workspace, start())
}

func (b bare) createWith(ctx context.Context, workspace string, with driver.Start) (box.Observation, error) {
	with.SessionKey = suiteKey
	return b.driver.Create(ctx, driver.CreateRequest{
		Identity: box.Identity{Installation: b.installation, Workspace: workspace, Epoch: 1},
		Start:    with,
		Native:   told(b.driver.Capabilities()),
	})
}

func (b bare) start() driver.Start {
	s := start()
	s.SessionKey = suiteKey
	return s
}

func (b bare) observe(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return b.driver.Observe(ctx, ref)
}

func (b bare) suspend(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return b.driver.Suspend(ctx, ref)
}

func (b bare) deepen(ctx context.Context, ref box.Ref) (box.Observation, error) {
	deepener, ok := b.driver.(driver.Deepener)
	if !ok {
		return box.Observation{}, box.Errorf(box.ClassUnsupported, "not implemented")
	}
	return deepener.Deepen(ctx, ref)
}

func (b bare) resume(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return b.driver.Resume(ctx, ref, b.start())
}

func (b bare) remove(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return b.driver.Delete(ctx, ref)
}

func (b bare) endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	return b.driver.Endpoint(ctx, ref)
}

func (b bare) adjust(ctx context.Context, ref box.Ref, native box.Native) (box.Observation, error) {
	adjuster, ok := b.driver.(driver.Adjuster)
	if !ok {
		return box.Observation{}, box.Errorf(box.ClassUnsupported, "not implemented")
	}
	return adjuster.Adjust(ctx, ref, native)
}

// told is what the portable type tells a provider of this row for the default
// policy.
func told(row box.Capabilities) box.Native {
	plan, err := box.Plan(box.Policy{}, row)
	if err != nil {
		return box.Native{}
	}
	return plan.Native
}

func (b bare) list(ctx context.Context) ([]driver.Listed, error) {
	lister, ok := b.driver.(driver.Lister)
	if !ok {
		return nil, box.Errorf(box.ClassUnsupported, "not implemented")
	}
	return lister.List(ctx, b.installation)
}

func (b bare) watch(ctx context.Context, emit func(driver.Listed)) error {
	watcher, ok := b.driver.(driver.Watcher)
	if !ok {
		return box.Errorf(box.ClassUnsupported, "not implemented")
	}
	return watcher.Watch(ctx, emit)
}

func (b bare) adopt(ctx context.Context, id, workspace string) (box.Observation, error) {
	adopter, ok := b.driver.(driver.Adopter)
	if !ok {
		return box.Observation{}, box.Errorf(box.ClassUnsupported, "not implemented")
	}
	return adopter.Adopt(ctx, id, box.Identity{Installation: b.installation, Workspace: workspace, Epoch: 1})
}

func (b bare) class(err error) box.Class {
	if err == nil {
		return ""
	}
	class, _ := b.driver.ErrorClass(err)
	return class
}

type portable struct{ p *providers.Provider }

// instance is the name of the provider instance in the suite.
const instance = "suite"

func newPortable(t *testing.T, d driver.Driver, installation string) portable {
	t.Helper()
	keys, err := providers.NewKeySource(box.Secret(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	p, err := providers.New(instance, d, &providers.Options{Installation: installation, Keys: keys})
	if err != nil {
		t.Fatalf("the portable type refuses the driver: %v", err)
	}
	return portable{p}
}

func (p portable) create(ctx context.Context, workspace string) (box.Observation, error) {
	return p.createWith(ctx, workspace, start())
}

func (p portable) createWith(ctx context.Context, workspace string, with driver.Start) (box.Observation, error) {
	spec := box.Spec{Version: box.WireVersion, Workspace: workspace, Provider: instance}
	if p.p.Capabilities().Suspend != box.Yes {
		spec.Policy.Idle, spec.Policy.MaxRun = box.Never, box.Never
	}
	return p.p.Create(ctx, spec, 1, with)
}

func (p portable) observe(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return p.p.Observe(ctx, ref)
}

func (p portable) suspend(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return p.p.Suspend(ctx, ref)
}

func (p portable) deepen(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return p.p.Deepen(ctx, ref)
}

func (p portable) resume(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return p.p.Resume(ctx, ref, start())
}

func (p portable) remove(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return p.p.Delete(ctx, ref)
}

func (p portable) endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	return p.p.Endpoint(ctx, ref)
}

func (p portable) adjust(ctx context.Context, ref box.Ref, native box.Native) (box.Observation, error) {
	return p.p.Adjust(ctx, ref, native)
}

func (p portable) list(ctx context.Context) ([]driver.Listed, error) { return p.p.List(ctx) }

func (p portable) watch(ctx context.Context, emit func(driver.Listed)) error {
	return p.p.Watch(ctx, emit)
}

func (p portable) adopt(ctx context.Context, id, workspace string) (box.Observation, error) {
	return p.p.Adopt(ctx, providers.Claim{ID: id, Workspace: workspace, Epoch: 1, Least: 1})
}

func (p portable) class(err error) box.Class { return box.ClassOf(err) }

// bench is one case's place, with helpers that fail the test.
type bench struct {
	target
	h    Harness
	wire *lossy // what target calls
	row  box.Capabilities
}

const (
	ours   = "0a1b2c3d" // the suite's installation
	others = "ffee0011" // somebody else's
	// patience bounds every wait of the suite.
	patience = 30 * time.Second
)

func (b *bench) made(t *testing.T, workspace string) box.Ref {
	t.Helper()
	seen, err := b.create(t.Context(), workspace)
	if err != nil {
		t.Fatalf("create %s: %v", workspace, err)
	}
	return seen.Ref
}

func (b *bench) suspended(t *testing.T, ref box.Ref) box.Ref {
	t.Helper()
	seen, err := b.suspend(t.Context(), ref)
	if err != nil {
		t.Fatalf("suspend: %v", err)
	}
	if seen.Phase != box.PhaseSuspended {
		t.Fatalf("suspend answered %q with no error", seen.Phase)
	}
	return seen.Ref
}

func (b *bench) resumed(t *testing.T, ref box.Ref) box.Ref {
	t.Helper()
	seen, err := b.resume(t.Context(), ref)
	if err != nil {
		t.Fatalf("resume: %v", err)
	}
	if seen.Phase != box.PhaseRunning && seen.Phase != box.PhaseStarting {
		t.Fatalf("resume answered %q with no error", seen.Phase)
	}
	return seen.Ref
}

func (b *bench) deleted(t *testing.T, ref box.Ref) {
	t.Helper()
	seen, err := b.remove(t.Context(), ref)
	if err != nil {
		t.Fatalf("delete: %v", err)
	}
	if seen.Phase != box.PhaseGone {
		t.Fatalf("delete answered %q with no error", seen.Phase)
	}
}

func (b *bench) phase(t *testing.T, ref box.Ref) box.Phase {
	t.Helper()
	seen, err := b.observe(t.Context(), ref)
	if err != nil {
		t.Fatalf("observe: %v", err)
	}
	return seen.Phase
}

// runs waits until the box can be reached, and returns how.
func (b *bench) runs(t *testing.T, ref box.Ref) driver.Endpoint {
	t.Helper()
	var at driver.Endpoint
	await(t, "the box has an address", func() bool {
		found, err := b.endpoint(t.Context(), ref)
		if err != nil && b.class(err) != box.ClassUnavailable {
			t.Fatalf("endpoint of a running box: %v", err)
		}
		at = found
		return err == nil
	})
	return at
}

func (b *bench) wantClass(t *testing.T, what string, err error, want ...box.Class) {
	t.Helper()
	got := b.class(err)
	if slices.Contains(want, got) {
		return
	}
	t.Fatalf("%s: class %q (%v), want %v", what, got, err, want)
}

// names returns the names of the listed boxes.
func (b *bench) names(t *testing.T) []string {
	t.Helper()
	found, err := b.list(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	var out []string
	for _, one := range found {
		if one.Identity.Name() != one.Observation.Ref.Name {
			t.Errorf("listed identity %s with name %s", one.Identity.Name(), one.Observation.Ref.Name)
		}
		out = append(out, one.Observation.Ref.Name)
	}
	return out
}

// await waits for a condition, and fails the test after a deadline. It looks often
// at first: a fake has moved on with the look itself, and there are thousands of
// waits.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	const least, most = 100 * time.Microsecond, 20 * time.Millisecond
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for pause := least; !done(); pause = min(2*pause, most) {
		select {
		case <-time.After(pause):
		case <-deadline.C:
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}
