package exports_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func hex32(n int) string { return fmt.Sprintf("%032x", n) }

// packed returns a zip like an agent-server's, with the given events.
func packed(id string, events ...string) []byte {
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	add := func(name, content string) {
		f, err := w.Create(id + "/" + name)
		if err != nil {
			panic(err)
		}
		if _, err := io.WriteString(f, content); err != nil {
			panic(err)
		}
	}
	add("meta.json", `{"id":"`+id+`"}`)
	add("base_state.json", `{"execution_status":"idle"}`)
	for i, e := range events {
		add(fmt.Sprintf("events/event-%05d-%s.json", i, hex32(i)), e)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

func message(text string) string {
	data, err := json.Marshal(map[string]any{
		"id": "ev-" + text[:min(len(text), 20)], "kind": "MessageEvent", "source": "user", "timestamp": "2026-11-29T10:00:00.5",
		"llm_message": map[string]any{"role": "user", "content": []any{map[string]any{"type": "text", "text": text}}},
	})
	if err != nil {
		panic(err)
	}
	return string(data)
}

// server is a box's agent-server, with faults.
type server struct {
	mu     sync.Mutex
	events map[string][]string

	listed    func(call int, honest []box.ConversationMark) ([]box.ConversationMark, error)
	served    func(call int, id string, honest []byte) (body io.ReadCloser, length int64, err error)
	lists     int
	downloads []string
}

func newServer(counts ...int) *server {
	s := &server{events: map[string][]string{}}
	for i, n := range counts {
		s.grow(hex32(i+1), n)
	}
	return s
}

func (s *server) grow(id string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.events[id] = append(s.events[id], message(fmt.Sprintf("%s says %d", id[26:], len(s.events[id]))))
	}
	if s.events[id] == nil {
		s.events[id] = []string{}
	}
}

func (s *server) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.events, id)
}

func (s *server) marks() []box.ConversationMark {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []box.ConversationMark
	for _, id := range slices.Sorted(maps.Keys(s.events)) {
		out = append(out, box.ConversationMark{ID: id, Events: len(s.events[id])})
	}
	return out
}

func (s *server) Conversations(ctx context.Context) ([]box.ConversationMark, error) {
	honest := s.marks()
	s.mu.Lock()
	s.lists++
	call := s.lists
	s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.listed != nil {
		return s.listed(call, honest)
	}
	return honest, nil
}

func (s *server) Download(ctx context.Context, id string) (io.ReadCloser, int64, error) {
	s.mu.Lock()
	events, ok := slices.Clone(s.events[id]), s.events[id] != nil
	s.downloads = append(s.downloads, id)
	call := len(s.downloads)
	s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	var honest []byte
	if ok {
		honest = packed(id, events...)
	}
	if s.served != nil {
		return s.served(call, id, honest)
	}
	if !ok {
		return nil, 0, box.Errorf(box.ClassNotFound, "Conversation not found")
	}
	return io.NopCloser(bytes.NewReader(honest)), int64(len(honest)), nil
}

func body(data []byte) (io.ReadCloser, int64, error) {
	return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
}

// bucket is a blob store in memory with faults at chosen writes and reads.
type bucket struct {
	mu      sync.Mutex
	objects map[string][]byte
	writes  int
	// beforeWrite may fail the n-th write, counted from 1, before it is kept.
	beforeWrite func(n int, key string) error
	// kept may change what is kept; nil loses the object.
	kept func(key string, data []byte) []byte
	// afterWrite may lose the answer.
	afterWrite func(n int, key string) error
	// overwrites makes it a store that does not honour conditional writes.
	overwrites bool
	// read may fail a read.
	read func(key string) error
	// handed may change what a read hands out of an object.
	handed func(key string, data []byte) []byte
	// reads and sent count the reads of objects, and the bytes that they took.
	reads int
	sent  int64
	// deletes may fail a deletion.
	deletes func(key string) error
}

func newBucket() *bucket { return &bucket{objects: map[string][]byte{}} }

var (
	errGone    = errors.New("no such object")
	errThere   = errors.New("there already")
	errFailing = errors.New("the store fails")
)

func (b *bucket) store(opts exports.Options) *exports.Store {
	return exports.New(blob.NewBucket(b), opts)
}

func (b *bucket) keys() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.objects))
}

func (b *bucket) size(key string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int64(len(b.objects[key]))
}

func (b *bucket) change(key string, f func([]byte) []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if data := f(slices.Clone(b.objects[key])); data != nil {
		b.objects[key] = data
	} else {
		delete(b.objects, key)
	}
}

func (b *bucket) ErrorCode(err error) gcerrors.ErrorCode {
	switch {
	case errors.Is(err, errGone):
		return gcerrors.NotFound
	case errors.Is(err, errThere):
		return gcerrors.FailedPrecondition
	}
	return gcerrors.Unknown
}

func (b *bucket) As(any) bool             { return false }
func (b *bucket) ErrorAs(error, any) bool { return false }
func (b *bucket) Close() error            { return nil }

func (b *bucket) get(key string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.read != nil {
		if err := b.read(key); err != nil {
			return nil, err
		}
	}
	data, ok := b.objects[key]
	if !ok {
		return nil, errGone
	}
	return data, nil
}

func (b *bucket) Attributes(_ context.Context, key string) (*driver.Attributes, error) {
	data, err := b.get(key)
	if err != nil {
		return nil, err
	}
	return &driver.Attributes{Size: int64(len(data))}, nil
}

func (b *bucket) ListPaged(_ context.Context, opts *driver.ListOptions) (*driver.ListPage, error) {
	page := &driver.ListPage{}
	for _, key := range b.keys() {
		if strings.HasPrefix(key, opts.Prefix) && key > string(opts.PageToken) {
			page.Objects = append(page.Objects, &driver.ListObject{Key: key, Size: b.size(key)})
			if len(page.Objects) == 3 { // small pages, so that paging is used
				page.NextPageToken = []byte(key)
				break
			}
		}
	}
	return page, nil
}

type bucketReader struct {
	io.Reader
	bucket *bucket
	attrs  driver.ReaderAttributes
}

func (r *bucketReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.bucket.mu.Lock()
	defer r.bucket.mu.Unlock()
	r.bucket.sent += int64(n)
	return n, err
}

func (r *bucketReader) Close() error                         { return nil }
func (r *bucketReader) Attributes() *driver.ReaderAttributes { return &r.attrs }
func (r *bucketReader) As(any) bool                          { return false }

func (b *bucket) NewRangeReader(_ context.Context, key string, offset, length int64, _ *driver.ReaderOptions) (driver.Reader, error) {
	data, err := b.get(key)
	if err != nil {
		return nil, err
	}
	if b.handed != nil {
		data = b.handed(key, slices.Clone(data))
	}
	return b.reader(bytes.NewReader(data), int64(len(data)), offset, length), nil
}

// reader hands out a range of what is size long, and counts it.
func (b *bucket) reader(from io.ReaderAt, size, offset, length int64) *bucketReader {
	offset = min(offset, size)
	if length < 0 {
		length = size
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	return &bucketReader{io.NewSectionReader(from, offset, min(length, size-offset)), b, driver.ReaderAttributes{Size: size}}
}

type bucketWriter struct {
	bytes.Buffer
	ctx     context.Context //nolint:containedctx // a writer of gocloud is given its context when it is made
	bucket  *bucket
	key     string
	replace bool
}

func (b *bucket) NewTypedWriter(ctx context.Context, key, _ string, opts *driver.WriterOptions) (driver.Writer, error) {
	return &bucketWriter{ctx: ctx, bucket: b, key: key, replace: !opts.IfNotExist}, nil
}

func (w *bucketWriter) Close() error {
	b := w.bucket
	if err := w.ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writes++
	if b.beforeWrite != nil {
		if err := b.beforeWrite(b.writes, w.key); err != nil {
			return err
		}
	}
	if _, ok := b.objects[w.key]; ok && !w.replace && !b.overwrites {
		return errThere
	}
	data := w.Bytes()
	if b.kept != nil {
		data = b.kept(w.key, data)
	}
	if data != nil {
		b.objects[w.key] = data
	}
	if b.afterWrite != nil {
		return b.afterWrite(b.writes, w.key)
	}
	return nil
}

func (b *bucket) Copy(context.Context, string, string, *driver.CopyOptions) error { return errFailing }

func (b *bucket) Delete(_ context.Context, key string) error {
	if _, err := b.get(key); err != nil {
		return err
	}
	if b.deletes != nil {
		if err := b.deletes(key); err != nil {
			return err
		}
	}
	b.change(key, func([]byte) []byte { return nil })
	return nil
}

func (b *bucket) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", errFailing
}

// directoryStore opens a store in a new directory, with a spool of its own.
func directoryStore(t testing.TB) (s *exports.Store, dir string) {
	t.Helper()
	dir = t.TempDir()
	s, err := exports.OpenWith(t.Context(), "file://"+dir, exports.Options{SpoolDir: t.TempDir(), Now: clock, Tool: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, dir
}

func clock() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) }

func request(attempt string) exports.Request {
	return exports.Request{Workspace: "ws", Epoch: 1, Attempt: attempt}
}

func wantClass(t testing.TB, err error, want box.Class) {
	t.Helper()
	if got := box.ClassOf(err); got != want {
		t.Fatalf("class %q, want %q: %v", got, want, err)
	}
}

// proven checks a receipt against the server, in the words of the store alone.
func proven(t testing.TB, s *exports.Store, receipt box.Receipt, src *server) {
	t.Helper()
	report, err := s.Verify(t.Context(), receipt.Workspace, receipt)
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	if report.Receipt != receipt {
		t.Fatalf("the store says %+v, the receipt %+v", report.Receipt, receipt)
	}
	if want := box.HistoryDigest(src.marks()); receipt.Digest != want || !receipt.Covers(receipt.Epoch, want) {
		t.Fatalf("digest %s, the server has %s", receipt.Digest, want)
	}
	for _, m := range src.marks() {
		var got []string
		for e, err := range s.Events(t.Context(), receipt.Workspace, m.ID) {
			if err != nil {
				t.Fatalf("events of %s: %v", m.ID, err)
			}
			got = append(got, string(e.Raw))
		}
		if want := src.events[m.ID]; !slices.Equal(got[:min(len(got), len(want))], want) || len(got) < len(want) {
			t.Fatalf("conversation %s reads as %d events %q, the server has %d", m.ID, len(got), got, len(want))
		}
	}
}
