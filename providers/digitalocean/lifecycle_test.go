package digitalocean_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	"github.com/openhands/boxkeeper/providers/driver"
)

const (
	getAt    = "GET " + sessionsAt + "/sess-1"
	pauseAt  = "POST " + sessionsAt + "/sess-1/pause"
	resumeAt = "POST " + sessionsAt + "/sess-1/resume"
	deleteAt = "DELETE " + sessionsAt + "/sess-1"
)

// at is the session of workspace w in a status.
func at(status string, more ...map[string]any) string {
	var m map[string]any
	if len(more) > 0 {
		m = more[0]
	}
	return one(sessionJSON("sess-1", identity("w").Name(), status, m))
}

// then lets the session be read in these states, one after the other.
func then(s *script, states ...string) {
	for _, status := range states {
		s.on(getAt, 200, at(status))
	}
}

const said409 = `{"error":{"code":409,"message":"session must be READY or DETACHED"}}`

func TestSuspend(t *testing.T) {
	t.Parallel()
	rows := map[string]struct {
		set   func(s *script)
		class box.Class
		lines []string
		says  string
	}{
		"it is paused, and that is read":    {func(s *script) { then(s, "READY", "PAUSED"); s.on(pauseAt, 204, "") }, "", []string{getAt, pauseAt, getAt}, ""},
		"a detached one is paused":          {func(s *script) { then(s, "DETACHED", "PAUSED"); s.on(pauseAt, 204, "") }, "", []string{getAt, pauseAt, getAt}, ""},
		"one that is paused is left alone":  {func(s *script) { then(s, "PAUSED") }, "", []string{getAt}, ""},
		"the service was first":             {func(s *script) { then(s, "READY", "PAUSED"); s.on(pauseAt, 409, said409) }, "", []string{getAt, pauseAt, getAt}, ""},
		"one that starts is waited for":     {func(s *script) { then(s, "PROVISIONING", "PROVISIONING", "READY", "PAUSED"); s.on(pauseAt, 204, "") }, "", []string{getAt, getAt, getAt, pauseAt, getAt}, ""},
		"one that is updated is waited for": {func(s *script) { then(s, "UPDATING", "READY", "PAUSED"); s.on(pauseAt, 204, "") }, "", []string{getAt, getAt, pauseAt, getAt}, ""},
		"it shows late":                     {func(s *script) { then(s, "READY", "READY", "PAUSED"); s.on(pauseAt, 204, "") }, "", []string{getAt, pauseAt, getAt, getAt}, ""},
		"a turn holds it": {func(s *script) {
			then(s, "READY")
			s.on(pauseAt, 409, `{"id":"conflict","message":"a turn is active"}`)
		}, box.ClassUnavailable, []string{getAt, pauseAt, getAt}, "a turn is active"},
		"an update came between":     {func(s *script) { then(s, "READY", "UPDATING"); s.on(pauseAt, 409, said409) }, box.ClassUnavailable, []string{getAt, pauseAt, getAt}, "READY or DETACHED"},
		"it was destroyed meanwhile": {func(s *script) { then(s, "READY", "DESTROYED"); s.on(pauseAt, 409, said409) }, box.ClassNotFound, []string{getAt, pauseAt, getAt}, "DESTROYED"},
		"it is kept warm":            {func(s *script) { s.on(getAt, 200, at("READY", map[string]any{"keep_warm": true})) }, box.ClassFailedPrecondition, []string{getAt}, "kept warm"},
		"it failed":                  {func(s *script) { then(s, "FAILED") }, box.ClassFailedPrecondition, []string{getAt}, "delete the box"},
		"it is being destroyed":      {func(s *script) { then(s, "DESTROYING") }, box.ClassUnavailable, []string{getAt}, "DESTROYING"},
		"another substrate": {func(s *script) {
			then(s, "READY")
			s.on(pauseAt, 501, `{"error":{"code":501,"message":"not a microvm"}}`)
		}, box.ClassUnsupported, []string{getAt, pauseAt}, "not a microvm"},
		"too many requests":      {func(s *script) { then(s, "READY"); s.on(pauseAt, 429, `{}`) }, box.ClassExhausted, []string{getAt, pauseAt}, "250"},
		"an answer that is lost": {func(s *script) { then(s, "READY"); s.on(pauseAt, 502, `<html>`) }, box.ClassUnavailable, []string{getAt, pauseAt}, "502"},
	}
	for what, row := range rows {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			row.set(s)
			seen, err := s.driver(t).Suspend(t.Context(), refOf("sess-1", "w"))
			require.Equal(t, row.class, box.ClassOf(err), "%v", err)
			require.Equal(t, append([]string{checkpointsAt + "?page_size=200"}, row.lines...), s.lines())
			if err != nil {
				require.Contains(t, err.Error(), row.says)
				return
			}
			require.Equal(t, box.PhaseSuspended, seen.Phase)
			require.Equal(t, box.Yes, seen.MemoryKept)
		})
	}
}

func TestResume(t *testing.T) {
	t.Parallel()
	unpaid := func(s *script) {
		s.on(getAt, 200, at("PAUSED", map[string]any{"pause_reason": "zero_balance"}))
	}
	rows := map[string]struct {
		set   func(s *script)
		class box.Class
		lines []string
		says  string
	}{
		"it is resumed, and that is read":             {func(s *script) { then(s, "PAUSED", "READY"); s.on(resumeAt, 204, "") }, "", []string{getAt, resumeAt, getAt}, ""},
		"it shows late":                               {func(s *script) { then(s, "PAUSED", "PAUSED", "PAUSED", "READY"); s.on(resumeAt, 204, "") }, "", []string{getAt, resumeAt, getAt, getAt, getAt}, ""},
		"a running one is left alone":                 {func(s *script) { then(s, "DETACHED") }, "", []string{getAt}, ""},
		"a starting one is left alone":                {func(s *script) { then(s, "PROVISIONING") }, "", []string{getAt}, ""},
		"somebody was first":                          {func(s *script) { then(s, "PAUSED", "READY"); s.on(resumeAt, 409, said409) }, "", []string{getAt, resumeAt, getAt}, ""},
		"somebody was first, and it was paused again": {func(s *script) { then(s, "PAUSED"); s.on(resumeAt, 409, said409) }, box.ClassUnavailable, []string{getAt, resumeAt, getAt}, "READY"},
		"it is gone":                                  {func(s *script) { then(s, "DESTROYED") }, box.ClassNotFound, []string{getAt}, "DESTROYED"},
		"it failed":                                   {func(s *script) { then(s, "FAILED") }, box.ClassFailedPrecondition, []string{getAt}, "newest export"},
		"nobody pays, 402":                            {func(s *script) { unpaid(s); s.on(resumeAt, 402, `{}`) }, box.ClassExhausted, []string{getAt, resumeAt}, "prepaid balance"},
		"nobody pays, 403":                            {func(s *script) { unpaid(s); s.on(resumeAt, 403, `{"error":{"code":403,"message":"no"}}`) }, box.ClassExhausted, []string{getAt, resumeAt}, "prepaid balance"},
		"nobody pays, 409":                            {func(s *script) { unpaid(s); s.on(resumeAt, 409, `{}`) }, box.ClassExhausted, []string{getAt, resumeAt}, "prepaid balance"},
		"nobody pays, and a token that is no more":    {func(s *script) { unpaid(s); s.on(resumeAt, 401, `{}`) }, box.ClassUnauthorized, []string{getAt, resumeAt}, "token"},
		"not allowed":                                 {func(s *script) { then(s, "PAUSED"); s.on(resumeAt, 403, `{}`) }, box.ClassUnauthorized, []string{getAt, resumeAt}, "scope"},
	}
	for what, row := range rows {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			row.set(s)
			d := s.driver(t)
			seen, err := d.Resume(t.Context(), refOf("sess-1", "w"), driver.Start{SecretEnv: map[string]box.Secret{"A": "never-sent"}})
			require.Equal(t, row.class, box.ClassOf(err), "%v", err)
			require.Equal(t, row.lines, s.lines())
			for _, r := range s.requests() {
				require.NotContains(t, r.Body, "never-sent")
			}
			if err != nil {
				require.Contains(t, err.Error(), row.says)
				class, wait := d.ErrorClass(err)
				require.Equal(t, row.class, class)
				require.Equal(t, class == box.ClassExhausted, wait > 0)
				return
			}
			require.Contains(t, []box.Phase{box.PhaseRunning, box.PhaseStarting}, seen.Phase)
		})
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	probe := empty(t)
	_, err := probe.driver(t).Create(t.Context(), createRequest("w"))
	require.NoError(t, err)
	ours := mine(t, probe, "w")
	const (
		configs = "GET " + configsAt + "?page_size=200"
		named   = "GET " + sessionsAt + "?name=bk-0a1b2c3d-w-1&page_size=200"
		used    = "GET " + configsAt + "/cfg-1/sessions?page_size=200&status=SESSION_STATUS_ALL"
		drop    = "DELETE " + configsAt + "/cfg-1"
		listed  = "GET " + sessionsAt + "?page_size=200"
		failed  = listed + "&status=SESSION_STATUS_FAILED"
	)
	tidy := []string{configs, named, used, drop}
	after := func(first ...string) []string { return append(first, tidy...) }
	rows := map[string]struct {
		set   func(s *script)
		class box.Class
		lines []string
		says  string
	}{
		"it is destroyed, and that is read": {func(s *script) { then(s, "READY", "DESTROYED"); s.on(deleteAt, 204, "") }, "", after(getAt, deleteAt, getAt), ""},
		"it is a 404 then": {func(s *script) {
			then(s, "PAUSED")
			s.on(getAt, 404, `{}`)
			s.on(deleteAt, 204, "")
		}, "", after(getAt, deleteAt, getAt, listed, failed), ""},
		"a failed one is destroyed":        {func(s *script) { then(s, "FAILED", "DESTROYED"); s.on(deleteAt, 204, "") }, "", after(getAt, deleteAt, getAt), ""},
		"it takes its time":                {func(s *script) { then(s, "READY", "DESTROYING", "DESTROYING", "DESTROYED"); s.on(deleteAt, 204, "") }, "", after(getAt, deleteAt, getAt, getAt, getAt), ""},
		"one that was destroyed is tidied": {func(s *script) { then(s, "DESTROYED") }, "", after(getAt), ""},
		"somebody was first":               {func(s *script) { then(s, "READY", "DESTROYED"); s.on(deleteAt, 404, `{}`) }, "", after(getAt, deleteAt, getAt), ""},
		"a checkpoint holds it": {func(s *script) {
			then(s, "READY")
			s.on(deleteAt, 409, `{"error":{"code":409,"message":"checkpoint in progress"}}`)
		}, box.ClassUnavailable, []string{getAt, deleteAt}, "checkpoint in progress"},
		"the staff has locked it": {func(s *script) { then(s, "READY"); s.on(deleteAt, 423, `{}`) }, box.ClassFailedPrecondition, []string{getAt, deleteAt}, "support"},
		"an answer that is lost":  {func(s *script) { then(s, "READY"); s.on(deleteAt, 503, ``) }, box.ClassUnavailable, []string{getAt, deleteAt}, "503"},
		"the environment stays for now": {func(s *script) {
			then(s, "DESTROYED")
			s.only("DELETE "+configsAt+"/cfg-1", 409, `{"error":{"code":409,"message":"sessions are active"}}`)
		}, box.ClassUnavailable, after(getAt), "sessions are active"},
		"it is gone and a list shows it": {func(s *script) {
			then(s, "DESTROYED")
			s.only("GET "+configsAt+"/cfg-1/sessions", 200, list("", sessionJSON("sess-1", "bk-0a1b2c3d-w-1", "READY", nil)))
		}, box.ClassUnavailable, []string{getAt, configs, named, used}, "listed as READY"},
		"it is a 404 and a list shows that it failed": {func(s *script) {
			s.on(getAt, 404, `{}`)
			s.only("GET "+configsAt+"/cfg-1/sessions", 200, list("", sessionJSON("sess-1", "bk-0a1b2c3d-w-1", "FAILED", nil)))
		}, box.ClassUnavailable, []string{getAt, listed, failed, configs, named, used}, "listed as FAILED"},
		"the environment is somebody's too": {func(s *script) {
			then(s, "DESTROYED")
			s.only("GET "+configsAt+"/cfg-1/sessions", 200, list("", sessionJSON("sess-2", "a fork", "READY", nil)))
		}, "", []string{getAt, configs, named, used}, ""},
		"the environment went meanwhile": {func(s *script) {
			then(s, "DESTROYED")
			s.only("GET "+configsAt+"/cfg-1/sessions", 404, `{}`)
		}, "", []string{getAt, configs, named, used}, ""},
	}
	for what, row := range rows {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			s.on("GET "+sessionsAt, 200, list(""))
			s.on("GET "+configsAt, 200, `{"configs":[{"id":"cfg-2","name":"bkc-ffffffff-`+strings.Repeat("0", 16)+`-x"},{"id":"cfg-1","name":"`+ours+`"},{"id":"cfg-3","name":"bk-0a1b2c3d-w-1"}]}`)
			s.on("GET "+configsAt+"/cfg-1/sessions", 200, list("", sessionJSON("sess-1", "bk-0a1b2c3d-w-1", "DESTROYED", nil)))
			s.on("DELETE "+configsAt+"/cfg-1", 204, "")
			row.set(s)
			seen, err := s.driver(t).Delete(t.Context(), refOf("sess-1", "w"))
			require.Equal(t, row.class, box.ClassOf(err), "%v", err)
			require.Equal(t, row.lines, s.lines())
			if err != nil {
				require.Contains(t, err.Error(), row.says)
				return
			}
			require.Equal(t, box.PhaseGone, seen.Phase)
		})
	}
}

func TestADeleteTakesOldEnvironmentsAlong(t *testing.T) {
	t.Parallel()
	env := func(id, name, at string) string {
		return `{"id":"` + id + `","name":"` + name + `","created_at":"` + at + `"}`
	}
	const (
		old   = "2026-01-02T03:04:05.123456Z"
		other = "bkc-0a1b2c3d-0000000000000000-0000000000000000"
	)
	s := newScript(t)
	then(s, "DESTROYED")
	s.on("GET "+configsAt, 200, `{"configs":[`+strings.Join([]string{
		env("left", other, old),
		env("in-use", other, old),
		env("hidden", other, old),
		env("new", other, time.Now().UTC().Format(time.RFC3339)),
		env("no-time", other, ""),
		env("theirs", "bkc-ffffffff-0000000000000000-0000000000000000", old),
		env("person's", "my environment", old),
		env("mark", "bka-0000000000000000-0a1b2c3d-0000000000000000", old),
	}, ",")+`]}`)
	s.on("GET "+sessionsAt, 200, list("", sessionJSON("sess-2", "x", "PAUSED", map[string]any{"config_id": "in-use"})))
	s.on("GET "+sessionsAt+"?SESSION_STATUS_FAILED", 200, list(""))
	s.on("GET "+configsAt+"/left/sessions", 200, list("", sessionJSON("sess-3", "x", "DESTROYED", nil)))
	s.on("GET "+configsAt+"/hidden/sessions", 200, list("", sessionJSON("sess-4", "x", "READY", nil)))
	s.on("DELETE "+configsAt+"/left", 204, "")
	d := s.driver(t)
	for range 3 {
		_, err := d.Delete(t.Context(), refOf("sess-1", "w"))
		require.NoError(t, err)
	}
	var dropped []string
	for _, line := range s.lines() {
		require.NotContains(t, line, "/in-use", "it is known to be")
		if strings.HasPrefix(line, "DELETE") {
			dropped = append(dropped, line)
		}
	}
	require.Equal(t, []string{"DELETE " + configsAt + "/left"}, dropped)
}

func TestACallEndsSoonAfterItsContext(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	then(s, "PROVISIONING")
	d := s.driver(t, func(o *digitalocean.Options) { o.PollEvery = time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := d.Suspend(ctx, refOf("sess-1", "w")); done <- err }()
	require.Eventually(t, func() bool { return len(s.lines()) == 2 }, 10*time.Second, time.Millisecond)
	cancel()
	require.Equal(t, box.ClassCanceled, box.ClassOf(<-done))
}
