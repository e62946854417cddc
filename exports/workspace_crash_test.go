package exports_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/race"
)

func TestCrashAtEachWriteOfTheWorkspace(t *testing.T) {
	t.Parallel()
	files := smallWork()
	files["workspace/large"] = noise(5, (6<<20)/min(race.Slowness, 3))
	var chunks []string
	crashAtEachWrite(t, func() (exports.Source, *server) {
		src := newBoxWithWork(t, files, 1)
		return src, src.server
	}, func(b *bucket, _ *server) { chunks = chunkKeys(b.keys()) }, func(b *bucket, _ *server) {
		for _, key := range chunks {
			if slices.Contains(b.keys(), key+"-2") {
				t.Errorf("%s was there and was written again", key)
			}
		}
	})
}

func TestCancelEndsAHangingWorkspace(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	hanging := &stuck{started: make(chan struct{}), closed: make(chan struct{})}
	go func() {
		<-hanging.started
		cancel()
	}()
	b := newBucket()
	src := newBoxWithWork(t, smallWork(), 1)
	src.given = func(int, []byte) (io.ReadCloser, error) { return hanging, nil }
	_, err := b.store(exports.Options{}).Export(ctx, request("a"), src, nil)
	wantClass(t, err, box.ClassCanceled)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	noManifest(t, b)
}

func TestCancelInTheWorkspace(t *testing.T) {
	t.Parallel()
	files := smallWork()
	files["workspace/large"] = noise(6, 3<<20)
	cancelAtReports(t, 11*race.Slowness, func() (exports.Source, *server) {
		src := newBoxWithWork(t, files, 1)
		return src, src.server
	})
}

func TestTwoRunnersOfOneWorkspace(t *testing.T) {
	t.Parallel()
	s, _ := directoryStore(t)
	files := smallWork()
	files["workspace/large"] = noise(7, 10<<20)
	src := newBoxWithWork(t, files, 1)
	receipts := make([]box.Receipt, 3)
	done := make(chan error)
	for i := range receipts {
		go func() {
			var err error
			receipts[i], err = s.Export(t.Context(), request([]string{"a", "b", "a"}[i]), src, nil)
			done <- err
		}()
	}
	for range receipts {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, r := range receipts {
		proven(t, s, r, src.server)
		if r.Archive != receipts[0].Archive {
			t.Errorf("%+v and %+v", r.Archive, receipts[0].Archive)
		}
	}
}
