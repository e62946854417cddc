package digitaloceantest_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/godo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	dot "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

func TestCreateWithoutItsAnswer(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		fault dot.Fault
		code  int
		made  int
	}{
		"cut before":  {dot.Fault{Cut: true}, 0, 0},
		"cut after":   {dot.Fault{Cut: true, After: true}, 0, 1},
		"503 before":  {dot.Unavailable(dot.OpCreate, false), 503, 0},
		"503 after":   {dot.Unavailable(dot.OpCreate, true), 503, 1},
		"hang after":  {dot.Fault{Hang: true, After: true}, 0, 1},
		"502 page":    {dot.BadGateway(dot.OpCreate), 502, 0},
		"429":         {dot.TooMany(dot.OpCreate, 90*time.Second), 429, 0},
		"429 no word": {dot.TooMany(dot.OpCreate, 0), 429, 0},
		"500 late":    {dot.Fault{Status: 500, Late: time.Minute}, 500, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := begin(t, dot.Options{})
			config := configure(t, c)
			row.fault.Op = dot.OpCreate
			s.Inject(row.fault)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if row.fault.Hang {
				ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
			}
			_, resp, err := c.HostedAgents.CreateSessionFromEnvironment(ctx, &godo.HostedAgentSessionFromEnvironmentRequest{Name: "oh-one", ConfigID: config})
			require.Error(t, err)
			assert.Equal(t, row.code, code(err))
			if row.fault.RetryAfter > 0 {
				assert.Equal(t, "90", resp.Header.Get("Retry-After"))
			}
			if row.code == http.StatusTooManyRequests && row.fault.RetryAfter == 0 {
				assert.Empty(t, resp.Header.Get("Retry-After"))
			}
			if row.fault.Hang {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			assert.Len(t, s.Audit().Created["oh-one"], row.made)
			if row.fault.Late > 0 {
				assert.Empty(t, named(t, c, "oh-one"))
				s.Advance(time.Minute)
				assert.Len(t, named(t, c, "oh-one"), 1, "a lost create can land late")
			}
			rec := s.Requests()[1]
			assert.Equal(t, dot.OpCreate, rec.Op)
			assert.NotEmpty(t, rec.Fault)
		})
	}
}

func TestLateCreateMeetsAnotherOne(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{})
	config := configure(t, c)
	s.Inject(dot.Fault{Op: dot.OpCreate, Cut: true, Late: time.Minute})
	_, err := create(t, c, config, "oh-one")
	require.Error(t, err)
	_, err = create(t, c, config, "oh-one")
	require.NoError(t, err)
	s.Advance(time.Hour)
	assert.Len(t, s.Audit().Created["oh-one"], 1, "the name was taken when the late one came")
}

func TestSkipTimesAndSession(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{})
	one, two := running(t, s, c, "oh-one"), running(t, s, c, "oh-two")
	s.Inject(dot.Fault{Op: dot.OpGet, Session: "oh-one", Skip: 1, Times: 2, Status: http.StatusInternalServerError})
	get := func(id string) int {
		_, _, err := c.HostedAgents.GetSession(t.Context(), id)
		return code(err)
	}
	assert.Zero(t, get(two))
	assert.Equal(t, []int{0, 500, 500, 0}, []int{get(one), get(one), get(one), get(one)})
	assert.Zero(t, get(two))
	s.Inject(dot.Fault{Op: dot.OpGet, Session: two, Times: -1, Status: http.StatusInternalServerError})
	for range 5 {
		assert.Equal(t, 500, get(two))
	}
	assert.Zero(t, get(one))
}

func TestRedirectToALoginPage(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{})
	id := running(t, s, c, "oh-one")
	s.Inject(dot.LoginPage(dot.OpGet))
	_, resp, err := c.HostedAgents.GetSession(t.Context(), id)
	require.Error(t, err, "a page is no session")
	if resp != nil {
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Contains(t, resp.Header.Get("Content-Type"), "text/html")
	}
	s.Inject(dot.LoginPage(dot.OpDelete))
	resp, err = c.HostedAgents.DestroySession(t.Context(), id)
	require.NoError(t, err, "the client follows and takes the page for success")
	assert.Equal(t, http.StatusOK, resp.StatusCode, "which is not 204")
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, id))
}

func TestSlowAnswer(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{})
	id := running(t, s, c, "oh-one")
	s.Inject(dot.Fault{Op: dot.OpPause, Delay: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := c.HostedAgents.PauseSession(ctx, id)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, "SESSION_STATUS_PAUSED", status(t, c, id), "it was performed")
}

func TestRaces(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{AgentServer: echo})
	ctx := t.Context()
	id := running(t, s, c, "oh-one")
	in, err := publish(t, c, id)
	require.NoError(t, err)

	s.Inject(dot.Fault{Op: dot.OpGuest, First: func(s *dot.Server) { s.PauseNow(id, "idle") }})
	got, _, err := ask(t, s, dot.DefaultToken, in.URL)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNotFound, got, "the idle pause came first")

	s.Inject(dot.Fault{Op: dot.OpResume, First: func(s *dot.Server) { s.ResumeNow(id, "trigger") }})
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.ResumeSession(ctx, id))))
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, id))

	s.Inject(dot.Fault{Op: dot.OpPause, First: func(s *dot.Server) { s.PauseNow(id, "idle") }})
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.PauseSession(ctx, id))))

	s.Inject(dot.Fault{Op: dot.OpPause, First: func(s *dot.Server) { s.DestroyNow(id) }})
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.PauseSession(ctx, id))))
	assert.Zero(t, s.Bill()[0].Deletes, "it went out of band")
	assert.Equal(t, map[string]int{"trigger": 1}, s.Bill()[0].Wakes)
}

func TestHookThatPanics(t *testing.T) {
	t.Parallel()
	s := start(t, dot.Options{})
	c, err := godo.New(&http.Client{Transport: bearer{dot.DefaultToken, direct{s}}})
	require.NoError(t, err)
	s.Inject(dot.Fault{Op: dot.OpList, First: func(s *dot.Server) { s.PauseNow("nobody", "idle") }})
	assert.PanicsWithValue(t, "digitaloceantest: there is no session nobody", func() { _, _, _ = c.HostedAgents.ListSessions(t.Context(), nil) })
	free := make(chan struct{})
	go func() { s.Audit(); close(free) }()
	select {
	case <-free:
	case <-time.After(20 * time.Second):
		t.Fatal("a slip in a test must not hang the next call")
	}
}

func TestStaleLists(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{})
	config := configure(t, c)
	s.Inject(dot.Fault{Op: dot.OpList, Stale: true})
	_, err := create(t, c, config, "oh-one")
	require.NoError(t, err)
	assert.Empty(t, named(t, c, "oh-one"), "the list is behind")
	assert.Len(t, named(t, c, "oh-one"), 1)

	lagging, c := begin(t, dot.Options{ListLag: 3 * time.Second})
	ses, err := create(t, c, configure(t, c), "oh-one")
	require.NoError(t, err)
	lagging.Advance(2 * time.Second)
	assert.Empty(t, named(t, c, "oh-one"))
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, ses.SessionID), "a read by id is not behind")
	lagging.Advance(time.Second)
	found := named(t, c, "oh-one")
	require.Len(t, found, 1)
	assert.EqualValues(t, "SESSION_STATUS_PROVISIONING", found[0].Status)
	lagging.DestroyNow("oh-one")
	lagging.Advance(2 * time.Second)
	assert.Len(t, named(t, c, "oh-one"), 1, "and it is still there when it is gone")
	lagging.Advance(time.Second)
	assert.Empty(t, named(t, c, "oh-one"))
}

func TestThingsOfTheFuture(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{})
	id := running(t, s, c, "oh-one")
	s.Claim(id, "SESSION_STATUS_HIBERNATING")
	assert.Equal(t, "SESSION_STATUS_HIBERNATING", status(t, c, id))
	s.Claim(id, "")
	s.PauseNow(id, "some_future_reason")
	ses, _, err := c.HostedAgents.GetSession(t.Context(), id)
	require.NoError(t, err)
	assert.EqualValues(t, "some_future_reason", ses.PauseReason)
	s.ClaimReason(id, "low_balance")
	ses, _, err = c.HostedAgents.GetSession(t.Context(), id)
	require.NoError(t, err)
	assert.EqualValues(t, "low_balance", ses.PauseReason)

	rewrite := func(change func(map[string]any)) {
		s.Inject(dot.Fault{Op: dot.OpGet, Rewrite: func(body map[string]any) {
			ses, ok := body["session"].(map[string]any)
			assert.True(t, ok)
			change(ses)
		}})
	}
	rewrite(func(ses map[string]any) { ses["last_event_at"] = nil })
	_, resp, err := c.HostedAgents.GetSession(t.Context(), id)
	require.Error(t, err, "a null time is what the client can't read")
	assert.Nil(t, resp)
	rewrite(func(ses map[string]any) { delete(ses, "status") })
	ses, _, err = c.HostedAgents.GetSession(t.Context(), id)
	require.NoError(t, err)
	assert.Empty(t, ses.Status)
	s.Inject(dot.Fault{Op: dot.OpGet, Status: http.StatusOK})
	_, _, err = c.HostedAgents.GetSession(t.Context(), id)
	require.ErrorIs(t, err, io.EOF, "an answer without a body")
	s.Inject(dot.Fault{Op: dot.OpGet, Status: http.StatusNotFound, Body: `{"error":{"code":"not_found","message":"no"}}`})
	_, _, err = c.HostedAgents.GetSession(t.Context(), id)
	assert.Equal(t, http.StatusNotFound, code(err))
	assert.Equal(t, "no", message(err), "a code that is a word")
}

func TestBothEnvelopes(t *testing.T) {
	t.Parallel()
	_, c := begin(t, dot.Options{})
	_, _, err := c.HostedAgents.GetSession(t.Context(), "nothing")
	var nested *godo.ErrorResponse
	require.ErrorAs(t, err, &nested)
	require.NotNil(t, nested.NestedError)
	assert.Equal(t, http.StatusNotFound, nested.NestedError.Code)
	assert.Equal(t, "session not found", nested.NestedError.Message)
	assert.Empty(t, nested.Message)
	assert.NotEmpty(t, nested.RequestID)

	_, c = begin(t, dot.Options{EdgeErrors: true})
	_, _, err = c.HostedAgents.GetSession(t.Context(), "nothing")
	var flat *godo.ErrorResponse
	require.ErrorAs(t, err, &flat)
	assert.Nil(t, flat.NestedError)
	assert.Equal(t, "session not found", flat.Message)
}

func TestDeletesThatAreRefused(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{})
	id := running(t, s, c, "oh-one")
	destroy := func() int { return code(try(c.HostedAgents.DestroySession(t.Context(), id))) }
	s.Lock(id, true)
	assert.Equal(t, http.StatusLocked, destroy())
	s.Lock(id, false)
	s.HoldDelete(id, 2)
	assert.Equal(t, []int{409, 409, 0}, []int{destroy(), destroy(), destroy()})
	assert.Equal(t, http.StatusNotFound, code(try(c.HostedAgents.DestroySession(t.Context(), "nothing"))))

	s, c = begin(t, dot.Options{Destroying: 5 * time.Second, DeleteAgain: http.StatusNotFound, ForgetDestroyed: true})
	id = running(t, s, c, "oh-one")
	assert.Zero(t, destroy())
	assert.Equal(t, "SESSION_STATUS_DESTROYING", status(t, c, id))
	assert.Empty(t, named(t, c, "oh-one"), "the name is free")
	assert.Equal(t, http.StatusNotFound, destroy())
	s.Advance(5 * time.Second)
	_, _, err := c.HostedAgents.GetSession(t.Context(), id)
	assert.Equal(t, http.StatusNotFound, code(err))
}

func TestResumeThatLags(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{ResumeLag: 2 * time.Second})
	id := running(t, s, c, "oh-one")
	require.NoError(t, try(c.HostedAgents.PauseSession(t.Context(), id)))
	require.NoError(t, try(c.HostedAgents.ResumeSession(t.Context(), id)))
	assert.Equal(t, "SESSION_STATUS_PAUSED", status(t, c, id), "the answer came first")
	require.NoError(t, try(c.HostedAgents.ResumeSession(t.Context(), id)))
	s.Advance(2 * time.Second)
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, id))
	assert.Equal(t, 1, s.Bill()[0].WokenUp())
	s.Unsupported(true, false)
	assert.Equal(t, http.StatusNotImplemented, code(try(c.HostedAgents.PauseSession(t.Context(), id))))
	assert.Equal(t, http.StatusNotImplemented, code(try(c.HostedAgents.ResumeSession(t.Context(), id))))
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{EnforceRate: true})
	for range 250 {
		_, _, err := c.Account.Get(t.Context())
		require.NoError(t, err)
	}
	_, resp, err := c.Account.Get(t.Context())
	assert.Equal(t, http.StatusTooManyRequests, code(err))
	assert.Equal(t, "61", resp.Header.Get("Retry-After"))
	assert.Equal(t, 4750, resp.Rate.Remaining)
	s.Advance(61 * time.Second)
	_, _, err = c.Account.Get(t.Context())
	require.NoError(t, err)
}

func TestRecordsHoldNoSecrets(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{AgentServer: echo})
	id := running(t, s, c, "oh-one")
	_, _, err := c.HostedAgents.SendInput(t.Context(), id, &godo.HostedAgentSendInputRequest{Text: "the password is hunter2"})
	require.NoError(t, err)
	in, err := publish(t, c, id)
	require.NoError(t, err)
	_, _, err = ask(t, s, dot.DefaultToken, in.URL+"/ws?session_api_key=hunter2&echo=sk-very-secret")
	require.NoError(t, err)
	_, _, err = c.HostedAgents.CreateSessionFromManifest(t.Context(), []byte("agent: openhands\nsecret: {KEY: hunter2}"), nil)
	require.Error(t, err)
	var all strings.Builder
	for _, r := range s.Requests() {
		all.WriteString(strings.Join(append(r.Headers, r.Method, r.Path, r.Query, r.Body, r.Error, "\n"), " "))
		assert.NotEmpty(t, r.Status)
	}
	for _, secret := range []string{"sk-very-secret", "hunter2", dot.DefaultToken} {
		assert.NotContains(t, all.String(), secret)
	}
	assert.Contains(t, all.String(), "idle_timeout: 10m")
	assert.Contains(t, all.String(), "Authorization")
	assert.Equal(t, 2, s.Count(dot.OpCreate))
}
