package runtimeapi_test

import (
	"fmt"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/drivertest"
	"github.com/openhands/boxkeeper/providers/runtimeapi"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

// TestMain lets more garbage lie than a program would: each of thousands of cases has
// a service and connections of its own.
func TestMain(m *testing.M) {
	debug.SetGCPercent(300)
	m.Run()
}

const (
	installation = "0a1b2c3d"
	apiKey       = "runtime-api-key"
)

// place is one fake service, and what a driver needs to know of it.
type place struct {
	*runtimeapitest.Service
	opts runtimeapi.Options
}

func serve(t *testing.T, opts runtimeapitest.Options) *place {
	t.Helper()
	s, err := runtimeapitest.Start(opts)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	transport := s.Transport()
	t.Cleanup(transport.CloseIdleConnections)
	return &place{s, runtimeapi.Options{
		URL: s.URL(), APIKey: apiKey, Image: "agent-server:test", PausedLife: box.Never,
		Transport: transport, ListsFailed: opts.ListFailed,
	}}
}

func (p *place) open(t *testing.T) *runtimeapi.Driver {
	t.Helper()
	d, err := runtimeapi.New(installation, p.opts)
	require.NoError(t, err)
	return d
}

// harness is a place as the conformance suite needs it. A box of somebody else
// under our name can't be planted: the name is all that marks a box here.
type harness struct{ p *place }

func (h harness) Driver(t *testing.T, installation string) driver.Driver {
	t.Helper()
	d, err := runtimeapi.New(installation, h.p.opts)
	require.NoError(t, err)
	return d
}

func (h harness) Row() box.Capabilities { return runtimeapi.Row(h.p.opts) }

func (h harness) Kill(t *testing.T, ref box.Ref) {
	t.Helper()
	h.p.Crash(ref.ID, "crashloopbackoff")
}

func (h harness) Life(t *testing.T, ref box.Ref) string {
	t.Helper()
	return fmt.Sprint(h.p.box(t, ref.ID).Lives)
}

func (h harness) Left(t *testing.T, ref box.Ref) []string {
	t.Helper()
	var out []string
	for _, b := range h.p.Living(ref.Name) {
		out = append(out, b.RuntimeID+" "+b.Status)
	}
	return out
}

// wired is a place whose API is behind a line that the suite breaks.
type wired struct {
	harness
	line *drivertest.Line
}

func wire(t *testing.T, opts runtimeapitest.Options) wired {
	t.Helper()
	p := serve(t, opts)
	line := drivertest.NewLine(p.Service)
	server := httptest.NewServer(line)
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
	})
	p.opts.URL, p.opts.Transport = server.URL, transport
	return wired{harness{p}, line}
}

// Driver waits less after an unclear create than the suite has patience.
func (w wired) Driver(t *testing.T, installation string) driver.Driver {
	t.Helper()
	d, err := runtimeapi.New(installation, w.p.opts)
	require.NoError(t, err)
	return d.WithGrace(5 * time.Millisecond)
}

func (w wired) Line() *drivertest.Line { return w.line }

func (w wired) Boxes(t *testing.T, name string) int {
	t.Helper()
	return len(w.p.Living(name))
}

func (wired) StateFields() []string { return []string{"status", "pod_status"} }

func TestConformance(t *testing.T) {
	t.Parallel()
	kinds := []runtimeapitest.Options{
		{Starting: 1, NotReady: 1, NoIngress: 1},
		{HostStyle: true, NoPodStatus: true, ListFailed: true},
		{ShowStopped: true, Detail: true, ListFailed: true},
	}
	for i, name := range []string{"path", "host", "stopped shown"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.RunConformance(t, func(t *testing.T) drivertest.Harness {
				t.Helper()
				return harness{serve(t, kinds[i])}
			})
		})
	}
	// Over a line each case takes one of the three kinds, always the same one: a fault
	// meets all of them in one call or another, and all for each would take too long.
	t.Run("over a line", func(t *testing.T) {
		t.Parallel()
		drivertest.RunConformance(t, func(t *testing.T) drivertest.Harness {
			t.Helper()
			kind := kinds[crc32.ChecksumIEEE([]byte(t.Name()))%3]
			kind.ListFailed = true // of all: what is claimed must not depend on the case
			return wire(t, kind)
		})
	})
}

// made creates the box of a workspace.
func made(t *testing.T, d driver.Driver, workspace string) box.Ref {
	t.Helper()
	seen, err := create(t, d, workspace)
	require.NoError(t, err)
	return seen.Ref
}

func create(t *testing.T, d driver.Driver, workspace string) (box.Observation, error) {
	t.Helper()
	return d.Create(t.Context(), driver.CreateRequest{
		Identity: box.Identity{Installation: installation, Workspace: workspace, Epoch: 1},
		Start: driver.Start{
			Env:        map[string]string{"SETTING": "plain"},
			SecretEnv:  map[string]box.Secret{"TOKEN": "canary-token-4711", "OH_SECRET_KEY": "canary-encryption-4711"},
			SessionKey: "canary-session-4711",
		},
	})
}

func wantClass(t *testing.T, what string, err error, want box.Class) {
	t.Helper()
	require.Equal(t, want, box.ClassOf(err), "%s: %v", what, err)
}

// ops counts the calls of one kind.
func (p *place) ops(op runtimeapitest.Op) (n int) {
	for _, call := range p.Calls() {
		if call.Op == op {
			n++
		}
	}
	return n
}

func (p *place) box(t *testing.T, id string) runtimeapitest.Box {
	t.Helper()
	for _, b := range p.Boxes() {
		if b.RuntimeID == id {
			return b
		}
	}
	require.Fail(t, "no box "+id)
	return runtimeapitest.Box{}
}

// ask sends a request to a box.
func (p *place) ask(t *testing.T, at driver.Endpoint, path string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at.URL+path, http.NoBody)
	require.NoError(t, err)
	req.Header.Set("X-Session-API-Key", at.SessionKey.Reveal())
	client := p.Client()
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}
