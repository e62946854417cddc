package exports_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func TestExportIsProvenFromTheStoreAlone(t *testing.T) {
	t.Parallel()
	s, dir := directoryStore(t)
	src := newServer(3, 0, 12)
	var seen []exports.Stage
	receipt, err := s.Export(t.Context(), request("a"), src, func(p exports.Progress) {
		if len(seen) == 0 || seen[len(seen)-1] != p.Stage {
			seen = append(seen, p.Stage)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if receipt.Conversations != 3 || receipt.Events != 15 || receipt.Key != "exports/ws/0001/a/manifest.json" || receipt.Reused != 0 {
		t.Fatalf("receipt %+v", receipt)
	}
	for _, stage := range []exports.Stage{exports.StageList, exports.StageDownload, exports.StageCheck, exports.StageStore, exports.StageReadBack, exports.StageManifest} {
		if !slices.Contains(seen, stage) {
			t.Errorf("no progress in stage %s: %v", stage, seen)
		}
	}
	fresh, err := exports.Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close() //nolint:errcheck // a test's
	proven(t, fresh, receipt, src)
	data, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(receipt.Key)))
	if err != nil {
		t.Fatal(err)
	}
	var m exports.Manifest
	if err := json.Unmarshal(data, &m); err != nil || m.Version != exports.ManifestVersion || m.Totals.Events != 15 || m.Tool != "test" || !m.CreatedAt.Equal(clock()) {
		t.Fatalf("manifest %s: %v", data, err)
	}
}

func TestDirectoryIsPrivateAndHoldsNothingElse(t *testing.T) {
	t.Parallel()
	s, dir := directoryStore(t)
	if _, err := s.Export(t.Context(), request("a"), newServer(2), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AppendLedger(t.Context(), "ws", exports.Entry{ID: "1", Kind: exports.KindMarks}); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	var files []string
	err := filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		want := os.FileMode(0o600)
		if e.IsDir() {
			want = 0o700
		} else {
			rel, _ := filepath.Rel(dir, name)
			files = append(files, filepath.ToSlash(rel))
		}
		if name != dir && info.Mode().Perm() != want {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"exports/ws/0001/a/conversations/" + hex32(1) + ".zip", "exports/ws/0001/a/manifest.json", "exports/ws/0001/a/secrets.json", "ledger/ws/00000001.json"}
	if !slices.Equal(files, want) {
		t.Errorf("files %q", files)
	}
}

func TestSecondExportFetchesOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	s, _ := directoryStore(t)
	src := newServer(3, 4, 5)
	first, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	src.grow(hex32(2), 1)
	src.grow(hex32(9), 2)
	src.downloads = nil
	req := request("b")
	req.Previous = first
	second, err := s.Export(t.Context(), req, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{hex32(2), hex32(9)}; !slices.Equal(src.downloads, want) {
		t.Errorf("downloaded %v", src.downloads)
	}
	if second.Reused != 2 || second.Conversations != 4 || second.Events != 15 {
		t.Errorf("receipt %+v", second)
	}
	proven(t, s, second, src)

	req.Epoch, req.Attempt, req.Previous = 2, "c", second
	src.downloads = nil
	third, err := s.Export(t.Context(), req, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	if third.Reused != 0 || len(src.downloads) != 4 {
		t.Errorf("another box's export was reused: %+v", third)
	}
}

func TestRepeatedAttempt(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	src := newServer(3, 4)
	first, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	src.downloads = nil
	again, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil || again != first || len(src.downloads) != 0 {
		t.Fatalf("a repeat gave %+v after %d downloads: %v", again, len(src.downloads), err)
	}
	before := b.keys()
	src.grow(hex32(1), 1)
	moved, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	if moved.Key != "exports/ws/0001/a-2/manifest.json" || moved.Reused != 1 {
		t.Errorf("receipt of the grown history: %+v", moved)
	}
	for _, key := range before {
		if !slices.Contains(b.keys(), key) {
			t.Errorf("%s is gone", key)
		}
	}
	proven(t, s, moved, src)
	if _, err := s.Verify(t.Context(), "ws", first); err != nil {
		t.Errorf("the first export does not verify any more: %v", err)
	}
}

func TestGrowingHistoryIsFetchedAgain(t *testing.T) {
	t.Parallel()
	s := newBucket().store(exports.Options{})
	src := newServer(3, 4)
	src.listed = func(call int, honest []box.ConversationMark) ([]box.ConversationMark, error) {
		if call == 1 {
			defer src.grow(hex32(2), 1) // after the first count
		}
		if call == 2 {
			src.grow(hex32(1), 2)
			return src.marks(), nil
		}
		return honest, nil
	}
	receipt, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	proven(t, s, receipt, src)
}

func TestHistoryThatNeverRestsIsConflict(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	src := newServer(1)
	src.listed = func(int, []box.ConversationMark) ([]box.ConversationMark, error) {
		src.grow(hex32(1), 1)
		return src.marks(), nil
	}
	_, err := s.Export(t.Context(), request("a"), src, nil)
	wantClass(t, err, box.ClassConflict)
	noManifest(t, b)
}

func TestConversationThatGoesMeanwhileIsKept(t *testing.T) {
	t.Parallel()
	s := newBucket().store(exports.Options{})
	src := newServer(3, 4)
	src.listed = func(call int, honest []box.ConversationMark) ([]box.ConversationMark, error) {
		if call == 2 {
			src.remove(hex32(2))
			return src.marks(), nil
		}
		return honest, nil
	}
	receipt, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	proven(t, s, receipt, src)
	report, err := s.Verify(t.Context(), "ws", receipt)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Conversations) != 2 || !report.Conversations[1].Gone || report.Conversations[1].Events != 4 {
		t.Errorf("manifest lists %+v", report.Conversations)
	}
	// One listing that forgets it is not enough.
	other := newServer(3, 4)
	other.listed = func(call int, honest []box.ConversationMark) ([]box.ConversationMark, error) {
		if call == 2 {
			return honest[:1], nil
		}
		return honest, nil
	}
	receipt, err = s.Export(t.Context(), exports.Request{Workspace: "other", Epoch: 1, Attempt: "a"}, other, nil)
	if err != nil {
		t.Fatal(err)
	}
	proven(t, s, receipt, other)
}

func TestRequestIsRefusedWithTheFieldNamed(t *testing.T) {
	t.Parallel()
	s := newBucket().store(exports.Options{})
	for name, c := range map[string]struct {
		field string
		req   exports.Request
	}{
		"workspace that climbs":     {"workspace", exports.Request{Workspace: "../x", Epoch: 1, Attempt: "a"}},
		"epoch below zero":          {"epoch", exports.Request{Workspace: "ws", Epoch: -1, Attempt: "a"}},
		"attempt that climbs":       {"attempt", exports.Request{Workspace: "ws", Epoch: 1, Attempt: "../../x"}},
		"attempt in upper case":     {"attempt", exports.Request{Workspace: "ws", Epoch: 1, Attempt: "A"}},
		"no attempt":                {"attempt", exports.Request{Workspace: "ws", Epoch: 1}},
		"another's receipt":         {"previous", exports.Request{Workspace: "ws", Epoch: 1, Attempt: "a", Previous: box.Receipt{Workspace: "other"}}},
		"receipt with another key":  {"previous", exports.Request{Workspace: "ws", Epoch: 1, Attempt: "a", Previous: box.Receipt{Workspace: "ws", Epoch: 1, Key: "exports/other/0001/a/manifest.json"}}},
		"receipt with a wilder key": {"previous", exports.Request{Workspace: "ws", Epoch: 1, Attempt: "a", Previous: box.Receipt{Workspace: "ws", Epoch: 1, Key: "ledger/ws/00000001.json"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := s.Export(t.Context(), c.req, newServer(1), nil)
			wantClass(t, err, box.ClassInvalid)
			if !strings.HasPrefix(err.Error(), c.field+": ") {
				t.Errorf("%v does not name %s", err, c.field)
			}
		})
	}
}

func TestOpenRefusesBadURLs(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "exports", "s3://bucket", "file://", "file:///", "file://relative/x", "file:relative", "file:///x?create_dir=1",
		"mem://x", "mem:///x", "http://u:p@h/", "://", "file:///a#b",
	} {
		s, err := exports.Open(t.Context(), url)
		if err == nil {
			_ = s.Close()
		}
		if box.ClassOf(err) != box.ClassInvalid || !strings.HasPrefix(err.Error(), "exports.url: ") {
			t.Errorf("%q: %v", url, err)
		}
		if strings.Contains(fmt.Sprint(err), "u:p") {
			t.Errorf("%q: the error repeats the password", url)
		}
	}
	s, err := exports.Open(t.Context(), "mem://")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestExportHistory drives random lives of a box against a store that fails at
// random: whatever happened before, a receipt is true, and nothing that was
// once proven gets worse.
func TestExportHistory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := newBucket()
		s := b.store(exports.Options{SpoolDir: t.TempDir()})
		src := newServer(1, 2)
		epoch, previous := 1, box.Receipt{}
		best := map[string]int{}
		fail := -1
		b.beforeWrite = func(int, string) error {
			if fail--; fail == 0 {
				return errFailing
			}
			return nil
		}
		rt.Repeat(map[string]func(*rapid.T){
			"grow": func(rt *rapid.T) {
				src.grow(hex32(rapid.IntRange(1, 4).Draw(rt, "id")), rapid.IntRange(1, 3).Draw(rt, "by"))
			},
			"remove":  func(rt *rapid.T) { src.remove(hex32(rapid.IntRange(1, 4).Draw(rt, "id"))) },
			"new box": func(*rapid.T) { epoch++; src = newServer(1) },
			"export": func(rt *rapid.T) {
				fail = rapid.IntRange(-1, 4).Draw(rt, "failing write")
				req := exports.Request{Workspace: "ws", Epoch: epoch, Attempt: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "attempt")}
				if rapid.Bool().Draw(rt, "with previous") {
					req.Previous = previous
				}
				receipt, err := s.Export(t.Context(), req, src, nil)
				if err != nil {
					if fail > 0 || !receipt.IsZero() {
						rt.Fatalf("no fault was due: %v", err)
					}
					return
				}
				previous = receipt
				if _, err := s.Verify(t.Context(), "ws", receipt); err != nil {
					rt.Fatal(err)
				}
				if !receipt.Covers(epoch, box.HistoryDigest(src.marks())) {
					rt.Fatalf("receipt %+v does not cover the history", receipt)
				}
				for _, m := range src.marks() {
					best[m.ID] = max(best[m.ID], m.Events)
				}
			},
		})
		all, err := s.Histories(t.Context(), "ws")
		if err != nil {
			rt.Fatal(err)
		}
		for _, h := range all {
			if h.Events < best[h.ID] {
				rt.Fatalf("conversation %s has %d events, %d were proven", h.ID, h.Events, best[h.ID])
			}
		}
		if len(all) != len(best) {
			rt.Fatalf("%d conversations can be read, %d were proven", len(all), len(best))
		}
	})
}
