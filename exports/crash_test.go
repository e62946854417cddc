package exports_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// crashAtEachWrite fails the n-th write of an export, before and after it took
// effect, and repeats the attempt on the same store, until an export needs fewer.
// It returns how many that are. crashed and repeated are called after each.
func crashAtEachWrite(t *testing.T, source func() (exports.Source, *server), crashed, repeated func(*bucket, *server)) (writes int) {
	t.Helper()
	for _, when := range []string{"before", "after"} {
		for n := 1; ; n++ {
			b := newBucket()
			s := b.store(exports.Options{SpoolDir: t.TempDir()})
			src, history := source()
			crash := func(k int, _ string) error {
				if k >= n {
					return errFailing
				}
				return nil
			}
			if when == "before" {
				b.beforeWrite = crash
			} else {
				b.afterWrite = crash
			}
			_, err := s.Export(t.Context(), request("a"), src, nil)
			if err == nil {
				if writes > 0 && writes != n-1 {
					t.Errorf("an export takes %d writes or %d", writes, n-1)
				}
				writes = n - 1
				break
			}
			wantClass(t, err, box.ClassUnavailable)
			crashed(b, history)
			b.beforeWrite, b.afterWrite = nil, nil
			receipt, err := s.Export(t.Context(), request("a"), src, nil)
			if err != nil {
				t.Fatalf("%s write %d: %v", when, n, err)
			}
			proven(t, s, receipt, history)
			repeated(b, history)
		}
	}
	return writes
}

func TestCrashAtEachWrite(t *testing.T) {
	t.Parallel()
	fetched := 0
	writes := crashAtEachWrite(t, func() (exports.Source, *server) {
		src := newServer(2, 3, 1)
		return src, src
	}, func(_ *bucket, src *server) { fetched = len(src.downloads) }, func(_ *bucket, src *server) {
		// One conversation at most is fetched twice.
		if total := len(src.downloads); total > 4 {
			t.Errorf("%d downloads before and %d after the crash", fetched, total-fetched)
		}
	})
	if writes != 5 { // three conversations, the report of secrets, the manifest
		t.Errorf("an export of 3 conversations took %d writes, want 5", writes)
	}
}

// cancelAtReports cancels an export at every so many-th report of progress, until
// it needs fewer, and repeats it.
func cancelAtReports(t *testing.T, step int, source func() (exports.Source, *server)) {
	t.Helper()
	for k := 1; ; k += step {
		b := newBucket()
		s := b.store(exports.Options{SpoolDir: t.TempDir()})
		src, history := source()
		ctx, cancel := context.WithCancel(t.Context())
		calls, after := 0, 0
		receipt, err := s.Export(ctx, request("a"), src, func(exports.Progress) {
			if calls++; calls == k {
				cancel()
			} else if calls > k {
				after++
			}
		})
		cancel()
		if calls < k {
			if err != nil || receipt.IsZero() {
				t.Fatalf("without a cancel: %v", err)
			}
			return
		}
		if err == nil {
			// The last reports come when all that matters is done.
			proven(t, s, receipt, history)
			continue
		}
		wantClass(t, err, box.ClassCanceled)
		if !errors.Is(err, context.Canceled) || !receipt.IsZero() {
			t.Fatalf("report %d: %v %+v", k, err, receipt)
		}
		if after > 2 {
			t.Errorf("report %d: went on for %d reports", k, after)
		}
		if receipt, err = s.Export(t.Context(), request("a"), src, nil); err != nil {
			t.Fatalf("repeat after a cancel at report %d: %v", k, err)
		}
		proven(t, s, receipt, history)
	}
}

func TestCancelAtEachStep(t *testing.T) {
	t.Parallel()
	cancelAtReports(t, 1, func() (exports.Source, *server) {
		src := newServer(2, 3)
		return src, src
	})
}

// stuck is a body that hangs until it is closed.
type stuck struct {
	started, closed chan struct{}
	once            sync.Once
}

func (s *stuck) Read([]byte) (int, error) {
	s.once.Do(func() { close(s.started) })
	<-s.closed
	return 0, errors.New("read of a closed body")
}
func (s *stuck) Close() error { close(s.closed); return nil }

func TestCancelEndsAHangingDownload(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	b := &stuck{started: make(chan struct{}), closed: make(chan struct{})}
	go func() {
		<-b.started
		cancel()
	}()
	src := newServer(1)
	src.served = func(int, string, []byte) (io.ReadCloser, int64, error) { return b, -1, nil }
	_, err := newBucket().store(exports.Options{}).Export(ctx, request("a"), src, nil)
	wantClass(t, err, box.ClassCanceled)
}

func TestFullStoreIsExhausted(t *testing.T) {
	t.Parallel()
	b := newBucket()
	b.beforeWrite = func(int, string) error { return syscall.ENOSPC }
	s := b.store(exports.Options{})
	_, err := s.Export(t.Context(), request("a"), newServer(1), nil)
	wantClass(t, err, box.ClassExhausted)
	_, err = s.AppendLedger(t.Context(), "ws", note("x"))
	wantClass(t, err, box.ClassExhausted)
	wantClass(t, s.Check(t.Context()), box.ClassExhausted)
}

func TestCheckFindsAStoreThatOverwrites(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	if err := s.Check(t.Context()); err != nil || len(b.keys()) != 0 {
		t.Fatalf("%v %v", err, b.keys())
	}
	b.overwrites = true
	wantClass(t, s.Check(t.Context()), box.ClassUnsupported)
	b.overwrites = false
	b.kept = func(_ string, data []byte) []byte { return data[:1] }
	wantClass(t, s.Check(t.Context()), box.ClassUnknown)
	b.kept = func(string, []byte) []byte { return nil }
	wantClass(t, s.Check(t.Context()), box.ClassNotFound)
}

func TestSpoolThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	b := newBucket()
	missing := filepath.Join(t.TempDir(), "absent")
	_, err := b.store(exports.Options{SpoolDir: missing}).Export(t.Context(), request("a"), newServer(1), nil)
	if err == nil || strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "spool") {
		t.Errorf("the error should speak of the spool and show no path: %v", err)
	}
	noManifest(t, b)
}

// slowBody takes its time, and is broken when another download of the same
// conversation is under way, as upstream has it.
type slowBody struct {
	io.Reader
	leave func() (overlapped bool)
	ended bool
}

func (b *slowBody) Read(p []byte) (int, error) {
	time.Sleep(100 * time.Millisecond) // of the bubble's time
	n, err := b.Reader.Read(p[:min(len(p), 200)])
	if err != nil && !b.ended {
		b.ended = true
		if b.leave() {
			return n, io.ErrUnexpectedEOF
		}
	}
	return n, err
}

func (b *slowBody) Close() error {
	if !b.ended {
		b.ended = true
		b.leave()
	}
	return nil
}

// TestRunnersWhoseDownloadsCollide has a runner that its worker forgot, beside
// the one that was started in its place: no copy that they spoiled for each
// other is taken for one.
func TestRunnersWhoseDownloadsCollide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		s := b.store(exports.Options{SpoolDir: t.TempDir()})
		src := newServer(5, 6, 7)
		var mu sync.Mutex
		busy, collided := map[string]int{}, map[string]bool{}
		collisions := 0
		src.served = func(_ int, id string, honest []byte) (io.ReadCloser, int64, error) {
			mu.Lock()
			defer mu.Unlock()
			if busy[id]++; busy[id] > 1 {
				collided[id] = true
			}
			return &slowBody{Reader: bytes.NewReader(honest), leave: func() bool {
				mu.Lock()
				defer mu.Unlock()
				spoiled := collided[id]
				if spoiled {
					collisions++
				}
				if busy[id]--; busy[id] == 0 {
					delete(collided, id)
				}
				return spoiled
			}}, int64(len(honest)), nil
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				receipt, err := s.Export(t.Context(), request("a"), src, nil)
				if err == nil {
					proven(t, s, receipt, src)
				} else if !receipt.IsZero() {
					t.Errorf("a receipt beside %v", err)
				}
			})
		}
		wg.Wait()
		if collisions == 0 {
			t.Error("nothing collided")
		}
		receipt, err := s.Export(t.Context(), request("a"), src, nil)
		if err != nil {
			t.Fatal(err)
		}
		proven(t, s, receipt, src)
	})
}

func TestTwoRunnersOfOneAttempt(t *testing.T) {
	t.Parallel()
	s, _ := directoryStore(t)
	src := newServer(5, 6, 7)
	var wg sync.WaitGroup
	receipts := make([]box.Receipt, 4)
	for i := range receipts {
		wg.Go(func() {
			var err error
			if receipts[i], err = s.Export(t.Context(), request("a"), src, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, r := range receipts {
		if r != receipts[0] {
			t.Errorf("receipts differ: %+v %+v", r, receipts[0])
		}
		proven(t, s, r, src)
	}
}
