package server

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	ondisk "github.com/openhands/boxkeeper/agentserver/storage"
)

// maxEvent bounds one event in a page; larger ones are only in the trajectory.
const maxEvent = 16 << 20

// filter is what a search for events asks for; empty fields match all.
type filter struct{ kind, source, body, from, before string }

func (f filter) isZero() bool { return f == filter{} }

// filterOf reads the query; it answers the request itself when a time is none.
func filterOf(w http.ResponseWriter, query url.Values) (filter, bool) {
	f := filter{kind: query.Get("kind"), source: query.Get("source"), body: strings.ToLower(query.Get("body"))}
	for name, to := range map[string]*string{"timestamp__gte": &f.from, "timestamp__lt": &f.before} {
		if !query.Has(name) {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, query.Get(name))
		if err != nil {
			at, err = time.ParseInLocation("2006-01-02T15:04:05.999999999", query.Get(name), time.Local)
		}
		if err != nil {
			refuseField(w, "query", name, "Input should be a valid datetime", query.Get(name))
			return filter{}, false
		}
		// Events carry local times without a zone.
		*to = at.Local().Format("2006-01-02T15:04:05.000000")
	}
	return f, true
}

func (f filter) matches(text []byte) bool {
	var e struct {
		Kind      string `json:"kind"`
		Source    string `json:"source"`
		Timestamp string `json:"timestamp"`
		Message   struct {
			Content []struct {
				Text string `json:"text"`
			} `json:"content"`
		} `json:"llm_message"`
	}
	if json.Unmarshal(text, &e) != nil {
		return false
	}
	switch {
	case f.kind != "" && e.Kind != f.kind,
		f.source != "" && e.Source != f.source,
		f.from != "" && e.Timestamp < f.from,
		f.before != "" && e.Timestamp >= f.before:
		return false
	case f.body == "":
		return true
	}
	for _, part := range e.Message.Content {
		if strings.Contains(strings.ToLower(part.Text), f.body) {
			return true
		}
	}
	return false
}

// eventsFor lists the events of a conversation for a request, or answers it.
func (s *Server) eventsFor(w http.ResponseWriter, id string) (dir *os.Root, list []event, ok bool) {
	dir, err := s.history.open(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		refuse(w, http.StatusNotFound, "Conversation not found: "+ondisk.Dashed(id))
		return nil, nil, false
	case err == nil:
		if list, err = eventsOf(dir); err == nil {
			return dir, list, true
		}
		dir.Close()
	}
	refuse(w, http.StatusInternalServerError, err.Error())
	return nil, nil, false
}

func (s *Server) getEventCount(w http.ResponseWriter, r *http.Request, id string) {
	f, ok := filterOf(w, r.URL.Query())
	if !ok {
		return
	}
	dir, list, ok := s.eventsFor(w, id)
	if !ok {
		return
	}
	defer dir.Close()
	if f.isZero() {
		writeJSON(w, http.StatusOK, len(list))
		return
	}
	n := 0
	for _, one := range list {
		if text, err := ondisk.ReadFile(dir, path.Join("events", one.file), maxEvent); err == nil && f.matches(text) {
			n++
		}
	}
	writeJSON(w, http.StatusOK, n)
}

func (s *Server) getEvents(w http.ResponseWriter, r *http.Request, id string) {
	query := r.URL.Query()
	limit, ok := limitOf(w, query)
	if !ok {
		return
	}
	order, ok := oneOf(w, query, "sort_order", "TIMESTAMP", []string{"TIMESTAMP", "TIMESTAMP_DESC"})
	if !ok {
		return
	}
	f, ok := filterOf(w, query)
	if !ok {
		return
	}
	dir, list, ok := s.eventsFor(w, id)
	if !ok {
		return
	}
	defer dir.Close()
	if order == "TIMESTAMP_DESC" {
		slices.Reverse(list)
	}
	if at := slices.IndexFunc(list, func(e event) bool { return e.id == query.Get("page_id") }); at > 0 {
		list = list[at:]
	}
	page := struct {
		Items []json.RawMessage `json:"items"`
		Next  *string           `json:"next_page_id"`
	}{Items: []json.RawMessage{}}
	for _, one := range list {
		text, err := ondisk.ReadFile(dir, path.Join("events", one.file), maxEvent)
		if err != nil || !json.Valid(text) || !f.isZero() && !f.matches(text) {
			continue // one that does not read is left out, as upstream has it
		}
		if len(page.Items) == limit {
			page.Next = &one.id
			break
		}
		page.Items = append(page.Items, text)
	}
	writeJSON(w, http.StatusOK, page)
}
