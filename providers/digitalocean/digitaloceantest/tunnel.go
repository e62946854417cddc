package digitaloceantest

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/gorilla/websocket"
)

// Close codes of a tunnel [third party; command-line client of the vendor].
const (
	CloseSession  = 4001 // the session is unavailable
	CloseDial     = 4002 // nothing listens on that port
	CloseUpstream = 4011 // an error on the way
)

// tunnel carries the bytes of one TCP connection to a port of the sandbox.
func (c *call) tunnel() answer {
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	port, err := strconv.Atoi(c.ids[1])
	if err != nil || port < 1024 || port > 65535 {
		return refuse(http.StatusBadRequest, "port must be from 1024 to 65535")
	}
	if !websocket.IsWebSocketUpgrade(c.r) {
		return refuse(http.StatusBadRequest, "port-forward needs a WebSocket")
	}
	code := 0
	if !ses.runs(c.now) {
		if !c.s.opts.TunnelTakesPaused {
			return refuse(http.StatusConflict, "session is not running")
		}
		code = CloseSession
	}
	var inside *guest
	if code == 0 {
		ses.use(c.now, c.s.opts.NoActivity.Tunnel)
		if inside = ses.listener(c.s); inside == nil || port != 8000 {
			code = CloseDial
		}
	}
	if c.fault != nil && c.fault.Close != 0 {
		code = c.fault.Close
	}
	return answer{status: http.StatusSwitchingProtocols, take: func(w http.ResponseWriter, r *http.Request) {
		c.s.forward(w, r, ses, inside, code)
	}}
}

// forward runs one tunnel until an end hangs up or the session stops.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, ses *session, inside *guest, code int) {
	up := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	ws, err := up.Upgrade(w, r, nil)
	if err != nil {
		return // answered by the upgrader
	}
	defer ws.Close() //nolint:errcheck // nobody is left to tell
	hangUp := func(code int) {
		text := websocket.FormatCloseMessage(code, "")
		_ = ws.WriteControl(websocket.CloseMessage, text, time.Now().Add(time.Second))
	}
	if code != 0 {
		hangUp(code)
		return
	}
	runs := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return ses.runs(s.time())
	}
	conn, err := inside.dial(r.Context(), "tcp", "")
	switch {
	case err != nil && !runs(): // it stopped meanwhile
		hangUp(CloseSession)
		return
	case err != nil:
		hangUp(CloseDial)
		return
	}
	sent := make(chan struct{})
	go func() { // ends when the WebSocket does, which is below
		defer close(sent)
		fromClient(ws, conn)
	}()
	err = toClient(ws, conn)
	switch {
	case !runs():
		hangUp(CloseSession)
	case err != nil:
		hangUp(CloseUpstream)
	default:
		hangUp(websocket.CloseNormalClosure)
	}
	_ = conn.Close()
	_ = ws.Close()
	<-sent
}

// fromClient passes on what the client sends. Its end ends the connection.
func fromClient(ws *websocket.Conn, conn net.Conn) {
	defer conn.Close() // the other end sees it
	for {
		kind, data, err := ws.ReadMessage()
		if err != nil || kind != websocket.BinaryMessage {
			return
		}
		if _, err := conn.Write(data); err != nil {
			return
		}
	}
}

// toClient passes on what the guest sends until it hangs up.
func toClient(ws *websocket.Conn, conn net.Conn) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := ws.WriteMessage(websocket.BinaryMessage, buf[:n]); err != nil {
				return nil //nolint:nilerr // the client has gone
			}
		}
		if err != nil {
			if err == io.EOF || err == io.ErrClosedPipe { //nolint:errorlint // what a pipe documents
				return nil
			}
			return err
		}
	}
}
