package drivertest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

const (
	sampleKey  = "sample-credential-91c4"
	samplePage = 2
)

// service is a small provider: boxes with a state, pages of two, names that are
// not unique, and a key of idempotency that makes creates so.
type service struct {
	mu      sync.Mutex
	account string
	boxes   map[string][]*sandbox // by account
	serial  int
}

type sandbox struct {
	ID      string            `json:"id"`
	Name    string            `json:"name"`
	Account string            `json:"account"`
	State   string            `json:"state"`
	URL     string            `json:"url,omitempty"`
	Labels  map[string]string `json:"labels"`
	Since   time.Time         `json:"since"`

	key    string // of the create
	starts int
}

func newService() *service { return &service{account: "acc-1", boxes: map[string][]*sandbox{}} }

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Header.Get("X-Api-Key") != sampleKey {
		s.refuse(w, 401, "unauthorized")
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/v1/")
	parts := strings.Split(rest, "/")
	switch {
	case !ok:
		http.NotFound(w, r)
	case rest == "account" && r.Method == http.MethodGet:
		s.say(w, 200, map[string]string{"account": s.account})
	case rest == "boxes" && r.Method == http.MethodGet:
		s.list(w, r)
	case rest == "boxes" && r.Method == http.MethodPost:
		s.create(w, r)
	case parts[0] == "boxes" && len(parts) > 1:
		s.one(w, r, parts[1], strings.Join(parts[2:], "/"))
	default:
		http.NotFound(w, r)
	}
}

func (s *service) say(w http.ResponseWriter, code int, what any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(what); err != nil {
		panic(err)
	}
}

func (s *service) refuse(w http.ResponseWriter, code int, reason string) {
	s.say(w, code, map[string]any{"error": map[string]string{"code": reason, "account": s.account}})
}

func (s *service) list(w http.ResponseWriter, r *http.Request) {
	var found []*sandbox
	for _, b := range s.boxes[s.account] {
		if want := r.URL.Query().Get("name"); want == "" || want == b.Name {
			found = append(found, b)
		}
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("page"))
	end := min(from+samplePage, len(found))
	next := ""
	if end < len(found) {
		next = strconv.Itoa(end)
	}
	s.say(w, 200, map[string]any{"boxes": append([]*sandbox{}, found[min(from, end):end]...), "next": next})
}

func (s *service) create(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		s.refuse(w, 400, "bad_request")
		return
	}
	key := r.Header.Get("Idempotency-Key")
	for _, b := range s.boxes[s.account] {
		if key != "" && b.key == key {
			s.say(w, 200, b)
			return
		}
	}
	s.serial++
	b := &sandbox{ID: fmt.Sprintf("box-%d", s.serial), Name: in.Name, Account: s.account, Labels: in.Labels, key: key}
	b.start()
	s.boxes[s.account] = append(s.boxes[s.account], b)
	s.say(w, 201, b)
}

func (b *sandbox) start() {
	b.State, b.URL = "RUNNING", "http://"+b.ID+".sample.invalid"
	b.starts++
	b.Since = time.Now()
}

func (s *service) one(w http.ResponseWriter, r *http.Request, id, verb string) {
	at := slices.IndexFunc(s.boxes[s.account], func(b *sandbox) bool { return b.ID == id })
	if at < 0 {
		s.refuse(w, 404, "box_not_found")
		return
	}
	b := s.boxes[s.account][at]
	switch r.Method + " " + verb {
	case "GET ":
		s.say(w, 200, b)
	case "DELETE ":
		s.boxes[s.account] = slices.Delete(s.boxes[s.account], at, at+1)
		w.WriteHeader(http.StatusNoContent)
	case "POST suspend":
		if b.State == "SUSPENDED" {
			s.refuse(w, 409, "not_running")
			return
		}
		b.State, b.URL, b.Since = "SUSPENDED", "", time.Now()
		w.WriteHeader(http.StatusNoContent)
	case "POST resume":
		if b.State == "RUNNING" {
			s.refuse(w, 409, "not_suspended")
			return
		}
		b.start()
		w.WriteHeader(http.StatusNoContent)
	default:
		http.NotFound(w, r)
	}
}

// named returns the boxes of a name that are there.
func (s *service) named(name string) []*sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*sandbox
	for _, b := range s.boxes[s.account] {
		if b.Name == name {
			out = append(out, b)
		}
	}
	return out
}

func (s *service) plant(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	b := &sandbox{ID: fmt.Sprintf("box-%d", s.serial), Name: name, Account: s.account, Labels: map[string]string{"theirs": "yes"}}
	b.start()
	s.boxes[s.account] = append(s.boxes[s.account], b)
}

func (s *service) kill(t *testing.T, ref box.Ref) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boxes[s.account] {
		if b.ID == ref.ID {
			b.State, b.URL = "FAILED", ""
			return
		}
	}
	t.Fatalf("no box %s", ref.ID)
}

func (s *service) move(account string) (before string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.account = s.account, account
	return before
}
