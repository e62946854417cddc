package digitaloceantest_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/digitalocean/godo"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"

	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

// manifest is what a box needs at the least: the template has to be named, and
// keep_warm switched off.
const manifest = `name: box
agent: openhands
template: openhands
keep_warm: false
idle_timeout: 10m
secrets:
  OPENHANDS_LLM_API_KEY:
    value: sk-very-secret
`

// bearer adds a token to whatever goes through it.
type bearer struct {
	token string
	inner http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.inner.RoundTrip(r)
}

// start makes a server that ends with the test.
func start(t testing.TB, opts digitaloceantest.Options) *digitaloceantest.Server {
	t.Helper()
	s := digitaloceantest.New(opts)
	t.Cleanup(s.Close)
	return s
}

// client is the vendor's client, as its documentation says to make it, with
// retries off.
func client(t testing.TB, s *digitaloceantest.Server, token, region string) *godo.Client {
	t.Helper()
	transport := s.Transport()
	t.Cleanup(transport.CloseIdleConnections)
	web := &http.Client{Transport: &oauth2.Transport{
		Base: transport, Source: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: token}),
	}}
	c, err := godo.New(web, godo.SetBaseURL(godo.HostedAgentsRegionalBaseURL(region)), godo.SetUserAgent("test/1"))
	require.NoError(t, err)
	return c
}

// begin is a server and a client of its only team.
func begin(t testing.TB, opts digitaloceantest.Options) (*digitaloceantest.Server, *godo.Client) {
	t.Helper()
	s := start(t, opts)
	return s, client(t, s, digitaloceantest.DefaultToken, "")
}

// configure makes a configuration from the smallest manifest.
func configure(t testing.TB, c *godo.Client) string {
	t.Helper()
	cfg, _, err := c.HostedAgents.CreateEnvironment(t.Context(), &godo.HostedEnvironmentCreateRequest{Name: "box", ManifestYAML: manifest})
	require.NoError(t, err)
	return cfg.ID
}

// create asks for a session.
func create(t testing.TB, c *godo.Client, config, name string) (*godo.HostedAgentSession, error) {
	t.Helper()
	ses, _, err := c.HostedAgents.CreateSessionFromEnvironment(t.Context(), &godo.HostedAgentSessionFromEnvironmentRequest{
		Name: name, ConfigID: config,
	})
	return ses, err
}

// running makes a session and waits until it is READY.
func running(t testing.TB, s *digitaloceantest.Server, c *godo.Client, name string) string {
	t.Helper()
	ses, err := create(t, c, configure(t, c), name)
	require.NoError(t, err)
	s.Advance(time.Second)
	require.Equal(t, "SESSION_STATUS_READY", status(t, c, ses.SessionID))
	return ses.SessionID
}

// status reads one session.
func status(t testing.TB, c *godo.Client, id string) string {
	t.Helper()
	ses, _, err := c.HostedAgents.GetSession(t.Context(), id)
	require.NoError(t, err)
	return string(ses.Status)
}

// code is the HTTP status of an error, zero if there was no answer.
func code(err error) int {
	if answer, ok := errors.AsType[*godo.ErrorResponse](err); ok {
		return answer.Response.StatusCode
	}
	return 0
}

// message is the text of an error in either envelope.
func message(err error) string {
	answer, ok := errors.AsType[*godo.ErrorResponse](err)
	switch {
	case !ok:
		return ""
	case answer.NestedError != nil:
		return answer.NestedError.Message
	}
	return answer.Message
}
