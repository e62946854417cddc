package exports_test

import (
	"bytes"
	"encoding/json"
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
