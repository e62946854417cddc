package e2e_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/runtimeapi"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

// runtimeAPI is a fake runtime-api with one life at it, and the disks of its boxes.
type runtimeAPI struct {
	*runtimeapitest.Service
	l       *life
	disks   *rooms
	spoiled atomic.Int64 // calls that a fault touched
}

// atRuntimeAPI begins a life at a service of its own, whose clock is the life's.
func atRuntimeAPI(t *testing.T, name string, o runtimeapitest.Options) *runtimeAPI {
	t.Helper()
	clock := &skippedClock{}
	a := &runtimeAPI{disks: newRooms(t, clock)}
	o.Box = func(life runtimeapitest.Life) http.Handler {
		return a.disks.of(life.RuntimeID).start(box.Secret(life.Key))
	}
	var err error
	a.Service, err = runtimeapitest.Start(o)
	require.NoError(t, err)
	t.Cleanup(a.Close)
	clock.follow = append(clock.follow, a.Advance)
	d, err := runtimeapi.New(livesInstallation, runtimeapi.Options{
		URL: a.URL(), APIKey: "runtime-api-key", Image: "agent-server:test", PausedLife: box.Duration(60 * day), ListsFailed: o.ListFailed,
	})
	require.NoError(t, err)
	a.l = newLife(t, name, clock, d)
	return a
}

func (a *runtimeAPI) place() place {
	return place{
		fill: func() { a.disks.only().fill(a.l.t) }, filled: func() bool { return a.disks.only().filled() },
		books: a.books, requests: func() int { return len(a.Calls()) }, idle: func() { a.l.pass(16 * time.Minute) },
	}
}

func (a *runtimeAPI) books() books {
	out := books{}
	for _, b := range a.Boxes() {
		if b.SessionID != nameOf(a.l.ws) {
			continue
		}
		out.made++
		out.wakes += b.Wakes
		out.awake += b.Running
		out.suspended += b.Paused
		if b.Status == runtimeapitest.StatusStopped {
			out.deleted++
		} else {
			out.alive = append(out.alive, b.SessionID+" is "+b.Status)
		}
	}
	return out
}

// TestALifeAtRuntimeAPI lets a box of an OpenHands runtime-api live its whole life:
// its volume is kept while it is paused, its processes begin anew at a resume with
// another key, and the service's own reapers run all the while.
func TestALifeAtRuntimeAPI(t *testing.T) {
	t.Parallel()
	a := atRuntimeAPI(t, "life-at-runtime-api", runtimeapitest.Options{Starting: 1, NotReady: 1, NoIngress: 2})
	wholeLife(t, a.l, a.place())
	b := a.Boxes()[0]
	require.Equal(t, "stop", b.Ended, "not we deleted it")
	require.Equal(t, 2, b.Lives, "its processes began once at the creation and once at the return")
	require.Equal(t, 2, a.disks.only().started())
	require.Equal(t, "pause", b.PausedBy, "the service's reaper was first")
}
