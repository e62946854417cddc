package agentserver_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

const key = "the-session-key-9d3f"

// start runs a fake with these conversations and a client for it.
func start(t *testing.T, opts agentservertest.Options, conversations ...agentservertest.Conversation) (*agentservertest.Server, *agentserver.Client) {
	t.Helper()
	opts.Key = key
	fake, err := agentservertest.Start(opts)
	require.NoError(t, err)
	t.Cleanup(fake.Close)
	for _, c := range conversations {
		_, err := agentservertest.WriteConversation(fake.Conversations(), c)
		require.NoError(t, err)
	}
	return fake, client(t, fake.URL)
}

func client(t *testing.T, url string) *agentserver.Client {
	t.Helper()
	c, err := agentserver.New(agentserver.Options{URL: url, SessionKey: key})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func id(n int) string { return fmt.Sprintf("%032x", n) }

func some(n int) []agentservertest.Conversation {
	out := make([]agentservertest.Conversation, n)
	for i := range out {
		out[i] = agentservertest.Conversation{ID: id(i + 1), Title: fmt.Sprintf("talk %d", i+1)}
		for e := range i % 5 {
			out[i].Events = append(out[i].Events, agentservertest.Event{Text: fmt.Sprintf("hello %d", e)})
		}
	}
	return out
}

func TestConversationsAreListedWithAndWithoutBoxd(t *testing.T) {
	t.Parallel()
	for _, opts := range []agentservertest.Options{{}, {Plain: true}, {BasePath: "/box-1"}, {Plain: true, BasePath: "/a/b"}} {
		_, c := start(t, opts, some(7)...)
		list, err := c.Conversations(t.Context())
		require.NoError(t, err)
		require.Len(t, list, 7)
		for i, conversation := range list {
			require.Equal(t, id(i+1), conversation.ID)
			require.Equal(t, i%5, conversation.Events)
			require.Equal(t, fmt.Sprintf("talk %d", i+1), conversation.Title)
			require.Equal(t, "idle", conversation.Status)
			require.WithinDuration(t, time.Now(), conversation.CreatedAt, time.Minute)
		}
	}
}

func TestManyPagesAreReadToTheEnd(t *testing.T) {
	t.Parallel()
	_, c := start(t, agentservertest.Options{}, some(250)...)
	list, err := c.Conversations(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 250)
	marks := make([]box.ConversationMark, 0, len(list))
	for _, conversation := range list {
		marks = append(marks, conversation.ConversationMark)
	}
	use, err := c.Use(t.Context())
	require.NoError(t, err)
	require.Equal(t, box.HistoryDigest(marks), use.Digest, "both ways of counting agree")
	require.Equal(t, 250, use.Conversations)
	require.Equal(t, 500, use.Events)
}

func TestALyingServerIsNeverBelieved(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		plain  bool
		faults agentservertest.Faults
		class  box.Class
	}{
		"counts one more":           {true, agentservertest.Faults{CountOff: 1}, box.ClassUnknown},
		"counts one less":           {true, agentservertest.Faults{CountOff: -1}, box.ClassUnknown},
		"counts more than the disk": {false, agentservertest.Faults{CountOff: 1}, box.ClassUnknown},
		"counts less than it lists": {false, agentservertest.Faults{CountOff: -1}, box.ClassUnknown},
		"goes round in circles":     {false, agentservertest.Faults{Loop: true}, box.ClassUnknown},
		"counts below zero":         {true, agentservertest.Faults{Miscount: map[string]int{id(3): -9}}, box.ClassUnknown},
		"forgot one that it lists":  {true, agentservertest.Faults{Missing: map[string]bool{id(2): true}}, box.ClassNotFound},
		"is dormant":                {true, agentservertest.Faults{Dormant: true}, box.ClassUnavailable},
		"is a login page":           {false, agentservertest.Faults{Page: true}, box.ClassUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, c := start(t, agentservertest.Options{Plain: row.plain}, some(3)...)
			fake.Break(row.faults)
			list, err := c.Conversations(t.Context())
			require.Equal(t, row.class, box.ClassOf(err), "%v", err)
			require.Nil(t, list)
			fake.Break(agentservertest.Faults{})
			_, err = c.Conversations(t.Context())
			require.NoError(t, err)
		})
	}
}

func TestUseWithAndWithoutBoxd(t *testing.T) {
	t.Parallel()
	fake, c := start(t, agentservertest.Options{}, some(3)...)
	fake.Break(agentservertest.Faults{Idle: 90 * time.Second, Running: 2})
	use, err := c.Use(t.Context())
	require.NoError(t, err)
	require.Equal(t, box.Span(90*time.Second), use.IdleFor)
	require.Equal(t, 2, use.Running)
	require.NotEmpty(t, use.Digest)

	fake, c = start(t, agentservertest.Options{Plain: true}, some(3)...)
	fake.Break(agentservertest.Faults{Idle: 90 * time.Second, Running: 2})
	use, err = c.Use(t.Context())
	require.NoError(t, err)
	require.Equal(t, box.Use{IdleFor: box.Span(90 * time.Second), Running: 2, Conversations: 3}, use, "no digest, no events: nothing was loaded")
	for _, path := range fake.Paths() {
		require.NotContains(t, path, "/events")
	}
}

func TestDrainShutsTheBoxToWorkAndNothingElse(t *testing.T) {
	t.Parallel()
	fake, c := start(t, agentservertest.Options{}, some(2)...)
	send := func() int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fake.URL+"/api/conversations/"+id(1)+"/events", strings.NewReader(`{"role":"user"}`))
		require.NoError(t, err)
		request.Header.Set("X-Session-API-Key", key)
		response, err := http.DefaultTransport.RoundTrip(request)
		require.NoError(t, err)
		response.Body.Close()
		return response.StatusCode
	}
	require.Equal(t, http.StatusOK, send())
	require.NoError(t, c.Drain(t.Context(), time.Minute))
	require.Equal(t, http.StatusServiceUnavailable, send())
	_, err := c.Use(t.Context())
	require.NoError(t, err)
	_, err = c.Storage(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.PrepareForPause(t.Context()))
	require.NoError(t, c.Drain(t.Context(), time.Minute), "renewed")
	require.NoError(t, c.Undrain(t.Context()))
	require.NoError(t, c.Undrain(t.Context()), "open already")
	require.Equal(t, http.StatusOK, send())
	for _, lease := range []time.Duration{0, -time.Second, 2 * time.Hour} {
		require.Equal(t, box.ClassInvalid, box.ClassOf(c.Drain(t.Context(), lease)))
	}
}

func TestWithoutBoxdItsCallsAreUnsupported(t *testing.T) {
	t.Parallel()
	_, c := start(t, agentservertest.Options{Plain: true})
	require.Equal(t, box.ClassUnsupported, box.ClassOf(c.Drain(t.Context(), time.Minute)))
	require.Equal(t, box.ClassUnsupported, box.ClassOf(c.Undrain(t.Context())))
	_, err := c.Storage(t.Context())
	require.Equal(t, box.ClassUnsupported, box.ClassOf(err))
	_, err = c.Reclaim(t.Context(), box.ReclaimRequest{DryRun: true})
	require.Equal(t, box.ClassUnsupported, box.ClassOf(err))
}

func TestTrajectoryIsTheWholeHistory(t *testing.T) {
	t.Parallel()
	_, c := start(t, agentservertest.Options{}, some(5)...)
	body, _, err := c.DownloadTrajectory(t.Context(), agentservertest.Dashed(id(5)))
	require.NoError(t, err)
	defer body.Close()
	content, err := io.ReadAll(body)
	require.NoError(t, err)
	archive, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	require.NoError(t, err)
	events := 0
	for _, file := range archive.File {
		require.True(t, strings.HasPrefix(file.Name, id(5)+"/"))
		if strings.Contains(file.Name, "/events/event-") {
			events++
		}
	}
	require.Equal(t, 4, events)
}

func TestADownloadThatBreaksOffIsAnError(t *testing.T) {
	t.Parallel()
	fake, c := start(t, agentservertest.Options{}, some(3)...)
	fake.Break(agentservertest.Faults{CutZip: map[string]bool{id(3): true}, Missing: map[string]bool{id(2): true}})
	body, _, err := c.DownloadTrajectory(t.Context(), id(3))
	require.NoError(t, err)
	_, err = io.ReadAll(body)
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	require.NoError(t, body.Close())
	_, _, err = c.DownloadTrajectory(t.Context(), id(2))
	require.Equal(t, box.ClassNotFound, box.ClassOf(err))
	_, _, err = c.DownloadTrajectory(t.Context(), "../../etc/passwd")
	require.Equal(t, box.ClassInvalid, box.ClassOf(err))
}

func TestAServerThatNeverAnswersEndsWithTheCaller(t *testing.T) {
	t.Parallel()
	fake, c := start(t, agentservertest.Options{}, some(1)...)
	fake.Break(agentservertest.Faults{HangAfter: -1})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Use(ctx)
	require.Equal(t, box.ClassDeadlineExceeded, box.ClassOf(err))
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	_, _, err = c.DownloadTrajectory(ctx, id(1))
	require.Equal(t, box.ClassCanceled, box.ClassOf(err))
	require.ErrorIs(t, err, context.Canceled)
}

// handler serves one answer to everything.
func handler(t *testing.T, status int, header map[string]string, body string) *agentserver.Client {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for name, value := range header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(web.Close)
	return client(t, web.URL)
}

func TestStatusesBecomeClasses(t *testing.T) {
	t.Parallel()
	for status, class := range map[int]box.Class{
		301: box.ClassUnknown, 302: box.ClassUnknown, 307: box.ClassUnknown,
		400: box.ClassInvalid, 401: box.ClassUnauthorized, 403: box.ClassUnauthorized, 404: box.ClassNotFound,
		405: box.ClassUnsupported, 409: box.ClassConflict, 410: box.ClassFailedPrecondition, 418: box.ClassUnknown,
		422: box.ClassInvalid, 429: box.ClassExhausted, 500: box.ClassUnavailable, 501: box.ClassUnsupported,
		502: box.ClassUnavailable, 503: box.ClassUnavailable, 504: box.ClassUnavailable, 507: box.ClassExhausted,
	} {
		c := handler(t, status, map[string]string{"Retry-After": "7", "Location": "http://127.0.0.1:1/elsewhere"},
			`{"detail":"Internal Server Error","exception":"503: deferred-init state 'dormant'"}`)
		_, err := c.Info(t.Context())
		var said *box.Error
		require.ErrorAs(t, err, &said, "%d", status)
		require.Equal(t, class, said.Class, "%d", status)
		require.Equal(t, 7*time.Second, said.RetryAfter)
		if status >= 400 {
			require.Contains(t, err.Error(), "dormant", "the text is in exception")
		}
	}
}

func TestTheTextOfARefusalIsRead(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"detail":"Conversation already running. Wait."}`:                                     "already running",
		`{"detail":[{"loc":["body","tags",0],"msg":"bad tag","type":"x"}]}`:                    "body.tags.0: bad tag",
		`{"detail":{"code":"StorageLowSpace"}}`:                                                "StorageLowSpace",
		`{"detail":"Internal Server Error","exception":"500: no space left","error_id":"abc"}`: "no space left",
	} {
		_, err := handler(t, http.StatusConflict, nil, body).Info(t.Context())
		require.ErrorContains(t, err, want)
	}
}

func TestWrongContentIsNeverAValue(t *testing.T) {
	t.Parallel()
	ok := `{"uptime":1,"idle_time":1,"version":"1"}`
	for name, row := range map[string]struct {
		header map[string]string
		body   string
	}{
		"a page":              {map[string]string{"Content-Type": "text/html"}, "<html>"},
		"JSON sent as a page": {map[string]string{"Content-Type": "text/html"}, ok},
		"half of the JSON":    {nil, ok[:len(ok)-5]},
		"nothing":             {nil, ""},
		"null":                {nil, "null"},
		"a list":              {nil, "[]"},
		"another service":     {nil, `{"status":"ok"}`},
		"text for a number":   {nil, `{"uptime":"1","idle_time":1}`},
		"endless idle":        {nil, `{"uptime":1,"idle_time":1e300}`},
		"too much":            {nil, `{"uptime":1,"idle_time":1,"version":"` + strings.Repeat("x", 65<<20) + `"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := handler(t, http.StatusOK, row.header, row.body).Info(t.Context())
			require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%v", err)
		})
	}
	_, err := handler(t, http.StatusOK, map[string]string{"Content-Length": "500"}, ok).Info(t.Context())
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	info, err := handler(t, http.StatusOK, nil, `{"uptime":3.9,"idle_time":-5,"version":"2","capabilities":["a",1,null,"b"],"new":{}}`).Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, agentserver.ServerInfo{Version: "2", Uptime: 3900 * time.Millisecond, Capabilities: []string{"a", "b"}}, info)
}

func TestUseRefusesAnAnswerWithHoles(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{}`, `{"idle_seconds":5}`, `{"digest":"x"}`, `{"idle_seconds":5,"digest":"x","running":-1}`, `[]`, `{"idle_seconds":"5","digest":"x"}`,
	} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Path == "/server_info" {
				_, _ = io.WriteString(w, `{"uptime":1,"idle_time":1,"capabilities":["boxd_use_v1"]}`)
				return
			}
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(web.Close)
		_, err := client(t, web.URL).Use(t.Context())
		require.Equal(t, box.ClassUnknown, box.ClassOf(err), body)
	}
}

func TestTheKeyNeverShows(t *testing.T) {
	t.Parallel()
	const token = "provider-token-77aa"
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A server that echoes what it was sent.
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, `{"detail":"x","exception":"headers were %s %s"}`, r.Header.Get("X-Session-Api-Key"), r.Header.Get("Authorization"))
	}))
	t.Cleanup(web.Close)
	c, err := agentserver.New(agentserver.Options{URL: web.URL, SessionKey: key, Header: map[string]box.Secret{"Authorization": "Bearer " + token}})
	require.NoError(t, err)
	_, err = c.Storage(t.Context())
	require.Error(t, err)
	text := fmt.Sprintf("%v %+v %#v", err, err, errors.Unwrap(err))
	require.NotContains(t, text, key)
	require.NotContains(t, text, token)
	require.Contains(t, text, "headers were", "the rest of it is shown")
	for _, bad := range []agentserver.Options{
		{URL: ""},
		{URL: "ftp://x"},
		{URL: "http://"},
		{URL: "http://u:" + key + "@h"},
		{URL: "http://h/?k=" + key},
		{URL: "http://h/%zz" + key},
		{URL: "http://h", SessionKey: "a\r\nX: " + key},
		{URL: "http://h", Header: map[string]box.Secret{"a b": key}},
	} {
		_, err := agentserver.New(bad)
		require.Equal(t, box.ClassInvalid, box.ClassOf(err))
		require.NotContains(t, err.Error(), key)
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{}, 1)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
	t.Cleanup(other.Close)
	web := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	t.Cleanup(web.Close)
	given := &http.Client{Timeout: time.Minute}
	c, err := agentserver.New(agentserver.Options{URL: web.URL, SessionKey: key, HTTP: given})
	require.NoError(t, err)
	err = c.PrepareForPause(t.Context())
	require.Equal(t, box.ClassUnknown, box.ClassOf(err))
	require.Empty(t, reached)
}

func TestPrepareForPauseTakesAnOldServer(t *testing.T) {
	t.Parallel()
	for _, status := range []int{204, 404, 405} {
		require.NoError(t, handler(t, status, nil, `{"detail":"Not Found"}`).PrepareForPause(t.Context()), "%d", status)
	}
	for _, status := range []int{401, 500, 503} {
		require.Error(t, handler(t, status, nil, `{"detail":"x"}`).PrepareForPause(t.Context()), "%d", status)
	}
	require.Error(t, handler(t, http.StatusNotFound, map[string]string{"Content-Type": "text/html"}, "<html>no such box").PrepareForPause(t.Context()),
		"a gateway's page does not say that the server is old")
}

func TestNobodyListening(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	require.Equal(t, box.ClassUnavailable, box.ClassOf(client(t, "http://"+address).Ready(t.Context())))
}

func TestReadyMeansReady(t *testing.T) {
	t.Parallel()
	require.NoError(t, handler(t, 200, nil, `{"status":"ready"}`).Ready(t.Context()))
	require.Equal(t, box.ClassUnavailable, box.ClassOf(handler(t, 200, nil, `{"status":"initializing"}`).Ready(t.Context())))
	require.Equal(t, box.ClassUnavailable, box.ClassOf(handler(t, 503, nil, `{"status":"initializing"}`).Ready(t.Context())))
}

func TestReclaimAnswersForThisRequestOnly(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{}`, `{"plan_id":"a","dry_run":true}`, `{"plan_id":"b","freed_bytes":-1}`, `{"plan_id":"other"}`,
	} {
		_, err := handler(t, 200, nil, body).Reclaim(t.Context(), box.ReclaimRequest{PlanID: "b"})
		require.Equal(t, box.ClassUnknown, box.ClassOf(err), body)
	}
}

func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{`{"uptime":1,"idle_time":2}`, `[]`, `{"items":[{"id":"x"}],"next_page_id":null}`, `5`, ``, `{"disk":{"total_bytes":1},"conversations":[]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := agentserver.New(agentserver.Options{URL: "http://box", SessionKey: key, HTTP: &http.Client{Transport: fixed(body)}})
		require.NoError(t, err)
		for _, call := range []func() error{
			func() error { _, err := c.Use(t.Context()); return err },
			func() error { _, err := c.Storage(t.Context()); return err },
			func() error { _, err := c.Conversations(t.Context()); return err },
		} {
			if err := call(); err != nil {
				require.NotContains(t, err.Error(), key)
				require.NotEmpty(t, box.ClassOf(err))
			}
		}
	})
}

// fixed is a transport that answers everything with one body.
type fixed []byte

func (f fixed) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(f)), ContentLength: int64(len(f)),
	}, nil
}
