package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

// TestTimersOfARuntimeAPI lets boxes live beside the timers that a runtime-api runs
// by itself and nobody can set: its idle reaper, its cap, and the reaper that
// destroys what was paused for long.
func TestTimersOfARuntimeAPI(t *testing.T) {
	t.Parallel()
	t.Run("its idle reaper leads where the policy is the same", func(t *testing.T) {
		t.Parallel()
		a := atRuntimeAPI(t, "rt-led", runtimeapitest.Options{})
		l, u := a.l, &user{l: a.l, wrote: map[string][]string{}}
		l.create("--idle", "20m", "--lead", "provider")
		replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "turn", "--kind", "operation", "--lease", "1h")
		u.converse(2)
		replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "turn")
		l.awaitThat("the turn is exported", func(s box.Status) bool { return s.ExportCovers })
		l.rest()
		asked := a.boxCalls()
		l.pass(40 * time.Minute)
		l.await(box.StateSuspended)
		b := a.Boxes()[0]
		require.Equal(t, "idle reaper", b.PausedBy)
		require.Zero(t, b.Wakes)
		require.Equal(t, asked, a.boxCalls(), "a request into a box that the reaper had paused")
		a.end(u)
	})
	t.Run("a kept box is woken and paused again before it is destroyed", func(t *testing.T) {
		t.Parallel()
		a := atRuntimeAPI(t, "rt-kept", runtimeapitest.Options{})
		l, u := a.l, &user{l: a.l, wrote: map[string][]string{}}
		l.create()
		u.converse(2)
		l.do("box", "keep", l.ws)
		l.pass(20 * time.Minute)
		l.await(box.StateSuspended)
		l.pass(130 * day)
		s := l.await(box.StateSuspended)
		require.Contains(t, s.Flags, "kept")
		b := a.Boxes()[0]
		require.Empty(t, b.Ended, "it was destroyed after 60 days")
		require.Equal(t, 2, b.Wakes, "once in each 57 days")
		require.Less(t, b.Running, time.Hour)
		require.Empty(t, l.told.all(), "a kept box does not expire")
		a.end(u)
	})
	t.Run("its cap finds a box that was exported and suspended before", func(t *testing.T) {
		t.Parallel()
		a := atRuntimeAPI(t, "rt-cap", runtimeapitest.Options{MaxRun: 12 * time.Hour, MaxRunStops: true})
		l, u := a.l, &user{l: a.l, wrote: map[string][]string{}}
		l.create()
		u.converse(2)
		a.disks.only().setBusy(true)
		replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "agent", "--lease", "11h")
		l.pass(10 * time.Hour)
		replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "agent", "--lease", "11h")
		u.goOn()
		l.pass(3 * time.Hour)
		s := l.await(box.StateSuspended)
		require.True(t, s.ExportCovers)
		b := a.Boxes()[0]
		require.Empty(t, b.Ended, "the cap deleted it")
		require.Equal(t, "pause", b.PausedBy)
		require.Greater(t, b.Running, 11*time.Hour)
		replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "agent")
		a.end(u)
	})
}

// boxCalls counts the requests to boxes.
func (a *runtimeAPI) boxCalls() (n int) {
	for _, c := range a.Calls() {
		if c.Op == runtimeapitest.OpBox {
			n++
		}
	}
	return n
}

// end deletes the box of a life, and reads what is kept.
func (a *runtimeAPI) end(u *user) {
	l := a.l
	l.t.Helper()
	loss := replyOf[box.Loss](l, "box", "delete", l.ws)
	l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann")
	l.through(box.StateBoxArchived)
	books := a.books()
	require.Empty(l.t, books.alive)
	require.Equal(l.t, [2]int{1, 1}, [2]int{books.made, books.deleted})
	u.requireKept()
}
