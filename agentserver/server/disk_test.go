package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

// alone starts a handler without an agent-server on n conversations.
func alone(t *testing.T, n int) (address, conversations string) {
	t.Helper()
	address, root, _ := front(t, nil, "")
	conversations = filepath.Join(root, "conversations")
	for i := 1; i <= n; i++ {
		events := make([]agentservertest.Event, i)
		for e := range events {
			events[e] = agentservertest.Event{ID: fmt.Sprintf("%08x-0000-4000-8000-%012x", i, e), Text: fmt.Sprintf("text %d of %d", e, i)}
			if e%2 == 1 {
				events[e].Source = "agent"
			}
		}
		_, err := agentservertest.WriteConversation(conversations, agentservertest.Conversation{
			ID: fmt.Sprintf("%032x", i), Title: fmt.Sprintf("talk %d", i), Events: events,
			CreatedAt: time.Date(2026, 1, i, 12, 0, 0, 0, time.UTC), Status: []string{"idle", "running"}[i%2],
		})
		require.NoError(t, err)
	}
	return address, conversations
}

func get(t *testing.T, address string, out any) {
	t.Helper()
	status, text, header := ask(t, http.MethodGet, address, "")
	require.Equal(t, http.StatusOK, status, text)
	require.Equal(t, "application/json", header.Get("Content-Type"))
	require.NoError(t, json.Unmarshal([]byte(text), out), text)
}

func TestAloneItAnswersLikeAnAgentServer(t *testing.T) {
	t.Parallel()
	address, _ := alone(t, 3)
	id := fmt.Sprintf("%032x", 1)
	for _, row := range []struct {
		method, path string
		keyless      bool
		status       int
		body         string
	}{
		{"GET", "/alive", true, 200, `{"status":"ok"}`},
		{"GET", "/health", true, 200, `{"status":"ok"}`},
		{"GET", "/ready", true, 200, `{"status":"ready"}`},
		{"GET", "/api/conversations/count", true, 401, `{"detail":"Unauthorized"}`},
		{"GET", "/api/nope", true, 404, `{"detail":"Not Found"}`},
		{"GET", "/api/conversations/count", false, 200, `3`},
		{"GET", "/api/conversations/count?status=running", false, 200, `2`},
		{"POST", "/api/conversations/count", false, 405, `{"detail":"Method Not Allowed"}`},
		{"POST", "/api/conversations", false, 405, `{"detail":"Method Not Allowed"}`},
		{"GET", "/api/conversations/" + strings.Repeat("0", 32), false, 404, `{"detail":"Not Found"}`},
		{"GET", "/api/conversations/" + strings.Repeat("0", 32) + "/events/count", false, 404, `{"detail":"Conversation not found: 00000000-0000-0000-0000-000000000000"}`},
		{"GET", "/api/file/download-trajectory/" + strings.Repeat("0", 32), false, 404, `{"detail":"Conversation not found"}`},
		{"GET", "/api/conversations/" + agentservertest.Dashed(id) + "/events/count", false, 200, `1`},
		{"POST", "/api/conversations/prepare-for-sandbox-pause", false, 204, ``},
		{"POST", "/api/conversations/prepare-for-sandbox-pause", true, 401, `{"detail":"Unauthorized"}`},
		{"GET", "/api/boxd/use", true, 401, `{"detail":"Unauthorized"}`},
		{"POST", "/api/boxd/use", false, 405, `{"detail":"Method Not Allowed"}`},
	} {
		request, err := http.NewRequestWithContext(t.Context(), row.method, address+row.path, nil)
		require.NoError(t, err)
		if !row.keyless {
			request.Header.Set("X-Session-API-Key", key)
		}
		response, err := http.DefaultTransport.RoundTrip(request)
		require.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		response.Body.Close()
		require.Equal(t, row.status, response.StatusCode, "%s %s", row.method, row.path)
		require.Equal(t, row.body, string(text), "%s %s", row.method, row.path)
	}
	for _, path := range []string{
		"/api/conversations/xyz", "/api/conversations/xyz/events/search", "/api/file/download-trajectory/xyz", "/api/conversations/search?limit=0",
		"/api/conversations/search?limit=101", "/api/conversations/search?sort_order=x", "/api/conversations/search?status=x", "/api/conversations",
		"/api/conversations?ids=x", "/api/conversations?ids=" + strings.Repeat(id+"&ids=", 99) + id, "/api/conversations/" + id + "/events/search?timestamp__gte=x",
	} {
		status, text, _ := ask(t, http.MethodGet, address+path, "")
		require.Equal(t, http.StatusUnprocessableEntity, status, path)
		require.Contains(t, text, `"loc":["`)
	}
}

func TestTheCatalogueIsPaged(t *testing.T) {
	t.Parallel()
	address, conversations := alone(t, 7)
	require.NoError(t, os.MkdirAll(filepath.Join(conversations, strings.Repeat("f", 32), "events"), 0o755)) // no metadata
	require.NoError(t, os.WriteFile(filepath.Join(conversations, strings.Repeat("e", 32)+".zip"), nil, 0o600))
	type page struct {
		Items []struct {
			ID        string    `json:"id"`
			Title     string    `json:"title"`
			CreatedAt time.Time `json:"created_at"`
		} `json:"items"`
		Next string `json:"next_page_id"`
	}
	for order, want := range map[string][]int{
		"": {7, 6, 5, 4, 3, 2, 1}, "CREATED_AT": {1, 2, 3, 4, 5, 6, 7}, "UPDATED_AT_DESC": {7, 6, 5, 4, 3, 2, 1},
	} {
		query := url.Values{"limit": {"3"}}
		if order != "" {
			query.Set("sort_order", order)
		}
		var titles, pages []string
		for range 5 {
			var one page
			get(t, address+"/api/conversations/search?"+query.Encode(), &one)
			for _, item := range one.Items {
				titles = append(titles, item.Title)
			}
			pages = append(pages, one.Next)
			if one.Next == "" {
				break
			}
			require.Len(t, one.Next, 32)
			query.Set("page_id", one.Next)
		}
		require.Len(t, pages, 3)
		for i, n := range want {
			require.Equal(t, fmt.Sprintf("talk %d", n), titles[i])
		}
	}
	var batch []*struct {
		ID string `json:"id"`
	}
	get(t, address+fmt.Sprintf("/api/conversations?ids=%032x&ids=%032x", 2, 99), &batch)
	require.Equal(t, agentservertest.Dashed(fmt.Sprintf("%032x", 2)), batch[0].ID)
	require.Nil(t, batch[1])
}

func TestEventsArePagedAndFiltered(t *testing.T) {
	t.Parallel()
	address, _ := alone(t, 9)
	base := address + fmt.Sprintf("/api/conversations/%032x/events/", 9)
	type page struct {
		Items []struct {
			ID string `json:"id"`
		} `json:"items"`
		Next string `json:"next_page_id"`
	}
	all := func(query url.Values) (ids []string) {
		query.Set("limit", "2")
		for range 10 {
			var one page
			get(t, base+"search?"+query.Encode(), &one)
			for _, item := range one.Items {
				ids = append(ids, item.ID[len(item.ID)-1:])
			}
			if one.Next == "" {
				break
			}
			query.Set("page_id", one.Next)
		}
		return ids
	}
	require.Equal(t, "0 1 2 3 4 5 6 7 8", strings.Join(all(url.Values{}), " "))
	require.Equal(t, "8 7 6 5 4 3 2 1 0", strings.Join(all(url.Values{"sort_order": {"TIMESTAMP_DESC"}}), " "))
	require.Equal(t, "1 3 5 7", strings.Join(all(url.Values{"source": {"agent"}}), " "))
	require.Equal(t, "3", strings.Join(all(url.Values{"body": {"TEXT 3"}}), " "))
	require.Empty(t, all(url.Values{"kind": {"ActionEvent"}}))
	require.Equal(t, "4 5 6 7 8", strings.Join(all(url.Values{"timestamp__gte": {"2026-01-09T12:00:04Z"}}), " "))
	require.Equal(t, "0 1 2 3", strings.Join(all(url.Values{"timestamp__lt": {"2026-01-09T12:00:04Z"}}), " "))
	var n int
	get(t, base+"count?source=agent", &n)
	require.Equal(t, 4, n)
}

func TestStorageAndReclaimOverHTTP(t *testing.T) {
	t.Parallel()
	address, conversations := alone(t, 3)
	cache := filepath.Join(filepath.Dir(conversations), "home/.npm/_cacache")
	for _, name := range []string{"index-v5/x", "content-v2/blob"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(cache, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(cache, name), bytes.Repeat([]byte("x"), 1<<20), 0o600))
	}
	client, err := agentserver.New(agentserver.Options{URL: address, SessionKey: key})
	require.NoError(t, err)
	status, err := client.Storage(t.Context())
	require.NoError(t, err)
	require.Len(t, status.Conversations, 3)
	require.Equal(t, 2, status.Conversations[1].Events)
	require.Equal(t, "running", status.Conversations[0].State)
	require.Positive(t, status.Conversations[0].HistoryBytes)
	require.Positive(t, status.Disk.TotalBytes)
	plan, err := client.Reclaim(t.Context(), box.ReclaimRequest{DryRun: true})
	if box.ClassOf(err) == box.ClassUnsupported {
		t.Skip("this system cannot reclaim: " + err.Error())
	}
	require.NoError(t, err)
	require.Equal(t, status.Reclaimable, plan.PlannedBytes)
	report, err := client.Reclaim(t.Context(), box.ReclaimRequest{PlanID: plan.PlanID})
	require.NoError(t, err)
	require.Equal(t, plan.PlannedBytes, report.RemovedBytes)
	require.NoDirExists(t, cache)
	_, err = client.Reclaim(t.Context(), box.ReclaimRequest{PlanID: strings.Repeat("0", 32)})
	require.Equal(t, box.ClassNotFound, box.ClassOf(err))
	_, err = client.Reclaim(t.Context(), box.ReclaimRequest{Tiers: []box.Tier{"all"}})
	require.Equal(t, box.ClassInvalid, box.ClassOf(err))
	require.ErrorContains(t, err, "tiers")
	_, err = client.Reclaim(t.Context(), box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}})
	require.Equal(t, box.ClassInvalid, box.ClassOf(err))
	require.ErrorContains(t, err, "conversation_ids")
}

func TestBadBodiesNameTheField(t *testing.T) {
	t.Parallel()
	address, _ := alone(t, 0)
	for _, row := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"/api/storage/reclaim", `{"dryrun":true}`, 422, `"dryrun"`},
		{"/api/storage/reclaim", `{"dry_run":"yes"}`, 422, `"dry_run"`},
		{"/api/storage/reclaim", `{"tiers":["caches","x"]}`, 422, `"loc":["body","tiers",1]`},
		{"/api/storage/reclaim", `{"plan_id":"../x"}`, 422, `"plan_id"`},
		{"/api/storage/reclaim", `{} {}`, 422, `"type":"json_invalid"`},
		{"/api/storage/reclaim", ``, 422, `"type":"missing","loc":["body"]`},
		{"/api/storage/reclaim", `[1]`, 422, `array`},
		{"/api/storage/reclaim", ` null `, 422, `"type":"missing","loc":["body"]`},
		{"/api/storage/reclaim", `{"dry_run":null}`, 422, `"dry_run"`},
		{"/api/storage/reclaim", `{"tiers":["runtime"],"conversation_ids":null,"dry_run":true}`, 422, `"conversation_ids"`},
		{"/api/storage/reclaim", `{"plan_id":"` + strings.Repeat("x", 70_000) + `"}`, 413, `larger`},
		{"/api/boxd/drain", `{}`, 422, `"lease_seconds"`},
		{"/api/boxd/drain", `{"lease_seconds":0}`, 422, `"lease_seconds"`},
		{"/api/boxd/drain", `{"lease_seconds":-1}`, 422, `"lease_seconds"`},
		{"/api/boxd/drain", `{"lease_seconds":1e9}`, 422, `"lease_seconds"`},
		{"/api/boxd/drain", `{"lease_seconds":"60"}`, 422, `must be a number`},
		{"/api/boxd/drain", `{"lease_seconds":null}`, 422, `"lease_seconds"`},
	} {
		status, text, _ := ask(t, http.MethodPost, address+row.path, row.body)
		require.Equal(t, row.status, status, "%s %s: %s", row.path, row.body, text)
		require.Contains(t, text, row.says, row.body)
	}
}

func TestTheDigestIsThatOfTheFilesAndNothingElse(t *testing.T) {
	t.Parallel()
	address, conversations := alone(t, 2)
	digest := func() string {
		var use agentserver.Use
		get(t, address+"/api/boxd/use", &use)
		return use.Digest
	}
	id := func(n int) string { return fmt.Sprintf("%032x", n) }
	want := box.HistoryDigest([]box.ConversationMark{{ID: id(1), Events: 1}, {ID: id(2), Events: 2}})
	require.Equal(t, want, digest())
	require.NoError(t, agentservertest.SetStatus(conversations, id(1), "paused"))
	require.NoError(t, os.WriteFile(filepath.Join(conversations, id(1), "events", "event-00009-x.json.tmp"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(conversations, id(1), "events", ".eventlog.lock"), nil, 0o600))
	require.Equal(t, want, digest(), "states, locks and drafts are no history")
	_, err := agentservertest.AppendEvent(conversations, id(1), agentservertest.Event{Text: "new"})
	require.NoError(t, err)
	require.NotEqual(t, want, digest())
}

func TestAHistoryThatCannotBeListedIsAnErrorNotAnEmptyOne(t *testing.T) {
	t.Parallel()
	address, conversations := alone(t, 2)
	require.NoError(t, os.Rename(conversations, conversations+".away"))
	for _, path := range []string{"/api/boxd/use", "/api/storage", "/api/conversations/count", "/api/conversations/search"} {
		status, _, _ := ask(t, http.MethodGet, address+path, "")
		require.Equal(t, http.StatusInternalServerError, status, path)
	}
	require.NoError(t, os.Rename(conversations+".away", conversations))
	events := filepath.Join(conversations, fmt.Sprintf("%032x", 1), "events")
	require.NoError(t, os.Rename(events, events+".away"))
	require.NoError(t, os.Symlink(events+".away", events))
	status, _, _ := ask(t, http.MethodGet, address+"/api/boxd/use", "")
	require.Equal(t, http.StatusInternalServerError, status, "a link in place of the events")
}
