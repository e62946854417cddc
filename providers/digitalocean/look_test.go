package digitalocean_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean"
)

func TestNewNamesTheField(t *testing.T) {
	t.Parallel()
	for field, o := range map[string]digitalocean.Options{
		"token":       {},
		"region":      {Token: token, Region: "mem1/../x"},
		"template":    {Token: token, Template: "a b"},
		"size":        {Token: token, Size: "\n"},
		"agent_kind":  {Token: token, AgentKind: "{"},
		"base_url":    {Token: token, BaseURL: "https://edge.example.com/prefix/"},
		"poll_every":  {Token: token, PollEvery: -1},
		"tunnel_idle": {Token: token, TunnelIdle: -1},
	} {
		_, err := digitalocean.New(installation, o)
		require.Equal(t, box.ClassInvalid, box.ClassOf(err), field)
		require.True(t, strings.HasPrefix(err.Error(), field+": "), "%v, want %s", err, field)
		require.NotContains(t, err.Error(), token)
	}
	_, err := digitalocean.New(installation, digitalocean.Options{Token: "two words"})
	require.True(t, strings.HasPrefix(err.Error(), "token: "))
	require.NotContains(t, err.Error(), "words")
	_, err = digitalocean.New("0A1B2C3D", digitalocean.Options{Token: token})
	require.Equal(t, box.ClassInvalid, box.ClassOf(err))
	require.Empty(t, digitalocean.Row(digitalocean.Options{}).Missing())
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	d := s.driver(t)
	for range 3 {
		got, err := d.Fingerprint(t.Context())
		require.NoError(t, err)
		require.Equal(t, print, got)
	}
	require.Len(t, s.requests(), 1, "a token belongs to one team")

	for body, row := range map[string]struct {
		status int
		class  box.Class
		says   string
	}{
		`{"id":"forbidden","message":"no"}`: {403, box.ClassUnauthorized, "account:read"},
		`{"id":"unauthorized"}`:             {401, box.ClassUnauthorized, "token"},
		`{"account":{}}`:                    {200, box.ClassUnknown, "names no team"},
		`{}`:                                {200, box.ClassUnknown, "names no team"},
		`{"account":{"uuid":"of-a-person","team":null}}`: {200, box.ClassUnknown, "names no team"},
	} {
		s.only("GET /v2/account", row.status, body)
		_, err := s.driver(t).Fingerprint(t.Context())
		require.Equal(t, row.class, box.ClassOf(err), "%v", err)
		require.Contains(t, err.Error(), row.says)
	}
}

func TestObserveSaysWhatTheServiceSays(t *testing.T) {
	t.Parallel()
	name := identity("w").Name()
	rows := map[string]struct {
		session string
		phase   box.Phase
		says    string
		native  *box.Native
	}{
		"starting":            {sessionJSON("sess-1", name, "PROVISIONING", nil), box.PhaseStarting, "PROVISIONING", &box.Native{Idle: box.Duration(time.Hour)}},
		"ready":               {sessionJSON("sess-1", name, "READY", nil), box.PhaseRunning, "READY", &box.Native{Idle: box.Duration(time.Hour)}},
		"detached":            {sessionJSON("sess-1", name, "DETACHED", nil), box.PhaseRunning, "DETACHED", &box.Native{Idle: box.Duration(time.Hour)}},
		"updating":            {sessionJSON("sess-1", name, "UPDATING", nil), box.PhaseRunning, "UPDATING", &box.Native{Idle: box.Duration(time.Hour)}},
		"paused":              {sessionJSON("sess-1", name, "PAUSED", map[string]any{"pause_reason": "idle"}), box.PhaseSuspended, "PAUSED: idle", &box.Native{Idle: box.Duration(time.Hour)}},
		"unpaid":              {sessionJSON("sess-1", name, "PAUSED", map[string]any{"pause_reason": "zero_balance"}), box.PhaseSuspended, "somebody pays", &box.Native{Idle: box.Duration(time.Hour)}},
		"a new reason":        {sessionJSON("sess-1", name, "PAUSED", map[string]any{"pause_reason": "some_future_reason"}), box.PhaseSuspended, "some_future_reason", &box.Native{Idle: box.Duration(time.Hour)}},
		"failed":              {sessionJSON("sess-1", name, "FAILED", nil), box.PhaseFailed, "FAILED", &box.Native{Idle: box.Duration(time.Hour)}},
		"being destroyed":     {sessionJSON("sess-1", name, "DESTROYING", nil), box.PhaseUnknown, "DESTROYING", &box.Native{Idle: box.Duration(time.Hour)}},
		"destroyed":           {sessionJSON("sess-1", name, "DESTROYED", nil), box.PhaseGone, "DESTROYED", &box.Native{Idle: box.Duration(time.Hour)}},
		"a new status":        {sessionJSON("sess-1", name, "ASTRAY", nil), box.PhaseUnknown, "ASTRAY", &box.Native{Idle: box.Duration(time.Hour)}},
		"no status":           {sessionJSON("sess-1", name, "READY", map[string]any{"status": nil}), box.PhaseUnknown, "no state", &box.Native{Idle: box.Duration(time.Hour)}},
		"kept warm":           {sessionJSON("sess-1", name, "READY", map[string]any{"keep_warm": true}), box.PhaseRunning, "kept warm", &box.Native{}},
		"consented":           {sessionJSON("sess-1", name, "PAUSED", map[string]any{"resume_on_topoff": true}), box.PhaseSuspended, "resumed by the service", &box.Native{Idle: box.Duration(time.Hour)}},
		"no timer told":       {sessionJSON("sess-1", name, "READY", map[string]any{"idle_timeout_seconds": nil}), box.PhaseRunning, "READY", nil},
		"a time that is null": {sessionJSON("sess-1", name, "READY", map[string]any{"created_at": nil, "last_event_at": nil}), box.PhaseRunning, "READY", &box.Native{Idle: box.Duration(time.Hour)}},
	}
	for what, row := range rows {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			s.on("GET "+sessionsAt+"/sess-1", 200, one(row.session))
			seen, err := s.driver(t).Observe(t.Context(), refOf("sess-1", "w"))
			require.NoError(t, err)
			require.Equal(t, row.phase, seen.Phase)
			require.Equal(t, row.native, seen.Native)
			require.Contains(t, seen.Evidence, row.says)
			require.Equal(t, refOf("sess-1", "w"), seen.Ref)
			require.Equal(t, row.phase == box.PhaseSuspended, seen.MemoryKept == box.Yes)
			require.Equal(t, []string{"GET " + sessionsAt + "/sess-1"}, s.lines(), "looking is one request")
		})
	}
}

func TestGoneNeedsProof(t *testing.T) {
	t.Parallel()
	name := identity("w").Name()
	missing := func(s *script) {
		s.on("GET "+sessionsAt+"/sess-1", 404, `{"error":{"code":404,"message":"session not found"}}`)
	}
	rows := map[string]struct {
		set   func(s *script)
		class box.Class // "" means gone
	}{
		"not found, and not listed": {func(s *script) { missing(s); s.on("GET "+sessionsAt, 200, list("")) }, ""},
		"not found, and another one has the name": {func(s *script) {
			missing(s)
			s.on("GET "+sessionsAt, 200, list("", sessionJSON("sess-2", name, "READY", nil)))
		}, ""},
		"not found, and listed": {func(s *script) {
			missing(s)
			s.on("GET "+sessionsAt, 200, list("", sessionJSON("sess-1", name, "READY", nil)))
		}, box.ClassUnavailable},
		"not found, and listed as one that failed": {func(s *script) {
			missing(s)
			s.on("GET "+sessionsAt, 200, list(""))
			s.on("GET "+sessionsAt+"?SESSION_STATUS_FAILED", 200, list("", sessionJSON("sess-1", name, "FAILED", nil)))
		}, box.ClassUnavailable},
		"not found, and no list of what failed": {func(s *script) {
			missing(s)
			s.on("GET "+sessionsAt, 200, list(""))
			s.on("GET "+sessionsAt+"?SESSION_STATUS_FAILED", 500, ``)
		}, box.ClassUnavailable},
		"not found, and so is the list":          {func(s *script) { missing(s); s.on("GET "+sessionsAt, 404, "404 page not found") }, box.ClassUnknown},
		"not found, and the list is not allowed": {func(s *script) { missing(s); s.on("GET "+sessionsAt, 403, `{}`) }, box.ClassUnauthorized},
		"not found, and the token is another team's now": {func(s *script) {
			missing(s)
			s.on("GET /v2/account", 200, `{"account":{"team":{"uuid":"another"}}}`)
			s.on("GET "+sessionsAt, 200, list(""))
		}, box.ClassUnknown},
		"not found, and nobody says whose the token is": {func(s *script) {
			missing(s)
			s.on("GET /v2/account", 500, ``)
			s.on("GET "+sessionsAt, 200, list(""))
		}, box.ClassUnavailable},
		"of another team": {func(s *script) {
			s.on("GET "+sessionsAt+"/sess-1", 403, `{"error":{"code":403,"message":"other team"}}`)
		}, box.ClassUnauthorized},
		"no answer":                {func(s *script) { s.on("GET "+sessionsAt+"/sess-1", 502, `<html>`) }, box.ClassUnavailable},
		"an empty answer":          {func(s *script) { s.on("GET "+sessionsAt+"/sess-1", 200, ``) }, box.ClassUnknown},
		"no session in the answer": {func(s *script) { s.on("GET "+sessionsAt+"/sess-1", 200, `{}`) }, box.ClassUnknown},
		"a null session":           {func(s *script) { s.on("GET "+sessionsAt+"/sess-1", 200, `{"session":null}`) }, box.ClassUnknown},
		"another session": {func(s *script) {
			s.on("GET "+sessionsAt+"/sess-1", 200, one(sessionJSON("sess-2", name, "DESTROYED", nil)))
		}, box.ClassUnknown},
		"another name": {func(s *script) {
			s.on("GET "+sessionsAt+"/sess-1", 200, one(sessionJSON("sess-1", "bk-0a1b2c3d-x-1", "DESTROYED", nil)))
		}, box.ClassFailedPrecondition},
		"sent elsewhere": {func(s *script) {
			s.add("GET "+sessionsAt+"/sess-1", answer{status: 307, header: http.Header{"Location": {"/v2/account"}}})
		}, box.ClassUnknown},
	}
	for what, row := range rows {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			row.set(s)
			seen, err := s.driver(t).Observe(t.Context(), refOf("sess-1", "w"))
			if row.class == "" {
				require.NoError(t, err)
				require.Equal(t, box.PhaseGone, seen.Phase)
				return
			}
			require.NotEqual(t, box.PhaseGone, seen.Phase)
			require.Equal(t, row.class, box.ClassOf(err), "%v", err)
		})
	}
}

func TestRefsOfOthersChangeNothing(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	d := s.driver(t)
	theirs, elsewhere, odd := refOf("sess-1", "w"), refOf("sess-1", "w"), refOf("a/b?c", "w")
	theirs.Name = strings.Replace(theirs.Name, installation, "ffffffff", 1)
	elsewhere.Fingerprint = "digitalocean/" + team + "/mem1"
	for _, ref := range []box.Ref{theirs, elsewhere, odd, {}} {
		_, err := d.Observe(t.Context(), ref)
		require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "%v", err)
		_, err = d.Delete(t.Context(), ref)
		require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "%v", err)
	}
	require.Empty(t, s.lines())
}

func TestListIsWholeOrAnError(t *testing.T) {
	t.Parallel()
	a, b, c := identity("a").Name(), identity("b").Name(), identity("c").Name()
	prefixes := map[string]string{}
	for _, w := range []string{"a", "b", "c"} {
		s := empty(t)
		s.only("POST "+sessionsAt, 201, one(sessionJSON("sess-1", identity(w).Name(), "PROVISIONING", nil)))
		_, err := s.driver(t).Create(t.Context(), createRequest(w))
		require.NoError(t, err)
		prefixes[w] = mine(t, s, w)
	}
	s := newScript(t)
	at := func(config string) map[string]any { return map[string]any{"config_id": config} }
	s.on("GET "+sessionsAt, 200, list("p2",
		sessionJSON("1", a, "READY", at("cfg-a")),
		sessionJSON("2", "somebody's", "READY", at("cfg-x")),
		sessionJSON("3", "bk-ffffffff-a-1", "READY", at("cfg-x"))))
	s.on("GET "+sessionsAt, 200, list("p3")) // an empty page is not the end
	s.on("GET "+sessionsAt, 200, list("",
		sessionJSON("4", b, "PAUSED", at("cfg-b")),
		sessionJSON("5", "bk-0a1b2c3d-foreign-1", "READY", at("cfg-f")),
		sessionJSON("6", "bk-0a1b2c3d-odd-01", "READY", at("cfg-a")),
		sessionJSON("7", c, "READY", at("cfg-d")),
		sessionJSON("8", c, "READY", at("cfg-c"))))
	s.on("GET "+sessionsAt+"?SESSION_STATUS_FAILED", 200, list("", sessionJSON("8", c, "FAILED", at("cfg-c"))))
	s.on("GET "+configsAt, 200, `{"configs":[{"id":"cfg-a","name":"`+prefixes["a"]+`"},{"id":"cfg-b","name":"`+prefixes["b"]+`"},{"id":"cfg-c","name":"`+prefixes["c"]+`"},{"id":"cfg-f","name":"bk-0a1b2c3d-foreign-1"}]}`)
	s.on("GET "+configsAt+"/cfg-d", 404, `{}`) // deleted by hand
	found, err := s.driver(t).List(t.Context(), installation)
	require.NoError(t, err)
	var got []string
	for _, one := range found {
		require.Equal(t, one.Identity.Name(), one.Observation.Ref.Name)
		require.Equal(t, print, one.Observation.Ref.Fingerprint)
		got = append(got, one.Observation.Ref.ID+" "+one.Identity.Workspace+" "+string(one.Observation.Phase))
	}
	slices.Sort(got)
	require.Equal(t, []string{"1 a running", "4 b suspended", "8 c failed"}, got)
	require.Equal(t, []string{
		"GET " + sessionsAt + "?page_size=200",
		"GET " + sessionsAt + "?page_size=200&page_token=p2",
		"GET " + sessionsAt + "?page_size=200&page_token=p3",
		"GET " + sessionsAt + "?page_size=200&status=SESSION_STATUS_FAILED",
		"GET " + configsAt + "?page_size=200",
		"GET " + configsAt + "/cfg-d",
	}, s.lines())

	for what, row := range map[string]struct {
		set   func(s *script)
		class box.Class
	}{
		"a circle": {func(s *script) {
			s.on("GET "+sessionsAt, 200, list("p2"))
			s.on("GET "+sessionsAt, 200, list("p3"))
			s.on("GET "+sessionsAt, 200, list("p2"))
		}, box.ClassUnknown},
		"a second page that fails": {func(s *script) {
			s.on("GET "+sessionsAt, 200, list("p2", sessionJSON("1", a, "READY", nil)))
			s.on("GET "+sessionsAt, 500, ``)
		}, box.ClassUnavailable},
		"no list of what failed": {func(s *script) {
			s.on("GET "+sessionsAt, 200, list(""))
			s.on("GET "+sessionsAt+"?SESSION_STATUS_FAILED", 429, `{}`)
		}, box.ClassExhausted},
		"one without an id": {func(s *script) { s.on("GET "+sessionsAt, 200, list("", sessionJSON("", a, "READY", nil))) }, box.ClassUnknown},
	} {
		s := newScript(t)
		row.set(s)
		found, err := s.driver(t).List(t.Context(), installation)
		require.Equal(t, row.class, box.ClassOf(err), "%s: %v", what, err)
		require.Nil(t, found)
		require.LessOrEqual(t, len(s.lines()), 3, what)
	}
	_, err = s.driver(t).List(t.Context(), "ffffffff")
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
}

// FuzzObserve takes any answer: it never ends in a box that is gone unless the
// service says of this very session that it is destroyed.
func FuzzObserve(f *testing.F) {
	name := identity("w").Name()
	for _, status := range []string{"READY", "DESTROYED", "PAUSED", "FAILED", "x"} {
		f.Add(200, one(sessionJSON("sess-1", name, status, nil)))
	}
	f.Add(200, `{"session":{"session_id":"sess-1","name":"`+name+`","status":"SESSION_STATUS_DESTROYED","idle_timeout_seconds":-1}}`)
	f.Add(200, `{"session":{"session_id":"sess-1","idle_timeout_seconds":9223372036854775807}}`)
	f.Add(404, `{"error":{"code":"x","message":1}}`)
	f.Add(503, `null`)
	f.Fuzz(func(t *testing.T, status int, body string) {
		if status < 200 || status > 599 || status == 304 || status == 204 {
			return
		}
		s := newScript(t)
		s.on("GET "+sessionsAt+"/sess-1", status, body)
		seen, err := s.driver(t).Observe(t.Context(), refOf("sess-1", "w"))
		if err != nil {
			if box.ClassOf(err) == box.ClassNotFound {
				t.Errorf("an error of class NotFound: %v", err)
			}
			return
		}
		if seen.Phase != box.PhaseGone {
			return
		}
		var said struct {
			Session struct {
				ID     string `json:"session_id"`
				Name   string `json:"name"`
				Status string `json:"status"`
			} `json:"session"`
		}
		if err := json.NewDecoder(strings.NewReader(body)).Decode(&said); err != nil || status != 200 && status > 299 || said.Session.ID != "sess-1" || said.Session.Name != name || said.Session.Status != "SESSION_STATUS_DESTROYED" {
			t.Errorf("gone by %d %q", status, body)
		}
	})
}
