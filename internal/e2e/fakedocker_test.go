package e2e_test

import (
	"context"
	"debug/elf"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/docker/dockertest"
)

// fakeDocker is a fake Docker engine behind a socket, with one life at it. What is
// in the volume of its box is a room, which outlives the containers around it.
type fakeDocker struct {
	*dockertest.Engine
	l      *life
	clock  *skippedClock
	disks  *rooms
	api    *client.Client // of a person at the engine
	socket string

	mu      sync.Mutex
	boot    time.Duration // of boxd, on the life's clock
	web     *http.Server
	silent  time.Time // until then the box answers 502
	hidden  time.Time // until then no list has a container in it
	unseen  bool      // the next delete begins with such lists
	left    time.Duration
	spoiled int // calls that a fault touched
}

const aColleagues = "a-colleagues"

// atFakeDocker begins a life at an engine of its own, whose clock is the life's.
func atFakeDocker(t *testing.T, name string, o docker.Options) *fakeDocker {
	t.Helper()
	clock := &skippedClock{}
	a := &fakeDocker{Engine: dockertest.New(t, "1.41", "1.12"), clock: clock, disks: newRooms(t, clock)}
	a.AddImage("box:test", dockertest.Image{Architecture: "amd64", Files: []string{"/stand"}})
	a.SetClock(clock.Now)
	a.SetInside(a.inside)
	dir, err := os.MkdirTemp("", "engine-") //nolint:usetesting // an address of a socket must be short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a.socket = filepath.Join(dir, "docker.sock")
	require.NoError(t, a.serve())
	t.Cleanup(a.stopServing)
	clock.follow = append(clock.follow, a.passes)
	a.api, err = client.New(client.WithHost(a.Host())) // not by the socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.api.Close() })

	o.Host, o.Boxd = "unix://"+a.socket, []string{dockertest.Program(t, elf.EM_X86_64)}
	o.DefaultImage, o.StopTimeout = "box:test", time.Second
	d, err := docker.New(livesInstallation, o)
	require.NoError(t, err)
	a.l = newLife(t, name, clock, hiddenAtDelete{d, a})
	return a
}

// serve begins to answer at the socket.
func (a *fakeDocker) serve() error {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: a.socket, Net: "unix"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false) // one that ended leaves it, and connections are refused
	a.web = &http.Server{Handler: http.HandlerFunc(a.answer), ReadHeaderTimeout: time.Minute}
	go func(web *http.Server) { _ = web.Serve(listener) }(a.web) // ends with Close
	return nil
}

func (a *fakeDocker) answer(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	hidden := strings.HasSuffix(r.URL.Path, "/containers/json") && a.clock.Now().Before(a.hidden)
	if hidden {
		a.spoiled++
	}
	a.mu.Unlock()
	if hidden {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("[]"))
		return
	}
	a.ServeHTTP(w, r)
}

// hiddenAtDelete lets the lists lack the box from the beginning of a delete on.
type hiddenAtDelete struct {
	*docker.Driver
	a *fakeDocker
}

func (d hiddenAtDelete) Delete(ctx context.Context, ref box.Ref) (box.Observation, error) {
	d.a.mu.Lock()
	if d.a.unseen {
		d.a.unseen, d.a.hidden = false, d.a.clock.Now().Add(15*time.Second)
	}
	d.a.mu.Unlock()
	return d.Driver.Delete(ctx, ref)
}

func (a *fakeDocker) hideAtDelete() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unseen = true
}

// hide lets the lists of containers be empty for a time.
func (a *fakeDocker) hide(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hidden = a.clock.Now().Add(d)
}

func (a *fakeDocker) stopServing() {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.web.Close()
}

// leave lets the engine be away for a time of the life's clock: connections to it
// are refused.
func (a *fakeDocker) leave(d time.Duration) {
	a.stopServing()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = d
	a.spoiled++
}

// passes hears that time passed, and brings back an engine that was away.
func (a *fakeDocker) passes(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left == 0 {
		return
	}
	if a.left = max(0, a.left-d); a.left == 0 {
		require.NoError(a.l.t, os.Remove(a.socket))
		require.NoError(a.l.t, a.serve())
	}
}

// inside is boxd in a container: before it listens connections are broken, and
// while there is no agent-server behind it, it answers 502.
func (a *fakeDocker) inside(name string, env map[string]string) http.Handler {
	if name != nameOf(a.l.ws) {
		return http.NotFoundHandler()
	}
	server := a.disks.of(name).start(box.Secret(env["OH_SESSION_API_KEYS_0"]))
	a.mu.Lock()
	up := a.clock.Now().Add(a.boot)
	a.mu.Unlock()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		now := a.clock.Now()
		booting, silent := now.Before(up), now.Before(a.silent)
		if booting || silent {
			a.spoiled++
		}
		a.mu.Unlock()
		switch {
		case booting:
			panic(http.ErrAbortHandler)
		case silent:
			http.Error(w, "<html>", http.StatusBadGateway)
		default:
			server.ServeHTTP(w, r)
		}
	})
}

// boots says how long boxd takes from its start until it listens.
func (a *fakeDocker) boots(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.boot = d
}

// touched counts the calls that a fault touched, and what a person did.
func (a *fakeDocker) touched() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.spoiled
}

// silence lets the box answer 502 for a time.
func (a *fakeDocker) silence(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silent = a.clock.Now().Add(d)
}

// spoil adds faults to the script, and counts the calls that they touch.
func (a *fakeDocker) spoil(times int, method, path string, f dockertest.Fault) {
	first := f.First
	f.First = func() {
		a.mu.Lock()
		a.spoiled++
		a.mu.Unlock()
		if first != nil {
			first()
		}
	}
	for range times {
		a.Next(method, path, f)
	}
}

// plant runs a container of somebody else, with a volume.
func (a *fakeDocker) plant() {
	t := a.l.t
	t.Helper()
	_, err := a.api.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: aColleagues})
	require.NoError(t, err)
	made, err := a.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name: aColleagues, Config: &container.Config{Image: "box:test", Entrypoint: []string{"/stand"}},
		HostConfig: &container.HostConfig{Mounts: []mount.Mount{{Type: mount.TypeVolume, Source: aColleagues, Target: "/data"}}},
	})
	require.NoError(t, err)
	_, err = a.api.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{})
	require.NoError(t, err)
}

// A person at the engine, who does something to the box.

func (a *fakeDocker) personStops() {
	_, err := a.api.ContainerStop(a.l.t.Context(), nameOf(a.l.ws), client.ContainerStopOptions{})
	a.requireDone(err)
}

func (a *fakeDocker) personPauses() {
	_, err := a.api.ContainerPause(a.l.t.Context(), nameOf(a.l.ws), client.ContainerPauseOptions{})
	a.requireDone(err)
}

func (a *fakeDocker) personRemoves() {
	_, err := a.api.ContainerRemove(a.l.t.Context(), nameOf(a.l.ws), client.ContainerRemoveOptions{Force: true})
	a.requireDone(err)
}

// requireDone counts what a person did. A server may call it, so it ends no test.
func (a *fakeDocker) requireDone(err error) {
	if err != nil {
		a.l.t.Errorf("a person at the engine: %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spoiled++
}

func (a *fakeDocker) place() place {
	return place{
		fill: func() { a.disks.only().fill(a.l.t) }, filled: func() bool { return a.disks.only().filled() },
		books: a.books, requests: func() int { return len(a.Calls()) }, idle: func() { a.l.pass(20 * time.Minute) },
	}
}

// did counts what the engine did to the box's container, volume or images.
func (a *fakeDocker) did(action string) (n int) {
	for _, line := range a.Ledger() {
		name, ok := strings.CutPrefix(line, action+" ")
		if name, _, _ = strings.Cut(name, ":"); ok && name == nameOf(a.l.ws) { // an image has a tag
			n++
		}
	}
	return n
}

// books take the volume for the box: a container can be made again around it.
func (a *fakeDocker) books() books {
	t := a.l.t
	t.Helper()
	out := books{made: a.did("volume create"), deleted: a.did("volume destroy")}
	out.wakes = a.did("container start") + a.did("container unpause") - 1 // the first start is none
	ours := func(names ...string) {
		for _, name := range names {
			if strings.Contains(name, nameOf(a.l.ws)) {
				out.alive = append(out.alive, name)
			}
		}
	}
	containers, err := a.api.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	require.NoError(t, err)
	for _, one := range containers.Items {
		ours(one.Names...)
	}
	volumes, err := a.api.VolumeList(t.Context(), client.VolumeListOptions{})
	require.NoError(t, err)
	for _, one := range volumes.Items {
		ours(one.Name) // and the mark of a deletion
	}
	images, err := a.api.ImageList(t.Context(), client.ImageListOptions{})
	require.NoError(t, err)
	for _, one := range images.Items {
		ours(one.RepoTags...)
	}
	return out
}

// colleagues is all that was done to what is not ours.
func (a *fakeDocker) colleagues() []string {
	return slices.DeleteFunc(a.Ledger(), func(line string) bool { return strings.Contains(line, nameOf(a.l.ws)) })
}
