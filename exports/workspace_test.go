package exports_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func TestAnExportHoldsTheWorkspace(t *testing.T) {
	t.Parallel()
	s, dir := directoryStore(t)
	files := smallWork()
	src := newBoxWithWork(t, files, 2)
	receipt, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a := receipt.Archive; !a.Held() || a.None != "" || a.Files != 6 || a.Missing != 0 || a.Bytes != int64(len(untar(t, src.archive))) {
		t.Fatalf("receipt %+v", receipt)
	}
	fresh, err := exports.Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close() //nolint:errcheck // a test's
	proven(t, fresh, receipt, src.server)
	r, err := fresh.Workspace(t.Context(), "ws", receipt)
	if err != nil {
		t.Fatal(err)
	}
	whole := r.Tar(t.Context())
	got, err := io.ReadAll(whole)
	if err != nil || !bytes.Equal(got, untar(t, src.archive)) {
		t.Errorf("the tar came back as %d bytes: %v", len(got), err)
	}
	left := len(files)
	for e, err := range r.Entries(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		name, in := strings.CutPrefix(e.Name, "files/")
		if !in {
			continue
		}
		left--
		if e.Type == "directory" {
			if _, err := r.Open(t.Context(), e.Name); box.ClassOf(err) != box.ClassFailedPrecondition {
				t.Errorf("%q was opened: %v", e.Name, err)
			}
			continue
		}
		f, err := r.Open(t.Context(), e.Name)
		if err != nil {
			t.Fatalf("%q: %v", e.Name, err)
		}
		text, err := io.ReadAll(f)
		if err != nil || string(text) != files[name] || e.Modified != 1_700_000_000 {
			t.Errorf("%q reads as %d bytes, modified %d: %v", e.Name, len(text), e.Modified, err)
		}
	}
	if left != 0 {
		t.Errorf("%d entries too few", left)
	}
	if _, err := r.Open(t.Context(), "files/workspace/absent"); box.ClassOf(err) != box.ClassNotFound {
		t.Errorf("what is not there: %v", err)
	}
	if m, err := r.Manifest(t.Context()); err != nil || m.Files != 6 {
		t.Errorf("manifest %+v: %v", m, err)
	}
}

func TestAnUnchangedWorkspaceWritesNoChunkAgain(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{SpoolDir: t.TempDir()})
	files := smallWork()
	files["workspace/large"] = noise(2, 20<<20)
	src := newBoxWithWork(t, files, 3)
	first, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := b.keys()
	if n := len(chunkKeys(before)); n < 3 || n > 11 {
		t.Fatalf("20 MiB became %d chunks", n)
	}
	req := request("b")
	req.Previous = first
	second, err := s.Export(t.Context(), req, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	fresh := slices.DeleteFunc(b.keys(), func(k string) bool { return slices.Contains(before, k) })
	if want := []string{"exports/ws/0001/b/manifest.json", "exports/ws/0001/b/secrets.json", "exports/ws/0001/b/workspace.json.zst"}; !slices.Equal(fresh, want) {
		t.Errorf("the second export wrote %q", fresh)
	}
	if second.Archive != first.Archive {
		t.Errorf("receipts %+v and %+v", first.Archive, second.Archive)
	}
	proven(t, s, second, src.server)

	// A line at the front moves all that follows it, and not the cuts.
	files["workspace/a.txt"] = "alpha and omega"
	src.archive = files.pack(t)
	before = b.keys()
	req = request("c")
	third, err := s.Export(t.Context(), req, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	grown := len(chunkKeys(b.keys())) - len(chunkKeys(before))
	if grown < 1 || grown > 3 {
		t.Errorf("a small change wrote %d chunks", grown)
	}
	proven(t, s, third, src.server)
	if _, err := s.Verify(t.Context(), "ws", first); err != nil {
		t.Errorf("the first export: %v", err)
	}
}

func TestWithoutAWorkspaceTheReceiptSaysWhy(t *testing.T) {
	t.Parallel()
	s := newBucket().store(exports.Options{})
	src := newBoxWithWork(t, smallWork(), 2)
	src.given = func(int, []byte) (io.ReadCloser, error) {
		return nil, box.Errorf(box.ClassUnsupported, "its agent-server cannot give them out")
	}
	receipt, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	if receipt.Archive != (box.ArchiveReceipt{None: "its agent-server cannot give them out"}) || src.called != 1 {
		t.Errorf("receipt %+v after %d calls", receipt, src.called)
	}
	proven(t, s, receipt, src.server)
	if _, err := s.Workspace(t.Context(), "ws", receipt); box.ClassOf(err) != box.ClassNotFound || !strings.Contains(err.Error(), "cannot give them out") {
		t.Errorf("its workspace: %v", err)
	}
	if receipt, err = s.Export(t.Context(), request("b"), src.server, nil); err != nil || receipt.Archive.None == "" {
		t.Errorf("a source without any: %+v %v", receipt, err)
	}
}

// A manifest of version 1 goes on proving what it proved, and a receipt that an
// older program passed on is still one.
func TestAnExportOfVersion1IsRead(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	src := newBoxWithWork(t, smallWork(), 2)
	receipt, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	older := receipt
	older.Archive = box.ArchiveReceipt{}
	if report, err := s.Verify(t.Context(), "ws", older); err != nil || report.Archive == nil {
		t.Errorf("a receipt without the part: %v", err)
	}
	wrong := receipt
	wrong.Archive.Missing++
	if _, err := s.Verify(t.Context(), "ws", wrong); box.ClassOf(err) != box.ClassUnknown {
		t.Errorf("a receipt with another part: %v", err)
	}
	var m map[string]any
	b.change(receipt.Key, func(data []byte) []byte {
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		m["version"] = 1
		delete(m, "workspace_archive")
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return data
	})
	report, err := s.Verify(t.Context(), "ws", box.Receipt{Key: receipt.Key})
	if err != nil || report.Receipt.Archive != (box.ArchiveReceipt{}) || report.Receipt.Events != 2 {
		t.Errorf("version 1: %+v %v", report, err)
	}
	if _, err := s.Workspace(t.Context(), "ws", report.Receipt); box.ClassOf(err) != box.ClassNotFound {
		t.Errorf("its workspace: %v", err)
	}
	for name, change := range map[string]func(map[string]any){
		"version 1 with an archive":         func(m map[string]any) { m["workspace_archive"] = map[string]any{"bytes": 1} },
		"version 1 with a reason":           func(m map[string]any) { m["no_workspace_archive"] = "x" },
		"version 2 with neither":            func(m map[string]any) { m["version"] = 2 },
		"version 2 with an archive of none": func(m map[string]any) { m["version"], m["workspace_archive"] = 2, map[string]any{} },
	} {
		b.change(receipt.Key, func([]byte) []byte {
			bent := maps.Clone(m)
			change(bent)
			data, err := json.Marshal(bent)
			if err != nil {
				t.Fatal(err)
			}
			return data
		})
		if _, err := s.Verify(t.Context(), "ws", box.Receipt{Key: receipt.Key}); box.ClassOf(err) != box.ClassUnknown {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatIsMissingIsOnTheReceipt(t *testing.T) {
	t.Parallel()
	s := newBucket().store(exports.Options{})
	src := newBoxWithWork(t, nil, 1)
	for name, row := range map[string]struct {
		change func(*box.Manifest)
		want   int64
	}{
		"counted":         {func(m *box.Manifest) { m.Incomplete, m.Missing = []string{"a", "1 more"}, 12 }, 12},
		"by an old boxd":  {func(m *box.Manifest) { m.Incomplete = []string{"a may not be read", "b may not be read"} }, 2},
		"counted in vain": {func(m *box.Manifest) { m.Missing = 3 }, 3},
	} {
		src.archive = smallWork().pack(t, row.change)
		receipt, err := s.Export(t.Context(), request(strings.ReplaceAll(name, " ", "-")), src, nil)
		if err != nil || receipt.Archive.Missing != row.want {
			t.Errorf("%s: %+v %v", name, receipt.Archive, err)
		}
		r, err := s.Workspace(t.Context(), "ws", receipt)
		if err != nil || r.Archive().Missing != row.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A box that breaks off, lies or hangs is asked again, and in the end there is no
// export.
func TestScenario95ABrokenWorkspaceIsNoExport(t *testing.T) {
	t.Parallel()
	files := smallWork()
	files["workspace/large"] = noise(3, 9<<20)
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
	files["workspace/large"] = noise(4, 5<<20)
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

func TestCrashAtEachWriteOfTheWorkspace(t *testing.T) {
	t.Parallel()
	files := smallWork()
	files["workspace/large"] = noise(5, 6<<20)
	for _, when := range []string{"before", "after"} {
		for n := 1; ; n++ {
			b := newBucket()
			s := b.store(exports.Options{SpoolDir: t.TempDir()})
			src := newBoxWithWork(t, files, 1)
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
				break
			}
			wantClass(t, err, box.ClassUnavailable)
			b.beforeWrite, b.afterWrite = nil, nil
			chunks := chunkKeys(b.keys())
			receipt, err := s.Export(t.Context(), request("a"), src, nil)
			if err != nil {
				t.Fatalf("%s write %d: %v", when, n, err)
			}
			proven(t, s, receipt, src.server)
			for _, key := range chunks {
				if slices.Contains(b.keys(), key+"-2") {
					t.Errorf("%s write %d: %s was there and was written again", when, n, key)
				}
			}
		}
	}
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

// TestCancelInTheWorkspace cancels at the k-th report of progress.
func TestCancelInTheWorkspace(t *testing.T) {
	t.Parallel()
	files := smallWork()
	files["workspace/large"] = noise(6, 5<<20)
	for k := 1; ; k += 7 {
		b := newBucket()
		s := b.store(exports.Options{SpoolDir: t.TempDir()})
		src := newBoxWithWork(t, files, 1)
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
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		if err == nil {
			proven(t, s, receipt, src.server)
			continue
		}
		wantClass(t, err, box.ClassCanceled)
		if after > 2 {
			t.Errorf("report %d: went on for %d reports", k, after)
		}
	}
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
