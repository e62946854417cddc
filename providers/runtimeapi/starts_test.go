package runtimeapi_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

// TestTwoStartsAtOnceStopNothing forces the worst order: each worker has made a
// box and sees both in the list before the other one is done.
func TestTwoStartsAtOnceStopNothing(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	var logged bytes.Buffer
	p.opts.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	a, b := p.open(t), p.open(t)
	listing, hold := make(chan struct{}), make(chan struct{})
	letGo := sync.OnceFunc(func() { close(hold) })
	var second box.Observation
	var failed error
	var done sync.WaitGroup
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Between: func() { // in the start of a
		done.Go(func() { second, failed = create(t, b, "race") })
		<-listing
	}})
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpList, Skip: 2, Before: func() { // b has started
		close(listing)
		<-hold
	}})
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStop, Before: func() { // a would stop its own
		letGo()
		done.Wait()
	}})
	first, err := create(t, a, "race")
	letGo()
	done.Wait()
	require.NoError(t, err)
	require.NoError(t, failed)
	require.Contains(t, logged.String(), "several boxes of one name")
	require.Len(t, p.Living(first.Ref.Name), 2)
	require.Equal(t, first.Ref, second.Ref, "both are told of what /sessions shows")
	require.Equal(t, runtimeapitest.StatusRunning, p.box(t, first.Ref.ID).Status)
	require.Zero(t, p.ops(runtimeapitest.OpStop))
	p.Heal()
	seen, err := a.Delete(t.Context(), first.Ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseGone, seen.Phase)
	require.Empty(t, p.Living(first.Ref.Name))
}

// TestAStartThatFoundABoxStopsNothing has three at once: one was told of its
// box, one's /start answers that box as if it had made it, and one makes another.
func TestAStartThatFoundABoxStopsNothing(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	a, b, c := p.open(t), p.open(t), p.open(t)
	ready, hold := make(chan struct{}), make(chan struct{})
	var told, third box.Observation
	var errTold, errThird error
	var done sync.WaitGroup
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Between: func() { // in the start of b
		p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Before: func() { // in that of c
			told, errTold = create(t, a, "race")
		}})
		// The lists so far: one of b, one of c, two of a.
		p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpList, Skip: 3, Before: func() {
			close(ready)
			<-hold
		}})
		done.Go(func() { third, errThird = create(t, c, "race") })
		<-ready
	}})
	_, err := create(t, b, "race")
	require.NoError(t, err)
	close(hold)
	done.Wait()
	require.NoError(t, errTold)
	require.NoError(t, errThird)
	require.NotEqual(t, told.Ref.ID, third.Ref.ID, "/sessions shows the newer one by then")
	require.Equal(t, runtimeapitest.StatusRunning, p.box(t, told.Ref.ID).Status, "somebody was told of it")
	require.Equal(t, runtimeapitest.StatusRunning, p.box(t, third.Ref.ID).Status)
	require.Zero(t, p.ops(runtimeapitest.OpStop))
}

func TestASecondBoxOfANameIsStoppedWithTheFirst(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	d := p.open(t)
	// Its create can't look at the list, so nobody notices.
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpList, Skip: 3, Status: http.StatusBadGateway})
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Between: func() { made(t, p.open(t), "race") }})
	ref := made(t, d, "race")
	require.Len(t, p.Living(ref.Name), 2)
	// Cut off after the first /stop: the box of the ref is still there to go on from.
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStop, Skip: 1, Drop: true})
	_, err := d.Delete(t.Context(), ref)
	wantClass(t, "delete", err, box.ClassUnavailable)
	require.Len(t, p.Living(ref.Name), 1)
	require.Equal(t, ref.ID, p.Living(ref.Name)[0].RuntimeID)
	seen, err := d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseGone, seen.Phase)
	require.Empty(t, p.Living(ref.Name))
}

func TestABoxThatTheSessionIsNoMoreIsNotStopped(t *testing.T) {
	t.Parallel()
	p := serve(t, runtimeapitest.Options{})
	var older box.Ref
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpList, Skip: 3, Status: http.StatusBadGateway})
	p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpStart, Between: func() { older = made(t, p.open(t), "race") }})
	d := p.open(t)
	newer := made(t, d, "race")
	require.NotEqual(t, older.ID, newer.ID)
	_, err := d.Delete(t.Context(), older)
	wantClass(t, "delete", err, box.ClassFailedPrecondition)
	_, err = d.Suspend(t.Context(), older)
	wantClass(t, "suspend", err, box.ClassUnknown)
	_, err = d.Endpoint(t.Context(), older)
	wantClass(t, "endpoint", err, box.ClassUnknown)
	require.Len(t, p.Living(newer.Name), 2)
	require.Zero(t, p.ops(runtimeapitest.OpStop)+p.ops(runtimeapitest.OpPause))
}
