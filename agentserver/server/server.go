package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/putback"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/workspace"
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
	// MoreKeys are accepted like Key, none of them empty.
	MoreKeys []box.Secret
	// BasePath is a path prefix under which everything is served, such as
	// "/box-1"; empty for none.
	BasePath string
	// RootPath is a path prefix that the agent-server takes off by itself; with it
	// or without, a path means the same. Empty for none.
	RootPath string
	Upstream Upstream // nil serves the read side from disk
	// Reclaim measures and frees the disk; the caller closes it.
	Reclaim *reclaim.Reclaimer
	// Git asks the repositories in the workspace; without it they are unknown.
	Git *repo.Git
	// Recreatable lists what can be made again in a directory of the box, paths
	// relative to it with the rule for each; nil means nothing can.
	Recreatable func(ctx context.Context, dir string) (map[string]string, error)
	// Forgotten lists what agent-servers left behind, for the storage status; nil
	// lists nothing.
	Forgotten func(ctx context.Context) ([]box.ReclaimItem, error)
	// Keeping archives conversations; nil means that none is by age, and that
	// none has a rule.
	Keeping *Keeping
	Log     *slog.Logger // nil means none
	Version string       // shown in server_info when there is no upstream
}

// Server is the in-box handler. It is safe for concurrent use.
type Server struct {
	opts    Options
	log     *slog.Logger
	history history
	storage *storage
	gate    *gate
	imports lockMap // one import of a conversation at a time
	turns   lockMap // one trajectory of a conversation at a time
	creates lockMap // one making of a conversation at a time
	work    *workspace.Workspace
	putback *putback.Box
	looks   chan struct{} // held while the workspace is looked through
	exports chan struct{} // held while it is sent
	// patience is how long the other side of a download or an import may do
	// nothing: it holds the turn of its conversation.
	patience time.Duration
	started  time.Time
	proxy    http.Handler
	asks     *http.Client // our own questions to the agent-server
	relays   *http.Client // a caller\'s, whose answers we add to
	origins  origins
}

// New returns a handler.
func New(opts Options) *Server {
	s := &Server{
		opts: opts, log: opts.Log,
		history: history{dir: filepath.Join(opts.Root, conversationsDir), imported: filepath.Join(opts.Root, importedDir)},
		gate:    newGate(), started: time.Now(), patience: time.Minute,
	}
	s.storage = newStorage(opts, s.history, s.started)
	s.work = workspace.New(workspace.Options{
		Root: opts.Root, Dirs: []string{workspaceDir, worktreesDir}, Git: opts.Git, Recreatable: opts.Recreatable,
	})
	s.putback = newPutback(opts.Root, opts.Git)
	s.looks, s.exports = make(chan struct{}, 1), make(chan struct{}, 1)
	if s.log == nil {
		s.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if opts.Upstream != nil {
		transport := newTransport()
		s.proxy = s.newProxy(transport)
		s.origins.known = map[string]http.Header{}
		asIs := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		s.asks = &http.Client{Transport: transport, Timeout: 10 * time.Second, CheckRedirect: asIs}
		s.relays = &http.Client{Transport: transport, Timeout: 2 * time.Minute, CheckRedirect: asIs}
	}
	return s
}

// ServeHTTP answers our own endpoints and hands everything else to the
// agent-server, or to the files on disk.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if place, _, _ := strings.Cut(r.RequestURI, "?"); strings.Contains(place, "#") {
		// No path holds one, and to some servers it ends there: they would see
		// another than we do.
		refuse(w, http.StatusBadRequest, "the path of the request holds a fragment")
		return
	}
	if s.opts.BasePath != "" {
		inner, ok := below(s.opts.BasePath, r)
		if !ok {
			refuse(w, http.StatusNotFound, "Not Found")
			return
		}
		r = inner
	}
	given := r
	if s.opts.RootPath != "" {
		if inner, ok := below(s.opts.RootPath, r); ok {
			r = inner
		}
	}
	if methods := s.own(r.URL.Path); methods != nil {
		s.serveOwn(w, r, methods)
		return
	}
	if s.serveImported(w, r) {
		return
	}
	if s.serveArchived(w, r) {
		return
	}
	r, leave, ok := s.admit(w, r)
	if !ok {
		return
	}
	defer leave()
	if s.proxy != nil {
		// The agent-server gets the target as it was written; ours is without its
		// public path.
		as := r.URL
		r.URL, r.RequestURI = given.URL, given.RequestURI
		if s.passWatched(w, r, as) {
			return
		}
		s.pass(w, r)
		return
	}
	s.fromDisk(w, r)
}

// handlers are the methods of one path.
type handlers map[string]http.HandlerFunc

// serveOwn answers a request for a path of ours, in upstream's order: is it a
// method of this path, is the key right, is the request.
func (s *Server) serveOwn(w http.ResponseWriter, r *http.Request, methods handlers) {
	if r.Header.Get("Origin") != "" && s.opts.Upstream != nil && r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
		s.preflight(w, r, methods)
		return
	}
	s.addOrigin(w, r)
	handle := methods[r.Method]
	switch {
	case handle == nil:
		w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
		refuse(w, http.StatusMethodNotAllowed, "Method Not Allowed")
	case !s.allowed(r):
		refuse(w, http.StatusUnauthorized, "Unauthorized")
	default:
		handle(w, r)
	}
}

// own returns what is ours at this path, nil when nothing is.
func (s *Server) own(path string) handlers {
	switch path {
	case "/api/boxd/use":
		return handlers{http.MethodGet: s.getUse}
	case "/api/boxd/drain":
		return handlers{http.MethodPost: s.postDrain, http.MethodDelete: s.deleteDrain}
	case "/api/storage":
		return handlers{http.MethodGet: s.getStorage}
	case "/api/workspace/unsaved":
		return handlers{http.MethodGet: s.getUnsaved}
	case "/api/workspace/export":
		return handlers{http.MethodGet: s.getExport}
	case "/api/storage/reclaim":
		return handlers{http.MethodPost: s.postReclaim}
	}
	if name, ok := retentionOf(path); ok && s.opts.Keeping != nil {
		return handlers{http.MethodGet: withID(name, s.getRetention), http.MethodPut: withID(name, s.putRetention)}
	}
	if name, ok := strings.CutPrefix(path, historyPath); ok && name != "" && !strings.Contains(name, "/") {
		return handlers{http.MethodPut: withID(name, s.putHistory)}
	}
	if name, ok := strings.CutPrefix(path, workspacePath); ok && name != "" && !strings.Contains(name, "/") {
		return handlers{http.MethodGet: s.withSum(name, s.getWorkspace), http.MethodPut: s.withSum(name, s.putWorkspace)}
	}
	if name, ok := trajectoryOf(path); ok {
		return handlers{http.MethodGet: withID(name, s.getTrajectory)}
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
	inner.RequestURI = strings.TrimPrefix(r.RequestURI, base)
	return inner, true
}

// allowed reports whether a request carries the key.
func (s *Server) allowed(r *http.Request) bool {
	return s.opts.Key == "" || s.isKey(r.Header.Get("X-Session-API-Key"))
}

// counted reports whether a request may be counted as work: not those that the
// agent-server will turn away, or a stranger could keep the box awake.
func (s *Server) counted(r *http.Request) bool {
	return s.allowed(r) || s.isKey(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
}

func (s *Server) isKey(given string) bool {
	is := 0
	for _, key := range append([]box.Secret{s.opts.Key}, s.opts.MoreKeys...) {
		a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(key.Reveal()))
		is |= subtle.ConstantTimeCompare(a[:], b[:])
	}
	return is == 1
}

// capabilities are the promises that we add to server_info.
func (s *Server) capabilities() []string {
	out := []string{agentserver.CapabilityStorageStatus, agentserver.CapabilityUse, agentserver.CapabilityDrain, agentserver.CapabilityHistoryImport}
	if s.opts.Reclaim.Supported() {
		out = append(out, agentserver.CapabilityStorageReclaim, agentserver.CapabilityUnsaved, agentserver.CapabilityExport, agentserver.CapabilityWorkspaceRestore)
	}
	if s.opts.Keeping != nil {
		out = append(out, agentserver.CapabilityRetention)
	}
	return out
}
