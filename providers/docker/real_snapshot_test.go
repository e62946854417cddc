package docker_test

import (
	"bytes"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
)

func TestSnapshotsRealDocker(t *testing.T) {
	t.Parallel()
	p := realPlace(t, docker.SuspendStop)
	p.opts.Boxd[0] = filepath.Join(filepath.Dir(p.opts.Boxd[0]), "boxd") // it must take its environment away
	p.opts.Snapshot = true
	d := p.driver(t, installation)
	ref := made(t, d, "snapshot")
	serves := func() {
		t.Helper()
		await(t, "the box serves", func() bool {
			at, err := d.Endpoint(t.Context(), ref)
			require.NoError(t, err)
			status, _ := get(t, at.URL+"/api/conversations/search", "secret-session-77aa")
			return status == http.StatusOK
		})
	}
	serves()
	seen := rests(t, d, ref)
	require.Empty(t, p.images(t), "boxd alone is nothing to keep")
	plain := seen.StoredBytes
	require.Greater(t, plain, int64(1<<20), "boxd is in the layer")

	// Suspends keep one snapshot, and all that the box holds is counted.
	const size = 3 << 20
	for i := range 3 {
		wakes(t, d, ref)
		p.put(t, ref.Name, "opt-tool", strings.Repeat(string(rune('a'+i)), size))
		p.put(t, ref.Name, "box/workspace/work", strings.Repeat("w", size))
		seen = rests(t, d, ref)
		require.Contains(t, seen.Evidence, "its layer kept as image")
		require.Len(t, p.images(t), 1)
	}
	require.Greater(t, seen.StoredBytes, plain+3*size, "the layer, its snapshot and the volume")
	require.Less(t, seen.StoredBytes, 2*plain+4*size)
	for range 5 {
		require.Equal(t, seen.StoredBytes, rests(t, d, ref).StoredBytes)
	}
	require.Len(t, p.images(t), 1)
	require.Empty(t, p.secretsIn(t, p.images(t)[0]))

	// Of a container that somebody removed.
	p.removeContainer(t, ref)
	seen = wakes(t, d, ref)
	ref = seen.Ref
	require.Contains(t, seen.Evidence, "made again from image "+p.images(t)[0])
	serves()
	require.Equal(t, strings.Repeat("c", size), readInBox(t, p, ref, "/opt-tool"))

	// An environment that nobody took away is not committed, and what a box itself
	// writes there would be found.
	_, err := p.api.ContainerStop(t.Context(), ref.ID, client.ContainerStopOptions{})
	require.NoError(t, err)
	p.put(t, ref.Name, ".boxkeeper/start/env", "TOKEN=secret-token-5e1f")
	p.put(t, ref.Name, "opt-tool", "another")
	rests(t, d, ref)
	images := p.images(t)
	require.Len(t, images, 2, "the first is a layer of the second")
	require.Empty(t, p.secretsIn(t, images[1]))
	wakes(t, d, ref)
	p.put(t, ref.Name, "opt-planted", "secret-token-5e1f")
	rests(t, d, ref)
	images = p.images(t)
	require.Len(t, images, 2)
	require.Equal(t, []string{"secret-token-5e1f in the layer"}, p.secretsIn(t, images[1]))

	// What somebody else uses, and what stands on it.
	theirs, err := p.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: "theirs", Config: &container.Config{Image: images[1]}})
	require.NoError(t, err)
	_, err = p.api.ContainerCommit(t.Context(), theirs.ID, client.ContainerCommitOptions{Reference: "boxkeeper-test:theirs"})
	require.NoError(t, err)
	_, err = d.Delete(t.Context(), ref)
	wantClass(t, err, box.ClassUnavailable)
	require.ErrorContains(t, err, "is used by another container")
	_, err = p.api.ContainerRemove(t.Context(), theirs.ID, client.ContainerRemoveOptions{})
	require.NoError(t, err)
	for range 2 {
		seen, err = d.Delete(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, box.PhaseGone, seen.Phase)
	}
	require.Empty(t, p.left(t, ref))
	_, err = p.api.ImageInspect(t.Context(), "boxkeeper-test:theirs")
	require.NoError(t, err)
	_, err = p.api.ImageRemove(t.Context(), "boxkeeper-test:theirs", client.ImageRemoveOptions{PruneChildren: true})
	require.NoError(t, err)
	require.Empty(t, p.images(t))
}

// secretsIn names the secrets of a start that are in an image: in what the engine
// says of it, and in its files.
func (p *place) secretsIn(t *testing.T, image string) (out []string) {
	t.Helper()
	var raw bytes.Buffer
	_, err := p.api.ImageInspect(t.Context(), image, client.ImageInspectWithRawResponse(&raw))
	require.NoError(t, err)
	require.Contains(t, raw.String(), prefix+"role", "it was read")
	history, err := p.api.ImageHistory(t.Context(), image)
	require.NoError(t, err)
	for _, layer := range history.Items {
		raw.WriteString(layer.CreatedBy + layer.Comment)
	}
	saved, err := p.api.ImageSave(t.Context(), []string{image})
	require.NoError(t, err)
	defer saved.Close()
	layers, err := io.ReadAll(saved)
	require.NoError(t, err)
	require.True(t, bytes.Contains(layers, []byte("opt-tool")), "the layers were read")
	for _, secret := range []string{"secret-token-5e1f", "secret-session-77aa"} {
		if bytes.Contains(raw.Bytes(), []byte(secret)) {
			out = append(out, secret+" in the configuration")
		}
		if bytes.Contains(layers, []byte(secret)) {
			out = append(out, secret+" in the layer")
		}
	}
	return out
}
