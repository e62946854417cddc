package digitalocean

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/digitalocean/godo"

	"github.com/openhands/boxkeeper/box"
)

const (
	// mostSaid bounds what is repeated of the service's words, in bytes.
	mostSaid = 300
	// balanceWait is when a call is worth repeating that the balance stopped: a
	// person has to pay first.
	balanceWait = 5 * time.Minute
	// quotaWait is the same for the limit of sessions.
	quotaWait = time.Minute
)

// refused is an answer of the service that is no success, in the chain of the
// error that it became.
type refused struct {
	status    int
	said      string
	requestID string
	next      string // what to do about it
}

// Error returns what the service said and what to do next.
func (r *refused) Error() string {
	text := "without a word"
	if r.said != "" {
		text = strconv.Quote(r.said)
	}
	if r.requestID != "" {
		text += " (request " + r.requestID + ")"
	}
	if r.next != "" {
		text += "; " + r.next
	}
	return text
}

// statusOf returns the HTTP status behind an error, 0 when no answer came.
func statusOf(err error) int {
	if r, ok := errors.AsType[*refused](err); ok {
		return r.status
	}
	return 0
}

// unclear reports whether the work of a call may have been done although it
// failed.
func unclear(err error) bool {
	status := statusOf(err)
	return err != nil && (status == 0 || status >= http.StatusInternalServerError && status != http.StatusNotImplemented)
}

// failure maps what came of one request; outer is the caller's context, which
// has no deadline of the call's own. Hide are values that the service may repeat
// out of the request.
func (a *api) failure(outer context.Context, what string, err error, hide ...string) error {
	if over := ended(outer); over != nil {
		return box.Errorf(box.ClassOf(over), "%s: %w", what, outer.Err())
	}
	answer, ok := errors.AsType[*godo.ErrorResponse](err)
	if !ok {
		return a.broken(what, err, hide)
	}
	r := &refused{status: answer.Response.StatusCode, said: a.said(answer, hide), requestID: a.clean(answer.RequestID, nil)}
	class, next := classOf(r)
	r.next = next
	wait := retryAfter(answer.Response.Header, time.Now())
	switch {
	case wait > 0:
	case isQuota(r):
		wait = quotaWait
	case isBalance(r):
		wait = balanceWait
	}
	return &box.Error{Class: class, Message: what + ": DigitalOcean answers " + strconv.Itoa(r.status), RetryAfter: wait, Err: r}
}

// broken is a request without an answer that can be read.
func (a *api) broken(what string, err error, hide []string) error {
	if netErr, ok := errors.AsType[*url.Error](err); ok {
		err = netErr.Err // without the address: a page token may be in it
		if errors.Is(err, context.DeadlineExceeded) {
			return box.Errorf(box.ClassDeadlineExceeded, "%s: no answer in time, so the outcome is unknown; look again", what)
		}
		return box.Errorf(box.ClassUnavailable, "%s: %s; try again", what, a.clean(err.Error(), hide))
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return box.Errorf(box.ClassDeadlineExceeded, "%s: the answer broke off, so the outcome is unknown; look again", what)
	}
	return box.Errorf(box.ClassUnknown, "%s: the answer cannot be read (%s); look again", what, a.clean(err.Error(), hide))
}

// classOf says what an answer means where the call does not know better, and
// what to do about it.
func classOf(r *refused) (class box.Class, next string) {
	switch r.status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return box.ClassInvalid, "change what it names"
	case http.StatusUnauthorized:
		return box.ClassUnauthorized, "give the instance a token that is valid"
	case http.StatusPaymentRequired:
		return box.ClassExhausted, "add to the prepaid balance of the team"
	case http.StatusForbidden:
		if isBalance(r) {
			return box.ClassExhausted, "add to the prepaid balance of the team"
		}
		return box.ClassUnauthorized, "the token lacks a scope, is of another team, or the team lacks the feature"
	case http.StatusNotFound:
		// Never NotFound by itself: that needs a proof, and a page of some proxy is a
		// 404 too.
		return box.ClassUnknown, "look again"
	case http.StatusConflict:
		switch {
		case isQuota(r):
			return box.ClassExhausted, "suspended boxes count: delete one, or ask DigitalOcean for a higher limit"
		case isBalance(r):
			return box.ClassExhausted, "add to the prepaid balance of the team"
		}
		return box.ClassUnavailable, "look again"
	case http.StatusLocked:
		return box.ClassFailedPrecondition, "DigitalOcean's staff has locked it: ask their support"
	case http.StatusTooManyRequests:
		return box.ClassExhausted, "the token has 250 requests a minute for everything it does"
	case http.StatusNotImplemented:
		return box.ClassUnsupported, "this sandbox cannot do it"
	}
	if r.status >= http.StatusInternalServerError {
		return box.ClassUnavailable, "try again"
	}
	return box.ClassUnknown, "look again"
}

// isQuota reports whether a 409 is about the number of sessions: the only thing
// that tells it from a name that is taken is its text [doctl, Aug 2026].
func isQuota(r *refused) bool {
	said := strings.ToLower(r.said)
	return r.status == http.StatusConflict && strings.Contains(said, "limit of") && strings.Contains(said, "active session")
}

// isBalance reports whether the team has no money left. Which status says so is
// not known [29 Nov 2026]: 402 by one report, 403 by another.
func isBalance(r *refused) bool {
	if r.status == http.StatusPaymentRequired {
		return true
	}
	said := strings.ToLower(r.said)
	return (r.status == http.StatusForbidden || r.status == http.StatusConflict) &&
		(strings.Contains(said, "balance") || strings.Contains(said, "prepaid") || strings.Contains(said, "prepayment") || strings.Contains(said, "insufficient funds"))
}

// retryAfter reads what the service asks to wait, in seconds or as a date. What
// cannot be read, is over, or is below zero is no wait; box bounds a long one.
func retryAfter(header http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if text == "" {
		return 0
	}
	const most = 24 * time.Hour
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
		if seconds > int64(most/time.Second) {
			return most
		}
		return max(0, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(most, max(0, at.Sub(now)))
	}
	return 0
}

// said is what the service says, in one line and without our token. Its two
// kinds of envelope carry it in two places, and a proxy answers with a page.
func (a *api) said(answer *godo.ErrorResponse, hide []string) string {
	text := answer.Message
	if answer.NestedError != nil && answer.NestedError.Message != "" {
		text = answer.NestedError.Message // Message may be the raw body then
	}
	if strings.HasPrefix(strings.TrimSpace(text), "<") {
		return "a page in place of an answer"
	}
	return a.clean(text, hide)
}

// clean bounds a text, keeps it in one line, and masks the token and what is to
// be hidden.
func (a *api) clean(text string, hide []string) string {
	for _, value := range append([]string{a.token.Reveal()}, hide...) {
		if value != "" {
			text = strings.ReplaceAll(text, value, "[redacted]")
		}
	}
	text = strings.Map(func(c rune) rune {
		if c == unicode.ReplacementChar || !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > mostSaid {
		text = strings.ToValidUTF8(text[:mostSaid], "") + "..."
	}
	return text
}
