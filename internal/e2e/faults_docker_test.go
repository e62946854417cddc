package e2e_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/docker/dockertest"
)

// TestFaultsAtDocker lets boxes live through what goes wrong at a Docker engine, and
// what people do at it, each beside a container of somebody else.
func TestFaultsAtDocker(t *testing.T) {
	t.Parallel()
	const post, get, del, put = http.MethodPost, http.MethodGet, http.MethodDelete, http.MethodPut
	const containerList = "^/containers/json$"
	paused := docker.Options{Suspend: docker.SuspendPause}
	lost := dockertest.Fault{Lose: true}
	broken := dockertest.Fault{Status: http.StatusInternalServerError, Message: "something went wrong"}
	tooMany := dockertest.Fault{Status: http.StatusTooManyRequests, Message: "too many requests", Header: map[string]string{"Retry-After": "1"}}
	storm := func(a *fakeDocker, f dockertest.Fault) script {
		return script{
			create: func() {
				a.spoil(1, post, "^/volumes/create$", f)
				a.spoil(2, post, "^/containers/create$", f)
			},
			suspend: func() { a.spoil(2, post, "/stop$", f) },
			resume: func() {
				a.spoil(1, get, containerList, f)
				a.spoil(2, post, "/start$", f)
			},
			remove: func() {
				a.spoil(2, del, "^/containers/", f)
				a.spoil(1, del, "^/volumes/", f)
			},
		}
	}
	for name, c := range map[string]struct {
		o      docker.Options
		script func(a *fakeDocker) script
		// again is how often a container was made again, since a person removed one.
		again int
	}{
		"create-lost": {script: func(a *fakeDocker) script {
			return script{create: func() {
				a.spoil(1, post, "^/volumes/create$", lost)
				a.spoil(1, post, "^/containers/create$", lost)
				a.spoil(1, put, "/archive$", lost)
				a.spoil(1, post, "/start$", lost)
			}}
		}},
		"lost": {script: func(a *fakeDocker) script {
			return script{
				suspend: func() { a.spoil(1, post, "/stop$", lost) },
				resume:  func() { a.spoil(1, post, "/start$", lost) },
				remove: func() {
					a.spoil(1, del, "^/containers/", lost)
					a.spoil(2, del, "^/volumes/", lost)
				},
			}
		}},
		"stopped-first": {script: func(a *fakeDocker) script {
			return script{suspend: func() { a.spoil(1, post, "/stop$", dockertest.Fault{First: a.personStops}) }}
		}},
		"paused-first": {o: paused, script: func(a *fakeDocker) script {
			return script{
				suspend: func() { a.spoil(1, post, "/pause$", dockertest.Fault{First: a.personPauses}) },
				resume:  func() { a.spoil(1, post, "/unpause$", lost) },
			}
		}},
		"paused-and-then-stopped": {script: func(a *fakeDocker) script {
			return script{suspend: func() { a.spoil(1, post, "/stop$", dockertest.Fault{First: a.personPauses}) }}
		}},
		"paused-by-a-person": {script: func(a *fakeDocker) script {
			return script{suspend: a.personPauses, wakes: 2} // woken to be exported
		}},
		"stopped-by-a-person": {script: func(a *fakeDocker) script {
			return script{suspend: a.personStops, wakes: 2}
		}},
		"slow": {script: func(a *fakeDocker) script {
			a.boots(5 * time.Second)
			return script{}
		}},
		"box-502": {script: func(a *fakeDocker) script {
			silent := func() { a.spoil(1, post, "/start$", dockertest.Fault{First: func() { a.silence(20 * time.Second) }}) }
			return script{resume: silent}
		}},
		"delete-409": {script: func(a *fakeDocker) script {
			progress := dockertest.Fault{Status: http.StatusConflict, Message: "removal of container x is already in progress"}
			return script{remove: func() {
				a.spoil(2, del, "^/containers/", progress)
				progress.First = a.personRemoves
				a.spoil(1, del, "^/containers/", progress)
			}}
		}},
		"list-without-it": {script: func(a *fakeDocker) script {
			absent := func() { a.hide(15 * time.Second) }
			return script{create: func() {
				a.spoil(1, post, "^/containers/create$", lost)
				absent()
			}, resume: absent, remove: a.hideAtDelete}
		}},
		"away": {script: func(a *fakeDocker) script {
			away := func() { a.leave(15 * time.Second) }
			return script{create: away, suspend: away, remove: away}
		}},
		"500": {script: func(a *fakeDocker) script { return storm(a, broken) }},
		"429": {script: func(a *fakeDocker) script { return storm(a, tooMany) }},
		"removed-while-suspended": {script: func(a *fakeDocker) script {
			return script{resume: a.personRemoves}
		}, again: 1},
		"removed-with-a-snapshot": {o: docker.Options{Snapshot: true}, script: func(a *fakeDocker) script {
			const tool = "/usr/bin/tool" // installed beside the volume
			name := nameOf(a.l.ws)
			return script{
				suspend: func() {
					a.Do(name, func(_ *container.State, files map[string][]byte) { files[tool] = []byte("installed") })
				},
				resume: a.personRemoves,
				remove: func() {
					content, _, _, _ := a.File(name, tool)
					require.Equal(t, "installed", string(content), "the container was not made again of its snapshot")
				},
			}
		}, again: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := atFakeDocker(t, "docker-"+name, c.o)
			a.plant()
			foreign := a.colleagues()
			liveThrough(t, a.l, a.place(), c.script(a))
			require.Equal(t, foreign, a.colleagues(), "something of somebody else was touched")
			require.Equal(t, [2]int{1 + c.again, 1 + c.again}, [2]int{a.did("container create"), a.did("container destroy")})
			require.Equal(t, a.did("image tag"), a.did("image untag"), "a snapshot is left")
			require.Equal(t, c.o.Snapshot, a.did("image tag") > 0)
			require.NotZero(t, a.touched(), "nothing went wrong")
			ended := a.Ledger()
			a.l.clock.skip(60 * day)
			require.Equal(t, ended, a.Ledger(), "something was done after the delete")
		})
	}
}

// TestAContainerRemovedWhileItRunsInDocker lets a person remove the container of a
// box that is in use. Its volume is the box, so nothing is made or deleted by
// itself: what happened is told, and who comes back finds all of it in a container
// that is made again.
func TestAContainerRemovedWhileItRunsInDocker(t *testing.T) {
	t.Parallel()
	a := atFakeDocker(t, "docker-removed", docker.Options{})
	a.plant()
	foreign := a.colleagues()
	l, u := a.l, &user{l: a.l, wrote: map[string][]string{}}
	l.create()
	u.converse(2)
	a.personRemoves()
	l.clock.skip(20 * time.Minute)
	l.jump(20 * time.Minute)
	s := l.await(box.StateSuspended)
	require.Contains(t, l.do("box", "why", l.ws), "container was removed")
	s = l.pass(6 * time.Hour)
	require.Equal(t, box.StateSuspended, s.State)
	require.Nil(t, s.Failure)
	require.False(t, s.SuspendedSince.IsZero(), "its paused clock does not run")
	require.Less(t, l.now().Add(10*day), s.NextAt, "something is done about it before its notice")
	require.Equal(t, 1, a.did("container create"))
	replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "1h")
	l.through(box.StateRunning)
	u.goOn()
	require.Equal(t, 2, a.did("container create"))
	require.Equal(t, 1, a.did("volume create"))
	replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")
	l.pass(20 * time.Minute)
	l.through(box.StateSuspended)
	loss := replyOf[box.Loss](l, "box", "delete", l.ws)
	require.Equal(t, u.events(), loss.Events)
	l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann")
	l.through(box.StateBoxArchived)
	require.Empty(t, a.books().alive)
	require.Equal(t, foreign, a.colleagues())
	u.requireKept()
}
