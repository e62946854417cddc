package notices_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/notices"
)

const (
	installation = "a1b2c3d4"
	// key is that of the vectors of Standard Webhooks; other is another one.
	key   = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

func noon() time.Time { return time.Date(2026, 6, 29, 18, 15, 0, 0, time.UTC) }

// request is one that a receiver got.
type request struct {
	header http.Header
	body   []byte
	path   string
}

// receiver is a webhook that answers as it is told and keeps what it got.
type receiver struct {
	*httptest.Server

	mu  sync.Mutex
	got []request
}

// newReceiver answers with reply, which gets the number of the request; nil
// takes everything.
func newReceiver(t *testing.T, reply func(n int, w http.ResponseWriter, r *http.Request)) *receiver {
	t.Helper()
	return start(t, reply, httptest.NewServer)
}

func start(t *testing.T, reply func(int, http.ResponseWriter, *http.Request), server func(http.Handler) *httptest.Server) *receiver {
	t.Helper()
	out := &receiver{}
	out.Server = server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the sender gave up
		}
		out.mu.Lock()
		out.got = append(out.got, request{header: r.Header.Clone(), body: body, path: r.URL.RequestURI()})
		n := len(out.got)
		out.mu.Unlock()
		if reply != nil {
			reply(n, w, r)
		}
	}))
	t.Cleanup(out.Close)
	return out
}

func (r *receiver) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]request(nil), r.got...)
}

func status(code int) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// secrets resolves the references of the tests.
func secrets(reference string) (box.Secret, error) {
	switch reference {
	case "env:KEY":
		return key, nil
	case "env:OTHER":
		return other, nil
	case "env:BAD":
		return "hunter2hunter2hunter2hunter2", nil
	}
	return "", errors.New("secret " + reference + ": there is no such variable")
}

// hook is a webhook of that name at a URL.
func hook(name, url string) notices.Webhook {
	return notices.Webhook{Name: name, URL: url, Keys: []string{"env:KEY"}}
}

// outlet is one over webhooks, with its log and its records.
type outlet struct {
	*notices.Outlet
	t   *testing.T
	log *observer.ObservedLogs

	mu      sync.Mutex
	records []string
}

func newOutlet(t *testing.T, hooks ...notices.Webhook) *outlet {
	t.Helper()
	return newOutletWith(t, notices.Options{Webhooks: hooks})
}

func newOutletWith(t *testing.T, o notices.Options) *outlet {
	t.Helper()
	out := &outlet{t: t}
	core, log := observer.New(zapcore.DebugLevel)
	out.log = log
	o.Installation, o.Secret, o.Logger = installation, secrets, zap.New(core)
	if o.Within == 0 {
		o.Within = 5 * time.Second
	}
	o.Record = func(webhook, outcome string, _ time.Duration) {
		out.mu.Lock()
		defer out.mu.Unlock()
		out.records = append(out.records, webhook+" "+outcome)
	}
	out.Outlet = notices.New(o)
	t.Cleanup(out.Close)
	return out
}

// lines is everything that was logged.
func (o *outlet) lines() string {
	var out string
	for _, entry := range o.log.All() {
		fields, err := json.Marshal(entry.ContextMap())
		require.NoError(o.t, err)
		out += entry.Message + " " + string(fields) + "\n"
	}
	return out
}

// events is a posting of lifecycle events to receivers from the beginning.
func events(to ...string) box.Posting {
	p := box.Posting{Workspace: "login-page", Owner: "user-17", Provider: "local", Events: []box.Event{
		{
			Number: 1, ID: "login-page-e1-1-0a1b2c3d", Kind: box.EventCreated, At: noon(), Epoch: 1, State: box.StateRunning,
			Reason: box.Reason{Code: box.ReasonCreated, Text: "created, and its agent-server answers"},
		},
		{
			Number: 2, ID: "login-page-e1-2-0a1b2c3d", Kind: box.EventSuspended, At: noon().Add(time.Hour), Epoch: 1, State: box.StateSuspended,
			Reason: box.Reason{Code: box.ReasonIdle, Text: "suspended"}, Due: noon().Add(31 * 24 * time.Hour), Then: "a person is asked",
		},
	}}
	for _, name := range to {
		p.To = append(p.To, box.Cursor{Name: name})
	}
	return p
}

// notice is a posting of one notice.
func notice() box.Posting {
	p := events()
	p.Events = []box.Event{{
		ID: "login-page-e1-1782756900-0-due-1785348900", Kind: box.EventExpiryNotice, At: noon().Add(27 * 24 * time.Hour), Epoch: 1, State: box.StateSuspended,
		Reason: box.Reason{Code: box.ReasonNoticeDue, Text: "suspended since 2026-06-29 18:15 UTC; it expires at 2026-07-29 18:15 UTC"},
		Due:    noon().Add(30 * 24 * time.Hour), Then: "a person is asked; nothing is deleted by itself",
	}}
	return p
}

func (o *outlet) deliver(p box.Posting) []box.Delivery {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), 30*time.Second)
	defer cancel()
	out, err := o.Deliver(ctx, p)
	require.NoError(o.t, err)
	return out
}
