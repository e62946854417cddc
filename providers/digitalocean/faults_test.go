package digitalocean_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	fake "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
	"github.com/openhands/boxkeeper/providers/driver"
)

const poor = fake.DefaultToken // whose balance it is

// made creates the box of a workspace and waits until it runs.
func made(t tester, p place, d *digitalocean.Driver, workspace string) box.Ref {
	t.Helper()
	seen, err := d.Create(t.Context(), createRequest(workspace))
	require.NoError(t, err)
	p.service.Advance(time.Minute)
	now, err := d.Observe(t.Context(), seen.Ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseRunning, now.Phase)
	return seen.Ref
}

// gone deletes a box and checks that nothing is paid for afterwards.
func gone(t tester, p place, d *digitalocean.Driver, ref box.Ref) {
	t.Helper()
	_, err := d.Delete(t.Context(), ref)
	require.NoError(t, err)
	before := p.statement(t, ref.ID)
	p.service.Advance(1000 * time.Hour)
	after := p.statement(t, ref.ID)
	require.Equal(t, before.Running+before.Paused, after.Running+after.Paused, "a box is paid for after its deletion was proven")
	require.False(t, after.Alive())
}

func TestACreateWhoseAnswerIsLostMakesOneBox(t *testing.T) {
	t.Parallel()
	for what, f := range map[string]fake.Fault{
		"cut after":   {Op: fake.OpCreate, Cut: true, After: true},
		"503 after":   fake.Unavailable(fake.OpCreate, true),
		"cut before":  {Op: fake.OpCreate, Cut: true},
		"late":        {Op: fake.OpCreate, Status: 503, Late: 30 * time.Second},
		"config lost": {Op: fake.OpConfigCreate, Cut: true, After: true},
		"config late": {Op: fake.OpConfigCreate, Cut: true, Late: time.Hour},
		"a page":      fake.BadGateway(fake.OpCreate),
		"a login":     fake.LoginPage(fake.OpCreate),
		"no list":     {Op: fake.OpCreate, Cut: true, After: true, Then: func(s *fake.Server) { s.Inject(fake.Unavailable(fake.OpList, false)) }},
		"a stale list": {Op: fake.OpCreate, Cut: true, After: true, First: func(s *fake.Server) {
			s.Inject(fake.Fault{Op: fake.OpList, Stale: true, Times: 4})
			s.Inject(fake.Fault{Op: fake.OpConfigSessions, Stale: true, Times: 1})
		}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, fake.Options{})
			d := p.new(t, installation)
			p.service.Inject(f)
			var seen box.Observation
			var err error
			tries := 0
			for ; tries < 8; tries++ {
				if seen, err = d.Create(t.Context(), createRequest("w")); err == nil {
					break
				}
				require.Contains(t, []box.Class{box.ClassUnavailable, box.ClassUnknown}, box.ClassOf(err), "%v", err)
			}
			require.NoError(t, err)
			require.Less(t, tries, 8)
			again, err := p.new(t, installation).Create(t.Context(), createRequest("w")) // another worker
			require.NoError(t, err)
			require.Equal(t, seen.Ref, again.Ref)
			p.service.Advance(2 * time.Hour) // whatever is late is there now
			require.Equal(t, map[string][]string{seen.Ref.Name: {seen.Ref.ID}}, p.sane(t).Created)
			gone(t, p, d, seen.Ref)
			require.Empty(t, p.sane(t).Alive)
		})
	}
}

func TestACreateThatLandsAfterTheDeletionMakesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{})
	d := p.new(t, installation)
	p.service.Inject(fake.Fault{Op: fake.OpCreate, Cut: true, Late: time.Hour})
	_, err := d.Create(t.Context(), createRequest("w"))
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	seen, err := d.Create(t.Context(), createRequest("w"))
	require.NoError(t, err)
	gone(t, p, d, seen.Ref) // far beyond the hour
	audit := p.sane(t)
	require.Empty(t, audit.Alive, "its environment went with the box")
	require.Len(t, audit.Created[seen.Ref.Name], 1)
}

func TestACallThatHangsEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{})
	d := p.new(t, installation)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.service.Inject(fake.Fault{Op: fake.OpCreate, Hang: true, First: func(*fake.Server) { cancel() }})
	_, err := d.Create(ctx, createRequest("w"))
	require.Equal(t, box.ClassCanceled, box.ClassOf(err), "%v", err)
	made(t, p, d, "w")
	require.Len(t, p.sane(t).Created, 1)
}

func TestTheServicePausesFirst(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"idle", "zero_balance", "some_future_reason"} {
		p := newPlace(t, fake.Options{})
		d := p.new(t, installation)
		ref := made(t, p, d, "w")
		p.service.Inject(fake.Fault{Op: fake.OpPause, First: func(s *fake.Server) { s.PauseNow(ref.ID, reason) }})
		seen, err := d.Suspend(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, box.PhaseSuspended, seen.Phase)
		require.Contains(t, seen.Evidence, reason)
		s := p.statement(t, ref.ID)
		require.Equal(t, map[string]int{reason: 1}, s.Pauses)
		require.Equal(t, 1, p.service.Count(fake.OpPause))
	}
}

func TestAnIdleBoxIsPausedByTheNetAndLookingIsNoUse(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{Tick: time.Millisecond})
	d := p.new(t, installation)
	ref := made(t, p, d, "w") // idle_timeout of an hour; it runs for a minute
	for range 70 {
		_, err := d.Observe(t.Context(), ref)
		require.NoError(t, err)
		_, err = d.List(t.Context(), installation)
		require.NoError(t, err)
		p.service.Advance(time.Minute)
	}
	s := p.statement(t, ref.ID)
	require.Equal(t, map[string]int{"idle": 1}, s.Pauses)
	require.InDelta(t, time.Hour, s.Running, float64(time.Second))
	seen, err := d.Observe(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseSuspended, seen.Phase)
	for range 20 { // and nothing wakes it
		_, err = d.Endpoint(t.Context(), ref)
		require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
		_, err = d.Create(t.Context(), createRequest("w"))
		require.NoError(t, err)
		_, err = d.Suspend(t.Context(), ref)
		require.NoError(t, err)
	}
	require.Zero(t, p.statement(t, ref.ID).WokenUp())
}

func TestASlowResume(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{ResumeLag: 20 * time.Second, Tick: time.Second})
	d := p.new(t, installation)
	ref := made(t, p, d, "w")
	_, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	seen, err := d.Resume(t.Context(), ref, driver.Start{})
	require.NoError(t, err)
	require.Equal(t, box.PhaseRunning, seen.Phase)
	require.Equal(t, 1, p.service.Count(fake.OpResume), "it is asked once")

	// The answer to a resume is lost.
	_, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	p.service.Inject(fake.Fault{Op: fake.OpResume, Cut: true, After: true})
	_, err = d.Resume(t.Context(), ref, driver.Start{})
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	_, err = d.Resume(t.Context(), ref, driver.Start{})
	require.NoError(t, err)
	require.Equal(t, 2, p.statement(t, ref.ID).WokenUp())
}

func TestAnIngressThatIsAwayForAWhile(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{IngressPolls: 3})
	d := p.new(t, installation)
	ref := made(t, p, d, "w")
	bad := fake.BadGateway(fake.OpIngress)
	bad.Times = 10
	p.service.Inject(bad)
	before := p.service.IdleAt(ref.ID)
	failures := 0
	var at driver.Endpoint
	require.Eventually(t, func() bool {
		found, err := d.Endpoint(t.Context(), ref)
		if err != nil {
			failures++
			require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
		}
		at = found
		return err == nil
	}, 20*time.Second, 2*time.Millisecond)
	require.GreaterOrEqual(t, failures, 13)
	require.Regexp(t, `^https://[0-9a-f]+\.ric1\.sandbox\.ondigitalocean\.com$`, at.URL)
	require.Equal(t, before, p.service.IdleAt(ref.ID), "asking for the address is no use")

	// It goes with a suspend, and another one comes.
	_, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Resume(t.Context(), ref, driver.Start{})
	require.NoError(t, err)
	var next driver.Endpoint
	require.Eventually(t, func() bool {
		next, err = d.Endpoint(t.Context(), ref)
		return err == nil
	}, 20*time.Second, 2*time.Millisecond)
	require.NotEqual(t, at.URL, next.URL)
}

func TestADeleteThatIsHeld(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{Destroying: 2 * time.Second})
	d := p.new(t, installation)
	ref := made(t, p, d, "w")
	p.service.HoldDelete(ref.ID, 2)
	for range 2 {
		_, err := d.Delete(t.Context(), ref)
		require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	}
	p.service.Lock(ref.ID, true)
	_, err := d.Delete(t.Context(), ref)
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "%v", err)
	require.Equal(t, []string{ref.Name}, p.sane(t).Alive)
	p.service.Lock(ref.ID, false)
	p.service.Inject(fake.Fault{Op: fake.OpDelete, Cut: true, After: true})
	_, err = d.Delete(t.Context(), ref)
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	gone(t, p, d, ref)
	require.Equal(t, 1, p.statement(t, ref.ID).Deletes)
}

func TestATeamWithoutMoney(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusPaymentRequired, http.StatusForbidden} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, fake.Options{NoBalance: status})
			d := p.new(t, installation)
			ref, other := made(t, p, d, "w"), made(t, p, d, "other")
			p.service.Work(ref.ID, time.Hour)
			p.service.SetBalance(poor, 0)
			seen, err := d.Observe(t.Context(), ref)
			require.NoError(t, err)
			require.Equal(t, box.PhaseSuspended, seen.Phase)
			require.Contains(t, seen.Evidence, "prepaid balance")
			for range 3 {
				_, err = d.Resume(t.Context(), ref, driver.Start{})
				class, wait := d.ErrorClass(err)
				require.Equal(t, box.ClassExhausted, class, "%v", err)
				require.Equal(t, 5*time.Minute, wait)
				_, err = d.Create(t.Context(), createRequest("new"))
				require.Equal(t, box.ClassExhausted, box.ClassOf(err), "%v", err)
				_, err = d.Suspend(t.Context(), ref) // it is
				require.NoError(t, err)
			}
			gone(t, p, d, other) // deleting costs nothing
			p.service.SetBalance(poor, 25)
			seen, err = d.Observe(t.Context(), ref)
			require.NoError(t, err)
			require.Equal(t, box.PhaseSuspended, seen.Phase, "the service must not wake it")
			_, err = d.Resume(t.Context(), ref, driver.Start{})
			require.NoError(t, err)
			require.Equal(t, map[string]int{"resume": 1}, p.statement(t, ref.ID).Wakes)
			made(t, p, d, "new")
		})
	}
}

func TestTooManyRequests(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, 7 * time.Second} {
		p := newPlace(t, fake.Options{})
		d := p.new(t, installation)
		ref := made(t, p, d, "w")
		storm := fake.TooMany("", wait)
		storm.Times = -1
		p.service.Inject(storm)
		came := len(p.service.Requests())
		calls := map[string]func() error{
			"observe":  func() error { _, err := d.Observe(t.Context(), ref); return err },
			"suspend":  func() error { _, err := d.Suspend(t.Context(), ref); return err },
			"resume":   func() error { _, err := d.Resume(t.Context(), ref, driver.Start{}); return err },
			"delete":   func() error { _, err := d.Delete(t.Context(), ref); return err },
			"endpoint": func() error { _, err := d.Endpoint(t.Context(), ref); return err },
			"list":     func() error { _, err := d.List(t.Context(), installation); return err },
			"create":   func() error { _, err := d.Create(t.Context(), createRequest("w")); return err },
			"adopt":    func() error { _, err := d.Adopt(t.Context(), ref.ID, identity("w")); return err },
		}
		for what, call := range calls {
			class, got := d.ErrorClass(call())
			require.Equal(t, box.ClassExhausted, class, what)
			require.Equal(t, wait, got, what)
		}
		require.Len(t, p.service.Requests(), came+len(calls)+1, "nothing is repeated; a suspend counts checkpoints first")
		require.Equal(t, []string{ref.Name}, p.sane(t).Alive)
	}
}

func TestABoxThatFails(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{})
	d := p.new(t, installation)
	p.service.FailBoots(1)
	seen, err := d.Create(t.Context(), createRequest("w"))
	require.NoError(t, err)
	ref := seen.Ref
	p.service.Advance(time.Minute)
	seen, err = d.Observe(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseFailed, seen.Phase)
	for range 3 {
		again, err := d.Create(t.Context(), createRequest("w"))
		require.NoError(t, err)
		require.Equal(t, ref, again.Ref)
		require.Equal(t, box.PhaseFailed, again.Phase)
		_, err = d.Suspend(t.Context(), ref)
		require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
		_, err = d.Resume(t.Context(), ref, driver.Start{})
		require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
		_, err = d.Endpoint(t.Context(), ref)
		require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	}
	found, err := d.List(t.Context(), installation)
	require.NoError(t, err)
	require.Len(t, found, 1)
	// The service loses sight of it for a while: it is there, so it is not gone.
	p.service.Inject(fake.Fault{Op: fake.OpGet, Status: http.StatusNotFound, Times: 2})
	_, err = d.Observe(t.Context(), ref)
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	_, err = d.Delete(t.Context(), ref)
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	require.Zero(t, p.service.Count(fake.OpConfigDelete), "its environment shows that it is ours")
	gone(t, p, d, ref)
	require.Len(t, p.sane(t).Created[ref.Name], 1)
}

func TestABoxThatIsKeptWarmIsTakenOverAndSaysSo(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{})
	d := p.new(t, installation)
	id := p.service.Plant(poor, fake.DefaultRegion, "colleague's")
	seen, err := d.Adopt(t.Context(), id, identity("w"))
	require.NoError(t, err)
	require.Contains(t, seen.Evidence, "kept warm")
	require.Equal(t, &box.Native{}, seen.Native)
	_, err = d.Suspend(t.Context(), seen.Ref)
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	require.Zero(t, p.service.Count(fake.OpPause))
	require.Empty(t, p.service.Audit().ForeignTouched)
}
