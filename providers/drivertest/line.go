package drivertest

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Wire is a harness of a driver that talks HTTP. The suite then also breaks
// what lies between the driver and its service, request by request, at each
// call. A driver of another kind does without.
type Wire interface {
	Harness
	// Line returns what stands in front of the service of this place: every
	// request of every driver of the place passes it.
	Line() *Line
	// Boxes counts the boxes of a name by the service's own books, deleted ones
	// left out. It does not ask the driver, which may overlook one.
	Boxes(t *testing.T, name string) int
	// StateFields names the fields of the service's answers that say what a box
	// is doing, such as "status", wherever they lie in an answer.
	StateFields() []string
}

// Paged is a harness whose service lists boxes in pages.
type Paged interface {
	// PageSize is how many boxes a page holds in the tests; 2 is enough. 0 says
	// that the service has no pages.
	PageSize() int
}

// Detour is a harness whose driver has a second way to a box, for when the first is
// refused.
type Detour interface {
	// Detour reports whether an address is of the second way.
	Detour(url string) bool
}

// Line is the way between the drivers of a place and its service. It passes
// everything on until a case of the suite breaks it. A harness serves it in
// place of its service:
//
//	line := drivertest.NewLine(service) // an http.Handler: a fake, or a proxy of a real one
//	server := httptest.NewServer(line)
type Line struct {
	service http.Handler

	mu      sync.Mutex
	broken  *breakage      // nil while all is well
	count   int            // requests of this call
	hits    int            // those that went wrong
	carried bool           // one that can change something was done, and its answer arrived
	sent    map[string]int // how often each that can change something came in this call
	secrets []string       // credentials that were seen
	other   string         // the host that a redirect leads to
	record  map[string]*httptest.ResponseRecorder
	replay  map[string]*httptest.ResponseRecorder
}

// leads reports whether a redirect of the suite leads to host.
func (l *Line) leads(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return host != "" && host == l.other
}

// leadTo notes where redirects lead.
func (l *Line) leadTo(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.other = host
}

// NewLine returns a line to service that is whole.
func NewLine(service http.Handler) *Line { return &Line{service: service} }

// breakage is one way in which a line goes wrong.
type breakage struct {
	from  int  // the first request of a call that goes wrong
	once  bool // those after it are well again
	serve func(x *exchange)
	over  chan struct{} // closed when the line is whole again
	held  chan struct{} // closed when the first request is held
	first sync.Once
}

// exchange is one request that goes wrong.
type exchange struct {
	w       http.ResponseWriter
	r       *http.Request
	broken  *breakage
	service http.Handler
	miss    func() // nothing in this exchange could go wrong, so nothing did
	carried func()
}

// hold keeps the caller waiting until it goes or the line is whole again.
func (x *exchange) hold() {
	x.broken.first.Do(func() { close(x.broken.held) })
	select {
	case <-x.r.Context().Done():
	case <-x.broken.over:
	}
	panic(http.ErrAbortHandler)
}

// answer lets the service do its work and keeps what it says.
func (x *exchange) answer() *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	x.service.ServeHTTP(rec, x.r)
	return rec
}

// pass sends an answer on, as it was or changed.
func (x *exchange) pass(rec *httptest.ResponseRecorder) {
	if !reads(x.r) && rec.Code < 300 {
		x.carried()
	}
	send(x.w, rec)
}

// ServeHTTP passes a request on, or does what the case wants.
func (l *Line) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	l.count++
	l.note(r.Header)
	b := l.broken
	hit := b != nil && (l.count == b.from || l.count > b.from && !b.once)
	if hit {
		l.hits++
	}
	key := r.Method + " " + r.URL.RequestURI()
	if !reads(r) && l.sent != nil {
		l.sent[key]++
	}
	old := l.replay[key]
	taping := l.record != nil && reads(r)
	l.mu.Unlock()
	carried := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.carried = true
	}
	switch {
	case hit:
		b.serve(&exchange{
			w: w, r: r, broken: b, service: l.service, carried: carried,
			miss: func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.hits--
			},
		})
	case old != nil:
		send(w, old)
	case taping:
		rec := httptest.NewRecorder()
		l.service.ServeHTTP(rec, r)
		l.mu.Lock()
		l.record[key] = rec
		l.mu.Unlock()
		send(w, rec)
	case reads(r):
		l.service.ServeHTTP(w, r) // not wrapped: it may be a stream
	default:
		rec := httptest.NewRecorder()
		l.service.ServeHTTP(rec, r)
		if rec.Code < 300 {
			carried()
		}
		send(w, rec)
	}
}

// reads reports whether a request can change nothing.
func reads(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
}

func send(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
	maps.Copy(w.Header(), rec.Header())
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes()) // whoever asked may have gone
}

// note remembers the credentials of a request: none of them may be in an error.
func (l *Line) note(header http.Header) {
	for name, values := range header {
		name = strings.ToLower(name)
		tells := slices.ContainsFunc([]string{"authorization", "key", "token", "auth", "secret", "cookie"}, func(part string) bool {
			return strings.Contains(name, part)
		})
		if !tells || strings.Contains(name, "idempotency") || strings.HasPrefix(name, "sec-") {
			continue
		}
		for _, value := range values {
			for word := range strings.FieldsSeq(value) {
				if len(word) > 7 && !slices.Contains(l.secrets, word) {
					l.secrets = append(l.secrets, word)
				}
			}
		}
	}
}

// credentials returns those that drivers of this place have sent, and what the
// boxes of the suite are started with.
func (l *Line) credentials() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := slices.Clone(l.secrets)
	given := bare{}.start()
	for _, value := range given.SecretEnv {
		out = append(out, value.Reveal())
	}
	return append(out, given.SessionKey.Reveal())
}

// open begins to count the requests of a call.
func (l *Line) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken, l.count, l.hits, l.carried = nil, 0, 0, false
	l.sent = map[string]int{}
}

// twice names a request that can change something and that came more than once
// since the line was opened; empty if none did.
func (l *Line) twice() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range slices.Sorted(maps.Keys(l.sent)) {
		if l.sent[one] > 1 {
			method, _, _ := strings.Cut(one, " ") // a path may hold anything
			return "a " + method
		}
	}
	return ""
}

// requests is how many there were since the line was opened.
func (l *Line) requests() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// snap breaks the line from a request of the next call on.
func (l *Line) snap(from int, once bool, serve func(x *exchange)) *breakage {
	l.open()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = &breakage{from: from, once: once, serve: serve, over: make(chan struct{}), held: make(chan struct{})}
	return l.broken
}

// mend makes the line whole, and says what went over it while it was broken.
func (l *Line) mend() (hits int, carried bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		close(l.broken.over)
	}
	l.broken = nil
	return l.hits, l.carried
}

// tape keeps the answers to all reading requests until it is called again.
func (l *Line) tape(on bool) map[string]*httptest.ResponseRecorder {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.record
	l.record = nil
	if on {
		l.record = map[string]*httptest.ResponseRecorder{}
	}
	return out
}

// lag answers requests as they were answered once; nil ends that.
func (l *Line) lag(old map[string]*httptest.ResponseRecorder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replay = old
}
