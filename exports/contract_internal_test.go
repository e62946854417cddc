package exports

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"filippo.io/age"

	"github.com/openhands/boxkeeper/box"
)

// opened is a store of one kind, new and empty for each test.
type opened func(t *testing.T, opts Options) *Store

// contract is what every store must do, whoever wrote it.
var contract = []struct {
	name string
	test func(t *testing.T, open opened)
}{
	{"its check passes", func(t *testing.T, open opened) {
		t.Helper()
		t.Parallel()
		s := open(t, Options{})
		for range 2 {
			must(t, s.Check(t.Context()))
		}
		if keys := listed(t, s, ""); len(keys) > 0 {
			t.Fatalf("the check left %q", keys)
		}
	}},
	{"of writers of one object one wins", oneWriterWins},
	{"of writers of one large object one wins", oneLargeWriterWins},
	{"a list has all pages, in order", listsAllPages},
	{"any part can be read", readsAnyPart},
	{"what is cut is not there", cutIsNotThere},
	{"what is given up is not there", givenUpIsNotThere},
	{"what is absent is said to be", absentIsNotFound},
	{"a deleted object may be deleted again", func(t *testing.T, open opened) {
		t.Helper()
		t.Parallel()
		s := open(t, Options{})
		must(t, s.put(t.Context(), "exports/ws/0001/a/manifest.json", "application/json", strings.NewReader("{}"), nil))
		for range 5 {
			must(t, s.remove(t.Context(), "exports/ws/0001/a/manifest.json"))
		}
		wantKind(t, box.ClassNotFound, readAll(t, s, "exports/ws/0001/a/manifest.json"))
	}},
	{"what has ended says so", endedSaysSo},
}

func TestStoreContract(t *testing.T) {
	t.Parallel()
	server := sharedS3(t)
	kinds := map[string]opened{
		"directory": func(t *testing.T, opts Options) *Store {
			t.Helper()
			return openAt(t, "file://"+t.TempDir(), opts)
		},
		"memory": func(t *testing.T, opts Options) *Store {
			t.Helper()
			return openAt(t, "mem://", opts)
		},
		"s3": func(t *testing.T, opts Options) *Store {
			t.Helper()
			return server(t).bucket(t, opts, "")
		},
		"s3 below a prefix": func(t *testing.T, opts Options) *Store {
			t.Helper()
			return server(t).bucket(t, opts, "&prefix=a/b/")
		},
	}
	for kind, open := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for _, row := range contract {
				t.Run(row.name, func(t *testing.T) { //nolint:paralleltest // each row says so itself
					row.test(t, open)
				})
			}
		})
		t.Run(kind+", encrypted", func(t *testing.T) {
			t.Parallel()
			keys := testKeys(t)
			for _, row := range contract {
				t.Run(row.name, func(t *testing.T) { //nolint:paralleltest // each row says so itself
					row.test(t, func(t *testing.T, opts Options) *Store {
						t.Helper()
						opts.Keys = keys
						return open(t, opts)
					})
				})
			}
		})
	}
}

func oneWriterWins(t *testing.T, open opened) {
	t.Helper()
	t.Parallel()
	s := open(t, Options{})
	for round := range 10 {
		raceFor(t, s, fmt.Sprintf("exports/ws/0001/a/race-%d", round), 8, func(i int) []byte { return fmt.Appendf(nil, "writer %d", i) })
	}
}

func oneLargeWriterWins(t *testing.T, open opened) {
	t.Helper()
	t.Parallel()
	s := open(t, Options{})
	// In more parts than one, where there are parts.
	raceFor(t, s, "exports/ws/0001/a/large", 2, func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%016d", i), (s3PartBytes+1<<20)/16) })
}

// raceFor lets so many write one object at once. One wins, no other one is told
// that it did, and what is there is the winner's.
func raceFor(t *testing.T, s *Store, key string, writers int, body func(i int) []byte) {
	t.Helper()
	errs, ready := make([]error, writers), make(chan struct{})
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			data := body(i)
			<-ready
			errs[i] = s.put(t.Context(), key, "application/octet-stream", bytes.NewReader(data), nil)
		})
	}
	close(ready)
	all.Wait()
	winner := slices.Index(errs, nil)
	for i, err := range errs {
		// A service may say that two met; trying again then tells.
		if class := box.ClassOf(err); i != winner && class != box.ClassAlreadyExists && class != box.ClassUnavailable {
			t.Fatalf("writer %d: %v", i, err)
		}
	}
	if winner < 0 {
		t.Fatalf("nobody wrote: %v", errs)
	}
	r, err := s.bucket.NewReader(t.Context(), key, nil)
	must(t, err)
	defer r.Close() //nolint:errcheck // only read
	got, err := io.ReadAll(r)
	must(t, err)
	if !bytes.Equal(got, body(winner)) {
		t.Fatalf("writer %d was told that it wrote, and %d bytes are there, %.40q", winner, len(got), got)
	}
}

func listsAllPages(t *testing.T, open opened) {
	t.Helper()
	t.Parallel()
	s := open(t, Options{})
	var want []string
	for i := range 1050 {
		want = append(want, fmt.Sprintf("ledger/ws/%08d.json", i+1))
	}
	want = append(want, "ledger/ws-b/00000001.json") // before "ws/" by byte
	slices.Sort(want)
	var all sync.WaitGroup
	work, errs := make(chan string), make(chan error, len(want))
	for range 16 {
		all.Go(func() {
			for key := range work {
				errs <- s.put(t.Context(), key, "application/json", strings.NewReader("{}"), nil)
			}
		})
	}
	for _, key := range want {
		work <- key
	}
	close(work)
	all.Wait()
	for range want {
		must(t, <-errs)
	}
	if got := listed(t, s, "ledger/"); !slices.Equal(got, want) {
		t.Fatalf("%d keys of %d, or not in order", len(got), len(want))
	}
	if got := listed(t, s, "ledger/ws/"); len(got) != 1050 {
		t.Fatalf("%d keys", len(got))
	}
	if got := listed(t, s, "ledger/none/"); len(got) > 0 {
		t.Fatalf("%q", got)
	}
}

func readsAnyPart(t *testing.T, open opened) {
	t.Helper()
	t.Parallel()
	s := open(t, Options{})
	for _, size := range []int{0, 1, 20, sealedHead - 1, sealedChunk - 1, sealedChunk, sealedChunk + 1, 300 << 10, 4 * sealedChunk, s3PartBytes + 3<<20} {
		data := someBytes(size)
		key := fmt.Sprintf("exports/ws/0001/a/%d", size)
		must(t, s.put(t.Context(), key, "application/octet-stream", bytes.NewReader(data), nil))
		at, err := s.mark(t.Context(), key)
		must(t, err)
		if at.size != int64(size) {
			t.Fatalf("%d bytes are said to be %d", size, at.size)
		}
		parts := [][2]int{{0, -1}, {0, size}, {size / 2, -1}, {size / 3, size / 2}, {max(size-22, 0), -1}, {max(size-1, 0), 1}, {size / 2, 1 << 40}, {sealedChunk - 1, 2}, {sealedChunk, 1}, {3*sealedChunk - 7, sealedChunk}, {sealedHead - 200, 400}}
		for _, part := range parts {
			from, length := part[0], part[1]
			if from < 0 || from >= size {
				continue
			}
			end := size
			if length >= 0 {
				end = min(size, from+length)
			}
			r, err := s.bucket.NewRangeReader(t.Context(), key, int64(from), int64(length), nil)
			must(t, err)
			if r.Size() != int64(size) {
				t.Fatalf("a part of %d bytes says that all is %d", size, r.Size())
			}
			got, err := io.ReadAll(iotest.HalfReader(r))
			must(t, err)
			must(t, r.Close())
			if !bytes.Equal(got, data[from:end]) {
				t.Fatalf("of %d bytes, %d from %d on: got %d other ones", size, length, from, len(got))
			}
		}
	}
}

func cutIsNotThere(t *testing.T, open opened) {
	t.Helper()
	t.Parallel()
	s := open(t, Options{})
	for _, size := range []int{10, 3 << 20, 2*s3PartBytes + 5} {
		body := io.MultiReader(bytes.NewReader(someBytes(size)), iotest.ErrReader(errors.New("the source broke off")))
		wantKind(t, box.ClassUnavailable, s.put(t.Context(), "exports/ws/0001/a/cut", "application/octet-stream", body, nil))
		notThere(t, s, "exports/ws/0001/a/cut")
	}
	must(t, s.put(t.Context(), "exports/ws/0001/a/cut", "application/octet-stream", strings.NewReader("whole"), nil))
}

func givenUpIsNotThere(t *testing.T, open opened) {
	t.Helper()
	t.Parallel()
	s := open(t, Options{})
	for _, size := range []int{10, 2*s3PartBytes + 5} {
		ctx, cancel := context.WithCancel(t.Context())
		body := io.MultiReader(bytes.NewReader(someBytes(size)), readerFunc(func([]byte) (int, error) {
			cancel()
			return 0, io.EOF
		}))
		wantKind(t, box.ClassCanceled, s.put(ctx, "exports/ws/0001/a/up", "application/octet-stream", body, nil))
		notThere(t, s, "exports/ws/0001/a/up")
	}
}

// notThere looks in every way that a reader has, and for parts that were left
// behind.
func notThere(t *testing.T, s *Store, key string) {
	t.Helper()
	wantKind(t, box.ClassNotFound, readAll(t, s, key))
	_, err := s.mark(t.Context(), key)
	wantKind(t, box.ClassNotFound, err)
	if keys := listed(t, s, "exports/"); slices.Contains(keys, key) {
		t.Fatalf("%q are listed", keys)
	}
	var in *s3Bucket
	if s.bucket.As(&in) {
		if n := uploads(t, in); n > 0 {
			t.Fatalf("%d uploads were left behind", n)
		}
	}
}

func absentIsNotFound(t *testing.T, open opened) {
	t.Helper()
	t.Parallel()
	s := open(t, Options{})
	notThere(t, s, "exports/ws/0001/a/none")
	_, err := s.bucket.NewRangeReader(t.Context(), "exports/ws/0001/a/none", 5, 5, nil)
	wantKind(t, box.ClassNotFound, fault(t.Context(), "read", err))
}

func endedSaysSo(t *testing.T, open opened) {
	t.Helper()
	t.Parallel()
	s := open(t, Options{})
	must(t, s.put(t.Context(), "exports/ws/0001/a/x", "text/plain", strings.NewReader("x"), nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, err := range map[string]error{
		"write": s.put(ctx, "exports/ws/0001/a/y", "text/plain", strings.NewReader("y"), nil),
		"list":  s.list(ctx, "exports/", func(string) {}),
	} {
		if class := box.ClassOf(err); class != box.ClassCanceled {
			t.Errorf("%s: %v", what, err)
		}
	}
	notThere(t, s, "exports/ws/0001/a/y")
}

func openAt(t *testing.T, rawURL string, opts Options) *Store {
	t.Helper()
	if opts.SpoolDir == "" {
		opts.SpoolDir = t.TempDir()
	}
	s, err := OpenWith(t.Context(), rawURL, opts)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// testKeys are those of somebody who writes for two and reads as one of them.
func testKeys(t *testing.T) Keys {
	t.Helper()
	mine, err := age.GenerateX25519Identity()
	must(t, err)
	other, err := age.GenerateX25519Identity()
	must(t, err)
	keys, err := ParseKeys([]string{mine.Recipient().String(), other.Recipient().String()}, []box.Secret{box.Secret(mine.String())})
	must(t, err)
	return keys
}

func someBytes(n int) []byte {
	out := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(out)
	return out
}

func listed(t *testing.T, s *Store, prefix string) []string {
	t.Helper()
	var out []string
	must(t, s.list(t.Context(), prefix, func(key string) { out = append(out, key) }))
	return out
}

func readAll(t *testing.T, s *Store, key string) error {
	t.Helper()
	_, _, err := s.sum(t.Context(), key, nil)
	return err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, want box.Class, err error) {
	t.Helper()
	if got := box.ClassOf(err); got != want {
		t.Fatalf("class %q, want %q: %v", got, want, err)
	}
}
