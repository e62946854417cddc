package runtimeapi_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/runtimeapi"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

// oddAnswers are what gateways, login pages, accounts and broken servers say
// instead of an answer, with the class that a call which meets it has.
func oddAnswers() map[string]struct {
	fault runtimeapitest.Fault
	class box.Class
} {
	type row = struct {
		fault runtimeapitest.Fault
		class box.Class
	}
	said := func(status int, body string) runtimeapitest.Fault {
		return runtimeapitest.Fault{Status: status, Body: body}
	}
	page := func(status int) runtimeapitest.Fault {
		return runtimeapitest.Fault{Status: status, Header: html, Body: "<html><body>Not found. Runtime not found. Log in.</body></html>"}
	}
	return map[string]row{
		"a page instead of JSON":         {page(http.StatusOK), box.ClassUnknown},
		"JSON that is cut off":           {said(http.StatusOK, `{"runtime_id":"`), box.ClassUnknown},
		"JSON of another kind":           {said(http.StatusOK, `"ok"`), box.ClassUnknown},
		"an empty object":                {said(http.StatusOK, `{}`), box.ClassUnknown},
		"null":                           {said(http.StatusOK, `null`), box.ClassUnknown},
		"a redirect":                     {runtimeapitest.Fault{Status: http.StatusFound, Header: http.Header{"Location": {"/login"}}}, box.ClassUnknown},
		"a request that is refused":      {said(http.StatusBadRequest, `{"detail":"invalid id"}`), box.ClassInvalid},
		"a key that is refused":          {said(http.StatusUnauthorized, `{"error":"Unauthorized"}`), box.ClassUnauthorized},
		"an account without money":       {said(http.StatusPaymentRequired, `{"error":"insufficient credits"}`), box.ClassExhausted},
		"an account that may not":        {said(http.StatusForbidden, `{"error":"Runtime not found"}`), box.ClassUnauthorized},
		"a 404 of a gateway":             {page(http.StatusNotFound), box.ClassUnknown},
		"a 404 of a router":              {said(http.StatusNotFound, `{"detail":"Not Found"}`), box.ClassUnknown},
		"a 404 without a word":           {said(http.StatusNotFound, ``), box.ClassUnknown},
		"a 404 of another form":          {said(http.StatusNotFound, `["Runtime not found"]`), box.ClassUnknown},
		"a 404 that says HTML":           {runtimeapitest.Fault{Status: http.StatusNotFound, Header: html, Body: `{"error":"Runtime not found"}`}, box.ClassUnknown},
		"a box that is archived":         {said(http.StatusConflict, `{"detail":"archived"}`), box.ClassConflict},
		"a 410":                          {said(http.StatusGone, `{"error":"Runtime not found"}`), box.ClassUnknown},
		"too many requests":              {said(http.StatusTooManyRequests, `{"error":"slow down"}`), box.ClassExhausted},
		"too many requests, from a page": {page(http.StatusTooManyRequests), box.ClassExhausted},
		"a broken server":                {said(http.StatusInternalServerError, `{"detail":"Internal Server Error"}`), box.ClassUnavailable},
		"a broken gateway":               {page(http.StatusBadGateway), box.ClassUnavailable},
		"a server that is away":          {said(http.StatusServiceUnavailable, `{"detail":"failed to start"}`), box.ClassUnavailable},
		"a broken connection":            {runtimeapitest.Fault{Drop: true}, box.ClassUnavailable},
	}
}

// TestNoAnswerIsMistaken meets each odd answer at each call of each method, and
// checks what the method then says against what is so.
func TestNoAnswerIsMistaken(t *testing.T) {
	t.Parallel()
	ops := []runtimeapitest.Op{
		runtimeapitest.OpSession, runtimeapitest.OpList, runtimeapitest.OpStart,
		runtimeapitest.OpPause, runtimeapitest.OpResume, runtimeapitest.OpStop,
	}
	for name, odd := range oddAnswers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, runtimeapitest.Options{ListFailed: true})
			d := p.open(t)
			ref := made(t, d, "there")
			once := odd.fault
			once.Op, once.Times = runtimeapitest.OpSession, 2 // Go itself repeats a read whose connection was closed
			p.Inject(once)
			_, err := d.Observe(t.Context(), ref)
			wantClass(t, "observe", err, odd.class)
			p.Heal()
			for _, op := range ops {
				for _, done := range []bool{false, true} {
					if done && (op == runtimeapitest.OpSession || op == runtimeapitest.OpList) {
						continue // a read has nothing to carry out
					}
					fault := odd.fault
					fault.Op, fault.Times = op, -1
					if done { // it is carried out all the same
						fault.Done, fault.Lost, fault.Drop = true, fault.Drop, false
					}
					p.meet(t, string(op), fault, odd.class)
				}
			}
		})
	}
}

// meet lets every method of a driver of its own meet a fault, then ends it and
// checks that everything can be had in the end.
func (p *place) meet(t *testing.T, what string, fault runtimeapitest.Fault, class box.Class) {
	t.Helper()
	d := p.open(t)
	status := func(ref box.Ref) string {
		if living := p.Living(ref.Name); len(living) == 1 {
			return living[0].Status
		}
		require.Empty(t, p.Living(ref.Name), "%s: two boxes", what)
		return runtimeapitest.StatusStopped
	}
	check := func(method string, ref box.Ref, want string, seen box.Observation, err error) {
		t.Helper()
		if err != nil {
			if got := box.ClassOf(err); !slices.Contains([]box.Class{class, box.ClassUnavailable, box.ClassUnknown}, got) {
				require.Fail(t, "class", "%s at %s: %s (%v), want %s", method, what, got, err, class)
			}
			return
		}
		phases := map[box.Phase]string{box.PhaseRunning: runtimeapitest.StatusRunning, box.PhaseSuspended: runtimeapitest.StatusPaused, box.PhaseGone: runtimeapitest.StatusStopped}
		require.Equal(t, phases[seen.Phase], status(ref), "%s at %s says %s", method, what, seen.Phase)
		require.Contains(t, []string{want, ""}, phases[seen.Phase], "%s at %s says %s", method, what, seen.Phase)
	}
	running, paused := made(t, d, "running"), made(t, d, "paused")
	_, err := d.Suspend(t.Context(), paused)
	require.NoError(t, err)

	p.Inject(fault)
	fresh := box.Ref{Name: box.Identity{Installation: installation, Workspace: "fresh", Epoch: 1}.Name(), Epoch: 1, Fingerprint: running.Fingerprint}
	seen, err := create(t, d, "fresh")
	check("create", fresh, runtimeapitest.StatusRunning, seen, err)
	seen, err = d.Observe(t.Context(), running)
	check("observe", running, runtimeapitest.StatusRunning, seen, err)
	seen, err = d.Observe(t.Context(), paused)
	check("observe", paused, runtimeapitest.StatusPaused, seen, err)
	_, err = d.Endpoint(t.Context(), running)
	check("endpoint", running, runtimeapitest.StatusRunning, box.Observation{Ref: running, Phase: box.PhaseRunning}, err)
	if listed, err := d.List(t.Context(), installation); err == nil {
		require.GreaterOrEqual(t, len(listed), 2, "%s: a list that lacks a box", what)
	}
	seen, err = d.Resume(t.Context(), paused, driver.Start{})
	check("resume", paused, runtimeapitest.StatusRunning, seen, err)
	seen, err = d.Suspend(t.Context(), running)
	check("suspend", running, runtimeapitest.StatusPaused, seen, err)
	for range 2 {
		for _, ref := range []box.Ref{running, paused} {
			seen, err = d.Delete(t.Context(), ref)
			check("delete", ref, runtimeapitest.StatusStopped, seen, err)
		}
	}

	p.Heal()
	d = p.open(t) // another worker, which knows of no unclear create
	fresh = made(t, d, "fresh")
	require.Len(t, p.Living(fresh.Name), 1, what)
	for _, ref := range []box.Ref{running, paused, fresh} {
		seen, err := d.Delete(t.Context(), ref)
		require.NoError(t, err, "delete after %s", what)
		require.Equal(t, box.PhaseGone, seen.Phase)
		require.Empty(t, p.Living(ref.Name), "an orphan after %s", what)
	}
	require.LessOrEqual(t, p.boxes(fresh.Name), p.starts(fresh.Name), "more boxes than starts")
}

func (p *place) boxes(session string) (n int) {
	for _, b := range p.Boxes() {
		if b.SessionID == session {
			n++
		}
	}
	return n
}

func (p *place) starts(session string) (n int) {
	for _, call := range p.Calls() {
		if call.Op == runtimeapitest.OpStart && call.Fields["session_id"] == session {
			n++
		}
	}
	return n
}

// TestRequestsHoldWhatIsKnown checks every request against the fields and the
// headers that public clients are known to send [SDK, 22 Aug 2026].
func TestRequestsHoldWhatIsKnown(t *testing.T) {
	t.Parallel()
	fields := map[runtimeapitest.Op][]string{
		runtimeapitest.OpStart:   {"command", "environment", "fs_group", "image", "resource_factor", "run_as_user", "runtime_class", "session_id", "working_dir"},
		runtimeapitest.OpStop:    {"runtime_id"},
		runtimeapitest.OpPause:   {"runtime_id"},
		runtimeapitest.OpResume:  {"runtime_id"},
		runtimeapitest.OpSession: nil,
		runtimeapitest.OpList:    nil,
	}
	p := serve(t, runtimeapitest.Options{ListFailed: true})
	p.opts.RuntimeClass, p.opts.ResourceFactor = "sysbox-runc", 4
	d := p.open(t)
	ref := made(t, d, "requests")
	_, err := d.Endpoint(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Resume(t.Context(), ref, driver.Start{})
	require.NoError(t, err)
	_, err = d.List(t.Context(), installation)
	require.NoError(t, err)
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	met := map[runtimeapitest.Op]bool{}
	for _, call := range p.Calls() {
		want, known := fields[call.Op]
		require.True(t, known, "%s is no call of this driver", call.Op)
		met[call.Op] = true
		var got []string
		for name := range call.Fields {
			got = append(got, name)
		}
		slices.Sort(got)
		require.Equal(t, want, got, call.Op)
		require.Equal(t, []string{apiKey}, call.Header["X-Api-Key"], call.Op)
		require.Empty(t, call.Header["Authorization"], call.Op)
		if call.Method == http.MethodPost {
			require.Equal(t, "application/json", call.Header.Get("Content-Type"), call.Op)
		}
		if call.Op == runtimeapitest.OpStart {
			require.Equal(t, map[string]any{
				"image": "agent-server:test", "command": []any{"/usr/local/bin/openhands-agent-server", "--port", "60000"}, "working_dir": "/",
				"environment": map[string]any{"SETTING": "plain", "TOKEN": "canary-token-4711", "OH_SECRET_KEY": "canary-encryption-4711"},
				"session_id":  ref.Name, "resource_factor": 4.0, "runtime_class": "sysbox-runc", "run_as_user": 10001.0, "fs_group": 10001.0,
			}, call.Fields)
		}
	}
	require.Len(t, met, len(fields))
}

// TestLookingIsNoUse looks at a box in every way that the driver has, until the
// service's own reaper suspends it all the same.
func TestLookingIsNoUse(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{ListFailed: true})
	d := p.open(t)
	require.Equal(t, box.No, runtimeapi.Row(p.opts).LookingIsUse)
	ref := made(t, d, "watched")
	look := func() {
		_, err := d.Observe(t.Context(), ref)
		require.NoError(t, err)
		_, err = d.List(t.Context(), installation)
		require.NoError(t, err)
		_, _ = d.Endpoint(t.Context(), ref)
		_, err = create(t, d, "watched")
		require.NoError(t, err)
	}
	for range 20 {
		look()
		p.Advance(minute)
	}
	b := p.box(t, ref.ID)
	require.Equal(t, runtimeapitest.StatusPaused, b.Status)
	require.Equal(t, 20*minute, b.Running)
	for range 20 {
		look()
	}
	b = p.box(t, ref.ID)
	require.Equal(t, []any{runtimeapitest.StatusPaused, 0, 1}, []any{b.Status, b.Wakes, b.Lives})
}
