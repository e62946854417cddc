package digitalocean_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean"
)

// empty is a service without sessions and environments that makes what it is asked.
func empty(t *testing.T) *script {
	t.Helper()
	s := newScript(t)
	s.on("GET "+sessionsAt, 200, list(""))
	s.on("GET "+configsAt, 200, `{"configs":[],"next_page_token":""}`)
	s.on("POST "+configsAt, 200, `{"config":{"id":"cfg-1","name":"n","manifest":{},"created_at":"2026-11-13T08:00:00Z","updated_at":"2026-11-13T08:00:00Z"}}`)
	s.on("POST "+sessionsAt, 201, one(sessionJSON("sess-1", identity("w").Name(), "PROVISIONING", nil)))
	return s
}

func TestCreateSendsWhatTheServiceTakesAndNoMore(t *testing.T) {
	t.Parallel()
	s := empty(t)
	d := s.driver(t, func(o *digitalocean.Options) { o.Size = "mars-4vcpu-8gb" })
	seen, err := d.Create(t.Context(), createRequest("w"))
	require.NoError(t, err)
	want := refOf("sess-1", "w")
	want.Provider = ""
	require.Equal(t, want, seen.Ref)
	require.Equal(t, box.PhaseStarting, seen.Phase)
	require.Equal(t, &box.Native{Idle: box.Duration(time.Hour)}, seen.Native)
	name := identity("w").Name()
	require.Equal(t, []string{
		"GET " + sessionsAt + "?name=" + name + "&page_size=200",
		"GET " + configsAt + "?page_size=200",
		"POST " + configsAt,
		"POST " + sessionsAt,
	}, s.lines())
	for _, r := range s.requests() {
		require.Equal(t, []string{"Bearer " + token}, r.Header["Authorization"], r.Line)
		require.True(t, strings.HasPrefix(r.Header.Get("User-Agent"), "boxkeeper"), r.Line)
		if strings.HasPrefix(r.Line, "POST") {
			require.Equal(t, "application/json", r.Header.Get("Content-Type"))
		}
	}
	came := s.requests()
	var config map[string]string
	require.NoError(t, json.Unmarshal([]byte(came[len(came)-2].Body), &config))
	require.Len(t, config, 2)
	require.Regexp(t, `^bkc-0a1b2c3d-[0-9a-f]{16}-[0-9a-f]{16}$`, config["name"])
	require.Equal(t, `name: bk-0a1b2c3d-w-1
agent: openhands
template: openhands
size: mars-4vcpu-8gb
keep_warm: false
idle_timeout: 60m
env:
    GREETING: "yes"
secrets:
    OH_SESSION_API_KEYS_0:
        value: session-key-88
    OPENHANDS_LLM_API_KEY:
        value: llm-secret-77
`, config["manifest_yaml"])
	require.JSONEq(t, `{"name":"`+name+`","config_id":"cfg-1"}`, came[len(came)-1].Body)
}

func TestTheRegionIsAskedForAndIsPartOfThePlace(t *testing.T) {
	t.Parallel()
	s := empty(t)
	d := s.driver(t, func(o *digitalocean.Options) { o.Region = "MEM1" })
	seen, err := d.Create(t.Context(), createRequest("w"))
	require.NoError(t, err)
	require.Equal(t, "digitalocean/"+team+"/mem1", seen.Ref.Fingerprint)
	came := s.requests()
	require.Contains(t, came[len(came)-1].Body, `"region":"mem1"`)

	s.on("GET "+sessionsAt+"/sess-1", 200, one(sessionJSON("sess-1", identity("w").Name(), "READY", map[string]any{"region": "ric1"})))
	_, err = d.Observe(t.Context(), seen.Ref)
	require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%v", err)
}

func TestIdleTimeouts(t *testing.T) {
	t.Parallel()
	for idle, want := range map[time.Duration]string{
		0:                             "1440m", // the service would take 15 minutes
		10 * time.Minute:              "10m",
		90 * time.Second:              "90s",
		time.Minute + time.Nanosecond: "61s",
		48*time.Hour + 30*time.Minute: "2910m",
	} {
		s := empty(t)
		req := createRequest("w")
		req.Native.Idle = box.Duration(idle)
		_, err := s.driver(t).Create(t.Context(), req)
		require.NoError(t, err)
		var sent string
		for _, r := range s.requests() {
			sent += r.Body
		}
		require.Contains(t, sent, `idle_timeout: `+want+`\n`)
		require.Contains(t, sent, `keep_warm: false\n`)
	}
}

func TestCreateFindsItsBox(t *testing.T) {
	t.Parallel()
	name := identity("w").Name()
	_, probe := empty(t), empty(t)
	_, err := probe.driver(t).Create(t.Context(), createRequest("w"))
	require.NoError(t, err)
	ours := mine(t, probe, "w")
	config := func(s *script, called string) {
		s.on("GET "+configsAt+"/cfg-1", 200, `{"config":{"id":"cfg-1","name":"`+called+`","manifest":{}}}`)
	}
	rows := map[string]struct {
		set   func(s *script)
		phase box.Phase
		class box.Class
	}{
		"a live one of ours is answered as it is": {func(s *script) {
			s.on("GET "+sessionsAt+"?name", 200, list("", sessionJSON("sess-9", name, "PAUSED", nil)))
			config(s, ours)
		}, box.PhaseSuspended, ""},
		"one that was made with other secrets is ours too": {func(s *script) {
			s.on("GET "+sessionsAt+"?name", 200, list("", sessionJSON("sess-9", name, "READY", nil)))
			config(s, ours[:len(ours)-16]+"ffffffffffffffff")
		}, box.PhaseRunning, ""},
		"one whose environment was deleted cannot be shown to be ours": {func(s *script) {
			s.on("GET "+sessionsAt+"?name", 200, list("", sessionJSON("sess-9", name, "READY", nil)))
			s.on("GET "+configsAt+"/cfg-1", 404, `{"id":"not_found","message":"no"}`)
		}, "", box.ClassAlreadyExists},
		"one that was made from a manifest is somebody else's": {func(s *script) {
			s.on("GET "+sessionsAt+"?name", 200, list("", sessionJSON("sess-9", name, "READY", nil)))
			config(s, name)
		}, "", box.ClassAlreadyExists},
		"one without an environment is somebody else's": {func(s *script) {
			s.on("GET "+sessionsAt+"?name", 200, list("", sessionJSON("sess-9", name, "READY", map[string]any{"config_id": nil})))
		}, "", box.ClassAlreadyExists},
		"the service knows no case, and we do": {func(s *script) {
			s.on("GET "+sessionsAt+"?name", 200, list("", sessionJSON("sess-9", strings.ToUpper(name), "READY", nil)))
			config(s, ours)
		}, "", box.ClassAlreadyExists},
		"an environment that cannot be read decides nothing": {func(s *script) {
			s.on("GET "+sessionsAt+"?name", 200, list("", sessionJSON("sess-9", name, "READY", nil)))
			s.on("GET "+configsAt+"/cfg-1", 500, ``)
		}, "", box.ClassUnavailable},
		"one that was destroyed was made before": {func(s *script) {
			s.on("GET "+configsAt, 200, `{"configs":[{"id":"cfg-1","name":"`+ours+`"}]}`)
			s.on("GET "+configsAt+"/cfg-1/sessions", 200, list("", sessionJSON("sess-9", name, "DESTROYED", nil)))
		}, box.PhaseGone, ""},
		"one that failed is answered, and no second one is made": {func(s *script) {
			s.on("GET "+configsAt, 200, `{"configs":[{"id":"cfg-1","name":"`+ours+`"}]}`)
			s.on("GET "+configsAt+"/cfg-1/sessions", 200, list("", sessionJSON("sess-8", name, "DESTROYED", nil), sessionJSON("sess-9", name, "FAILED", nil)))
		}, box.PhaseFailed, ""},
		"one that the list by name does not show yet is found by its environment": {func(s *script) {
			s.on("GET "+configsAt, 200, `{"configs":[{"id":"cfg-1","name":"`+ours+`"}]}`)
			s.on("GET "+configsAt+"/cfg-1/sessions", 200, list("", sessionJSON("sess-9", name, "READY", nil), sessionJSON("sess-8", name, "FAILED", nil)))
		}, box.PhaseRunning, ""},
	}
	for what, row := range rows {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			row.set(s)
			s.on("GET "+sessionsAt, 200, list(""))
			seen, err := s.driver(t).Create(t.Context(), createRequest("w"))
			require.Equal(t, row.class, box.ClassOf(err), "%v", err)
			if err == nil {
				require.Equal(t, row.phase, seen.Phase)
				require.Equal(t, "sess-9", seen.Ref.ID)
			}
			for _, r := range s.requests() {
				require.NotContains(t, r.Line, "POST", "nothing is made")
			}
		})
	}
}

func TestCreateUsesTheEnvironmentOfAnEarlierTry(t *testing.T) {
	t.Parallel()
	probe := empty(t)
	_, err := probe.driver(t).Create(t.Context(), createRequest("w"))
	require.NoError(t, err)
	s := newScript(t)
	s.on("GET "+sessionsAt, 200, list(""))
	s.on("GET "+configsAt, 200, `{"configs":[{"id":"other","name":"somebody's"},{"id":"cfg-7","name":"`+mine(t, probe, "w")+`"}]}`)
	s.on("GET "+configsAt+"/cfg-7/sessions", 200, list(""))
	s.on("POST "+sessionsAt, 200, one(sessionJSON("sess-1", identity("w").Name(), "PROVISIONING", nil)))
	_, err = s.driver(t).Create(t.Context(), createRequest("w"))
	require.NoError(t, err)
	came := s.requests()
	require.Contains(t, came[len(came)-1].Body, `"config_id":"cfg-7"`)
	require.NotContains(t, s.lines(), "POST "+configsAt)
}

func TestTheNameOfAnEnvironmentTellsItsContentAndNotItsSecrets(t *testing.T) {
	t.Parallel()
	name := func(change func(*box.Secret, *box.Secret)) string {
		s := empty(t)
		req := createRequest("w")
		llm, key := req.Start.SecretEnv["OPENHANDS_LLM_API_KEY"], req.Start.SessionKey
		change(&llm, &key)
		req.Start.SecretEnv["OPENHANDS_LLM_API_KEY"], req.Start.SessionKey = llm, key
		_, err := s.driver(t).Create(t.Context(), req)
		require.NoError(t, err)
		return mine(t, s, "w")
	}
	same := name(func(_, _ *box.Secret) {})
	require.Equal(t, same, name(func(_, _ *box.Secret) {}))
	require.NotEqual(t, same, name(func(llm, _ *box.Secret) { *llm = "another" }))
	require.NotEqual(t, same, name(func(_, key *box.Secret) { *key = "another" }))
}

func TestCreateOutcomes(t *testing.T) {
	t.Parallel()
	name := identity("w").Name()
	nested := func(code, text string) string { return `{"error":{"code":` + code + `,"message":"` + text + `"}}` }
	rows := map[string]struct {
		status int
		body   string
		after  string // what the list by name shows afterwards
		class  box.Class
		says   string
	}{
		"quota":                                   {409, nested("409", "team is at the limit of 4 active sessions"), "", box.ClassExhausted, "limit of 4 active sessions"},
		"a name that is taken by nobody":          {409, nested("409", "name already in use"), "", box.ClassUnavailable, "name already in use"},
		"a name that our own box took":            {409, nested("409", "name already in use"), sessionJSON("sess-1", name, "PROVISIONING", nil), "", ""},
		"lost, and made":                          {503, `{"id":"unavailable","message":"later"}`, sessionJSON("sess-1", name, "PROVISIONING", nil), "", ""},
		"lost, and nobody knows":                  {502, `<html>bad gateway</html>`, "", box.ClassUnavailable, "a page"},
		"no money, by one report":                 {402, nested("402", "add funds"), "", box.ClassExhausted, "balance"},
		"no money, by another":                    {403, nested("403", "prepaid balance is zero"), "", box.ClassExhausted, "balance"},
		"no feature":                              {403, nested("403", "not enabled"), "", box.ClassUnauthorized, "not enabled"},
		"a token that is no more":                 {401, `{"id":"unauthorized","message":"Unable to authenticate you"}`, "", box.ClassUnauthorized, "token"},
		"an environment that is no more":          {404, nested("404", "config not found"), "", box.ClassUnavailable, "anew"},
		"the wrong region":                        {400, nested("400", "region_mismatch: ric1"), "", box.ClassInvalid, "region_mismatch"},
		"a code that is a text":                   {422, nested(`"bad"`, "no such template"), "", box.ClassInvalid, "no such template"},
		"an OAuth slot":                           {501, nested("501", "oauth"), "", box.ClassUnsupported, "oauth"},
		"an answer that cannot be read":           {200, `{`, "", box.ClassUnknown, "look again"},
		"an answer about another one":             {200, one(sessionJSON("sess-5", "other", "READY", nil)), "", box.ClassUnknown, "another one"},
		"an answer that cannot be read, and made": {200, ``, sessionJSON("sess-1", name, "PROVISIONING", nil), "", ""},
	}
	for what, row := range rows {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := empty(t)
			s.only("POST "+sessionsAt, row.status, row.body)
			s.on("GET "+sessionsAt+"?name", 200, list(""))
			s.on("GET "+configsAt+"/cfg-1", 404, `{}`)
			if row.after != "" {
				s.on("GET "+sessionsAt+"?name", 200, list("", row.after))
			}
			d := s.driver(t)
			seen, err := d.Create(t.Context(), createRequest("w"))
			require.Equal(t, row.class, box.ClassOf(err), "%v", err)
			if err == nil {
				require.Equal(t, "sess-1", seen.Ref.ID)
			} else {
				require.Contains(t, err.Error(), row.says)
				class, wait := d.ErrorClass(err)
				require.Equal(t, row.class, class)
				require.Equal(t, class == box.ClassExhausted, wait > 0, "a person has to do something first")
			}
			posts := 0
			for _, line := range s.lines() {
				if line == "POST "+sessionsAt {
					posts++
				}
			}
			require.Equal(t, 1, posts, "a create is sent once")
		})
	}
}

func TestNoSecretIsInAnError(t *testing.T) {
	t.Parallel()
	s := empty(t)
	s.only("POST "+configsAt, 400, `{"error":{"code":400,"message":"bad value llm-secret-77 near session-key-88, asked with `+token+`"}}`)
	_, err := s.driver(t).Create(t.Context(), createRequest("w"))
	require.Equal(t, box.ClassInvalid, box.ClassOf(err))
	for _, secret := range []string{"llm-secret-77", "session-key-88", token} {
		require.NotContains(t, err.Error(), secret)
	}
	require.Contains(t, err.Error(), "bad value [redacted]")
}

// A secret may begin another one: what is left of that must not be told either.
func TestASecretThatBeginsAnotherIsHidden(t *testing.T) {
	t.Parallel()
	s := empty(t)
	s.only("POST "+configsAt, 400, `{"error":{"code":400,"message":"no: canary, canary-tail-4711 and `+token+`"}}`)
	want := createRequest("w")
	want.Start.SecretEnv = map[string]box.Secret{"A": "canary", "B": "canary-tail-4711", "C": box.Secret(token[:4])}
	_, err := s.driver(t).Create(t.Context(), want)
	require.Equal(t, box.ClassInvalid, box.ClassOf(err))
	require.Contains(t, err.Error(), "no: [redacted], [redacted] and [redacted]")
}

func TestWaits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"":            0,
		"7":           7 * time.Second,
		"-5":          0,
		"soon":        0,
		"99999999999": 24 * time.Hour,
		time.Now().Add(time.Hour).UTC().Format(http.TimeFormat): time.Hour,
		"Fri, 01 Jan 2021 00:00:00 GMT":                         0,
	} {
		s := newScript(t)
		s.add("GET "+sessionsAt+"/sess-1", answer{status: 429, body: `{"id":"too_many_requests","message":"slow down"}`, header: http.Header{"Retry-After": {text}}})
		d := s.driver(t)
		_, err := d.Observe(t.Context(), refOf("sess-1", "w"))
		class, wait := d.ErrorClass(err)
		require.Equal(t, box.ClassExhausted, class)
		within := time.Duration(0)
		if want == time.Hour { // a date, to the second, and a slow machine comes to it late
			within = time.Minute
		}
		require.InDelta(t, want, wait, float64(within), text)
		require.Len(t, s.lines(), 1, "nothing is repeated")
	}
}

func TestWhatNobodyMayAskFor(t *testing.T) {
	t.Parallel()
	s := empty(t)
	d := s.driver(t)
	for field, change := range map[string]func(*box.Identity, map[string]string, map[string]box.Secret, *string){
		"env.SESSION_ID": func(_ *box.Identity, env map[string]string, _ map[string]box.Secret, _ *string) {
			env["SESSION_ID"] = "x"
		},
		"secrets.SANDBOX_ID": func(_ *box.Identity, _ map[string]string, s map[string]box.Secret, _ *string) { s["SANDBOX_ID"] = "x" },
		"env.OH_SESSION_API_KEYS_3": func(_ *box.Identity, env map[string]string, _ map[string]box.Secret, _ *string) {
			env["OH_SESSION_API_KEYS_3"] = "x"
		},
		"image": func(_ *box.Identity, _ map[string]string, _ map[string]box.Secret, image *string) { *image = "a b" },
		"env": func(_ *box.Identity, env map[string]string, _ map[string]box.Secret, _ *string) {
			env["BIG"] = strings.Repeat("x", 1<<20)
		},
		"workspace": func(id *box.Identity, _ map[string]string, _ map[string]box.Secret, _ *string) {
			id.Workspace, id.Epoch = strings.Repeat("w", 40), 1_000_000_000_000
		},
	} {
		req := createRequest("w")
		change(&req.Identity, req.Start.Env, req.Start.SecretEnv, &req.Image)
		_, err := d.Create(t.Context(), req)
		require.Equal(t, box.ClassInvalid, box.ClassOf(err), field)
		require.True(t, strings.HasPrefix(err.Error(), field+": "), "%v, want %s", err, field)
	}
	req := createRequest("w")
	req.Identity.Installation = "ffffffff"
	_, err := d.Create(t.Context(), req)
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	require.Empty(t, s.requests(), "nothing is sent")
}
