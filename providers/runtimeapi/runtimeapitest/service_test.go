package runtimeapitest_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

func TestALifeInBothStylesOfAddress(t *testing.T) {
	t.Parallel()
	for name, hosts := range map[string]bool{"path": false, "host": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, runtimeapitest.Options{HostStyle: hosts})
			c := dial(t, s)
			status, out := c.call(http.MethodGet, "/sessions/one", nil)
			require.Equal(t, http.StatusNotFound, status)
			require.Equal(t, object{"error": "Runtime not found"}, out)

			made := c.start("one")
			id, url, first := text(t, made, "runtime_id"), text(t, made, "url"), text(t, made, "session_api_key")
			require.Equal(t, hosts, !strings.HasPrefix(url, s.URL()))
			require.Equal(t, id, c.start("one")["runtime_id"], "a repeated start makes no second box")
			require.Equal(t, http.StatusOK, c.box(url, "/health", ""))
			require.Equal(t, http.StatusOK, c.box(url, "/api/conversations/count", first))
			require.Equal(t, http.StatusUnauthorized, c.box(url, "/api/conversations/count", "another"))
			for _, path := range []string{"/sessions/one", "/runtime/" + id} {
				status, out = c.call(http.MethodGet, path, nil)
				require.Equal(t, http.StatusOK, status)
				for _, field := range []string{"runtime_id", "url", "session_id", "session_api_key", "status", "pod_status", "restart_count", "restart_reasons", "container_statuses", "events", "pod_logs"} {
					require.Contains(t, out, field)
				}
			}

			status, _ = c.call(http.MethodPost, "/pause", object{"runtime_id": id})
			require.Equal(t, http.StatusOK, status)
			_, out = c.call(http.MethodGet, "/sessions/one", nil)
			require.Equal(t, "paused", out["status"])
			require.Nil(t, out["session_api_key"])
			require.Equal(t, http.StatusServiceUnavailable, c.box(url, "/health", ""))

			status, out = c.call(http.MethodPost, "/resume", object{"runtime_id": id})
			require.Equal(t, http.StatusOK, status)
			second := text(t, out, "session_api_key")
			require.NotEqual(t, first, second)
			require.Equal(t, id, out["runtime_id"])
			require.Equal(t, url, out["url"])
			require.Equal(t, http.StatusUnauthorized, c.box(url, "/api/conversations/count", first))
			require.Equal(t, http.StatusOK, c.box(url, "/api/conversations/count", second))

			status, _ = c.call(http.MethodPost, "/stop", object{"runtime_id": id})
			require.Equal(t, http.StatusOK, status)
			for _, call := range []func() (int, object){
				func() (int, object) { return c.call(http.MethodPost, "/stop", object{"runtime_id": id}) },
				func() (int, object) { return c.call(http.MethodPost, "/pause", object{"runtime_id": id}) },
				func() (int, object) { return c.call(http.MethodPost, "/resume", object{"runtime_id": id}) },
				func() (int, object) { return c.call(http.MethodGet, "/sessions/one", nil) },
				func() (int, object) { return c.call(http.MethodGet, "/runtime/"+id, nil) },
			} {
				status, _ = call()
				require.Equal(t, http.StatusNotFound, status)
			}
			require.Equal(t, http.StatusNotFound, c.box(url, "/health", ""))
			all := s.Boxes()
			require.Len(t, all, 1)
			require.Equal(t, 1, all[0].Wakes)
			require.Equal(t, 2, all[0].Lives)
			require.Equal(t, "stop", all[0].Ended)
		})
	}
}

func TestStatesTakeTheirTime(t *testing.T) {
	t.Parallel()
	s := start(t, runtimeapitest.Options{Starting: 1, NotReady: 1, NoIngress: 1, Pausing: 1, Resuming: 1})
	c := dial(t, s)
	made := c.start("slow")
	require.Equal(t, "starting", made["status"])
	url := text(t, made, "url")
	next := func(status, pod string) {
		t.Helper()
		_, out := c.call(http.MethodGet, "/sessions/slow", nil)
		require.Equal(t, []any{status, pod}, []any{out["status"], out["pod_status"]})
	}
	require.Equal(t, http.StatusBadGateway, c.box(url, "/health", ""))
	next("starting", "pending")
	next("running", "running")
	next("running", "ready")
	require.Equal(t, http.StatusBadGateway, c.box(url, "/health", ""), "running before the ingress answers")
	require.Equal(t, http.StatusOK, c.box(url, "/health", ""))
	c.call(http.MethodPost, "/pause", object{"runtime_id": made["runtime_id"]})
	next("running", "ready")
	next("paused", "not found")
	c.call(http.MethodPost, "/resume", object{"runtime_id": made["runtime_id"]})
	next("paused", "not found")
	next("starting", "pending")
}

func TestTheListShowsWhatIsNotStoppedOfTheTenant(t *testing.T) {
	t.Parallel()
	s := start(t, runtimeapitest.Options{Keys: []string{key, "other-key"}})
	c := dial(t, s)
	running, paused, stopped, broken := c.start("running"), c.start("paused"), c.start("stopped"), c.start("broken")
	s.Plant("planted")
	c.call(http.MethodPost, "/pause", object{"runtime_id": paused["runtime_id"]})
	c.call(http.MethodPost, "/stop", object{"runtime_id": stopped["runtime_id"]})
	s.Crash(text(t, broken, "runtime_id"), "crashloopbackoff")
	other := dial(t, s)
	other.key = "other-key"
	other.start("running") // the same session id is another box for another tenant
	_, out := c.call(http.MethodGet, "/list", nil)
	got := map[any]any{}
	rows, _ := out["runtimes"].([]any)
	for _, row := range rows {
		one, _ := row.(object)
		require.NotContains(t, one, "pod_status")
		got[one["session_id"]] = one["status"]
	}
	require.Equal(t, map[any]any{"running": "running", "paused": "paused", "planted": "running"}, got)
	require.EqualValues(t, 3, out["total"])
	status, _ := other.call(http.MethodPost, "/stop", object{"runtime_id": running["runtime_id"]})
	require.Equal(t, http.StatusNotFound, status)
	_, out = c.call(http.MethodGet, "/sessions/broken", nil)
	require.Equal(t, []any{"error", "crashloopbackoff", 1.0}, []any{out["status"], out["pod_status"], out["restart_count"]})
	status, batch, err := c.do(http.MethodGet, s.URL()+"/sessions/batch?ids=running&ids=none&ids=paused", "X-API-Key", key, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	var list []object
	require.NoError(t, json.Unmarshal(batch, &list))
	require.Len(t, list, 2)
}

func TestWithoutTheKeyNothingIsAnsweredOrDone(t *testing.T) {
	t.Parallel()
	s := start(t, runtimeapitest.Options{})
	c := dial(t, s)
	id := c.start("one")["runtime_id"]
	for _, wrong := range []string{"", "wrong"} {
		c.key = wrong
		for path, body := range map[string]any{"/stop": object{"runtime_id": id}, "/pause": object{"runtime_id": id}, "/start": body("two")} {
			status, _ := c.call(http.MethodPost, path, body)
			require.Equal(t, http.StatusUnauthorized, status)
		}
		status, _ := c.call(http.MethodGet, "/sessions/one", nil)
		require.Equal(t, http.StatusUnauthorized, status)
	}
	require.Len(t, s.Boxes(), 1)
	require.Equal(t, runtimeapitest.StatusRunning, s.Boxes()[0].Status)
}

func TestStartRefusesWhatNoClientSends(t *testing.T) {
	t.Parallel()
	s := start(t, runtimeapitest.Options{})
	c := dial(t, s)
	for field, value := range map[string]any{
		"image": "", "session_id": nil, "resource_factor": 3, "command": 7, "image_pull_policy": "Sometimes", "ttl": 5, "environment": object{"A": 1},
	} {
		wrong := body("one")
		wrong[field] = value
		status, out := c.call(http.MethodPost, "/start", wrong)
		require.Equal(t, http.StatusUnprocessableEntity, status, "%s: %v", field, out)
	}
	require.Empty(t, s.Boxes())
	right := body("one")
	right["command"] = []string{"/usr/local/bin/openhands-agent-server", "--port", "60000"}
	status, _ := c.call(http.MethodPost, "/start", right)
	require.Equal(t, http.StatusOK, status)
}

func TestReapersFollowTheVirtualClock(t *testing.T) {
	t.Parallel()
	s := start(t, runtimeapitest.Options{Dead: 24 * time.Hour, MaxRun: 12 * time.Hour})
	c := dial(t, s)
	id, url := text(t, c.start("one"), "runtime_id"), s.Boxes()[0].URL
	now := func() runtimeapitest.Box { return s.Boxes()[0] }
	sessionKey := text(t, c.start("one"), "session_api_key")
	work := func() {
		status, _, err := c.do(http.MethodPost, url+"/api/bash/execute_bash_command", "X-Session-API-Key", sessionKey, object{"command": "true"})
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status)
	}
	s.Advance(19 * time.Minute)
	work()
	for range 19 { // looking is no use
		s.Advance(time.Minute)
		require.Equal(t, http.StatusOK, c.box(url, "/server_info", ""))
		c.call(http.MethodGet, "/sessions/one", nil)
		c.call(http.MethodGet, "/list", nil)
	}
	require.Equal(t, runtimeapitest.StatusRunning, now().Status)
	s.Advance(2 * time.Minute) // the job runs every 5 minutes: at 40
	require.Equal(t, runtimeapitest.StatusPaused, now().Status)
	require.Equal(t, "idle reaper", now().PausedBy)
	require.Equal(t, 40*time.Minute, now().Running)
	s.Advance(20 * time.Hour)
	c.call(http.MethodPost, "/resume", object{"runtime_id": id})
	_, out := c.call(http.MethodGet, "/sessions/one", nil)
	sessionKey = text(t, out, "session_api_key")
	for range 48 {
		work()
		s.Advance(15 * time.Minute)
	}
	require.Equal(t, "cap", now().PausedBy)
	s.Advance(24*time.Hour + 5*time.Minute)
	require.Equal(t, "dead reaper", now().Ended)
	require.Equal(t, 1, now().Wakes)
	bill := now()
	s.Advance(90 * 24 * time.Hour)
	require.Equal(t, bill, now(), "nothing is billed after the end")
}

func TestABoxOfTheCallersOwn(t *testing.T) {
	t.Parallel()
	idle := 0
	var lives []runtimeapitest.Life
	s := start(t, runtimeapitest.Options{Box: func(life runtimeapitest.Life) http.Handler {
		lives = append(lives, life)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = json.NewEncoder(w).Encode(object{"idle_time": idle, "path": r.URL.Path})
		})
	}})
	c := dial(t, s)
	made := c.start("one")
	url := text(t, made, "url")
	require.Equal(t, "b", lives[0].Environment["A"])
	require.Equal(t, made["session_api_key"], lives[0].Key)
	status, out, err := c.do(http.MethodGet, url+"/api/deep/path", "X-Session-API-Key", lives[0].Key, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, string(out), `"path":"/api/deep/path"`)
	s.Advance(time.Hour)
	require.Equal(t, runtimeapitest.StatusRunning, s.Boxes()[0].Status, "the box says that it is in use")
	idle = 1200
	s.Advance(5 * time.Minute)
	require.Equal(t, runtimeapitest.StatusPaused, s.Boxes()[0].Status)
}

func TestFaultsAreWhatTheySay(t *testing.T) {
	t.Parallel()
	s := start(t, runtimeapitest.Options{})
	c := dial(t, s)
	s.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Lost: true})
	_, _, err := c.do(http.MethodPost, s.URL()+"/start", "X-API-Key", key, body("one"))
	require.Error(t, err)
	require.Len(t, s.Living("one"), 1, "performed, and the answer lost")
	s.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Drop: true})
	_, _, err = c.do(http.MethodPost, s.URL()+"/start", "X-API-Key", key, body("two"))
	require.Error(t, err)
	require.Empty(t, s.Living("two"))

	s.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStop, Skip: 1, Status: http.StatusBadGateway, Body: "<html>", Done: true, Header: http.Header{"Content-Type": {"text/html"}}})
	id := s.Boxes()[0].RuntimeID
	c.start("two")
	c.call(http.MethodPost, "/stop", object{"runtime_id": s.Boxes()[1].RuntimeID})
	status, out, err := c.do(http.MethodPost, s.URL()+"/stop", "X-API-Key", key, object{"runtime_id": id})
	require.NoError(t, err)
	require.Equal(t, http.StatusBadGateway, status)
	require.Equal(t, "<html>", string(out))
	require.Empty(t, s.Living("one"), "answered 502, and gone")

	made := c.start("three")
	s.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpBox, For: 20 * time.Second, Status: http.StatusBadGateway})
	url := text(t, made, "url")
	require.Equal(t, http.StatusBadGateway, c.box(url, "/health", ""))
	s.Advance(19 * time.Second)
	require.Equal(t, http.StatusBadGateway, c.box(url, "/health", ""))
	s.Advance(time.Second)
	require.Equal(t, http.StatusOK, c.box(url, "/health", ""))

	s.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Times: 2, Edit: func(o map[string]any) { o["status"] = "thawing"; delete(o, "url") }})
	for range 2 {
		_, answer := c.call(http.MethodGet, "/sessions/three", nil)
		require.Equal(t, "thawing", answer["status"])
		require.NotContains(t, answer, "url")
	}
	_, answer := c.call(http.MethodGet, "/sessions/three", nil)
	require.Equal(t, "running", answer["status"])

	s.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Between: func() { c.start("race") }})
	c.start("race")
	require.Len(t, s.Living("race"), 2, "two starts at once make two boxes")

	last := s.Calls()[len(s.Calls())-1]
	require.Equal(t, "race", last.Fields["session_id"])
	require.Equal(t, key, last.Header.Get("X-Api-Key"))
}

func TestABuild(t *testing.T) {
	t.Parallel()
	s := start(t, runtimeapitest.Options{})
	c := dial(t, s)
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	require.NoError(t, w.WriteField("context", base64.StdEncoding.EncodeToString([]byte("a tar"))))
	require.NoError(t, w.WriteField("target_image", "made:1"))
	require.NoError(t, w.WriteField("tags", "made:latest"))
	require.NoError(t, w.Close())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+"/build", &form)
	require.NoError(t, err)
	req.Header.Set("Content-Type", w.FormDataContentType())
	req.Header.Set("X-Api-Key", key)
	resp, err := c.http.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	var made object
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&made))
	_, out := c.call(http.MethodGet, "/build_status?build_id="+text(t, made, "build_id"), nil)
	require.Equal(t, []any{"SUCCESS", "made:1"}, []any{out["status"], out["image"]})
	_, out = c.call(http.MethodGet, "/image_exists?image=made:1", nil)
	require.Equal(t, true, out["exists"])
	_, out = c.call(http.MethodGet, "/image_exists?image=made:2", nil)
	require.Equal(t, false, out["exists"])
	_, out = c.call(http.MethodGet, "/registry_prefix", nil)
	require.NotEmpty(t, out["registry_prefix"])
}
