package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// Upstream is the agent-server that a handler stands in front of.
type Upstream interface {
	// Target returns where it listens now, and whether it can be asked at all.
	Target() (base *url.URL, up bool)
	// Process says how it is doing.
	Process() agentserver.Process
}

// Options says what a handler serves.
type Options struct {
	Root string // the box's directory, which exists
	// Key is what requests must carry in X-Session-API-Key; empty lets
	// everybody in.
	Key box.Secret
	// BasePath is a path prefix under which everything is served, such as
	// "/box-1"; empty for none.
	BasePath string
	Upstream Upstream // nil serves the read side from disk
	// Reclaim measures and frees the disk; the caller closes it.
	Reclaim *reclaim.Reclaimer
	// Retention returns how long a conversation keeps its runtime, as it takes
	// effect, for the storage status; nil when nobody knows. It must not block.
	Retention func(conversation string) *box.Retention
	Log       *slog.Logger // nil means none
	Version   string       // shown in server_info when there is no upstream
}

// Server is the in-box handler. It is safe for concurrent use.
type Server struct {
	opts    Options
	log     *slog.Logger
	history history
	storage *storage
	gate    *gate
	imports sync.Mutex
	turns   lockMap // one trajectory of a conversation at a time
	started time.Time
	proxy   http.Handler
	asks    *http.Client // our own questions to the agent-server
}

// New returns a handler.
func New(opts Options) *Server {
	s := &Server{
		opts: opts, log: opts.Log,
		history: history{dir: filepath.Join(opts.Root, "conversations")},
		gate:    newGate(), started: time.Now(),
	}
	s.storage = newStorage(opts, s.history, s.started)
	if s.log == nil {
		s.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if opts.Upstream != nil {
		transport := newTransport()
		s.proxy = s.newProxy(transport)
		s.asks = &http.Client{
			Transport: transport, Timeout: 10 * time.Second,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return s
}

// ServeHTTP answers our own endpoints and hands everything else to the
// agent-server, or to the files on disk.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.opts.BasePath != "" {
		inner, ok := below(s.opts.BasePath, r)
		if !ok {
			refuse(w, http.StatusNotFound, "Not Found")
			return
		}
		r = inner
	}
	if methods := s.own(r.URL.Path); methods != nil {
		switch handle := methods[r.Method]; {
		case !s.allowed(r):
			refuse(w, http.StatusUnauthorized, "Unauthorized")
		case handle == nil:
			refuse(w, http.StatusMethodNotAllowed, "Method Not Allowed")
		default:
			handle(w, r)
		}
		return
	}
	r, leave, ok := s.admit(w, r)
	if !ok {
		return
	}
	defer leave()
	if s.proxy != nil {
		s.pass(w, r)
		return
	}
	s.fromDisk(w, r)
}

// handlers are the methods of one path.
type handlers map[string]http.HandlerFunc

// own returns what is ours at this path, nil when nothing is.
func (s *Server) own(path string) handlers {
	switch path {
	case "/api/boxd/use":
		return handlers{http.MethodGet: s.getUse}
	case "/api/boxd/drain":
		return handlers{http.MethodPost: s.postDrain, http.MethodDelete: s.deleteDrain}
	case "/api/storage":
		return handlers{http.MethodGet: s.getStorage}
	case "/api/storage/reclaim":
		return handlers{http.MethodPost: s.postReclaim}
	}
	if name, ok := strings.CutPrefix(path, historyPath); ok && name != "" && !strings.Contains(name, "/") {
		return handlers{http.MethodPut: withID(name, s.putHistory)}
	}
	return nil
}

// below strips the base path from a request.
func below(base string, r *http.Request) (*http.Request, bool) {
	path, ok := strings.CutPrefix(r.URL.Path, base)
	if !ok || path != "" && path[0] != '/' {
		return nil, false
	}
	inner := r.Clone(r.Context())
	inner.URL.Path = path
	if path == "" {
		inner.URL.Path = "/"
	}
	inner.URL.RawPath = strings.TrimPrefix(r.URL.RawPath, base)
	return inner, true
}

// allowed reports whether a request carries the key.
func (s *Server) allowed(r *http.Request) bool {
	if s.opts.Key == "" {
		return true
	}
	return s.isKey(r.Header.Get("X-Session-API-Key"))
}

// counted reports whether a request may be counted as work: not those that the
// agent-server will turn away, or a stranger could keep the box awake.
func (s *Server) counted(r *http.Request) bool {
	return s.allowed(r) || s.isKey(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
}

func (s *Server) isKey(given string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(s.opts.Key.Reveal()))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// capabilities are the promises that we add to server_info.
func (s *Server) capabilities() []string {
	out := []string{agentserver.CapabilityStorageStatus, agentserver.CapabilityUse, agentserver.CapabilityDrain}
	if s.opts.Reclaim.Supported() {
		out = append(out, agentserver.CapabilityStorageReclaim)
	}
	if s.opts.Upstream == nil {
		out = append(out, agentserver.CapabilityHistoryImport)
	}
	return out
}
