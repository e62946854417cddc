package runtimeapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/runtimeapi"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

// oddity draws one thing that goes wrong with one call.
func oddity(r *rapid.T) runtimeapitest.Fault {
	f := rapid.SampledFrom([]runtimeapitest.Fault{
		{Drop: true},
		{Lost: true},
		{Status: http.StatusBadGateway, Header: html, Body: "<html>"},
		{Status: http.StatusServiceUnavailable, Body: `{}`, Done: true},
		{Status: http.StatusOK, Header: html, Body: "<html>"},
		{Status: http.StatusOK, Header: html, Body: "<html>", Done: true},
		{Status: http.StatusNotFound, Header: html, Body: "<html>"},
		{Status: http.StatusNotFound, Body: `{"error":"Runtime not found"}`},
		{Status: http.StatusNotFound, Body: `{"detail":"Not Found"}`},
		{Status: http.StatusTooManyRequests, Body: `{}`},
		{Status: http.StatusPaymentRequired, Body: `{}`},
		{Status: http.StatusFound, Header: http.Header{"Location": {"/login"}}},
		{Edit: func(o map[string]any) { clear(o) }},
		{Edit: func(o map[string]any) { o["status"], o["pod_status"] = nil, "odd" }},
		{Edit: func(o map[string]any) { o["runtimes"], o["total"] = []any{}, 0 }},
	}).Draw(r, "fault")
	f.Op = rapid.SampledFrom([]runtimeapitest.Op{
		runtimeapitest.OpSession, runtimeapitest.OpSession, runtimeapitest.OpList, runtimeapitest.OpStart,
		runtimeapitest.OpPause, runtimeapitest.OpResume, runtimeapitest.OpStop,
	}).Draw(r, "at")
	f.Skip = rapid.IntRange(0, 2).Draw(r, "skip")
	return f
}

// TestRandomLives lets the portable type over this driver live with a service
// where at most one answer at a time goes wrong, and checks against the
// service's own ledger after each step: never two boxes of a name unless two
// workers started it at once, then none that somebody was told of stopped, never
// gone what is there, nothing billed after a proven deletion, and nothing done
// to what is not ours.
func TestRandomLives(t *testing.T) {
	t.Parallel()
	keys, err := providers.NewKeySource(box.Secret(strings.Repeat("k", 32)))
	require.NoError(t, err)
	rapid.Check(t, func(r *rapid.T) {
		hosts, shown := rapid.Bool().Draw(r, "hosts"), rapid.Bool().Draw(r, "shown")
		s, err := runtimeapitest.Start(runtimeapitest.Options{
			HostStyle: hosts, ShowStopped: shown, Starting: rapid.IntRange(0, 2).Draw(r, "starting"),
			Pausing: rapid.IntRange(0, 2).Draw(r, "pausing"), Resuming: rapid.IntRange(0, 2).Draw(r, "resuming"),
		})
		require.NoError(r, err)
		defer s.Close()
		transport := s.Transport()
		defer transport.CloseIdleConnections()
		theirs := s.Plant("of-another-program")
		workers := make([]*providers.Provider, 2)
		for i := range workers {
			d, err := runtimeapi.New(installation, runtimeapi.Options{URL: s.URL(), APIKey: apiKey, Image: "i", PausedLife: box.Never, Transport: transport})
			require.NoError(r, err)
			workers[i], err = providers.New("service", d, &providers.Options{Installation: installation, Keys: keys})
			require.NoError(r, err)
		}
		l := &ledger{t: r, s: s, deleted: map[string]runtimeapitest.Box{}, raced: map[string]bool{}}
		refs := map[string]box.Ref{}
		for range rapid.IntRange(5, 25).Draw(r, "steps") {
			s.Heal()
			if rapid.IntRange(0, 2).Draw(r, "trouble") > 0 {
				s.Inject(oddity(r))
			}
			at := rapid.IntRange(0, 1).Draw(r, "worker")
			p := workers[at]
			workspace := rapid.SampledFrom([]string{"a", "b"}).Draw(r, "workspace")
			ref, has := refs[workspace]
			step := rapid.SampledFrom([]string{"create", "observe", "suspend", "resume", "delete", "wait", "endpoint"}).Draw(r, "step")
			if step == "wait" {
				s.Advance(time.Duration(rapid.IntRange(1, 30).Draw(r, "minutes")) * time.Minute)
				l.check()
				continue
			}
			if step == "create" && !has {
				spec := box.Spec{Version: box.WireVersion, Workspace: workspace, Provider: "service"}
				var told box.Observation
				if rapid.Bool().Draw(r, "at once") {
					l.raced[box.Identity{Installation: installation, Workspace: workspace, Epoch: 1}.Name()] = true
					s.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Between: func() {
						told, _ = workers[1-at].Create(t.Context(), spec, 1, driver.Start{})
					}})
				}
				if seen, err := p.Create(t.Context(), spec, 1, driver.Start{}); err == nil {
					refs[workspace] = seen.Ref
					l.says(seen)
				}
				for _, id := range []string{told.Ref.ID, refs[workspace].ID} {
					require.True(r, id == "" || l.alive()[id] != "" || l.deleted[id].RuntimeID != "", "somebody was told of box %s, and it is stopped", id)
				}
			}
			if has {
				l.call(t, p, step, ref)
			}
			l.check()
		}
		s.Heal()
		for _, ref := range refs {
			l.call(t, workers[0], "delete", ref)
			if left := s.Living(ref.Name); len(left) > 0 { // the list was odd in an earlier delete
				require.True(r, l.raced[ref.Name] && len(left) == 1 && left[0].RuntimeID != ref.ID, "an orphan")
				_, err := workers[0].Delete(t.Context(), ref)
				require.Equal(r, box.ClassFailedPrecondition, box.ClassOf(err), "an orphan, and nobody is told: %v", err)
			}
		}
		s.Advance(24 * time.Hour)
		l.check()
		for _, b := range s.Boxes() {
			if b.RuntimeID == theirs.RuntimeID {
				require.Empty(r, b.Ended)
				require.NotEqual(r, "pause", b.PausedBy)
			}
		}
	})
}

// ledger checks what is said against what is so.
type ledger struct {
	t       *rapid.T
	s       *runtimeapitest.Service
	deleted map[string]runtimeapitest.Box // as billed when the deletion was proven
	raced   map[string]bool               // names of which two workers started a box at once
}

func (l *ledger) call(t *testing.T, p *providers.Provider, step string, ref box.Ref) {
	t.Helper()
	var seen box.Observation
	var err error
	wakes := l.wakes()
	switch step {
	case "observe":
		seen, err = p.Observe(t.Context(), ref)
	case "suspend":
		seen, err = p.Suspend(t.Context(), ref)
	case "resume":
		seen, err = p.Resume(t.Context(), ref, driver.Start{})
	case "delete":
		seen, err = p.Delete(t.Context(), ref)
	default:
		_, err = p.Endpoint(t.Context(), ref)
		seen = box.Observation{Ref: ref, Phase: box.PhaseUnknown}
	}
	if step != "resume" {
		require.Equal(l.t, wakes, l.wakes(), "%s woke a box", step)
	}
	if box.ClassOf(err) == box.ClassNotFound {
		require.NotContains(l.t, l.alive(), ref.ID, "%s says that it is not there: %v", step, err)
	}
	if err == nil {
		l.says(seen)
	}
}

// says compares an answer with what is so. What is said may lag behind, but
// never says more than is so of an end.
func (l *ledger) says(seen box.Observation) {
	status := l.alive()[seen.Ref.ID]
	switch seen.Phase {
	case box.PhaseGone:
		require.Empty(l.t, status, "gone, and it is there")
		for _, b := range l.s.Boxes() {
			if b.RuntimeID == seen.Ref.ID {
				l.deleted[b.RuntimeID] = b
			}
		}
	case box.PhaseSuspended:
		require.Contains(l.t, []string{runtimeapitest.StatusPaused, runtimeapitest.StatusRunning}, status)
	case box.PhaseRunning, box.PhaseStarting, box.PhaseUnknown, box.PhaseFailed:
		require.NotEmpty(l.t, seen.Evidence+fmt.Sprint(seen.Phase))
	}
}

func (l *ledger) alive() map[string]string {
	out := map[string]string{}
	for _, b := range l.s.Boxes() {
		if b.Status != runtimeapitest.StatusStopped {
			out[b.RuntimeID] = b.Status
		}
	}
	return out
}

func (l *ledger) wakes() (n int) {
	for _, b := range l.s.Boxes() {
		n += b.Wakes
	}
	return n
}

func (l *ledger) check() {
	names := map[string]int{}
	for _, b := range l.s.Boxes() {
		if b.Status != runtimeapitest.StatusStopped {
			names[b.SessionID]++
			require.True(l.t, names[b.SessionID] == 1 || l.raced[b.SessionID], "two boxes of %s", b.SessionID)
		}
		if was, gone := l.deleted[b.RuntimeID]; gone {
			require.Equal(l.t, was, b, "billed after a proven deletion")
		}
	}
}
