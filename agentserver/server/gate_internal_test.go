package server

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clocks are the two that a gate looks at; a test moves each by itself.
type clocks struct {
	running time.Duration
	wall    time.Time
}

func (c *clocks) pass(d time.Duration) {
	c.running += d
	c.wall = c.wall.Add(d)
}

func testGate() (*gate, *clocks) {
	c := &clocks{wall: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	g := newGate()
	g.clock = func() (time.Duration, time.Time) { return c.running, c.wall }
	return g, c
}

func TestALeaseEndsByItself(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		then func(*gate, *clocks)
		left time.Duration
	}{
		"nothing happens":                        {func(*gate, *clocks) {}, time.Minute},
		"most of it passes":                      {func(_ *gate, c *clocks) { c.pass(59 * time.Second) }, time.Second},
		"it passes to the end":                   {func(_ *gate, c *clocks) { c.pass(time.Minute) }, 0},
		"the box was frozen, one clock with it":  {func(_ *gate, c *clocks) { c.wall = c.wall.Add(time.Hour) }, 0},
		"the wall clock was set back":            {func(_ *gate, c *clocks) { c.wall = c.wall.Add(-time.Hour) }, 0},
		"the wall clock was corrected by little": {func(_ *gate, c *clocks) { c.wall = c.wall.Add(-time.Second / 2) }, time.Minute},
		"it is set back by what has passed":      {func(_ *gate, c *clocks) { c.pass(30 * time.Second); c.wall = c.wall.Add(-30 * time.Second) }, 30 * time.Second},
		"it is renewed":                          {func(g *gate, c *clocks) { c.pass(50 * time.Second); g.drain(time.Minute) }, time.Minute},
		"a second drain is shorter":              {func(g *gate, c *clocks) { c.pass(10 * time.Second); g.drain(time.Second) }, 50 * time.Second},
		"a second drain is longer":               {func(g *gate, _ *clocks) { g.drain(time.Hour) }, time.Hour},
		"it is opened":                           {func(g *gate, _ *clocks) { g.open() }, 0},
		"it is opened, and that again":           {func(g *gate, _ *clocks) { g.open(); g.open() }, 0},
		"it ended, and another begins":           {func(g *gate, c *clocks) { c.pass(time.Hour); g.drain(time.Second) }, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, c := testGate()
			require.Equal(t, time.Minute, g.drain(time.Minute))
			row.then(g, c)
			left, _, _ := g.state()
			require.Equal(t, row.left, left)
			_, shut := g.enter(true)
			require.Equal(t, row.left, shut)
			_, _, shut = g.socket(t.Context())
			require.Equal(t, row.left, shut)
		})
	}
}

// What was let in before a drain returned is counted when it has returned, and
// nothing is let in later.
func TestNothingSlipsPastADrain(t *testing.T) {
	t.Parallel()
	for range 200 {
		g := newGate()
		var admitted, all sync.WaitGroup
		begin, inside := make(chan struct{}), make(chan func(), 100)
		for range 8 {
			all.Go(func() {
				<-begin
				for range 5 {
					if leave, shut := g.enter(true); shut == 0 {
						inside <- leave
					}
				}
			})
		}
		close(begin)
		g.drain(time.Hour)
		_, counted, _ := g.state()
		all.Wait()
		require.Len(t, inside, counted)
		close(inside)
		for leave := range inside {
			admitted.Go(leave)
		}
		admitted.Wait()
		_, counted, _ = g.state()
		require.Zero(t, counted)
	}
}

func TestWhatCountsAsASocketAndAsWork(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		method, path, upgrade string
		socket, work          bool
	}{
		"a socket":                          {"GET", "/sockets/events/x", "websocket", true, false},
		"a socket elsewhere":                {"GET", "/api/x", "WebSocket", true, false},
		"a socket's path without an offer":  {"GET", "/sockets/events/x", "", true, false},
		"work that offers another protocol": {"POST", "/api/conversations", "h2c", false, true},
		"work that says it is a socket":     {"POST", "/api/conversations", "websocket", false, true},
		"a read that offers another":        {"GET", "/api/conversations", "h2c", false, false},
		"a method that nobody knows":        {"FROBNICATE", "/api/x", "", false, true},
		"a model's answer":                  {"GET", "/v1/models", "", false, true},
		"the end of all work":               {"POST", pausePath, "", false, false},
		"nearly the end of all work":        {"POST", pausePath + "/", "", false, true},
	} {
		request := httptest.NewRequestWithContext(t.Context(), row.method, row.path, http.NoBody)
		request.Header.Set("Upgrade", row.upgrade)
		require.Equal(t, row.socket, isSocket(request), name)
		if !row.socket {
			require.Equal(t, row.work, startsWork(request), name)
		}
	}
}
