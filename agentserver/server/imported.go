package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Histories that were taken in lie where no agent-server looks: one that knew
// them could be made to prompt them, over a socket that we only pass on. So we
// answer for each of them, add them to the agent-server's catalogue, and refuse
// to have one of their ids used again.

const (
	underConversations = conversationsPath + "/"
	// reuseHeader asks the agent-server's model gateway for a conversation.
	reuseHeader = "X-OpenHands-ServerConversation-ID"
	// maxStart is how much of a request for a new conversation is read to see
	// its id.
	maxStart = 16 << 20

	isReadOnly = "this conversation was put back from an export; its history is read-only"
)

// serveImported answers a request that is about a history that was taken in,
// or about the catalogue. It returns false for every other one.
func (s *Server) serveImported(w http.ResponseWriter, r *http.Request) bool {
	if !s.history.hasImported() {
		return false
	}
	if id, rest, ok := conversationIn(r.URL.Path); ok && s.history.isImported(id) {
		s.readOnly(w, r, id, rest)
		return true
	}
	if s.opts.Upstream == nil {
		return false // the catalogue is ours
	}
	if id, ok := shortID(r.Header.Get(reuseHeader)); ok && s.history.isImported(id) {
		refuse(s.ours(w, r), http.StatusGone, isReadOnly)
		return true
	}
	if r.Method == http.MethodPost && strings.TrimSuffix(r.URL.Path, "/")+"/" == underConversations {
		return s.refuseReuse(w, r)
	}
	if r.Method != http.MethodGet {
		return false
	}
	merge := map[string]func(http.ResponseWriter, *http.Request){
		"/api/conversations": s.mergeBatch, "/api/conversations/count": s.mergeCount, "/api/conversations/search": s.mergeSearch,
	}[r.URL.Path]
	if _, up := s.opts.Upstream.Target(); merge == nil || !up {
		return false
	}
	merge(w, r)
	return true
}

// conversationIn returns the conversation that a path is about, and what comes
// after its id.
func conversationIn(place string) (id, rest string, ok bool) {
	for _, begin := range []string{underConversations, "/sockets/events/", "/sockets/session/"} {
		name, found := strings.CutPrefix(place, begin)
		if !found {
			continue
		}
		name, rest, _ = strings.Cut(name, "/")
		if id, ok = shortID(name); begin != underConversations {
			rest = "socket"
		}
		return id, rest, ok
	}
	return "", "", false
}

// readOnly serves what can be read of a conversation that was taken in.
func (s *Server) readOnly(w http.ResponseWriter, r *http.Request, id, rest string) {
	if rest == "socket" { // its key would come in the first frame
		refuse(w, http.StatusGone, isReadOnly)
		return
	}
	methods := handlers{http.MethodGet: func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusGone, isReadOnly)
	}}
	switch strings.TrimSuffix(rest, "/") {
	case "":
		methods[http.MethodGet] = with(id, s.getConversation)
		methods[http.MethodDelete] = with(id, s.deleteImported)
	case "events/count":
		methods[http.MethodGet] = with(id, s.getEventCount)
	case "events/search":
		methods[http.MethodGet] = with(id, s.getEvents)
	case "runtime":
		methods[http.MethodGet] = func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, map[string]any{"runtime_status": "missing", "can_resume": false, "runtime_error": nil})
		}
	}
	if methods[r.Method] == nil {
		methods[r.Method] = func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusGone, isReadOnly) }
	}
	s.serveOwn(w, r, methods)
}

func with(id string, next func(http.ResponseWriter, *http.Request, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { next(w, r, id) }
}

// deleteImported removes a history that was taken in: out of sight at once, from
// the disk then. What a crash leaves goes at the next start.
func (s *Server) deleteImported(w http.ResponseWriter, r *http.Request, id string) {
	leave, err := s.imports.lock(r.Context(), id)
	if err != nil {
		return // the caller has gone
	}
	defer leave()
	root, err := os.OpenRoot(s.opts.Root)
	if err == nil {
		defer root.Close()
		gone := path.Join(importDir, id+".deleted")
		err = errors.Join(root.MkdirAll(importDir, 0o700), root.RemoveAll(gone))
		if err == nil {
			err = root.Rename(path.Join(importedDir, id), gone)
		}
		if err == nil {
			err = root.RemoveAll(gone)
		}
	}
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	s.log.Info("a history that was taken in is deleted", "conversation", id)
	writeJSON(w, http.StatusOK, map[string]bool{"success": true})
}

// refuseReuse refuses a new conversation under the id of one that was taken in:
// the agent-server does not know that there is one. What it cannot read it
// refuses as well, since the agent-server reads more forms of JSON than we do.
func (s *Server) refuseReuse(w http.ResponseWriter, r *http.Request) (refused bool) {
	if !s.allowed(r) {
		return false // the agent-server refuses it
	}
	w = s.ours(w, r)
	text, err := io.ReadAll(io.LimitReader(r.Body, maxStart+1))
	if err != nil {
		refuse(w, http.StatusBadRequest, "the body could not be read")
		return true
	}
	if len(text) > maxStart {
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the request for a conversation is larger than %d bytes", maxStart))
		return true
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		refuseAs(w, fault{Type: "json_invalid", Loc: []any{"body", 0}, Msg: "JSON decode error", Input: map[string]any{}})
		return true
	}
	var name string
	_ = json.Unmarshal(fields["conversation_id"], &name) // what is no text is the agent-server's to refuse
	if id, ok := shortID(name); ok && s.history.isImported(id) {
		refuse(w, http.StatusGone, isReadOnly)
		return true
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{bytes.NewReader(text), r.Body}
	return false
}

// answerOf puts a question of the caller's to the agent-server, with another
// query. When the answer is no success, it is the caller's and ok is false.
func (s *Server) answerOf(w http.ResponseWriter, r *http.Request, query url.Values, out any) (ok bool) {
	base, _ := s.opts.Upstream.Target()
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, base.String()+r.URL.Path+"?"+query.Encode(), nil) //nolint:gosec // one of three paths, of the agent-server in this box
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return false
	}
	request.Header = r.Header.Clone()
	request.Header.Del("Accept-Encoding")
	response, err := s.relays.Do(request) //nolint:gosec // as above
	if err != nil {
		s.failed(w, r, err)
		return false
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxState+1))
	switch {
	case err != nil:
		s.failed(w, r, err)
		return false
	case response.StatusCode == http.StatusOK && json.Unmarshal(text, out) == nil:
		for name, values := range response.Header {
			if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
				w.Header()[name] = values
			}
		}
		return true
	}
	maps.Copy(w.Header(), response.Header)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(text) // the caller may have gone
	return false
}

// importedEntries are the catalogue's entries of what was taken in.
func (s *Server) importedEntries(status string) ([]entry, error) {
	all, err := s.catalogue()
	return slices.DeleteFunc(all, func(e entry) bool {
		return !s.history.isImported(e.id) || status != "" && e.status != status
	}), err
}

func (s *Server) mergeCount(w http.ResponseWriter, r *http.Request) {
	n := 0
	if !s.answerOf(w, r, r.URL.Query(), &n) {
		return
	}
	taken, err := s.importedEntries(r.URL.Query().Get("status"))
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, n+len(taken))
}

func (s *Server) mergeBatch(w http.ResponseWriter, r *http.Request) {
	var items []json.RawMessage
	if !s.answerOf(w, r, r.URL.Query(), &items) {
		return
	}
	for i, name := range r.URL.Query()["ids"] {
		id, ok := shortID(name)
		if !ok || i >= len(items) || string(items[i]) != "null" || !s.history.isImported(id) {
			continue
		}
		found, err := s.history.entry(id)
		if err != nil {
			continue // it stays null, as one that does not read has it
		}
		if items[i], err = json.Marshal(found.fields); err != nil {
			refuse(w, http.StatusInternalServerError, err.Error())
			return
		}
	}
	writeJSON(w, http.StatusOK, items)
}

// listed is one conversation of the merged catalogue.
type listed struct {
	id  string
	at  time.Time
	raw json.RawMessage
}

// mergeSearch reads the agent-server's whole catalogue, so that the order is
// one and a page can begin at any of both.
func (s *Server) mergeSearch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	limit := 100
	if query.Has("limit") {
		limit, _ = strconv.Atoi(query.Get("limit"))
	}
	first := r.URL.Query()
	first.Del("page_id")
	if limit >= 1 && limit <= 100 {
		first.Set("limit", "100") // any other is the agent-server's to refuse
	}
	by := "created_at"
	if strings.HasPrefix(query.Get("sort_order"), "UPDATED_AT") {
		by = "updated_at"
	}
	var all []listed
	for seen := map[string]bool{}; ; {
		var page struct {
			Items []json.RawMessage `json:"items"`
			Next  *string           `json:"next_page_id"`
		}
		if !s.answerOf(w, r, first, &page) {
			return
		}
		for _, raw := range page.Items {
			all = append(all, listOne(raw, by))
		}
		if page.Next == nil || seen[*page.Next] {
			break
		}
		seen[*page.Next] = true
		first.Set("page_id", *page.Next)
	}
	taken, err := s.importedEntries(query.Get("status"))
	for _, one := range taken {
		var raw []byte
		if raw, err = json.Marshal(one.fields); err == nil {
			all = append(all, listOne(raw, by))
		}
	}
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	upwards := query.Has("sort_order") && !strings.HasSuffix(query.Get("sort_order"), "_DESC")
	slices.SortStableFunc(all, func(a, b listed) int {
		if upwards {
			return a.at.Compare(b.at)
		}
		return b.at.Compare(a.at)
	})
	from, _ := shortID(query.Get("page_id"))
	writeItems(w, all, func(l listed) (string, json.RawMessage) { return l.id, l.raw }, from, limit)
}

func listOne(raw json.RawMessage, by string) listed {
	var fields map[string]json.RawMessage
	one := listed{raw: raw}
	// What does not read sorts as the oldest.
	_ = json.Unmarshal(raw, &fields)
	_ = json.Unmarshal(fields["id"], &one.id)
	_ = json.Unmarshal(fields[by], &one.at)
	one.id, _ = shortID(one.id)
	return one
}
