package digitalocean

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// How a port-forward ends that did not come to be [client of the service, Aug 2026].
const (
	closeUnavailable = 4001 // the session does not run
	closeNoDial      = 4002 // nothing listens on the port in the sandbox
	closeUpstream    = 4011 // the service lost the sandbox
)

const (
	dialWait = 15 * time.Second
	// pingEvery keeps an idle connection known to the proxies on its way.
	pingEvery = 30 * time.Second
	writeWait = 30 * time.Second
	firstWait = time.Minute
)

// tunnels are the listeners of this process, one for each session that has no
// public address. Each ends with the suspend or the deletion of its box, and when
// it was not used for a while: another worker may have done these.
type tunnels struct {
	mu   sync.Mutex
	open map[string]*tunnel
}

// tunnel forwards every connection to its listener over a WebSocket of its own.
type tunnel struct {
	listener net.Listener
	conns    map[net.Conn]bool
	closed   bool
	used     time.Time
}

// tunnelTo returns the address of the tunnel to a session. Everybody on this
// machine can reach it, as they can a box of the local provider; the agent-server
// asks for its key.
func (d *Driver) tunnelTo(ctx context.Context, id string) (driver.Endpoint, error) {
	d.tunnels.mu.Lock()
	defer d.tunnels.mu.Unlock()
	t := d.tunnels.open[id]
	if t == nil {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return driver.Endpoint{}, box.Errorf(box.ClassUnavailable, "open a tunnel to session %s: %w", id, err)
		}
		t = &tunnel{listener: listener, conns: map[net.Conn]bool{}}
		d.tunnels.open[id] = t
		go d.serve(id, t)
		time.AfterFunc(d.opts.TunnelIdle, func() { d.retire(id, t) })
	}
	t.used = time.Now()
	return driver.Endpoint{URL: "http://" + t.listener.Addr().String()}, nil
}

// retire closes a tunnel that was not used for as long as one is kept, and looks
// again later at one that was.
func (d *Driver) retire(id string, t *tunnel) {
	d.tunnels.mu.Lock()
	defer d.tunnels.mu.Unlock()
	if t.closed {
		return
	}
	if left := d.opts.TunnelIdle - time.Since(t.used); len(t.conns) > 0 || left > 0 {
		time.AfterFunc(max(left, d.opts.TunnelIdle/4, time.Millisecond), func() { d.retire(id, t) })
		return
	}
	d.shut(id, t)
}

// hangUpAll ends the tunnel to a session that was suspended or deleted, with its
// connections: whoever holds its address still is refused at once and asks for
// another one. The system may give the port again, to whom it likes, so an address
// is not to be kept over a suspend.
func (d *Driver) hangUpAll(id string) {
	d.tunnels.mu.Lock()
	defer d.tunnels.mu.Unlock()
	if t := d.tunnels.open[id]; t != nil {
		d.shut(id, t)
	}
}

// shut closes a tunnel. The lock of the tunnels is held.
func (d *Driver) shut(id string, t *tunnel) {
	t.closed = true
	if d.tunnels.open[id] == t {
		delete(d.tunnels.open, id)
	}
	if err := t.listener.Close(); err != nil {
		d.opts.Logger.Warn("a tunnel did not close", "session", id, "error", err)
	}
	for c := range t.conns {
		c.Close()
	}
}

// serve takes connections until the listener is closed.
func (d *Driver) serve(id string, t *tunnel) {
	for {
		local, err := t.listener.Accept()
		if err != nil {
			d.tunnels.mu.Lock()
			if d.tunnels.open[id] == t { // it broke: the next call opens another one
				delete(d.tunnels.open, id)
			}
			d.tunnels.mu.Unlock()
			return
		}
		if !d.enter(t, local) {
			local.Close()
			return
		}
		go func() {
			defer d.leave(t, local)
			defer local.Close()
			if err := d.forward(id, local); err != nil {
				d.opts.Logger.Info("a connection of a tunnel ended", "session", id, "error", err)
			}
		}()
	}
}

// enter counts a connection of a tunnel; false when the tunnel was closed.
func (d *Driver) enter(t *tunnel, local net.Conn) bool {
	d.tunnels.mu.Lock()
	defer d.tunnels.mu.Unlock()
	if t.closed {
		return false
	}
	t.conns[local] = true
	t.used = time.Now()
	return true
}

func (d *Driver) leave(t *tunnel, local net.Conn) {
	d.tunnels.mu.Lock()
	defer d.tunnels.mu.Unlock()
	delete(t.conns, local)
	t.used = time.Now()
}

// forward carries one connection. What speaks HTTP on it is told when the sandbox
// cannot be reached, in place of a connection that ends without a word.
//
// Opening a port-forward is use, so it waits for a first word: clients of HTTP open
// connections that they never use.
func (d *Driver) forward(id string, local net.Conn) error {
	first, err := firstOf(local)
	if err != nil {
		return nil // nobody asked for anything
	}
	remote, err := d.api.dial(id)
	if err != nil {
		answerUnavailable(local, err)
		return err
	}
	defer hangUp(remote)
	sent, heard := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(sent)
		send(remote, local, first)
	}()
	said := false
	go func() {
		var err error
		said, err = hear(local, remote)
		heard <- err
	}()
	var end error
	select {
	case end = <-heard:
	case <-sent: // whoever asked has hung up, or the other side is heard to be gone
		late := time.AfterFunc(time.Second, func() { hangUp(remote) })
		end = <-heard
		late.Stop()
	}
	why := closedAs(end)
	if why != nil && !said {
		answerUnavailable(local, why)
	}
	local.Close()
	hangUp(remote)
	<-sent
	return why
}

// hangUp ends a connection; there is nobody left to tell that it did not work.
func hangUp(remote *websocket.Conn) { _ = remote.Close() }

// firstOf returns the first that comes on a connection.
func firstOf(local net.Conn) ([]byte, error) {
	if err := local.SetReadDeadline(time.Now().Add(firstWait)); err != nil {
		return nil, err
	}
	buffer := make([]byte, 32<<10)
	n, err := local.Read(buffer)
	if n == 0 {
		return nil, err
	}
	return buffer[:n], local.SetReadDeadline(time.Time{})
}

// send carries first and then what comes from here, and pings when nothing does,
// until either side ends.
func send(remote *websocket.Conn, local net.Conn, first []byte) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case <-over:
				return
			case <-tick.C:
				if remote.WriteControl(websocket.PingMessage, nil, time.Now().Add(pingEvery)) != nil {
					local.Close()
					return
				}
			}
		}
	}()
	write := func(p []byte) bool {
		return remote.SetWriteDeadline(time.Now().Add(writeWait)) == nil && remote.WriteMessage(websocket.BinaryMessage, p) == nil
	}
	if !write(first) {
		return
	}
	buffer := make([]byte, 32<<10)
	for {
		n, err := local.Read(buffer)
		if n > 0 && !write(buffer[:n]) {
			return
		}
		if err != nil {
			// Whoever asked is done. What the other side has to say is not waited for
			// longer than a moment.
			_ = remote.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
			return
		}
	}
}

// hear carries what comes from the sandbox, until either side ends. It reports
// whether anything came.
func hear(local net.Conn, remote *websocket.Conn) (said bool, err error) {
	alive := func(string) error { return remote.SetReadDeadline(time.Now().Add(2*pingEvery + writeWait)) }
	remote.SetPongHandler(alive)
	for {
		if err := alive(""); err != nil {
			return said, err
		}
		_, message, err := remote.NextReader()
		if err != nil {
			return said, err
		}
		n, err := io.Copy(local, message)
		said = said || n > 0
		if err != nil {
			return said, err
		}
	}
}

// closedAs says why the service ended a connection; nil when nothing is wrong.
func closedAs(err error) error {
	end, ok := errors.AsType[*websocket.CloseError](err)
	if !ok {
		return nil
	}
	switch end.Code {
	case closeUnavailable:
		return box.Errorf(box.ClassUnavailable, "the session cannot be reached (4001); look whether it runs")
	case closeNoDial:
		return box.Errorf(box.ClassUnavailable, "nothing listens on port %s in the sandbox yet (4002); try again", agentPort)
	case closeUpstream:
		return box.Errorf(box.ClassUnavailable, "the service lost the sandbox (4011); try again")
	}
	return nil
}

// dial opens a port-forward: one WebSocket carries one connection. It is nobody's
// call, so it has no context but its own bound.
func (a *api) dial(id string) (*websocket.Conn, error) {
	at := *a.regional.BaseURL
	at.Scheme = "ws" + strings.TrimPrefix(at.Scheme, "http")
	at.Path = sessionsPath + "/" + url.PathEscape(id) + "/port-forward/" + agentPort
	dialer := websocket.Dialer{Proxy: http.ProxyFromEnvironment, HandshakeTimeout: dialWait}
	if t, ok := a.carrier.(*http.Transport); ok { // what it was told of the network holds here too
		dialer.Proxy, dialer.NetDialContext, dialer.NetDialTLSContext = t.Proxy, t.DialContext, t.DialTLSContext
		if t.TLSClientConfig != nil {
			dialer.TLSClientConfig = t.TLSClientConfig.Clone()
			dialer.TLSClientConfig.NextProtos = nil // of HTTP/2
		}
	}
	header := http.Header{}
	header.Set("Authorization", "Bearer "+a.token.Reveal())
	header.Set("X-Device-UUID", a.device)
	header.Set("User-Agent", a.regional.UserAgent)
	what := "open a tunnel to session " + id
	remote, answer, err := dialer.Dial(at.String(), header)
	if err == nil {
		return remote, nil
	}
	if answer == nil {
		return nil, box.Errorf(box.ClassUnavailable, "%s: %s; try again", what, a.clean(err.Error(), nil))
	}
	// The reason is in the body; the library's error does not have it.
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 1024))
	answer.Body.Close()
	return nil, box.Errorf(box.ClassUnavailable, "%s: DigitalOcean answers %d, %q", what, answer.StatusCode, a.clean(string(body), nil))
}

// deviceOf is the id of a client of the service, which it asks of every tunnel
// [doctl, Aug 2026]: one for each installation.
func deviceOf(installation string) string {
	sum := sha256.Sum256([]byte("boxkeeper device " + installation))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	h := hex.EncodeToString(sum[:16])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// answerUnavailable tells an HTTP client what went wrong, and takes what it has
// sent already, since a reset would reach it before the words.
func answerUnavailable(local net.Conn, why error) {
	if err := local.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return
	}
	text := why.Error() + "\n"
	_, err := fmt.Fprintf(local, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text)
	half, ok := local.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		return
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(local, 1<<20)); err != nil && !errors.Is(err, io.EOF) {
		return
	}
}
