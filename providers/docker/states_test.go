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

// Every state that an engine has a word for.
func TestStates(t *testing.T) {
	t.Parallel()
	const later = "2099-01-01T00:00:00Z"
	for name, row := range map[string]struct {
		change func(s *container.State, files map[string][]byte)
		want   box.Phase
		resume box.Class // empty: it runs then
	}{
		"running": {func(*container.State, map[string][]byte) {}, box.PhaseRunning, ""},
		"restarting": {func(s *container.State, _ map[string][]byte) {
			s.Status, s.Running, s.Restarting = container.StateRestarting, true, true
		}, box.PhaseStarting, box.ClassUnavailable},
		"removing": {func(s *container.State, _ map[string][]byte) {
			s.Status, s.Running = container.StateRemoving, false
		}, box.PhaseFailed, box.ClassUnavailable},
		"dead": {func(s *container.State, _ map[string][]byte) {
			s.Status, s.Running, s.Dead = container.StateDead, false, true
		}, box.PhaseFailed, ""},
		"ended by itself": {func(s *container.State, _ map[string][]byte) {
			s.Status, s.Running, s.FinishedAt, s.ExitCode, s.OOMKilled = container.StateExited, false, later, 137, true
		}, box.PhaseFailed, ""},
		"ended, with times that are none": {func(s *container.State, _ map[string][]byte) {
			s.Status, s.Running, s.StartedAt, s.FinishedAt = container.StateExited, false, later, later
		}, box.PhaseUnknown, ""},
		"ended, with an intent about an earlier run": {func(s *container.State, files map[string][]byte) {
			s.Status, s.Running, s.FinishedAt = container.StateExited, false, later
			files["/.boxkeeper/intent"] = []byte(`{"suspend":true,"kind":"stop","life":"2026-01-01T00:00:00Z"}`)
		}, box.PhaseFailed, ""},
		"ended, with an intent that is none": {func(s *container.State, files map[string][]byte) {
			s.Status, s.Running, s.FinishedAt = container.StateExited, false, later
			files["/.boxkeeper/intent"] = []byte(`{`)
		}, box.PhaseFailed, ""},
		"never started, refused": {func(s *container.State, _ map[string][]byte) {
			*s = container.State{Status: container.StateCreated, ExitCode: 128, Error: "port is already allocated", StartedAt: "0001-01-01T00:00:00Z"}
		}, box.PhaseFailed, ""},
		"never started": {func(s *container.State, _ map[string][]byte) {
			*s = container.State{Status: container.StateCreated, StartedAt: "0001-01-01T00:00:00Z"}
		}, box.PhaseStarting, ""},
		"a word of a later version": {func(s *container.State, _ map[string][]byte) {
			s.Status, s.Running = "hibernating", false
		}, box.PhaseUnknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newFake(t, docker.SuspendStop)
			d := p.driver(t, installation)
			ref := made(t, d, "state")
			p.fake.Do(ref.Name, row.change)
			require.Equal(t, row.want, phase(t, d, ref))
			seen, err := d.Resume(t.Context(), ref, start())
			if row.resume != "" {
				wantClass(t, err, row.resume)
			} else {
				require.NoError(t, err)
				require.Equal(t, box.PhaseRunning, seen.Phase)
			}
			_, err = d.Delete(t.Context(), ref)
			require.NoError(t, err)
			require.Empty(t, p.left(t, ref))
		})
	}
}

func TestDeepen(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendPause)
	d := p.driver(t, installation)
	ref := made(t, d, "deepen")
	_, err := d.Deepen(t.Context(), ref)
	wantClass(t, err, box.ClassFailedPrecondition)
	require.Equal(t, box.PhaseRunning, phase(t, d, ref), "nothing was done to a box that runs")

	first := p.inspect(t, ref.Name).State.StartedAt
	seen, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.Yes, seen.MemoryKept)
	require.NotEmpty(t, seen.Evidence)
	for range 5 {
		seen, err = d.Deepen(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, box.PhaseSuspended, seen.Phase)
		require.Equal(t, box.No, seen.MemoryKept)
	}
	require.Equal(t, first, p.inspect(t, ref.Name).State.StartedAt, "it was never started again")
	seen, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.No, seen.MemoryKept, "a suspend brings no memory back")
	_, err = d.Resume(t.Context(), ref, start())
	require.NoError(t, err)

	// One that was cut off between the thaw and the end is finished.
	_, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	release := p.fake.HoldStops()
	before := len(p.fake.Calls())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := d.Deepen(ctx, ref); done <- err }()
	await(t, "the engine was asked", func() bool {
		return slices.ContainsFunc(p.fake.Calls()[before:], func(c string) bool { return strings.Contains(c, "/stop?t=1") })
	})
	cancel()
	wantClass(t, <-done, box.ClassCanceled)
	_, err = p.api.ContainerUnpause(t.Context(), ref.Name, client.ContainerUnpauseOptions{})
	require.NoError(t, err)
	require.Equal(t, box.PhaseRunning, phase(t, d, ref))
	before = len(p.fake.Calls())
	go func() { _, err := d.Deepen(t.Context(), ref); done <- err }()
	await(t, "the engine was asked again", func() bool {
		return slices.ContainsFunc(p.fake.Calls()[before:], func(c string) bool { return strings.Contains(c, "/stop?t=1") })
	})
	release()
	require.NoError(t, <-done)
	seen, err = d.Deepen(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.No, seen.MemoryKept)

	p.kill2failed(t, d, ref)
	_, err = d.Deepen(t.Context(), ref)
	wantClass(t, err, box.ClassFailedPrecondition)
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Deepen(t.Context(), ref)
	wantClass(t, err, box.ClassNotFound)
}

// kill2failed wakes a box and kills it.
func (p *place) kill2failed(t *testing.T, d *docker.Driver, ref box.Ref) {
	t.Helper()
	_, err := d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	p.kill(t, ref.Name)
	require.Equal(t, box.PhaseFailed, phase(t, d, ref))
}

// What a box did to its own files is in nobody's way.
func TestAnIntentThatCannotBeRead(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	d := p.driver(t, installation)
	ref := made(t, d, "unread")
	_, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	unread := func() { p.fake.Next("GET", "/archive$", fault500) }
	unread()
	_, err = d.Observe(t.Context(), ref)
	wantClass(t, err, box.ClassUnavailable)
	unread()
	found, err := d.List(t.Context(), installation)
	require.NoError(t, err)
	require.Equal(t, box.PhaseUnknown, found[0].Observation.Phase, "neither ended nor suspended")
	unread()
	_, err = d.Endpoint(t.Context(), ref)
	wantClass(t, err, box.ClassUnknown)
	unread()
	seen, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseSuspended, seen.Phase)
	unread()
	_, err = d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	p.kill(t, ref.Name)
	unread()
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Empty(t, p.left(t, ref))
}

// A box that was killed while it was paused has its files and no memory.
func TestKilledWhilePaused(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendPause)
	d := p.driver(t, installation)
	ref := made(t, d, "paused")
	_, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	p.kill(t, ref.Name)
	seen, err := d.Observe(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseSuspended, seen.Phase)
	require.Equal(t, box.No, seen.MemoryKept)
	told := p.firstTold(t, d)
	require.Equal(t, ref.Name, told.Observation.Ref.Name)
	require.Equal(t, box.No, told.Observation.MemoryKept)
	// The pause of an earlier time in the same life says nothing about an end now.
	ref = made(t, d, "thawed")
	_, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	p.kill(t, ref.Name)
	require.Equal(t, box.PhaseFailed, phase(t, d, ref))
}

// firstTold is the first that a watcher is told.
func (p *place) firstTold(t *testing.T, d *docker.Driver) driver.Listed {
	t.Helper()
	return <-p.watch(t, d)
}

// watch returns what a watcher is told until the test ends.
func (p *place) watch(t *testing.T, d *docker.Driver) <-chan driver.Listed {
	t.Helper()
	told := make(chan driver.Listed, 100)
	go func() { _ = d.Watch(t.Context(), func(one driver.Listed) { told <- one }) }()
	return told
}

// A pause that the engine refuses leaves a running box a running box.
func TestAPauseThatFails(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendPause)
	d := p.driver(t, installation)
	ref := made(t, d, "refused")
	p.fake.Next("POST", "/pause$", fault500)
	_, err := d.Suspend(t.Context(), ref)
	wantClass(t, err, box.ClassUnavailable)
	p.kill(t, ref.Name)
	require.Equal(t, box.PhaseFailed, phase(t, d, ref), "its end was not ours")

	ref = made(t, d, "lost")
	p.fake.Next("POST", "/pause$", faultLost)
	seen, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err, "the state says that it is paused")
	require.Equal(t, box.Yes, seen.MemoryKept)
	p.fake.Next("POST", "/unpause$", faultLost)
	_, err = d.Resume(t.Context(), ref, start())
	require.NoError(t, err, "the state says that it runs")
	// The pause of another worker, whose call was cut off before the engine heard it.
	p.fake.Next("POST", "/pause$", faultCut)
	_, err = d.Suspend(t.Context(), ref)
	wantClass(t, err, box.ClassUnavailable)
	_, err = d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
}

// Nothing is sent to a paused box: it would take the connection and not answer.
func TestAPausedBoxIsNotAsked(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendPause)
	d := p.driver(t, installation)
	ref := made(t, d, "hangs")
	at, err := d.Endpoint(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.True(t, answers(t.Context(), at.URL), "it takes connections")
	_, err = d.Endpoint(t.Context(), ref)
	wantClass(t, err, box.ClassFailedPrecondition)
	_, err = d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	again, err := d.Endpoint(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, at, again, "a pause keeps the port")
	_, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Deepen(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	again, err = d.Endpoint(t.Context(), ref)
	require.NoError(t, err)
	require.NotEqual(t, at, again, "a stop does not")
}
