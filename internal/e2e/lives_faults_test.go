package e2e_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// script is what goes wrong in a short life: each part runs right before the
// workflow does that at the provider.
type script struct {
	create, suspend, resume, remove func()
	// wakes is how often the life may wake its box: once for its user, and once more
	// where a fault left an export missing.
	wakes int
}

// through waits until the life is in one of these states. While a step is under way
// the provider's time goes ten times as fast as ours, and a wait for a next try is
// passed over at once.
func (l *life) through(states ...box.State) box.Status {
	l.t.Helper()
	const look, speed = 50 * time.Millisecond, 10
	for began := time.Now(); ; time.Sleep(look) {
		s, err := l.status()
		require.NoError(l.t, err)
		if slices.Contains(states, s.State) {
			return s
		}
		require.Less(l.t, time.Since(began), within, "%s is %s (%s), want %v; failure %+v", l.ws, s.State, s.Reason.Text, states, s.Failure)
		if due := s.NextAt.Sub(l.now()); due > 0 && s.Failure != nil && s.Failure.RetryAt.Equal(s.NextAt) {
			l.meet(s.NextAt)
			continue
		}
		l.clock.skip(speed * look)
	}
}

// passUntil lets time pass until the life is in one of these states, at most so long.
func (l *life) passUntil(most time.Duration, states ...box.State) box.Status {
	l.t.Helper()
	for end := l.now().Add(most); ; {
		s := l.rest()
		if slices.Contains(states, s.State) {
			return s
		}
		require.True(l.t, s.NextAt.Before(end) && l.now().Before(end), "%s is still %s after %s; next is %s at %s", l.ws, s.State, most, s.Next, s.NextAt)
		l.meet(s.NextAt)
	}
}

// liveThrough lets a box live a short life in which things go wrong: whatever they
// are, its end is right, nothing was made or deleted twice, and its history is kept.
func liveThrough(t *testing.T, l *life, at place, s script) {
	t.Helper()
	does := func(f func()) {
		if f != nil {
			f()
		}
	}
	does(s.create)
	l.do("box", "create", l.ws, "--provider", l.provider.Name(), "--owner", "ann")
	l.through(box.StateRunning)
	u := &user{l: l, wrote: map[string][]string{}}
	replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "1h")
	u.converse(2)
	replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")
	does(s.suspend)
	at.idle()
	l.through(box.StateSuspended)
	does(s.resume)
	replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "1h")
	l.through(box.StateRunning)
	u.goOn()
	replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")
	at.idle()
	l.through(box.StateSuspended)
	does(s.remove)
	loss := replyOf[box.Loss](l, "box", "delete", l.ws)
	require.Equal(t, u.events(), loss.Events)
	l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann")
	l.through(box.StateBoxArchived)
	books := at.books()
	require.Empty(t, books.alive, "an orphan")
	require.Equal(t, [2]int{1, 1}, [2]int{books.made, books.deleted}, "creates and deletes in the provider's books")
	require.LessOrEqual(t, books.wakes, max(s.wakes, 1), "wakes in the provider's books")
	u.requireKept()
}
