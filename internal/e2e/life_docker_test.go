package e2e_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/driver"
)

// dockerVariable names a Docker engine that a test may use, as scripts/docker.sh
// sets it. Tests that need one have RealDocker in their names.
const dockerVariable = "BOXKEEPER_TEST_DOCKER"

// containers is a real Docker engine with one life at it.
type containers struct {
	t     *testing.T
	l     *life
	api   *client.Client
	asked atomic.Int64
	began time.Time
	mu    sync.Mutex
	said  []events.Action // by the engine, of the box's container
	dir   string          // what is copied into the box, as an agent-server would write it there
}

func inDocker(t *testing.T, name string, kind docker.SuspendKind) *containers {
	t.Helper()
	host := os.Getenv(dockerVariable)
	if host == "" {
		t.Skip("needs a Docker engine: scripts/docker.sh go test ... starts one")
	}
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: the program in the containers is built for this system")
	}
	boxd := filepath.Join(t.TempDir(), "boxd")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", boxd, "github.com/openhands/boxkeeper/cmd/boxd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // nothing else is in the image
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)

	c := &containers{t: t, began: time.Now(), dir: t.TempDir()}
	c.api, err = client.New(client.WithHost(host))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.api.Close() })
	image := "boxkeeper-e2e:" + name
	c.importImage(image)
	d, err := docker.New(livesInstallation, docker.Options{
		Host: host, Boxd: []string{boxd}, DefaultImage: image, Pull: docker.PullNever, Suspend: kind, StopTimeout: 10 * time.Second,
	})
	require.NoError(t, err)
	c.l = newLife(t, name, &skippedClock{}, countedDriver{d, &c.asked})
	c.listen()
	t.Cleanup(c.sweep)
	return c
}

// importImage makes an image of one empty directory: all that runs in the box is
// boxd, which the driver brings.
func (c *containers) importImage(name string) {
	c.t.Helper()
	var packed bytes.Buffer
	out := tar.NewWriter(&packed)
	require.NoError(c.t, out.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}))
	require.NoError(c.t, out.Close())
	made, err := c.api.ImageImport(c.t.Context(), client.ImageImportSource{Source: &packed, SourceName: "-"}, name, client.ImageImportOptions{})
	require.NoError(c.t, err)
	_, err = io.Copy(io.Discard, made)
	require.NoError(c.t, err)
	require.NoError(c.t, made.Close())
}

// sweep removes what a test that failed has left.
func (c *containers) sweep() {
	ctx := context.WithoutCancel(c.t.Context())
	name := box.Identity{Installation: livesInstallation, Workspace: c.l.ws, Epoch: 1}.Name()
	_, _ = c.api.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	_, _ = c.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{Force: true})
}

// countedDriver counts what a box is asked by way of its provider.
type countedDriver struct {
	*docker.Driver
	asked *atomic.Int64
}

func (d countedDriver) Observe(ctx context.Context, ref box.Ref) (box.Observation, error) {
	d.asked.Add(1)
	return d.Driver.Observe(ctx, ref)
}

func (d countedDriver) Endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	d.asked.Add(1)
	return d.Driver.Endpoint(ctx, ref)
}

func (d countedDriver) Resume(ctx context.Context, ref box.Ref, start driver.Start) (box.Observation, error) {
	d.asked.Add(1)
	return d.Driver.Resume(ctx, ref, start)
}

func (c *containers) place() place {
	return place{
		books: c.books, requests: func() int { return int(c.asked.Load()) },
		// The clock in a container is the real one: the idle time of seconds passes.
		idle: func() { c.l.await(box.StateSuspended) },
		fill: func() {
			fillCache(c.t, c.dir)
			c.copyIn("home")
		},
		filled: func() bool {
			s, err := c.l.status()
			require.NoError(c.t, err)
			_, err = c.api.ContainerStatPath(c.t.Context(), s.Ref.ID, client.ContainerStatPathOptions{Path: "/box/" + cacheFile})
			return err == nil
		},
		begin: func(messages int) string {
			require.NoError(c.t, os.MkdirAll(filepath.Join(c.dir, "conversations"), 0o755))
			said := agentservertest.Conversation{}
			for n := range messages {
				said.Events = append(said.Events, agentservertest.Event{Text: fmt.Sprintf("message %d %s", n, uuid.NewString())})
			}
			id, err := agentservertest.WriteConversation(filepath.Join(c.dir, "conversations"), said)
			require.NoError(c.t, err)
			c.copyIn("conversations")
			return id
		},
		more: func(id string) {
			_, err := agentservertest.AppendEvent(filepath.Join(c.dir, "conversations"), id, agentservertest.Event{Text: "and one thing more " + uuid.NewString()})
			require.NoError(c.t, err)
			c.copyIn("conversations")
		},
	}
}

// copyIn copies a directory into the box.
func (c *containers) copyIn(name string) {
	c.t.Helper()
	var packed bytes.Buffer
	out := tar.NewWriter(&packed)
	require.NoError(c.t, filepath.WalkDir(filepath.Join(c.dir, name), func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		head, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(c.dir, at)
		if err != nil {
			return err
		}
		head.Name, head.Uid, head.Gid, head.Uname, head.Gname = path.Join("box", filepath.ToSlash(inside)), 0, 0, "", ""
		if err := out.WriteHeader(head); err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		_, err = out.Write(content)
		return err
	}))
	require.NoError(c.t, out.Close())
	s, err := c.l.status()
	require.NoError(c.t, err)
	_, err = c.api.CopyToContainer(c.t.Context(), s.Ref.ID, client.CopyToContainerOptions{DestinationPath: "/", Content: &packed})
	require.NoError(c.t, err)
}

// listen keeps what the engine says of the box's container: the engine itself
// forgets all but its last few hundred events.
func (c *containers) listen() {
	name := box.Identity{Installation: livesInstallation, Workspace: c.l.ws, Epoch: 1}.Name()
	stream := c.api.Events(c.t.Context(), client.EventsListOptions{
		Since: fmt.Sprint(c.began.Unix()), Filters: make(client.Filters).Add("type", "container").Add("container", name),
	})
	go func() {
		for {
			select {
			case <-stream.Err: // with the context of the test
				return
			case e := <-stream.Messages:
				c.mu.Lock()
				c.said = append(c.said, e.Action)
				c.mu.Unlock()
			}
		}
	}()
}

// heard is what the engine has said so far; it says it a moment after it did it.
func (c *containers) heard() []events.Action {
	time.Sleep(200 * time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.said)
}

// books are the engine's events, and what it lists.
func (c *containers) books() books {
	ctx, cancel := context.WithTimeout(c.t.Context(), within)
	defer cancel()
	name := box.Identity{Installation: livesInstallation, Workspace: c.l.ws, Epoch: 1}.Name()
	out := books{}
	last := events.Action("")
	for _, action := range c.heard() {
		switch action { //nolint:exhaustive // the others change nothing of what is counted
		case events.ActionCreate:
			out.made++
		case events.ActionDestroy:
			out.deleted++
		case events.ActionStart, events.ActionUnPause:
			out.wakes++
		case events.ActionDie:
			if last == events.ActionUnPause { // an engine thaws what it is told to end
				out.wakes--
			}
		default:
			continue
		}
		last = action
	}
	out.wakes -= out.made // the first start is none
	all, err := c.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("name", name)})
	require.NoError(c.t, err)
	for _, one := range all.Items {
		out.alive = append(out.alive, "container "+one.ID)
	}
	return out
}

// TestALifeInRealDocker lets a box of a real Docker engine, with boxd in it, live
// its whole life, once for each kind of suspend.
func TestALifeInRealDocker(t *testing.T) {
	t.Parallel()
	for _, kind := range []docker.SuspendKind{docker.SuspendStop, docker.SuspendPause} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			c := inDocker(t, "life-in-docker-"+string(kind), kind)
			wholeLife(t, c.l, c.place(), "--idle", "2s")
			volumes, err := c.api.VolumeList(t.Context(), client.VolumeListOptions{Filters: make(client.Filters).Add("name", nameOf(c.l.ws))})
			require.NoError(t, err)
			require.Empty(t, volumes.Items, "a volume is left")
		})
	}
}
