package docker_test

import (
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

// As an engine of 20.10 answers whose layer is not there any more [1 Dec 2026].
var noLayer = dockertest.Fault{Status: http.StatusInternalServerError, Message: "error creating overlay mount to /var/lib/docker/overlay2/0b-init/merged: no such file or directory"}

// A snapshot that is broken is needed only when its container was removed. Then no
// resume goes past it without a word, and a person is told how one can.
func TestASnapshotThatIsBroken(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		method, path string
		remove       []string // what the error says is to be removed
	}{
		"no container can be made of it": {http.MethodPost, "/containers/create$", []string{"image rm"}},
		"it can't be read":               {http.MethodGet, "/images/.*snapshot.*/json$", []string{"image rm"}},
		"its container can't be started": {http.MethodPost, "/start$", []string{"rm", "image rm"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, d, ref := snapshotting(t, docker.SuspendStop)
			p.install(ref, "a tool")
			p.fake.Do(ref.Name, func(_ *container.State, files map[string][]byte) { files["/box/workspace/work"] = []byte("of a day") })
			rests(t, d, ref)
			before := len(p.fake.Calls())
			wakes(t, d, ref)
			require.NotContains(t, strings.Join(p.fake.Calls()[before:], "\n"), "/images/", "the container is there")
			rests(t, d, ref)
			p.removeContainer(t, ref)
			image := p.images(t)[0]
			for range 3 {
				p.fake.Next(row.method, row.path, noLayer)
				_, err := d.Resume(t.Context(), ref, start())
				wantClass(t, err, box.ClassUnavailable)
				require.ErrorContains(t, err, noLayer.Message)
				require.ErrorContains(t, err, "its snapshot, image "+image)
				require.ErrorContains(t, err, "files are whole in volume "+ref.Name)
				require.ErrorContains(t, err, "docker image rm "+image)
				require.Equal(t, slices.Contains(row.remove, "rm"), strings.Contains(err.Error(), "docker rm "+ref.Name+" &&"))
				require.Equal(t, []string{image}, p.images(t), "it is a person's to give up")
			}
			if slices.Contains(row.remove, "rm") {
				p.removeContainer(t, ref)
			}
			_, err := p.api.ImageRemove(t.Context(), image, client.ImageRemoveOptions{})
			require.NoError(t, err)
			wakes(t, d, ref)
			require.Empty(t, p.installed(t, ref))
			content, _, _, _ := p.fake.File(ref.Name, "/box/workspace/work")
			require.Equal(t, "of a day", string(content))
		})
	}
}

// A box that has a snapshot has run, however little is in its volume.
func TestARefusalUndoesNoBoxWithASnapshot(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	rests(t, d, ref)
	p.removeContainer(t, ref)
	p.fake.Next(http.MethodPost, "/start$", noProgram)
	_, err := d.Create(t.Context(), request("layer"))
	wantClass(t, err, box.ClassUnavailable)
	require.ErrorContains(t, err, noProgram.Message)
	require.Contains(t, p.left(t, ref), "volume "+ref.Name)
	require.Len(t, p.images(t), 1)
}
