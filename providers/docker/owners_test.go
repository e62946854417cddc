package docker_test

import (
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/docker/dockertest"
)

var (
	fault500  = dockertest.Fault{Status: 500, Message: "something went wrong"}
	faultLost = dockertest.Fault{Lose: true}
	faultCut  = dockertest.Fault{Cut: true}
)

func labels(installation, workspace, epoch string) map[string]string {
	return map[string]string{
		prefix + "installation": installation, prefix + "workspace": workspace, prefix + "epoch": epoch, prefix + "role": "box",
	}
}

// An engine is shared: with the containers of agent-servers, with those of other
// installations, and with copies that people made of ours.
func TestOtherOwnersAreLeftAlone(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	d := p.driver(t, installation)
	ref := made(t, d, "mine")
	own := p.inspect(t, ref.Name).Config.Labels
	others := []string{
		p.run(t, "agent-server-conversation-1", container.Config{Labels: map[string]string{"ai.openhands.runtime-owner": "x", "ai.openhands.conversation-id": "1"}}),
		p.run(t, "oh-agent-server-2", container.Config{Labels: map[string]string{"sandbox_spec_id": "x"}}),
		p.run(t, "openhands-runtime-3", container.Config{}),
		p.run(t, "a-copy-of-mine", container.Config{Labels: own}),
		p.run(t, "bk-ffee0011-mine-1", container.Config{Labels: labels("ffee0011", "mine", "1")}),
		p.run(t, "bk-"+installation+"-liar-1", container.Config{Labels: labels("ffee0011", "liar", "1")}),
		p.run(t, "bk-"+installation+"-half-1", container.Config{Labels: map[string]string{prefix + "installation": installation}}),
		p.run(t, "bk-"+installation+"-odd-1", container.Config{Labels: labels(installation, "odd", "01")}),
	}
	_, err := p.api.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: "a-backup", Labels: map[string]string{
		prefix + "installation": installation, prefix + "workspace": "mine", prefix + "epoch": "1", prefix + "role": "data",
	}})
	require.NoError(t, err)
	before := map[string]string{}
	for _, id := range others {
		before[id] = p.inspect(t, id).State.StartedAt
	}
	told := p.watch(t, d)
	found, err := d.List(t.Context(), installation)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, ref, found[0].Observation.Ref)
	for _, workspace := range []string{"liar", "half", "odd"} {
		_, err := d.Create(t.Context(), request(workspace))
		wantClass(t, err, box.ClassAlreadyExists)
		theirs := box.Ref{ID: ref.ID, Name: request(workspace).Identity.Name(), Epoch: 1, Fingerprint: ref.Fingerprint}
		_, err = d.Suspend(t.Context(), theirs)
		wantClass(t, err, box.ClassNotFound)
		_, err = d.Delete(t.Context(), theirs)
		require.NoError(t, err)
	}
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	p.kill(t, "a-copy-of-mine")
	p.kill(t, "bk-ffee0011-mine-1")
	for _, id := range others {
		require.Equal(t, before[id], p.inspect(t, id).State.StartedAt)
	}
	_, err = p.api.VolumeInspect(t.Context(), "a-backup", client.VolumeInspectOptions{})
	require.NoError(t, err)
	last := made(t, d, "last")
	p.kill(t, last.Name)
	require.Equal(t, last.Name, (<-told).Observation.Ref.Name, "of the others nothing is told")
}

// A box under another name must not get a second container on its volume.
func TestARenamedBox(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	d := p.driver(t, installation)
	ref := made(t, d, "renamed")
	_, err := p.api.ContainerRename(t.Context(), ref.ID, client.ContainerRenameOptions{NewName: "by-hand"})
	require.NoError(t, err)
	for what, call := range map[string]func() error{
		"create":   func() error { _, err := d.Create(t.Context(), request("renamed")); return err },
		"observe":  func() error { _, err := d.Observe(t.Context(), ref); return err },
		"suspend":  func() error { _, err := d.Suspend(t.Context(), ref); return err },
		"resume":   func() error { _, err := d.Resume(t.Context(), ref, start()); return err },
		"endpoint": func() error { _, err := d.Endpoint(t.Context(), ref); return err },
		"delete":   func() error { _, err := d.Delete(t.Context(), ref); return err },
	} {
		err := call()
		t.Log(what)
		wantClass(t, err, box.ClassFailedPrecondition)
		require.Contains(t, err.Error(), "rename it back")
	}
	_, err = p.api.ContainerRename(t.Context(), ref.ID, client.ContainerRenameOptions{NewName: ref.Name})
	require.NoError(t, err)
	require.Equal(t, box.PhaseRunning, phase(t, d, ref))
}

// "docker container prune" removes every box that is suspended by a stop.
func TestAContainerThatWasRemoved(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	p.fake.AddImage("other:1", dockertest.Image{Architecture: "amd64"})
	d := p.driver(t, installation)
	asked := request("pruned")
	asked.Image, asked.Labels = "other:1", map[string]string{"team": "blue"}
	seen, err := d.Create(t.Context(), asked)
	require.NoError(t, err)
	ref := seen.Ref
	told := p.watch(t, d)
	await(t, "the watcher listens", func() bool {
		return strings.Contains(strings.Join(p.fake.Calls(), "\n"), "GET /events")
	})
	_, err = p.api.ContainerRemove(t.Context(), ref.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	require.NoError(t, err)
	require.Equal(t, box.PhaseFailed, (<-told).Observation.Phase)
	seen, err = d.Observe(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseFailed, seen.Phase)
	require.Contains(t, seen.Evidence, "its files are in volume "+ref.Name)
	found, err := d.List(t.Context(), installation)
	require.NoError(t, err)
	require.Len(t, found, 1)
	_, err = d.Endpoint(t.Context(), ref)
	wantClass(t, err, box.ClassFailedPrecondition)
	seen, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseSuspended, seen.Phase, "nothing runs, and its files are there")
	require.Equal(t, box.No, seen.MemoryKept)
	require.Contains(t, seen.Evidence, "its container was removed")
	adopted, err := d.Adopt(t.Context(), ref.Name, asked.Identity)
	require.NoError(t, err)
	require.Equal(t, box.PhaseFailed, adopted.Phase)

	seen, err = d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	require.NotEqual(t, ref.ID, seen.Ref.ID)
	again := p.inspect(t, ref.Name)
	require.Equal(t, "other:1", again.Config.Image)
	require.Equal(t, "blue", again.Config.Labels[prefix+"label.team"])
	require.Equal(t, ref.Name, again.HostConfig.Mounts[0].Source)
	require.Equal(t, box.PhaseRunning, phase(t, d, ref), "the old ref leads to it")

	// Whoever uses the volume is in the way of a deletion, and is not touched.
	_, err = p.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: "reader", Config: &container.Config{Image: "other:1"}, HostConfig: &container.HostConfig{Mounts: again.HostConfig.Mounts}})
	require.NoError(t, err)
	for range 2 {
		_, err = d.Delete(t.Context(), ref)
		wantClass(t, err, box.ClassUnavailable)
		require.Contains(t, err.Error(), "used by another container")
		require.Equal(t, box.PhaseFailed, phase(t, d, ref))
	}
	_, err = p.api.ContainerRemove(t.Context(), "reader", client.ContainerRemoveOptions{})
	require.NoError(t, err)
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Empty(t, p.left(t, ref))
}

// A volume of our name that is somebody's is not filled.
func TestAForeignVolume(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	d := p.driver(t, installation)
	_, err := p.api.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: request("taken").Identity.Name()})
	require.NoError(t, err)
	// One that is no older than the call may be ours, badly told.
	await(t, "it is older than the call", func() bool {
		_, err = d.Create(t.Context(), request("taken"))
		require.ErrorContains(t, err, "volume")
		return box.ClassOf(err) != box.ClassUnknown
	})
	wantClass(t, err, box.ClassAlreadyExists)
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	d := p.driver(t, installation)
	stray := p.run(t, "stray", container.Config{})
	as := box.Identity{Installation: installation, Workspace: "found", Epoch: 1}
	_, err := d.Adopt(t.Context(), stray, as)
	wantClass(t, err, box.ClassFailedPrecondition)
	require.Contains(t, err.Error(), "create a box and copy what you need")
	ref := made(t, d, "found")
	for _, id := range []string{ref.ID, ref.ID[:12], ref.Name} {
		seen, err := d.Adopt(t.Context(), id, as)
		require.NoError(t, err)
		require.Equal(t, ref, seen.Ref)
	}
	// What somebody started from an image of the box has the labels, and is no box.
	copied := p.run(t, "copied", container.Config{Labels: p.inspect(t, ref.Name).Config.Labels})
	_, err = d.Adopt(t.Context(), copied, as)
	wantClass(t, err, box.ClassFailedPrecondition)
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Adopt(t.Context(), copied, as)
	wantClass(t, err, box.ClassFailedPrecondition)
}

func TestWatchTellsWhatPeopleDo(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendPause)
	d := p.driver(t, installation)
	ref := made(t, d, "hands")
	told := p.watch(t, d)
	await(t, "the watcher listens", func() bool {
		return strings.Contains(strings.Join(p.fake.Calls(), "\n"), "GET /events")
	})
	_, err := p.api.ContainerPause(t.Context(), ref.ID, client.ContainerPauseOptions{})
	require.NoError(t, err)
	require.Equal(t, box.PhaseSuspended, (<-told).Observation.Phase)
	_, err = d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	_, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	_, err = p.api.ContainerUnpause(t.Context(), ref.ID, client.ContainerUnpauseOptions{})
	require.NoError(t, err)
	for (<-told).Observation.Phase != box.PhaseRunning { // the pause may be told twice
		continue
	}
}
