package e2e_test

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// rooms are the disks of the boxes of one life, each with the agent-server that
// runs on it: what a provider keeps when it suspends a box, and what is lost when
// it destroys one.
type rooms struct {
	t     *testing.T
	clock *skippedClock
	plain bool // no boxd in front of the agent-servers

	mu  sync.Mutex
	all map[string]*room // by what the provider calls a box
}

// room is one box's disk. Its agent-server's idle clock is that of the life: only
// work in it moves it.
type room struct {
	root   string
	in     *rooms
	mu     sync.Mutex
	server *agentservertest.Server
	faults agentservertest.Faults
	used   time.Time
	busy   bool // it is used all the time
	starts int  // of its processes
}

func newRooms(t *testing.T, clock *skippedClock) *rooms {
	t.Helper()
	return &rooms{t: t, clock: clock, all: map[string]*room{}}
}

// of returns the room of a box; the first call furnishes it.
func (r *rooms) of(box string) *room {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[box] == nil {
		r.all[box] = &room{root: filepath.Join(r.t.TempDir(), "box"), in: r}
	}
	return r.all[box]
}

// only returns the one room of a life.
func (r *rooms) only() *room {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(r.t, r.all, 1)
	for _, one := range r.all {
		return one
	}
	return nil
}

// start starts the processes of a box anew, with a key, on what its disk holds. It
// is called by servers, so it cannot fail a test: without a server nobody answers.
func (o *room) start(key box.Secret) http.Handler {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.server != nil {
		o.server.Close()
		o.server = nil
	}
	if err := os.MkdirAll(filepath.Join(o.root, "workspace"), 0o700); err != nil {
		return http.NotFoundHandler()
	}
	server, err := agentservertest.Start(agentservertest.Options{Root: o.root, Key: key, Plain: o.in.plain})
	if err != nil {
		return http.NotFoundHandler()
	}
	o.in.t.Cleanup(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.server == server {
			server.Close()
		}
	})
	o.server, o.used = server, o.in.clock.Now()
	o.starts++
	target, err := url.Parse(server.URL)
	if err != nil {
		return http.NotFoundHandler()
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.tick(server, r)
		proxy.ServeHTTP(w, r)
	})
}

// tick lets the server tell the idle time of the life's clock. Work moves it, and
// what boxkeeper does in a box does not.
func (o *room) tick(server *agentservertest.Server, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	work := strings.HasPrefix(r.URL.Path, "/api/conversations") || strings.HasPrefix(r.URL.Path, "/api/bash/")
	if work && r.Method != http.MethodGet && !strings.HasSuffix(r.URL.Path, "/prepare-for-sandbox-pause") {
		o.used = o.in.clock.Now()
	}
	faults := o.faults
	if o.busy {
		o.used = o.in.clock.Now()
	}
	faults.Idle = max(o.in.clock.Now().Sub(o.used), time.Nanosecond)
	server.Break(faults)
}

// fill puts something there that can be made again.
func (o *room) fill(t *testing.T) {
	t.Helper()
	fillCache(t, o.root)
}

func (o *room) filled() bool {
	_, err := os.Stat(filepath.Join(o.root, cacheFile))
	return err == nil
}

func (o *room) setBusy(on bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = on
}

func (o *room) lastUse() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.used
}

func (o *room) started() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.starts
}

// serveLoopback serves on a free port until the server is closed.
func serveLoopback(web *http.Server) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // local and instant
	if err != nil {
		return "", err
	}
	go func() { _ = web.Serve(listener) }() // ends with Close
	return "http://" + listener.Addr().String(), nil
}

// user works in a box over its agent-server's own API, as Canvas does through the
// gateway, and remembers what was said.
type user struct {
	l     *life
	wrote map[string][]string // conversation, events as the agent-server tells them
	begin func(messages int) (id string)
	more  func(id string)
}

// api is how the box of the life is reached now.
func (u *user) api() *serverAPI {
	t := u.l.t
	t.Helper()
	s, err := u.l.status()
	require.NoError(t, err)
	at, err := u.l.provider.Endpoint(t.Context(), s.Ref)
	require.NoError(t, err)
	return &serverAPI{t: t, url: at.URL, key: at.SessionKey.Reveal(), dir: "/workspace", header: at.Header}
}

// converse holds a conversation of so many messages.
func (u *user) converse(messages int) (id string) {
	api := u.api()
	if u.begin != nil {
		id = u.begin(messages)
	} else {
		id = api.converse(messages)
	}
	u.wrote[id] = api.events(id)
	require.Len(u.l.t, u.wrote[id], messages)
	return id
}

// goOn says one thing more in each conversation.
func (u *user) goOn() {
	api := u.api()
	for id, before := range u.wrote {
		require.Equal(u.l.t, before, api.events(id), "conversation %s changed while nobody was there", id)
		if u.more != nil {
			u.more(id)
		} else {
			api.say(id, "and one thing more "+uuid.NewString())
		}
		u.wrote[id] = api.events(id)
		require.Len(u.l.t, u.wrote[id], len(before)+1)
	}
}

// events counts what was said.
func (u *user) events() (n int) {
	for _, events := range u.wrote {
		n += len(events)
	}
	return n
}

// requireKept reads every conversation from the store alone, as somebody does who
// has neither the box nor the engine, and compares event by event.
func (u *user) requireKept() {
	t := u.l.t
	t.Helper()
	store, err := exports.Open(t.Context(), u.l.node.storeURL())
	require.NoError(t, err)
	defer store.Close() //nolint:errcheck // only read
	closed, _, err := store.Closed(t.Context(), u.l.ws)
	require.NoError(t, err)
	require.True(t, closed, "the ledger does not say that the workspace is closed")
	found, err := store.Conversations(t.Context(), u.l.ws)
	require.NoError(t, err)
	require.Len(t, found, len(u.wrote))
	for id, events := range u.wrote {
		whole, err := store.ProveConversation(t.Context(), u.l.ws, id)
		require.NoError(t, err)
		require.NoError(t, whole.Close())
		var kept []string
		for event, err := range store.Events(t.Context(), u.l.ws, id) {
			require.NoError(t, err)
			kept = append(kept, canonical(t, event.Raw))
		}
		require.ElementsMatch(t, events, kept, "conversation %s in the store", id)
	}
	t.Logf("%s: %d conversations, %d events are in the store as they were said", u.l.ws, len(u.wrote), u.events())
}
