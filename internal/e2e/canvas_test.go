package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

// answersAfter is what Canvas allows an agent-server to be silent after a wake.
const answersAfter = 20 * time.Second

// comesUp lets the time pass that port 8000 stays closed, once somebody has
// knocked in vain.
func (a *managedAgents) comesUp(l *life) box.Status {
	l.t.Helper()
	before := a.refused()
	eventually(l.t, within, func() error {
		if n := a.refused() - before; n < 2 {
			return fmt.Errorf("port 8000 refused %d requests", n)
		}
		return nil
	})
	s, err := l.status()
	require.NoError(l.t, err)
	require.NotEqual(l.t, box.StateRunning, s.State, "running before its agent-server answers")
	l.clock.skip(answersAfter)
	return l.await(box.StateRunning)
}

// refused counts the requests to sessions that found port 8000 closed.
func (a *managedAgents) refused() (n int) {
	for _, r := range a.Requests() {
		if r.Op == digitaloceantest.OpGuest && r.Status == http.StatusBadGateway {
			n++
		}
	}
	return n
}

// bodies are the bodies of the requests of an operation.
func (a *managedAgents) bodies(op digitaloceantest.Op) (out []string) {
	for _, r := range a.Requests() {
		if r.Op == op {
			out = append(out, r.Body)
		}
	}
	return out
}

// statement is the bill of the session of a workspace.
func (a *managedAgents) statement(t *testing.T, ws string) digitaloceantest.Statement {
	t.Helper()
	for _, st := range a.Bill() {
		if st.Name == nameOf(ws) {
			return st
		}
	}
	require.Fail(t, "there is no session of workspace "+ws)
	return digitaloceantest.Statement{}
}

func nameOf(ws string) string {
	return box.Identity{Installation: livesInstallation, Workspace: ws, Epoch: 1}.Name()
}

// createSlowly creates a box whose agent-server takes its time.
func (a *managedAgents) createSlowly(l *life, flags ...string) box.Status {
	l.t.Helper()
	l.do(append([]string{"box", "create", l.ws, "--provider", l.provider.Name(), "--owner", "ann"}, flags...)...)
	return a.comesUp(l)
}

// waitsInVain is what a command says that waits for what does not come.
func (l *life) waitsInVain(args ...string) string {
	l.t.Helper()
	out, errs, code := l.run(args...)
	require.NotZero(l.t, code, out)
	return out + errs
}

// listed waits until the engine's index, which is a moment behind, says whether the
// account at the provider lacks something for the workspace.
func (l *life) listed(blocked string, want bool) {
	l.t.Helper()
	eventually(l.t, within, func() error {
		if out := l.do("box", "list", "--blocked", blocked); strings.Contains(out, l.ws) != want {
			return fmt.Errorf("with %s in it, %t: %s", l.ws, want, out)
		}
		return nil
	})
}

// TestDigitalOceanSessionsInCanvas walks through the worked example of the design,
// DigitalOcean sessions in Canvas, and through the gaps that it names.
func TestDigitalOceanSessionsInCanvas(t *testing.T) { //nolint:tparallel // its steps follow one another
	t.Parallel()
	a := atDigitalOcean(t, "canvas", digitaloceantest.Options{PortLag: answersAfter, IngressPolls: 1})
	l := a.l
	u := &user{l: l, wrote: map[string][]string{}}
	step := func(name, sentence string, do func(t *testing.T)) {
		t.Helper()
		if !t.Run(name, func(t *testing.T) { //nolint:paralleltest // as above
			l.t = t
			t.Log(sentence)
			do(t)
		}) {
			t.FailNow()
		}
		l.t = t
	}

	step("create", "the session is made from an environment of ours, in which alone an idle timeout can be said, and which does not keep it warm", func(t *testing.T) {
		a.createSlowly(l)
		environments, sessions := a.bodies(digitaloceantest.OpConfigCreate), a.bodies(digitaloceantest.OpCreate)
		require.Len(t, environments, 1)
		require.Len(t, sessions, 1)
		require.Contains(t, environments[0], "keep_warm: false")
		require.Contains(t, environments[0], "idle_timeout: 30m", "ours is 15m, and the service's is a net 15m later")
		var asked map[string]any
		require.NoError(t, json.Unmarshal([]byte(sessions[0]), &asked))
		require.NotContains(t, asked, "idle_timeout_seconds")
		require.NotEqual(t, true, asked["resume_on_topoff"], "the service would wake it behind our back")
		require.Equal(t, a.statement(t, l.ws).ConfigID, asked["config_id"])
	})
	step("work", "the agent-server in the box cleans up, and that is no use", func(t *testing.T) {
		replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "1h")
		u.converse(3)
		room := a.disks.only()
		room.fill(t)
		used := room.lastUse()
		result := replyOf[box.ReclaimReport](l, "box", "reclaim", l.ws)
		require.Positive(t, result.RemovedBytes)
		require.False(t, room.filled())
		require.Equal(t, used, room.lastUse(), "maintenance moved the idle clock")
		replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")
	})
	step("idle", "after 15 minutes without use it is reclaimed, exported and paused; compute is billed no more, storage is", func(t *testing.T) {
		require.Greater(t, a.IdleAt(nameOf(l.ws)).Sub(l.clock.Now()), 15*time.Minute, "the service's timer would be first")
		a.disks.only().fill(t)
		l.pass(20 * time.Minute)
		s := l.await(box.StateSuspended)
		require.False(t, a.disks.only().filled(), "nothing was reclaimed before the pause")
		require.True(t, s.ExportCovers)
		st := a.statement(t, l.ws)
		require.Equal(t, map[string]int{"manual": 1}, st.Pauses)
		asked := len(a.Requests())
		l.pass(day)
		l.looks()
		after := a.statement(t, l.ws)
		require.Equal(t, st.Running, after.Running, "compute is billed while it is paused")
		require.Greater(t, after.Paused, st.Paused)
		require.Len(t, a.Requests(), asked, "a look or a day asked the service for something")
	})
	step("return", "the resume is fast and not instant: the agent-server answers 20 s after the wake, under another address", func(t *testing.T) {
		answer := replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "1h")
		require.Positive(t, answer.RetryAfter)
		a.comesUp(l)
		u.goOn()
		require.Equal(t, map[string]int{"resume": 1}, a.statement(t, l.ws).Wakes)
		require.Equal(t, 1, a.disks.only().started(), "its memory was kept")
		why := l.why()
		require.Nil(t, why.Failure, "slowness is no failure")
	})
	step("done", "Delete shows what would be lost, exports what was said since, asks, and only then deletes", func(t *testing.T) {
		replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")
		loss := replyOf[box.Loss](l, "box", "delete", l.ws)
		require.False(t, loss.Covered, "something was said since the export")
		require.Equal(t, u.events(), loss.Events, "it was not looked at")
		require.Zero(t, a.Count(digitaloceantest.OpDelete))
		l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann", "--wait")
		l.await(box.StateBoxArchived)
		require.Equal(t, 1, a.Count(digitaloceantest.OpDelete))
		require.Equal(t, 1, a.Count(digitaloceantest.OpConfigDelete), "its environment is left, with its secrets")
		require.Empty(t, a.Audit().Alive)
		u.requireKept()
	})

	t.Run("gap: paused sessions pile up", func(t *testing.T) {
		t.Parallel()
		t.Log("a paused TTL ends in a notice and a question, and in a deletion only with an answer")
		a := atDigitalOcean(t, "canvas-forgotten", digitaloceantest.Options{})
		l, u := a.l, &user{l: a.l, wrote: map[string][]string{}}
		l.create("--paused-ttl", "10d", "--undo", "2h")
		u.converse(2)
		l.pass(20 * time.Minute)
		l.await(box.StateSuspended)
		l.pass(8 * day)
		require.Len(t, l.told.all(), 1, "the notice")
		require.Equal(t, box.EventExpiryNotice, l.told.all()[0].Kind)
		l.pass(2 * day)
		l.await(box.StateAwaitingConfirm)
		l.pass(20 * day)
		require.Greater(t, len(l.told.all()), 1, "the question is repeated")
		require.Zero(t, a.Count(digitaloceantest.OpDelete), "nobody answered, and it was deleted")
		require.Zero(t, a.statement(t, l.ws).WokenUp())
		loss := replyOf[box.Loss](l, "box", "delete", l.ws)
		l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann")
		l.await(box.StateUndoWindow)
		l.pass(3 * time.Hour)
		l.await(box.StateBoxArchived)
		require.Zero(t, a.statement(t, l.ws).WokenUp(), "the export that was there covers it: nothing needs to be woken")
		u.requireKept()
	})
	t.Run("gap: a slot for each paused session", func(t *testing.T) {
		t.Parallel()
		t.Log("a team whose limit is used up by paused sessions is told so, and a deletion makes room")
		a := atDigitalOcean(t, "canvas-full-1", digitaloceantest.Options{Teams: []digitaloceantest.Team{{Quota: 2}}})
		first := a.l
		second := a.life(t, "canvas-full-2", first.clock)
		third := a.life(t, "canvas-full-3", first.clock)
		u := &user{l: first, wrote: map[string][]string{}}
		for _, l := range []*life{first, second} {
			l.create()
		}
		u.converse(1)
		for _, l := range []*life{first, second} {
			l.do("box", "suspend", l.ws, "--wait")
		}
		third.do("box", "create", third.ws, "--provider", third.provider.Name())
		s := third.awaitThat("the create was refused", func(s box.Status) bool { return s.Failure != nil })
		require.Equal(t, box.StateCreating, s.State)
		require.Equal(t, box.ClassExhausted, s.Failure.Class)
		require.Contains(t, s.Failure.Message, "limit of 2 active sessions")
		require.Contains(t, s.Failure.Message, "suspended boxes count")
		require.Contains(t, s.Flags, "quota-blocked")
		for _, said := range []string{third.do("box", "why", third.ws), third.waitsInVain("box", "create", third.ws, "--provider", third.provider.Name(), "--wait", "--timeout", "5s")} {
			t.Log(said)
			require.Contains(t, said, "quiet for longest: ")
			require.Contains(t, said, first.ws)
			require.Contains(t, said, second.ws)
			require.Contains(t, said, "; export and delete one of them with \"boxkeeper box delete ID\", or ask DigitalOcean for a higher limit", "its end was cut")
		}
		require.Contains(t, third.do("box", "why", third.ws), "quota-blocked")
		third.listed("quota", true)
		tries := a.Count(digitaloceantest.OpCreate)
		third.pass(30 * time.Minute)
		require.LessOrEqual(t, a.Count(digitaloceantest.OpCreate)-tries, 10, "it hammers a service that has no room")

		loss := replyOf[box.Loss](first, "box", "delete", first.ws)
		require.True(t, loss.Covered)
		first.do("box", "confirm", first.ws, "--token", loss.Token, "--by", "ann", "--wait")
		third.pass(11 * time.Minute)
		s = third.await(box.StateRunning)
		require.NotContains(t, s.Flags, "quota-blocked")
		require.NotContains(t, s.Flags, "needs-attention")
		require.Nil(t, third.why().Failure)
		third.listed("quota", false)
		u.requireKept()
		audit := a.Audit()
		require.Empty(t, audit.Double)
		require.Equal(t, []string{nameOf(first.ws)}, audit.Deleted)
		require.Len(t, audit.Alive, 2)
	})
	t.Run("gap: the service suspends first", func(t *testing.T) {
		t.Parallel()
		t.Log("where the policy lets the service lead, its pause is noticed without a wake, and ours is the net")
		a := atDigitalOcean(t, "canvas-led", digitaloceantest.Options{})
		l, u := a.l, &user{l: a.l, wrote: map[string][]string{}}
		l.create("--idle", "10m", "--lead", "provider")
		require.Contains(t, strings.Join(a.bodies(digitaloceantest.OpConfigCreate), ""), "idle_timeout: 10m")
		replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "turn", "--kind", "operation", "--lease", "1h")
		u.converse(2)
		replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "turn")
		l.awaitThat("the turn is exported", func(s box.Status) bool { return s.ExportCovers })
		l.rest()
		guests := a.Count(digitaloceantest.OpGuest)
		l.pass(26 * time.Minute)
		s := l.await(box.StateSuspended)
		st := a.statement(t, l.ws)
		require.Equal(t, map[string]int{"idle": 1}, st.Pauses, "the service was not first")
		require.Zero(t, st.WokenUp())
		require.Equal(t, guests, a.Count(digitaloceantest.OpGuest), "a request into a box that its service had paused")
		require.Equal(t, u.events(), s.Export.Events, "the turn's export is kept")
		require.False(t, s.ExportCovers, "nobody looked before the pause, so nobody knows that it holds all")
		require.Contains(t, s.Seen.Evidence, "idle", "the service's reason is not told")
		loss := replyOf[box.Loss](l, "box", "delete", l.ws)
		require.False(t, loss.Covered)
		require.Zero(t, a.statement(t, l.ws).WokenUp(), "the question woke it")
		l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann", "--wait")
		require.Equal(t, map[string]int{"resume": 1}, a.statement(t, l.ws).Wakes, "once, to be exported")
		require.Empty(t, a.Audit().Alive)
		u.requireKept()
	})
}
