package docker_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/docker/dockertest"
	"github.com/openhands/boxkeeper/providers/driver"
)

// gate is in front of an engine, and says what answers to each request: nil for
// the engine itself.
func gate(t *testing.T, p *place, before func(r *http.Request) http.HandlerFunc) {
	t.Helper()
	behind, err := url.Parse("http" + strings.TrimPrefix(p.opts.Host, "tcp"))
	require.NoError(t, err)
	engine := httputil.NewSingleHostReverseProxy(behind)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer := before(r); answer != nil {
			answer(w, r)
			return
		}
		engine.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p.opts.Host = "tcp" + strings.TrimPrefix(server.URL, "http")
}

func changes(r *http.Request) bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }

// turns are the calls that change a box, and what has to be done before.
var turns = map[string]struct {
	kind   docker.SuspendKind
	before func(t *testing.T, p *place, d *docker.Driver, ref box.Ref)
	call   func(ctx context.Context, d *docker.Driver, ref box.Ref) error
}{
	"create": {before: func(t *testing.T, _ *place, d *docker.Driver, ref box.Ref) {
		t.Helper()
		_, err := d.Delete(t.Context(), ref)
		require.NoError(t, err)
	}, call: func(ctx context.Context, d *docker.Driver, _ box.Ref) error {
		_, err := d.Create(ctx, request("turn"))
		return err
	}},
	"stop":  {call: suspend},
	"pause": {kind: docker.SuspendPause, call: suspend},
	"deepen": {kind: docker.SuspendPause, before: suspended, call: func(ctx context.Context, d *docker.Driver, ref box.Ref) error {
		_, err := d.Deepen(ctx, ref)
		return err
	}},
	"start": {before: suspended, call: resume},
	"thaw":  {kind: docker.SuspendPause, before: suspended, call: resume},
	"delete": {call: func(ctx context.Context, d *docker.Driver, ref box.Ref) error {
		_, err := d.Delete(ctx, ref)
		return err
	}},
}

func suspended(t *testing.T, _ *place, d *docker.Driver, ref box.Ref) {
	t.Helper()
	require.NoError(t, suspend(t.Context(), d, ref))
}

func suspend(ctx context.Context, d *docker.Driver, ref box.Ref) error {
	_, err := d.Suspend(ctx, ref)
	return err
}

func resume(ctx context.Context, d *docker.Driver, ref box.Ref) error {
	_, err := d.Resume(ctx, ref, start())
	return err
}

// An authorization plugin may refuse any request, and so may a proxy. What it
// refuses after a change was carried out does not undo that; where nothing is left
// the call did.
func TestAfterAChangeNoRefusalSaysThatNothingWasDone(t *testing.T) {
	t.Parallel()
	for name, turn := range turns {
		for _, status := range []int{http.StatusForbidden, http.StatusBadRequest} {
			t.Run(name+" "+http.StatusText(status), func(t *testing.T) {
				t.Parallel()
				for bad := int64(1); ; bad++ {
					var on, done atomic.Bool
					var count atomic.Int64
					p, d, ref := turned(t, turn.kind, turn.before, func(r *http.Request) http.HandlerFunc {
						if !on.Load() {
							return nil
						}
						if count.Add(1) == bad {
							return func(w http.ResponseWriter, _ *http.Request) {
								w.Header().Set("Content-Type", "application/json")
								w.WriteHeader(status)
								_, _ = w.Write([]byte(`{"message":"authorization denied by plugin"}`))
							}
						}
						if changes(r) && count.Load() < bad {
							done.Store(true)
						}
						return nil
					})
					on.Store(true)
					err := turn.call(t.Context(), d, ref)
					if err != nil && done.Load() && len(p.left(t, ref)) > 0 {
						require.False(t, driver.Settled(box.ClassOf(err)), "request %d: %v", bad, err)
					}
					if count.Load() < bad {
						require.Greater(t, bad, int64(4))
						return
					}
				}
			})
		}
	}
}

// turned is a box behind a gate, brought to where a call begins.
func turned(t *testing.T, kind docker.SuspendKind, before func(*testing.T, *place, *docker.Driver, box.Ref), at func(r *http.Request) http.HandlerFunc) (*place, *docker.Driver, box.Ref) {
	t.Helper()
	p := newFake(t, kind)
	gate(t, p, at)
	d := p.driver(t, installation)
	ref := made(t, d, "turn")
	if before != nil {
		before(t, p, d, ref)
	}
	return p, d, ref
}

// overtaken is a context that ends without a signal, as that of a worker does
// which stood still.
type overtaken struct {
	context.Context //nolint:containedctx // it is one
	ended           *atomic.Bool
}

func (o overtaken) Err() error {
	if o.ended.Load() {
		return context.Canceled
	}
	return o.Context.Err()
}

func TestAWorkerThatWasOvertakenDoesNotAct(t *testing.T) {
	t.Parallel()
	for name, turn := range turns {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for last := int64(1); ; last++ {
				var on, over atomic.Bool
				var count, late atomic.Int64
				_, d, ref := turned(t, turn.kind, turn.before, func(r *http.Request) http.HandlerFunc {
					if !on.Load() {
						return nil
					}
					switch n := count.Add(1); {
					case n == last:
						over.Store(true) // while it is answered
					case n > last && changes(r):
						late.Add(1)
					}
					return nil
				})
				on.Store(true)
				err := turn.call(overtaken{t.Context(), &over}, d, ref)
				require.Zero(t, late.Load(), "changed something after request %d: %v", last, err)
				if count.Load() < last {
					require.Greater(t, last, int64(4))
					return
				}
			}
		})
	}
}

// As a person meets it: the container is gone, its volume is kept.
func TestADeletionThatIsRefusedHalfWayIsUnderWay(t *testing.T) {
	t.Parallel()
	p := newFake(t, docker.SuspendStop)
	d := p.driver(t, installation)
	ref := made(t, d, "half")
	p.fake.Next(http.MethodDelete, "/volumes/"+ref.Name, dockertest.Fault{Status: http.StatusForbidden, Message: "authorization denied by plugin"})
	_, err := d.Delete(t.Context(), ref)
	wantClass(t, err, box.ClassUnavailable)
	require.ErrorContains(t, err, "authorization denied by plugin")
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
}
