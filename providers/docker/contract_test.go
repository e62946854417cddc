package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/providers/docker"
)

// kind is what the plain client makes of an answer.
func kind(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errdefs.IsNotFound(err):
		return "404"
	case errdefs.IsConflict(err):
		return "409"
	case errdefs.IsInvalidArgument(err):
		return "400"
	case errdefs.IsInternal(err):
		return "500"
	}
	return err.Error()
}

// contract makes the same calls to a fake and to a real engine, and holds the
// answers against what a real one of 20.10.24 said: what package docker counts on
// is here.
func contract(t *testing.T, p *place) {
	t.Helper()
	const name, vol = "bk-contract", "bk-contract-volume"
	ctx, api := t.Context(), p.api
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_, _ = api.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true})
		_, _ = api.VolumeRemove(ctx, vol, client.VolumeRemoveOptions{})
	})
	port := network.PortMap{inside: {{HostIP: localhost}}}
	made := func(name, image string, remove bool) error {
		exposed := network.PortSet{}
		if !remove {
			exposed[inside] = struct{}{}
		}
		_, err := api.ContainerCreate(ctx, client.ContainerCreateOptions{
			Name: name, Config: &container.Config{Image: image, Entrypoint: []string{standIn}, Labels: map[string]string{"of": "contract"}, ExposedPorts: exposed},
			HostConfig: &container.HostConfig{AutoRemove: remove, PortBindings: port, Mounts: []mount.Mount{{Type: mount.TypeVolume, Source: vol, Target: "/v"}}},
		})
		return err
	}
	state := func() *container.State { return p.inspect(t, name).State }
	do := func(what string) string {
		timeout := 5
		var err error
		switch what {
		case "start":
			_, err = api.ContainerStart(ctx, name, client.ContainerStartOptions{})
		case "stop":
			_, err = api.ContainerStop(ctx, name, client.ContainerStopOptions{Timeout: &timeout})
		case "pause":
			_, err = api.ContainerPause(ctx, name, client.ContainerPauseOptions{})
		case "unpause":
			_, err = api.ContainerUnpause(ctx, name, client.ContainerUnpauseOptions{})
		case "remove":
			_, err = api.ContainerRemove(ctx, name, client.ContainerRemoveOptions{RemoveVolumes: true})
		case "kill":
			_, err = api.ContainerKill(ctx, name, client.ContainerKillOptions{Signal: "KILL"})
		}
		return kind(err)
	}
	steps := func(want string, all ...string) {
		t.Helper()
		for _, what := range all {
			require.Equal(t, want, do(what), what)
		}
	}

	// Volumes: made again, the one that is there is answered, with its labels.
	for _, label := range []string{"first", "second"} {
		answer, err := api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: vol, Labels: map[string]string{"of": label}})
		require.NoError(t, err)
		require.Equal(t, "first", answer.Volume.Labels["of"])
	}
	none, err := api.VolumeList(ctx, client.VolumeListOptions{Filters: make(client.Filters).Add("label", "of=first", "of=second")})
	require.NoError(t, err)
	require.Empty(t, none.Items, "all labels must be there")
	require.NotNil(t, none.Items, "an empty list is not null")
	nobody, err := api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", "of=first")})
	require.NoError(t, err)
	require.NotNil(t, nobody.Items, "an empty list is not null")

	// Creation.
	require.Equal(t, "404", kind(made(name, "bk-no-such-image:1", false)))
	require.Equal(t, "400", kind(made("no good", p.opts.DefaultImage, false)))
	require.NoError(t, made(name, p.opts.DefaultImage, false))
	require.Equal(t, "409", kind(made(name, p.opts.DefaultImage, false)))
	require.Equal(t, container.StateCreated, state().Status)
	require.Equal(t, "0001-01-01T00:00:00Z", state().StartedAt)
	steps("409", "pause", "kill")
	steps("500", "unpause")
	steps("ok", "stop")
	require.Equal(t, container.StateCreated, state().Status, "a stop changes nothing")

	// Files, in each state.
	files := func() {
		t.Helper()
		var packed bytes.Buffer
		out := tar.NewWriter(&packed)
		require.NoError(t, out.WriteHeader(&tar.Header{Name: "own/", Mode: 0o755, Typeflag: tar.TypeDir}))
		require.NoError(t, out.WriteHeader(&tar.Header{Name: "own/file", Mode: 0o600, Uid: 5, Gid: 7, Size: 4}))
		_, err := out.Write([]byte("text"))
		require.NoError(t, err)
		require.NoError(t, out.Close())
		_, err = api.CopyToContainer(ctx, name, client.CopyToContainerOptions{DestinationPath: "/", Content: &packed, AllowOverwriteDirWithFile: true})
		require.NoError(t, err)
		answer, err := api.CopyFromContainer(ctx, name, client.CopyFromContainerOptions{SourcePath: "/own/file"})
		require.NoError(t, err)
		in := tar.NewReader(answer.Content)
		_, err = in.Next()
		require.NoError(t, err)
		text, err := io.ReadAll(in)
		require.NoError(t, err)
		require.NoError(t, answer.Content.Close())
		require.Equal(t, "text", string(text))
		_, err = api.CopyFromContainer(ctx, name, client.CopyFromContainerOptions{SourcePath: "/own/none"})
		require.Equal(t, "404", kind(err))
	}
	files()

	// A life.
	steps("ok", "start", "start")
	files()
	first := p.inspect(t, name).NetworkSettings.Ports[inside]
	require.NotEmpty(t, first)
	require.Equal(t, container.StateRunning, state().Status)
	steps("500", "unpause")
	steps("ok", "pause")
	steps("409", "pause", "remove", "start")
	files()
	require.Equal(t, container.StatePaused, state().Status)
	require.True(t, state().Running && state().Paused)
	steps("ok", "unpause")
	require.Equal(t, first, p.inspect(t, name).NetworkSettings.Ports[inside], "a pause keeps the port")
	steps("409", "remove")
	id, began := p.inspect(t, name).ID, state().StartedAt
	steps("ok", "pause", "stop", "stop")
	require.Equal(t, container.StateExited, state().Status)
	require.Equal(t, began, state().StartedAt)
	require.Empty(t, p.inspect(t, name).NetworkSettings.Ports[inside])
	files()
	steps("409", "pause")
	steps("500", "unpause")
	steps("ok", "start")
	require.Equal(t, id, p.inspect(t, name).ID)
	require.NotEqual(t, began, state().StartedAt)
	require.NotEqual(t, first, p.inspect(t, name).NetworkSettings.Ports[inside], "a stop does not")

	// Layers as images: what is in a volume is in none of them.
	steps("ok", "stop")
	images(t, p, name)
	steps("ok", "start")

	// Absence.
	_, err = api.VolumeRemove(ctx, vol, client.VolumeRemoveOptions{})
	require.Equal(t, "409", kind(err))
	steps("ok", "kill")
	await(t, "it ends", func() bool { return !state().Running })
	require.Equal(t, 137, state().ExitCode)
	steps("ok", "remove")
	steps("404", "remove", "start", "stop", "pause", "unpause", "kill")
	_, err = api.VolumeInspect(ctx, vol, client.VolumeInspectOptions{})
	require.NoError(t, err, "a named volume stays")
	_, err = api.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	require.Equal(t, "404", kind(err))
	list, err := api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", "of=contract")})
	require.NoError(t, err)
	require.Empty(t, list.Items)

	// One that removes itself is gone after a stop.
	require.NoError(t, made(name, p.opts.DefaultImage, true))
	steps("ok", "start")
	require.Empty(t, p.inspect(t, name).NetworkSettings.Ports[inside], "what is not exposed is not published")
	steps("ok", "stop")
	await(t, "it is gone", func() bool {
		_, err := api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
		return errdefs.IsNotFound(err)
	})
	_, err = api.VolumeRemove(ctx, vol, client.VolumeRemoveOptions{})
	require.NoError(t, err)
	_, err = api.VolumeRemove(ctx, vol, client.VolumeRemoveOptions{})
	require.Equal(t, "404", kind(err))
	_, err = api.ImageInspect(ctx, "bk-no-such-image:1")
	require.Equal(t, "404", kind(err))
	before, err := api.Info(ctx, client.InfoOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, before.Info.ID)
	_, err = time.Parse(time.RFC3339Nano, before.Info.SystemTime)
	require.NoError(t, err)
	data, err := api.NetworkInspect(ctx, "none", client.NetworkInspectOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, data.Network.ID)
}

// images makes images of a container that is stopped and has a file /own/file.
func images(t *testing.T, p *place, name string) {
	t.Helper()
	const first, second = "bk-contract:snapshot-1", "bk-contract:snapshot-2"
	ctx, api := t.Context(), p.api
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		for _, one := range []string{name + "-above"} {
			_, _ = api.ContainerRemove(ctx, one, client.ContainerRemoveOptions{Force: true})
		}
		for _, one := range []string{second, first} {
			_, _ = api.ImageRemove(ctx, one, client.ImageRemoveOptions{})
		}
	})
	commit := func(of, as string) string {
		_, err := api.ContainerCommit(ctx, of, client.ContainerCommitOptions{Reference: as, Comment: "contract", NoPause: true, Changes: []string{"LABEL role=" + as[len(as)-1:]}})
		return kind(err)
	}
	remove := func(name string) string {
		_, err := api.ImageRemove(ctx, name, client.ImageRemoveOptions{})
		return kind(err)
	}
	listed := func(label string) (out []string) {
		found, err := api.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).Add("label", "of=contract", label)})
		require.NoError(t, err)
		for _, one := range found.Items {
			require.Equal(t, "contract", one.Labels["of"])
			out = append(out, one.RepoTags...)
		}
		return out
	}
	changes, err := api.ContainerDiff(ctx, name, client.ContainerDiffOptions{})
	require.NoError(t, err)
	paths := map[string]bool{}
	for _, one := range changes.Changes {
		paths[one.Path] = true
	}
	require.True(t, paths["/own/file"] && paths["/v"] && !paths[standIn], "%v", paths)
	sized, err := api.ContainerInspect(ctx, name, client.ContainerInspectOptions{Size: true})
	require.NoError(t, err)
	require.GreaterOrEqual(t, *sized.Container.SizeRw, int64(4))
	require.Nil(t, p.inspect(t, name).SizeRw, "it is counted for whoever asks")

	require.Equal(t, "404", commit("bk-no-such-container", first))
	require.Equal(t, "ok", commit(name, first))
	require.Equal(t, []string{first}, listed("role=1"), "labels of the container, and what the change says")
	_, err = api.ContainerCreate(ctx, client.ContainerCreateOptions{Name: name + "-above", Config: &container.Config{
		Image: first, Entrypoint: []string{standIn}, Labels: map[string]string{"role": "above"},
	}})
	require.NoError(t, err)
	above := p.inspect(t, name+"-above")
	require.Equal(t, "above", above.Config.Labels["role"], "its own labels count")
	require.Equal(t, "contract", above.Config.Labels["of"], "and it inherits the others")
	p.put(t, name+"-above", "own/more", "text") // an empty layer is none
	answer, err := api.CopyFromContainer(ctx, name+"-above", client.CopyFromContainerOptions{SourcePath: "/own/file"})
	require.NoError(t, err)
	require.NoError(t, answer.Content.Close())
	require.Equal(t, "ok", commit(name+"-above", second))
	below, err := api.ImageInspect(ctx, first)
	require.NoError(t, err)
	top, err := api.ImageInspect(ctx, second)
	require.NoError(t, err)
	require.Equal(t, below.ID, above.Image)
	require.Equal(t, below.RootFS.Layers, top.RootFS.Layers[:len(below.RootFS.Layers)])
	require.Len(t, top.RootFS.Layers, len(below.RootFS.Layers)+1)
	history, err := api.ImageHistory(ctx, second)
	require.NoError(t, err)
	require.Equal(t, []string{"contract", "contract"}, []string{history.Items[0].Comment, history.Items[1].Comment})
	require.GreaterOrEqual(t, history.Items[1].Size, int64(4))

	// Nothing is forced: used, it stays; with another name, or with an image above
	// it, the name goes and the image stays.
	require.Equal(t, "409", remove(first), "a container is made of it")
	_, err = api.ContainerRemove(ctx, name+"-above", client.ContainerRemoveOptions{})
	require.NoError(t, err)
	require.Equal(t, "ok", remove(first))
	require.Equal(t, "404", remove(first))
	_, err = api.ImageInspect(ctx, below.ID)
	require.NoError(t, err, "an image stands on it")
	require.Equal(t, "ok", remove(second))
	_, err = api.ImageInspect(ctx, top.ID)
	require.Equal(t, "404", kind(err))
	require.Empty(t, listed("role=2"))
	_, err = api.ImageRemove(ctx, below.ID, client.ImageRemoveOptions{})
	require.NoError(t, err)

	// Without a name, which comes later or never.
	made, err := api.ContainerCommit(ctx, name, client.ContainerCommitOptions{Comment: "contract", NoPause: true, Changes: []string{"LABEL role=3", "LABEL name=" + first}})
	require.NoError(t, err)
	if none := listed("role=3"); len(none) > 0 {
		require.Equal(t, []string{"<none>:<none>"}, none)
	}
	require.Equal(t, []string(nil), listed("role=4"))
	plain, err := api.ImageInspect(ctx, made.ID)
	require.NoError(t, err)
	require.Equal(t, "contract", plain.Comment)
	require.Empty(t, plain.RepoTags)
	require.Equal(t, first, plain.Config.Labels["name"])
	_, err = api.ImageTag(ctx, client.ImageTagOptions{Source: made.ID, Target: first})
	require.NoError(t, err)
	require.Equal(t, []string{first}, listed("role=3"))
	require.Equal(t, "ok", remove(made.ID), "its one name does not keep it")
	require.Equal(t, []string(nil), listed("role=3"))
	made, err = api.ContainerCommit(ctx, name, client.ContainerCommitOptions{Comment: "contract", NoPause: true, Changes: []string{"LABEL role=3"}})
	require.NoError(t, err)
	require.Equal(t, "ok", remove(made.ID))
	require.Equal(t, "404", remove(made.ID))

	usage, err := api.DiskUsage(ctx, client.DiskUsageOptions{Volumes: true, Verbose: true})
	require.NoError(t, err)
	counted := false
	for _, v := range usage.Volumes.Items {
		counted = counted || v.Name == "bk-contract-volume" && v.UsageData != nil && v.UsageData.Size >= 0
	}
	require.True(t, counted)
}

func TestTheFakeKeepsTheContract(t *testing.T) {
	t.Parallel()
	contract(t, newFake(t, docker.SuspendStop))
}

func TestTheContractIsThatOfRealDocker(t *testing.T) {
	t.Parallel()
	contract(t, realPlace(t, docker.SuspendStop))
}

// An engine refuses what is too old or too new for it, in so many words.
func TestTheFakeRefusesVersions(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ asked, api, least, want string }{
		{"1.41", "1.52", "1.44", "400"}, {"1.57", "1.52", "1.44", "400"}, {"1.44", "1.52", "1.44", "ok"}, {"1.52", "1.52", "1.44", "ok"},
	} {
		p := fakeOf(t, docker.SuspendStop, row.api, row.least)
		pinned, err := client.New(client.WithHost(p.opts.Host), client.WithAPIVersion(row.asked))
		require.NoError(t, err)
		_, err = pinned.Info(t.Context(), client.InfoOptions{})
		require.Equal(t, row.want, kind(err), "%+v", row)
	}
}
