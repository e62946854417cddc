package providers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// fail wraps what a driver answered, once: operation, box, instance, class,
// wait, and the cause with every secret of start masked.
func (p *Provider) fail(op, name string, err error, secrets secrets) error {
	class, retryAfter := p.driver.ErrorClass(err)
	if class == "" || class == box.ClassUnknown {
		class = box.ClassOf(err) // ours, or one that the driver passed on
	}
	switch {
	case errors.Is(err, context.Canceled):
		class = box.ClassCanceled
	case errors.Is(err, context.DeadlineExceeded):
		class = box.ClassDeadlineExceeded
	}
	field := ""
	if inner, ok := errors.AsType[*box.Error](err); ok {
		field = inner.Field
	}
	return &box.Error{Class: class, Field: field, Message: p.what(op, name), RetryAfter: max(0, retryAfter), Block: box.BlockOf(err), Err: secrets.mask(err)}
}

// refuse is an answer of the portable type itself: no request was sent, or an
// answer is not believed.
func (p *Provider) refuse(class box.Class, op, name, format string, args ...any) error {
	return &box.Error{Class: class, Message: p.what(op, name), Err: box.Errorf(class, format, args...)}
}

func (p *Provider) what(op, name string) string {
	if name == "" {
		return op + " at provider " + p.name
	}
	return op + " box " + name + " at provider " + p.name
}

// secrets are values that must not appear in an error, in any of the forms
// that programs write them.
type secrets []string

func secretsOf(start driver.Start) secrets {
	var out secrets
	add := func(value box.Secret) {
		raw := value.Reveal()
		if raw == "" {
			return
		}
		quoted := strconv.Quote(raw)
		forms := []string{
			raw,
			quoted[1 : len(quoted)-1],
			url.QueryEscape(raw),
			url.PathEscape(raw),
			base64.StdEncoding.EncodeToString([]byte(raw)),
			base64.RawStdEncoding.EncodeToString([]byte(raw)),
			base64.URLEncoding.EncodeToString([]byte(raw)),
			base64.RawURLEncoding.EncodeToString([]byte(raw)),
		}
		if text, err := json.Marshal(raw); err == nil {
			forms = append(forms, string(text[1:len(text)-1]))
		}
		out = append(out, forms...)
	}
	for _, value := range start.SecretEnv {
		add(value)
	}
	add(start.SessionKey)
	// Longest first: a secret may be a part of another one.
	slices.SortFunc(out, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	return slices.Compact(out)
}

// text returns s with every secret masked. Masks are put in with a rune that
// is swapped at the end, so that a short secret never matches inside a mask.
func (s secrets) text(in string) string {
	const mark = "\x00"
	out := strings.ReplaceAll(in, mark, "")
	for _, value := range s {
		if value != mark {
			out = strings.ReplaceAll(out, value, mark)
		}
	}
	return strings.ReplaceAll(out, mark, "[redacted]")
}

// mask returns err unchanged when it tells no secret. Otherwise its text is
// masked and the chain is cut, since every part of it may tell; only the
// sentinels of package context stay reachable.
func (s secrets) mask(err error) error {
	if len(s) == 0 || !s.tells(err) {
		return err
	}
	return masked{text: s.text(err.Error()), canceled: errors.Is(err, context.Canceled), late: errors.Is(err, context.DeadlineExceeded)}
}

// tells walks the whole tree of err: an outer text may hide what an inner one
// says.
func (s secrets) tells(err error) bool {
	if err == nil {
		return false
	}
	if text := err.Error(); s.text(text) != text {
		return true
	}
	switch e := err.(type) { //nolint:errorlint // every link is looked at
	case interface{ Unwrap() error }:
		return s.tells(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), s.tells)
	}
	return false
}

type masked struct {
	text           string
	canceled, late bool
}

func (m masked) Error() string { return m.text }

func (m masked) Is(target error) bool {
	return m.canceled && target == context.Canceled || m.late && target == context.DeadlineExceeded
}
