package telemetry

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/openhands/boxkeeper/box"
)

const readyWithin = 5 * time.Second

// Server answers /healthz, /readyz and /metrics.
type Server struct {
	http   *http.Server
	listen net.Listener
	done   chan error
}

// Serve listens on address and answers until Close. A taken port is Invalid.
//
// /healthz is 200 while the process can answer at all. /readyz is 200 while
// ready returns nil, else 503 with its sentence; ready gets 5 seconds. There is
// no login, so ready must not say anything that a stranger may not know.
func Serve(ctx context.Context, address string, ready func(context.Context) error, metrics http.Handler) (*Server, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, box.Invalidf("listen", "cannot listen on %s: %v; name another address, port 0 for a free one, or \"off\" with BOXKEEPER_LISTEN or listen in the configuration file", address, plain(err))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyWithin)
		defer cancel()
		if err := ready(ctx); err != nil {
			answer(w, http.StatusServiceUnavailable, "not ready: "+escape(err.Error()))
			return
		}
		answer(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", metrics)
	s := &Server{
		http: &http.Server{
			Handler:           mux,
			ReadTimeout:       5 * time.Second,
			ReadHeaderTimeout: 5 * time.Second,
			WriteTimeout:      30 * time.Second,
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    16 << 10,
		},
		listen: listener,
		done:   make(chan error, 1),
	}
	go func() { s.done <- s.http.Serve(listener) }()
	return s, nil
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // a caller that is gone needs no answer
}

// plain takes the address out of an error whose message names it already.
func plain(err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e.Err
	}
	return err
}

// Address returns where it listens, with the port that was picked.
func (s *Server) Address() string { return s.listen.Addr().String() }

// Close lets running answers end until ctx does, then cuts them. Nothing of it
// runs afterwards. Call it once.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		_ = s.http.Close()
	}
	if served := <-s.done; served != nil && !errors.Is(served, http.ErrServerClosed) {
		err = served
	}
	if err != nil {
		return box.Errorf(box.ClassInternal, "stop the health server: %w", err)
	}
	return nil
}
