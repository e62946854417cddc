package digitaloceantest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// guest is what listens in a sandbox. It lives through a pause, its connections
// don't.
type guest struct {
	conns   chan net.Conn
	ended   chan struct{}
	server  *http.Server
	handler func() http.Handler

	mu     sync.Mutex
	open   map[net.Conn]bool
	frozen bool // paused
	over   bool
}

// newGuest starts it. The hook that makes the handler is called by the first
// request, since it may take its time.
func newGuest(s *Server, d Session, hook func(Session) http.Handler) *guest {
	g := &guest{conns: make(chan net.Conn), ended: make(chan struct{}), open: map[net.Conn]bool{}}
	g.handler = sync.OnceValue(func() http.Handler { return hook(d) })
	g.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.handler().ServeHTTP(w, r)
	})}
	s.running.Go(func() { _ = g.server.Serve(g) }) // ends with end
	return g
}

// dial connects to it; it fails when nothing listens.
func (g *guest) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if g.handler() == nil {
		return nil, errClosed
	}
	ours, theirs := net.Pipe()
	g.mu.Lock()
	if g.over || g.frozen {
		g.mu.Unlock()
		return nil, errClosed
	}
	g.open[theirs] = true
	g.mu.Unlock()
	select {
	case g.conns <- theirs:
		return ours, nil
	case <-g.ended:
		return nil, errClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// freeze is a pause, and its end. What was connected is not any more.
func (g *guest) freeze(frozen bool) {
	g.mu.Lock()
	g.frozen = frozen
	g.mu.Unlock()
	if frozen {
		g.drop()
	}
}

// drop ends the connections.
func (g *guest) drop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn := range g.open {
		_ = conn.Close()
	}
	clear(g.open)
}

// end is the end of the sandbox.
func (g *guest) end() {
	g.mu.Lock()
	over := g.over
	g.over = true
	g.mu.Unlock()
	if !over {
		close(g.ended)
		_ = g.server.Close()
		g.drop()
	}
}

// Accept makes it a net.Listener.
func (g *guest) Accept() (net.Conn, error) {
	select {
	case conn := <-g.conns:
		return guestConn{conn, g}, nil
	case <-g.ended:
		return nil, net.ErrClosed
	}
}

// Close and Addr belong to a net.Listener.
func (g *guest) Close() error { return nil }

// Addr is where it seems to listen.
func (g *guest) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8000} }

// guestConn forgets itself when it is closed.
type guestConn struct {
	net.Conn
	guest *guest
}

func (c guestConn) Close() error {
	c.guest.mu.Lock()
	delete(c.guest.open, c.Conn)
	c.guest.mu.Unlock()
	return c.Conn.Close()
}
