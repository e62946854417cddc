package notices_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/notices"
)

func TestVerifyAgreesWithTheStandard(t *testing.T) {
	t.Parallel()
	header := http.Header{}
	header.Set("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
	header.Set("webhook-timestamp", "1614265330")
	header.Set("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	at := time.Unix(1614265330, 0)
	require.NoError(t, verify(key, header, []byte(`{"test": 2432232314}`), at))
	require.Error(t, verify(key, header, []byte(`{"test": 2432232315}`), at))
	require.Error(t, verify(other, header, []byte(`{"test": 2432232314}`), at))
	require.Error(t, verify(key, header, []byte(`{"test": 2432232314}`), at.Add(6*time.Minute)))
}

func TestTheDocumentationHoldsTheVerificationThatIsTested(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("verify_test.go")
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/events.md")
	require.NoError(t, err)
	at := bytes.Index(source, []byte("// verify checks"))
	require.Positive(t, at)
	require.Contains(t, string(page), "```go\n"+string(source[at:])+"```")
}

func TestEventsAreSignedCloudEvents(t *testing.T) {
	t.Parallel()
	got := newReceiver(t, nil)
	o := newOutlet(t, hook("ops", got.URL+"/hooks?token=abc"))
	require.Equal(t, []box.Delivery{{Receiver: "ops", Taken: 2}}, o.deliver(events("ops")))
	requests := got.requests()
	require.Len(t, requests, 2)
	for i, r := range requests {
		e := events().Events[i]
		require.NoError(t, verify(key, r.header, r.body, time.Now()))
		require.Equal(t, "/hooks?token=abc", r.path)
		require.Equal(t, "application/cloudevents+json", r.header.Get("Content-Type"))
		require.Equal(t, e.ID, r.header.Get("webhook-id"))

		var plain map[string]any // as a receiver without any library sees it
		require.NoError(t, json.Unmarshal(r.body, &plain))
		require.Equal(t, "1.0", plain["specversion"])
		require.Equal(t, e.ID, plain["id"])
		require.Equal(t, "/boxkeeper/a1b2c3d4/login-page", plain["source"])
		require.Equal(t, "dev.boxkeeper.box."+string(e.Kind)+".v1", plain["type"])
		require.Equal(t, "login-page", plain["subject"])
		require.Equal(t, "application/json", plain["datacontenttype"])
		require.Equal(t, e.At.Format(time.RFC3339), plain["time"])

		// As a receiver with the SDK sees it.
		again := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(r.body))
		again.Header = r.header
		seen, err := cehttp.NewEventFromHTTPRequest(again)
		require.NoError(t, err)
		require.NoError(t, seen.Validate())
		var data notices.Data
		require.NoError(t, seen.DataAs(&data))
		require.Equal(t, e.Number, data.Number)
		require.Equal(t, e.State, data.State)
		require.Equal(t, e.Reason, data.Reason)
		require.Equal(t, "user-17", data.Owner)
	}
	require.Equal(t, []string{"ops ok", "ops ok"}, o.records)
}

func TestTheDocumentedExampleIsWhatIsSent(t *testing.T) {
	t.Parallel()
	got := newReceiver(t, nil)
	o := newOutlet(t, hook("ops", got.URL))
	o.deliver(notice())
	var sent bytes.Buffer
	require.NoError(t, json.Indent(&sent, got.requests()[0].body, "", "  "))
	page, err := os.ReadFile("../../docs/events.md")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(page), "```json\n")
	text, _, _ = strings.Cut(text, "```")
	require.JSONEq(t, text, sent.String())
}

func TestEveryKindHasAStepThatThePersonCanTake(t *testing.T) {
	t.Parallel()
	nothing := map[box.EventKind]bool{box.EventCreated: true, box.EventResumed: true, box.EventDeletionCancelled: true}
	for _, kind := range box.EventKinds() {
		got := newReceiver(t, nil)
		p := events("ops")
		p.Events = p.Events[:1]
		p.Events[0].Kind = kind
		newOutlet(t, hook("ops", got.URL)).deliver(p)
		var sent struct {
			Data notices.Data `json:"data"`
		}
		require.NoError(t, json.Unmarshal(got.requests()[0].body, &sent))
		assert.Equal(t, nothing[kind], len(sent.Data.NextSteps) == 0, "%s: %v", kind, sent.Data.NextSteps)
		for _, step := range sent.Data.NextSteps {
			assert.Contains(t, step.Command, " login-page", "%s", kind)
		}
	}
}

func TestWhatAnAnswerMeans(t *testing.T) {
	t.Parallel()
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for name, row := range map[string]struct {
		status  int
		after   string
		want    box.Delivery
		record  string
		between time.Duration // of an answer with a date
	}{
		"taken":                             {204, "", box.Delivery{Taken: 1}, "ok", 0},
		"a fault of the receiver":           {500, "", box.Delivery{Failed: true}, "failed", 0},
		"busy, with a time to wait":         {503, "120", box.Delivery{Failed: true, RetryAfter: box.Duration(2 * time.Minute)}, "failed", 0},
		"too much, with a time to wait":     {429, "7", box.Delivery{Failed: true, RetryAfter: box.Duration(7 * time.Second)}, "failed", 0},
		"busy until a date":                 {503, in(time.Hour), box.Delivery{Failed: true}, "failed", time.Hour},
		"busy for longer than anyone waits": {503, "99999999", box.Delivery{Failed: true, RetryAfter: box.Duration(12 * time.Hour)}, "failed", 0},
		"busy until yesterday":              {503, in(-24 * time.Hour), box.Delivery{Failed: true}, "failed", 0},
		"busy, in words":                    {503, "soon", box.Delivery{Failed: true}, "failed", 0},
		"busy, below zero":                  {503, "-5", box.Delivery{Failed: true}, "failed", 0},
		"gone":                              {410, "", box.Delivery{Failed: true, Gone: true}, "gone", 0},
		"not signed as it wants":            {401, "", box.Delivery{Failed: true}, "failed", 0},
		"no such path":                      {404, "", box.Delivery{Failed: true}, "failed", 0},
		"an event that it cannot read":      {400, "", box.Delivery{Taken: 1, Refused: 1}, "refused", 0},
		"an event that is too large":        {413, "", box.Delivery{Taken: 1, Refused: 1}, "refused", 0},
		"an event that it does not want":    {422, "", box.Delivery{Taken: 1, Refused: 1}, "refused", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := newReceiver(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
				if row.after != "" {
					w.Header().Set("Retry-After", row.after)
				}
				w.WriteHeader(row.status)
			})
			o := newOutlet(t, hook("ops", got.URL))
			p := events("ops")
			p.Events = p.Events[:1]
			d := o.deliver(p)[0]
			if row.between > 0 {
				require.InDelta(t, row.between, d.RetryAfter.Std(), float64(5*time.Second))
				d.RetryAfter = 0
			}
			if row.status >= 300 {
				require.Contains(t, d.Problem, "it answered "+strconv.Itoa(row.status))
				require.Contains(t, o.lines(), d.Problem, "it is logged")
			}
			d.Problem = ""
			row.want.Receiver = "ops"
			require.Equal(t, row.want, d)
			require.Equal(t, []string{"ops " + row.record}, o.records)
		})
	}
}

func TestALostAnswerIsSentAgainUnderTheSameID(t *testing.T) {
	t.Parallel()
	got := newReceiver(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			panic(http.ErrAbortHandler) // it has the event; its answer never leaves
		}
		w.WriteHeader(http.StatusAccepted)
	})
	got.Config.ErrorLog = nil
	o := newOutlet(t, hook("ops", got.URL))
	p := events("ops")
	first := o.deliver(p)
	require.True(t, first[0].Failed)
	require.Zero(t, first[0].Taken, "the next one is not sent before it")
	require.Equal(t, []box.Delivery{{Receiver: "ops", Taken: 2}}, o.deliver(p))
	requests := got.requests()
	require.Len(t, requests, 3)
	require.Equal(t, requests[0].header.Get("webhook-id"), requests[1].header.Get("webhook-id"))
	require.Equal(t, requests[0].body, requests[1].body)
	require.NotEqual(t, requests[1].header.Get("webhook-id"), requests[2].header.Get("webhook-id"))
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	thief := newReceiver(t, nil)
	for _, code := range []int{301, 302, 303, 307, 308} {
		got := newReceiver(t, func(_ int, w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL, code) })
		d := newOutlet(t, hook("ops", got.URL)).deliver(events("ops"))[0]
		require.True(t, d.Failed)
		require.Contains(t, d.Problem, "not followed")
	}
	require.Empty(t, thief.requests())
}

func TestCertificatesAreChecked(t *testing.T) {
	t.Parallel()
	got := start(t, nil, func(h http.Handler) *httptest.Server {
		s := httptest.NewUnstartedServer(h)
		s.Config.ErrorLog = nil
		s.StartTLS()
		return s
	})
	d := newOutlet(t, hook("ops", got.URL)).deliver(events("ops"))[0]
	require.True(t, d.Failed)
	require.Contains(t, d.Problem, "certificate")
	require.Empty(t, got.requests())

	roots := x509.NewCertPool()
	roots.AddCert(got.Certificate())
	o := newOutletWith(t, notices.Options{Webhooks: []notices.Webhook{hook("ops", got.URL)}, Roots: roots})
	require.Equal(t, []box.Delivery{{Receiver: "ops", Taken: 2}}, o.deliver(events("ops")))
}

func TestAReceiverThatHangsHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	hangs := newReceiver(t, func(int, http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	fast := newReceiver(t, nil)
	o := newOutletWith(t, notices.Options{Webhooks: []notices.Webhook{hook("hangs", hangs.URL), hook("fast", fast.URL)}, Within: 300 * time.Millisecond})
	got := o.deliver(events("hangs", "fast"))
	require.Equal(t, box.Delivery{Receiver: "hangs", Failed: true, Problem: "it did not answer within 300ms"}, got[0])
	require.Equal(t, box.Delivery{Receiver: "fast", Taken: 2}, got[1])
}

func TestAnAnswerWithoutEndIsNotReadToItsEnd(t *testing.T) {
	t.Parallel()
	got := newReceiver(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		chunk := bytes.Repeat([]byte("x"), 32<<10)
		for r.Context().Err() == nil {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	began := time.Now()
	require.Equal(t, []box.Delivery{{Receiver: "ops", Taken: 2}}, newOutlet(t, hook("ops", got.URL)).deliver(events("ops")))
	require.Less(t, time.Since(began), 5*time.Second)
}

func TestACancelledActivityIsNoFaultOfTheReceiver(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 1)
	got := newReceiver(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	_, err := newOutlet(t, hook("ops", got.URL)).Deliver(ctx, events("ops"))
	require.Equal(t, box.ClassCanceled, box.ClassOf(err), "%v", err)
}

func TestCursors(t *testing.T) {
	t.Parallel()
	got := newReceiver(t, nil)
	o := newOutlet(t, hook("ops", got.URL))
	p := events("ops")
	p.To[0].Taken = 1
	require.Equal(t, []box.Delivery{{Receiver: "ops", Taken: 2}}, o.deliver(p))
	require.Len(t, got.requests(), 1, "what it has is not sent again")
	p.Events[1].Took = []string{"ops"}
	require.Equal(t, []box.Delivery{{Receiver: "ops", Taken: 2}}, o.deliver(p))
	require.Len(t, got.requests(), 1)
	d := o.deliver(events("another"))[0]
	require.True(t, d.Failed)
	require.Contains(t, d.Problem, "same webhooks")
}

func TestNotices(t *testing.T) {
	t.Parallel()
	up, down := newReceiver(t, nil), newReceiver(t, status(500))
	t.Run("the log is told, and counts where no webhook takes notices", func(t *testing.T) {
		t.Parallel()
		for name, hooks := range map[string][]notices.Webhook{
			"no webhook":           nil,
			"one for other things": {{Name: "end", URL: down.URL, Keys: []string{"env:KEY"}, Kinds: []box.EventKind{box.EventBoxArchived}}},
		} {
			o := newOutlet(t, hooks...)
			require.Empty(t, o.deliver(notice()), name)
			require.Contains(t, o.lines(), `"notice_id":"login-page-e1-1782756900-0-due-1785348900"`, name)
		}
	})
	t.Run("one that took it is enough, and the other is named", func(t *testing.T) {
		t.Parallel()
		got := newOutlet(t, hook("up", up.URL), hook("down", down.URL)).deliver(notice())
		require.Equal(t, []box.Delivery{{Receiver: "up"}, {Receiver: "down", Failed: true, Problem: "it answered 500"}}, got)
	})
	t.Run("nobody took it", func(t *testing.T) {
		t.Parallel()
		for _, code := range []int{302, 400, 401, 410, 422, 500} {
			refuses := newReceiver(t, status(code))
			_, err := newOutlet(t, hook("ops", refuses.URL+"/x?token=hunter2")).Deliver(t.Context(), notice())
			require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%d", code)
			require.ErrorContains(t, err, "ops: it answered")
			require.NotContains(t, err.Error(), "hunter2")
		}
	})
	t.Run("nobody took it, and the first that may asks for time", func(t *testing.T) {
		t.Parallel()
		busy := func(after string) *receiver {
			return newReceiver(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", after)
				w.WriteHeader(http.StatusServiceUnavailable)
			})
		}
		_, err := newOutlet(t, hook("a", busy("600").URL), hook("b", busy("60").URL)).Deliver(t.Context(), notice())
		var refused *box.Error
		require.ErrorAs(t, err, &refused)
		require.Equal(t, time.Minute, refused.RetryAfter)
	})
}

func TestKeys(t *testing.T) {
	t.Parallel()
	t.Run("while a key is changed over, either is right", func(t *testing.T) {
		t.Parallel()
		got := newReceiver(t, nil)
		w := hook("ops", got.URL)
		w.Keys = []string{"env:OTHER", "env:KEY"}
		newOutlet(t, w).deliver(events("ops"))
		r := got.requests()[0]
		require.Len(t, strings.Fields(r.header.Get("webhook-signature")), 2)
		require.NoError(t, verify(key, r.header, r.body, time.Now()))
		require.NoError(t, verify(other, r.header, r.body, time.Now()))
		require.Error(t, verify("whsec_"+strings.Repeat("B", 40), r.header, r.body, time.Now()))
	})
	got := newReceiver(t, nil)
	for _, reference := range []string{"env:BAD", "env:MISSING"} {
		w := hook("ops", got.URL)
		w.Keys = []string{reference}
		o := newOutlet(t, w)
		d := o.deliver(events("ops"))[0]
		require.True(t, d.Failed)
		require.Contains(t, d.Problem, reference)
		require.NotContains(t, d.Problem+o.lines(), "hunter2")
	}
	require.Empty(t, got.requests(), "nothing is sent unsigned")
}

func TestNothingShowsTheURL(t *testing.T) {
	t.Parallel()
	closed := newReceiver(t, nil)
	closed.Close()
	bad := newReceiver(t, status(500))
	for _, url := range []string{closed.URL, bad.URL, "http://does-not-exist.invalid", "http://127.0.0.1:1"} {
		o := newOutlet(t, hook("ops", url+"/services/hunter2?token=hunter2"))
		d := o.deliver(events("ops"))[0]
		require.True(t, d.Failed, url)
		require.NotEmpty(t, d.Problem)
		require.NotContains(t, d.Problem+o.lines(), "hunter2")
		require.NotContains(t, o.lines(), key)
		err := o.Ping(t.Context(), hook("ops", url+"/services/hunter2?token=hunter2"))
		require.Error(t, err)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	got := newReceiver(t, nil)
	o := newOutlet(t)
	require.NoError(t, o.Ping(t.Context(), hook("ops", got.URL)))
	r := got.requests()[0]
	require.NoError(t, verify(key, r.header, r.body, time.Now()))
	require.NotContains(t, r.header.Get("webhook-id"), ".")
	var plain map[string]any
	require.NoError(t, json.Unmarshal(r.body, &plain))
	require.Equal(t, notices.TypePing, plain["type"])
	refuses := newReceiver(t, status(http.StatusForbidden))
	err := o.Ping(t.Context(), hook("ops", refuses.URL))
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	require.ErrorContains(t, err, "same key")
}
