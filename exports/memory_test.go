package exports_test

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/race"
)

// generated is a source of one conversation whose zip is made while it is read.
type generated struct {
	events, eventBytes int
}

func (g generated) Conversations(context.Context) ([]box.ConversationMark, error) {
	return []box.ConversationMark{{ID: hex32(1), Events: g.events}}, nil
}

func (g generated) Download(ctx context.Context, id string) (io.ReadCloser, int64, error) {
	r, w := io.Pipe()
	go func() {
		out := bufio.NewWriterSize(w, 1<<20)
		z := zip.NewWriter(out)
		block := make([]byte, 64<<10)
		random := rand.NewChaCha8([32]byte{1})
		for i := range g.events {
			f, err := z.CreateHeader(&zip.FileHeader{Name: fmt.Sprintf("%s/events/event-%05d-x.json", id, i), Method: zip.Store})
			for left := g.eventBytes; err == nil && left > 0; left -= len(block) {
				part := block[:min(left, len(block))]
				_, _ = random.Read(part)
				_, err = f.Write(part)
			}
			if err != nil || ctx.Err() != nil {
				w.CloseWithError(io.ErrUnexpectedEOF)
				return
			}
		}
		w.CloseWithError(errors.Join(z.Close(), out.Flush()))
	}()
	return r, -1, nil
}

// peak runs f and returns how far the heap grew over what it was before. The
// collector runs more often than it would, so that on a busy machine little of
// that is garbage: TestScenario94ALargeExportTakesLittleMemory takes the whole of
// a process as it is.
func peak(t *testing.T, f func()) uint64 {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before := m.HeapInuse
	var most atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapInuse))
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	f()
	close(stop)
	<-done
	return most.Load() - min(before, most.Load())
}

const memoryBudget = 64 << 20

// TestMemoryIsBounded is not parallel: it measures the heap of the process.
func TestMemoryIsBounded(t *testing.T) { //nolint:paralleltest // see above
	s, _ := directoryStore(t)
	var receipt box.Receipt
	// One event alone is more than the budget; under the race detector, with
	// which it takes minutes to look through one, it is not.
	const events, eventBytes = 3, (90 << 20) / race.Slowness
	grown := peak(t, func() {
		var err error
		receipt, err = s.Export(t.Context(), request("a"), generated{events: events, eventBytes: eventBytes}, nil)
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("an export of %d MB: the heap grew by %d KB", receipt.Bytes>>20, grown>>10)
	if receipt.Bytes < events*eventBytes || grown > memoryBudget {
		t.Errorf("%d bytes exported, the heap grew by %d", receipt.Bytes, grown)
	}
	grown = peak(t, func() {
		for e, err := range s.Events(t.Context(), "ws", hex32(1)) {
			if err != nil || e.Raw != nil {
				t.Errorf("event of %d bytes: %v", e.SizeBytes, err)
			}
		}
		if err := s.WriteText(t.Context(), io.Discard, "ws", hex32(1)); err != nil {
			t.Error(err)
		}
	})
	if grown > memoryBudget {
		t.Errorf("reading grew the heap by %d", grown)
	}
}

// TestManyEntriesStayBounded exports and reads a zip of 300,000 events. The
// standard reader needs 110 MB for its directory alone.
func TestManyEntriesStayBounded(t *testing.T) { //nolint:paralleltest // measures the heap
	if testing.Short() {
		t.Skip("writes 300,000 zip entries; run without -short")
	}
	const events = 300_000 / race.Slowness
	src := generated{events: events, eventBytes: 2}
	s, _ := directoryStore(t)
	// The zip is made before the measurement, and is on disk: the garbage that
	// the collector leaves alone is in proportion to what is live.
	r, _, err := src.Download(t.Context(), hex32(1))
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "zip")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, bufio.NewReaderSize(r, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	grown := peak(t, func() {
		if _, err := s.Export(t.Context(), request("a"), fromFile{src, name}, nil); err != nil {
			t.Error(err)
		}
		n := 0
		for _, err := range s.Events(t.Context(), "ws", hex32(1)) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != events {
			t.Errorf("%d events", n)
		}
	})
	t.Logf("%d events: the heap grew by %d KB", events, grown>>10)
	if grown > memoryBudget {
		t.Errorf("the heap grew by %d", grown)
	}
}

type fromFile struct {
	generated
	name string
}

func (f fromFile) Download(context.Context, string) (io.ReadCloser, int64, error) {
	file, err := os.Open(f.name)
	return file, -1, err
}

type given struct {
	generated
	data []byte
}

func (g given) Download(context.Context, string) (io.ReadCloser, int64, error) { return body(g.data) }

// TestZipBombIsBounded serves a zip of 64 entries that all point at the same
// data and unpack to 64 GB, and one whose entry claims a terabyte.
func TestZipBombIsBounded(t *testing.T) { //nolint:paralleltest // measures the heap
	honest := zipped(t, func(w *zip.Writer) {
		f, err := w.Create(hex32(1) + "/events/event-00000-x.json")
		if err != nil {
			t.Fatal(err)
		}
		zeros := make([]byte, 1<<20)
		for range 256 / race.Slowness {
			if _, err := f.Write(zeros); err != nil {
				t.Fatal(err)
			}
		}
	})
	le := binary.LittleEndian
	end := len(honest) - 22
	dir := int(le.Uint32(honest[end+16:]))
	overlap := bytes.Clone(honest[:dir])
	record := honest[dir:end]
	for i := range 64 {
		r := bytes.Clone(record)
		copy(r[46+len(hex32(1))+len("/events/event-"):], fmt.Sprintf("%05d", i))
		overlap = append(overlap, r...)
	}
	overlap = append(overlap, honest[end:]...)
	tail := overlap[len(overlap)-22:]
	le.PutUint16(tail[8:], 64)
	le.PutUint16(tail[10:], 64)
	le.PutUint32(tail[12:], uint32(64*len(record)))
	claim := zipped(t, func(w *zip.Writer) {
		f, err := w.CreateRaw(&zip.FileHeader{Name: hex32(1) + "/events/event-00000-x.json", Method: zip.Deflate, CRC32: crc32.ChecksumIEEE(nil), CompressedSize64: 2, UncompressedSize64: 1 << 40})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte{3, 0}); err != nil {
			t.Fatal(err)
		}
	})
	for name, data := range map[string][]byte{"overlapping": overlap, "claiming": claim} {
		s := newBucket().store(exports.Options{SpoolDir: t.TempDir()})
		grown := peak(t, func() {
			if _, err := s.Export(t.Context(), request("a"), given{generated{events: 64}, data}, nil); box.ClassOf(err) != box.ClassUnknown {
				t.Errorf("%s: %v", name, err)
			}
		})
		if grown > memoryBudget {
			t.Errorf("%s: the heap grew by %d", name, grown)
		}
	}
	// What is merely large is exported: 256 MB in a few hundred KB.
	s := newBucket().store(exports.Options{SpoolDir: t.TempDir()})
	grown := peak(t, func() {
		if _, err := s.Export(t.Context(), request("a"), given{generated{events: 1}, honest}, nil); err != nil {
			t.Error(err)
		}
	})
	if grown > memoryBudget {
		t.Errorf("the heap grew by %d", grown)
	}
}

// BenchmarkExport streams 64 MB through download, check, store and read-back.
func BenchmarkExport(b *testing.B) {
	src := generated{events: 64, eventBytes: 1 << 20}
	r, _, err := src.Download(b.Context(), hex32(1))
	if err != nil {
		b.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		b.Fatal(err)
	}
	s, _ := directoryStore(b)
	b.SetBytes(int64(len(data)))
	n := 0
	for b.Loop() {
		n++
		if _, err := s.Export(b.Context(), request(fmt.Sprintf("a%d", n)), given{src, data}, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheckSmallEvents checks 20,000 events of 2 KB; the ratio is to the
// standard library's reader over the same zip.
func BenchmarkCheckSmallEvents(b *testing.B) {
	data := zippedEvents(b, 20_000)
	b.Run("verify", func(b *testing.B) {
		src := newServer(0)
		src.listed = func(int, []box.ConversationMark) ([]box.ConversationMark, error) {
			return []box.ConversationMark{{ID: hex32(1), Events: 20_000}}, nil
		}
		src.served = func(int, string, []byte) (io.ReadCloser, int64, error) { return body(data) }
		s := newBucket().store(exports.Options{SpoolDir: b.TempDir()})
		receipt, err := s.Export(b.Context(), request("a"), src, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := s.Verify(b.Context(), "ws", receipt); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("archive-zip", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
			if err != nil {
				b.Fatal(err)
			}
			for _, f := range z.File {
				r, err := f.Open()
				if err == nil {
					_, err = io.Copy(io.Discard, r)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

func zippedEvents(tb testing.TB, n int) []byte {
	tb.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for i := range n {
		f, err := w.Create(fmt.Sprintf("%s/events/event-%05d-x.json", hex32(1), i))
		if err == nil {
			_, err = fmt.Fprintf(f, `{"n":%d,"text":%q}`, i, bytes.Repeat([]byte(fmt.Sprint(i, " ")), 300))
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}
