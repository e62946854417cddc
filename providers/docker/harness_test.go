package docker_test

import (
	"context"
	"debug/elf"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/docker/dockertest"
	"github.com/openhands/boxkeeper/providers/driver"
)

const (
	installation = "0a1b2c3d"
	// As they are on engines out there: they never change.
	prefix     = "com.github.openhands.boxkeeper."
	fakeImage  = "box:test"
	standIn    = "/stand" // a program in the image
	dataVolume = prefix + "role=data"
)

// place is one engine, fake or real, and what a driver of it is made with.
type place struct {
	api  *client.Client
	opts docker.Options
	fake *dockertest.Engine // nil for a real one
}

func newFake(t *testing.T, kind docker.SuspendKind) *place {
	t.Helper()
	return fakeOf(t, kind, "1.41", "1.12")
}

func fakeOf(t *testing.T, kind docker.SuspendKind, api, least string) *place {
	t.Helper()
	engine := dockertest.New(t, api, least)
	engine.AddImage(fakeImage, dockertest.Image{Architecture: "amd64", Files: []string{standIn}})
	p := &place{fake: engine, opts: docker.Options{
		Host: engine.Host(), Boxd: []string{dockertest.Program(t, elf.EM_X86_64)}, DefaultImage: fakeImage, Suspend: kind, StopTimeout: time.Second,
	}}
	p.api = dial(t, p.opts.Host)
	return p
}

func dial(t *testing.T, host string) *client.Client {
	t.Helper()
	api, err := client.New(client.WithHost(host))
	require.NoError(t, err)
	t.Cleanup(func() { _ = api.Close() })
	return api
}

func (p *place) driver(t *testing.T, installation string) *docker.Driver {
	t.Helper()
	d, err := docker.New(installation, p.opts)
	require.NoError(t, err)
	return d
}

func (p *place) inspect(t *testing.T, name string) container.InspectResponse {
	t.Helper()
	answer, err := p.api.ContainerInspect(t.Context(), name, client.ContainerInspectOptions{})
	require.NoError(t, err)
	return answer.Container
}

// run starts a container that is no box, and answers its id.
func (p *place) run(t *testing.T, name string, config container.Config) string {
	t.Helper()
	config.Image, config.Entrypoint = p.opts.DefaultImage, []string{standIn}
	made, err := p.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: name, Config: &config})
	require.NoError(t, err)
	_, err = p.api.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{})
	require.NoError(t, err)
	return made.ID
}

func (p *place) kill(t *testing.T, name string) {
	t.Helper()
	_, err := p.api.ContainerKill(t.Context(), name, client.ContainerKillOptions{Signal: "KILL"})
	require.NoError(t, err)
	await(t, name+" ends", func() bool { return !p.inspect(t, name).State.Running })
}

// left names the containers and volumes of a box.
func (p *place) left(t *testing.T, ref box.Ref) (out []string) {
	t.Helper()
	id, ok := driver.IdentityOf(ref)
	require.True(t, ok)
	of := make(client.Filters).Add("label", prefix+"installation="+id.Installation, prefix+"workspace="+id.Workspace)
	containers, err := p.api.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: of})
	require.NoError(t, err)
	for _, c := range containers.Items {
		out = append(out, "container "+c.Names[0])
	}
	volumes, err := p.api.VolumeList(t.Context(), client.VolumeListOptions{Filters: of})
	require.NoError(t, err)
	for _, v := range volumes.Items {
		out = append(out, "volume "+v.Name)
	}
	return out
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "waited in vain until %s", what)
	}
}

// harness is a place as the conformance suite wants it.
type harness struct {
	*place
	planted map[string]string
}

func newHarness(p *place) harness { return harness{p, map[string]string{}} }

func (h harness) Driver(t *testing.T, installation string) driver.Driver {
	t.Helper()
	return h.driver(t, installation)
}

func (h harness) Row() box.Capabilities { return docker.Row(h.opts) }

func (h harness) Plant(t *testing.T, name string) {
	t.Helper()
	h.run(t, name, container.Config{})
	h.planted[name] = h.life(t, name)
}

func (h harness) Untouched(t *testing.T, name string) bool {
	t.Helper()
	return h.life(t, name) == h.planted[name]
}

func (h harness) life(t *testing.T, name string) string {
	t.Helper()
	c := h.inspect(t, name)
	return c.ID + " " + c.State.StartedAt
}

func (h harness) Kill(t *testing.T, ref box.Ref) {
	t.Helper()
	h.kill(t, ref.Name)
}

func (h harness) Life(t *testing.T, ref box.Ref) string {
	t.Helper()
	return h.life(t, ref.Name)
}

func (h harness) Left(t *testing.T, ref box.Ref) []string {
	t.Helper()
	return h.left(t, ref)
}

// The calls of most tests.

func request(workspace string) driver.CreateRequest {
	return driver.CreateRequest{
		Identity: box.Identity{Installation: installation, Workspace: workspace, Epoch: 1},
		Start:    start(),
	}
}

func start() driver.Start {
	return driver.Start{
		Env:        map[string]string{"PLAIN": "as it is"},
		SecretEnv:  map[string]box.Secret{"TOKEN": "secret-token-5e1f"},
		SessionKey: "secret-session-77aa",
	}
}

func made(t *testing.T, d *docker.Driver, workspace string) box.Ref {
	t.Helper()
	seen, err := d.Create(t.Context(), request(workspace))
	require.NoError(t, err)
	return seen.Ref
}

func phase(t *testing.T, d *docker.Driver, ref box.Ref) box.Phase {
	t.Helper()
	seen, err := d.Observe(t.Context(), ref)
	require.NoError(t, err)
	return seen.Phase
}

func wantClass(t *testing.T, err error, class box.Class) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, class, box.ClassOf(err), "%v", err)
}

// answers reports whether something takes HTTP at url within a short time.
func answers(ctx context.Context, url string) bool {
	dialer := net.Dialer{Timeout: time.Second}
	connection, err := dialer.DialContext(ctx, "tcp", url[len("http://"):])
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

var (
	inside    = network.MustParsePort("8000/tcp")
	localhost = netip.MustParseAddr("127.0.0.1")
)
