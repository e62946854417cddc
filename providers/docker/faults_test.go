package docker_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/docker/dockertest"
	"github.com/openhands/boxkeeper/providers/driver"
)

// The client keeps the version that it agreed on. An engine that was replaced may
// take it no more.
func TestTheEngineIsReplacedByANewerOne(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	d := p.driver(t, installation)
	ref := made(t, d, "replaced")
	p.fake.SetAPI("1.52", "1.44")
	require.Equal(t, box.PhaseRunning, phase(t, d, ref))
	p.fake.SetAPI("1.41", "1.12")
	require.Equal(t, box.PhaseRunning, phase(t, d, ref))
}

// An engine of 20.10 whose data directory is not mounted has the same id and no
// containers.
func TestAnEmptyDataDirectoryProvesNothing(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	d := p.driver(t, installation)
	ref := made(t, d, "mounted")
	p.fake.LoseData()
	_, err := d.Observe(t.Context(), ref)
	wantClass(t, err, box.ClassFailedPrecondition)
	_, err = d.Delete(t.Context(), ref)
	wantClass(t, err, box.ClassFailedPrecondition)
	print, err := d.Fingerprint(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, ref.Fingerprint, print)
}

func TestAnEngineThatDoesNotAnswerProvesNothing(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	d := p.driver(t, installation)
	ref := made(t, d, "down")
	watched := make(chan error, 1)
	go func() { watched <- d.Watch(t.Context(), func(driver.Listed) {}) }()
	await(t, "the watcher listens", func() bool {
		return slices.ContainsFunc(p.fake.Calls(), func(c string) bool { return strings.HasPrefix(c, "GET /events") })
	})
	p.fake.Down(true)
	wantClass(t, <-watched, box.ClassUnavailable)
	for what, call := range map[string]func() error{
		"observe": func() error { _, err := d.Observe(t.Context(), ref); return err },
		"delete":  func() error { _, err := d.Delete(t.Context(), ref); return err },
		"suspend": func() error { _, err := d.Suspend(t.Context(), ref); return err },
		"list":    func() error { _, err := d.List(t.Context(), installation); return err },
		"create":  func() error { _, err := d.Create(t.Context(), request("down")); return err },
	} {
		t.Log(what)
		wantClass(t, call(), box.ClassUnavailable)
	}
	p.fake.Down(false)
	require.Equal(t, box.PhaseRunning, phase(t, d, ref))
}

// A call whose answer is lost is done, and is done once when it is repeated.
func TestAnswersThatAreLost(t *testing.T) {
	t.Parallel()
	lost := dockertest.Fault{Lose: true}
	cut := dockertest.Fault{Cut: true}
	broken := dockertest.Fault{Status: http.StatusInternalServerError, Message: "something went wrong"}
	for name, row := range map[string]struct {
		method, path string
		fault        dockertest.Fault
	}{
		"the volume was made":        {http.MethodPost, "/volumes/create", lost},
		"the container was made":     {http.MethodPost, "/containers/create", lost},
		"the container was not made": {http.MethodPost, "/containers/create", cut},
		"boxd was copied":            {http.MethodPut, "/archive", lost},
		"boxd was not copied":        {http.MethodPut, "/archive", broken},
		"it was started":             {http.MethodPost, "/start", lost},
		"it was not started":         {http.MethodPost, "/start", broken},
		"a list broke":               {http.MethodGet, "/containers/json", broken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newFake(t, docker.SuspendStop)
			d := p.driver(t, installation)
			p.fake.Next(row.method, row.path, row.fault)
			_, err := d.Create(t.Context(), request("lost"))
			wantClass(t, err, box.ClassUnavailable)
			ref := made(t, p.driver(t, installation), "lost")
			require.Equal(t, box.PhaseRunning, phase(t, d, ref))
			require.Equal(t, []string{"container /" + ref.Name, "volume " + ref.Name}, p.left(t, ref))
		})
	}
	for name, row := range map[string]struct {
		method, path string
		fault        dockertest.Fault
	}{
		"the mark was made":              {http.MethodPost, "/volumes/create", lost},
		"the container was removed":      {http.MethodDelete, "/containers/", lost},
		"the container was not removed":  {http.MethodDelete, "/containers/", broken},
		"it is being removed":            {http.MethodDelete, "/containers/", dockertest.Fault{Status: http.StatusConflict, Message: "removal of container x is already in progress"}},
		"the volume was removed":         {http.MethodDelete, "/volumes/bk-[^.]*$", lost},
		"the volume was not removed":     {http.MethodDelete, "/volumes/bk-[^.]*$", broken},
		"the mark of it was removed":     {http.MethodDelete, "/volumes/.*deleting$", lost},
		"the mark of it was not removed": {http.MethodDelete, "/volumes/.*deleting$", cut},
	} {
		t.Run("delete, "+name, func(t *testing.T) {
			t.Parallel()
			p := newFake(t, docker.SuspendStop)
			d := p.driver(t, installation)
			ref := made(t, d, "lost")
			p.fake.Next(row.method, row.path, row.fault)
			_, err := d.Delete(t.Context(), ref)
			wantClass(t, err, box.ClassUnavailable)
			if seen := phase(t, d, ref); seen != box.PhaseGone && seen != box.PhaseRunning {
				require.Equal(t, box.PhaseFailed, seen)
				_, err = d.Resume(t.Context(), ref, start())
				wantClass(t, err, box.ClassFailedPrecondition)
				_, err = d.Create(t.Context(), request("lost"))
				wantClass(t, err, box.ClassConflict)
			}
			for range 2 {
				seen, err := p.driver(t, installation).Delete(t.Context(), ref)
				require.NoError(t, err)
				require.Equal(t, box.PhaseGone, seen.Phase)
			}
			require.Empty(t, p.left(t, ref))
		})
	}
}

// Two workers that know nothing of each other.
func TestTwoDriversAtOnce(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	one, two := p.driver(t, installation), p.driver(t, installation)
	refs := make([]box.Ref, 8)
	var group sync.WaitGroup
	for i := range refs {
		group.Go(func() {
			seen, err := []*docker.Driver{one, two}[i%2].Create(t.Context(), request("twice"))
			if err != nil {
				t.Errorf("create: %v", err)
			}
			refs[i] = seen.Ref
		})
	}
	group.Wait()
	require.Len(t, slices.Compact(refs), 1)
	require.Len(t, p.left(t, refs[0]), 2)
	for i := range refs {
		group.Go(func() {
			if _, err := []*docker.Driver{one, two}[i%2].Delete(t.Context(), refs[0]); err != nil && !box.ClassOf(err).Retryable() {
				t.Errorf("delete: %v", err)
			}
		})
	}
	group.Wait()
	_, err := one.Delete(t.Context(), refs[0])
	require.NoError(t, err)
	require.Empty(t, p.left(t, refs[0]))
}

// A stop may take as long as the box needs to end, and its caller may not wait.
func TestAStopThatTakesLong(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	d := p.driver(t, installation)
	ref := made(t, d, "slow")
	release := p.fake.HoldStops()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := d.Suspend(ctx, ref); ended <- err }()
	stops := func() bool {
		return slices.ContainsFunc(p.fake.Calls(), func(c string) bool { return strings.Contains(c, "/stop?t=1") })
	}
	await(t, "the engine was asked", stops)
	cancel()
	wantClass(t, <-ended, box.ClassCanceled)
	require.Equal(t, box.PhaseRunning, phase(t, d, ref))
	release()
	await(t, "the engine went on", func() bool { return phase(t, d, ref) == box.PhaseSuspended })
	// Told to end and not yet ended, it must not be taken for a running one.
	_, err := d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	first := p.inspect(t, ref.Name).State.StartedAt
	release = p.fake.HoldStops()
	ctx, cancel = context.WithCancel(t.Context())
	go func() { _, err := d.Suspend(ctx, ref); ended <- err }()
	await(t, "the engine was asked again", func() bool {
		return strings.Contains(strings.Join(p.fake.Calls(), "\n"), "/start") && strings.Count(strings.Join(p.fake.Calls(), "\n"), "/stop?t=1") == 2
	})
	cancel()
	wantClass(t, <-ended, box.ClassCanceled)
	release()
	seen, err := d.Resume(t.Context(), ref, start())
	require.NoError(t, err)
	require.Equal(t, box.PhaseRunning, seen.Phase)
	require.NotEqual(t, first, p.inspect(t, ref.Name).State.StartedAt)
}
