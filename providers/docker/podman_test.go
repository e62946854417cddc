package docker_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
)

// Podman answers as an engine does that is new each time it is asked.
func TestPodmanIsRefusedByName(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	ref := made(t, p.driver(t, installation), "podman")
	behind := p.fake
	gate(t, p, func(*http.Request) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Libpod-Api-Version", "4.3.1")
			behind.ServeHTTP(w, r)
		}
	})
	d := p.driver(t, installation)
	_, err := d.Fingerprint(t.Context())
	wantClass(t, err, box.ClassFailedPrecondition)
	require.ErrorContains(t, err, "Podman")
	_, err = d.Create(t.Context(), request("podman"))
	wantClass(t, err, box.ClassFailedPrecondition)
	_, err = d.Observe(t.Context(), ref)
	wantClass(t, err, box.ClassFailedPrecondition)
}
