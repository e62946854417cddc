package digitalocean_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean"
)

const ingressAt = "GET /v2/agents/sessions/sess-1/ingress"

func published(url, state string) string {
	return `{"ingress_url":{"ingress_url_id":"i","session_id":"sess-1","port":8000,"url":"` + url + `","state":"INGRESS_URL_STATE_` + state + `","created_at":"2026-11-13T08:00:00Z"}}`
}

func TestEndpoint(t *testing.T) {
	t.Parallel()
	const good = "https://x1.ric1.sandbox.ondigitalocean.com"
	rows := map[string]struct {
		set   func(s *script)
		class box.Class
		says  string
	}{
		"published":                    {func(s *script) { then(s, "READY"); s.on(ingressAt, 200, published(good+"/", "READY")) }, "", ""},
		"detached":                     {func(s *script) { then(s, "DETACHED"); s.on(ingressAt, 200, published(good, "READY")) }, "", ""},
		"not yet":                      {func(s *script) { then(s, "READY"); s.on(ingressAt, 200, published("", "PENDING")) }, box.ClassUnavailable, "not published"},
		"a new state":                  {func(s *script) { then(s, "READY"); s.on(ingressAt, 200, published(good, "ODD")) }, box.ClassUnavailable, "not published"},
		"starting":                     {func(s *script) { then(s, "PROVISIONING") }, box.ClassUnavailable, "PROVISIONING"},
		"updating":                     {func(s *script) { then(s, "UPDATING") }, box.ClassUnavailable, "UPDATING"},
		"suspended":                    {func(s *script) { then(s, "PAUSED") }, box.ClassFailedPrecondition, "resume"},
		"failed":                       {func(s *script) { then(s, "FAILED") }, box.ClassFailedPrecondition, "FAILED"},
		"gone":                         {func(s *script) { then(s, "DESTROYED") }, box.ClassNotFound, "gone"},
		"suspended just now":           {func(s *script) { then(s, "READY", "PAUSED"); s.on(ingressAt, 409, `{}`) }, box.ClassFailedPrecondition, "resume"},
		"destroyed just now":           {func(s *script) { then(s, "READY", "DESTROYED"); s.on(ingressAt, 409, `{}`) }, box.ClassNotFound, "gone"},
		"refused for no reason":        {func(s *script) { then(s, "READY"); s.on(ingressAt, 409, `{}`) }, box.ClassUnavailable, "409"},
		"an ingress that is not found": {func(s *script) { then(s, "READY"); s.on(ingressAt, 404, `{}`) }, box.ClassUnavailable, "404"},
		"a bad moment":                 {func(s *script) { then(s, "READY"); s.on(ingressAt, 502, `<html>`) }, box.ClassUnavailable, "502"},
		"no answer in it":              {func(s *script) { then(s, "READY"); s.on(ingressAt, 200, `{}`) }, box.ClassUnknown, "names none"},
		"no address in it":             {func(s *script) { then(s, "READY"); s.on(ingressAt, 200, published("/x", "READY")) }, box.ClassUnknown, "no address"},
	}
	for what, row := range rows {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			row.set(s)
			at, err := s.driver(t).Endpoint(t.Context(), refOf("sess-1", "w"))
			require.Equal(t, row.class, box.ClassOf(err), "%v", err)
			if err != nil {
				require.Contains(t, err.Error(), row.says)
				require.Empty(t, at)
				return
			}
			require.Equal(t, good, at.URL)
			require.Equal(t, map[string]box.Secret{"Authorization": "Bearer " + token}, at.Header)
			require.Empty(t, at.SessionKey, "the portable type derives it")
		})
	}
}

// redirected sends what is for DigitalOcean to a script.
type redirected struct{ host string }

func (r redirected) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.URL.Scheme, q.URL.Host = "http", r.host
	return http.DefaultTransport.RoundTrip(q)
}

func TestTheTokenGoesToDigitalOceanOnly(t *testing.T) {
	t.Parallel()
	for address, fine := range map[string]bool{
		"https://x1.ric1.sandbox.ondigitalocean.com":              true,
		"https://X1.RIC1.sandbox.ondigitalocean.com:443":          true,
		"http://x1.ric1.sandbox.ondigitalocean.com":               false,
		"https://x1.ric1.sandbox.ondigitalocean.com.evil.example": false,
		"https://evil.example/.sandbox.ondigitalocean.com":        false,
		"https://u:p@x1.ric1.sandbox.ondigitalocean.com":          false,
		"https://x1.ric1.sandbox.ondigitalocean.com:8443":         false,
		"https://evilsandbox.ondigitalocean.com":                  false,
	} {
		s := newScript(t)
		then(s, "READY")
		s.on(ingressAt, 200, published(address, "READY"))
		d, err := digitalocean.New(installation, digitalocean.Options{Token: token, Transport: redirected{strings.TrimPrefix(s.url, "http://")}})
		require.NoError(t, err)
		at, err := d.Endpoint(t.Context(), refOf("sess-1", "w"))
		if fine {
			require.NoError(t, err, address)
			require.Equal(t, address, at.URL)
			continue
		}
		require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%s: %v", address, err)
		require.Empty(t, at)
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere, s := newScript(t), newScript(t)
	s.add(getAt, answer{status: http.StatusTemporaryRedirect, header: http.Header{"Location": {elsewhere.url + "/v2/account"}}})
	_, err := s.driver(t).Observe(t.Context(), refOf("sess-1", "w"))
	require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%v", err)
	require.Empty(t, elsewhere.requests(), "the token goes along")
}

func TestHostsOfTheRegion(t *testing.T) {
	t.Parallel()
	for region, want := range map[string][]string{
		"":     {"api.digitalocean.com /v2/account", "api.digitalocean.com " + sessionsAt + "/sess-1"},
		"mem1": {"api.digitalocean.com /v2/account", "api-mem1.digitalocean.com " + sessionsAt + "/sess-1"},
	} {
		s := newScript(t)
		then(s, "READY")
		var mu sync.Mutex
		var hosts []string
		d, err := digitalocean.New(installation, digitalocean.Options{Token: token, Region: region, Transport: roundTrip(func(q *http.Request) (*http.Response, error) {
			mu.Lock()
			hosts = append(hosts, q.URL.Host+" "+q.URL.Path)
			mu.Unlock()
			return redirected{strings.TrimPrefix(s.url, "http://")}.RoundTrip(q)
		})})
		require.NoError(t, err)
		ref := refOf("sess-1", "w")
		ref.Fingerprint, err = d.Fingerprint(t.Context())
		require.NoError(t, err)
		_, err = d.Observe(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, want, hosts)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

func TestWhoWaitsForABoxDoesNotUseUpTheRequests(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	then(s, "READY")
	s.on(ingressAt, 200, published("", "PENDING"))
	d := s.driver(t, func(o *digitalocean.Options) { o.PollEvery = time.Hour })
	for range 50 {
		_, err := d.Endpoint(t.Context(), refOf("sess-1", "w"))
		require.Equal(t, box.ClassUnavailable, box.ClassOf(err))
	}
	require.Len(t, s.lines(), 2)
	// What we do to it ourselves is seen at once.
	s.only(getAt, 200, at("PAUSED"))
	_, err := d.Suspend(t.Context(), refOf("sess-1", "w"))
	require.NoError(t, err)
	_, err = d.Endpoint(t.Context(), refOf("sess-1", "w"))
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
}

// forwarded is a service whose sessions have no ingress and a port-forward that
// runs act with what comes.
func forwarded(t *testing.T, act func(ctx context.Context, c *websocket.Conn)) (*script, string) {
	t.Helper()
	s := newScript(t)
	then(s, "READY")
	s.on(ingressAt, 501, `{"error":{"code":501,"message":"not supported"}}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/port-forward/8000") {
			s.ServeHTTP(w, r)
			return
		}
		s.mu.Lock()
		s.came = append(s.came, request{Line: r.Method + " " + r.URL.RequestURI(), Header: r.Header.Clone()})
		s.mu.Unlock()
		if act == nil {
			http.Error(w, `{"error":{"code":409,"message":"session is paused, `+token+`"}}`, http.StatusConflict)
			return
		}
		c, err := new(websocket.Upgrader).Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer c.Close() //nolint:errcheck // it is over
		act(r.Context(), c)
	}))
	t.Cleanup(server.Close)
	return s, server.URL
}

// guest is an agent-server in a sandbox.
func guest(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.URL.Path+" "+string(body))
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func closing(c *websocket.Conn, code int) {
	_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, "reason"), time.Now().Add(time.Second))
	_, _, _ = c.ReadMessage()
}

func pipe(ctx context.Context, c *websocket.Conn, to string) {
	local, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		closing(c, 4002)
		return
	}
	go func() {
		defer local.Close()
		for {
			_, data, err := c.ReadMessage()
			if err != nil {
				return
			}
			_, _ = local.Write(data)
		}
	}()
	buffer := make([]byte, 4096)
	for {
		n, err := local.Read(buffer)
		if n > 0 {
			_ = c.WriteMessage(websocket.BinaryMessage, buffer[:n])
		}
		if err != nil {
			_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Now().Add(time.Second))
			return
		}
	}
}

func fetch(t *testing.T, url, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

func TestWithoutAnIngressThereIsATunnel(t *testing.T) {
	t.Parallel()
	to := guest(t)
	s, url := forwarded(t, func(ctx context.Context, c *websocket.Conn) { pipe(ctx, c, to) })
	d := s.driver(t, func(o *digitalocean.Options) { o.BaseURL = url })
	found, err := d.Endpoint(t.Context(), refOf("sess-1", "w"))
	require.NoError(t, err)
	require.Regexp(t, `^http://127\.0\.0\.1:\d+$`, found.URL)
	require.Empty(t, found.Header, "the token stays here")
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			big := strings.Repeat("x", 200_000)
			status, text := fetch(t, found.URL+"/api/x", big)
			if status != 200 || text != "/api/x "+big {
				t.Errorf("answered %d, %d bytes", status, len(text))
			}
		})
	}
	group.Wait()
	forwards := 0
	for _, r := range s.requests() {
		if r.Line == "GET "+sessionsAt+"/sess-1/port-forward/8000" {
			forwards++
			require.Equal(t, "Bearer "+token, r.Header.Get("Authorization"))
			require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, r.Header.Get("X-Device-Uuid"))
		}
	}
	require.Equal(t, 4, forwards, "one for each connection, and none before somebody connects")
}

// ask sends one request over a connection, which stays open.
func ask(c net.Conn) error {
	if _, err := io.WriteString(c, "POST /api/z HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.ReadAll(response.Body)
	return err
}

func TestATunnelEndsWhenNobodyUsesIt(t *testing.T) {
	t.Parallel()
	to := guest(t)
	s, url := forwarded(t, func(ctx context.Context, c *websocket.Conn) { pipe(ctx, c, to) })
	d := s.driver(t, func(o *digitalocean.Options) { o.BaseURL, o.TunnelIdle = url, 20*time.Millisecond })
	dial := func(address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(address, "http://"))
	}
	var used net.Conn
	address := ""
	require.Eventually(t, func() bool { // it may end before somebody comes
		found, err := d.Endpoint(t.Context(), refOf("sess-1", "w"))
		require.NoError(t, err)
		address = found.URL
		if used, err = dial(address); err != nil {
			return false
		}
		return ask(used) == nil
	}, 20*time.Second, time.Millisecond)
	again, err := d.Endpoint(t.Context(), refOf("sess-1", "w"))
	require.NoError(t, err)
	require.Equal(t, address, again.URL, "one for a session")
	time.Sleep(100 * time.Millisecond) // longer than it is kept unused
	require.NoError(t, ask(used))
	require.NoError(t, used.Close())
	require.Eventually(t, func() bool {
		c, err := dial(address)
		if err == nil {
			c.Close()
		}
		return err != nil
	}, 20*time.Second, 100*time.Millisecond)
	_, err = d.Endpoint(t.Context(), refOf("sess-1", "w")) // another one
	require.NoError(t, err)
}

func TestATunnelSaysWhyItCannot(t *testing.T) {
	t.Parallel()
	ends := func(code int) func(context.Context, *websocket.Conn) {
		return func(_ context.Context, c *websocket.Conn) { closing(c, code) }
	}
	for what, row := range map[string]struct {
		act  func(context.Context, *websocket.Conn)
		says string
	}{
		"4001":    {ends(4001), "4001"},
		"4002":    {ends(4002), "nothing listens"},
		"4011":    {ends(4011), "4011"},
		"refused": {nil, "session is paused"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, url := forwarded(t, row.act)
			d := s.driver(t, func(o *digitalocean.Options) { o.BaseURL = url })
			found, err := d.Endpoint(t.Context(), refOf("sess-1", "w"))
			require.NoError(t, err)
			status, text := fetch(t, found.URL+"/ready", "body")
			require.Equal(t, http.StatusServiceUnavailable, status)
			require.Contains(t, text, row.says)
			require.NotContains(t, text, token)
		})
	}
}
