package e2e_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

// TestFaultsAtRuntimeAPI lets boxes of a runtime-api live through what goes wrong
// there, each beside a box of somebody else that nothing may touch.
func TestFaultsAtRuntimeAPI(t *testing.T) {
	t.Parallel()
	tooMany := func(a *runtimeAPI, ops ...runtimeapitest.Op) func() {
		return func() {
			for _, op := range ops {
				a.spoil(runtimeapitest.Fault{Op: op, Times: 2, Status: http.StatusTooManyRequests, Body: `{"detail":"Too Many Requests"}`})
			}
		}
	}
	only := func(a *runtimeAPI) runtimeapitest.Box { return a.Living(nameOf(a.l.ws))[0] }
	for name, c := range map[string]struct {
		o      runtimeapitest.Options
		script func(a *runtimeAPI) script
	}{
		"create-lost": {runtimeapitest.Options{}, func(a *runtimeAPI) script {
			return script{create: func() { a.spoil(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Lost: true}) }}
		}},
		"create-502-and-done": {runtimeapitest.Options{Starting: 2}, func(a *runtimeAPI) script {
			return script{create: func() {
				a.spoil(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Status: http.StatusBadGateway, Done: true, Body: "<html>"})
				a.spoil(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Skip: 2, Times: 2, Status: http.StatusNotFound, Body: `{"error":"Runtime not found"}`})
			}}
		}},
		"reaper-first": {runtimeapitest.Options{}, func(a *runtimeAPI) script {
			return script{suspend: func() {
				a.spoil(runtimeapitest.Fault{Op: runtimeapitest.OpPause, Before: func() { a.Pause(only(a).RuntimeID) }})
			}}
		}},
		"slow": {runtimeapitest.Options{Starting: 3, NotReady: 2, NoIngress: 3, Pausing: 1, Resuming: 1}, func(*runtimeAPI) script {
			return script{}
		}},
		"box-502": {runtimeapitest.Options{}, func(a *runtimeAPI) script {
			silent := func() {
				a.spoil(runtimeapitest.Fault{Op: runtimeapitest.OpBox, For: 20 * time.Second, Status: http.StatusBadGateway, Body: "<html>"})
			}
			return script{create: silent, resume: silent}
		}},
		"stop-503": {runtimeapitest.Options{}, func(a *runtimeAPI) script {
			return script{remove: func() {
				a.spoil(runtimeapitest.Fault{Op: runtimeapitest.OpStop, Times: 2, Status: http.StatusServiceUnavailable})
				a.spoil(runtimeapitest.Fault{Op: runtimeapitest.OpStop, Status: http.StatusBadGateway, Done: true})
			}}
		}},
		"stop-lost": {runtimeapitest.Options{ShowStopped: true}, func(a *runtimeAPI) script {
			return script{remove: func() { a.spoil(runtimeapitest.Fault{Op: runtimeapitest.OpStop, Lost: true}) }}
		}},
		"list-without-it": {runtimeapitest.Options{}, func(a *runtimeAPI) script {
			empty := func() {
				a.spoil(runtimeapitest.Fault{Op: runtimeapitest.OpList, Times: -1, Edit: func(o map[string]any) { o["total"], o["runtimes"] = 0, []any{} }})
			}
			return script{suspend: empty}
		}},
		"not-found-for-a-moment": {runtimeapitest.Options{}, func(a *runtimeAPI) script {
			absent := func() {
				a.spoil(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Times: 3, Status: http.StatusNotFound, Body: `{"error":"Runtime not found"}`})
			}
			return script{suspend: absent, resume: absent, remove: absent}
		}},
		"429": {runtimeapitest.Options{}, func(a *runtimeAPI) script {
			return script{
				create: tooMany(a, runtimeapitest.OpStart, runtimeapitest.OpSession), suspend: tooMany(a, runtimeapitest.OpPause, runtimeapitest.OpSession),
				resume: tooMany(a, runtimeapitest.OpResume, runtimeapitest.OpSession, runtimeapitest.OpList), remove: tooMany(a, runtimeapitest.OpStop, runtimeapitest.OpSession),
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := atRuntimeAPI(t, "rt-"+name, c.o)
			foreign := a.Plant("somebody-elses")
			liveThrough(t, a.l, a.place(), c.script(a))
			if name != "slow" {
				require.NotZero(t, a.spoiled.Load(), "nothing went wrong")
			}
			for _, b := range a.Boxes() {
				if b.RuntimeID == foreign.RuntimeID {
					require.NotEqual(t, runtimeapitest.StatusStopped, b.Status, "the box of somebody else was deleted")
					require.Zero(t, b.Wakes)
				}
			}
		})
	}
}

// spoil adds a fault to the script, and counts the calls that it touches.
func (a *runtimeAPI) spoil(f runtimeapitest.Fault) {
	before := f.Before
	f.Before = func() {
		a.spoiled.Add(1)
		if before != nil {
			before()
		}
	}
	a.Inject(f)
}
