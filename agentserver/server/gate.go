package server

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"
)

// gate keeps new work out while the box is drained, and counts the work that is
// under way. Admission and count are one step: after a drain returns, whatever
// was let in is counted.
type gate struct {
	mu      sync.Mutex
	clock   func() (running time.Duration, wall time.Time)
	shut    bool
	running time.Duration // when the lease began, on both clocks
	wall    time.Time
	lease   time.Duration
	working int
	sockets map[*context.CancelFunc]struct{}
}

func newGate() *gate {
	start := time.Now()
	return &gate{
		sockets: map[*context.CancelFunc]struct{}{},
		clock: func() (time.Duration, time.Time) {
			now := time.Now()
			return now.Sub(start), now.Round(0)
		},
	}
}

// left returns what is left of the lease. A wall clock that jumped, in either
// direction, ends it: a box that was frozen must not wake up shut.
func (g *gate) left() time.Duration {
	if !g.shut {
		return 0
	}
	running, wall := g.clock()
	passed := max(running-g.running, wall.Sub(g.wall))
	if passed >= g.lease || wall.Sub(g.wall) < -time.Second {
		g.shut = false
		return 0
	}
	return g.lease - passed
}

// drain shuts the gate for the lease, or for longer where another drain still
// holds it, and ends open sockets, through which work could still be started.
// It returns for how long the gate is shut.
func (g *gate) drain(lease time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	lease = max(lease, g.left())
	g.running, g.wall = g.clock()
	g.shut, g.lease = true, lease
	for end := range g.sockets {
		(*end)()
	}
	return lease
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}

// state returns what is left of the lease, and the work and sockets under way.
func (g *gate) state() (left time.Duration, working, sockets int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.left(), g.working, len(g.sockets)
}

// enter lets work in, or answers how long the gate stays shut. counted says
// whether it is to be counted.
func (g *gate) enter(counted bool) (leave func(), shut time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if shut := g.left(); shut > 0 {
		return nil, shut
	}
	if !counted {
		return func() {}, 0
	}
	g.working++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.working--
	}, 0
}

// socket lets a connection in that stays; a drain ends it by ending ctx.
func (g *gate) socket(ctx context.Context) (inner context.Context, leave func(), shut time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if shut := g.left(); shut > 0 {
		return nil, nil, shut
	}
	inner, cancel := context.WithCancel(ctx)
	end := &cancel
	g.sockets[end] = struct{}{}
	return inner, func() {
		cancel()
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.sockets, end)
	}, 0
}

const pausePath = "/api/conversations/prepare-for-sandbox-pause"

// isSocket reports whether the request asks for a connection that stays. An
// upgrade to anything but a WebSocket is none: the agent-server ignores it and
// answers the request as it is.
func isSocket(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/sockets/") || r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// startsWork reports whether a request may start or change something in the
// box. Everything that is no plain read counts, known or not.
func startsWork(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return strings.HasPrefix(r.URL.Path, "/v1/")
	case http.MethodPost:
		return r.URL.Path != pausePath
	}
	return true
}
