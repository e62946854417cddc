package digitalocean_test

import (
	"context"
	"net/http"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/digitalocean/godo"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/race"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/drivertest"
)

// TestMain lets more garbage lie than a program would: each of thousands of cases has
// a service and connections of its own, and to collect after every few took a third
// of the time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(300)
	m.Run()
}

// tester is a test, or one case of a property.
type tester interface {
	require.TestingT
	Helper()
	Cleanup(func())
	Context() context.Context
	Fatalf(format string, args ...any)
}

// place is one team at a fake of the service.
type place struct {
	service   *digitaloceantest.Server
	transport *http.Transport
}

// newPlace starts a fake whose clock moves with each request.
func newPlace(t tester, opts digitaloceantest.Options) place {
	t.Helper()
	if opts.Tick == 0 {
		opts.Tick = 200 * time.Millisecond
	}
	service := digitaloceantest.New(opts)
	transport := service.Transport()
	t.Cleanup(func() { transport.CloseIdleConnections(); service.Close() })
	return place{service, transport}
}

// new returns a driver; poll is how often it looks, in real time.
func (p place) new(t tester, installation string, change ...func(*digitalocean.Options)) *digitalocean.Driver {
	t.Helper()
	o := digitalocean.Options{Token: digitaloceantest.DefaultToken, Transport: p.transport, PollEvery: 10 * time.Microsecond}
	for _, c := range change {
		c(&o)
	}
	d, err := digitalocean.New(installation, o)
	require.NoError(t, err)
	return d
}

// client is somebody else's client of the same team.
func (p place) client(t tester) *godo.Client {
	t.Helper()
	c, err := godo.New(&http.Client{Transport: colleague{p.transport}})
	require.NoError(t, err)
	return c
}

type colleague struct{ next http.RoundTripper }

func (c colleague) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+digitaloceantest.DefaultToken)
	return c.next.RoundTrip(r)
}

// stray makes a session as a person does.
func (p place) stray(t tester, name string) string {
	t.Helper()
	c := p.client(t)
	env, _, err := c.HostedAgents.CreateEnvironment(t.Context(), &godo.HostedEnvironmentCreateRequest{
		Name: "canvas", ManifestYAML: "agent: openhands\ntemplate: openhands\nkeep_warm: false\n",
	})
	require.NoError(t, err)
	made, _, err := c.HostedAgents.CreateSessionFromEnvironment(t.Context(), &godo.HostedAgentSessionFromEnvironmentRequest{Name: name, ConfigID: env.ID})
	require.NoError(t, err)
	return made.SessionID
}

// statement is the bill of a session.
func (p place) statement(t tester, id string) digitaloceantest.Statement {
	t.Helper()
	for _, s := range p.service.Bill() {
		if s.ID == id {
			return s
		}
	}
	t.Fatalf("there never was a session %s", id)
	return digitaloceantest.Statement{}
}

// sane checks what must hold after whatever happened.
func (p place) sane(t tester) digitaloceantest.Audit {
	t.Helper()
	audit := p.service.Audit()
	require.Empty(t, audit.Double, "two live sessions of one name")
	require.Empty(t, audit.ForeignGone, "a wrong delete")
	require.Empty(t, audit.ForeignTouched)
	for _, op := range []digitaloceantest.Op{digitaloceantest.OpInput, digitaloceantest.OpResolve, digitaloceantest.OpExec, digitaloceantest.OpCheckpoint, digitaloceantest.OpFork} {
		require.Zero(t, p.service.Count(op), "%s wakes a session or costs", op)
	}
	return audit
}

type harness struct {
	place
	via http.RoundTripper
}

func newHarness(t *testing.T, opts digitaloceantest.Options) harness {
	t.Helper()
	p := newPlace(t, opts)
	t.Cleanup(func() { p.sane(t) })
	return harness{p, p.transport}
}

func (h harness) Driver(t *testing.T, installation string) driver.Driver {
	t.Helper()
	return h.new(t, installation, func(o *digitalocean.Options) { o.Transport = h.via })
}

func (h harness) Row() box.Capabilities { return digitalocean.Row(digitalocean.Options{}) }

func (h harness) Plant(_ *testing.T, name string) {
	h.service.Plant(digitaloceantest.DefaultToken, digitaloceantest.DefaultRegion, name)
}

func (h harness) Untouched(t *testing.T, name string) bool {
	t.Helper()
	audit := h.service.Audit()
	return len(audit.ForeignGone) == 0 && len(audit.ForeignTouched) == 0 && !slices.Contains(audit.Deleted, name)
}

func (h harness) Stray(t *testing.T) string {
	t.Helper()
	return h.stray(t, "my-canvas-box")
}

func (h harness) Life(t *testing.T, ref box.Ref) string {
	t.Helper()
	for _, s := range h.service.Sessions() {
		if s.ID == ref.ID {
			return s.SandboxID
		}
	}
	return ""
}

func (h harness) Left(t *testing.T, ref box.Ref) []string {
	t.Helper()
	s := h.statement(t, ref.ID)
	var out []string
	if s.Alive() {
		out = append(out, "session "+s.Status)
	}
	listed, _, err := h.client(t).HostedAgents.ListEnvironments(t.Context(), nil)
	require.NoError(t, err)
	for _, e := range listed.Configs {
		if e.ID == s.ConfigID {
			out = append(out, "environment "+e.Name)
		}
	}
	return out
}

// forgetful is a service that takes its time, and of which every unknown is the
// other way round.
var forgetful = digitaloceantest.Options{
	ResumeLag: 500 * time.Millisecond, Destroying: 500 * time.Millisecond, IngressPolls: 2,
	CreateStatus: http.StatusOK, DeleteAgain: http.StatusNotFound, ForgetDestroyed: true, HoldConfigs: true,
	EdgeErrors: true, PrefixedIDs: true, IngressOnAgentsOnly: true,
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for what, opts := range map[string]digitaloceantest.Options{"plain": {}, "slow, and forgetting": forgetful} {
		if race.Enabled {
			break // the cases over a line are as many, and of both kinds
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			drivertest.RunConformance(t, func(t *testing.T) drivertest.Harness {
				t.Helper()
				return newHarness(t, opts)
			})
		})
	}
	t.Run("over a line", func(t *testing.T) {
		t.Parallel()
		drivertest.RunConformance(t, func(t *testing.T) drivertest.Harness {
			t.Helper()
			return newWired(t)
		})
	})
}
