package runtimeapi_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

// stillness is over, for whoever asks, once over is set; nothing tells it.
type stillness struct {
	context.Context //nolint:containedctx // it is a context
	over            *atomic.Bool
}

func (s stillness) Err() error {
	if s.over.Load() {
		return context.Canceled
	}
	return s.Context.Err()
}

// TestWhoStoodStillChangesNothing ends a context without a signal after the look
// that each change begins with.
func TestWhoStoodStillChangesNothing(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(ctx context.Context, d driver.Driver, running, paused box.Ref) error{
		"create": func(ctx context.Context, d driver.Driver, _, _ box.Ref) error {
			_, err := d.Create(ctx, driver.CreateRequest{Identity: box.Identity{Installation: installation, Workspace: "new", Epoch: 1}})
			return err
		},
		"suspend": func(ctx context.Context, d driver.Driver, running, _ box.Ref) error {
			_, err := d.Suspend(ctx, running)
			return err
		},
		"resume": func(ctx context.Context, d driver.Driver, _, paused box.Ref) error {
			_, err := d.Resume(ctx, paused, driver.Start{})
			return err
		},
		"delete": func(ctx context.Context, d driver.Driver, running, _ box.Ref) error {
			_, err := d.Delete(ctx, running)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, runtimeapitest.Options{})
			d := p.open(t)
			running, paused := made(t, d, "running"), made(t, d, "paused")
			_, err := d.Suspend(t.Context(), paused)
			require.NoError(t, err)
			before := p.changes()
			var over atomic.Bool
			for _, op := range []runtimeapitest.Op{runtimeapitest.OpSession, runtimeapitest.OpList} {
				p.Inject(runtimeapitest.Fault{Op: op, Times: -1, Before: func() { over.Store(true) }})
			}
			wantClass(t, name, call(stillness{t.Context(), &over}, d, running, paused), box.ClassCanceled)
			require.Equal(t, before, p.changes(), "a change was sent by somebody whom nobody waits for")
			p.Heal()
			over.Store(false)
			require.NoError(t, call(stillness{t.Context(), &over}, d, running, paused), "nothing is unclear of what was not sent")
		})
	}
}

// changes counts the requests that can change something.
func (p *place) changes() (n int) {
	for _, call := range p.Calls() {
		if call.Method != http.MethodGet {
			n++
		}
	}
	return n
}

// TestABoxThatEndsAfterItsPause is gone, and only the next call says so: until
// then a request of the call was carried out.
func TestABoxThatEndsAfterItsPause(t *testing.T) {
	t.Parallel()
	for name, skip := range map[string]int{"before the first look": 1, "between the two": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, runtimeapitest.Options{})
			d := p.open(t)
			ref := made(t, d, "ends")
			p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Skip: skip, Before: func() { p.Stop(ref.ID) }})
			_, err := d.Suspend(t.Context(), ref)
			wantClass(t, "suspend", err, box.ClassUnavailable)
			require.Equal(t, 1, p.ops(runtimeapitest.OpPause))
			_, err = d.Suspend(t.Context(), ref)
			wantClass(t, "suspend again", err, box.ClassNotFound)
		})
	}
}

// TestARefusedLookAtASuspendedBoxIsARefusal: no request of the call changed
// anything, so nothing is unclear.
func TestARefusedLookAtASuspendedBoxIsARefusal(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	ref := made(t, d, "asleep")
	_, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Skip: 1, Status: http.StatusUnauthorized, Body: `{"error":"Unauthorized"}`})
	_, err = d.Suspend(t.Context(), ref)
	wantClass(t, "suspend", err, box.ClassUnauthorized)
}

// TestAStartThatMayBeDoneIsNotSaidToBeRefused, whatever the service says of it
// or of the look that follows.
func TestAStartThatMayBeDoneIsNotSaidToBeRefused(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Status: http.StatusNotImplemented, Body: `{"error":"no"}`})
	_, err := create(t, p.open(t), "unclear")
	wantClass(t, "create", err, box.ClassUnavailable)
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpSession, Skip: 2, Status: http.StatusUnauthorized, Body: `{"error":"Unauthorized"}`})
	_, err = create(t, p.open(t), "unread")
	wantClass(t, "create", err, box.ClassUnavailable)
	require.Len(t, p.Boxes(), 1)
}

// TestASecretThatBeginsAnotherIsHidden with all of the other one.
func TestASecretThatBeginsAnotherIsHidden(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Status: http.StatusBadRequest, Body: `{"error":"no: canary, canary-tail-4711 and runtime-api-key"}`})
	_, err := p.open(t).Create(t.Context(), driver.CreateRequest{
		Identity: box.Identity{Installation: installation, Workspace: "told", Epoch: 1},
		Start:    driver.Start{SecretEnv: map[string]box.Secret{"A": "canary", "B": "canary-tail-4711", "C": ""}},
	})
	wantClass(t, "create", err, box.ClassInvalid)
	require.Contains(t, err.Error(), "(no: [redacted], [redacted] and [redacted])")
}

// TestAnIDThatIsNoneIsRefused before anything is sent.
func TestAnIDThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	ref := made(t, d, "mine")
	before := len(p.Calls())
	for _, id := range []string{"", ".", "a/b", "a b", "a?b", "a\n", "é"} {
		ref.ID = id
		_, err := d.Observe(t.Context(), ref)
		wantClass(t, "observe "+id, err, box.ClassFailedPrecondition)
		_, err = d.Delete(t.Context(), ref)
		wantClass(t, "delete "+id, err, box.ClassFailedPrecondition)
	}
	require.Len(t, p.Calls(), before)
}
