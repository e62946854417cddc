package agentserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// maxRetryAfter bounds what a server may ask us to wait.
const maxRetryAfter = time.Hour

// classOf maps an HTTP status that is no success.
func classOf(status int) box.Class {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return box.ClassUnauthorized
	case http.StatusNotFound:
		return box.ClassNotFound
	case http.StatusConflict, http.StatusLocked:
		return box.ClassConflict
	case http.StatusGone, http.StatusPreconditionFailed:
		return box.ClassFailedPrecondition
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		return box.ClassInvalid
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return box.ClassUnsupported
	case http.StatusTooManyRequests, http.StatusInsufficientStorage:
		return box.ClassExhausted
	case http.StatusRequestTimeout:
		return box.ClassDeadlineExceeded
	}
	if status >= http.StatusInternalServerError {
		return box.ClassUnavailable
	}
	return box.ClassUnknown
}

// statusError reads a failure's body and says what it means. On 5xx the text is
// in "exception", because "detail" is the same for all of them.
func (c *Client) statusError(what call, response *http.Response) error {
	said := c.said(response)
	out := &box.Error{
		Class:      classOf(response.StatusCode),
		Message:    what.method + " " + what.path + " answered " + strconv.Itoa(response.StatusCode),
		RetryAfter: retryAfter(response.Header.Get("Retry-After")),
	}
	switch {
	case response.StatusCode >= 300 && response.StatusCode <= 399:
		out.Message += ", a redirect, which is not followed; check the address"
	case said.page && response.StatusCode == http.StatusNotFound:
		// A gateway's error page says nothing about the thing asked for.
		out.Class = box.ClassUnknown
		out.Message += " with a page instead of JSON; is this the address of an agent-server?"
	case said.text != "":
		out.Message += ": " + said.text
	}
	return out
}

type said struct {
	text string
	page bool // the body is no JSON of an agent-server
}

func (c *Client) said(response *http.Response) said {
	text, err := io.ReadAll(io.LimitReader(response.Body, maxError))
	if err != nil {
		return said{}
	}
	var body struct {
		Detail    json.RawMessage `json:"detail"`
		Exception string          `json:"exception"`
	}
	if err := json.Unmarshal(text, &body); err != nil || body.Detail == nil && body.Exception == "" {
		return said{page: true}
	}
	if body.Exception != "" {
		return said{text: c.safe(body.Exception)}
	}
	return said{text: c.safe(detail(body.Detail))}
}

// detail flattens the forms of "detail": a text, a list of faults with their
// places, or anything else as it is.
func detail(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var faults []struct {
		Loc []any  `json:"loc"`
		Msg string `json:"msg"`
	}
	if json.Unmarshal(raw, &faults) == nil {
		lines := make([]string, 0, len(faults))
		for _, f := range faults {
			place := make([]string, 0, len(f.Loc))
			for _, step := range f.Loc {
				switch step := step.(type) {
				case string:
					place = append(place, step)
				case float64:
					place = append(place, strconv.FormatFloat(step, 'f', -1, 64))
				}
			}
			lines = append(lines, strings.Join(place, ".")+": "+f.Msg)
		}
		return strings.Join(lines, "; ")
	}
	return string(raw)
}

// safe clips text from the other side and masks our own credentials, which a
// hostile or careless server may echo.
func (c *Client) safe(text string) string {
	if key := c.key.Reveal(); key != "" {
		text = strings.ReplaceAll(text, key, c.key.String())
	}
	for _, value := range c.header {
		if value != "" {
			text = strings.ReplaceAll(text, value.Reveal(), value.String())
		}
	}
	return box.OneLine(text, 300)
}

// retryAfter reads the seconds or the date; anything else is zero.
func retryAfter(value string) time.Duration {
	var wait time.Duration
	if seconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
		if !(seconds > 0) {
			return 0
		}
		wait = time.Duration(min(seconds, maxRetryAfter.Seconds()) * float64(time.Second))
	} else if at, err := http.ParseTime(value); err == nil {
		wait = time.Until(at)
	}
	return max(0, min(wait, maxRetryAfter))
}

// transportError classes a request that got no answer, or only part of one.
func (c *Client) transportError(ctx context.Context, what call, err error) error {
	begin := what.method + " " + what.path
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(ctx.Err(), context.Canceled):
		return box.Errorf(box.ClassCanceled, "%s: %w", begin, context.Canceled)
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded):
		return box.Errorf(box.ClassDeadlineExceeded, "%s: no answer in time: %w", begin, context.DeadlineExceeded)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return box.Errorf(box.ClassUnavailable, "%s: the answer was cut off: %w", begin, io.ErrUnexpectedEOF)
	}
	if slow, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && slow.Timeout() {
		return box.Errorf(box.ClassDeadlineExceeded, "%s: no answer in time", begin)
	}
	// The inner error repeats the address, never a header; the address holds no
	// secret by New's rules.
	return box.Errorf(box.ClassUnavailable, "%s: %s", begin, c.safe(err.Error()))
}
