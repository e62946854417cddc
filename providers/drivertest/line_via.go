package drivertest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"testing"
)

// schemeHeader carries the scheme of a request over the line, which is plain.
const schemeHeader = "Suite-Scheme"

// NewLineVia returns a line to a service that the tests reach by a transport of
// its own, such as one that dials a fake whatever host is asked for. The drivers
// of the place get the transport that is returned in its stead.
func NewLineVia(t *testing.T, via http.RoundTripper) (*Line, http.RoundTripper) {
	t.Helper()
	line := NewLine(&httputil.ReverseProxy{
		Transport:     via,
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = r.In.Header.Get(schemeHeader), r.In.Host, r.In.Host
			r.Out.Header.Del(schemeHeader)
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})
	server := httptest.NewServer(line)
	front := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}}
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
	out := r.Clone(r.Context())
	out.Header.Set(schemeHeader, r.URL.Scheme)
	if out.Host == "" {
		out.Host = r.URL.Host
	}
	out.URL.Scheme = "http"
	return c.front.RoundTrip(out)
}
