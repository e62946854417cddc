package docker_test

import (
	"net/http"
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
