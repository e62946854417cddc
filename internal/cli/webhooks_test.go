package cli_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
)

// configured writes a configuration with one webhook into a data directory.
func configured(t *testing.T, url, more string) string {
	t.Helper()
	data := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(data, "credentials"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(data, "credentials", "hook"), []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600))
	text := "[webhooks.ops]\nurl = \"" + url + "\"\nkeys = [\"credential:hook\"]\n" + more
	require.NoError(t, os.WriteFile(filepath.Join(data, config.FileName), []byte(text), 0o600))
	return data
}

func TestCheckSendsAPing(t *testing.T) {
	t.Parallel()
	var got []string
	status := http.StatusNoContent
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("webhook-id")+" "+r.Header.Get("webhook-signature"))
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	data := configured(t, server.URL+"/hook?token=hunter2", "")
	ok := runIn(t, nil, data, "", "check")
	assert.Regexp(t, `ok +webhook ops +http://127.0.0.1:\d+/hook took a ping`, ok.stdout)
	require.Len(t, got, 1)
	assert.Regexp(t, `^ping-unknown-\S+ v1,\S+$`, got[0])

	status = http.StatusUnauthorized
	bad := runIn(t, nil, data, "", "check")
	assert.Regexp(t, `fail +webhook ops +webhook ops did not take the ping: it answered 401: it does not accept the signature`, bad.stdout)
	assert.NotContains(t, ok.stdout+bad.stdout+bad.stderr, "hunter2")
	assert.NotContains(t, bad.stdout+bad.stderr, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

	quiet := runIn(t, nil, configured(t, server.URL, "events = [\"box-archived\"]\n"), "", "check")
	assert.Regexp(t, `warn +notices +no webhook takes expiry-notice`, quiet.stdout)
	assert.Regexp(t, `ok +notices +go to the log`, runWith(t, nil, "check").stdout)
}

func TestConfigShowsNoTokenOfAWebhook(t *testing.T) {
	t.Parallel()
	data := configured(t, "https://canvas.example/hooks?token=hunter2", "events = [\"lost\", \"box-archived\"]\n")
	text := runIn(t, nil, data, "", "config")
	require.Zero(t, text.code, text.stderr)
	assert.Contains(t, text.stdout, "webhook ops: https://canvas.example/hooks, key credential:hook, takes lost, box-archived")
	asJSON := runIn(t, nil, data, "", "config", "-o", "json")
	assert.Contains(t, asJSON.stdout, `"url": "https://canvas.example/hooks"`)
	assert.NotContains(t, text.stdout+asJSON.stdout, "hunter2")
}

func TestShowSaysWhatAWebhookNeverGot(t *testing.T) {
	t.Parallel()
	fake := newFake()
	require.Zero(t, runWith(t, fake, "box", "create", "mine").code)
	f := fake.facts["mine"]
	f.Outbox = box.Outbox{
		Number: 3, Untold: 2,
		Events: []box.Event{{Number: 3, Kind: box.EventSuspended}},
		Receivers: []box.Receiver{
			{Listener: box.Listener{Name: "good"}, Taken: 3},
			{Listener: box.Listener{Name: "bad"}, Taken: 2, Failed: 4, Dropped: 1, Problem: "it answered 500", RetryAt: now.Add(time.Hour)},
		},
	}
	got := runWith(t, fake, "box", "show", "mine")
	assert.Contains(t, got.stdout, "Webhook bad fails: 4 times, last: it answered 500. It is tried again ")
	assert.Contains(t, got.stdout, "Webhook bad never got 1 event.")
	assert.Contains(t, got.stdout, "2 notices reached nobody in time.")
	assert.NotContains(t, got.stdout, "good")
}
