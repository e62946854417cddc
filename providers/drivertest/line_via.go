package drivertest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// NewLineVia returns a line to a service that the tests reach by a transport of
// its own, whatever host is asked for: the drivers of the place get the transport
// that is returned. What is https for them is plain on the way.
func NewLineVia(t *testing.T, service http.Handler) (*Line, http.RoundTripper) {
	t.Helper()
	line := NewLine(service)
	server := httptest.NewServer(line)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}
	front := &http.Transport{DialContext: dial, DialTLSContext: dial}
	away := &http.Transport{}
	t.Cleanup(func() {
		front.CloseIdleConnections()
		away.CloseIdleConnections()
		server.Close()
	})
	return line, &carrier{line, front, away}
}

// carrier brings requests to the line, whatever their host is, except those to
// the server that a redirect of the suite leads to.
type carrier struct {
	line        *Line
	front, away http.RoundTripper
}

func (c *carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.line.leads(r.URL.Host) {
		return c.away.RoundTrip(r)
	}
	return c.front.RoundTrip(r)
}
