package digitalocean_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	fake "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
	"github.com/openhands/boxkeeper/providers/driver"
)

func suspended(t *testing.T, p place, d *digitalocean.Driver, workspace string) box.Ref {
	t.Helper()
	ref := made(t, p, d, workspace)
	_, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	return ref
}

func TestScenario107And109AFullQuotaSaysWhoHoldsIt(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{Teams: []fake.Team{{Quota: 10}}})
	d := p.new(t, installation)
	oldest := suspended(t, p, d, "zz-oldest")
	for i := range 6 {
		suspended(t, p, d, fmt.Sprintf("later-%d", i))
	}
	made(t, p, d, "awake")
	p.stray(t, "a-strangers-own-name")
	req := createRequest("of-another-installation")
	req.Identity.Installation = "99999999"
	_, err := p.new(t, "99999999").Create(t.Context(), req)
	require.NoError(t, err)

	before := p.service.Count(fake.OpList)
	_, err = d.Create(t.Context(), createRequest("one-more"))
	class, wait := d.ErrorClass(err)
	require.Equal(t, box.ClassExhausted, class)
	require.Equal(t, time.Minute, wait)
	require.Equal(t, box.BlockQuota, box.BlockOf(err))
	text := err.Error()
	require.Contains(t, text, "limit of 10 active sessions")
	require.Contains(t, text, "of the 10 sessions in region ric1, 7 are suspended boxes of this installation, 1 are others of its boxes, and 2 are not known to be its own")
	require.Contains(t, text, "quiet for longest: zz-oldest, later-0, later-1 and 4 more;")
	require.Contains(t, text, "boxkeeper box delete ID")
	for _, never := range []string{"a-strangers-own-name", "of-another-installation", "99999999", "awake", fake.DefaultToken} {
		require.NotContains(t, text, never)
	}
	require.Less(t, len(text), 1000, "so much of an error is kept in a box's facts")
	require.Equal(t, 2, p.service.Count(fake.OpList)-before, "one look by the name, one list")

	gone(t, p, d, oldest)
	made(t, p, d, "one-more")
}

func TestAFullQuotaWithoutAListIsPlain(t *testing.T) {
	t.Parallel()
	for what, f := range map[string]fake.Fault{
		"cut": {Cut: true}, "500": {Status: 500}, "429": {Status: 429, RetryAfter: time.Hour}, "a page": fake.BadGateway(""), "401": {Status: 401},
	} {
		p := newPlace(t, fake.Options{Teams: []fake.Team{{Quota: 1}}})
		d := p.new(t, installation)
		suspended(t, p, d, "a")
		before := p.service.Count(fake.OpList)
		_, err := d.Create(t.Context(), createRequest("b"))
		require.Contains(t, err.Error(), "quiet for longest: a;", what)
		looks := p.service.Count(fake.OpList) - before - 1
		f.Op, f.Skip, f.Times = fake.OpList, looks, -1 // the looks before the create go well
		p.service.Inject(f)
		came := len(p.service.Requests())
		_, err = d.Create(t.Context(), createRequest("b"))
		class, wait := d.ErrorClass(err)
		require.Equal(t, box.ClassExhausted, class, what)
		require.Equal(t, time.Minute, wait, what)
		require.Equal(t, box.BlockQuota, box.BlockOf(err), what)
		require.Contains(t, err.Error(), "limit of 1 active sessions", what)
		require.Contains(t, err.Error(), "suspended boxes count: delete one", what)
		require.Less(t, len(p.service.Requests())-came, 8, what)
		require.Equal(t, 3, p.service.Count(fake.OpCreate), "one create each, %s", what)
	}
}

// No source says that a resume is refused with the quota; where it is, it says as much.
func TestAResumeThatTheQuotaRefuses(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	then(s, "PAUSED")
	s.on("POST "+sessionsAt+"/sess-1/resume", http.StatusConflict, `{"error":{"code":409,"message":"team is at the limit of 4 active sessions"}}`)
	s.on("GET "+sessionsAt, 200, list("",
		sessionJSON("sess-1", identity("w").Name(), "PAUSED", map[string]any{"last_event_at": nil, "created_at": 7}),
		sessionJSON("sess-2", identity("older").Name(), "PAUSED", map[string]any{"last_event_at": "2026-11-01T00:00:00Z"}),
		sessionJSON("sess-3", "bk-"+installation+"-"+strings.Repeat("x", 70)+"-1", "READY", nil),
		sessionJSON("sess-4", identity("dead").Name(), "DESTROYING", nil),
	))
	d := s.driver(t)
	_, err := d.Resume(t.Context(), refOf("sess-1", "w"), driver.Start{})
	require.Equal(t, box.ClassExhausted, box.ClassOf(err), "%v", err)
	require.Contains(t, err.Error(), "of the 3 sessions in region ric1, 2 are suspended boxes")
	require.Contains(t, err.Error(), "quiet for longest: w, older;", "one that says no time counts as old")
	require.Equal(t, 1, strings.Count(strings.Join(s.lines(), "\n"), "/resume"), "it is sent once")
}

func TestSuspendedBoxesFillTheQuota(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{Teams: []fake.Team{{Quota: 2}}})
	d := p.new(t, installation)
	a, b := made(t, p, d, "a"), made(t, p, d, "b")
	_, err := d.Suspend(t.Context(), a)
	require.NoError(t, err)
	_, err = d.Create(t.Context(), createRequest("c"))
	require.Equal(t, box.ClassExhausted, box.ClassOf(err), "%v", err)
	require.Contains(t, err.Error(), "limit of 2 active sessions")
	again, err := d.Create(t.Context(), createRequest("b"))
	require.NoError(t, err)
	require.Equal(t, b, again.Ref)
	gone(t, p, d, a)
	made(t, p, d, "c")
}

// The list is for the words of an error only, and must not use up what the token may
// ask in a minute.
func TestAListWithoutEndIsNotReadForTheWordsOfAnError(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	then(s, "PAUSED")
	s.on("POST "+sessionsAt+"/sess-1/resume", http.StatusConflict, `{"error":{"code":409,"message":"team is at the limit of 4 active sessions"}}`)
	for page := range 30 {
		s.on("GET "+sessionsAt, 200, list(fmt.Sprintf("page-%d", page), sessionJSON(fmt.Sprintf("s-%d", page), "name", "PAUSED", nil)))
	}
	s.on("GET "+sessionsAt, 200, list(""))
	_, err := s.driver(t).Resume(t.Context(), refOf("sess-1", "w"), driver.Start{})
	require.Equal(t, box.ClassExhausted, box.ClassOf(err), "%v", err)
	require.Contains(t, err.Error(), "suspended boxes count: delete one")
	reads := 0
	for _, one := range s.lines() {
		if strings.HasPrefix(one, "GET "+sessionsAt) && !strings.HasPrefix(one, "GET "+sessionsAt+"/") {
			reads++
		}
	}
	require.LessOrEqual(t, reads, 5)
}
