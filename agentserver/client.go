package agentserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

const (
	quickCall = 30 * time.Second // a control read or a small command
	slowCall  = 10 * time.Minute // a pass over the disk, or ending every run
	quietBody = 2 * time.Minute  // longest silence inside a download

	maxAnswer = 64 << 20 // one document; a page of 100 conversations is far below
	maxError  = 64 << 10 // of a failure only the beginning matters
)

// Options says where an agent-server is and how to be let in.
type Options struct {
	// URL is the base, such as "http://127.0.0.1:8000"; it may carry a path
	// prefix.
	URL string
	// SessionKey goes into X-Session-API-Key; empty for an open server.
	SessionKey box.Secret
	// Header holds further headers, such as a provider's own token.
	Header map[string]box.Secret
	// HTTP is used for its transport; nil means one of our own, closed with the
	// client. Redirects are refused whatever it says.
	HTTP *http.Client
}

// Client talks to one agent-server. It is safe for concurrent use.
type Client struct {
	base   *url.URL
	key    box.Secret
	header map[string]box.Secret
	http   *http.Client
	own    *http.Transport // nil when the caller brought a client
}

// New returns a client. It opens no connection. An unusable address is a
// ClassInvalid error that names the field.
func New(opts Options) (*Client, error) {
	base, err := url.Parse(opts.URL)
	switch {
	case err != nil:
		// The text of a parse error repeats the address, which may hold a secret.
		return nil, box.Invalidf("url", "is not an address; write it like http://127.0.0.1:8000")
	case base.Scheme != "http" && base.Scheme != "https", base.Host == "":
		return nil, box.Invalidf("url", "must begin with http:// or https:// and name a host")
	case base.User != nil, base.RawQuery != "", base.Fragment != "":
		return nil, box.Invalidf("url", "must hold no user, query or fragment; keys go into the session key or a header")
	}
	base.Path = strings.TrimRight(base.Path, "/")
	base.RawPath = strings.TrimRight(base.RawPath, "/")
	for name, value := range opts.Header {
		if !validHeader(name, value.Reveal()) {
			return nil, box.Invalidf("header."+name, "is not a usable header; use letters, digits and \"-\", and a value without line breaks")
		}
	}
	if !validHeader(keyHeader, opts.SessionKey.Reveal()) {
		return nil, box.Invalidf("session_key", "holds a line break or another character that no header may carry")
	}
	c := &Client{base: base, key: opts.SessionKey, header: opts.Header}
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if opts.HTTP != nil {
		given := *opts.HTTP
		given.CheckRedirect = refuse
		given.Timeout = 0 // each call has its own; a download may last longer
		given.Jar = nil
		c.http = &given
		return c, nil
	}
	c.own = &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: slowCall,
		ExpectContinueTimeout: time.Second,
		// A box that was suspended in between leaves dead connections behind,
		// and a kept one can look like a user at some providers.
		DisableKeepAlives:  true,
		DisableCompression: true,
		ForceAttemptHTTP2:  true,
	}
	c.http = &http.Client{Transport: c.own, CheckRedirect: refuse}
	return c, nil
}

// Close lets go of idle connections. Calls under way are not cut.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

const keyHeader = "X-Session-API-Key"

func validHeader(name, value string) bool {
	for _, r := range name {
		if !strings.ContainsRune("!#$%&'*+-.^_`|~", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
			return false
		}
	}
	for i := range len(value) {
		if value[i] < ' ' && value[i] != '\t' || value[i] == 0x7f {
			return false
		}
	}
	return name != ""
}

// call is one request.
type call struct {
	method string
	path   string // below the base, escaped where needed
	query  url.Values
	body   any // JSON when not nil
	// raw is sent as it is instead of body; rawSize is its length, rawKind what it
	// is.
	raw     io.Reader
	rawSize int64
	rawKind string
	bound   time.Duration
	open    bool // send no key: the path needs none
}

// send carries out one call and returns an answer whose status is 2xx; the
// caller closes its body, which also releases the time limit.
func (c *Client) send(ctx context.Context, what call) (*http.Response, error) {
	target := *c.base
	target.Path += what.path
	if target.RawPath != "" {
		target.RawPath += what.path
	}
	target.RawQuery = what.query.Encode()
	var body io.Reader
	if what.body != nil {
		text, err := json.Marshal(what.body)
		if err != nil {
			return nil, box.Errorf(box.ClassInternal, "encode %s %s: %w", what.method, what.path, err)
		}
		body = bytes.NewReader(text)
	}
	kind := "application/json"
	if what.raw != nil {
		body, kind = what.raw, what.rawKind
	}
	request, err := http.NewRequestWithContext(ctx, what.method, target.String(), body)
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "build %s %s", what.method, what.path)
	}
	for name, value := range c.header {
		request.Header.Set(name, value.Reveal())
	}
	if c.key != "" && !what.open {
		request.Header.Set(keyHeader, c.key.Reveal())
	}
	if body != nil {
		request.Header.Set("Content-Type", kind)
	}
	if what.raw != nil {
		request.ContentLength = what.rawSize
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.transportError(ctx, what, err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		defer response.Body.Close()
		return nil, c.statusError(what, response)
	}
	return response, nil
}

// do carries out one call within its bound and decodes a JSON answer into out;
// nil out wants none.
func (c *Client) do(ctx context.Context, what call, out any) error {
	inner, cancel := context.WithTimeoutCause(ctx, what.bound, errBound)
	defer cancel()
	response, err := c.send(inner, what)
	if err != nil {
		return c.outer(ctx, inner, what, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return c.outer(ctx, inner, what, c.transportError(inner, what, err))
	case len(text) > maxAnswer:
		return box.Errorf(box.ClassUnknown, "%s %s answered more than %d bytes; it was not read", what.method, what.path, maxAnswer)
	case out == nil:
		return nil
	}
	if kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || !strings.HasSuffix(kind, "json") {
		return box.Errorf(box.ClassUnknown, "%s %s answered %q instead of JSON; is this the address of an agent-server?", what.method, what.path, box.OneLine(response.Header.Get("Content-Type"), 60))
	}
	if err := json.Unmarshal(text, out); err != nil {
		return box.Errorf(box.ClassUnknown, "%s %s answered JSON that does not fit (%s)", what.method, what.path, jsonFault(err))
	}
	return nil
}

var errBound = errors.New("no answer in time")

// outer tells the caller's own end of patience apart from ours.
func (c *Client) outer(ctx, inner context.Context, what call, err error) error {
	if ctx.Err() == nil && inner.Err() != nil {
		return box.Errorf(box.ClassDeadlineExceeded, "%s %s: no answer within %s: %w", what.method, what.path, what.bound, context.DeadlineExceeded)
	}
	return err
}

// jsonFault describes a decoding error without repeating content.
func jsonFault(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return "field " + box.OneLine(wrong.Field, 80) + " is a " + wrong.Value
	}
	return "it is cut off or malformed"
}
