package runtimeapitest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options shapes a [Service]. The zero value is the public chart of 30 Jun
// 2026: paused after 20 minutes without use, deleted after 60 days paused.
type Options struct {
	// Keys are the API keys; each is a tenant of its own and sees its own boxes
	// only. The zero value is one key, "runtime-api-key".
	Keys []string
	// HostStyle gives each box a host name, http://{id}.localhost:port, which
	// [Service.Client] can dial. The zero value is a path: {URL}/{id}.
	HostStyle bool
	// Box makes the handler behind a box, each time its processes start. It sees
	// paths without the box's prefix. Nil is a small agent-server that follows
	// the service's clock, see [Service.Use].
	Box func(Life) http.Handler

	// Idle is RUNTIME_IDLE_SECONDS, Dead is RUNTIME_DEAD_SECONDS; zero is what the
	// chart says, negative switches the reaper off.
	Idle, Dead time.Duration
	// MaxRun is a cap on the time awake since the last start; zero is none. What a
	// real cap does is unknown: it pauses, with MaxRunStops it deletes.
	MaxRun      time.Duration
	MaxRunStops bool

	// How long a change takes, counted in readings of the box: Starting of them
	// say "starting"; NotReady say "running" with a pod that is not ready; then
	// NoIngress requests to the box are answered 502. After a pause Pausing
	// readings still say "running", after a resume Resuming still say "paused".
	Starting, NotReady, NoIngress, Pausing, Resuming int

	// NoPodStatus leaves pod_status out of every answer.
	NoPodStatus bool
	// ShowStopped answers GET for a stopped box with status "stopped" instead of 404.
	ShowStopped bool
	// ListFailed shows boxes in status "error" in /list. Whether the real list has
	// them is unknown.
	ListFailed bool
	// Detail words a 404 as {"detail":…}, as a re-implementation does, instead of
	// {"error":"Runtime not found"}.
	Detail bool
}

// Life is one start of a box's processes.
type Life struct {
	RuntimeID, SessionID string
	Key                  string // that callers must send from now on
	Environment          map[string]string
}

// Service is the fake. Safe for concurrent use.
type Service struct {
	opts   Options
	routes http.Handler
	web    *http.Server
	addr   string
	closed chan struct{}

	reaping sync.Mutex // one pass of the reaper at a time
	mu      sync.Mutex
	now     time.Time
	boxes   []*sandbox // in order of creation, stopped ones too
	calls   []Call
	faults  []*Fault
	builds  map[string]build
}

const (
	defaultKey = "runtime-api-key"
	chartIdle  = 1200 * time.Second
	chartDead  = 5184000 * time.Second // since 30 Jun 2026; 86400 s before
	reapEvery  = 5 * time.Minute
)

// Start serves on a loopback port until Close.
func Start(opts Options) (*Service, error) {
	if len(opts.Keys) == 0 {
		opts.Keys = []string{defaultKey}
	}
	if opts.Idle == 0 {
		opts.Idle = chartIdle
	}
	if opts.Dead == 0 {
		opts.Dead = chartDead
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // local and instant
	if err != nil {
		return nil, err
	}
	s := &Service{
		opts:   opts,
		addr:   listener.Addr().String(),
		closed: make(chan struct{}),
		now:    time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		builds: map[string]build{},
	}
	s.routes = s.mux()
	s.web = &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	go func() {
		if err := s.web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			panic(err)
		}
	}()
	return s, nil
}

// Close ends the service and every call that hangs.
func (s *Service) Close() {
	close(s.closed)
	_ = s.web.Close()
}

// URL is the base address.
func (s *Service) URL() string { return "http://" + s.addr }

// Transport dials this service whatever host is asked for, so that host names
// of boxes work without a name server. Close its idle connections when done.
func (s *Service) Transport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.addr)
		},
	}
}

// Client is a client over Transport that follows no redirects.
func (s *Service) Client() *http.Client {
	return &http.Client{
		Transport:     s.Transport(),
		Timeout:       time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ServeHTTP answers the API, and for the boxes.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if id, _, ok := strings.Cut(r.Host, ".localhost"); ok && s.opts.HostStyle {
		s.ingress(w, r, id)
		return
	}
	s.routes.ServeHTTP(w, r)
}

// Advance moves the clock; the reaper runs at each full 5 minutes on the way,
// as its cron job does.
func (s *Service) Advance(by time.Duration) {
	s.reaping.Lock()
	defer s.reaping.Unlock()
	s.mu.Lock()
	now := s.now
	s.mu.Unlock()
	end := now.Add(max(0, by))
	for at := now.Truncate(reapEvery).Add(reapEvery); !at.After(end); at = at.Add(reapEvery) {
		if !s.anything() { // nothing can fall due: no need to walk through weeks
			break
		}
		s.set(at)
		s.reap()
	}
	s.set(end)
}

func (s *Service) set(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
	for _, b := range s.boxes {
		b.bill(now)
	}
}

// Boxes are all boxes that there ever were, in the order of their creation.
func (s *Service) Boxes() []Box {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Box, 0, len(s.boxes))
	for _, b := range s.boxes {
		b.bill(s.now)
		out = append(out, b.Box)
	}
	return out
}

// Living are the boxes of a session that are not stopped: more than one is a
// double create.
func (s *Service) Living(sessionID string) []Box {
	return slices.DeleteFunc(s.Boxes(), func(b Box) bool { return b.SessionID != sessionID || b.Status == StatusStopped })
}

// Calls is the log of the requests so far, those to boxes included.
func (s *Service) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}
