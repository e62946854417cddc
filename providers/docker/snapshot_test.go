package docker_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/docker/dockertest"
)

const tool = "/usr/bin/tool"

// snapshotting is an engine whose driver keeps layers, and a box.
func snapshotting(t *testing.T, kind docker.SuspendKind) (*place, *docker.Driver, box.Ref) {
	t.Helper()
	p := newFake(t, kind)
	p.opts.Snapshot = true
	d := p.driver(t, installation)
	return p, d, made(t, d, "layer")
}

// install writes outside of the volume, as an agent does.
func (p *place) install(ref box.Ref, text string) {
	p.fake.Do(ref.Name, func(_ *container.State, files map[string][]byte) { files[tool] = []byte(text) })
}

func (p *place) installed(t *testing.T, ref box.Ref) string {
	t.Helper()
	content, _, _, _ := p.fake.File(ref.Name, tool)
	return string(content)
}

// images are the names of the images that have labels of ours.
func (p *place) images(t *testing.T) (out []string) {
	t.Helper()
	found, err := p.api.ImageList(t.Context(), client.ImageListOptions{All: true, Filters: make(client.Filters).Add("label", prefix+"installation="+installation)})
	require.NoError(t, err)
	for _, one := range found.Items {
		out = append(out, strings.Join(one.RepoTags, " "))
	}
	slices.Sort(out)
	return out
}

func (p *place) removeContainer(t *testing.T, ref box.Ref) {
	t.Helper()
	_, err := p.api.ContainerRemove(t.Context(), ref.Name, client.ContainerRemoveOptions{Force: true})
	require.NoError(t, err)
}

func rests(t *testing.T, d *docker.Driver, ref box.Ref) box.Observation {
	t.Helper()
	seen, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseSuspended, seen.Phase)
	return seen
}

func wakes(t *testing.T, d *docker.Driver, ref box.Ref) box.Observation {
	t.Helper()
	seen, err := d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	return seen
}

func TestScenario110FiftySuspendsLeaveOneSnapshot(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	for i := range 50 {
		p.install(ref, fmt.Sprint("version ", i))
		require.Contains(t, rests(t, d, ref).Evidence, "its layer kept as image "+ref.Name+":snapshot-")
		images := p.images(t)
		require.Len(t, images, 1)
		if i == 49 {
			for range 5 { // the same suspend again is the same snapshot
				rests(t, d, ref)
			}
			require.Equal(t, images, p.images(t))
		}
		wakes(t, d, ref)
	}
	rests(t, d, ref)
	p.removeContainer(t, ref)
	seen := wakes(t, d, ref)
	require.Contains(t, seen.Evidence, "its container was made again from image "+p.images(t)[0])
	require.Equal(t, "version 49", p.installed(t, ref))
	_, err := d.Delete(t.Context(), seen.Ref)
	require.NoError(t, err)
	require.Empty(t, p.images(t))
	require.Empty(t, p.left(t, ref))
}

// Snapshots of containers that were made of snapshots stand on each other, and
// end together.
func TestSnapshotsOfSnapshots(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendPause)
	for i := range 4 {
		p.install(ref, fmt.Sprint("version ", i))
		require.NotContains(t, rests(t, d, ref).Evidence, "its layer kept", "a pause commits nothing")
		for range 3 {
			seen, err := d.Deepen(t.Context(), ref)
			require.NoError(t, err)
			require.Contains(t, seen.Evidence, "its layer kept as image")
		}
		require.Len(t, p.images(t), i+1, "each is a layer of the next one")
		p.removeContainer(t, ref)
		ref = wakes(t, d, ref).Ref
		require.Equal(t, fmt.Sprint("version ", i), p.installed(t, ref))
		// Nothing more in the layer, nothing more to keep.
		rests(t, d, ref)
		_, err := d.Deepen(t.Context(), ref)
		require.NoError(t, err)
		require.Len(t, p.images(t), i+1)
		wakes(t, d, ref)
	}
	_, err := d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Empty(t, p.images(t))
}

func TestNoSnapshotOfNothingOrUnasked(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	require.NotContains(t, rests(t, d, ref).Evidence, "snapshot", "boxd alone is nothing to keep")
	require.Empty(t, p.images(t))
	wakes(t, d, ref)
	p.install(ref, "a tool")
	p.opts.Snapshot = false
	rests(t, p.driver(t, installation), ref)
	require.Empty(t, p.images(t))
	// A box that ended by itself and is settled as suspended keeps its layer too.
	wakes(t, d, ref)
	p.kill(t, ref.Name)
	rests(t, d, ref)
	require.Len(t, p.images(t), 1)
	// What was taken out again comes not back.
	wakes(t, d, ref)
	p.fake.Do(ref.Name, func(_ *container.State, files map[string][]byte) { delete(files, tool) })
	rests(t, d, ref)
	p.removeContainer(t, ref)
	wakes(t, d, ref)
	require.Empty(t, p.installed(t, ref))
}

// Whatever becomes of a commit, the box is suspended, and there is one snapshot.
func TestACommitThatGoesWrong(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		method, path string
		fault        dockertest.Fault
		images       int
		told         string
	}{
		"no space":                {http.MethodPost, "/commit$", dockertest.Fault{Status: 500, Message: "write /x: no space left on device"}, 0, "no snapshot of its layer is known: commit the layer of box bk-0a1b2c3d-layer-1: Error response from daemon: write /x: no space left on device"},
		"the answer is lost":      {http.MethodPost, "/commit$", faultLost, 1, "its layer kept as image"},
		"it never came":           {http.MethodPost, "/commit$", faultCut, 0, "no snapshot of its layer is known"},
		"its name is lost":        {http.MethodPost, "/tag$", faultLost, 1, "its layer kept as image"},
		"it gets no name":         {http.MethodPost, "/tag$", fault500, 1, "no snapshot of its layer is known: name image bk-0a1b2c3d-layer-1:snapshot-"},
		"images can't be listed":  {http.MethodGet, "/images/json$", fault500, 0, "no snapshot of its layer is known"},
		"the layer can't be seen": {http.MethodGet, "/changes$", fault500, 1, "its layer kept as image"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, d, ref := snapshotting(t, docker.SuspendStop)
			p.install(ref, "a tool")
			p.fake.Next(row.method, row.path, row.fault)
			require.Contains(t, rests(t, d, ref).Evidence, row.told)
			require.Len(t, p.images(t), row.images)
			for range 5 {
				require.Contains(t, rests(t, d, ref).Evidence, "its layer kept as image")
			}
			require.Len(t, p.images(t), 1)
			_, err := d.Delete(t.Context(), ref)
			require.NoError(t, err)
			require.Empty(t, p.images(t))
		})
	}
}

// The old one goes when the new one is there, and not before.
func TestTheOldSnapshotOutlivesAFailure(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "first")
	rests(t, d, ref)
	first := p.images(t)
	wakes(t, d, ref)
	p.install(ref, "second")
	p.fake.Next(http.MethodPost, "/commit$", fault500)
	rests(t, d, ref)
	require.Equal(t, first, p.images(t))
	rests(t, d, ref)
	require.Len(t, p.images(t), 1)
	require.NotEqual(t, first, p.images(t))
	// One that could not be removed is, by the next.
	wakes(t, d, ref)
	p.install(ref, "third")
	p.fake.Next(http.MethodDelete, "/images/", fault500)
	rests(t, d, ref)
	require.Len(t, p.images(t), 2)
	rests(t, d, ref)
	require.Len(t, p.images(t), 1)
}

// What is not ours, by its name or its labels, is left alone, and what others use
// is no success.
func TestSnapshotsOfOthers(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	commit := func(of, name string) {
		t.Helper()
		_, err := p.api.ContainerCommit(t.Context(), of, client.ContainerCommitOptions{Reference: name})
		require.NoError(t, err)
	}
	commit(ref.Name, "theirs:1") // with our labels
	commit(ref.Name, ref.Name+":mine")
	rests(t, d, ref)
	images := p.images(t)
	require.Len(t, images, 3)
	snapshot := images[slices.IndexFunc(images, func(name string) bool { return strings.Contains(name, ":snapshot-") })]
	p.opts.DefaultImage = snapshot
	theirs := p.run(t, "theirs", container.Config{})
	commit(theirs, "theirs:2") // stands on ours
	_, err := d.Delete(t.Context(), ref)
	wantClass(t, err, box.ClassUnavailable)
	require.ErrorContains(t, err, "image "+snapshot+" of box "+ref.Name+" is used by another container; remove that, and delete the box again")
	require.Contains(t, p.images(t), snapshot)
	require.Equal(t, box.PhaseFailed, phase(t, d, ref))
	_, err = p.api.ContainerRemove(t.Context(), theirs, client.ContainerRemoveOptions{Force: true})
	require.NoError(t, err)
	seen, err := d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseGone, seen.Phase)
	left := p.images(t)
	for _, name := range []string{"theirs:1", ref.Name + ":mine", "theirs:2"} {
		require.Contains(t, left, name)
	}
	require.NotContains(t, left, snapshot)
}

// Whoever runs a snapshot under the name of a box, to look into it, has no box: the
// files of the box are not in that container.
func TestAContainerThatSomebodyMadeOfASnapshot(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	rests(t, d, ref)
	p.removeContainer(t, ref)
	p.opts.DefaultImage = p.images(t)[0]
	theirs := p.run(t, ref.Name, container.Config{})
	seen, err := d.Observe(t.Context(), ref)
	require.NoError(t, err)
	require.NotEqual(t, theirs, seen.Ref.ID)
	require.Equal(t, box.PhaseFailed, seen.Phase, seen.Evidence)
	_, err = d.Resume(t.Context(), ref, start())
	wantClass(t, err, box.ClassAlreadyExists)
	require.ErrorContains(t, err, "container "+ref.Name+" is there and is not this box")
	_, err = d.Delete(t.Context(), ref)
	wantClass(t, err, box.ClassUnavailable)
	there, err := p.api.ContainerInspect(t.Context(), theirs, client.ContainerInspectOptions{})
	require.NoError(t, err, "it is somebody's")
	require.Equal(t, container.StateRunning, there.Container.State.Status)
	_, err = p.api.ContainerRemove(t.Context(), theirs, client.ContainerRemoveOptions{Force: true})
	require.NoError(t, err)
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Empty(t, p.images(t))
}

// A list that is none is no list of none.
func TestNoListOfImagesProvesNothing(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	rests(t, d, ref)
	gate(t, p, func(r *http.Request) http.HandlerFunc {
		if !strings.HasSuffix(r.URL.Path, "/images/json") {
			return nil
		}
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte("null"))
		}
	})
	d = p.driver(t, installation)
	_, err := d.Delete(t.Context(), ref)
	wantClass(t, err, box.ClassUnknown)
}

// A name that was given to another image since the list is not taken away.
func TestASnapshotWhoseNameIsAnothersMeanwhile(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	rests(t, d, ref)
	name := p.images(t)[0]
	gate(t, p, func(r *http.Request) http.HandlerFunc {
		if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/containers/") {
			p.fake.AddImage(name, dockertest.Image{Architecture: "amd64"})
		}
		return nil
	})
	d = p.driver(t, installation)
	_, err := d.Delete(t.Context(), ref)
	require.NoError(t, err)
	_, err = p.api.ImageInspect(t.Context(), name)
	require.NoError(t, err, "it is somebody's")
}

// Delete removes them when nothing else is left, and does not believe a list that
// lost its labels.
func TestSnapshotsAloneAreRemoved(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	rests(t, d, ref)
	p.removeContainer(t, ref)
	_, err := p.api.VolumeRemove(t.Context(), ref.Name, client.VolumeRemoveOptions{})
	require.NoError(t, err)
	require.Equal(t, box.PhaseGone, phase(t, d, ref))
	p.fake.Next(http.MethodDelete, "/images/", fault500)
	_, err = d.Delete(t.Context(), ref)
	wantClass(t, err, box.ClassUnavailable)
	for range 2 {
		_, err = d.Delete(t.Context(), ref)
		require.NoError(t, err)
	}
	require.Empty(t, p.images(t))
}

// The environment of a start that never came to boxd is not committed.
func TestASnapshotHoldsNoEnvironment(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	const env = "/.boxkeeper/start/env"
	p.fake.Do(ref.Name, func(_ *container.State, files map[string][]byte) { files[env] = []byte("TOKEN=secret-token-5e1f") })
	rests(t, d, ref)
	require.Len(t, p.images(t), 1)
	p.removeContainer(t, ref)
	_, err := p.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: "look", Config: &container.Config{Image: p.images(t)[0]}})
	require.NoError(t, err)
	content, _, _, ok := p.fake.File("look", env)
	require.True(t, ok)
	require.Empty(t, content)
}

func TestStoredBytes(t *testing.T) {
	t.Parallel()
	for _, api := range []string{"1.41", "1.52"} {
		p := fakeOf(t, docker.SuspendStop, api, "1.24")
		p.opts.Snapshot = true
		d := p.driver(t, installation)
		ref := made(t, d, "bytes")
		plain := rests(t, d, ref).StoredBytes
		require.Positive(t, plain, "boxd is in the layer")
		p.fake.Do(ref.Name, func(_ *container.State, files map[string][]byte) { files["/box/workspace/work"] = make([]byte, 1000) })
		require.Equal(t, plain+1000, rests(t, d, ref).StoredBytes, "the volume")
		require.Zero(t, wakes(t, d, ref).StoredBytes)
		p.install(ref, strings.Repeat("t", 500))
		seen := rests(t, d, ref)
		require.Greater(t, seen.StoredBytes, plain+1000+2*500, "the layer, and the snapshot of it")
		require.Equal(t, seen.StoredBytes, rests(t, d, ref).StoredBytes)
		for _, at := range []string{"/system/df$", "/history$"} {
			p.fake.Next(http.MethodGet, at, fault500)
			seen = rests(t, d, ref)
			require.Zero(t, seen.StoredBytes, "a part is not taken for the whole")
			require.NotContains(t, seen.Evidence, "wrong")
		}
	}
}
