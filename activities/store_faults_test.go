package activities_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

var (
	errAbsent = errors.New("no such object")
	errTaken  = errors.New("there already")
	errAway   = errors.New("the store is away")
	errDenied = errors.New("the store's credentials ran out")
)

// flaky is a bucket of which one call fails: before it does anything, or with
// its answer lost.
type flaky struct {
	mu      sync.Mutex
	objects map[string][]byte
	calls   int
	fault   int // the call that fails; zero for none
	lost    bool
	denied  bool // it fails for its credentials
	watched bool // it is the test that looks: nothing is counted
}

// call counts one call and carries it out.
func (b *flaky) call(do func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watched {
		return do()
	}
	if b.calls++; b.calls != b.fault {
		return do()
	}
	switch {
	case b.denied:
		return errDenied
	case b.lost:
		_ = do()
	}
	return errAway
}

func (b *flaky) ErrorCode(err error) gcerrors.ErrorCode {
	switch {
	case errors.Is(err, errAbsent):
		return gcerrors.NotFound
	case errors.Is(err, errTaken):
		return gcerrors.FailedPrecondition
	case errors.Is(err, errDenied):
		return gcerrors.PermissionDenied
	}
	return gcerrors.Unknown
}

func (b *flaky) As(any) bool             { return false }
func (b *flaky) ErrorAs(error, any) bool { return false }
func (b *flaky) Close() error            { return nil }

func (b *flaky) get(key string) (data []byte, err error) {
	err = b.call(func() error {
		found, ok := b.objects[key]
		if !ok {
			return errAbsent
		}
		data = found
		return nil
	})
	return data, err
}

func (b *flaky) Attributes(_ context.Context, key string) (*driver.Attributes, error) {
	data, err := b.get(key)
	return &driver.Attributes{Size: int64(len(data))}, err
}

func (b *flaky) ListPaged(_ context.Context, opts *driver.ListOptions) (*driver.ListPage, error) {
	page := &driver.ListPage{}
	err := b.call(func() error {
		for _, key := range slices.Sorted(maps.Keys(b.objects)) {
			if strings.HasPrefix(key, opts.Prefix) {
				page.Objects = append(page.Objects, &driver.ListObject{Key: key, Size: int64(len(b.objects[key]))})
			}
		}
		return nil
	})
	return page, err
}

type flakyReader struct {
	io.Reader
	attrs driver.ReaderAttributes
}

func (r *flakyReader) Close() error                         { return nil }
func (r *flakyReader) Attributes() *driver.ReaderAttributes { return &r.attrs }
func (r *flakyReader) As(any) bool                          { return false }

func (b *flaky) NewRangeReader(_ context.Context, key string, offset, length int64, _ *driver.ReaderOptions) (driver.Reader, error) {
	data, err := b.get(key)
	if err != nil {
		return nil, err
	}
	part := data[min(offset, int64(len(data))):]
	if length >= 0 {
		part = part[:min(length, int64(len(part)))]
	}
	return &flakyReader{Reader: bytes.NewReader(part), attrs: driver.ReaderAttributes{Size: int64(len(data))}}, nil
}

type flakyWriter struct {
	bytes.Buffer
	bucket  *flaky
	key     string
	replace bool
}

func (b *flaky) NewTypedWriter(_ context.Context, key, _ string, opts *driver.WriterOptions) (driver.Writer, error) {
	return &flakyWriter{bucket: b, key: key, replace: !opts.IfNotExist}, nil
}

func (w *flakyWriter) Close() error {
	return w.bucket.call(func() error {
		if _, there := w.bucket.objects[w.key]; there && !w.replace {
			return errTaken
		}
		w.bucket.objects[w.key] = w.Bytes()
		return nil
	})
}

func (b *flaky) Copy(context.Context, string, string, *driver.CopyOptions) error { return errAway }

func (b *flaky) Delete(_ context.Context, key string) error {
	return b.call(func() error { delete(b.objects, key); return nil })
}

func (b *flaky) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", errAway
}

// life is one workspace from its creation to its deletion over a store of which
// a call fails. Each step is tried until it succeeds, under its own id, as the
// rules do.
type life struct {
	*rig
	bucket *flaky
	target activities.Target
	steps  int
}

// intents are what the ledger must hold before the provider is told.
var intents = map[fakebox.Op]exports.Kind{
	fakebox.OpCreate: exports.KindCreateIntent, fakebox.OpSuspend: exports.KindSuspendIntent,
	fakebox.OpResume: exports.KindResumeIntent, fakebox.OpDelete: exports.KindDeleteIntent,
}

// try carries out a step until it succeeds and checks, after each try, that the
// provider was told nothing that the ledger does not hold, and that whoever
// rebuilds the workspace now can read it.
func try[I any](l *life, act func(context.Context, I) (box.Outcome, error), in func() I) box.Outcome {
	l.t.Helper()
	for range 4 {
		l.steps++
		l.target.Step = fmt.Sprintf("e1-s%d", l.steps)
		out, err := run(l.t.Context(), l.rig, act, in())
		l.bucket.watched = true
		entries, readErr := l.store.Ledger(l.t.Context(), workspace)
		l.bucket.watched = false
		require.NoError(l.t, readErr)
		for op, intent := range intents {
			told := l.calls(op) > 0
			noted := slices.ContainsFunc(entries, func(e exports.Entry) bool { return e.Kind == intent })
			require.False(l.t, told && !noted, "the provider was told to %s, and the ledger holds no intent", op)
		}
		closed := slices.ContainsFunc(entries, func(e exports.Entry) bool { return e.Kind.Closes() })
		require.False(l.t, closed && l.phase() != box.PhaseGone && l.phase() != "", "a tombstone of a box that is %s", l.phase())
		if len(entries) > 0 {
			_, _, rebuildErr := box.Rebuild(workspace, entries)
			require.NoError(l.t, rebuildErr)
		}
		if err == nil {
			return out
		}
		failure := activities.FailureOf(err)
		require.True(l.t, failure.Class.Retryable(), "a store that is away for a moment is no verdict: %s", failure.Message)
	}
	l.t.Fatal("the store is back, and the step fails for ever")
	return box.Outcome{}
}

func (l *life) live() {
	out := try(l, l.boxes.Create, func() activities.CreateInput { return creating(l.target.Step) })
	l.target = activities.Target{Workspace: workspace, Ref: out.Observation.Ref}
	l.write(agentservertest.Conversation{Events: events(3)})
	try(l, l.boxes.Suspend, func() activities.Target { return l.target })
	try(l, l.boxes.Resume, func() activities.ResumeInput { return activities.ResumeInput{Target: l.target} })
	receipt := try(l, l.boxes.Export, func() activities.ExportInput { return activities.ExportInput{Target: l.target} }).Receipt
	try(l, l.boxes.Suspend, func() activities.Target { return l.target })
	deletion := func() activities.DeleteInput {
		return activities.DeleteInput{Target: l.target, Spec: spec(), Epoch: 1, Receipt: receipt, By: "ana"}
	}
	require.Empty(l.t, try(l, l.boxes.VerifyExport, deletion).Problem)
	l.cloud.Inject(fakebox.Fault{Op: fakebox.OpDelete, Class: box.ClassUnavailable}) // no tombstone before the proof
	require.Equal(l.t, box.PhaseGone, try(l, l.boxes.Delete, deletion).Observation.Phase)
	l.bucket.watched = true
	closed, _, err := l.store.Closed(l.t.Context(), workspace)
	require.NoError(l.t, err)
	require.True(l.t, closed)
	require.LessOrEqual(l.t, l.calls(fakebox.OpDelete), 3)
	_, err = l.store.Verify(l.t.Context(), workspace, receipt)
	require.NoError(l.t, err, "the history is there")
	s, _ := l.cloud.Statement(name)
	require.Equal(l.t, 1, s.Wakes)
	fails(l.rig, box.ClassFailedPrecondition, l.boxes.Create, creating("e1-s99"))
}

// Whichever call of the store fails, and whether or not it did what it was asked
// for: the ledger is ahead of the provider, a try again ends alike, and nothing
// is lost, doubled or left behind.
func TestALifeOverAStoreWhoseAnyCallFails(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T, fault int, lost, denied bool) *life {
		t.Helper()
		l := &life{rig: newRig(t, nil), bucket: &flaky{objects: map[string][]byte{}, fault: fault, lost: lost, denied: denied}}
		l.store = exports.New(blob.NewBucket(l.bucket), exports.Options{SpoolDir: t.TempDir()})
		l.boxes.Store = l.store
		return l
	}
	whole := begin(t, 0, false, false)
	whole.live()
	calls := whole.bucket.calls
	require.Greater(t, calls, 60)
	for _, lost := range []bool{false, true} {
		for n := 1; n <= calls; n++ {
			t.Run(fmt.Sprintf("call %d, its answer lost: %v", n, lost), func(t *testing.T) {
				t.Parallel()
				begin(t, n, lost, false).live()
			})
		}
	}
	// What refuses its credentials is the store, not the provider, which may have
	// been told already.
	for n := 1; n <= calls; n++ {
		t.Run(fmt.Sprintf("call %d, refused", n), func(t *testing.T) {
			t.Parallel()
			begin(t, n, false, true).live()
		})
	}
}
