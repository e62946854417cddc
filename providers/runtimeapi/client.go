package runtimeapi

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
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/openhands/boxkeeper/box"
)

const (
	// Public clients allow 60 to 180 s for a call and 180 to 300 s for a start; a
	// pause was seen to take 4 minutes [voice-relay issue 360, 29 May 2026].
	readWithin   = 60 * time.Second
	changeWithin = 300 * time.Second
	// maxAnswer bounds what is read; /list holds every box of the account, and a
	// session the log of its pod.
	maxAnswer = 32 << 20
	// maxRetryAfter bounds what a wait that the service asks for can be.
	maxRetryAfter = time.Hour
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
	transport := o.Transport
	if transport == nil {
		transport = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: changeWithin,
			IdleConnTimeout:       90 * time.Second,
			MaxIdleConnsPerHost:   8,
			ForceAttemptHTTP2:     true,
		}
	}
	return &client{base: base, key: o.APIKey, http: &http.Client{
		Transport:     transport,
		Timeout:       changeWithin,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// reply is one answer, read to its end.
type reply struct {
	what   string // method and path, for errors
	status int
	header http.Header
	body   []byte
	mask   func(string) string
}

// get reads path.
func (c *client) get(ctx context.Context, path string) (*reply, error) {
	return c.send(ctx, http.MethodGet, path, nil, readWithin, nil)
}

// post sends body. secrets are values in it that no error may repeat.
func (c *client) post(ctx context.Context, path string, body any, secrets []string) (*reply, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "write the request to %s: it cannot be written as JSON", path)
	}
	return c.send(ctx, http.MethodPost, path, text, changeWithin, secrets)
}

func (c *client) send(ctx context.Context, method, path string, body []byte, within time.Duration, secrets []string) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	what := method + " " + path
	req, err := http.NewRequestWithContext(ctx, method, c.base.JoinPath(path).String(), bytes.NewReader(body))
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "%s: it is no address", what)
	}
	req.Header.Set("X-API-Key", c.key.Reveal())
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, broken(what, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, broken(what, err)
	}
	if len(text) > maxAnswer {
		return nil, box.Errorf(box.ClassUnknown, "%s: the answer is longer than %d MiB", what, maxAnswer>>20)
	}
	secrets = append([]string{c.key.Reveal()}, secrets...)
	mask := func(in string) string {
		for _, value := range secrets {
			if value != "" {
				in = strings.ReplaceAll(in, value, "[redacted]")
			}
		}
		return in
	}
	return &reply{what: what, status: resp.StatusCode, header: resp.Header, body: text, mask: mask}, nil
}

// broken is a request without a whole answer: its outcome is not known.
func broken(what string, err error) error {
	class := box.ClassUnavailable
	var netErr net.Error
	switch {
	case errors.Is(err, context.Canceled):
		class = box.ClassCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		class = box.ClassDeadlineExceeded
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // its text repeats the method and the address
	}
	return box.Errorf(class, "%s: %w", what, err)
}

func (r *reply) ok() bool { return r.status >= 200 && r.status < 300 }

// isJSON reports whether the answer says that it is JSON: a gateway and a login
// page say HTML.
func (r *reply) isJSON() bool {
	kind, _, err := mime.ParseMediaType(r.header.Get("Content-Type"))
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json"))
}

// said is the service's own word for a refusal: {"error": …} or {"detail": …}.
func (r *reply) said() string {
	var body struct {
		Error  any `json:"error"`
		Detail any `json:"detail"`
	}
	if !r.isJSON() || json.Unmarshal(r.body, &body) != nil {
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
	return r.status == http.StatusNotFound && said != "" && !strings.EqualFold(strings.TrimRight(said, ". "), "not found")
}

// decode reads the JSON of a success.
func (r *reply) decode(out any) error {
	if !r.ok() {
		return r.refusal()
	}
	if !r.isJSON() {
		return box.Errorf(box.ClassUnknown, "%s: the answer is %q and not JSON; look whether the address is that of a runtime-api", r.what, clean(r.header.Get("Content-Type")))
	}
	if err := json.Unmarshal(r.body, out); err != nil {
		// The text of the error may repeat a part of the answer, which holds keys.
		return box.Errorf(box.ClassUnknown, "%s: the answer is not the JSON that is known; look again", r.what)
	}
	return nil
}

// done checks the answer to a change whose body is not needed.
func (r *reply) done() error {
	if r.ok() && len(bytes.TrimSpace(r.body)) == 0 {
		return nil
	}
	var any json.RawMessage
	return r.decode(&any)
}

// refused reports whether the service has certainly not done what was asked.
func (r *reply) refused() bool {
	return r.status >= 400 && r.status < 500 && r.status != http.StatusRequestTimeout
}

// unsettled returns err for a call of which a change was carried out, or may
// have been: a class that tells the caller that nothing was done becomes
// Unavailable, so that it looks again.
func unsettled(err error) error {
	switch box.ClassOf(err) {
	case box.ClassUnauthorized, box.ClassFailedPrecondition, box.ClassInvalid, box.ClassUnsupported, box.ClassAlreadyExists:
		_, wait := classOf(err)
		return &box.Error{Class: box.ClassUnavailable, RetryAfter: wait, Message: "it may be done, and the look afterwards failed; look again: " + err.Error()}
	case "", box.ClassUnknown, box.ClassNotFound, box.ClassConflict, box.ClassExhausted, box.ClassUnavailable, box.ClassCanceled, box.ClassDeadlineExceeded, box.ClassInternal:
	}
	return err
}

// classOf reads the class and the wait of an error of this driver.
func classOf(err error) (box.Class, time.Duration) {
	if e, ok := errors.AsType[*box.Error](err); ok {
		return e.Class, e.RetryAfter
	}
	return box.ClassUnknown, 0
}

// refusal is the error for an answer that is no success.
func (r *reply) refusal() error {
	class, next := box.ClassUnknown, "look again"
	switch {
	case r.status >= 300 && r.status < 400:
		next = "it redirects, which is never followed with the key; look whether the address is that of a runtime-api and not of a login page"
	case r.status == http.StatusUnauthorized, r.status == http.StatusForbidden:
		class, next = box.ClassUnauthorized, "look whether the API key is right and the account may do this"
	case r.status == http.StatusPaymentRequired:
		class, next = box.ClassExhausted, "the account has no money left"
	case r.status == http.StatusTooManyRequests:
		class, next = box.ClassExhausted, "too many requests; try again later"
	case r.status == http.StatusConflict, r.status == http.StatusLocked:
		class, next = box.ClassConflict, "another change is under way, or the box is archived"
	case r.status == http.StatusPreconditionFailed:
		class, next = box.ClassFailedPrecondition, "the state of the box forbids it"
	case r.status == http.StatusBadRequest, r.status == http.StatusUnprocessableEntity, r.status == http.StatusRequestEntityTooLarge:
		class, next = box.ClassInvalid, "the service refuses the request; of a start, look at image, command, resource_factor and runtime_class"
	case r.status == http.StatusNotFound:
		next = "this 404 is not the service's word for an absent box; look whether the address is that of a runtime-api"
	case r.status == http.StatusRequestTimeout, r.status == http.StatusTooEarly, r.status >= 500:
		class, next = box.ClassUnavailable, "try again later"
	}
	message := r.what + ": " + strconv.Itoa(r.status) + " " + http.StatusText(r.status)
	if said := clean(r.mask(r.said())); said != "" {
		message += " (" + said + ")"
	}
	return &box.Error{Class: class, Message: message + ": " + next, RetryAfter: r.retryAfter()}
}

// retryAfter is the wait that the service asks for, as seconds or as a date by
// its own clock.
func (r *reply) retryAfter() time.Duration {
	text := r.header.Get("Retry-After")
	wait := time.Duration(0)
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if until, err := http.ParseTime(text); err == nil {
		if now, err := http.ParseTime(r.header.Get("Date")); err == nil {
			wait = until.Sub(now)
		}
	}
	return min(max(wait, 0), maxRetryAfter)
}

// clean makes what somebody else wrote fit for one line of a history.
func clean(text string) string {
	const most = 160
	text = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	return text
}
