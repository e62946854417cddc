package digitaloceantest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Hosts of the service.
const (
	apiHost       = "api.digitalocean.com"
	apiHostPrefix = "api-"
	apiHostSuffix = ".digitalocean.com"
	ingressSuffix = ".sandbox.ondigitalocean.com"
)

// Server is the fake service, an http.Handler that must be served at the root.
// Safe for concurrent use. Close ends what it started.
type Server struct {
	opts Options

	mu        sync.Mutex
	now       time.Time     // of its own clock
	moved     chan struct{} // closed and replaced whenever the clock moves
	teams     map[string]*team
	sessions  []*session // by age
	configs   []*config
	spaces    []*workspace
	triggers  []*trigger
	transfers map[string]*transfer
	hosts     map[string]*session // live ingress hosts
	serial    int                 // of ids
	changes   int                 // of states, for stale reads
	later     []deferred
	faults    []*Fault
	requests  []*Request
	secrets   map[string]bool // values that records must not hold
	failBoots int
	noIngress bool // 501 for all
	noPause   bool // 501 for all: not a microVM
	noSecrets bool // 503 on create

	webs    map[string]*web // "" is the one that goes by the Host header
	closing chan struct{}
	closed  bool
	running sync.WaitGroup
}

// web is one listener of the server.
type web struct {
	addr   string
	server *http.Server
}

type team struct {
	Team
	balance  float64
	prepaid  Prepayment
	requests []time.Time // of the last hour
}

type regionKey struct{}

// New makes a server. It listens only once URL, Transport or Dial is asked for.
func New(opts Options) *Server {
	opts = opts.withDefaults()
	s := &Server{
		opts: opts, now: opts.Start.UTC(), moved: make(chan struct{}), teams: map[string]*team{},
		transfers: map[string]*transfer{}, hosts: map[string]*session{}, secrets: map[string]bool{},
		webs: map[string]*web{}, closing: make(chan struct{}),
	}
	for _, t := range opts.Teams {
		s.teams[t.Token] = &team{Team: t, balance: 25, prepaid: Prepayment{Balance: "25.00", Eligible: true, MonthToDateBalance: "0.00"}}
		s.secrets[t.Token] = true
	}
	return s
}

// URL is the base URL of a region's API on a loopback port, with a slash at its
// end; an empty slug means the default region. It panics when the machine has
// no loopback port to give.
func (s *Server) URL(region string) string {
	if region == "" {
		region = s.opts.Regions[0]
	}
	if !slices.Contains(s.opts.Regions, region) {
		panic("digitaloceantest: there is no region " + region)
	}
	return "http://" + s.listen(region).addr + "/"
}

// Transport reaches the server whatever host a URL names: the API hosts, and
// the hosts of ingress URLs. What is https for the client is plain on the way.
func (s *Server) Transport() *http.Transport {
	return &http.Transport{DialContext: s.Dial, DialTLSContext: s.Dial}
}

// Dial connects to the server, whatever the address.
func (s *Server) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", s.listen("").addr)
}

// listen returns the listener for a region, or for all hosts if empty.
func (s *Server) listen(region string) *web {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.webs[region]; w != nil {
		return w
	}
	var handler http.Handler = s
	if region != "" {
		handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), regionKey{}, region)))
		})
	}
	w, err := s.serve(handler)
	if err != nil {
		panic("digitaloceantest: listen on a loopback port: " + err.Error())
	}
	s.webs[region] = w
	return w
}

// serve listens on a loopback port of its own. The lock is held.
func (s *Server) serve(handler http.Handler) (*web, error) {
	if s.closed {
		return nil, errors.New("the server is closed")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // local and instant
	if err != nil {
		return nil, err
	}
	w := &web{addr: listener.Addr().String(), server: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}}
	s.running.Go(func() { _ = w.server.Serve(listener) }) // ends with Close
	return w, nil
}

// Close ends all connections, hanging answers included, and waits for what the
// server started.
func (s *Server) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	close(s.closing)
	for _, w := range s.webs {
		_ = w.server.Close()
	}
	for _, ses := range s.sessions {
		ses.revoke(s)
		if ses.guest != nil {
			ses.guest.end()
		}
	}
	s.mu.Unlock()
	s.running.Wait()
}

// ServeHTTP answers as the API or as the ingress of a session, by the host.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	switch {
	case strings.HasSuffix(host, ingressSuffix):
		s.serveIngress(w, r, host)
		return
	case host == spaceHost:
		s.serveSpace(w, r)
		return
	}
	region, _ := r.Context().Value(regionKey{}).(string)
	if region == "" {
		region = s.opts.Regions[0]
		if slug, regional := regionOf(host); regional {
			region = slug
		}
	}
	if r.URL.Path == loginPath {
		serveLogin(w)
		return
	}
	s.serveAPI(w, r, region)
}

// regionOf reads the slug out of the name of a regional API host.
func regionOf(host string) (slug string, regional bool) {
	if host == apiHost {
		return "", false
	}
	rest, ok := strings.CutSuffix(host, apiHostSuffix)
	if !ok {
		return "", false
	}
	return strings.CutPrefix(rest, apiHostPrefix)
}

// newID makes an id that is the same in every run. The lock is held.
func (s *Server) newID(kind string) string {
	s.serial++
	return uuidOf(kind, int64(s.serial))
}

// uuidOf makes a UUID that looks like one of version 7.
func uuidOf(kind string, number int64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", kind, number))
	h := []byte(hex.EncodeToString(sum[:16]))
	copy(h, fmt.Sprintf("01a0a8%06x", number&0xffffff))
	h[12], h[16] = '7', '8'
	return fmt.Sprintf("%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:32])
}
