package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	ondisk "github.com/openhands/boxkeeper/agentserver/storage"
)

// fromDisk serves the read side of the agent-server's API without one.
func (s *Server) fromDisk(w http.ResponseWriter, r *http.Request) {
	route, open := s.route(r.URL.Path)
	switch {
	case route == nil:
		refuse(w, http.StatusNotFound, "Not Found")
	case open && r.Method == http.MethodGet:
		route(w, r)
	case r.URL.Path == pausePath:
		s.serveOwn(w, r, handlers{http.MethodPost: route})
	default:
		s.serveOwn(w, r, handlers{http.MethodGet: route})
	}
}

// route finds the reader of a path; open ones need no key.
func (s *Server) route(place string) (read http.HandlerFunc, open bool) {
	switch place {
	case "/", "/server_info":
		return s.getInfo, true
	case "/alive", "/health":
		return func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
		}, true
	case "/ready":
		return func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
		}, true
	case pausePath:
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, false
	case "/api/conversations":
		return s.getBatch, false
	case "/api/conversations/search":
		return s.getSearch, false
	case "/api/conversations/count":
		return s.getCount, false
	}
	rest, ok := strings.CutPrefix(place, underConversations)
	if !ok {
		return nil, false
	}
	name, tail, _ := strings.Cut(rest, "/")
	switch tail {
	case "":
		return withID(name, s.getConversation), false
	case "events/count":
		return withID(name, s.getEventCount), false
	case "events/search":
		return withID(name, s.getEvents), false
	}
	return nil, false
}

// withID refuses a malformed id the way the agent-server does.
func withID(name string, next func(http.ResponseWriter, *http.Request, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, ok := shortID(name)
		if !ok {
			refuseAs(w, fault{Type: "uuid_parsing", Loc: []any{"path", "conversation_id"}, Msg: "Input should be a valid UUID", Input: name})
			return
		}
		next(w, r, id)
	}
}

// shortID returns the 32 digits of an id, in any of the forms that the
// agent-server reads.
func shortID(name string) (string, bool) {
	name = strings.ToLower(name)
	if inner, ok := strings.CutPrefix(name, "{"); ok && strings.HasSuffix(inner, "}") {
		name = strings.TrimSuffix(inner, "}")
	} else {
		name = strings.TrimPrefix(name, "urn:uuid:")
	}
	if len(name) == 36 && ondisk.Dashed(strings.ReplaceAll(name, "-", "")) == name {
		name = strings.ReplaceAll(name, "-", "")
	}
	return name, ondisk.IsID(name)
}

func (s *Server) getInfo(w http.ResponseWriter, _ *http.Request) {
	list, err := s.history.list()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	newest := s.started
	for _, one := range list {
		if one.newest.After(newest) {
			newest = one.newest
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"title": "boxd", "version": s.opts.Version, "conversation_runtime": "none",
		"uptime":       float64(int(time.Since(s.started).Seconds())),
		"idle_time":    float64(int(max(0, time.Since(newest).Seconds()))),
		"capabilities": s.capabilities(),
	})
}

// entry is one conversation of the catalogue: the fields of its state, with
// those of its metadata over them.
type entry struct {
	fields           map[string]json.RawMessage
	id, status       string
	created, updated time.Time
}

var errNoEntry = errors.New("not in the catalogue")

// entry reads one conversation for the catalogue; errNoEntry when it lacks its
// metadata or its state.
func (h history) entry(id string) (entry, error) {
	dir, err := h.open(id)
	if errors.Is(err, fs.ErrNotExist) {
		return entry{}, errNoEntry
	}
	if err != nil {
		return entry{}, err
	}
	defer dir.Close()
	meta, err := ondisk.ReadFile(dir, "meta.json", maxState)
	if errors.Is(err, fs.ErrNotExist) {
		return entry{}, errNoEntry
	}
	if err != nil {
		return entry{}, err
	}
	state, err := ondisk.ReadFile(dir, "base_state.json", maxState)
	if errors.Is(err, fs.ErrNotExist) {
		return entry{}, errNoEntry
	}
	if err != nil {
		return entry{}, err
	}
	out := entry{id: id, fields: map[string]json.RawMessage{}}
	var masked bytes.Buffer
	if !json.Valid(state) || redactJSON(&masked, bytes.NewReader(state)) != nil || json.Unmarshal(masked.Bytes(), &out.fields) != nil {
		return entry{}, errNoEntry // as the agent-server leaves out what it cannot load
	}
	var over map[string]json.RawMessage
	var known struct {
		CreatedAt time.Time `json:"created_at"`
		UpdatedAt time.Time `json:"updated_at"`
	}
	if json.Unmarshal(meta, &over) != nil || json.Unmarshal(meta, &known) != nil {
		return entry{}, errNoEntry
	}
	for _, name := range []string{
		"title", "metrics", "created_at", "updated_at", "tags",
		"forked_from_conversation_id", "forked_from_event_id", "parent_conversation_id",
	} {
		if value, ok := over[name]; ok {
			out.fields[name] = value
		}
	}
	out.fields["id"] = json.RawMessage(`"` + ondisk.Dashed(id) + `"`)
	out.status, out.created, out.updated = "idle", known.CreatedAt, known.UpdatedAt
	if raw, ok := out.fields["execution_status"]; ok {
		_ = json.Unmarshal(raw, &out.status) // another type is no status
	}
	return out, nil
}

// catalogue reads every entry.
func (s *Server) catalogue() ([]entry, error) {
	list, err := s.history.list()
	if err != nil {
		return nil, err
	}
	var out []entry
	for _, one := range list {
		found, err := s.history.entry(one.ID)
		if errors.Is(err, errNoEntry) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", one.ID, err)
		}
		out = append(out, found)
	}
	return out, nil
}

var statuses = []string{"idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck", "deleting"} //nolint:gochecknoglobals // a constant table

// oneOf reads a query value out of a closed set; it answers the request itself
// when the value is another.
func oneOf(w http.ResponseWriter, query url.Values, name, otherwise string, allowed []string) (string, bool) {
	if !query.Has(name) {
		return otherwise, true
	}
	value := query.Get(name)
	if !slices.Contains(allowed, value) {
		refuseField(w, "query", name, "Input should be one of "+strings.Join(allowed, ", "), value)
		return "", false
	}
	return value, true
}

// limitOf reads the page size; it answers the request itself when it is none.
func limitOf(w http.ResponseWriter, query url.Values) (int, bool) {
	if !query.Has("limit") {
		return 100, true
	}
	n, err := strconv.Atoi(query.Get("limit"))
	if err != nil || n < 1 || n > 100 {
		refuseField(w, "query", "limit", "Input should be a number from 1 to 100", query.Get("limit"))
		return 0, false
	}
	return n, true
}

func (s *Server) getSearch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	limit, ok := limitOf(w, query)
	if !ok {
		return
	}
	status, ok := oneOf(w, query, "status", "", statuses)
	if !ok {
		return
	}
	order, ok := oneOf(w, query, "sort_order", "CREATED_AT_DESC", []string{"CREATED_AT", "UPDATED_AT", "CREATED_AT_DESC", "UPDATED_AT_DESC"})
	if !ok {
		return
	}
	all, err := s.catalogue()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	all = slices.DeleteFunc(all, func(e entry) bool { return status != "" && e.status != status })
	slices.SortStableFunc(all, func(a, b entry) int {
		x, y := a.created, b.created
		if strings.HasPrefix(order, "UPDATED") {
			x, y = a.updated, b.updated
		}
		if strings.HasSuffix(order, "_DESC") {
			x, y = y, x
		}
		if c := x.Compare(y); c != 0 {
			return c
		}
		return strings.Compare(a.id, b.id)
	})
	writeItems(w, all, func(e entry) (string, map[string]json.RawMessage) { return e.id, e.fields }, query.Get("page_id"), limit)
}

// writeItems answers the page of all that begins with the id from. An unknown one
// starts over, as upstream has it.
func writeItems[E, I any](w http.ResponseWriter, all []E, show func(E) (id string, item I), from string, limit int) {
	start := slices.IndexFunc(all, func(e E) bool {
		id, _ := show(e)
		return id == from
	})
	page := struct {
		Items []I     `json:"items"`
		Next  *string `json:"next_page_id"`
	}{Items: []I{}}
	for _, one := range all[max(start, 0):] {
		id, item := show(one)
		if len(page.Items) == limit {
			page.Next = &id
			break
		}
		page.Items = append(page.Items, item)
	}
	writeJSON(w, http.StatusOK, page)
}

func (s *Server) getCount(w http.ResponseWriter, r *http.Request) {
	status, ok := oneOf(w, r.URL.Query(), "status", "", statuses)
	if !ok {
		return
	}
	all, err := s.catalogue()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	n := 0
	for _, one := range all {
		if status == "" || one.status == status {
			n++
		}
	}
	writeJSON(w, http.StatusOK, n)
}

func (s *Server) getConversation(w http.ResponseWriter, _ *http.Request, id string) {
	found, err := s.history.entry(id)
	switch {
	case errors.Is(err, errNoEntry):
		refuse(w, http.StatusNotFound, "Not Found")
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error())
	default:
		writeJSON(w, http.StatusOK, found.fields)
	}
}

func (s *Server) getBatch(w http.ResponseWriter, r *http.Request) {
	asked := r.URL.Query()["ids"]
	switch {
	case len(asked) == 0:
		refuseField(w, "query", "ids", "Field required", nil)
		return
	case len(asked) > 99:
		refuseField(w, "query", "ids", "List should have at most 99 items", len(asked))
		return
	}
	out := make([]map[string]json.RawMessage, len(asked))
	for i, name := range asked {
		id, ok := shortID(name)
		if !ok {
			refuseField(w, "query", fmt.Sprintf("ids.%d", i), "Input should be a valid UUID", name)
			return
		}
		found, err := s.history.entry(id)
		if err != nil && !errors.Is(err, errNoEntry) {
			refuse(w, http.StatusInternalServerError, err.Error())
			return
		}
		out[i] = found.fields // nil, and so null, for one that is not there
	}
	writeJSON(w, http.StatusOK, out)
}
