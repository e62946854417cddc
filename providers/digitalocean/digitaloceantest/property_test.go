package digitaloceantest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/godo"
	"pgregory.net/rapid"

	dot "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

// direct calls the server without a network.
type direct struct{ s *dot.Server }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	d.s.ServeHTTP(w, r)
	return w.Result(), nil
}

// machine is a service that is called at random, with what must always hold.
type machine struct {
	s       *dot.Server
	c       *godo.Client
	configs []string
	ids     []string
	quota   int
	idle    time.Duration
	urls    map[string]string // ingress URL to the session and its number of pauses
	deletes int               // that were answered with 204 for what was live
}

func newMachine(t *rapid.T) *machine {
	m := &machine{quota: rapid.IntRange(1, 4).Draw(t, "quota"), idle: 10 * time.Minute, urls: map[string]string{}}
	m.s = dot.New(dot.Options{
		Teams:      []dot.Team{{Quota: m.quota}},
		Destroying: time.Duration(rapid.IntRange(0, 5).Draw(t, "destroying")) * time.Second,
		ResumeLag:  time.Duration(rapid.IntRange(0, 5).Draw(t, "lag")) * time.Second,
		Updating:   3 * time.Second, Turn: time.Minute,
	})
	var err error
	m.c, err = godo.New(&http.Client{Transport: bearer{dot.DefaultToken, direct{m.s}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{manifest, strings.Replace(manifest, "keep_warm: false", "keep_warm: true", 1)} {
		cfg, _, err := m.c.HostedAgents.CreateEnvironment(t.Context(), &godo.HostedEnvironmentCreateRequest{Name: "c", ManifestYAML: text})
		if err != nil {
			t.Fatal(err)
		}
		m.configs = append(m.configs, cfg.ID)
	}
	return m
}

// pick draws one of the sessions there ever were, with its statement.
func (m *machine) pick(t *rapid.T) (string, dot.Statement) {
	if len(m.ids) == 0 {
		t.Skip("nothing was created yet")
	}
	id := rapid.SampledFrom(m.ids).Draw(t, "session")
	return id, m.bill(id)
}

func (m *machine) bill(id string) dot.Statement {
	for _, st := range m.s.Bill() {
		if st.ID == id {
			return st
		}
	}
	return dot.Statement{}
}

// told is the status that a read tells.
func (m *machine) told(t *rapid.T, id string) string {
	ses, _, err := m.c.HostedAgents.GetSession(t.Context(), id)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return strings.TrimPrefix(string(ses.Status), "SESSION_STATUS_")
}

func (m *machine) want(t *rapid.T, what string, err error, statuses ...int) {
	if !slices.Contains(statuses, code(err)) {
		t.Fatalf("%s: %v, want one of %v", what, err, statuses)
	}
}

func (m *machine) Create(t *rapid.T) {
	name := rapid.SampledFrom([]string{"oh-a", "OH-A", "oh-b", "oh-c", "oh-d", "oh-e"}).Draw(t, "name")
	taken, live := false, 0
	for _, st := range m.s.Bill() {
		if st.Alive() {
			live++
			taken = taken || strings.EqualFold(st.Name, name)
		}
	}
	ses, _, err := m.c.HostedAgents.CreateSessionFromEnvironment(t.Context(), &godo.HostedAgentSessionFromEnvironmentRequest{
		Name: name, ConfigID: rapid.SampledFrom(m.configs).Draw(t, "config"),
	})
	switch {
	case taken || live >= m.quota:
		m.want(t, "create", err, http.StatusConflict)
	default:
		m.want(t, "create", err, 0)
		m.ids = append(m.ids, ses.SessionID)
	}
}

func (m *machine) Pause(t *rapid.T) {
	id, before := m.pick(t)
	told := m.told(t, id)
	_, err := m.c.HostedAgents.PauseSession(t.Context(), id)
	if err == nil && (told != "READY" && told != "DETACHED") {
		t.Fatalf("a pause of what is %s", told)
	}
	if err == nil != (m.bill(id).Pauses["manual"] == before.Pauses["manual"]+1) {
		t.Fatalf("pause: %v, and the bill says %v", err, m.bill(id).Pauses)
	}
	m.want(t, "pause", err, 0, http.StatusConflict)
}

func (m *machine) Resume(t *rapid.T) {
	id, before := m.pick(t)
	told := m.told(t, id)
	_, err := m.c.HostedAgents.ResumeSession(t.Context(), id)
	m.want(t, "resume", err, 0, http.StatusConflict)
	if (err == nil) != (told == "PAUSED") {
		t.Fatalf("resume of what is %s: %v", told, err)
	}
	if m.bill(id).WokenUp() != before.WokenUp()+map[bool]int{true: 1}[before.Status == "PAUSED"] {
		t.Fatalf("resume of what was %s counts %v", before.Status, m.bill(id).Wakes)
	}
}

func (m *machine) Delete(t *rapid.T) {
	id, before := m.pick(t)
	_, err := m.c.HostedAgents.DestroySession(t.Context(), id)
	m.want(t, "delete", err, 0)
	if before.Alive() {
		m.deletes++
	}
	if m.bill(id).Alive() {
		t.Fatal("a session outlived its delete")
	}
}

func (m *machine) Input(t *rapid.T) {
	id, _ := m.pick(t)
	_, _, err := m.c.HostedAgents.SendInput(t.Context(), id, &godo.HostedAgentSendInputRequest{Text: "go on"})
	m.want(t, "input", err, 0, http.StatusConflict)
}

func (m *machine) Update(t *rapid.T) {
	id, _ := m.pick(t)
	text := fmt.Sprintf("env: {A: %q}", rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value"))
	_, _, err := m.c.HostedAgents.UpdateSessionConfig(t.Context(), id, &godo.HostedAgentSessionConfigUpdateRequest{ManifestYAML: text})
	m.want(t, "update", err, 0, http.StatusConflict)
}

func (m *machine) Publish(t *rapid.T) {
	id, st := m.pick(t)
	told := m.told(t, id)
	req, err := m.c.NewRequest(t.Context(), http.MethodGet, "/v2/agents/sessions/"+id+"/ingress", nil)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		URL ingressURL `json:"ingress_url"`
	}
	_, err = m.c.Do(t.Context(), req, &out)
	if (err == nil) != (told == "READY" || told == "DETACHED") {
		t.Fatalf("ingress of what is %s: %v", told, err)
	}
	if err != nil {
		return
	}
	pauses := 0
	for _, n := range st.Pauses {
		pauses += n
	}
	of := fmt.Sprintf("%s after %d pauses", id, pauses)
	if known, seen := m.urls[out.URL.URL]; seen && known != of {
		t.Fatalf("%s was given to %s and to %s", out.URL.URL, known, of)
	}
	m.urls[out.URL.URL] = of
}

func (m *machine) Balance(t *rapid.T) {
	m.s.SetBalance(dot.DefaultToken, 0)
	for _, st := range m.s.Bill() {
		if st.Status == "READY" || st.Status == "DETACHED" {
			t.Fatalf("%s runs on credit", st.Name)
		}
	}
	m.s.SetBalance(dot.DefaultToken, 10)
}

// Advance is where bills grow, and by nothing else.
func (m *machine) Advance(t *rapid.T) {
	d := time.Duration(rapid.SampledFrom([]int{1, 3, 60, 300, 599, 601, 7200}).Draw(t, "seconds")) * time.Second
	before := m.s.Bill()
	m.s.Advance(d)
	for i, after := range m.s.Bill() {
		was := before[i]
		running, paused, booting := after.Running-was.Running, after.Paused-was.Paused, after.Provisioning-was.Provisioning
		all := running + paused + booting
		switch {
		case was.Alive() && all != d, !was.Alive() && all != 0:
			t.Fatalf("%s (%s) was billed %v of %v", was.Name, was.Status, all, d)
		case was.Status == "PAUSED" && (running != 0 || after.Status != "PAUSED"):
			t.Fatalf("%s woke by itself", was.Name)
		case running > 0 && was.ConfigID == m.configs[0] && running > m.idle+time.Minute+3*time.Second:
			t.Fatalf("%s ran for %v without use", was.Name, running)
		case was.ConfigID == m.configs[1] && after.Pauses["idle"] > 0:
			t.Fatalf("%s is kept warm and was paused", was.Name)
		}
	}
}

// always is what holds after every step.
func (m *machine) always(t *rapid.T) {
	live, names := 0, map[string]bool{}
	for _, st := range m.s.Bill() {
		if !st.Alive() {
			continue
		}
		live++
		if name := strings.ToLower(st.Name); names[name] {
			t.Fatalf("two live sessions are named %s", name)
		}
		names[strings.ToLower(st.Name)] = true
		slept := 0
		for _, n := range st.Pauses {
			slept += n
		}
		if slept-st.WokenUp() != map[bool]int{true: 1}[st.Status == "PAUSED"] {
			t.Fatalf("%s is %s after %v and %v", st.Name, st.Status, st.Pauses, st.Wakes)
		}
	}
	if live > m.quota {
		t.Fatalf("%d sessions live, the quota is %d", live, m.quota)
	}
	audit := m.s.Audit()
	if len(audit.Double) > 0 || len(audit.Alive) != live || len(audit.Deleted) != m.deletes {
		t.Fatalf("audit %+v, with %d live and %d deleted", audit, live, m.deletes)
	}
}

// List pages through everything there ever was.
func (m *machine) List(t *rapid.T) {
	seen := map[string]bool{}
	opt := &godo.HostedAgentSessionListOptions{PageSize: rapid.IntRange(1, 4).Draw(t, "size"), Status: "SESSION_STATUS_ALL"}
	for more := true; more; more = opt.PageToken != "" {
		list, _, err := m.c.HostedAgents.ListSessions(t.Context(), opt)
		if err != nil {
			t.Fatal(err)
		}
		for _, ses := range list.Sessions {
			if seen[ses.SessionID] {
				t.Fatalf("%s is listed twice", ses.Name)
			}
			seen[ses.SessionID] = true
		}
		opt.PageToken = list.NextPageToken
	}
	if len(seen) != len(m.ids) {
		t.Fatalf("%d of %d sessions are listed", len(seen), len(m.ids))
	}
}

func TestTheStateMachine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		defer m.s.Close()
		t.Repeat(map[string]func(*rapid.T){
			"": m.always, "create": m.Create, "pause": m.Pause, "resume": m.Resume, "delete": m.Delete, "input": m.Input,
			"update": m.Update, "publish": m.Publish, "balance": m.Balance, "list": m.List, "advance": m.Advance,
		})
	})
}
