package exports_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func noManifest(t *testing.T, b *bucket) {
	t.Helper()
	for _, key := range b.keys() {
		if strings.HasSuffix(key, "manifest.json") {
			t.Errorf("there is a manifest: %s", key)
		}
	}
}

func zipped(t *testing.T, write func(w *zip.Writer)) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	write(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func entry(t *testing.T, w *zip.Writer, h *zip.FileHeader, content string) {
	t.Helper()
	f, err := w.CreateHeader(h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, content); err != nil {
		t.Fatal(err)
	}
}

// TestServerThatLies gives one bad answer per row, first for ever and then once:
// the one must end without an export, the other must be repaired by a retry.
func TestServerThatLies(t *testing.T) {
	t.Parallel()
	id := hex32(1)
	extra := func(name string, mode os.FileMode) func(t *testing.T, honest []byte) (io.ReadCloser, int64, error) {
		return func(t *testing.T, _ []byte) (io.ReadCloser, int64, error) {
			t.Helper()
			return body(zipped(t, func(w *zip.Writer) {
				for i := range 5 {
					entry(t, w, &zip.FileHeader{Name: fmt.Sprintf("%s/events/event-%05d-x.json", id, i)}, "{}")
				}
				h := &zip.FileHeader{Name: name}
				if mode != 0 {
					h.SetMode(mode)
				}
				entry(t, w, h, "/etc/passwd")
			}))
		}
	}
	for name, lie := range map[string]func(t *testing.T, honest []byte) (io.ReadCloser, int64, error){
		"zip cut off": func(_ *testing.T, honest []byte) (io.ReadCloser, int64, error) { return body(honest[:len(honest)-7]) },
		"body shorter than announced": func(_ *testing.T, honest []byte) (io.ReadCloser, int64, error) {
			return io.NopCloser(bytes.NewReader(honest[:100])), int64(len(honest)), nil
		},
		"body longer than announced": func(_ *testing.T, honest []byte) (io.ReadCloser, int64, error) {
			return io.NopCloser(bytes.NewReader(append(slices.Clone(honest), 0))), int64(len(honest)), nil
		},
		"whole, but shorter than announced": func(_ *testing.T, honest []byte) (io.ReadCloser, int64, error) {
			return io.NopCloser(bytes.NewReader(honest)), int64(len(honest)) + 5, nil
		},
		"empty body":    func(*testing.T, []byte) (io.ReadCloser, int64, error) { return body(nil) },
		"an error page": func(*testing.T, []byte) (io.ReadCloser, int64, error) { return body([]byte("<html>busy</html>")) },
		"connection dropped": func(_ *testing.T, honest []byte) (io.ReadCloser, int64, error) {
			return io.NopCloser(io.MultiReader(bytes.NewReader(honest[:50]), failing{})), -1, nil
		},
		"byte flipped in an event": func(_ *testing.T, honest []byte) (io.ReadCloser, int64, error) {
			bad := slices.Clone(honest)
			bad[bytes.Index(bad, []byte("event-00002"))+60] ^= 0x10
			return body(bad)
		},
		"an event is missing": func(_ *testing.T, _ []byte) (io.ReadCloser, int64, error) {
			return body(packed(id, "{}", "{}", "{}", "{}"))
		},
		"more events than are counted": func(_ *testing.T, _ []byte) (io.ReadCloser, int64, error) {
			return body(packed(id, "{}", "{}", "{}", "{}", "{}", "{}"))
		},
		"another conversation": func(*testing.T, []byte) (io.ReadCloser, int64, error) {
			return body(packed(hex32(7), "1", "2", "3", "4", "5"))
		},
		"404 for a listed id": func(*testing.T, []byte) (io.ReadCloser, int64, error) {
			return nil, 0, box.Errorf(box.ClassNotFound, "not found")
		},
		"500": func(*testing.T, []byte) (io.ReadCloser, int64, error) {
			return nil, 0, box.Errorf(box.ClassUnavailable, "broken")
		},
		"a file of another":   extra(hex32(7)+"/meta.json", 0),
		"an absolute name":    extra("/etc/passwd", 0),
		"a name that climbs":  extra(id+"/../../x", 0),
		"a drive":             extra("C:/x", 0),
		"backslashes":         extra(id+`\..\x`, 0),
		"a control character": extra(id+"/\x1b[2J", 0),
		"a name twice":        extra(id+"/events/event-00001-x.json", 0),
		"a symbolic link":     extra(id+"/link", os.ModeSymlink|0o777),
		"a device":            extra(id+"/null", os.ModeDevice|0o666),
		"a very long name":    extra(id+"/"+strings.Repeat("x", 2000), 0),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBucket()
			s := b.store(exports.Options{SpoolDir: t.TempDir()})
			src := newServer(5, 2)
			src.served = func(_ int, asked string, honest []byte) (io.ReadCloser, int64, error) {
				if asked == id {
					return lie(t, honest)
				}
				return body(honest)
			}
			receipt, err := s.Export(t.Context(), request("a"), src, nil)
			if err == nil || !receipt.IsZero() {
				t.Fatalf("there is a receipt: %+v", receipt)
			}
			if !strings.Contains(err.Error(), id) {
				t.Errorf("the error does not name the conversation: %v", err)
			}
			if class := box.ClassOf(err); class != box.ClassUnknown && class != box.ClassUnavailable {
				t.Errorf("class %s: %v", class, err)
			}
			if n := len(src.downloads); n != 3 {
				t.Errorf("%d downloads, want 3", n)
			}
			noManifest(t, b)
			if all, err := s.Histories(t.Context(), "ws"); err != nil || len(all) != 0 {
				t.Errorf("a failed export is read as one: %v %v", all, err)
			}

			src.downloads = nil
			src.served = func(call int, asked string, honest []byte) (io.ReadCloser, int64, error) {
				if asked == id && call == 1 {
					return lie(t, honest)
				}
				return body(honest)
			}
			receipt, err = s.Export(t.Context(), request("a"), src, nil)
			if err != nil {
				t.Fatal(err)
			}
			proven(t, s, receipt, src)
		})
	}
}

// TestAnEmptyConversationIsNoOtherOne: no count of events tells them apart.
func TestAnEmptyConversationIsNoOtherOne(t *testing.T) {
	t.Parallel()
	for name, data := range map[string][]byte{
		"another's zip": packed(hex32(7), "{}"),
		"an empty zip":  zipped(t, func(*zip.Writer) {}),
	} {
		b := newBucket()
		src := newServer(0)
		src.served = func(int, string, []byte) (io.ReadCloser, int64, error) { return body(data) }
		_, err := b.store(exports.Options{SpoolDir: t.TempDir()}).Export(t.Context(), request("a"), src, nil)
		if box.ClassOf(err) != box.ClassUnknown {
			t.Errorf("%s: %v", name, err)
		}
		noManifest(t, b)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestListThatLies(t *testing.T) {
	t.Parallel()
	for name, lie := range map[string]func(honest []box.ConversationMark) ([]box.ConversationMark, error){
		"an id twice": func(h []box.ConversationMark) ([]box.ConversationMark, error) { return append(h, h[0]), nil },
		"an id that climbs": func(h []box.ConversationMark) ([]box.ConversationMark, error) {
			return append(h, box.ConversationMark{ID: "../../../../etc/passwd", Events: 1}), nil
		},
		"an id with dashes": func(h []box.ConversationMark) ([]box.ConversationMark, error) {
			return append(h, box.ConversationMark{ID: "00000000-0000-0000-0000-000000000001"}), nil
		},
		"a count below zero": func(h []box.ConversationMark) ([]box.ConversationMark, error) { h[0].Events = -1; return h, nil },
		"not found": func([]box.ConversationMark) ([]box.ConversationMark, error) {
			return nil, box.Errorf(box.ClassNotFound, "404")
		},
		"a count too high": func(h []box.ConversationMark) ([]box.ConversationMark, error) { h[0].Events++; return h, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBucket()
			src := newServer(2, 3)
			src.listed = func(_ int, honest []box.ConversationMark) ([]box.ConversationMark, error) { return lie(honest) }
			_, err := b.store(exports.Options{}).Export(t.Context(), request("a"), src, nil)
			wantClass(t, err, box.ClassUnknown)
			noManifest(t, b)
		})
	}
	t.Run("a count that falls", func(t *testing.T) {
		t.Parallel()
		b := newBucket()
		src := newServer(3)
		src.listed = func(call int, h []box.ConversationMark) ([]box.ConversationMark, error) {
			if call > 1 {
				h[0].Events = 2
			}
			return h, nil
		}
		_, err := b.store(exports.Options{}).Export(t.Context(), request("a"), src, nil)
		wantClass(t, err, box.ClassUnknown)
		if !strings.Contains(err.Error(), "had 3 events and now has 2") || len(src.downloads) != 1 {
			t.Errorf("after %d downloads: %v", len(src.downloads), err)
		}
		noManifest(t, b)
	})
}

func TestSourceClassesTellTheCallerWhatToDo(t *testing.T) {
	t.Parallel()
	for _, class := range []box.Class{box.ClassUnauthorized, box.ClassExhausted, box.ClassFailedPrecondition} {
		src := newServer(1)
		src.served = func(int, string, []byte) (io.ReadCloser, int64, error) {
			return nil, 0, &box.Error{Class: class, Message: "no", RetryAfter: 7e9}
		}
		_, err := newBucket().store(exports.Options{}).Export(t.Context(), request("a"), src, nil)
		wantClass(t, err, class)
		if e, ok := errors.AsType[*box.Error](err); !ok || e.RetryAfter != 7e9 {
			t.Errorf("%s: what the server asked for is lost: %v", class, err)
		}
		if len(src.downloads) != 1 {
			t.Errorf("%s was tried %d times", class, len(src.downloads))
		}
	}
}

func TestStoreThatLosesOrAlters(t *testing.T) {
	t.Parallel()
	zipOf := func(key string) bool { return strings.HasSuffix(key, hex32(2)+".zip") }
	manifest := func(key string) bool { return strings.HasSuffix(key, "manifest.json") }
	flip := func(data []byte) []byte { data[len(data)/2] ^= 1; return data }
	lose := func([]byte) []byte { return nil }
	cut := func(data []byte) []byte { return data[:len(data)-1] }
	for name, c := range map[string]struct {
		which func(string) bool
		how   func([]byte) []byte
	}{
		"loses an object": {zipOf, lose}, "flips a bit": {zipOf, flip}, "cuts an object": {zipOf, cut},
		"empties an object":  {zipOf, func([]byte) []byte { return []byte{} }},
		"loses the manifest": {manifest, lose}, "flips a bit of the manifest": {manifest, flip}, "cuts the manifest": {manifest, cut},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBucket()
			s := b.store(exports.Options{SpoolDir: t.TempDir()})
			src := newServer(2, 3)
			b.kept = func(key string, data []byte) []byte {
				if c.which(key) {
					return c.how(data)
				}
				return data
			}
			receipt, err := s.Export(t.Context(), request("a"), src, nil)
			wantClass(t, err, box.ClassUnknown)
			if !receipt.IsZero() || !strings.Contains(err.Error(), "lost or altered") {
				t.Fatalf("%+v %v", receipt, err)
			}
			// A store that works again gets a true export, at the same attempt.
			b.kept = nil
			receipt, err = s.Export(t.Context(), request("a"), src, nil)
			if err != nil {
				t.Fatal(err)
			}
			proven(t, s, receipt, src)
			// Damage after the receipt is found by a later look, and the next export
			// does not build on it.
			victim := receipt.Key
			report, err := s.Verify(t.Context(), "ws", receipt)
			if err != nil {
				t.Fatal(err)
			}
			if c.which(report.Conversations[1].Key) || !c.which(receipt.Key) {
				victim = report.Conversations[1].Key
			}
			b.change(victim, c.how)
			_, err = s.Verify(t.Context(), "ws", receipt)
			wantClass(t, err, box.ClassUnknown)
			req := request("b")
			req.Previous = receipt
			next, err := s.Export(t.Context(), req, src, nil)
			if err != nil {
				t.Fatal(err)
			}
			proven(t, s, next, src)
		})
	}
}

func TestObjectLostWhileTheManifestIsWritten(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	b.afterWrite = func(_ int, key string) error {
		if strings.HasSuffix(key, "manifest.json") {
			for name := range b.objects {
				if strings.HasSuffix(name, ".zip") {
					delete(b.objects, name)
				}
			}
		}
		return nil
	}
	_, err := s.Export(t.Context(), request("a"), newServer(2), nil)
	wantClass(t, err, box.ClassUnknown)
	if all, err := s.Histories(t.Context(), "ws"); err == nil || len(all) != 0 {
		t.Errorf("the lost copy is offered: %v", all)
	}
}

func TestDirectoryDamagedOnDisk(t *testing.T) {
	t.Parallel()
	s, dir := directoryStore(t)
	src := newServer(2, 3)
	receipt, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "exports/ws/0001/a/conversations", hex32(1)+".zip")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for what, damage := range map[string]func() error{
		"a flipped byte": func() error { d := slices.Clone(data); d[len(d)/3] ^= 4; return os.WriteFile(name, d, 0o600) },
		"a cut file":     func() error { return os.WriteFile(name, data[:len(data)/2], 0o600) },
		"a link":         func() error { return errors.Join(os.Remove(name), os.Symlink("/etc/passwd", name)) },
		"a link inside":  func() error { return errors.Join(os.Remove(name), os.Symlink(hex32(2)+".zip", name)) },
		"no file":        func() error { return os.Remove(name) },
		"a directory":    func() error { return errors.Join(os.Remove(name), os.Mkdir(name, 0o700)) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Verify(t.Context(), "ws", receipt); err == nil {
			t.Errorf("%s is not noticed", what)
		}
		if err := errors.Join(os.RemoveAll(name), os.WriteFile(name, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Verify(t.Context(), "ws", receipt); err != nil {
		t.Errorf("the restored store does not verify: %v", err)
	}
}
