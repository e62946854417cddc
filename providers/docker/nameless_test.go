package docker_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/driver"
)

// until waits for a request to the engine.
func (p *place) until(t *testing.T, begins string) {
	t.Helper()
	await(t, "the engine was asked "+begins, func() bool {
		return slices.ContainsFunc(p.fake.Calls(), func(c string) bool { return strings.HasPrefix(c, begins) })
	})
}

func TestACommitWhoseCallerGoes(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	release := p.fake.HoldCommits()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := d.Suspend(ctx, ref); done <- err }()
	await(t, "the engine was asked", func() bool {
		return slices.ContainsFunc(p.fake.Calls(), func(c string) bool { return strings.HasPrefix(c, "POST /commit") })
	})
	cancel()
	wantClass(t, <-done, box.ClassCanceled)
	require.Equal(t, box.PhaseSuspended, phase(t, d, ref))
	go func() { _, err := d.Suspend(t.Context(), ref); done <- err }()
	await(t, "the engine was asked again", func() bool { return strings.Count(strings.Join(p.fake.Calls(), "\n"), "POST /commit") == 2 })
	release()
	require.NoError(t, <-done)
	await(t, "both commits are done, and one is kept", func() bool {
		rests(t, d, ref)
		return len(p.images(t)) == 1
	})
}

// A worker that lives on gives no name to what is left of a box that another one
// deleted meanwhile.
func TestABoxThatIsDeletedWhileItIsCommitted(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	release := p.fake.HoldCommits()
	done := make(chan error, 1)
	go func() { _, err := d.Suspend(t.Context(), ref); done <- err }()
	p.until(t, "POST /commit")
	_, err := p.driver(t, installation).Delete(t.Context(), ref)
	require.NoError(t, err)
	release()
	wantClass(t, <-done, box.ClassUnknown)
	require.Empty(t, p.images(t))
	require.Empty(t, p.left(t, ref))
}

// committing is a box whose worker died in a suspend, while the engine commits its
// layer until commits is called.
func committing(t *testing.T) (p *place, d *docker.Driver, ref box.Ref, commits func()) {
	t.Helper()
	p, d, ref = snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	commits = p.fake.HoldCommits()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := d.Suspend(ctx, ref); done <- err }()
	p.until(t, "POST /commit")
	cancel()
	wantClass(t, <-done, box.ClassCanceled)
	return p, d, ref, commits
}

// outlived is a box that was deleted while the engine still commits its layer, for a
// worker that died.
func outlived(t *testing.T) (p *place, d *docker.Driver, commits func()) {
	t.Helper()
	p, d, ref, commits := committing(t)
	seen, err := d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseGone, seen.Phase)
	require.Empty(t, p.images(t))
	return p, d, commits
}

func TestACommitThatEndsAfterItsBox(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"while a worker watches": true, "before one watches": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, d, commits := outlived(t)
			watch := func() {
				p.watch(t, d)
				p.until(t, "GET /events")
			}
			if before {
				watch()
			}
			commits()
			if !before {
				await(t, "the image is there", func() bool { return len(p.images(t)) == 1 })
				watch()
			}
			await(t, "it is removed", func() bool {
				return strings.Contains(strings.Join(p.fake.Ledger(), "\n"), "container commit ") && len(p.images(t)) == 0
			})
		})
	}
}

// It goes with its box, if that is deleted later, and with the next suspend.
func TestACommitThatEndsBeforeItsBox(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	p.install(ref, "a tool")
	p.commit(t, ref.Name, installation, "layer", "boxkeeper snapshot")
	rests(t, d, ref)
	images := p.images(t)
	require.Len(t, images, 1)
	require.Contains(t, images[0], ":snapshot-")
	p.commit(t, ref.Name, installation, "layer", "boxkeeper snapshot")
	require.Len(t, p.images(t), 2)
	seen, err := d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Contains(t, seen.Evidence, "of a commit that nobody waited for was removed")
	require.Empty(t, p.images(t))
}

// commit makes an image without a name, as a commit leaves it whose caller is gone.
func (p *place) commit(t *testing.T, of, installation, workspace, comment string) string {
	t.Helper()
	id := box.Identity{Installation: installation, Workspace: workspace, Epoch: 1}
	made, err := p.api.ContainerCommit(t.Context(), of, client.ContainerCommitOptions{Comment: comment, NoPause: true, Changes: []string{
		"LABEL " + prefix + "installation=" + installation, "LABEL " + prefix + "workspace=" + workspace, "LABEL " + prefix + "epoch=1",
		"LABEL " + prefix + "role=snapshot", "LABEL " + prefix + "snapshot=" + id.Name() + ":snapshot-1790000000000000000-abcdefgh",
	}})
	require.NoError(t, err)
	return made.ID
}

// leftBehind makes images of all sorts, and looks what a watcher that begins takes.
func leftBehind(t *testing.T, p *place, d *docker.Driver, ref box.Ref) {
	t.Helper()
	const ours = "boxkeeper snapshot"
	lost := made(t, d, "lost")
	p.put(t, lost.Name, "opt-tool", "a tool")
	rests(t, d, lost) // and then somebody removes all of it but the snapshot
	p.removeContainer(t, lost)
	_, err := p.api.VolumeRemove(t.Context(), lost.Name, client.VolumeRemoveOptions{})
	require.NoError(t, err)

	stay := map[string]string{
		"a box that is there":           p.commit(t, ref.Name, installation, "layer", ours),
		"another installation":          p.commit(t, ref.Name, "ffee0011", "gone", ours),
		"one that somebody made":        p.commit(t, ref.Name, installation, "gone", "mine"),
		"one that somebody gave a name": p.commit(t, ref.Name, installation, "gone", ours),
		"one that somebody uses":        p.commit(t, ref.Name, installation, "gone", ours),
	}
	_, err = p.api.ImageTag(t.Context(), client.ImageTagOptions{Source: stay["one that somebody gave a name"], Target: "boxkeeper-test:mine"})
	require.NoError(t, err)
	_, err = p.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: "theirs", Config: &container.Config{
		Image: stay["one that somebody uses"], Entrypoint: []string{standIn}, Labels: map[string]string{prefix + "installation": ""},
	}})
	require.NoError(t, err)
	left := p.commit(t, ref.Name, installation, "also-gone", ours)
	there := func(image string) bool {
		_, err := p.api.ImageInspect(t.Context(), image)
		return err == nil
	}
	require.True(t, there(left))

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Watch(ctx, func(driver.Listed) {}) }()
	await(t, "what no box needs is removed", func() bool { return !there(left) })
	p.commit(t, ref.Name, installation, "layer", ours) // an event of a box that is there
	stop()
	require.NoError(t, <-done)
	for what, image := range stay {
		require.True(t, there(image), what)
	}
	require.True(t, slices.ContainsFunc(p.images(t), func(name string) bool { return strings.HasPrefix(name, lost.Name+":snapshot-") }), "all that is left of a lost box")
}

func TestImagesThatNoBoxNeeds(t *testing.T) {
	t.Parallel()
	p, d, ref := snapshotting(t, docker.SuspendStop)
	leftBehind(t, p, d, ref)
}

func TestImagesThatNoBoxNeedsRealDocker(t *testing.T) {
	t.Parallel()
	p := realPlace(t, docker.SuspendStop)
	p.opts.Snapshot = true
	d := p.driver(t, installation)
	ref := made(t, d, "layer")
	t.Cleanup(func() {
		_, _ = p.api.ContainerRemove(context.WithoutCancel(t.Context()), "theirs", client.ContainerRemoveOptions{Force: true})
		_, _ = p.api.ImageRemove(context.WithoutCancel(t.Context()), "boxkeeper-test:mine", client.ImageRemoveOptions{})
	})
	leftBehind(t, p, d, ref)
}
