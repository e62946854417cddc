package runtimeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/driver/httpdriver"
)

// Public clients allow 60 to 180 s for a call and 180 to 300 s for a start; a
// pause was seen to take 4 minutes [voice-relay issue 360, 29 May 2026].
const (
	readWithin   = 60 * time.Second
	changeWithin = 300 * time.Second
)

// client sends single requests and never repeats one. Go's own transport may
// send a GET again whose connection was closed before the first byte of an
// answer; never a POST.
type client struct {
	base *url.URL
	key  box.Secret
	http *http.Client
}

func newClient(base *url.URL, o Options) *client {
	via := o.Transport
	if via == nil {
		via = &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second,
			IdleConnTimeout:     90 * time.Second,
			MaxIdleConnsPerHost: 8,
			ForceAttemptHTTP2:   true,
		}
	}
	return &client{base: base, key: o.APIKey, http: httpdriver.NewClient(via)}
}

// reply is one answer. Its Method holds the path too, for errors.
type reply struct {
	httpdriver.Answer
	mask func(string) string
}

// get reads path.
func (c *client) get(ctx context.Context, path string) (*reply, error) {
	return c.send(ctx, http.MethodGet, path, nil, readWithin, nil)
}

// post sends a change, unless ctx is over: a caller that stood still learns of
// that only by asking. secrets are values in body that no error may repeat.
func (c *client) post(ctx context.Context, path string, body any, secrets []string) (*reply, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "write the request to %s: it cannot be written as JSON", path)
	}
	if err := driver.Ended(ctx); err != nil {
		return nil, err
	}
	return c.send(ctx, http.MethodPost, path, text, changeWithin, secrets)
}

func (c *client) send(ctx context.Context, method, path string, body []byte, within time.Duration, secrets []string) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base.JoinPath(path).String(), bytes.NewReader(body))
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "%s %s: it is no address", method, path)
	}
	req.Header.Set("X-API-Key", c.key.Reveal())
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	answer, err := httpdriver.Do(c.http, req)
	if err != nil {
		return nil, box.Errorf(box.ClassOf(err), "%s: %w", path, err)
	}
	answer.Method += " " + path
	return &reply{answer, httpdriver.Masking(append(secrets, c.key.Reveal()))}, nil
}

// said is the service's own word for a refusal: {"error": …} or {"detail": …}.
func (r *reply) said() string {
	var body struct {
		Error  any `json:"error"`
		Detail any `json:"detail"`
	}
	if r.Decode(&body) != nil {
		return ""
	}
	for _, field := range []any{body.Error, body.Detail} {
		if text, ok := field.(string); ok && text != "" {
			return text
		}
	}
	return ""
}

// absent reports whether the answer is the service's own 404. A 404 of another
// kind is no proof: a gateway says HTML, and a router that does not know the
// path says {"detail":"Not Found"}, as under a wrong base address.
func (r *reply) absent() bool {
	said := r.said()
	return r.Status == http.StatusNotFound && said != "" && !strings.EqualFold(strings.TrimRight(said, ". "), "not found")
}

// read reads the JSON of a success.
func (r *reply) read(into any) error {
	if !r.OK() {
		return r.refusal()
	}
	return r.Decode(into)
}

// done checks the answer to a change whose body is not needed.
func (r *reply) done() error {
	if r.OK() && len(bytes.TrimSpace(r.Body)) == 0 {
		return nil
	}
	var any json.RawMessage
	return r.read(&any)
}

// refused reports whether the service has certainly not done what was asked.
func (r *reply) refused() bool {
	return r.Status >= 400 && r.Status < 500 && r.Status != http.StatusRequestTimeout
}

// refusal is the error for an answer that is no success.
func (r *reply) refusal() error {
	message := r.Method + ": " + strconv.Itoa(r.Status) + " " + http.StatusText(r.Status)
	if said := clean(r.mask(r.said())); said != "" {
		message += " (" + said + ")"
	}
	return &box.Error{Class: httpdriver.Class(r.Status), Message: message + ": " + r.next(), RetryAfter: httpdriver.RetryAfter(r.Header, r.date())}
}

// next is what to do about a refusal.
func (r *reply) next() string {
	switch r.Status {
	case http.StatusPaymentRequired:
		return "the account has no money left"
	case http.StatusNotFound:
		return "this 404 is not the service's word for an absent box; look whether the address is that of a runtime-api"
	}
	switch httpdriver.Class(r.Status) {
	case box.ClassUnauthorized:
		return "look whether the API key is right and the account may do this"
	case box.ClassExhausted:
		return "too many requests, or a limit; try again later"
	case box.ClassConflict:
		return "another change is under way, or the box is archived"
	case box.ClassFailedPrecondition:
		return "the state of the box forbids it"
	case box.ClassInvalid:
		return "the service refuses the request; of a start, look at image, command, resource_factor and runtime_class"
	case box.ClassUnsupported:
		return "this install cannot do it; look whether it is a runtime-api, and how old"
	case box.ClassUnavailable:
		return "try again later"
	case box.ClassUnknown, box.ClassNotFound, box.ClassAlreadyExists, box.ClassCanceled, box.ClassDeadlineExceeded, box.ClassInternal:
	}
	if r.Status >= 300 && r.Status < 400 {
		return "it redirects, which is never followed with the key; look whether the address is that of a runtime-api and not of a login page"
	}
	return "look again"
}

// date is when the service answered, by its own clock if it says so: a wait that
// is a date is by that clock.
func (r *reply) date() time.Time {
	if at, err := http.ParseTime(r.Header.Get("Date")); err == nil {
		return at
	}
	return time.Now()
}

// clean makes what somebody else wrote fit for one line of a history.
func clean(text string) string { return box.OneLine(text, 160) }
