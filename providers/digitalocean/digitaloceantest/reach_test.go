package digitaloceantest_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/godo"
	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

// echo is an agent-server that tells who asked, and who it is.
func echo(s digitaloceantest.Session) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s auth=%q key=%q env=%q %s", s.Name, r.Method, r.URL, r.Header.Get("Authorization"),
			r.Header.Get("X-Session-API-Key"), s.Env["OPENHANDS_LLM_API_KEY"], body)
	})
}

type ingressURL struct {
	ID    string `json:"ingress_url_id"`
	Port  int    `json:"port"`
	URL   string `json:"url"`
	State string `json:"state"`
}

// publish asks for the public URL of a session.
func publish(t *testing.T, c *godo.Client, id string) (ingressURL, error) {
	t.Helper()
	req, err := c.NewRequest(t.Context(), http.MethodGet, "/v2/agents/sessions/"+id+"/ingress", nil)
	require.NoError(t, err)
	var out struct {
		URL ingressURL `json:"ingress_url"`
	}
	_, err = c.Do(t.Context(), req, &out)
	return out.URL, err
}

// ask sends one request to an ingress URL.
func ask(t *testing.T, s *digitaloceantest.Server, token, url string) (int, string, error) {
	t.Helper()
	transport := s.Transport()
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("hello"))
	require.NoError(t, err)
	req.Header.Set("X-Session-API-Key", "key")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

func TestIngress(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{
		AgentServer: echo, IngressPolls: 2, PortLag: 20 * time.Second,
		Teams: []digitaloceantest.Team{{}, {Token: "other"}},
	})
	ctx := t.Context()
	token := digitaloceantest.DefaultToken
	ses, err := create(t, c, configure(t, c), "oh-one")
	require.NoError(t, err)
	id := ses.SessionID
	_, err = publish(t, c, id)
	assert.Equal(t, http.StatusConflict, code(err), "not while it boots")
	s.Advance(time.Second)

	for range 2 {
		in, err := publish(t, c, id)
		require.NoError(t, err)
		assert.Equal(t, "INGRESS_URL_STATE_PENDING", in.State)
	}
	in, err := publish(t, c, id)
	require.NoError(t, err)
	assert.Equal(t, "INGRESS_URL_STATE_READY", in.State)
	assert.Equal(t, 8000, in.Port)
	assert.Regexp(t, `^https://[a-z0-9]+\.ric1\.sandbox\.ondigitalocean\.com$`, in.URL)

	got, _, err := ask(t, s, token, in.URL+"/a?b=c")
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadGateway, got, "READY, and nothing listens yet")
	s.Advance(20 * time.Second)
	got, body, err := ask(t, s, token, in.URL+"/a?b=c")
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, got)
	assert.Equal(t, `oh-one POST /a?b=c auth="" key="key" env="sk-very-secret" hello`, body)
	for bad, want := range map[string]int{"": http.StatusUnauthorized, "nobody": http.StatusUnauthorized, "other": http.StatusForbidden} {
		got, _, err := ask(t, s, bad, in.URL)
		require.NoError(t, err)
		assert.Equal(t, want, got, bad)
	}

	require.NoError(t, try(c.HostedAgents.PauseSession(ctx, id)))
	_, err = publish(t, c, id)
	assert.Equal(t, http.StatusConflict, code(err))
	require.NoError(t, try(c.HostedAgents.ResumeSession(ctx, id)))
	again, err := publish(t, c, id)
	require.NoError(t, err)
	assert.NotEqual(t, in.URL, again.URL, "another host after a resume")
	got, _, err = ask(t, s, token, in.URL)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNotFound, got, "which says nothing about the session")

	s.Unsupported(false, true)
	_, err = publish(t, c, id)
	assert.Equal(t, http.StatusNotImplemented, code(err))
	s.Unsupported(false, false)
	s.SetTeam(token, func(t *digitaloceantest.Team) { t.NoIngress = true })
	_, err = publish(t, c, id)
	assert.Equal(t, http.StatusForbidden, code(err))
}

func TestIngressOnALoopbackPort(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{AgentServer: echo, Loopback: true, IngressOnAgentsOnly: true})
	id := running(t, s, c, "oh-one")
	in, err := publish(t, c, id)
	require.NoError(t, err)
	plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func() (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.URL+"/x", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+digitaloceantest.DefaultToken)
		return plain.Do(req)
	}
	resp, err := get()
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
	s.PauseNow("oh-one", "idle")
	resp, err = get() //nolint:bodyclose // there is none
	require.Error(t, err, "a revoked URL refuses: %v", resp)

	req, err := c.NewRequest(t.Context(), http.MethodGet, "/v2/harness-runtime/sessions/"+id+"/ingress", nil)
	require.NoError(t, err)
	_, err = c.Do(t.Context(), req, nil)
	assert.Equal(t, http.StatusNotFound, code(err), "documented below the older prefix alone")
}

func TestTemplateMustBeNamed(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{AgentServer: echo})
	for name, row := range map[string]struct {
		manifest string
		publish  int
	}{
		"bare":  {"name: bare\nagent: openhands", 0},
		"other": {"name: other\nagent: claude-code\ntemplate: openhands", http.StatusNotImplemented},
	} {
		ses, _, err := c.HostedAgents.CreateSessionFromManifest(t.Context(), []byte(row.manifest), nil)
		require.NoError(t, err)
		s.Advance(time.Second)
		in, err := publish(t, c, ses.SessionID)
		require.Equal(t, row.publish, code(err), name)
		if row.publish != 0 {
			continue
		}
		got, _, err := ask(t, s, digitaloceantest.DefaultToken, in.URL)
		require.NoError(t, err)
		assert.Equal(t, http.StatusBadGateway, got, "no template, no agent-server")
	}
}

func TestPauseCutsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{AgentServer: echo})
	id := running(t, s, c, "oh-one")
	in, err := publish(t, c, id)
	require.NoError(t, err)
	transport := s.Transport()
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.URL+"/slow", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+digitaloceantest.DefaultToken)
	resp, err := (&http.Client{Transport: transport}).Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	s.PauseNow("oh-one", "idle")
	_, err = io.ReadAll(resp.Body)
	require.Error(t, err)
}

// dial opens a tunnel.
func dial(t *testing.T, s *digitaloceantest.Server, id, port string) (*websocket.Conn, int, error) {
	t.Helper()
	d := websocket.Dialer{NetDialContext: s.Dial, NetDialTLSContext: s.Dial, TLSClientConfig: &tls.Config{}}
	header := http.Header{"Authorization": {"Bearer " + digitaloceantest.DefaultToken}}
	ws, resp, err := d.DialContext(t.Context(), "wss://api.digitalocean.com/v2/agents/sessions/"+id+"/port-forward/"+port, header)
	status := 0
	if resp != nil {
		status = resp.StatusCode
		_ = resp.Body.Close()
	}
	if ws != nil {
		t.Cleanup(func() { _ = ws.Close() })
	}
	return ws, status, err
}

// closed reads until the tunnel ends, and returns the code.
func closed(t *testing.T, ws *websocket.Conn) int {
	t.Helper()
	_ = ws.SetReadDeadline(time.Now().Add(20 * time.Second)) // where it would hang
	for {
		_, _, err := ws.ReadMessage()
		if err == nil {
			continue
		}
		var end *websocket.CloseError
		require.ErrorAs(t, err, &end)
		return end.Code
	}
}

func TestTunnel(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{AgentServer: echo})
	id := running(t, s, c, "oh-one")

	over := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			ws, _, err := dial(t, s, id, "8000")
			return &tunnelConn{Conn: ws}, err
		},
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://guest/through", nil)
	require.NoError(t, err)
	resp, err := over.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Contains(t, string(body), "oh-one GET /through")

	ws, _, err := dial(t, s, id, "8000")
	require.NoError(t, err)
	require.NoError(t, ws.WriteMessage(websocket.BinaryMessage, []byte("GET / HTTP/1.0\r\n\r\n")))
	_, text, err := ws.ReadMessage()
	require.NoError(t, err)
	assert.Contains(t, string(text), "200 OK")
	assert.Equal(t, websocket.CloseNormalClosure, closed(t, ws), "the guest hung up")

	ws, _, err = dial(t, s, id, "8001")
	require.NoError(t, err)
	assert.Equal(t, digitaloceantest.CloseDial, closed(t, ws))
	s.Inject(digitaloceantest.Fault{Op: digitaloceantest.OpTunnel, Close: digitaloceantest.CloseUpstream})
	ws, _, err = dial(t, s, id, "8000")
	require.NoError(t, err)
	assert.Equal(t, digitaloceantest.CloseUpstream, closed(t, ws))

	ws, _, err = dial(t, s, id, "8000")
	require.NoError(t, err)
	s.PauseNow("oh-one", "idle")
	assert.Equal(t, digitaloceantest.CloseSession, closed(t, ws))
	_, status, err := dial(t, s, id, "8000")
	require.Error(t, err)
	assert.Equal(t, http.StatusConflict, status)
	_, status, err = dial(t, s, "nothing", "8000")
	require.Error(t, err)
	assert.Equal(t, http.StatusNotFound, status)
}

func TestTunnelThatTakesPausedSessions(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{AgentServer: echo, TunnelTakesPaused: true})
	id := running(t, s, c, "oh-one")
	s.PauseNow("oh-one", "idle")
	ws, _, err := dial(t, s, id, "8000")
	require.NoError(t, err)
	assert.Equal(t, digitaloceantest.CloseSession, closed(t, ws))
}

// TestPauseBetweenUpgradeAndDial holds the tunnel up where it asks what listens.
func TestPauseBetweenUpgradeAndDial(t *testing.T) {
	t.Parallel()
	asked, paused := make(chan struct{}), make(chan struct{})
	s, c := begin(t, digitaloceantest.Options{AgentServer: func(ses digitaloceantest.Session) http.Handler {
		close(asked)
		<-paused
		return echo(ses)
	}})
	id := running(t, s, c, "oh-one")
	ws, _, err := dial(t, s, id, "8000")
	require.NoError(t, err)
	<-asked
	s.PauseNow("oh-one", "idle")
	close(paused)
	assert.Equal(t, digitaloceantest.CloseSession, closed(t, ws))
}

// tunnelConn makes a connection of the binary frames of a WebSocket.
type tunnelConn struct {
	*websocket.Conn
	rest io.Reader
}

func (c *tunnelConn) Read(p []byte) (int, error) {
	for {
		if c.rest == nil {
			_, r, err := c.NextReader()
			if err != nil {
				return 0, io.EOF
			}
			c.rest = r
		}
		n, err := c.rest.Read(p)
		if err == io.EOF {
			c.rest, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (c *tunnelConn) Write(p []byte) (int, error) {
	return len(p), c.WriteMessage(websocket.BinaryMessage, p)
}

func (c *tunnelConn) SetDeadline(at time.Time) error {
	_ = c.SetReadDeadline(at)
	return c.SetWriteDeadline(at)
}
