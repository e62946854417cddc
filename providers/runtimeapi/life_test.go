package runtimeapi_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

func TestAPauseThatTakesItsTime(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{Pausing: 2})
	d := p.open(t)
	ref := made(t, d, "slow")
	_, err := d.Suspend(t.Context(), ref)
	wantClass(t, "suspend", err, box.ClassUnavailable)
	_, wait := d.ErrorClass(err)
	require.Equal(t, 5*time.Second, wait)
	var seen box.Observation
	for range 5 {
		if seen, err = d.Suspend(t.Context(), ref); err == nil {
			break
		}
		wantClass(t, "suspend", err, box.ClassUnavailable)
	}
	require.NoError(t, err)
	require.Equal(t, box.PhaseSuspended, seen.Phase)
	require.Equal(t, box.No, seen.MemoryKept)
}

func TestAResumeThatTakesItsTimeWakesOnce(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{Resuming: 2, Starting: 1})
	d := p.open(t)
	ref := made(t, d, "slow")
	_, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Resume(t.Context(), ref, driver.Start{})
	wantClass(t, "resume", err, box.ClassUnavailable)
	for range 5 {
		if _, err = d.Resume(t.Context(), ref, driver.Start{}); err == nil {
			break
		}
		wantClass(t, "resume", err, box.ClassUnavailable)
	}
	require.NoError(t, err)
	require.Equal(t, 1, p.box(t, ref.ID).Wakes)
}

func TestAProviderThatPausesFirst(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	ref := made(t, d, "first")
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpPause, Before: func() { p.Pause(ref.ID) }})
	seen, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseSuspended, seen.Phase)
	_, err = d.Resume(t.Context(), ref, driver.Start{})
	require.NoError(t, err)
	p.Advance(30 * time.Minute) // the idle reaper
	seen, err = d.Observe(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseSuspended, seen.Phase)
	// The end comes while it is paused: never taken for a suspend.
	_, err = d.Resume(t.Context(), ref, driver.Start{})
	require.NoError(t, err)
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpPause, Before: func() { p.Stop(ref.ID) }})
	_, err = d.Suspend(t.Context(), ref)
	wantClass(t, "suspend", err, box.ClassNotFound)
}

func TestKeysAreReadAfresh(t *testing.T) {
	t.Parallel()
	for _, hosts := range []bool{false, true} {
		p := serve(t, runtimeapitest.Options{HostStyle: hosts, NoIngress: 1})
		d := p.open(t)
		ref := made(t, d, "keys")
		old, err := d.Endpoint(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, p.Boxes()[0].URL, old.URL, "the address is used as it is")
		require.Equal(t, http.StatusBadGateway, p.ask(t, old, "/api/conversations/count"), "running before the ingress answers")
		require.Equal(t, http.StatusOK, p.ask(t, old, "/api/conversations/count"))
		_, err = d.Suspend(t.Context(), ref)
		require.NoError(t, err)
		_, err = d.Endpoint(t.Context(), ref) // its key is null
		wantClass(t, "endpoint", err, box.ClassFailedPrecondition)
		require.Equal(t, http.StatusServiceUnavailable, p.ask(t, old, "/health"))
		_, err = d.Resume(t.Context(), ref, driver.Start{})
		require.NoError(t, err)
		fresh, err := d.Endpoint(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, old.URL, fresh.URL)
		p.ask(t, fresh, "/health")
		require.Equal(t, http.StatusUnauthorized, p.ask(t, old, "/api/conversations/count"))
		require.Equal(t, http.StatusOK, p.ask(t, fresh, "/api/conversations/count"))
	}
}

func TestFieldsThatAreNullMissingOrUnknown(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	ref := made(t, d, "fields")
	set := func(name string, value any) func(map[string]any) { return func(o map[string]any) { o[name] = value } }
	for name, row := range map[string]struct {
		edit     func(map[string]any)
		phase    box.Phase // of Observe
		class    box.Class // of Observe
		endpoint box.Class
	}{
		"nothing is wrong":       {func(map[string]any) {}, box.PhaseRunning, "", ""},
		"no status":              {func(o map[string]any) { delete(o, "status") }, box.PhaseUnknown, "", box.ClassUnknown},
		"status null":            {set("status", nil), box.PhaseUnknown, "", box.ClassUnknown},
		"status unknown":         {set("status", "hibernating"), box.PhaseUnknown, "", box.ClassUnknown},
		"status in capitals":     {set("status", " RUNNING "), box.PhaseRunning, "", ""},
		"status is a number":     {set("status", 5), "", box.ClassUnknown, box.ClassUnknown},
		"no pod status":          {set("pod_status", nil), box.PhaseRunning, "", ""},
		"pod status unknown":     {set("pod_status", "Evicted"), box.PhaseUnknown, "", box.ClassUnknown},
		"pod status \"unknown\"": {set("pod_status", "unknown"), box.PhaseUnknown, "", box.ClassUnknown},
		"pod not ready":          {set("pod_status", "running"), box.PhaseStarting, "", box.ClassUnavailable},
		"pod not found":          {set("pod_status", "not found"), box.PhaseStarting, "", box.ClassUnavailable},
		"pod crashes":            {set("pod_status", "CrashLoopBackOff"), box.PhaseFailed, "", box.ClassFailedPrecondition},
		"status error":           {set("status", "error"), box.PhaseFailed, "", box.ClassFailedPrecondition},
		"key null":               {set("session_api_key", nil), box.PhaseRunning, "", box.ClassUnavailable},
		"no key":                 {func(o map[string]any) { delete(o, "session_api_key") }, box.PhaseRunning, "", box.ClassUnavailable},
		"address null":           {set("url", nil), box.PhaseRunning, "", box.ClassUnavailable},
		"address not one":        {set("url", "box:7"), box.PhaseRunning, "", box.ClassUnknown},
		"address with a user":    {set("url", "https://u:p@host/"), box.PhaseRunning, "", box.ClassUnknown},
		"address in the clear":   {set("url", "http://box.example/"), box.PhaseRunning, "", box.ClassFailedPrecondition},
		"no session id":          {func(o map[string]any) { delete(o, "session_id") }, "", box.ClassUnknown, box.ClassUnknown},
		"another session's":      {set("session_id", "bk-0a1b2c3d-other-1"), "", box.ClassUnknown, box.ClassUnknown},
		"no runtime id":          {set("runtime_id", nil), "", box.ClassUnknown, box.ClassUnknown},
		"another runtime id":     {set("runtime_id", "other"), "", box.ClassUnknown, box.ClassUnknown},
		"restarts of any form":   {func(o map[string]any) { o["restart_count"], o["restart_reasons"] = "many", map[string]any{"a": 1} }, box.PhaseRunning, "", ""},
	} {
		p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Times: 2, Edit: row.edit})
		seen, err := d.Observe(t.Context(), ref)
		require.Equal(t, row.class, box.ClassOf(err), "%s: %v", name, err)
		require.Equal(t, row.phase, seen.Phase, name)
		_, err = d.Endpoint(t.Context(), ref)
		require.Equal(t, row.endpoint, box.ClassOf(err), "%s: %v", name, err)
		p.Heal()
	}
	require.Zero(t, p.ops(runtimeapitest.OpStop)+p.ops(runtimeapitest.OpPause)+p.ops(runtimeapitest.OpResume), "looking changes nothing")
	require.Zero(t, p.ops(runtimeapitest.OpBox), "and asks no box")
}

func TestACallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	ref := made(t, d, "hangs")
	for _, op := range []runtimeapitest.Op{runtimeapitest.OpSession, runtimeapitest.OpList, runtimeapitest.OpStop} {
		ctx, cancel := context.WithCancel(t.Context())
		p.Inject(runtimeapitest.Fault{Op: op, Hang: true, Before: cancel})
		_, err := d.Delete(ctx, ref)
		wantClass(t, "delete", err, box.ClassCanceled)
	}
	// And while it waits for another call about the same box.
	ctx, cancel := context.WithCancel(t.Context())
	inside, done := make(chan struct{}), make(chan error, 1)
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStop, Drop: true, Before: func() { close(inside); <-ctx.Done() }})
	go func() {
		_, err := d.Delete(t.Context(), ref)
		done <- err
	}()
	<-inside
	waiting, late := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer late()
	_, err := d.Delete(waiting, ref)
	wantClass(t, "delete", err, box.ClassDeadlineExceeded)
	soon, stop := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, stop)
	_, err = d.Delete(soon, ref)
	wantClass(t, "delete", err, box.ClassCanceled)
	cancel()
	wantClass(t, "delete", <-done, box.ClassUnavailable)
	require.Len(t, p.Living(ref.Name), 1)
}

func TestTheWaitThatIsAskedForIsPassedOn(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	ref := made(t, d, "storm")
	for value, want := range map[string]time.Duration{
		"":                              0,
		"7":                             7 * time.Second,
		"-7":                            0,
		"soon":                          0,
		"999999":                        24 * time.Hour,
		"Mon, 30 Nov 2026 12:01:30 GMT": 90 * time.Second,
	} {
		header := http.Header{"Date": {"Mon, 30 Nov 2026 12:00:00 GMT"}}
		if value != "" {
			header.Set("Retry-After", value)
		}
		p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpPause, Status: http.StatusTooManyRequests, Header: header, Body: `{"error":"slow down"}`})
		_, err := d.Suspend(t.Context(), ref)
		class, wait := d.ErrorClass(err)
		require.Equal(t, box.ClassExhausted, class)
		require.Equal(t, want, wait, "Retry-After %q", value)
	}
	// A storm ends, and nothing was repeated on the way.
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpPause, Times: 5, Status: http.StatusTooManyRequests})
	before := p.ops(runtimeapitest.OpPause)
	for range 5 {
		_, err := d.Suspend(t.Context(), ref)
		wantClass(t, "suspend", err, box.ClassExhausted)
	}
	_, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, 6, p.ops(runtimeapitest.OpPause)-before)
}

func TestOneReadingIsNoProofOfASuspend(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	ref := made(t, d, "once")
	paused := func(o map[string]any) {
		o["status"], o["pod_status"], o["session_api_key"] = "paused", "not found", nil
	}
	// It says paused before anything was done, and then running.
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Edit: paused})
	_, err := d.Suspend(t.Context(), ref)
	wantClass(t, "suspend", err, box.ClassUnavailable)
	require.Zero(t, p.ops(runtimeapitest.OpPause))
	// It accepts the pause without doing it, says paused, and then running.
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpPause, Status: http.StatusOK, Body: `{}`})
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Skip: 1, Edit: paused})
	_, err = d.Suspend(t.Context(), ref)
	wantClass(t, "suspend", err, box.ClassUnavailable)
	require.Equal(t, 1, p.ops(runtimeapitest.OpPause))
	require.Equal(t, runtimeapitest.StatusRunning, p.box(t, ref.ID).Status)
}

func TestARunningBoxIsNotResumed(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{Starting: 1})
	d := p.open(t)
	ref := made(t, d, "awake")
	for range 3 {
		seen, err := d.Resume(t.Context(), ref, driver.Start{})
		require.NoError(t, err)
		require.Contains(t, []box.Phase{box.PhaseStarting, box.PhaseRunning}, seen.Phase)
	}
	require.Zero(t, p.ops(runtimeapitest.OpResume), "what a /resume does to its key is unknown")
}

// TestAfterAChangeNothingIsSaidToBeRefused lets the key be refused right after
// the change: callers take Unauthorized to say that nothing was done.
func TestAfterAChangeNothingIsSaidToBeRefused(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		looks int // before the change
		call  func(ctx context.Context, d driver.Driver, running, paused box.Ref) error
	}{
		"create": {2, func(ctx context.Context, d driver.Driver, _, _ box.Ref) error {
			_, err := d.Create(ctx, driver.CreateRequest{Identity: box.Identity{Installation: installation, Workspace: "new", Epoch: 1}})
			return err
		}},
		"suspend": {1, func(ctx context.Context, d driver.Driver, running, _ box.Ref) error {
			_, err := d.Suspend(ctx, running)
			return err
		}},
		"delete": {1, func(ctx context.Context, d driver.Driver, running, _ box.Ref) error {
			_, err := d.Delete(ctx, running)
			return err
		}},
		"resume": {1, func(ctx context.Context, d driver.Driver, _, paused box.Ref) error {
			_, err := d.Resume(ctx, paused, driver.Start{})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, runtimeapitest.Options{Resuming: 1})
			d := p.open(t)
			running, paused := made(t, d, "running"), made(t, d, "paused")
			_, err := d.Suspend(t.Context(), paused)
			require.NoError(t, err)
			refused := runtimeapitest.Fault{Op: runtimeapitest.OpSession, Times: -1, Status: http.StatusUnauthorized, Body: `{"error":"Unauthorized"}`}
			p.Inject(refused)
			wantClass(t, "refused before", row.call(t.Context(), d, running, paused), box.ClassUnauthorized)
			p.Heal()
			refused.Skip = row.looks
			p.Inject(refused)
			wantClass(t, "refused after", row.call(t.Context(), d, running, paused), box.ClassUnavailable)
		})
	}
}
