// Package httpdriver is what every driver of an HTTP service needs and none may
// get wrong: a client that follows no redirect and takes no endless answer, the
// class of a status, the wait that a service asks for, a strict reader of JSON
// answers, and a mask for secrets in them. It knows no provider: what proves an absence, and what a 409
// means, is the driver's to say.
//
// Nothing here keeps or repeats a credential, an address or a body: an error
// names the method, the status and the class alone. It never retries. All of it
// is safe for concurrent use.
package httpdriver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// MaxBody is how many bytes of one answer are read; a longer one is an error.
const MaxBody = 8 << 20

// errTooLong is what reading a body ends with after MaxBody.
var errTooLong = errors.New("the answer is longer than 8 MiB, so it was not read to its end")

// NewClient returns a client over via for one service. It follows no redirect:
// a redirect is an answer that is not the service's, and a follower would carry
// the credential to wherever it points. It reads no more than [MaxBody] of an
// answer, also under an SDK that reads all there is. It has no time-out: give
// each request a context that ends.
func NewClient(via http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     bounded{via},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// bounded ends answers that are too long.
type bounded struct{ via http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.via.RoundTrip(r)
	if err != nil || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, err
	}
	resp.Body = &limited{ReadCloser: resp.Body, left: MaxBody}
	return resp, nil
}

type limited struct {
	io.ReadCloser
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		// One byte more tells an answer of exactly this length from a longer one.
		n, err := l.ReadCloser.Read(make([]byte, 1))
		if n == 0 {
			return 0, err
		}
		return 0, errTooLong
	}
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// Answer is what a service said, read whole.
type Answer struct {
	Method string
	Status int
	Header http.Header
	Body   []byte
}

// Do sends a request once and reads the answer whole. Any status is an answer;
// an error is of class Canceled or DeadlineExceeded when the request's context
// ended, and else Unavailable: of a request that changes something nobody knows
// then whether it was carried out.
func Do(client *http.Client, req *http.Request) (Answer, error) {
	resp, err := client.Do(req) //nolint:gosec // where it goes is the driver's to check, see PathSafe
	if err != nil {
		return Answer{}, Broken(req.Context(), req.Method, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, Broken(req.Context(), req.Method, err)
	}
	return Answer{Method: req.Method, Status: resp.StatusCode, Header: resp.Header, Body: body}, nil
}

// Broken returns the error of a request that got no whole answer. The text of
// err is left out: it holds the address, and with it whatever is in a query.
func Broken(ctx context.Context, method string, err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded):
		return box.Errorf(box.ClassDeadlineExceeded, "%s: no answer in time: %w", method, context.DeadlineExceeded)
	case errors.Is(err, context.Canceled) || ctx.Err() != nil:
		return box.Errorf(box.ClassCanceled, "%s: %w", method, context.Canceled)
	case errors.Is(err, errTooLong):
		return box.Errorf(box.ClassUnavailable, "%s: %w", method, errTooLong)
	}
	return box.Errorf(box.ClassUnavailable, "%s: the connection failed before the whole answer came; try again", method)
}

// OK reports whether the status says that all is well.
func (a Answer) OK() bool { return a.Status >= 200 && a.Status < 300 }

// Decode reads the answer into a struct or a slice. What is not one whole JSON
// value of that shape with a JSON content type is an error of class Unknown:
// something else than the service may have answered. Fields that must be there
// are the caller's to check.
func (a Answer) Decode(into any) error {
	if !a.JSON() {
		return box.Errorf(box.ClassUnknown, "%s: status %d, and the answer is not JSON, so it is not the service's; look at the address and at what is in between", a.Method, a.Status)
	}
	body := bytes.TrimSpace(a.Body)
	if bytes.Equal(body, []byte("null")) || json.Unmarshal(body, into) != nil {
		return box.Errorf(box.ClassUnknown, "%s: status %d, and the answer cannot be read; look again", a.Method, a.Status)
	}
	return nil
}

// JSON reports whether the answer says that it is JSON.
func (a Answer) JSON() bool {
	kind, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	return err == nil && (kind == "application/json" || strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json"))
}

// Err returns the error of a status that is not OK, with its class and the wait
// that the service asks for, and nil for one that is. A 404 is of class Unknown
// here: only the driver knows what its service's own 404 looks like.
func (a Answer) Err() error {
	if a.OK() {
		return nil
	}
	return &box.Error{
		Class:      Class(a.Status),
		Message:    a.Method + ": the service answered " + strconv.Itoa(a.Status),
		RetryAfter: RetryAfter(a.Header, time.Now()),
	}
}

// Class returns the class of a status as long as the driver knows no better.
func Class(status int) box.Class {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return box.ClassInvalid
	case http.StatusUnauthorized, http.StatusForbidden:
		return box.ClassUnauthorized
	case http.StatusPaymentRequired, http.StatusTooManyRequests, http.StatusInsufficientStorage:
		return box.ClassExhausted
	case http.StatusConflict:
		return box.ClassConflict
	case http.StatusPreconditionFailed, http.StatusLocked:
		return box.ClassFailedPrecondition
	case http.StatusNotImplemented:
		return box.ClassUnsupported
	case http.StatusRequestTimeout, http.StatusTooEarly:
		return box.ClassUnavailable
	}
	if status >= 500 {
		return box.ClassUnavailable
	}
	return box.ClassUnknown // 404 and redirects too
}

// RetryAfter returns the wait that an answer asks for, by seconds or by date;
// zero when it names none, or one that is over.
func RetryAfter(header http.Header, now time.Time) time.Duration {
	const most = 24 * time.Hour // a service that asks for more is asked again after this
	text := strings.TrimSpace(header.Get("Retry-After"))
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.Duration(min(max(0, seconds), int64(most/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(0, at.Sub(now)), most)
	}
	return 0
}

// PathSafe reports whether id may stand in a path as it is: letters, digits,
// "-", "_", "." and ":", and not dots alone. Check each id from outside before
// a request is made of it.
func PathSafe(id string) bool {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:", r)
	}
	return id != "" && len(id) <= 256 && strings.Trim(id, ".") != "" && strings.IndexFunc(id, odd) < 0
}

// Masking returns a function that hides secrets in a text of somebody else's, the
// longest first: one may begin another, whose rest would be told. Empty ones are
// left out.
func Masking(secrets []string) func(text string) string {
	secrets = slices.DeleteFunc(slices.Clone(secrets), func(value string) bool { return value == "" })
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return func(text string) string {
		for _, value := range secrets {
			text = strings.ReplaceAll(text, value, "[redacted]")
		}
		return text
	}
}
