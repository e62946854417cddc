package httpdriver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver/httpdriver"
)

func now() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"":                                0,
		"7":                               7 * time.Second,
		" 7 ":                             7 * time.Second,
		"0":                               0,
		"-5":                              0,
		"soon":                            0,
		"1.5":                             0,
		"9223372036854775807":             24 * time.Hour,
		"99999999999999999999":            0,
		"Mon, 30 Nov 2026 12:01:30 GMT":   90 * time.Second,
		"Mon, 30 Nov 2026 11:59:00 GMT":   0,
		"Monday, 30-Nov-26 12:01:30 GMT":  90 * time.Second,
		"Wed, 30 Nov 2056 12:01:30 GMT":   24 * time.Hour,
		"2026-11-30T12:01:30Z":            0,
		"Mon, 30 Nov 2026 12:01:30 +0000": 0,
	} {
		if got := httpdriver.RetryAfter(http.Header{"Retry-After": {text}}, now()); got != want {
			t.Errorf("%q is a wait of %s, want %s", text, got, want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("7")
	f.Add("Mon, 30 Nov 2026 12:01:30 GMT")
	f.Fuzz(func(t *testing.T, text string) {
		if got := httpdriver.RetryAfter(http.Header{"Retry-After": {text}}, now()); got < 0 || got > 24*time.Hour {
			t.Errorf("%q is a wait of %s", text, got)
		}
	})
}

func TestClassOfAStatus(t *testing.T) {
	t.Parallel()
	for status := range 700 {
		class := httpdriver.Class(status)
		switch {
		case class == box.ClassNotFound || class == "":
			t.Errorf("%d is %q: an absence needs the driver's own proof", status, class)
		case (status == 401 || status == 403) != (class == box.ClassUnauthorized):
			t.Errorf("%d is %q", status, class)
		case status >= 500 && status != 501 && status != 507 && class != box.ClassUnavailable:
			t.Errorf("%d is %q", status, class)
		case (status == 429 || status == 402) && class != box.ClassExhausted:
			t.Errorf("%d is %q", status, class)
		case status < 400 && class != box.ClassUnknown:
			t.Errorf("%d is %q", status, class)
		}
	}
}

func TestPathSafe(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"a", "01a0a8de-51", "sess_1", "a.b:c", "...a"} {
		if !httpdriver.PathSafe(id) {
			t.Errorf("%q is refused", id)
		}
	}
	for _, id := range []string{"", ".", "..", "...", "a/b", "../a", "a?b", "a#b", "a%2fb", "a b", "a\n", "ä", "\x00", strings.Repeat("a", 257)} {
		if httpdriver.PathSafe(id) {
			t.Errorf("%q is let through", id)
		}
	}
}

// ask sends one request to a server that does what serve says.
func ask(t *testing.T, serve http.HandlerFunc) (httpdriver.Answer, error) {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/at?token=secret-in-a-query", nil)
	if err != nil {
		t.Fatal(err)
	}
	return httpdriver.Do(httpdriver.NewClient(transport), req)
}

func TestAnswersAreReadToABound(t *testing.T) {
	t.Parallel()
	for extra, whole := range map[int]bool{-1: true, 0: true, 1: false} {
		size := httpdriver.MaxBody + extra
		answer, err := ask(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("a", size))
		})
		switch {
		case whole && (err != nil || len(answer.Body) != size):
			t.Errorf("%d bytes: %d read, %v", size, len(answer.Body), err)
		case !whole && box.ClassOf(err) != box.ClassUnavailable:
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestWhatCannotBeReadIsUnknown(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		kind, body string
		fine       bool
	}{
		{"application/json", `{"id":"a"}`, true},
		{"application/json; charset=utf-8", ` {"id":"a"} `, true},
		{"application/problem+json", `{"id":"a"}`, true},
		{"text/html", `{"id":"a"}`, false},
		{"text/plain+json", `{"id":"a"}`, false},
		{"", `{"id":"a"}`, false},
		{"application/json", ``, false},
		{"application/json", `null`, false},
		{"application/json", ` null `, false},
		{"application/json", `[]`, false},
		{"application/json", `"a"`, false},
		{"application/json", `{"id":"a"`, false},
		{"application/json", `{"id":"a"} {}`, false},
		{"application/json", `{"id":7}`, false},
		{"application/json", `<html>`, false},
	} {
		var in struct {
			ID string `json:"id"`
		}
		answer := httpdriver.Answer{Method: "GET", Status: 200, Header: http.Header{"Content-Type": {one.kind}}, Body: []byte(one.body)}
		err := answer.Decode(&in)
		if one.fine != (err == nil) || one.fine && in.ID != "a" || !one.fine && box.ClassOf(err) != box.ClassUnknown {
			t.Errorf("%s %q: %+v, %v", one.kind, one.body, in, err)
		}
	}
}

func TestErrorsRepeatNeitherAddressNorBody(t *testing.T) {
	t.Parallel()
	_, broken := ask(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	answer, err := ask(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		http.Error(w, "you sent "+r.URL.String(), http.StatusServiceUnavailable)
	})
	if err != nil {
		t.Fatal(err)
	}
	refused := answer.Err()
	for _, err := range []error{broken, refused, answer.Decode(&struct{}{})} {
		if box.ClassOf(err) == "" || strings.Contains(fmt.Sprintf("%+v", err), "secret-in-a-query") {
			t.Errorf("class %q: %v", box.ClassOf(err), err)
		}
	}
	if e, ok := errors.AsType[*box.Error](refused); !ok || e.RetryAfter != 7*time.Second || e.Class != box.ClassUnavailable {
		t.Errorf("a 503 with a wait is %+v", refused)
	}
}

func TestARedirectIsAnAnswer(t *testing.T) {
	t.Parallel()
	answer, err := ask(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	})
	if err != nil || answer.Status != http.StatusFound || box.ClassOf(answer.Err()) != box.ClassUnknown {
		t.Errorf("status %d, %v, %v", answer.Status, err, answer.Err())
	}
}

func TestTheContextSaysWhyARequestEnded(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	late, end := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer end()
	for want, ctx := range map[box.Class]context.Context{
		box.ClassCanceled: over, box.ClassDeadlineExceeded: late, box.ClassUnavailable: t.Context(),
	} {
		err := httpdriver.Broken(ctx, "GET", errors.New("read: connection reset"))
		if box.ClassOf(err) != want {
			t.Errorf("class %q (%v), want %s", box.ClassOf(err), err, want)
		}
	}
	if err := httpdriver.Broken(late, "GET", io.EOF); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the sentinel is lost: %v", err)
	}
}
