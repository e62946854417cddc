package digitalocean

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver/httpdriver"
)

const (
	// mostSaid bounds what is repeated of the service's words, in characters.
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
	own       bool // the service's: in one of its two envelopes, with its code or its word for it
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

// missing reports whether the service itself says that a thing is not there. The
// page of a proxy, or of a server that lacks the path, is a 404 too.
func missing(err error) bool {
	r, ok := errors.AsType[*refused](err)
	return ok && r.own && r.status == http.StatusNotFound
}

// unclear reports whether the work of a call may have been done although it
// failed.
func unclear(err error) bool {
	status := statusOf(err)
	return err != nil && (status == 0 || status >= http.StatusInternalServerError && status != http.StatusNotImplemented)
}

// envelope is what the service says with a refusal: its edge says an id and a
// message, what is behind it an error with the status as its code.
type envelope struct {
	ID        string `json:"id"`
	Message   string `json:"message"`
	RequestID string `json:"request_id"`
	Error     struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// refusal is the error of an answer that is no success.
func (a *api) refusal(c call, answer httpdriver.Answer) error {
	var in envelope
	if answer.JSON() {
		_ = json.Unmarshal(answer.Body, &in) // what has another shape stays empty
	}
	r := &refused{
		status:    answer.Status,
		own:       in.Error.Code == answer.Status || in.ID != "" && in.Message != "",
		said:      a.clean(cmp.Or(in.Error.Message, in.Message), c.hide),
		requestID: a.clean(cmp.Or(in.RequestID, answer.Header.Get("X-Request-Id")), c.hide),
	}
	if len(answer.Body) > 0 && (!answer.JSON() || !json.Valid(answer.Body)) {
		r.said = "a page in place of an answer"
	}
	class, next := classOf(r)
	r.next = next
	block, least := box.Block(""), time.Duration(0)
	switch {
	case isBalance(r):
		block, least = box.BlockBalance, balanceWait
	case isQuota(r):
		block, least = box.BlockQuota, quotaWait
	}
	wait := cmp.Or(httpdriver.RetryAfter(answer.Header, time.Now()), least)
	return &box.Error{Class: class, Message: c.what + ": DigitalOcean answers " + strconv.Itoa(r.status), RetryAfter: wait, Block: block, Err: r}
}

// classOf says what an answer means where the call does not know better, and
// what to do about it.
func classOf(r *refused) (class box.Class, next string) {
	const pay = "add to the prepaid balance of the team"
	switch {
	case isBalance(r):
		return box.ClassExhausted, pay
	case isQuota(r):
		return box.ClassExhausted, "suspended boxes count: delete one, or ask DigitalOcean for a higher limit"
	}
	class = httpdriver.Class(r.status)
	switch r.status {
	case http.StatusUnauthorized:
		return class, "give the instance a token that is valid"
	case http.StatusForbidden:
		return class, "the token lacks a scope, is of another team, or the team lacks the feature"
	case http.StatusConflict:
		return box.ClassUnavailable, "look again"
	case http.StatusLocked:
		return class, "DigitalOcean's staff has locked it: ask their support"
	case http.StatusTooManyRequests:
		return class, "the token has 250 requests a minute for everything it does"
	case http.StatusNotImplemented:
		return class, "this sandbox cannot do it"
	}
	if class == box.ClassInvalid {
		return class, "change what it names"
	}
	return class, "look again"
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

// clean bounds a text, keeps it in one line, and masks the token and what is to
// be hidden.
func (a *api) clean(text string, hide []string) string {
	text = httpdriver.Masking(append([]string{a.token.Reveal()}, hide...))(text)
	return box.OneLine(text, mostSaid)
}
