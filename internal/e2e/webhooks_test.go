package e2e_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// hooked is a webhook that checks each signature with HMAC alone, loses its
// answers to the first two events, and keeps what it took.
type hooked struct {
	*httptest.Server

	mu     sync.Mutex
	tries  map[string]int
	lost   int
	types  []string
	bodies map[string]string
	wrong  []string
}

func newHooked(t *testing.T, key []byte) *hooked {
	t.Helper()
	h := &hooked{tries: map[string]int{}, bodies: map[string]string{}}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		id := r.Header.Get("webhook-id")
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, r.Header.Get("webhook-timestamp"), body)
		h.mu.Lock()
		defer h.mu.Unlock()
		var e struct{ ID, Type string }
		switch {
		case r.Header.Get("webhook-signature") != "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)):
			h.wrong = append(h.wrong, "the signature of "+id)
		case json.Unmarshal(body, &e) != nil || e.ID != id:
			h.wrong = append(h.wrong, "the id of "+id)
		case h.bodies[id] != "" && h.bodies[id] != string(body):
			h.wrong = append(h.wrong, id+" is another event the second time")
		}
		if h.tries[id]++; h.tries[id] == 1 {
			h.types = append(h.types, strings.TrimSuffix(strings.TrimPrefix(e.Type, "dev.boxkeeper.box."), ".v1"))
			h.bodies[id] = string(body)
			if h.lost++; h.lost <= 2 {
				panic(http.ErrAbortHandler) // it has the event, and its answer is lost
			}
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hooked) seen() (types, wrong []string, tries map[string]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	tries = map[string]int{}
	for id, n := range h.tries {
		tries[id] = n
	}
	return append([]string(nil), h.types...), append([]string(nil), h.wrong...), tries
}

// TestAWholeLifeIsToldToAWebhook lives a life with two webhooks, one of which
// is not there: the other is told of all of it in order, though answers are
// lost, and neither the key nor the token in its URL is anywhere.
func TestAWholeLifeIsToldToAWebhook(t *testing.T) {
	t.Parallel()
	raw := sha256.Sum256([]byte(uuid.NewString()))
	key := "whsec_" + base64.StdEncoding.EncodeToString(raw[:])
	token := "tok" + strings.ReplaceAll(uuid.NewString(), "-", "")
	hook := newHooked(t, raw[:])
	i := newInstallationWith(t, fmt.Sprintf(`
[webhooks.canvas]
url = "%s/hook?token=%s"
keys = ["env:HOOK_KEY"]
[webhooks.dead]
url = "http://127.0.0.1:1/"
keys = ["env:HOOK_KEY"]
`, hook.URL, token), "HOOK_KEY="+key)
	ws := "told-" + uuid.NewString()[:8]
	_, code := i.run("box", "create", ws, "--owner", "ann", "--idle", "2s", "--paused-ttl", "10s", "--notice", "5s", "--wait")
	require.Zero(t, code)
	i.await(ws, within, box.StateAwaitingConfirm)
	loss := answerOf[box.Loss](i, "box", "delete", ws, "--undo", "1s")
	_, code = i.run("box", "confirm", ws, "--token", loss.Token)
	require.Zero(t, code)
	s := i.await(ws, within, box.StateBoxArchived)
	require.Len(t, s.Webhooks, 2)
	require.Equal(t, "dead", s.Webhooks[1].Name)
	require.NotZero(t, s.Webhooks[1].Failed)

	var got []string
	eventually(t, within, func() error {
		types, wrong, tries := hook.seen()
		got = types
		require.Empty(t, wrong)
		again := 0
		for _, n := range tries {
			again += min(n-1, 1)
		}
		if again < 2 {
			return fmt.Errorf("%d were sent again; told so far: %v", again, types)
		}
		if len(types) == 0 || types[len(types)-1] != string(box.EventBoxArchived) {
			return fmt.Errorf("told so far: %v", types)
		}
		return nil
	})
	var life []string
	for _, kind := range got { // notices go another way, so their place among the events is not fixed
		if kind != string(box.EventExpiryNotice) && kind != string(box.EventReminder) {
			life = append(life, kind)
		}
	}
	require.Equal(t, []string{
		"created", "suspended", "awaiting-confirmation", "deletion-requested", "deletion-confirmed", "undo-window", "box-archived",
	}, life)
	require.Contains(t, got, string(box.EventExpiryNotice))

	for place, text := range map[string]string{"histories": i.histories(ws), "log of worker": i.worker.text(), "the engine files": i.files("engine"), "the store": i.files("exports")} {
		require.Contains(t, text, ws, "%s: the canary is not found, so nothing would be", place)
		for name, value := range map[string]string{"the key": key, "the key's bytes": base64.StdEncoding.EncodeToString(raw[:]), "the token of the URL": token} {
			require.False(t, strings.Contains(text, value), "%s holds %s", place, name)
		}
	}
}
