package exports_test

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/race"
)

// A box that breaks off, lies or hangs is asked again, and in the end there is no
// export.
func TestScenario95ABrokenWorkspaceIsNoExport(t *testing.T) {
	t.Parallel()
	files := smallWork()
	files["workspace/large"] = noise(3, (9<<20)/min(race.Slowness, 6))
	honest := files.pack(t)
	flipped := slices.Clone(honest)
	flipped[len(flipped)/2] ^= 1
	answer := func(data []byte, end error) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return ended(data, end), nil }
	}
	for name, bad := range map[string]func() (io.ReadCloser, error){
		"nothing at all":            answer(nil, io.EOF),
		"cut at the start":          answer(honest[:10], errCut),
		"cut at 70 %":               answer(honest[:len(honest)*7/10], errCut),
		"ended at 70 %":             answer(honest[:len(honest)*7/10], io.EOF),
		"ended before the last":     answer(honest[:len(honest)-1], io.EOF),
		"cut after the last":        answer(honest, errCut),
		"more after the end":        answer(append(slices.Clone(honest), 'x'), io.EOF),
		"twice":                     answer(append(slices.Clone(honest), honest...), io.EOF),
		"a byte changed":            answer(flipped, io.EOF),
		"a list without a sum":      answer(files.pack(t, func(m *box.Manifest) { m.Lists[0].SHA256 = "" }), io.EOF),
		"a manifest that lies":      answer(files.pack(t, func(m *box.Manifest) { m.Files-- }), io.EOF),
		"a page instead":            answer([]byte("<html>log in</html>"), io.EOF),
		"a refusal of the moment":   func() (io.ReadCloser, error) { return nil, box.Errorf(box.ClassUnavailable, "busy") },
		"a capability without path": func() (io.ReadCloser, error) { return nil, box.Errorf(box.ClassNotFound, "no such path") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBucket()
			s := b.store(exports.Options{SpoolDir: t.TempDir()})
			src := newBoxWithWork(t, files, 1)
			src.given = func(int, []byte) (io.ReadCloser, error) { return bad() }
			_, err := s.Export(t.Context(), request("a"), src, nil)
			if class := box.ClassOf(err); class != box.ClassUnknown && class != box.ClassUnavailable {
				t.Errorf("class %s: %v", class, err)
			}
			if src.called != 3 {
				t.Errorf("asked %d times", src.called)
			}
			noManifest(t, b)
			src.called = 0
			src.given = func(n int, honest []byte) (io.ReadCloser, error) {
				if n == 1 {
					return bad()
				}
				return ended(honest, io.EOF), nil
			}
			receipt, err := s.Export(t.Context(), request("a"), src, nil)
			if err != nil {
				t.Fatalf("one bad answer: %v", err)
			}
			proven(t, s, receipt, src.server)
		})
	}
}

// What is for a person to repair is not asked again.
func TestARefusedWorkspaceIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	for _, class := range []box.Class{box.ClassUnauthorized, box.ClassExhausted, box.ClassFailedPrecondition} {
		b := newBucket()
		src := newBoxWithWork(t, smallWork(), 1)
		src.given = func(int, []byte) (io.ReadCloser, error) { return nil, box.Errorf(class, "no") }
		_, err := b.store(exports.Options{}).Export(t.Context(), request("a"), src, nil)
		wantClass(t, err, class)
		if src.called != 1 {
			t.Errorf("%s: asked %d times", class, src.called)
		}
		noManifest(t, b)
	}
}

func TestAStoreThatLosesOrAltersAPartOfTheWorkspace(t *testing.T) {
	t.Parallel()
	files := smallWork()
	files["workspace/large"] = noise(4, (5<<20)/min(race.Slowness, 4))
	type part struct {
		of   func(key string) bool
		twin func(key string) string
	}
	parts := map[string]part{
		"a chunk": {
			func(key string) bool { return strings.HasPrefix(key, "chunks/") },
			func(key string) string { return strings.TrimSuffix(key, "-2") + "-2" },
		},
		"the index": {
			func(key string) bool { return strings.HasSuffix(key, ".json.zst") },
			func(key string) string { return strings.Replace(key, "/workspace.json", "/workspace-2.json", 1) },
		},
	}
	flip := func(data []byte) []byte { out := slices.Clone(data); out[len(out)/2] ^= 1; return out }
	for name, harm := range map[string]func([]byte) []byte{
		"lost":     func([]byte) []byte { return nil },
		"altered":  flip,
		"shorter":  func(data []byte) []byte { return data[:len(data)-1] },
		"longer":   func(data []byte) []byte { return append(slices.Clone(data), 'x') },
		"emptied":  func([]byte) []byte { return []byte{} },
		"replaced": func([]byte) []byte { return []byte("something else") },
		// Right in its own sum, and of the right length.
		"forged": func(data []byte) []byte { return compressed(flip(untar(t, data))) },
	} {
		for what, p := range parts {
			t.Run(what+" "+name, func(t *testing.T) {
				t.Parallel()
				of, twin := p.of, p.twin
				src := newBoxWithWork(t, files, 1)
				b := newBucket()
				done := false
				b.kept = func(key string, data []byte) []byte {
					if of(key) && !done {
						done = true
						return harm(data)
					}
					return data
				}
				s := b.store(exports.Options{SpoolDir: t.TempDir()})
				_, err := s.Export(t.Context(), request("a"), src, nil)
				wantClass(t, err, box.ClassUnknown)
				noManifest(t, b)
				// The store is well again: what is damaged there is written beside it.
				receipt, err := s.Export(t.Context(), request("a"), src, nil)
				if err != nil {
					t.Fatal(err)
				}
				proven(t, s, receipt, src.server)

				// Later, any object of it is missed.
				keys := b.keys()
				for _, key := range keys {
					if !of(key) || twin(key) != key && slices.Contains(keys, twin(key)) {
						continue // the one that was damaged from the start belongs to no export
					}
					report, err := s.Verify(t.Context(), "ws", receipt)
					if err != nil {
						t.Fatal(err)
					}
					var before []byte
					b.change(key, func(data []byte) []byte { before = data; return harm(data) })
					_, broken := s.Verify(t.Context(), "ws", receipt)
					again := s.Unchanged(t.Context(), report)
					b.change(key, func([]byte) []byte { return before })
					wantClass(t, broken, box.ClassUnknown)
					if len(harm(before)) != len(before) && box.ClassOf(again) != box.ClassUnknown {
						t.Errorf("%s: Unchanged says %v", key, again)
					}
				}
			})
		}
	}
}

// What is lost between the read-back and the manifest is found before there is a
// receipt.
func TestAChunkThatIsLostLate(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"chunks/", "workspace.json.zst"} {
		b := newBucket()
		b.afterWrite = func(_ int, key string) error {
			if strings.HasSuffix(key, "manifest.json") {
				for name := range b.objects { // its lock is held
					if strings.Contains(name, part) {
						delete(b.objects, name)
						break
					}
				}
			}
			return nil
		}
		_, err := b.store(exports.Options{SpoolDir: t.TempDir()}).Export(t.Context(), request("a"), newBoxWithWork(t, smallWork(), 1), nil)
		wantClass(t, err, box.ClassUnknown)
	}
}
