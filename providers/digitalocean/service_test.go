package digitalocean_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	"github.com/openhands/boxkeeper/providers/driver"
)

const (
	installation = "0a1b2c3d"
	token        = "dop_v1_test-token-5f3e"
	team         = "1c7bd9e8-team"
	print        = "digitalocean/" + team + "/ric1"
	sessionsAt   = "/v2/harness-runtime/sessions"
	configsAt    = "/v2/harness-runtime/configs"
)

// request is one that came, as far as the tests look at it.
type request struct {
	Line   string // method, path and query
	Body   string
	Header http.Header
}

// script is a service that answers what a test says, and writes down what came.
type script struct {
	url string

	mu      sync.Mutex
	answers map[string][]answer // by method and path; the last one stays
	came    []request
}

type answer struct {
	status int
	body   string
	header http.Header
}

func newScript(t *testing.T) *script {
	t.Helper()
	s := &script{answers: map[string][]answer{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	s.on("GET /v2/account", 200, `{"account":{"uuid":"account-uuid","team":{"uuid":"`+team+`","name":"n"}}}`)
	return s
}

// on adds an answer for a method and path; several are given one after the other.
func (s *script) on(line string, status int, body string) {
	s.add(line, answer{status: status, body: body})
}

func (s *script) add(line string, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[line] = append(s.answers[line], a)
}

// only replaces the answers.
func (s *script) only(line string, status int, body string) {
	s.mu.Lock()
	delete(s.answers, line)
	s.mu.Unlock()
	s.on(line, status, body)
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.came = append(s.came, request{Line: r.Method + " " + r.URL.RequestURI(), Body: string(body), Header: r.Header.Clone()})
	// What asks for one name or one status may have an answer of its own.
	key := r.Method + " " + r.URL.Path
	if status := r.URL.Query().Get("status"); status != "" && s.answers[key+"?"+status] != nil {
		key += "?" + status
	} else if name := r.URL.Query().Get("name"); name != "" && s.answers[key+"?name"] != nil {
		key += "?name"
	}
	all := s.answers[key]
	if len(all) == 0 {
		if id, ok := strings.CutPrefix(key, "GET "+sessionsAt+"/"); ok && s.listed(id) != "" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, one(s.listed(id)))
			return
		}
		w.WriteHeader(http.StatusTeapot)
		return
	}
	if len(all) > 1 {
		s.answers[key] = all[1:]
	}
	maps.Copy(w.Header(), all[0].header)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(all[0].status)
	text := all[0].body
	if (text == "" || text == "{}") && all[0].status == http.StatusNotFound { // the service's own; one without words proves nothing
		text = `{"error":{"code":404,"message":"not found"}}`
	}
	var made struct{ Name string }
	if key == "POST "+configsAt && json.Unmarshal(body, &made) == nil { // called as it was asked for
		text = strings.Replace(text, `"name":"n"`, `"name":"`+made.Name+`"`, 1)
	}
	_, _ = io.WriteString(w, text)
}

// listed is a session that some list shows.
func (s *script) listed(id string) string {
	for _, all := range s.answers {
		for _, a := range all {
			var page struct {
				Sessions []json.RawMessage `json:"sessions"`
			}
			if json.Unmarshal([]byte(a.body), &page) != nil {
				continue
			}
			for _, text := range page.Sessions {
				if strings.Contains(string(text), `"session_id":"`+id+`"`) {
					return string(text)
				}
			}
		}
	}
	return ""
}

func (s *script) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.came)
}

// lines are the requests that came, without those for the account.
func (s *script) lines() []string {
	var out []string
	for _, r := range s.requests() {
		if r.Line != "GET /v2/account" {
			out = append(out, r.Line)
		}
	}
	return out
}

func (s *script) driver(t *testing.T, change ...func(*digitalocean.Options)) *digitalocean.Driver {
	t.Helper()
	o := digitalocean.Options{Token: token, BaseURL: s.url, PollEvery: time.Millisecond}
	for _, c := range change {
		c(&o)
	}
	d, err := digitalocean.New(installation, o)
	require.NoError(t, err)
	return d
}

// sessionJSON is a session as the service sends it, with fields that godo does
// not know and one that nobody does.
func sessionJSON(id, name, status string, more map[string]any) string {
	out := map[string]any{
		"session_id": id, "name": name, "status": "SESSION_STATUS_" + status, "agent_kind": "AGENT_KIND_OPENHANDS",
		"created_at": "2026-11-13T08:00:00.123456Z", "config_id": "cfg-1", "team_id": "t", "keep_warm": false,
		"idle_timeout_seconds": 3600, "origin": map[string]any{"product": "direct"}, "news": []int{1},
	}
	maps.Copy(out, more)
	text, err := json.Marshal(out)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func one(session string) string { return `{"session":` + session + `}` }

func list(next string, sessions ...string) string {
	return `{"sessions":[` + strings.Join(sessions, ",") + `],"next_page_token":"` + next + `"}`
}

func identity(workspace string) box.Identity {
	return box.Identity{Installation: installation, Workspace: workspace, Epoch: 1}
}

func refOf(id, workspace string) box.Ref {
	return box.Ref{Provider: "do", ID: id, Name: identity(workspace).Name(), Epoch: 1, Fingerprint: print}
}

func createRequest(workspace string) driver.CreateRequest {
	return driver.CreateRequest{
		Identity: identity(workspace),
		Start: driver.Start{
			Env:        map[string]string{"GREETING": "yes"},
			SecretEnv:  map[string]box.Secret{"OPENHANDS_LLM_API_KEY": "llm-secret-77"},
			SessionKey: "session-key-88",
		},
		Native: box.Native{Idle: box.Duration(time.Hour)},
	}
}

// mine is the name of an environment of a box, as the driver gives it.
func mine(t *testing.T, s *script, workspace string) string {
	t.Helper()
	for _, r := range s.requests() {
		var body struct{ Name string }
		if r.Line == "POST "+configsAt && json.Unmarshal([]byte(r.Body), &body) == nil && strings.Contains(r.Body, identity(workspace).Name()) {
			return body.Name
		}
	}
	t.Fatal("no environment was made")
	return ""
}
