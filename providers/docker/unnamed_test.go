package docker_test

import (
	"slices"
	"strings"
	"testing"

	imagetypes "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/docker/dockertest"
)

// unnamed is a suspended box whose worker died while the engine committed its layer:
// the image is whole and has no name.
func unnamed(t *testing.T) (*place, *docker.Driver, box.Ref) {
	t.Helper()
	p, d, ref, commits := committing(t)
	commits()
	await(t, "the commit ended", func() bool { return len(p.images(t)) == 1 })
	require.NotContains(t, p.images(t)[0], ":snapshot-")
	return p, d, ref
}

// It is all that is left of the layer, once somebody removed the container before the
// next try.
func TestALayerWhoseContainerIsRemovedBeforeItIsNamed(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"the suspend is tried again": true, "it is resumed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, d, ref := unnamed(t)
			p.removeContainer(t, ref)
			if again {
				require.Contains(t, rests(t, d, ref).Evidence, "its layer kept as image "+ref.Name+":snapshot-")
				require.Contains(t, p.images(t)[0], ":snapshot-", "a prune takes those without a name")
			}
			ref = wakes(t, d, ref).Ref
			require.Equal(t, "a tool", p.installed(t, ref))
			rests(t, d, ref)
			require.Len(t, p.images(t), 1)
		})
	}
}

// A resume that cannot have it does not go on without it.
func TestALayerThatGetsNoName(t *testing.T) {
	t.Parallel()
	p, d, ref := unnamed(t)
	p.removeContainer(t, ref)
	p.fake.Next("POST", "/tag$", fault500)
	require.Contains(t, rests(t, d, ref).Evidence, "no snapshot of its layer is known")
	p.fake.Next("POST", "/tag$", fault500)
	_, err := d.Resume(t.Context(), ref, start())
	wantClass(t, err, box.ClassUnavailable)
	ref = wakes(t, d, ref).Ref
	require.Equal(t, "a tool", p.installed(t, ref))
}

// The name that an image was to get may be somebody's by then.
func TestANameThatIsSomebodysByThen(t *testing.T) {
	t.Parallel()
	p, d, ref := unnamed(t)
	found, err := p.api.ImageList(t.Context(), client.ImageListOptions{})
	require.NoError(t, err)
	at := slices.IndexFunc(found.Items, func(one imagetypes.Summary) bool { return one.Labels[prefix+"role"] == "snapshot" })
	name := found.Items[at].Labels[prefix+"snapshot"]
	p.fake.AddImage(name, dockertest.Image{Architecture: "amd64"})
	theirs, err := p.api.ImageInspect(t.Context(), name)
	require.NoError(t, err)
	rests(t, d, ref)
	now, err := p.api.ImageInspect(t.Context(), name)
	require.NoError(t, err)
	require.Equal(t, theirs.ID, now.ID, "it is somebody's")
	require.Len(t, p.images(t), 1)
	require.Contains(t, p.images(t)[0], ":snapshot-")
}

// Who watches waits for no commit of a box that is there.
func TestAWatcherWaitsForNoSuspend(t *testing.T) {
	t.Parallel()
	p, d, ref := unnamed(t)
	other := made(t, d, "other")
	wakes(t, d, ref)
	p.install(ref, "another")
	t.Cleanup(p.fake.HoldCommits())
	go func() { _, _ = d.Suspend(t.Context(), ref) }()
	await(t, "it commits", func() bool { return strings.Count(strings.Join(p.fake.Calls(), "\n"), "POST /commit") == 2 })
	told := p.watch(t, d)
	p.until(t, "GET /events")
	p.kill(t, other.Name)
	require.Equal(t, other.Name, (<-told).Observation.Ref.Name)
}

// While there is a snapshot of a lost box, all images of it stay.
func TestTheLastImageOfALostBoxStays(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	rests(t, d, ref)
	p.commit(t, ref.Name, installation, "layer", "boxkeeper snapshot")
	p.removeContainer(t, ref)
	_, err := p.api.VolumeRemove(t.Context(), ref.Name, client.VolumeRemoveOptions{})
	require.NoError(t, err)
	other := made(t, d, "other")
	told := p.watch(t, d)
	p.until(t, "GET /events")
	p.kill(t, other.Name)
	<-told // after what it does at its beginning
	require.Len(t, p.images(t), 2)
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Empty(t, p.images(t))
}
