package dockertest

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/api/types/volume"
)

// Engine is one fake engine. Its methods may be called at once.
type Engine struct {
	server *httptest.Server

	mu         sync.Mutex
	id, data   string // of the engine, and of its data directory
	api, least string
	down       bool
	faults     []fault
	calls      []string
	images     []*stored
	registry   map[string]Image
	containers map[string]*box
	volumes    map[string]volume.Volume
	kept       map[string]map[string][]byte // what is in volumes whose container is gone
	watchers   map[chan events.Message]bool
	stopping   chan struct{} // held stops wait for its end; nil for none
	committing chan struct{} // and held commits
	closed     chan struct{}
	clock      func() time.Time
	inside     Inside
	ledger     []string
}

// Image is what the engine knows of an image.
type Image struct {
	Architecture, User string
	Labels             map[string]string
	Env                []string
	Files              []string // the programs in it
}

// Fault is what happens to one call instead of its answer. One that has only First
// lets the call be done as ever after it.
type Fault struct {
	First   func() // runs right before; it may call the engine
	Status  int
	Message string
	Header  map[string]string
	Lose    bool // it is done, and the connection breaks before the answer
	Cut     bool // the connection breaks before it is done
}

type fault struct {
	method string
	path   *regexp.Regexp
	Fault
}

// box is a container.
type box struct {
	container.InspectResponse
	from     *stored
	files    map[string][]byte
	owners   map[string][2]int
	paused   chan struct{}
	serving  *http.Server
	lastPort string
}

// New starts an engine that speaks API versions from least to api.
func New(t *testing.T, api, least string) *Engine {
	t.Helper()
	e := &Engine{
		id: random(), data: random(), api: api, least: least,
		registry:   map[string]Image{},
		containers: map[string]*box{}, volumes: map[string]volume.Volume{}, kept: map[string]map[string][]byte{},
		watchers: map[chan events.Message]bool{}, closed: make(chan struct{}), clock: time.Now,
	}
	e.server = httptest.NewServer(e)
	t.Cleanup(func() {
		close(e.closed)
		e.server.CloseClientConnections()
		e.server.Close()
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, b := range e.containers {
			e.unserve(b)
		}
	})
	return e
}

// Host is the address for clients.
func (e *Engine) Host() string { return "tcp://" + e.server.Listener.Addr().String() }

// AddImage gives the engine an image.
func (e *Engine) AddImage(name string, image Image) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.add(name, &stored{Image: image, size: baseSize})
}

// Offer puts an image where it can be pulled.
func (e *Engine) Offer(name string, image Image) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.registry[name] = image
}

// SetAPI replaces the engine by one of other versions, with the same data.
func (e *Engine) SetAPI(api, least string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.api, e.least = api, least
}

// LoseData empties the data directory. The engine keeps its id, as one of 20.10
// does.
func (e *Engine) LoseData() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.containers {
		e.unserve(b)
	}
	e.data = random()
	clear(e.containers)
	clear(e.volumes)
	clear(e.kept)
	e.images = slices.DeleteFunc(e.images, func(one *stored) bool { return one.from != nil })
}

// Down makes the engine break every connection, or answer again.
func (e *Engine) Down(down bool) {
	e.mu.Lock()
	e.down = down
	e.mu.Unlock()
	if down {
		e.server.CloseClientConnections()
	}
}

// Next makes the next call of this method whose path matches fail so.
func (e *Engine) Next(method, path string, f Fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = append(e.faults, fault{method, regexp.MustCompile(path), f})
}

// Forget drops the faults that no call has met.
func (e *Engine) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = nil
}

// SetClock gives the engine another clock, which may be asked by several at once.
func (e *Engine) SetClock(now func() time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.clock = now
}

// Ledger returns what was done so far, as "KIND ACTION NAME" in the words of the
// engine's events: such as "container start x", "volume destroy x". A call that was
// refused is not in it.
func (e *Engine) Ledger() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.ledger)
}

// write adds to the ledger.
func (e *Engine) write(kind events.Type, action events.Action, name string) {
	e.ledger = append(e.ledger, fmt.Sprintf("%s %s %s", kind, action, name))
}

// HoldStops lets no container stop before release is called.
func (e *Engine) HoldStops() (release func()) { return e.holdBack(&e.stopping) }

// HoldCommits lets no commit be made before release is called.
func (e *Engine) HoldCommits() (release func()) { return e.holdBack(&e.committing) }

func (e *Engine) holdBack(on *chan struct{}) (release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	held := make(chan struct{})
	*on = held
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		*on = nil
		close(held)
	}
}

// Calls returns the calls so far, as "METHOD path?query" without the version.
func (e *Engine) Calls() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

// File returns a file in a container, and who it belongs to.
func (e *Engine) File(name, path string) (content []byte, uid, gid int, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.find(name)
	if b == nil {
		return nil, 0, 0, false
	}
	content, ok = b.files[path]
	return content, b.owners[path][0], b.owners[path][1], ok
}

// Do changes a container as only an engine can: what it is in, or what is in it.
func (e *Engine) Do(name string, change func(state *container.State, files map[string][]byte)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b := e.find(name); b != nil {
		change(b.State, b.files)
	}
}

func random() string {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw)
	return hex.EncodeToString(raw)
}

// find takes an id, a name, or the beginning of one id alone.
func (e *Engine) find(name string) *box {
	var short []*box
	for id, b := range e.containers {
		if id == name || b.Name == "/"+strings.TrimPrefix(name, "/") {
			return b
		}
		if strings.HasPrefix(id, name) {
			short = append(short, b)
		}
	}
	if len(short) == 1 {
		return short[0]
	}
	return nil
}

var versioned = regexp.MustCompile(`^/v([0-9]+)\.([0-9]+)(/.*)$`)

// ServeHTTP answers one call.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	e.mu.Lock()
	api, least, down := e.api, e.least, e.down
	var hit *fault
	if parts := versioned.FindStringSubmatch(path); parts != nil {
		path = parts[3]
		e.calls = append(e.calls, r.Method+" "+path+"?"+r.URL.RawQuery)
		for i := range e.faults {
			if e.faults[i].method == r.Method && e.faults[i].path.MatchString(path) {
				one := e.faults[i]
				hit = &one
				e.faults = slices.Delete(e.faults, i, i+1)
				break
			}
		}
		if asked := parts[1] + "." + parts[2]; less(asked, least) || less(api, asked) {
			e.mu.Unlock()
			bound := "old. Minimum supported API version is " + least
			if less(api, asked) {
				bound = "new. Maximum supported API version is " + api
			}
			refuse(w, http.StatusBadRequest, "client version %s is too %s", asked, bound)
			return
		}
	}
	e.mu.Unlock()
	w.Header().Set("Api-Version", api)
	w.Header().Set("Ostype", "linux")
	if hit != nil && hit.First != nil {
		hit.First()
		if hit.Status == 0 && !hit.Lose && !hit.Cut {
			hit = nil
		}
	}
	switch {
	case down, hit != nil && hit.Cut:
		panic(http.ErrAbortHandler)
	case hit != nil && hit.Lose:
		e.route(httptest.NewRecorder(), r, path)
		panic(http.ErrAbortHandler)
	case hit != nil:
		for name, value := range hit.Header {
			w.Header().Set(name, value)
		}
		if hit.Header["Content-Type"] != "" { // of something that stands before an engine
			w.WriteHeader(hit.Status)
			_, _ = io.WriteString(w, hit.Message)
			return
		}
		refuse(w, hit.Status, "%s", hit.Message)
	default:
		e.route(w, r, path)
	}
}

// less compares versions.
func less(a, b string) bool {
	number := func(text string) int {
		major, minor, _ := strings.Cut(text, ".")
		x, _ := strconv.Atoi(major)
		y, _ := strconv.Atoi(minor)
		return x*1000 + y
	}
	return number(a) < number(b)
}

func refuse(w http.ResponseWriter, status int, format string, args ...any) {
	answer(w, status, map[string]string{"message": fmt.Sprintf(format, args...)})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// selects reports whether a thing passes the filters of a call.
func selects(filters map[string]map[string]bool, term string, match func(value string) bool) bool {
	wanted := slices.Collect(maps.Keys(filters[term]))
	if term == "label" { // all of them
		return !slices.ContainsFunc(wanted, func(v string) bool { return !match(v) })
	}
	return len(wanted) == 0 || slices.ContainsFunc(wanted, match)
}

func labelled(labels map[string]string) func(string) bool {
	return func(wanted string) bool {
		name, value, exact := strings.Cut(wanted, "=")
		got, ok := labels[name]
		return ok && (!exact || got == value)
	}
}

func filtersOf(r *http.Request) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	_ = json.Unmarshal([]byte(r.URL.Query().Get("filters")), &out)
	return out
}
