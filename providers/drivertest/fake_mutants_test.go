package drivertest_test

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/race"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/drivertest"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// fake is a place of the fake provider, with drivers that have a flaw.
type fake struct {
	cloud *fakebox.Cloud
	row   box.Capabilities
	flaw  string
}

func newFake(t *testing.T, flaw string) drivertest.Harness {
	t.Helper()
	row := fakebox.DefaultRow()
	row.NativeIdle, row.NativeAdjust = box.Yes, box.Yes
	real := row // how the cloud behaves, where the driver claims something else
	switch flaw {
	case "claims a memory that is not kept":
		real.MemoryKept, row.MemoryKept = box.No, box.Yes
	case "keeps a memory that it does not claim":
		real.MemoryKept, row.MemoryKept = box.Yes, box.No
	case "claims an id that changes":
		real.SameIdentity, row.SameIdentity = box.No, box.Yes
	case "keeps an id that it calls changing":
		real.SameIdentity, row.SameIdentity = box.Yes, box.No
	case "claims a key that changes":
		real.KeyStable, row.KeyStable = box.No, box.Yes
	case "keeps a key that it calls changing":
		real.KeyStable, row.KeyStable = box.Yes, box.No
	case "claims an address that changes":
		real.URLStable, row.URLStable = box.No, box.Yes
	case "lists without a claim":
		row.List = box.No
	case "adopts without a claim":
		row.Adopt = box.No
	case "leaves a claim open":
		row.LookingIsUse = box.Unknown
	}
	return fake{fakebox.New(&fakebox.Options{Row: real, NativeIdle: time.Hour}), row, flaw}
}

func (f fake) Driver(_ *testing.T, installation string) driver.Driver {
	return flawed{f.cloud.Driver(installation), f.cloud, f.row, f.flaw}
}

func (f fake) Row() box.Capabilities                { return f.row }
func (f fake) Plant(_ *testing.T, name string)      { f.cloud.Plant(name) }
func (f fake) Stray(*testing.T) string              { f.cloud.Plant("stray"); return f.cloud.ID("stray") }
func (f fake) Kill(_ *testing.T, ref box.Ref)       { f.cloud.Kill(ref.Name, "killed") }
func (f fake) statement(n string) fakebox.Statement { s, _ := f.cloud.Statement(n); return s }

func (f fake) Untouched(_ *testing.T, name string) bool {
	s := f.statement(name)
	return s.Foreign && s.Phase == box.PhaseRunning && s.Starts == 1 && s.Wakes == 0
}

func (f fake) Life(_ *testing.T, ref box.Ref) string {
	s := f.statement(ref.Name)
	return strconv.Itoa(s.Starts)
}

func (f fake) Left(_ *testing.T, ref box.Ref) []string {
	if s := f.statement(ref.Name); s.Phase != box.PhaseGone {
		return []string{string(s.Phase)}
	}
	return nil
}

func (f fake) Move(*testing.T) (back func()) {
	f.cloud.SwapAccount("another")
	return func() { f.cloud.SwapAccount("fakebox") }
}

// flawed is the driver of the fake with one thing wrong.
type flawed struct {
	*fakebox.Driver
	cloud *fakebox.Cloud
	row   box.Capabilities
	flaw  string
}

func (d flawed) Capabilities() box.Capabilities { return d.row }

// forget removes the fence of the step, as a driver that knows none.
func (d flawed) forget(ctx context.Context) context.Context {
	if d.flaw == "keeps no fence" {
		return driver.WithFence(ctx, box.Fence{})
	}
	return ctx
}

func (d flawed) Create(ctx context.Context, req driver.CreateRequest) (box.Observation, error) {
	if d.flaw == "goes on after its context ended" {
		ctx = context.WithoutCancel(ctx)
	}
	switch d.flaw {
	case "sets no timers":
		req.Native = box.Native{}
	case "lets a reserved variable through":
		maps.DeleteFunc(req.Start.Env, func(name, _ string) bool { return strings.HasPrefix(name, "BOXKEEPER_") })
	case "lets a second session key through":
		delete(req.Start.SecretEnv, "OH_SESSION_API_KEYS_1")
	}
	seen, err := d.Driver.Create(d.forget(ctx), req)
	switch {
	case d.flaw == "takes over what has our name" && box.ClassOf(err) == box.ClassAlreadyExists:
		id := d.cloud.ID(req.Identity.Name())
		return d.Driver.Adopt(ctx, id, req.Identity)
	case d.flaw == "forgets the fingerprint":
		seen.Ref.Fingerprint = ""
	}
	return seen, err
}

func (d flawed) Observe(ctx context.Context, ref box.Ref) (box.Observation, error) {
	seen, err := d.Driver.Observe(ctx, ref)
	switch {
	case d.flaw == "takes what it cannot read for gone" && err != nil:
		return box.Observation{Ref: ref, Phase: box.PhaseGone}, nil //nolint:nilerr // the flaw
	case d.flaw == "takes an absent box for an error" && seen.Phase == box.PhaseGone:
		return box.Observation{}, box.Errorf(box.ClassNotFound, "not found")
	case d.flaw == "takes a killed box for gone" && seen.Phase == box.PhaseFailed:
		seen.Phase = box.PhaseGone
	case d.flaw == "wakes what it looks at" && seen.Phase == box.PhaseSuspended:
		return d.Driver.Resume(ctx, ref, driver.Start{})
	}
	return seen, err
}

func (d flawed) Suspend(ctx context.Context, ref box.Ref) (box.Observation, error) {
	before, err := d.Driver.Observe(ctx, ref)
	if err != nil {
		return before, err
	}
	switch {
	case d.flaw == "says suspended without doing it" && before.Phase == box.PhaseRunning:
		before.Phase, before.MemoryKept = box.PhaseSuspended, box.No
		return before, nil
	case d.flaw == "refuses what is so already" && before.Phase == box.PhaseSuspended:
		return box.Observation{}, box.Errorf(box.ClassConflict, "suspended already")
	}
	seen, err := d.Driver.Suspend(d.forget(ctx), ref)
	if d.flaw == "counts less than nothing" {
		seen.StoredBytes = -1
	}
	return seen, err
}

func (d flawed) Resume(ctx context.Context, ref box.Ref, start driver.Start) (box.Observation, error) {
	seen, err := d.Driver.Resume(d.forget(ctx), ref, start)
	id, _ := driver.IdentityOf(ref)
	if d.flaw == "makes an empty box in place of a gone one" && box.ClassOf(err) == box.ClassNotFound {
		return d.Driver.Create(ctx, driver.CreateRequest{Identity: id, Start: start})
	}
	if d.flaw == "counts what runs" {
		seen.StoredBytes = 1
	}
	return seen, err
}

func (d flawed) Adjust(ctx context.Context, ref box.Ref, native box.Native) (box.Observation, error) {
	if d.flaw == "wakes to set a timer" {
		if _, err := d.Driver.Resume(ctx, ref, driver.Start{}); err != nil {
			return box.Observation{}, err
		}
	}
	return d.Driver.Adjust(ctx, ref, native)
}

func (d flawed) Delete(ctx context.Context, ref box.Ref) (box.Observation, error) {
	seen, err := d.Driver.Observe(ctx, ref)
	gone := box.Observation{Ref: ref, Phase: box.PhaseGone}
	switch {
	case d.flaw == "says deleted without doing it" && err == nil:
		return gone, nil
	case d.flaw == "deletes running boxes only" && seen.Phase == box.PhaseSuspended:
		return gone, nil
	case d.flaw == "deletes one time only" && seen.Phase == box.PhaseGone:
		return box.Observation{}, box.Errorf(box.ClassNotFound, "not found")
	case d.flaw == "takes what it cannot read for gone" && err != nil:
		return gone, nil //nolint:nilerr // the flaw
	}
	return d.Driver.Delete(d.forget(ctx), ref)
}

func (d flawed) Endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	at, err := d.Driver.Endpoint(ctx, ref)
	if d.flaw == "tells where a suspended box was" && box.ClassOf(err) == box.ClassFailedPrecondition {
		return driver.Endpoint{URL: "http://there.invalid"}, nil
	}
	return at, err
}

func (d flawed) List(ctx context.Context, installation string) ([]driver.Listed, error) {
	found, err := d.Driver.List(ctx, installation)
	var out []driver.Listed
	for _, one := range found {
		if d.flaw != "lists running boxes only" || one.Observation.Phase == box.PhaseRunning {
			out = append(out, one)
		}
	}
	return out, err
}

func (d flawed) Adopt(ctx context.Context, id string, as box.Identity) (box.Observation, error) {
	seen, err := d.Driver.Adopt(ctx, id, as)
	if d.flaw == "adopts what is marked" && box.ClassOf(err) == box.ClassFailedPrecondition ||
		d.flaw == "adopts under a name that is taken" && box.ClassOf(err) == box.ClassAlreadyExists {
		return box.Observation{Ref: box.Ref{ID: id, Name: as.Name(), Epoch: as.Epoch, Fingerprint: "fakebox"}, Phase: box.PhaseRunning}, nil
	}
	return seen, err
}

func (d flawed) ErrorClass(err error) (box.Class, time.Duration) {
	class, wait := d.Driver.ErrorClass(err)
	if d.flaw == "makes a class up" && class == box.ClassUnknown {
		return box.ClassNotFound, 0
	}
	return class, wait
}

func TestSuiteFindsMutants(t *testing.T) {
	t.Parallel()
	const survives = "what survives a resume is what the row claims"
	for i, m := range []mutant{
		{"claims a memory that is not kept", []string{survives}},
		{"keeps a memory that it does not claim", []string{survives}},
		{"claims an id that changes", []string{survives}},
		{"keeps an id that it calls changing", []string{survives}},
		{"claims a key that changes", []string{survives}},
		{"keeps a key that it calls changing", []string{survives}},
		{"claims an address that changes", []string{survives}},
		{"lists without a claim", []string{"what is not claimed is Unsupported and sends nothing"}},
		{"adopts without a claim", []string{"what is not claimed is Unsupported and sends nothing"}},
		{"leaves a claim open", []string{"the row is complete, constant and as expected"}},
		{"makes a class up", []string{"an unknown error has class Unknown"}},
		{"goes on after its context ended", []string{"create with an ended context can be repeated"}},
		{"takes over what has our name", []string{"create refuses a foreign box of our name and leaves it alone"}},
		{"lets a reserved variable through", []string{"create refuses variables that are ours to set and makes nothing"}},
		{"lets a second session key through", []string{"create refuses variables that are ours to set and makes nothing"}},
		{"forgets the fingerprint", []string{"create five times makes one box", "the fingerprint is constant and not empty"}},
		{"takes what it cannot read for gone", []string{
			"another account, region or engine proves nothing of our box", "another fingerprint can do nothing and proves nothing",
			"another installation can do nothing to our box",
		}},
		{"takes an absent box for an error", []string{"a box that never was is gone"}},
		{"takes a killed box for gone", []string{"a killed box is not gone, and every call works on it"}},
		{"counts less than nothing", []string{"what a box costs at rest is said of a suspended box only"}},
		{"counts what runs", []string{"what a box costs at rest is said of a suspended box only"}},
		{"wakes what it looks at", []string{"observing and listing wake nothing"}},
		{"says suspended without doing it", []string{"suspend and resume five times each"}},
		{"refuses what is so already", []string{"suspend and resume five times each", "suspend and resume with a lost answer can be repeated"}},
		{"makes an empty box in place of a gone one", []string{"nothing wakes a gone box or takes its place"}},
		{"says deleted without doing it", []string{"delete five times, from running", "delete with a lost answer can be repeated"}},
		{"deletes running boxes only", []string{"delete five times, from suspended"}},
		{"deletes one time only", []string{"delete five times, from running"}},
		{"tells where a suspended box was", []string{"an endpoint is for running boxes only"}},
		{"lists running boxes only", []string{"the list holds our boxes, suspended ones included, and no others"}},
		{"adopts what is marked", []string{"adopting what is not to be had is refused and touches nothing"}},
		{"adopts under a name that is taken", []string{"adopting a box that nobody marked makes it ours, once"}},
		{"keeps no fence", []string{"a step that a newer one overtook is refused, also after the end", "of steps that come at once the newest wins"}},
		{"sets no timers", []string{"the provider's own timers are as they were told"}},
		{"wakes to set a timer", []string{"the provider's own timers can be set again, and that wakes nothing"}},
	} {
		if i%race.Slowness == 0 {
			find(t, "fake", "driver", m)
		}
	}
}
