package e2e_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

// managedAgents is a fake of DigitalOcean's Managed Agents with one life at it, and
// the disks of its sessions.
type managedAgents struct {
	*digitaloceantest.Server
	l     *life
	disks *rooms
}

// atDigitalOcean begins a life at a service of its own, whose clock is the life's.
func atDigitalOcean(t *testing.T, name string, o digitaloceantest.Options) *managedAgents {
	t.Helper()
	clock := &skippedClock{}
	a := &managedAgents{disks: newRooms(t, clock)}
	o.Now, o.Loopback = clock.Now, true
	o.AgentServer = func(s digitaloceantest.Session) http.Handler {
		return a.disks.of(s.Name).start(box.Secret(s.Env["OH_SESSION_API_KEYS_0"]))
	}
	a.Server = digitaloceantest.New(o)
	t.Cleanup(a.Close)
	a.l = a.life(t, name, clock)
	return a
}

// life serves the same service under another name, for one more workspace.
func (a *managedAgents) life(t *testing.T, name string, clock *skippedClock) *life {
	t.Helper()
	d, err := digitalocean.New(livesInstallation, digitalocean.Options{
		Token: digitaloceantest.DefaultToken, BaseURL: a.URL(""), PollEvery: 20 * time.Millisecond,
	})
	require.NoError(t, err)
	return newLife(t, name, clock, d)
}

func (a *managedAgents) place() place {
	return place{
		fill: func() { a.disks.only().fill(a.l.t) }, filled: func() bool { return a.disks.only().filled() },
		books: a.books, requests: func() int { return len(a.Requests()) }, idle: func() { a.l.pass(20 * time.Minute) },
	}
}

func (a *managedAgents) books() books {
	out := books{}
	for _, st := range a.Bill() {
		if st.Name != nameOf(a.l.ws) {
			continue
		}
		out.made++
		out.wakes += st.WokenUp()
		out.deleted += st.Deletes
		out.awake += st.Running
		out.suspended += st.Paused
		if st.Alive() {
			out.alive = append(out.alive, st.Name+" is "+st.Status)
		}
	}
	return out
}

// TestALifeAtDigitalOcean lets a session of DigitalOcean's Managed Agents live its
// whole life: it keeps its memory and its id while it is paused, and its address is
// another one after each resume.
func TestALifeAtDigitalOcean(t *testing.T) {
	t.Parallel()
	a := atDigitalOcean(t, "life-at-digitalocean", digitaloceantest.Options{IngressPolls: 2, Boot: 300 * time.Millisecond})
	wholeLife(t, a.l, a.place())
	audit := a.Audit()
	require.Empty(t, audit.Double)
	require.Empty(t, audit.Alive)
	require.Len(t, audit.Deleted, 1)
	require.Zero(t, a.environments(), "its environment is left, with its secrets")
	st := a.Bill()[0]
	require.Equal(t, map[string]int{"manual": 2}, st.Pauses, "the service was first")
	require.Equal(t, map[string]int{"resume": 1}, st.Wakes)
	require.Equal(t, 1, a.disks.only().started(), "its processes live through a pause")
}

// TestAPlainAgentServerAtDigitalOcean lives in a session as the OpenHands template
// of the service makes it: with the agent-server and no boxd. Its conversations are
// kept; that nobody knows of its files is said before they are lost.
func TestAPlainAgentServerAtDigitalOcean(t *testing.T) {
	t.Parallel()
	a := atDigitalOcean(t, "do-plain", digitaloceantest.Options{})
	a.disks.plain = true
	l, u := a.l, &user{l: a.l, wrote: map[string][]string{}}
	l.create()
	u.converse(2)
	u.converse(1)
	l.pass(20 * time.Minute)
	s := l.await(box.StateSuspended)
	require.Equal(t, u.events(), s.Export.Events)
	require.Empty(t, l.why().Failure)
	replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "1h")
	l.await(box.StateRunning)
	u.goOn()
	replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")
	l.pass(20 * time.Minute)
	l.await(box.StateSuspended)
	loss := replyOf[box.Loss](l, "box", "delete", l.ws)
	require.Equal(t, u.events(), loss.Events)
	require.Contains(t, strings.Join(loss.NotExported, "; "), "workspace")
	t.Log(strings.Join(loss.NotExported, "; "))
	l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann")
	l.through(box.StateBoxArchived)
	require.Empty(t, a.Audit().Alive)
	require.Len(t, a.Audit().Deleted, 1)
	u.requireKept()
}
