package exports

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/openhands/boxkeeper/box"
)

func openTest(t *testing.T) (*Store, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, dir
}

// TestOneWriterWins is what the library's own directory bucket gets wrong.
func TestOneWriterWins(t *testing.T) {
	t.Parallel()
	s, _ := openTest(t)
	for round := range 50 {
		key := "ledger/ws/" + strconv.Itoa(round)
		var won atomic.Int32
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				text := strconv.Itoa(w)
				switch err := s.put(t.Context(), key, "text/plain", strings.NewReader(text), nil); box.ClassOf(err) {
				case "":
					won.Add(1)
					if got, err := s.small(t.Context(), key, 10); err != nil || string(got) != text {
						t.Errorf("the winner reads %q %v", got, err)
					}
				case box.ClassAlreadyExists:
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d writers won", won.Load())
		}
	}
}

func TestAbortedWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	s, dir := openTest(t)
	ctx, cancel := context.WithCancel(t.Context())
	half := io.MultiReader(strings.NewReader("half"), readerFunc(func([]byte) (int, error) { cancel(); return 0, nil }))
	if err := s.put(ctx, "a/b", "", half, nil); box.ClassOf(err) != box.ClassCanceled {
		t.Errorf("%v", err)
	}
	broken := io.MultiReader(strings.NewReader("half"), readerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC }))
	if err := s.put(t.Context(), "a/b", "", broken, nil); box.ClassOf(err) != box.ClassExhausted {
		t.Errorf("%v", err)
	}
	_ = filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			t.Errorf("left: %s %v", name, err)
		}
		return nil
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestLeftoversOfCrashesAreSwept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, incoming), 0o700); err != nil {
		t.Fatal(err)
	}
	old, young := filepath.Join(dir, incoming, "old"), filepath.Join(dir, incoming, "young")
	for _, name := range []string{old, young} {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-25*time.Hour)); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // a test's
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Error("the old one is still there")
	}
	if _, err := os.Stat(young); err != nil {
		t.Error("one that may be in use was removed")
	}
	if err := s.list(t.Context(), "", func(key string) { t.Errorf("%s is listed", key) }); err != nil {
		t.Error(err)
	}
}

func TestDirectoryBucket(t *testing.T) {
	t.Parallel()
	s, dir := openTest(t)
	for _, key := range []string{"../x", "/x", "a//b", "a/../b", "a/.hidden", ".incoming/x", "A", "a/", "", "a\x00b", "a b"} {
		if err := s.put(t.Context(), key, "", strings.NewReader("x"), nil); err == nil {
			t.Errorf("key %q is written", key)
		}
		if key == "" {
			continue // the library answers itself
		}
		if _, err := s.small(t.Context(), key, 1); box.ClassOf(err) != box.ClassInvalid {
			t.Errorf("key %q reads as %v", key, err)
		}
	}
	if err := s.bucket.WriteAll(t.Context(), "a", []byte("x"), nil); gcerrors.Code(err) != gcerrors.Unimplemented {
		t.Errorf("an unconditional write: %v", err)
	}
	if _, err := s.small(t.Context(), "absent/x", 1); box.ClassOf(err) != box.ClassNotFound {
		t.Errorf("%v", err)
	}
	want := []string{"p/a-b/c", "p/a/c", "p/a/d", "p/ab"}
	for _, key := range want {
		if err := s.put(t.Context(), key, "", strings.NewReader(key), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.put(t.Context(), "other/a", "", strings.NewReader("x"), nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "p", ".DS_Store"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for size := 1; size <= 5; size++ {
		var got []string
		token := blob.FirstPageToken
		for len(token) > 0 {
			objects, next, err := s.bucket.ListPage(t.Context(), token, size, &blob.ListOptions{Prefix: "p/"})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range objects {
				got = append(got, o.Key)
			}
			token = next
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d list %q", size, got)
		}
	}
	if r, err := s.bucket.NewRangeReader(t.Context(), "p/ab", 2, 1, nil); err != nil {
		t.Error(err)
	} else if data, err := io.ReadAll(r); err != nil || string(data) != "a" {
		t.Errorf("range %q %v", data, err)
	} else if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := os.Symlink("ab", filepath.Join(dir, "p", "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.small(t.Context(), "p/link", 10); err == nil {
		t.Error("a link is followed")
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "p", "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.small(t.Context(), "p/fifo", 10); err == nil {
		t.Error("a pipe is read")
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), "file://"+file); err == nil {
		t.Error("a file is opened as a directory")
	}
	if _, err := Open(t.Context(), "file://"+file+"/below"); err == nil {
		t.Error("a directory below a file is opened")
	}
	s, err := Open(t.Context(), "file://"+filepath.Dir(file)+"/made/for/us")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Check(t.Context()); err == nil {
		t.Error("a closed store passes the check")
	}
}
