package docker_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
)

// A proxy may answer the ping by itself, and then no version is agreed.
func TestAPingWithoutAVersionAgreesOnNothing(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	var off atomic.Bool
	gate(t, p, func(r *http.Request) http.HandlerFunc {
		if r.URL.Path != "/_ping" || !off.Load() {
			return nil
		}
		return func(http.ResponseWriter, *http.Request) {}
	})
	d := p.driver(t, installation)
	for range 2 { // before anything was agreed, and after
		off.Store(true)
		_, err := d.Fingerprint(t.Context())
		wantClass(t, err, box.ClassUnavailable)
		off.Store(false)
		_, err = d.Fingerprint(t.Context())
		require.NoError(t, err)
	}
}

func TestAnErrorRepeatsNoBody(t *testing.T) {
	t.Parallel()
	page := "<html>\n" + strings.Repeat("<p>token=leaked-5e1f</p>\n", 4000) + "</html>"
	long, err := json.Marshal(map[string]string{"message": "too\nbad " + strings.Repeat("x", 100_000)})
	require.NoError(t, err)
	for name, row := range map[string]struct {
		status     int
		kind, body string
		class      box.Class
	}{
		"a page":               {http.StatusBadGateway, "text/html", page, box.ClassUnavailable},
		"plain words":          {http.StatusBadGateway, "text/plain", "token=leaked-5e1f", box.ClassUnavailable},
		"nothing":              {http.StatusBadGateway, "", "", box.ClassUnavailable},
		"a long message":       {http.StatusInternalServerError, "application/json", string(long), box.ClassUnavailable},
		"locked":               {http.StatusLocked, "application/json", `{"message":"locked"}`, box.ClassConflict},
		"a refusal of the box": {http.StatusForbidden, "application/json", string(long), box.ClassUnauthorized},
	} {
		for _, at := range []string{"/containers/json", "/volumes/create", "/start", "/archive"} {
			t.Run(name+" "+strings.ReplaceAll(at, "/", " "), func(t *testing.T) {
				t.Parallel()
				p := newFake(t, docker.SuspendStop)
				gate(t, p, func(r *http.Request) http.HandlerFunc {
					if !strings.HasSuffix(r.URL.Path, at) {
						return nil
					}
					return func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("Content-Type", row.kind)
						w.WriteHeader(row.status)
						_, _ = w.Write([]byte(row.body))
					}
				})
				_, err := p.driver(t, installation).Create(t.Context(), request("quoted"))
				require.Error(t, err)
				if at == "/containers/json" { // before any change
					wantClass(t, err, row.class)
				}
				for _, not := range []string{"leaked", "<", "\n", "filters=", "http://"} {
					require.NotContains(t, err.Error(), not)
				}
				require.Less(t, len(err.Error()), 1000)
			})
		}
	}
}

func TestAnAnswerWithoutEndIsNotRead(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	const much = 64 << 20
	var sent atomic.Int64
	gate(t, p, func(r *http.Request) http.HandlerFunc {
		if !strings.HasSuffix(r.URL.Path, "/info") {
			return nil
		}
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"ID":"`))
			piece := []byte(strings.Repeat("a", 1<<16))
			for sent.Load() < much {
				n, err := w.Write(piece)
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
		}
	})
	d := p.driver(t, installation)
	_, err := d.Fingerprint(t.Context())
	wantClass(t, err, box.ClassUnavailable)
	require.Less(t, sent.Load(), int64(much)/2)
}
