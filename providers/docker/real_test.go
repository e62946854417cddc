package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/drivertest"
)

// dockerVariable names a Docker engine that a test may use, as scripts/docker.sh
// sets it. Tests that need one have RealDocker in their names.
const dockerVariable = "BOXKEEPER_TEST_DOCKER"

// programs builds what runs in real containers, once for all tests.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "docker-")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", dir+string(filepath.Separator),
		"github.com/openhands/boxkeeper/cmd/boxd", "./testdata/stand")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // nothing else is in the image
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if host := os.Getenv(dockerVariable); host != "" {
		if dir, err := programs(); err == nil {
			_ = os.RemoveAll(dir)
		}
		if api, err := client.New(client.WithHost(host)); err == nil {
			_, _ = api.ImageRemove(context.Background(), realImage, client.ImageRemoveOptions{}) //nolint:forbidigo // after all tests
			_ = api.Close()
		}
	}
	os.Exit(code)
}

// engineTurn is whose turn it is: all tests use the same names, so one at a time
// has the real engine.
var engineTurn sync.Mutex

const realImage = "boxkeeper-test:stand"

func realPlace(t *testing.T, kind docker.SuspendKind) *place {
	t.Helper()
	host := os.Getenv(dockerVariable)
	if host == "" {
		t.Skip("needs a Docker engine: scripts/docker.sh go test ... starts one")
	}
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: the programs in the containers are built for this system")
	}
	dir, err := programs()
	require.NoError(t, err)
	engineTurn.Lock()
	t.Cleanup(engineTurn.Unlock)
	p := &place{api: dial(t, host), opts: docker.Options{
		Host: host, Boxd: []string{filepath.Join(dir, "stand")}, DefaultImage: realImage, Suspend: kind,
		Pull: docker.PullNever, StopTimeout: 10 * time.Second,
	}}
	if _, err := p.api.ImageInspect(t.Context(), realImage); errdefs.IsNotFound(err) {
		p.importImage(t, realImage, filepath.Join(dir, "stand"))
	}
	p.sweep(t)
	t.Cleanup(func() { p.sweep(t) })
	return p
}

// importImage makes an image of one program and nothing else.
func (p *place) importImage(t *testing.T, name, program string, changes ...string) {
	t.Helper()
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	var packed bytes.Buffer
	out := tar.NewWriter(&packed)
	require.NoError(t, out.WriteHeader(&tar.Header{Name: "stand", Mode: 0o755, Size: int64(len(content))}))
	_, err = out.Write(content)
	require.NoError(t, err)
	require.NoError(t, out.Close())
	made, err := p.api.ImageImport(t.Context(), client.ImageImportSource{Source: &packed, SourceName: "-"}, name, client.ImageImportOptions{Changes: changes})
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, made)
	require.NoError(t, err)
	require.NoError(t, made.Close())
}

// sweep removes what tests left, by the names that only they use.
func (p *place) sweep(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	containers, err := p.api.ContainerList(ctx, client.ContainerListOptions{All: true})
	require.NoError(t, err)
	for _, c := range containers.Items {
		if of := c.Labels[prefix+"installation"]; c.Image == realImage || of == installation || of == "ffee0011" {
			_, _ = p.api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		}
	}
	for _, installation := range []string{installation, "ffee0011"} {
		volumes, err := p.api.VolumeList(ctx, client.VolumeListOptions{Filters: make(client.Filters).Add("label", prefix+"installation="+installation)})
		require.NoError(t, err)
		for _, v := range volumes.Items {
			_, _ = p.api.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{})
		}
		images, err := p.api.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).Add("label", prefix+"installation="+installation)})
		require.NoError(t, err)
		for _, one := range images.Items {
			_, _ = p.api.ImageRemove(ctx, one.ID, client.ImageRemoveOptions{Force: true})
		}
	}
}

// TestConformanceRealDocker runs the suite over the kind of suspend that is the
// default, and over both when it is asked to take its time: each case is a
// handful of containers, one after the other.
func TestConformanceRealDocker(t *testing.T) {
	t.Parallel()
	kinds := []docker.SuspendKind{docker.SuspendStop}
	if os.Getenv("BOXKEEPER_TEST_FULL") != "" {
		kinds = append(kinds, docker.SuspendPause)
	}
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			if os.Getenv(dockerVariable) == "" {
				t.Skip("needs a Docker engine: scripts/docker.sh go test ... starts one")
			}
			drivertest.RunConformance(t, func(t *testing.T) drivertest.Harness {
				t.Helper()
				return newHarness(realPlace(t, kind))
			})
		})
	}
}

// get asks a box over HTTP, with the key or without it.
func get(t *testing.T, url, key string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if key != "" {
		request.Header.Set("X-Session-API-Key", key)
	}
	web := http.Client{Timeout: 10 * time.Second}
	answer, err := web.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

func TestALifeRealDocker(t *testing.T) {
	t.Parallel()
	p := realPlace(t, docker.SuspendPause)
	p.opts.Boxd[0] = filepath.Join(filepath.Dir(p.opts.Boxd[0]), "boxd") // the suite is content with less
	d := p.driver(t, installation)
	ref := made(t, d, "life")
	at := func() string {
		t.Helper()
		found, err := d.Endpoint(t.Context(), ref)
		require.NoError(t, err)
		return found.URL
	}
	const key = "secret-session-77aa"
	serves := func() {
		t.Helper()
		await(t, "the box serves", func() bool {
			status, _ := get(t, at()+"/api/conversations/search", key)
			return status == http.StatusOK
		})
		status, _ := get(t, at()+"/api/conversations/search", "wrong")
		require.Equal(t, http.StatusUnauthorized, status)
	}
	serves()
	p.tellsNoSecret(t, ref)

	seen, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.Yes, seen.MemoryKept)
	url := "http://" + p.published(t, ref)
	require.True(t, answers(t.Context(), url), "a paused box takes connections")
	web := http.Client{Timeout: 300 * time.Millisecond}
	_, err = web.Get(url) //nolint:noctx,bodyclose // it hangs, and that is the point
	require.Error(t, err, "and answers none")

	for range 3 {
		seen, err = d.Deepen(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, box.PhaseSuspended, seen.Phase)
		require.Equal(t, box.No, seen.MemoryKept)
	}
	p.tellsNoSecret(t, ref)
	before := p.inspect(t, ref.Name).State.FinishedAt
	_, err = d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	serves()
	require.Equal(t, before, p.inspect(t, ref.Name).State.FinishedAt)

	// Somebody tidies up: the volume has all that counts.
	marker := dirInVolume(t, p, ref)
	_, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Deepen(t.Context(), ref)
	require.NoError(t, err)
	// The engine may be somebody's own: only what is ours is pruned.
	_, err = p.api.ContainerPrune(t.Context(), client.ContainerPruneOptions{Filters: make(client.Filters).Add("label", prefix+"installation="+installation)})
	require.NoError(t, err)
	require.Equal(t, box.PhaseFailed, phase(t, d, ref))
	again, err := d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	require.NotEqual(t, ref.ID, again.Ref.ID)
	ref = again.Ref
	serves()
	require.Equal(t, marker, readInBox(t, p, ref, "/box/workspace/marker"), "the files are there")

	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Empty(t, p.left(t, ref))
}

// An image may run as a user that may write nowhere.
func TestAUserWithoutRightsRealDocker(t *testing.T) {
	t.Parallel()
	p := realPlace(t, docker.SuspendStop)
	dir := filepath.Dir(p.opts.Boxd[0])
	p.opts.Boxd[0] = filepath.Join(dir, "boxd")
	p.opts.DefaultImage = "boxkeeper-test:user"
	p.importImage(t, p.opts.DefaultImage, filepath.Join(dir, "stand"), "USER 65532:65532")
	t.Cleanup(func() {
		_, _ = p.api.ImageRemove(context.WithoutCancel(t.Context()), p.opts.DefaultImage, client.ImageRemoveOptions{Force: true})
	})
	d := p.driver(t, installation)
	ref := made(t, d, "user")
	t.Cleanup(func() { _, _ = d.Delete(context.WithoutCancel(t.Context()), ref) })
	for range 2 {
		await(t, "the box serves", func() bool {
			at, err := d.Endpoint(t.Context(), ref)
			require.NoError(t, err)
			status, _ := get(t, at.URL+"/api/conversations/search", "secret-session-77aa")
			return status == http.StatusOK
		})
		p.tellsNoSecret(t, ref)
		_, err := d.Suspend(t.Context(), ref)
		require.NoError(t, err)
		_, err = d.Resume(t.Context(), ref, start())
		require.NoError(t, err)
	}
}

// published is the address of the box's port, also of one that is paused.
func (p *place) published(t *testing.T, ref box.Ref) string {
	t.Helper()
	bindings := p.inspect(t, ref.Name).NetworkSettings.Ports[inside]
	require.NotEmpty(t, bindings)
	return bindings[0].HostIP.String() + ":" + bindings[0].HostPort
}

// tellsNoSecret looks for secrets in all that the engine says of a container, and
// in the layer that it would be committed with.
func (p *place) tellsNoSecret(t *testing.T, ref box.Ref) {
	t.Helper()
	answer, err := p.api.ContainerInspect(t.Context(), ref.ID, client.ContainerInspectOptions{})
	require.NoError(t, err)
	layer, err := p.api.ContainerExport(t.Context(), ref.ID, client.ContainerExportOptions{})
	require.NoError(t, err)
	defer layer.Close()
	content, err := io.ReadAll(layer)
	require.NoError(t, err)
	logs, err := p.api.ContainerLogs(t.Context(), ref.ID, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true})
	require.NoError(t, err)
	defer logs.Close()
	said, err := io.ReadAll(logs)
	require.NoError(t, err)
	for _, secret := range []string{"secret-token-5e1f", "secret-session-77aa"} {
		for where, text := range map[string][]byte{"inspect": answer.Raw, "the layer": content, "the log": said} {
			require.False(t, bytes.Contains(text, []byte(secret)), "%s tells a secret", where)
		}
	}
}

// dirInVolume puts a file into the box's workspace, as work would.
func dirInVolume(t *testing.T, p *place, ref box.Ref) string {
	t.Helper()
	const text = "work of a day"
	p.put(t, ref.Name, "box/workspace/marker", text)
	return text
}

// put writes a file into a container.
func (p *place) put(t *testing.T, container, name, text string) {
	t.Helper()
	var packed bytes.Buffer
	out := tar.NewWriter(&packed)
	require.NoError(t, out.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}))
	_, err := out.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, out.Close())
	_, err = p.api.CopyToContainer(t.Context(), container, client.CopyToContainerOptions{DestinationPath: "/", Content: &packed})
	require.NoError(t, err)
}

func readInBox(t *testing.T, p *place, ref box.Ref, name string) string {
	t.Helper()
	answer, err := p.api.CopyFromContainer(t.Context(), ref.ID, client.CopyFromContainerOptions{SourcePath: name})
	require.NoError(t, err)
	defer answer.Content.Close()
	packed := tar.NewReader(answer.Content)
	_, err = packed.Next()
	require.NoError(t, err)
	raw, err := io.ReadAll(packed)
	require.NoError(t, err)
	return strings.TrimSpace(string(raw))
}
