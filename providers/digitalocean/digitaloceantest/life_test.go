package digitaloceantest_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/godo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

func TestALife(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{})
	ctx := t.Context()
	config := configure(t, c)

	ses, resp, err := c.HostedAgents.CreateSessionFromEnvironment(ctx, &godo.HostedAgentSessionFromEnvironmentRequest{
		Name: "oh-one", ConfigID: config, Region: "ric1",
	})
	require.NoError(t, err)
	assert.Equal(t, http.StatusCreated, resp.StatusCode)
	assert.Equal(t, "ric1", resp.Header.Get("X-DO-Region"))
	assert.Equal(t, "https://api-ric1.digitalocean.com/v2/agents/sessions/"+ses.SessionID, ses.Location)
	assert.NotEmpty(t, resp.Header.Get("X-Request-Id"))
	assert.Equal(t, 5000, resp.Rate.Limit)
	assert.Equal(t, 4998, resp.Rate.Remaining, "two requests so far")
	assert.True(t, s.Now().Add(time.Hour).Truncate(time.Second).Equal(resp.Rate.Reset.Time))
	assert.EqualValues(t, "SESSION_STATUS_PROVISIONING", ses.Status)
	assert.Equal(t, config, ses.ConfigID)
	assert.True(t, s.Now().Equal(ses.CreatedAt.Time), "microseconds are kept")
	assert.NotZero(t, ses.CreatedAt.Nanosecond()%1_000_000)
	assert.True(t, ses.LastEventAt.IsZero(), "nothing has happened yet, so the field is left out")
	assert.Empty(t, ses.SandboxID)
	id := ses.SessionID

	s.Advance(500 * time.Millisecond)
	assert.Equal(t, "SESSION_STATUS_PROVISIONING", status(t, c, id))
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.PauseSession(ctx, id))), "not while it boots")
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.ResumeSession(ctx, id))))
	s.Advance(386 * time.Millisecond)
	ses, _, err = c.HostedAgents.GetSession(ctx, id)
	require.NoError(t, err)
	assert.EqualValues(t, "SESSION_STATUS_READY", ses.Status)
	assert.NotEmpty(t, ses.SandboxID)
	assert.True(t, s.Now().Equal(ses.LastEventAt.Time))
	assert.Empty(t, ses.PauseReason)
	sandbox := ses.SandboxID

	s.Advance(time.Minute)
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.ResumeSession(ctx, id))))
	resp, err = c.HostedAgents.PauseSession(ctx, id)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNoContent, resp.StatusCode)
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.PauseSession(ctx, id))), "a pause can't be repeated")
	ses, _, err = c.HostedAgents.GetSession(ctx, id)
	require.NoError(t, err)
	assert.EqualValues(t, "SESSION_STATUS_PAUSED", ses.Status)
	assert.EqualValues(t, "manual", ses.PauseReason)
	assert.Equal(t, sandbox, ses.SandboxID)

	s.Advance(time.Hour)
	resp, err = c.HostedAgents.ResumeSession(ctx, id)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNoContent, resp.StatusCode)
	s.Advance(9 * time.Minute)
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, id))
	s.Advance(time.Minute)
	ses, _, err = c.HostedAgents.GetSession(ctx, id)
	require.NoError(t, err)
	assert.EqualValues(t, "SESSION_STATUS_PAUSED", ses.Status, "reading doesn't keep it awake, and ten minutes are ten minutes")
	assert.EqualValues(t, "idle", ses.PauseReason)

	resp, err = c.HostedAgents.DestroySession(ctx, id)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNoContent, resp.StatusCode)
	assert.Equal(t, "SESSION_STATUS_DESTROYED", status(t, c, id), "the row stays readable")
	require.NoError(t, try(c.HostedAgents.DestroySession(ctx, id)))
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.PauseSession(ctx, id))))
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.ResumeSession(ctx, id))))

	bill := s.Bill()
	require.Len(t, bill, 1)
	assert.Equal(t, 886*time.Millisecond, bill[0].Provisioning)
	assert.Equal(t, 11*time.Minute, bill[0].Running)
	assert.Equal(t, time.Hour, bill[0].Paused)
	assert.Equal(t, map[string]int{"manual": 1, "idle": 1}, bill[0].Pauses)
	assert.Equal(t, map[string]int{"resume": 1}, bill[0].Wakes)
	assert.Equal(t, 1, bill[0].Deletes)
	audit := s.Audit()
	assert.Empty(t, audit.Alive)
	assert.Empty(t, audit.Double)
	assert.Equal(t, []string{"oh-one"}, audit.Deleted)
}

// try keeps the error of a call that has no other result.
func try(_ *godo.Response, err error) error { return err }

func TestBothPrefixesAreOneService(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{})
	id := running(t, s, c, "oh-one")
	for _, prefix := range []string{"/v2/agents", "/v2/harness-runtime"} {
		req, err := c.NewRequest(t.Context(), http.MethodGet, prefix+"/sessions/"+id, nil)
		require.NoError(t, err)
		var out struct {
			Session struct {
				godo.HostedAgentSession
				KeepWarm    *bool `json:"keep_warm"`
				IdleTimeout int   `json:"idle_timeout_seconds"`
				TeamID      int64 `json:"team_id"`
			} `json:"session"`
		}
		_, err = c.Do(t.Context(), req, &out)
		require.NoError(t, err, prefix)
		assert.Equal(t, id, out.Session.SessionID)
		require.NotNil(t, out.Session.KeepWarm)
		assert.False(t, *out.Session.KeepWarm)
		assert.Equal(t, 600, out.Session.IdleTimeout)
		assert.NotZero(t, out.Session.TeamID)
	}
}

func TestWhoMayCall(t *testing.T) {
	t.Parallel()
	s := start(t, digitaloceantest.Options{Teams: []digitaloceantest.Team{
		{Token: "one"}, {Token: "two"}, {Token: "three", NoFeature: true},
	}})
	one, two, three := client(t, s, "one", ""), client(t, s, "two", ""), client(t, s, "three", "")
	id := running(t, s, one, "oh-one")

	_, _, err := two.HostedAgents.GetSession(t.Context(), id)
	assert.Equal(t, http.StatusForbidden, code(err))
	assert.Equal(t, http.StatusForbidden, code(try(two.HostedAgents.DestroySession(t.Context(), id))))
	list, _, err := two.HostedAgents.ListSessions(t.Context(), nil)
	require.NoError(t, err)
	assert.Empty(t, list.Sessions)
	_, _, err = three.HostedAgents.ListSessions(t.Context(), nil)
	assert.Equal(t, http.StatusForbidden, code(err))
	_, _, err = client(t, s, "four", "").HostedAgents.ListSessions(t.Context(), nil)
	assert.Equal(t, http.StatusUnauthorized, code(err))
	assert.Equal(t, "Unable to authenticate you", message(err))
	s.SetTeam("one", func(t *digitaloceantest.Team) { t.Scopes = []string{"agents:read"} })
	assert.Equal(t, "SESSION_STATUS_READY", status(t, one, id))
	assert.Equal(t, http.StatusForbidden, code(try(one.HostedAgents.PauseSession(t.Context(), id))))
	assert.Equal(t, http.StatusForbidden, code(try(one.HostedAgents.DestroySession(t.Context(), id))))
	_, _, err = one.Prepayment.GetStatus(t.Context())
	assert.Equal(t, http.StatusForbidden, code(err))
	_, _, err = one.HostedAgents.GetSession(t.Context(), "nothing")
	assert.Equal(t, http.StatusNotFound, code(err))

	account, _, err := one.Account.Get(t.Context())
	require.NoError(t, err)
	other, _, err := three.Account.Get(t.Context())
	require.NoError(t, err, "the account is no managed agent")
	assert.NotEqual(t, account.Team.UUID, other.Team.UUID)
	s.SetTeam("one", func(t *digitaloceantest.Team) { t.UUID = "another" })
	account, _, err = one.Account.Get(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "another", account.Team.UUID)
}

func TestRegions(t *testing.T) {
	t.Parallel()
	s := start(t, digitaloceantest.Options{Regions: []string{"ric1", "mem1"}})
	token := digitaloceantest.DefaultToken
	ric, mem, none := client(t, s, token, ""), client(t, s, token, "mem1"), client(t, s, token, "xyz9")
	id := running(t, s, ric, "oh-one")

	_, _, err := mem.HostedAgents.GetSession(t.Context(), id)
	assert.Equal(t, http.StatusNotFound, code(err), "the wrong host says gone")
	assert.Equal(t, http.StatusNotFound, code(try(mem.HostedAgents.DestroySession(t.Context(), id))))
	assert.Equal(t, "SESSION_STATUS_READY", status(t, client(t, s, token, "ric1"), id))
	_, _, err = none.HostedAgents.ListSessions(t.Context(), nil)
	assert.Equal(t, http.StatusNotFound, code(err))
	regions, _, err := mem.HostedAgents.ListRegions(t.Context())
	require.NoError(t, err)
	standard, ok := regions.DefaultRegion()
	assert.True(t, ok)
	assert.Equal(t, "ric1", standard)
	assert.Len(t, regions.Regions, 2)

	ses, err := create(t, mem, configure(t, mem), "OH-One")
	require.NoError(t, err, "each region knows its own names")
	assert.Equal(t, "mem1", ses.Region)
	assert.Equal(t, []string{"oh-one"}, s.Audit().Double)

	// The same regions on ports of their own, for clients without a transport.
	plain := &http.Client{Transport: bearer{token, http.DefaultTransport}}
	for region, want := range map[string]int{"ric1": http.StatusOK, "": http.StatusOK, "mem1": http.StatusNotFound} {
		c, err := godo.New(plain, godo.SetBaseURL(s.URL(region)))
		require.NoError(t, err)
		_, resp, _ := c.HostedAgents.GetSession(t.Context(), id)
		require.NotNil(t, resp)
		assert.Equal(t, want, resp.StatusCode, region)
	}
}

func TestNamesAndQuota(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{Teams: []digitaloceantest.Team{{Quota: 2}}})
	config := configure(t, c)
	first, err := create(t, c, config, "oh-one")
	require.NoError(t, err)
	s.Advance(time.Second)
	require.NoError(t, try(c.HostedAgents.PauseSession(t.Context(), first.SessionID)))

	_, err = create(t, c, config, "OH-ONE")
	assert.Equal(t, http.StatusConflict, code(err))
	assert.NotContains(t, message(err), "limit of")
	found := named(t, c, "Oh-One")
	require.Len(t, found, 1, "the filter doesn't care for case")
	assert.Equal(t, first.SessionID, found[0].SessionID)

	_, err = create(t, c, config, "oh-two")
	require.NoError(t, err)
	_, err = create(t, c, config, "oh-three")
	assert.Equal(t, http.StatusConflict, code(err), "a paused session holds its slot")
	assert.Equal(t, "team is at the limit of 2 active sessions", message(err))

	require.NoError(t, try(c.HostedAgents.DestroySession(t.Context(), first.SessionID)))
	assert.Empty(t, named(t, c, "oh-one"), "only a live holder is found")
	again, err := create(t, c, config, "oh-one")
	require.NoError(t, err, "destroying frees the name and the slot")
	assert.NotEqual(t, first.SessionID, again.SessionID)
	s.FailNow("oh-one")
	_, err = create(t, c, config, "oh-one")
	require.NoError(t, err, "so does failing")
	assert.Len(t, s.Audit().Created["oh-one"], 3)
	assert.Empty(t, s.Audit().Double)
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{AgentServer: echo})
	config := configure(t, c)
	made := make(chan string, 16)
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			if ses, err := create(t, c, config, "oh-one"); err == nil {
				made <- ses.SessionID
			} else {
				assert.Equal(t, http.StatusConflict, code(err))
			}
		})
	}
	callers.Wait()
	require.Len(t, made, 1, "one of all")
	id := <-made
	s.Advance(time.Second)
	calls := []func() error{
		func() error { return try(c.HostedAgents.PauseSession(t.Context(), id)) },
		func() error { return try(c.HostedAgents.ResumeSession(t.Context(), id)) },
		func() error { _, err := publish(t, c, id); return err },
		func() error { named(t, c, "oh-one"); s.Advance(time.Minute); return nil },
		func() error { s.Audit(); s.Requests(); return nil },
	}
	for i := range 40 {
		callers.Go(func() {
			if err := calls[i%len(calls)](); err != nil {
				assert.Equal(t, http.StatusConflict, code(err))
			}
		})
	}
	callers.Wait()
	bill := s.Bill()[0]
	assert.Equal(t, 8*time.Minute+time.Second, bill.Provisioning+bill.Running+bill.Paused)
	assert.Equal(t, []string{"oh-one"}, s.Audit().Alive)
}

func named(t *testing.T, c *godo.Client, name string) []godo.HostedAgentSession {
	t.Helper()
	list, _, err := c.HostedAgents.ListSessions(t.Context(), &godo.HostedAgentSessionListOptions{Name: name})
	require.NoError(t, err)
	return list.Sessions
}

func TestLists(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{})
	config := configure(t, c)
	for i := range 120 {
		_, err := create(t, c, config, "oh-"+string(rune('a'+i/26))+string(rune('a'+i%26)))
		require.NoError(t, err)
	}
	s.Advance(time.Second)
	s.DestroyNow("oh-aa")
	s.FailNow("oh-ab")
	s.PauseNow("oh-ac", "idle")

	pages := func(opt godo.HostedAgentSessionListOptions) (sizes []int, ids map[string]bool) {
		ids = map[string]bool{}
		for {
			list, _, err := c.HostedAgents.ListEnvironmentSessions(t.Context(), config, &opt)
			require.NoError(t, err)
			for _, ses := range list.Sessions {
				assert.False(t, ids[ses.SessionID], "no session twice")
				ids[ses.SessionID] = true
			}
			sizes = append(sizes, len(list.Sessions))
			if opt.PageToken = list.NextPageToken; opt.PageToken == "" {
				return sizes, ids
			}
		}
	}
	sizes, _ := pages(godo.HostedAgentSessionListOptions{})
	assert.Equal(t, []int{50, 50, 18}, sizes, "fifty by default, without what ended")
	sizes, _ = pages(godo.HostedAgentSessionListOptions{PageSize: 1000, Status: "SESSION_STATUS_ALL"})
	assert.Equal(t, []int{120}, sizes)
	for status, want := range map[string]int{"DESTROYED": 1, "FAILED": 1, "PAUSED": 1, "READY": 117, "PROVISIONING": 0} {
		sizes, _ = pages(godo.HostedAgentSessionListOptions{PageSize: 200, Status: godo.HostedAgentSessionStatus("SESSION_STATUS_" + status)})
		assert.Equal(t, []int{want}, sizes, status)
	}
	for i := range 90 {
		s.Plant(digitaloceantest.DefaultToken, digitaloceantest.DefaultRegion, fmt.Sprintf("theirs-%d", i))
	}
	all, _, err := c.HostedAgents.ListSessions(t.Context(), &godo.HostedAgentSessionListOptions{PageSize: 1000})
	require.NoError(t, err)
	assert.Len(t, all.Sessions, 200, "never more")
	assert.NotEmpty(t, all.NextPageToken)
	_, _, err = c.HostedAgents.ListSessions(t.Context(), &godo.HostedAgentSessionListOptions{PageToken: "bm90aGluZw"})
	assert.Equal(t, http.StatusBadRequest, code(err))
	_, _, err = c.HostedAgents.ListSessions(t.Context(), &godo.HostedAgentSessionListOptions{Status: "SESSION_STATUS_SLEEPING"})
	assert.Equal(t, http.StatusBadRequest, code(err))
	none, _, err := c.HostedAgents.ListEnvironmentSessions(t.Context(), "nothing", nil)
	require.NoError(t, err, "an empty list doesn't mean that the configuration is there")
	assert.Empty(t, none.Sessions)
}

func TestWhatIsAbsentIsLeftOut(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{})
	read := func(id string) map[string]any {
		req, err := c.NewRequest(t.Context(), http.MethodGet, "/v2/agents/sessions/"+id, nil)
		require.NoError(t, err)
		var out map[string]map[string]any
		_, err = c.Do(t.Context(), req, &out)
		require.NoError(t, err)
		for key, value := range out["session"] {
			assert.NotNil(t, value, key)
			if text, is := value.(string); is {
				assert.NotEmpty(t, text, key)
			}
		}
		return out["session"]
	}
	ses, err := create(t, c, configure(t, c), "oh-one")
	require.NoError(t, err)
	booting := read(ses.SessionID)
	for _, key := range []string{"last_event_at", "sandbox_id", "pause_reason", "resume_on_topoff", "workspace_id", "update", "parent_session_id"} {
		assert.NotContains(t, booting, key)
	}
	assert.Equal(t, "2026-11-30T12:00:00.123456Z", booting["created_at"])
	s.Advance(time.Second)
	assert.Contains(t, read(ses.SessionID), "last_event_at")
	assert.NotContains(t, read(ses.SessionID), "pause_reason")
	s.PauseNow("oh-one", "idle")
	assert.Contains(t, read(ses.SessionID), "pause_reason")
}
