package exports_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
)

// pipes connects a client and a server without a network, so that their time
// can be a bubble's.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// place is where something can go wrong.
type place string

const (
	atSearch   place = "list"
	atCount    place = "count"
	atEvents   place = "events count"
	atDownload place = "download"
	atWrite    place = "store write"
	atKept     place = "store content"
	atRead     place = "store read"
	atProgress place = "progress"
)

// kinds are the faults, by place. Those of one group together could tell one
// lie twice, which nobody can see through: a run has at most one of a group.
var kinds = []struct {
	at    place
	name  string
	group string
	// mended says that a second download mends it.
	mended bool
	// harmless says that an export succeeds all the same.
	harmless bool
}{
	{at: atSearch, name: "pages in a circle", group: "list"},
	{at: atSearch, name: "page left out", group: "list"},
	{at: atSearch, name: "page twice", group: "list"},
	{at: atSearch, name: "list answers 500"},
	{at: atSearch, name: "list answers 404"},
	{at: atSearch, name: "list is a web page"},
	{at: atSearch, name: "list cut off"},
	{at: atCount, name: "counts one more", group: "list"},
	{at: atCount, name: "counts one less", group: "list"},
	{at: atEvents, name: "one event too many counted", group: "events"},
	{at: atEvents, name: "one event too few counted", group: "events"},
	{at: atEvents, name: "404 for a listed id, counting"},
	{at: atDownload, name: "404 for a listed id", mended: true},
	{at: atDownload, name: "download answers 500", mended: true},
	{at: atDownload, name: "download answers 507"},
	{at: atDownload, name: "short body, its length told", mended: true},
	{at: atDownload, name: "body cut off", mended: true},
	{at: atDownload, name: "short body, no length told", mended: true},
	{at: atDownload, name: "empty body", mended: true},
	{at: atDownload, name: "web page", mended: true},
	{at: atDownload, name: "byte flipped", mended: true},
	{at: atDownload, name: "bytes behind the end", mended: true},
	{at: atDownload, name: "event left out", group: "events", mended: true},
	{at: atDownload, name: "another conversation", mended: true},
	{at: atDownload, name: "silence", mended: true},
	{at: atDownload, name: "slow", harmless: true},
	{at: atDownload, name: "grows meanwhile", harmless: true},
	{at: atDownload, name: "a new one meanwhile", harmless: true},
	{at: atDownload, name: "removed meanwhile"},
	{at: atWrite, name: "write fails"},
	{at: atWrite, name: "write, answer lost"},
	{at: atWrite, name: "store full"},
	{at: atKept, name: "object lost"},
	{at: atKept, name: "object cut"},
	{at: atKept, name: "object with a flipped bit"},
	{at: atRead, name: "read fails"},
	{at: atRead, name: "read cut off"},
	{at: atRead, name: "read with a flipped bit"},
	{at: atProgress, name: "cancelled"},
}

// fault is one that is armed in a run.
type fault struct {
	kind int // in kinds
	skip int // chances that it lets pass
	left int // how often it strikes then
}

// world is one run: a box, what is wrong with it, and a store.
type world struct {
	*server
	bucket *bucket
	random *rand.Rand
	mu     sync.Mutex
	armed  []fault
	struck []int // kinds, in order

	pipes    *pipes
	web      *http.Server
	http     *http.Client
	busy     map[string]int
	overlaps int
}

func newWorld(seed, run uint64) *world {
	random := rand.New(rand.NewPCG(seed, run))
	w := &world{
		server: newServer(), bucket: newBucket(), random: random, busy: map[string]int{},
		pipes: &pipes{conns: make(chan net.Conn), closed: make(chan struct{})},
	}
	for i := range 1 + random.IntN(6) {
		w.grow(hex32(i+1), random.IntN(6))
	}
	taken := map[string]bool{}
	for range random.IntN(4) {
		kind := random.IntN(len(kinds))
		if group := kinds[kind].group; group != "" && taken[group] {
			continue
		}
		taken[kinds[kind].group] = true
		left := 1 + random.IntN(3)
		switch {
		case kinds[kind].harmless:
			left = min(left, 2) // a history that never rests is no harmless one
		case random.IntN(4) == 0:
			left = 1000
		}
		w.armed = append(w.armed, fault{kind: kind, skip: random.IntN(5), left: left})
	}
	w.web = &http.Server{Handler: http.HandlerFunc(w.serve)}
	go func() { _ = w.web.Serve(w.pipes) }()
	w.http = &http.Client{Transport: &http.Transport{DialContext: w.pipes.dial, DisableKeepAlives: true, DisableCompression: true}}
	w.bucket.beforeWrite = func(int, string) error {
		switch w.strike(atWrite, "write fails", "store full") {
		case "write fails":
			return errFailing
		case "store full":
			return errFull
		}
		return nil
	}
	w.bucket.afterWrite = func(int, string) error {
		if w.strike(atWrite, "write, answer lost") != "" {
			return errFailing
		}
		return nil
	}
	w.bucket.kept = func(_ string, data []byte) []byte { return w.harm(atKept, data) }
	w.bucket.handed = func(_ string, data []byte) []byte { return w.harm(atRead, data) }
	w.bucket.read = func(string) error {
		if w.strike(atRead, "read fails") != "" {
			return errFailing
		}
		return nil
	}
	return w
}

func (w *world) close() {
	_ = w.web.Close()
	w.http.CloseIdleConnections()
	synctest.Wait()
}

// client is the one that workers use.
func (w *world) client() *agentserver.Client {
	c, err := agentserver.New(agentserver.Options{URL: "http://box", HTTP: w.http})
	if err != nil {
		panic(err)
	}
	return c
}

// strike returns the fault that happens here now, or nothing.
func (w *world) strike(at place, names ...string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.armed {
		f := &w.armed[i]
		name := kinds[f.kind].name
		if kinds[f.kind].at != at || len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		if f.skip > 0 {
			f.skip--
			continue
		}
		if f.left > 0 {
			f.left--
			w.struck = append(w.struck, f.kind)
			return name
		}
	}
	return ""
}

// draw is a number below n, from any goroutine.
func (w *world) draw(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(max(n, 1))
}

// harm alters what the store keeps or hands out.
func (w *world) harm(at place, data []byte) []byte {
	name := w.strike(at, "object lost", "object cut", "object with a flipped bit", "read cut off", "read with a flipped bit")
	switch {
	case name == "object lost":
		return nil
	case strings.Contains(name, "cut"):
		return data[:w.draw(len(data))]
	case strings.Contains(name, "flipped"):
		data[w.draw(len(data))] ^= 1 << w.draw(8)
	}
	return data
}

const perPage = 2

// serve answers as an agent-server without boxd does, or as its faults have it.
func (w *world) serve(out http.ResponseWriter, r *http.Request) {
	answer := func(value any) {
		out.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(out).Encode(value)
	}
	page := func() {
		out.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(out, "<html>sign in</html>")
	}
	marks := w.marks()
	switch path := r.URL.Path; {
	case path == "/server_info":
		answer(map[string]any{"version": "1.58.2", "uptime": 10.0, "idle_time": 5.0})
	case path == "/api/conversations/search":
		from, _ := slices.BinarySearchFunc(marks, r.URL.Query().Get("page_id"), func(m box.ConversationMark, id string) int { return strings.Compare(m.ID, id) })
		next := from + perPage
		switch w.strike(atSearch) {
		case "pages in a circle":
			next = 0
		case "page left out":
			from, next = from+perPage, next+perPage
		case "page twice":
			next = from
		case "list answers 500":
			http.Error(out, "{}", http.StatusInternalServerError)
			return
		case "list answers 404":
			http.Error(out, "{}", http.StatusNotFound)
			return
		case "list is a web page":
			page()
			return
		case "list cut off":
			out.Header().Set("Content-Type", "application/json")
			out.Header().Set("Content-Length", "500")
			_, _ = io.WriteString(out, `{"items":[`)
			panic(http.ErrAbortHandler)
		}
		items := []any{}
		for _, m := range marks[min(from, len(marks)):min(from+perPage, len(marks))] {
			items = append(items, map[string]any{"id": m.ID})
		}
		list := map[string]any{"items": items, "next_page_id": nil}
		if next < len(marks) {
			list["next_page_id"] = marks[next].ID
		}
		answer(list)
	case path == "/api/conversations/count":
		n := len(marks)
		switch w.strike(atCount) {
		case "counts one more":
			n++
		case "counts one less":
			n--
		}
		answer(n)
	case strings.HasSuffix(path, "/events/count"):
		id := strings.ReplaceAll(strings.Split(path, "/")[3], "-", "")
		at := slices.IndexFunc(marks, func(m box.ConversationMark) bool { return m.ID == id })
		what := w.strike(atEvents)
		if at < 0 || strings.HasPrefix(what, "404") {
			http.Error(out, "{}", http.StatusNotFound)
			return
		}
		n := marks[at].Events
		switch what {
		case "one event too many counted":
			n++
		case "one event too few counted":
			n--
		}
		answer(n)
	default:
		w.serveZip(out, r, path[strings.LastIndexByte(path, '/')+1:])
	}
}

// serveZip answers a download. Like upstream it breaks those of one
// conversation that overlap.
func (w *world) serveZip(out http.ResponseWriter, r *http.Request, id string) {
	w.mu.Lock()
	w.busy[id]++
	if w.busy[id] > 1 {
		w.overlaps++
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy[id]--
	}()
	what := w.strike(atDownload)
	switch what {
	case "grows meanwhile":
		if slices.ContainsFunc(w.marks(), func(m box.ConversationMark) bool { return m.ID == id }) {
			w.grow(id, 1)
		}
	case "a new one meanwhile":
		w.grow(hex32(100+w.draw(100)), w.draw(3))
	case "removed meanwhile":
		w.remove(id)
	}
	w.server.mu.Lock()
	events, there := slices.Clone(w.events[id]), w.events[id] != nil
	w.server.mu.Unlock()
	data, told := packed(id, events...), true
	switch what {
	case "404 for a listed id":
		there = false
	case "download answers 500":
		http.Error(out, "{}", http.StatusInternalServerError)
		return
	case "download answers 507":
		http.Error(out, "{}", http.StatusInsufficientStorage)
		return
	case "short body, its length told":
		data = data[:w.draw(len(data))]
	case "short body, no length told":
		data, told = data[:w.draw(len(data))], false
	case "empty body":
		data = nil
	case "web page":
		data = []byte("<html>sign in</html>")
	case "byte flipped":
		data[w.draw(len(data))] ^= 1 << w.draw(8)
	case "bytes behind the end":
		data = append(data, "more"...)
	case "event left out":
		if len(events) > 0 {
			data = packed(id, slices.Delete(events, len(events)-1, len(events))...)
		}
	case "another conversation":
		data = packed(hex32(999), events...)
	case "silence":
		<-r.Context().Done()
		return
	}
	if !there {
		http.Error(out, "{}", http.StatusNotFound)
		return
	}
	out.Header().Set("Content-Type", "application/octet-stream")
	if told {
		out.Header().Set("Content-Length", strconv.Itoa(len(data)))
	}
	half := len(data) / 2
	_, _ = out.Write(data[:half])
	_ = http.NewResponseController(out).Flush()
	switch what {
	case "body cut off":
		panic(http.ErrAbortHandler)
	case "slow":
		time.Sleep(time.Minute) // of the bubble's time
	}
	_, _ = out.Write(data[half:])
}

func (w *world) String() string {
	var armed []string
	for _, f := range w.armed {
		armed = append(armed, fmt.Sprintf("%q after %d", kinds[f.kind].name, f.skip))
	}
	return fmt.Sprintf("%d conversations, %s", len(w.events), strings.Join(armed, ", "))
}
