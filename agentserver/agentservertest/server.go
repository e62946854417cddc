package agentservertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/box"
)

// Options says what kind of server to fake; the zero value is one with boxd in
// front, without a key, on a directory of its own.
type Options struct {
	// Root is the box's directory; empty makes one that Close removes.
	Root     string
	Key      box.Secret
	BasePath string // such as "/box-1"
	Plain    bool   // no boxd in front: none of its endpoints and capabilities
	Older    bool   // a boxd from before it took histories in
}

// Faults are what the server does wrong, until they are set anew. Ids are 32
// digits.
type Faults struct {
	ShortZip map[string]bool // half of the zip, with a length to match
	CutZip   map[string]bool // half of the zip, with the length of all of it
	Missing  map[string]bool // listed and counted, and 404 when asked for
	// Miscount is added to the number of events of a conversation, wherever it
	// is told.
	Miscount map[string]int
	// CountOff is added to the number of conversations.
	CountOff int
	// HangAfter lets so many requests pass and never answers again, when
	// positive; -1 answers none.
	HangAfter int
	// Collide breaks downloads of one conversation that overlap, as upstream does.
	Collide bool
	// Dormant answers 503 to everything below /api, as before its init.
	Dormant bool
	// Ends, when set, is how the agent-server behind boxd ends at each start: it is
	// never ready, and boxd tells this.
	Ends string
	// Page answers everything with a web page, as a login gate does.
	Page bool
	// Idle, when positive, is the idle time that is told instead of the real one.
	Idle time.Duration
	// Running, when positive, is told as the number of running conversations.
	Running int
	// Loop makes the pages of the catalogue go round in a circle.
	Loop bool
	// Unsaved, when set, is told instead of what a look at the workspace finds.
	Unsaved *box.Unsaved
	// CutExport is half of the archive of the workspace, with a length to match.
	CutExport bool
}

// Server is a fake agent-server on a loopback port. It is stateful: what is
// written through it is on disk, and what is on disk is served.
type Server struct {
	URL  string // with the base path
	Root string

	opts      Options
	inner     http.Handler
	reclaimer *reclaim.Reclaimer
	web       *http.Server
	closing   chan struct{}
	owned     bool

	mu       sync.Mutex
	faults   Faults
	used     time.Time // of the idle clock
	started  time.Time
	requests int
	paths    []string
	packing  map[string]int
}

// Start serves until Close.
func Start(opts Options) (*Server, error) {
	s := &Server{
		opts: opts, Root: opts.Root, closing: make(chan struct{}),
		used: time.Now(), started: time.Now(), packing: map[string]int{},
	}
	if s.Root == "" {
		root, err := os.MkdirTemp("", "agentservertest-")
		if err != nil {
			return nil, err
		}
		s.Root, s.owned = root, true
	}
	if err := os.MkdirAll(s.Conversations(), 0o700); err != nil {
		return nil, err
	}
	var err error
	if s.reclaimer, err = reclaim.Open(s.Root, reclaim.Options{}); err != nil {
		return nil, err
	}
	git, _ := repo.New(repo.Options{}) // without it repositories are unknown, as in a real box
	s.inner = server.New(server.Options{Root: s.Root, Key: opts.Key, Reclaim: s.reclaimer, Git: git})
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // local and instant
	if err != nil {
		s.reclaimer.Close()
		return nil, err
	}
	s.URL = "http://" + listener.Addr().String() + opts.BasePath
	s.web = &http.Server{Handler: http.StripPrefix(opts.BasePath, http.HandlerFunc(s.serve)), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.web.Serve(listener) }() // ends with Close
	return s, nil
}

// Close ends the server, hanging answers included.
func (s *Server) Close() {
	close(s.closing)
	_ = s.web.Close()
	s.reclaimer.Close()
	if s.owned {
		_ = os.RemoveAll(s.Root)
	}
}

// Conversations is the directory that WriteConversation takes.
func (s *Server) Conversations() string { return filepath.Join(s.Root, "conversations") }

// Break sets what the server does wrong from now on; the zero value repairs it.
// The count of HangAfter starts anew.
func (s *Server) Break(faults Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.requests = faults, 0
}

// Paths lists the requests so far, as "GET /path".
func (s *Server) Paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.paths...)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests++
	s.paths = append(s.paths, r.Method+" "+r.URL.Path)
	faults := s.faults
	hang := faults.HangAfter < 0 || faults.HangAfter > 0 && s.requests > faults.HangAfter
	s.mu.Unlock()
	switch {
	case hang:
		select {
		case <-s.closing:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case faults.Page:
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html><title>Sign in</title>")
	case faults.Ends != "" && r.URL.Path == "/ready":
		answer(w, http.StatusServiceUnavailable, map[string]string{"detail": "Internal Server Error"})
	case r.URL.Path == "/server_info":
		s.info(w, faults)
	case faults.Dormant && strings.HasPrefix(r.URL.Path, "/api/"):
		answer(w, http.StatusServiceUnavailable, map[string]any{
			"detail": "Internal Server Error", "exception": "503: Server is in deferred-init state 'dormant'",
		})
	case s.opts.Plain && (strings.HasPrefix(r.URL.Path, "/api/boxd/") || strings.HasPrefix(r.URL.Path, "/api/storage") || strings.HasPrefix(r.URL.Path, "/api/workspace/")):
		answer(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
	case s.opts.Older && (strings.HasPrefix(r.URL.Path, "/api/boxd/history/") || strings.HasPrefix(r.URL.Path, "/api/boxd/workspace/")):
		answer(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
	case r.Method != http.MethodGet && s.write(w, r):
	case faults.Missing[idIn(r.URL.Path)]:
		answer(w, http.StatusNotFound, map[string]string{"detail": "Conversation not found"})
	case strings.HasPrefix(r.URL.Path, "/api/file/download-trajectory/"):
		s.download(w, r, faults)
	default:
		s.retell(w, r, faults)
	}
}

// info is the description of a server of the version that the rest is true to.
func (s *Server) info(w http.ResponseWriter, faults Faults) {
	s.mu.Lock()
	idle := time.Since(s.used)
	s.mu.Unlock()
	if faults.Idle > 0 {
		idle = faults.Idle
	}
	capabilities := []string{"conversation_runtime_routes_v1", "idempotent_conversation_create_v1"}
	if !s.opts.Plain {
		capabilities = append(capabilities, agentserver.CapabilityUse, agentserver.CapabilityDrain, agentserver.CapabilityStorageStatus)
		if s.reclaimer.Supported() {
			capabilities = append(capabilities, agentserver.CapabilityStorageReclaim, agentserver.CapabilityUnsaved, agentserver.CapabilityExport)
		}
		if !s.opts.Older {
			capabilities = append(capabilities, agentserver.CapabilityHistoryImport)
			if s.reclaimer.Supported() {
				capabilities = append(capabilities, agentserver.CapabilityWorkspaceRestore)
			}
		}
	}
	answer(w, http.StatusOK, map[string]any{
		"title": "OpenHands Agent Server", "version": "1.58.2", "capabilities": capabilities,
		"uptime": float64(int(time.Since(s.started).Seconds())), "idle_time": float64(int(idle.Seconds())),
	})
}

// download serves a trajectory, or what the faults make of it.
func (s *Server) download(w http.ResponseWriter, r *http.Request, faults Faults) {
	id := idIn(r.URL.Path)
	s.mu.Lock()
	s.packing[id]++
	overlap := s.packing[id] > 1
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.packing[id]--
	}()
	kept := s.ask(r)
	if kept.status != http.StatusOK {
		kept.write(w)
		return
	}
	full := kept.body.Len()
	if faults.Collide && overlap || faults.ShortZip[id] || faults.CutZip[id] {
		kept.body.Truncate(full / 2)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(kept.body.Len()))
	if faults.CutZip[id] {
		w.Header().Set("Content-Length", strconv.Itoa(full))
	}
	_, _ = w.Write(kept.body.Bytes())
	if faults.Collide {
		// Long enough in the making that another one overlaps.
		if flusher, ok := w.(http.Flusher); ok {
			flusher.Flush()
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.closing:
		}
	}
}

// retell answers as the real handler does, with the lies put in.
func (s *Server) retell(w http.ResponseWriter, r *http.Request, faults Faults) {
	// Streams and refusals pass as they are.
	if r.Method != http.MethodGet {
		s.inner.ServeHTTP(w, r)
		return
	}
	kept := s.ask(r)
	if kept.status == http.StatusOK {
		kept.lie(r, faults)
	}
	kept.write(w)
}

func (k *recorder) lie(r *http.Request, faults Faults) {
	switch path := r.URL.Path; {
	case path == "/api/conversations/count":
		if r.URL.Query().Get("status") == "running" && faults.Running > 0 {
			k.set(faults.Running)
			return
		}
		var n int
		if json.Unmarshal(k.body.Bytes(), &n) == nil {
			k.set(n + faults.CountOff)
		}
	case strings.HasSuffix(path, "/events/count"):
		var n int
		if json.Unmarshal(k.body.Bytes(), &n) == nil {
			k.set(n + faults.Miscount[idIn(path)])
		}
	case path == "/api/conversations/search" && faults.Loop:
		var page map[string]any
		if json.Unmarshal(k.body.Bytes(), &page) == nil {
			page["items"], page["next_page_id"] = []any{}, strings.Repeat("a", 32)
			k.set(page)
		}
	case path == "/api/storage":
		var status box.StorageStatus
		if json.Unmarshal(k.body.Bytes(), &status) == nil {
			for i := range status.Conversations {
				status.Conversations[i].Events += faults.Miscount[status.Conversations[i].ID]
			}
			k.set(status)
		}
	case path == "/api/workspace/unsaved" && faults.Unsaved != nil:
		k.set(faults.Unsaved)
	case path == "/api/workspace/export" && faults.CutExport:
		k.body.Truncate(k.body.Len() / 2)
	case path == "/api/boxd/use":
		var use agentserver.Use
		if json.Unmarshal(k.body.Bytes(), &use) != nil {
			return
		}
		if faults.Idle > 0 {
			use.IdleSeconds = faults.Idle.Seconds()
		}
		if faults.Running > 0 {
			use.Running = faults.Running
		}
		if faults.Ends != "" {
			use.Server = agentserver.Process{State: "restarting", Restarts: 3, LastExit: faults.Ends}
		}
		for _, by := range faults.Miscount {
			use.Events += by
		}
		k.set(use)
	}
}

// ask lets the real handler answer into memory.
func (s *Server) ask(r *http.Request) *recorder {
	kept := &recorder{header: http.Header{}, status: http.StatusOK}
	s.inner.ServeHTTP(kept, r)
	return kept
}

// recorder is an http.ResponseWriter that keeps the answer.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *recorder) Header() http.Header         { return k.header }
func (k *recorder) WriteHeader(status int)      { k.status = status }
func (k *recorder) Write(p []byte) (int, error) { return k.body.Write(p) }

func (k *recorder) set(value any) {
	k.body.Reset()
	_ = json.NewEncoder(&k.body).Encode(value) // plain values only
}

func (k *recorder) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), k.header)
	w.Header().Set("Content-Length", strconv.Itoa(k.body.Len()))
	if k.status == http.StatusNoContent {
		w.Header().Del("Content-Length")
	}
	w.WriteHeader(k.status)
	_, _ = w.Write(k.body.Bytes())
}

func answer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the caller may have gone
}

// idIn returns the conversation that a path is about, in 32 digits.
func idIn(path string) string {
	for step := range strings.SplitSeq(path, "/") {
		if id := strings.ReplaceAll(step, "-", ""); len(id) == 32 && strings.Trim(id, "0123456789abcdef") == "" {
			return id
		}
	}
	return ""
}

// touch moves the idle clock, as an event or a command does.
func (s *Server) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = time.Now()
}

// exists reports whether a conversation is there.
func (s *Server) exists(id string) bool {
	_, err := os.Lstat(filepath.Join(s.Conversations(), id))
	return id != "" && err == nil
}
