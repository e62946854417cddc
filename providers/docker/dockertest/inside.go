package dockertest

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Inside makes what answers on the port of a container, each time its processes
// begin; it sees the environment that was copied in for them. It is called while
// the engine waits for it, and must not call the engine.
type Inside func(name string, env map[string]string) http.Handler

// SetInside says what runs in containers that start from now on. Without it they
// answer everything with an empty page.
func (e *Engine) SetInside(inside Inside) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inside = inside
}

// serve lets a container answer on its port, by hanging while it is paused.
func (e *Engine) serve(b *box, port string) (string, error) {
	var listener net.Listener
	var err error
	for {
		if listener, err = net.Listen("tcp", "127.0.0.1:"+port); err != nil { //nolint:noctx // local and instant
			return "", err
		}
		_, got, _ := net.SplitHostPort(listener.Addr().String())
		if port != "0" || got != b.lastPort { // a real engine counts on
			b.lastPort = got
			break
		}
		defer listener.Close()
	}
	var inside http.Handler
	if e.inside != nil {
		inside = e.inside(strings.TrimPrefix(b.Name, "/"), b.environment())
	}
	serving := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		paused := b.paused
		e.mu.Unlock()
		if paused != nil {
			select {
			case <-paused:
			case <-r.Context().Done():
			}
		}
		if inside != nil {
			inside.ServeHTTP(w, r)
		}
	})}
	b.serving = serving
	go func() { _ = serving.Serve(listener) }()
	return b.lastPort, nil
}

// environment is what was copied in for boxd.
func (b *box) environment() map[string]string {
	out := map[string]string{}
	if at := slices.Index(b.Config.Entrypoint, "--env-file"); at >= 0 {
		for one := range strings.SplitSeq(string(b.files[b.Config.Entrypoint[at+1]]), "\x00") {
			if name, value, ok := strings.Cut(one, "="); ok {
				out[name] = value
			}
		}
	}
	return out
}

func (e *Engine) unserve(b *box) {
	if b.serving != nil {
		_ = b.serving.Close()
		b.serving = nil
	}
	if b.paused != nil {
		close(b.paused)
		b.paused = nil
	}
}
