package e2e_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// books are what a provider itself says of the boxes of one life: its ledger and
// its bill.
type books struct {
	made, deleted, wakes int
	alive                []string
	awake, suspended     time.Duration // billed
}

// place is a provider as a whole life sees it.
type place struct {
	// fill puts something into the box that can be made again, and filled says
	// whether it is there. How much a pass has freed is measured at the disk, which on
	// a busy machine others use, too.
	fill   func()
	filled func() bool
	// books reads what the provider says.
	books func() books
	// requests counts what the provider and its boxes were asked so far.
	requests func() int
	// idle lets the box be without use for as long as its policy allows.
	idle func()
	// begin and more hold a conversation and go on with one, where the box has no
	// agent-server that does it; nil asks the agent-server.
	begin func(messages int) (id string)
	more  func(id string)
}

// wholeLife lets a box live from its creation to its box-archived end, with one
// return in between, and checks at each turn what a person is told, what the
// provider's books say, and that no look reached the box.
func wholeLife(t *testing.T, l *life, at place, flags ...string) {
	t.Helper()
	step := func(format string, args ...any) { t.Logf("%s: "+format, append([]any{l.ws}, args...)...) }
	quietly := func(what string, do func()) { // what people look at
		t.Helper()
		before, asked := at.books(), at.requests()
		do()
		require.Equal(t, asked, at.requests(), "%s asked the provider or the box for something", what)
		require.Equal(t, before.wakes, at.books().wakes, "%s woke the box", what)
	}

	l.create(flags...)
	u := &user{l: l, wrote: map[string][]string{}, begin: at.begin, more: at.more}
	replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "1h")
	l.await(box.StateRunning)
	u.converse(2)
	u.converse(3)
	at.fill()
	require.True(t, at.filled())
	l.rest()
	quietly("a look at a running box", l.looks)
	require.Equal(t, 1, at.books().made)
	replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")
	step("created once, two conversations held, looks asked nobody")

	at.idle()
	s := l.await(box.StateSuspended)
	require.True(t, s.ExportCovers, "the export does not cover the last use: %+v", s.Failure)
	require.Equal(t, u.events(), s.Export.Events)
	require.False(t, at.filled(), "nothing was reclaimed before the suspend")
	quietly("a look at a suspended box", l.looks)
	awake := at.books().awake
	require.Zero(t, at.books().wakes)
	step("idle: reclaimed, %d events exported, suspended; looks woke nothing", s.Export.Events)

	l.pass(2 * 24 * time.Hour)
	require.Equal(t, awake, at.books().awake, "compute is billed while it is suspended")
	require.NotZero(t, replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "1h").RetryAfter)
	l.await(box.StateRunning)
	u.goOn()
	u.converse(1)
	replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")
	require.Equal(t, 1, at.books().wakes)
	step("connect woke it after two days; what was said is there, and more is said")

	at.idle()
	s = l.await(box.StateSuspended)
	require.True(t, s.ExportCovers)
	require.Equal(t, u.events(), s.Export.Events)
	since := s.SuspendedSince
	require.NotZero(t, since)
	quietly("27 days, a notice and three more days", func() {
		l.pass(26 * day)
		require.Empty(t, l.told.all(), "a notice before its time")
		l.pass(2 * day)
		notices := l.told.all()
		require.Len(t, notices, 1, "one notice, three days before the end of the paused TTL")
		require.WithinDuration(t, since.Add(30*day), notices[0].Due, time.Hour)
		s, err := l.status()
		require.NoError(t, err)
		require.Equal(t, box.StateSuspended, s.State)
		l.pass(3 * day)
		l.await(box.StateAwaitingConfirm)
		l.looks()
	})
	step("paused TTL: noticed on day 27, and on day 30 a person is asked; nothing was woken and nothing deleted")

	loss := replyOf[box.Loss](l, "box", "delete", l.ws)
	require.True(t, loss.Covered, "%v", loss.NotExported)
	require.Equal(t, len(u.wrote), loss.Conversations)
	require.Equal(t, u.events(), loss.Events)
	require.Len(t, at.books().alive, 1, "a question deleted the box")
	l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann")
	s = l.await(box.StateUndoWindow)
	require.Len(t, at.books().alive, 1, "the undo window is for changing one's mind")
	l.pass(25 * time.Hour)
	s = l.await(box.StateBoxArchived)
	last := at.books()
	require.Empty(t, last.alive, "an orphan")
	require.Equal(t, [3]int{1, 1, 1}, [3]int{last.made, last.deleted, last.wakes}, "creates, deletes, wakes in the provider's books")
	step("confirmed: the export was read back and the box deleted; the books show one create, one delete, one wake, nothing alive")

	l.clock.skip(60 * day)
	require.Equal(t, last, at.books(), "something is billed after the delete")
	u.requireKept()
	out, errs, code := l.run("box", "connect", l.ws, "--holder", "late")
	require.NotZero(t, code, out)
	require.Contains(t, errs, "history", "%s", s.State)
	step("the books stay as they are after the delete, and the closed workspace refuses to wake")
}

// inMemory is a life at the fake cloud of fakebox, with a handler of ours in each
// box.
func inMemory(t *testing.T, name string, row box.Capabilities) (*life, *fakebox.Cloud, *rooms) {
	t.Helper()
	clock := &skippedClock{}
	disks := newRooms(t, clock)
	handlers := map[string]string{}
	cloud := fakebox.New(&fakebox.Options{Row: row, Now: clock.Now, AgentServer: func(name string) string {
		if handlers[name] == "" { // a cloud calls it under its lock
			web := &http.Server{Handler: disks.of(name).start(""), ReadHeaderTimeout: time.Minute}
			handlers[name], _ = serveLoopback(web)
			t.Cleanup(func() { _ = web.Close() })
		}
		return handlers[name]
	}})
	return newLife(t, name, clock, cloud.Driver(livesInstallation)), cloud, disks
}

// TestALifeInMemory proves the harness of these tests at the fake that is in this
// repository for all to read.
func TestALifeInMemory(t *testing.T) {
	t.Parallel()
	row := fakebox.DefaultRow()
	row.MemoryKept = box.Yes // so the agent-server is the same after a resume
	l, cloud, disks := inMemory(t, "life-in-memory", row)
	name := box.Identity{Installation: livesInstallation, Workspace: l.ws, Epoch: 1}.Name()
	wholeLife(t, l, place{
		fill:     func() { disks.only().fill(t) },
		filled:   func() bool { return disks.only().filled() },
		requests: func() int { return len(cloud.Calls()) },
		idle:     func() { l.pass(20 * time.Minute) },
		books: func() books {
			out := books{}
			st, ok := cloud.Statement(name)
			if !ok {
				return out
			}
			out.made, out.wakes, out.awake, out.suspended = st.Starts, st.Wakes, st.Awake, st.Suspended
			if st.Phase == box.PhaseGone {
				out.deleted = 1
			} else {
				out.alive = []string{fmt.Sprint(name, " is ", st.Phase)}
			}
			return out
		},
	})
}

// TestASuspendedBoxGivesItsMemoryUp: an hour after its suspend a frozen box holds
// its files only, and nothing else of its life changes.
func TestASuspendedBoxGivesItsMemoryUp(t *testing.T) {
	t.Parallel()
	row := fakebox.DefaultRow()
	row.MemoryKept, row.Deepen = box.Yes, box.Yes
	l, cloud, _ := inMemory(t, "gives-memory-up", row)
	name := box.Identity{Installation: livesInstallation, Workspace: l.ws, Epoch: 1}.Name()
	l.create()
	l.rest()
	l.pass(20 * time.Minute)
	s := l.await(box.StateSuspended)
	l.pass(2 * time.Hour)
	deep, _ := cloud.Statement(name)
	require.InDelta(t, time.Hour, deep.Memory, float64(10*time.Minute), "how long its memory was billed")
	l.pass(2 * time.Hour)
	later, _ := cloud.Statement(name)
	require.Equal(t, deep.Memory, later.Memory)
	require.Zero(t, later.Wakes, "it woke on the way")
	now, err := l.status()
	require.NoError(t, err)
	require.Equal(t, box.StateSuspended, now.State)
	require.Equal(t, s.SuspendedSince, now.SuspendedSince, "the paused TTL goes on")
	replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "1h")
	l.await(box.StateRunning)
	replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")
	loss := replyOf[box.Loss](l, "box", "delete", l.ws)
	l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann")
	l.await(box.StateBoxArchived)
	golden(t, l.node.engine.Address(), l.ws, "gives-memory-up")
}
