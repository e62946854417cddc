package drivertest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// fault is one way in which a line goes wrong, and what a driver owes then.
type fault struct {
	name string
	once bool // one request only; otherwise all from that one on
	few  bool // tried at the first and the last request of a call only
	head bool // tried at the first one only
	ends ending
	// work is true where the service answers that all is well, so that a driver
	// may have its proof from elsewhere: what it says must be true, no more.
	work bool
	// blind is true where no answer says what the box is doing.
	blind bool
	mark  bool // nothing shows whose box it is
	// told is true where each request is answered and nothing is done: what can
	// change something is then not sent a second time.
	told bool
	make func(t *testing.T, l *Line) (serve func(x *exchange), after func() string)
	want []box.Class // of an error; nil allows all that claim nothing
	wait func(asked time.Duration) string
}

// ending is how the caller gives up.
type ending int

const (
	patient ending = iota
	deadline
	cancelled
)

// unclear are the classes of an answer that nobody can read.
func unclear() []box.Class { return []box.Class{box.ClassUnavailable, box.ClassUnknown} }

func faults() []fault {
	return slices.Concat(brokenLines(), refusals(), notTheService(), unreadable(), mouthfuls())
}

// plain is for faults that need nothing of their own.
func plain(serve func(x *exchange)) func(*testing.T, *Line) (func(*exchange), func() string) {
	return func(*testing.T, *Line) (func(*exchange), func() string) {
		return serve, func() string { return "" }
	}
}

func brokenLines() []fault {
	cut := func(*exchange) { panic(http.ErrAbortHandler) }
	return []fault{
		{name: "the answer is lost after the work was done", once: true, work: true, want: unclear(), make: plain(func(x *exchange) {
			if rec := x.answer(); !reads(x.r) && rec.Code < 300 {
				x.carried()
			}
			panic(http.ErrAbortHandler)
		})},
		{name: "the line is cut before the work", want: unclear(), make: plain(cut)},
		{
			name: "the answer is slower than the deadline", ends: deadline, work: true,
			want: []box.Class{box.ClassDeadlineExceeded},
			make: plain(func(x *exchange) { x.answer(); x.hold() }),
		},
		{
			name: "the caller gives up while it waits", ends: cancelled, work: true,
			want: []box.Class{box.ClassCanceled},
			make: plain(func(x *exchange) { x.answer(); x.hold() }),
		},
		{name: "the answer ends in its middle", work: true, want: unclear(), make: plain(mangled(func(body []byte) ([]byte, bool) {
			return body[:len(body)/2], true
		}))},
		{name: "the line is cut in the middle of the answer", work: true, want: unclear(), make: plain(func(x *exchange) {
			rec := x.answer()
			if rec.Body.Len() < 2 {
				x.miss()
				x.pass(rec)
				return
			}
			half := rec.Body.Bytes()[:rec.Body.Len()/2]
			rec.Header().Set("Content-Length", fmt.Sprint(rec.Body.Len()))
			rec.Body.Truncate(len(half))
			x.pass(rec)
			panic(http.ErrAbortHandler)
		})},
	}
}

// refused answers without any work done.
func refused(code int, header map[string]string, kind, body string) func(x *exchange) {
	return func(x *exchange) {
		_, _ = io.Copy(io.Discard, io.LimitReader(x.r.Body, 1<<20)) // so that the connection can be used again
		for name, value := range header {
			x.w.Header().Set(name, value)
		}
		if kind != "" {
			x.w.Header().Set("Content-Type", kind)
		}
		x.w.WriteHeader(code)
		if x.r.Method != http.MethodHead {
			_, _ = io.WriteString(x.w, body)
		}
	}
}

const (
	kindJSON = "application/json"
	kindHTML = "text/html; charset=utf-8"
)

// page is an error page of something between us and the service, longer than
// an error may be.
func page(title string) string {
	return "<!doctype html><html><head><title>" + title + "</title></head><body>" + strings.Repeat("<p>"+title+"</p>\n", 5000) + "</body></html>"
}

func waits(least, most time.Duration) func(time.Duration) string {
	return func(asked time.Duration) string {
		return unless(asked >= least && asked <= most, "the wait passed on is %s, not %s to %s", asked, least, most)
	}
}

func refusals() []fault {
	busy := `{"message":"too many requests"}`
	exhausted, unauthorized := []box.Class{box.ClassExhausted}, []box.Class{box.ClassUnauthorized}
	after := func(value string) map[string]string { return map[string]string{"Retry-After": value} }
	out := []fault{
		{name: "429 with a wait in seconds", want: exhausted, wait: waits(7*time.Second, 7*time.Second), make: plain(refused(429, after("7"), kindJSON, busy))},
		{name: "429 with a wait as a date", want: exhausted, wait: waits(30*time.Second, 90*time.Second), make: plain(func(x *exchange) {
			date := time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)
			refused(429, after(date), kindJSON, busy)(x)
		})},
		{name: "429 without a wait", want: exhausted, wait: waits(0, time.Hour), make: plain(refused(429, nil, kindJSON, busy))},
		{name: "429 with a wait that is none", few: true, want: exhausted, wait: waits(0, time.Hour), make: plain(refused(429, after("-5"), kindJSON, busy))},
		{name: "429 from something in between", few: true, want: exhausted, wait: waits(7*time.Second, 7*time.Second), make: plain(refused(429, after("7"), kindHTML, page("Slow down")))},
		{name: "503 with a wait", few: true, want: unclear(), wait: waits(11*time.Second, 11*time.Second), make: plain(refused(503, after("11"), kindHTML, page("Busy")))},
		{name: "402", few: true, want: exhausted, make: plain(refused(402, nil, kindJSON, `{"message":"no funds"}`))},
		{
			name: "423", few: true, want: []box.Class{box.ClassConflict, box.ClassFailedPrecondition, box.ClassUnavailable, box.ClassUnknown},
			make: plain(refused(423, nil, kindJSON, `{"message":"locked"}`)),
		},
		{name: "401", want: unauthorized, make: plain(refused(401, nil, kindJSON, `{"message":"who are you"}`))},
		{name: "403", want: unauthorized, make: plain(refused(403, nil, kindJSON, `{"message":"not yours"}`))},
		{name: "401 from something in between", few: true, want: unauthorized, make: plain(refused(401, nil, kindHTML, page("Sign in")))},
	}
	for _, code := range []int{500, 502, 503} {
		out = append(out, fault{
			name: fmt.Sprintf("%d with a page", code), want: unclear(),
			make: plain(refused(code, nil, kindHTML, page("Bad gateway"))),
		})
	}
	for i := range out {
		out[i].told = true
	}
	return out
}

func notTheService() []fault {
	return []fault{
		{name: "200 with a login page", want: unclear(), make: plain(refused(200, nil, kindHTML, page("Sign in")))},
		{name: "302 to a login page elsewhere", want: unclear(), make: redirected(302)},
		{name: "307 to a login page elsewhere", want: unclear(), make: redirected(307)},
		{name: "302 within the service", want: unclear(), make: func(*testing.T, *Line) (func(*exchange), func() string) {
			const login = "/suite-login"
			var reached atomic.Bool
			return func(x *exchange) {
					if x.r.URL.Path == login {
						reached.Store(true)
						refused(404, nil, kindJSON, `{"message":"not found"}`)(x)
						return
					}
					refused(302, map[string]string{"Location": login}, kindHTML, page("Moved"))(x)
				}, func() string {
					return unless(!reached.Load(), "the redirect was followed; take each as an answer that is not the service's")
				}
		}},
		{name: "404 with a page", want: unclear(), make: plain(refused(404, nil, kindHTML, page("404 Not Found")))},
		{name: "404 of a server without that path", want: unclear(), make: plain(refused(404, nil, "text/plain; charset=utf-8", "404 page not found\n"))},
		{name: "404 in JSON of a gateway without that route", want: unclear(), make: plain(refused(404, nil, kindJSON, `{"message":"no route matched with those values"}`))},
		{name: "404 without a body", want: unclear(), make: plain(refused(404, nil, "", ""))},
	}
}

// redirected sends the caller to another server, which counts who comes.
func redirected(code int) func(t *testing.T, l *Line) (func(*exchange), func() string) {
	return func(t *testing.T, l *Line) (func(*exchange), func() string) {
		t.Helper()
		var came atomic.Int32
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			came.Add(1)
			refused(404, nil, kindJSON, `{"message":"not found"}`)(&exchange{w: w, r: r})
		}))
		t.Cleanup(other.Close)
		l.leadTo(other.Listener.Addr().String())
		serve := refused(code, map[string]string{"Location": other.URL + "/login"}, kindHTML, page("Moved"))
		return serve, func() string {
			return unless(came.Load() == 0, "%d requests followed a redirect to another server, credentials and all", came.Load())
		}
	}
}

// mouthfuls are answers that are too long, and such that tell what was asked.
func mouthfuls() []fault {
	const offered, most = 80 << 20, 64 << 20
	endless := func(code int) func(t *testing.T, l *Line) (func(*exchange), func() string) {
		return func(*testing.T, *Line) (func(*exchange), func() string) {
			var taken atomic.Int64
			piece := []byte(strings.Repeat("a", 1<<16))
			return func(x *exchange) {
					if x.r.Method == http.MethodHead { // whose answer has no body
						x.miss()
						x.pass(x.answer())
						return
					}
					refused(code, nil, kindJSON, `{"message":"`)(x)
					for sent := 0; sent < offered; sent += len(piece) {
						n, err := x.w.Write(piece)
						taken.Add(int64(n))
						if err != nil {
							return
						}
					}
				}, func() string {
					return unless(taken.Load() < most, "%d MiB of one answer were taken; read no more than a few", taken.Load()>>20)
				}
		}
	}
	echo := func(code int) func(x *exchange) {
		return func(x *exchange) {
			body, _ := io.ReadAll(io.LimitReader(x.r.Body, 1<<16)) // what came is told, the rest is not needed
			said := jsonText(fmt.Sprintf("cannot do %s with %v and %s", x.r.URL, x.r.Header, body))
			refused(code, nil, kindJSON, `{"message":`+said+`,"error":`+said+`,"detail":`+said+`}`)(x)
		}
	}
	return []fault{
		{name: "an answer without end", head: true, want: unclear(), make: endless(200)},
		{name: "an error without end", head: true, want: unclear(), make: endless(500)},
		{name: "an error that repeats what was sent", want: unclear(), make: plain(echo(500))},
		{name: "a refusal that repeats what was sent", make: plain(echo(400))},
	}
}
