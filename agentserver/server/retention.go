package server

import (
	"bytes"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/agentserver/retention"
	"github.com/openhands/boxkeeper/box"
)

const (
	// maxCreate bounds the body of a request that makes a conversation: it may
	// carry pictures.
	maxCreate = 128 << 20
	// stopBound bounds the archiving after a runtime was stopped, stopTries how
	// often it is tried while its container ends.
	stopBudget = 30 * time.Second
	stopPause  = 2 * time.Second
)

// Keeping is what a handler archives conversations by.
type Keeping struct {
	Rules  *retention.Rules
	Keeper *retention.Keeper
}

// retentionOf returns the conversation of a retention path.
func retentionOf(place string) (name string, ok bool) {
	name, ok = strings.CutPrefix(place, conversationsPath+"/")
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, "/retention")
	return name, ok && name != "" && !strings.Contains(name, "/")
}

func (s *Server) getRetention(w http.ResponseWriter, _ *http.Request, id string) {
	if s.refuseTaken(w, id) {
		return
	}
	if _, ok := s.there(w, id); !ok {
		return
	}
	rule, _, err := s.opts.Keeping.Rules.Of(id)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error()+"; set it anew")
		return
	}
	writeJSON(w, http.StatusOK, rule)
}

// putRetention sets when a conversation is archived; repeating it changes
// nothing.
func (s *Server) putRetention(w http.ResponseWriter, r *http.Request, id string) {
	if s.refuseTaken(w, id) {
		return
	}
	archived, ok := s.there(w, id)
	if !ok {
		return
	}
	var rule box.Retention
	if !decode(w, r, &rule) {
		return
	}
	if err := retention.Check(rule); err != nil {
		refuseError(w, err)
		return
	}
	if archived {
		refuse(w, http.StatusGone, archivedText)
		return
	}
	if s.refuseOff(w, rule) {
		return
	}
	// One that is being made has its rule already.
	leave, err := s.creates.lock(r.Context(), id)
	if err != nil {
		return // the caller has gone
	}
	defer leave()
	if err := s.opts.Keeping.Rules.Set(id, rule); err != nil {
		refuseError(w, err)
		return
	}
	s.opts.Keeping.Keeper.Wake()
	writeJSON(w, http.StatusOK, rule)
}

// refuseTaken refuses what is about a history that was taken in: it has no
// runtime that could be archived.
func (s *Server) refuseTaken(w http.ResponseWriter, id string) bool {
	taken := s.history.isImported(id)
	if taken {
		refuse(w, http.StatusGone, isReadOnly)
	}
	return taken
}

// refuseOff refuses a rule in a box that archives nothing.
func (s *Server) refuseOff(w http.ResponseWriter, rule box.Retention) bool {
	why := s.opts.Keeping.Keeper.Off()
	if why == "" || rule.Mode == box.RetentionDefault {
		return false
	}
	refuse(w, http.StatusConflict, "conversations of this box are not archived by age: "+why+"; delete the conversation, or reclaim its runtime, when it is not needed any more")
	return true
}

// passWatched hands a request to the agent-server and does what has to follow on
// its answer; as is its target below the agent-server's public path. ok is false
// for a request that nothing follows on.
func (s *Server) passWatched(w http.ResponseWriter, r *http.Request, as *url.URL) (ok bool) {
	place := strings.TrimSuffix(strings.Replace(as.Path, "/_docker/", "/", 1), "/")
	if r.Method == http.MethodPost && place == conversationsPath {
		s.create(w, r)
		return true
	}
	to, named := targetOf(as)
	if r.Method != http.MethodDelete || !named || to.elsewhere {
		return false
	}
	switch to.tail {
	case "":
		// Whoever reads the answer may make a conversation of the same id next.
		answer := &held{header: http.Header{}}
		func() {
			defer s.forget(to.id) // also when the answer broke off: only the disk tells
			s.pass(answer, r)
		}()
		answer.send(w)
	case "runtime":
		answer := &watched{ResponseWriter: w}
		s.pass(answer, r)
		if answer.status/100 == 2 && s.opts.Keeping != nil {
			s.stopped(r.Context(), to.id)
		}
	default:
		return false
	}
	return true
}

// watched remembers the status of an answer.
type watched struct {
	http.ResponseWriter
	status int
}

func (w *watched) WriteHeader(status int) {
	if status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets the proxy flush.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// held keeps a short answer back.
type held struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (h *held) Header() http.Header         { return h.header }
func (h *held) Write(p []byte) (int, error) { return h.body.Write(p) }

func (h *held) WriteHeader(status int) {
	if status >= 200 && h.status == 0 {
		h.status = status
	}
}

func (h *held) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), h.header)
	w.WriteHeader(max(h.status, http.StatusOK))
	_, _ = w.Write(h.body.Bytes()) // the caller may have gone
}
