package exports_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

const day = 24 * time.Hour

// later is a clock that the test moves.
type later struct {
	mu  sync.Mutex
	now time.Time
}

func (l *later) Now() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *later) pass(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = l.now.Add(d)
}

// life is a store with a clock, in which workspaces begin and end.
type life struct {
	*bucket
	*exports.Store
	clock *later
	t     *testing.T
}

func newLife(t *testing.T) *life {
	t.Helper()
	l := &life{bucket: newBucket(), clock: &later{now: clock()}, t: t}
	l.Store = l.again()
	return l
}

// again opens the store once more, as another process does.
func (l *life) again() *exports.Store {
	return l.store(exports.Options{Now: l.clock.Now, SpoolDir: l.t.TempDir()})
}

func (l *life) note(workspace string, kind exports.Kind, data any) {
	l.t.Helper()
	raw, err := json.Marshal(data)
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := l.AppendLedger(l.t.Context(), workspace, exports.Entry{ID: string(kind), Kind: kind, Epoch: 1, Data: raw}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *life) begin(workspace string, life box.Duration) {
	l.t.Helper()
	l.note(workspace, exports.KindCreateIntent, box.LedgerCreate{Spec: box.Spec{
		Version: box.WireVersion, Workspace: workspace, Owner: "o", Provider: "local", Policy: box.Policy{ExportLife: life},
	}})
}

func (l *life) end(workspace string) {
	l.note(workspace, exports.KindDeleted, box.LedgerDeletion{By: "o"})
}

func (l *life) export(workspace string, epoch int, attempt string, previous box.Receipt, src *server) box.Receipt {
	l.t.Helper()
	r, err := l.Export(l.t.Context(), exports.Request{Workspace: workspace, Epoch: epoch, Attempt: attempt, Previous: previous}, src, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

func (l *life) sweep(remove bool) map[string]exports.Swept {
	l.t.Helper()
	out := map[string]exports.Swept{}
	if err := l.Sweep(l.t.Context(), time.Time{}, remove, func(one exports.Swept) { out[one.Workspace] = one }); err != nil {
		l.t.Fatal(err)
	}
	return out
}

func below(keys []string, prefix string) (out []string) {
	for _, key := range keys {
		if strings.HasPrefix(key, prefix) {
			out = append(out, key)
		}
	}
	return out
}

func TestExportsGoWhenTheirLifeIsOver(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	for workspace, life := range map[string]box.Duration{"short": box.Duration(10 * day), "usual": 0, "kept": box.Never, "open": box.Duration(day), "left": box.Duration(day)} {
		l.begin(workspace, life)
		l.export(workspace, 1, "a", box.Receipt{}, newServer(3, 1))
	}
	l.change("chunks/short/ab/"+strings.Repeat("ab", 32), func([]byte) []byte { return []byte("piece") })
	l.change("exports/short/0001/b/conversations/"+hex32(1)+".zip", func([]byte) []byte { return []byte("of an attempt that did not end") })
	for _, workspace := range []string{"short", "usual", "kept"} {
		l.end(workspace)
	}
	l.note("left", exports.KindAbandoned, box.LedgerAbandonment{})
	if len(l.sweep(true)) != 5 {
		t.Fatal("not every workspace with exports is told of")
	}
	before := l.keys()

	l.clock.pass(10*day - time.Second)
	for workspace, one := range l.sweep(true) {
		if one.Result != exports.SweepKept || one.Life.Reason == "" {
			t.Errorf("%s: %+v", workspace, one)
		}
	}
	if !slices.Equal(l.keys(), before) {
		t.Fatal("something went before its time")
	}
	l.clock.pass(time.Second) // equal is due
	// The engine's clock has a word too: a worker's that runs ahead ends no life.
	err := l.Sweep(t.Context(), l.clock.Now().Add(-time.Hour), true, func(one exports.Swept) {
		if one.Result != exports.SweepKept {
			t.Errorf("%+v", one)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	dry := l.sweep(false)["short"]
	if dry.Result != exports.SweepDue || len(dry.Exports) != 1 || dry.Objects != 5 || dry.StoredBytes == 0 {
		t.Errorf("%+v", dry)
	}
	if !slices.Equal(l.keys(), before) {
		t.Fatal("a dry run deleted something")
	}
	for workspace, one := range l.sweep(true) {
		if want := map[bool]exports.SweepResult{true: exports.SweepDeleted, false: exports.SweepKept}[workspace == "short"]; one.Result != want {
			t.Errorf("%s: %+v", workspace, one)
		}
	}
	after := l.keys()
	if rest := append(below(after, "exports/short/"), below(after, "chunks/short/")...); len(rest) > 0 {
		t.Errorf("%q stay", rest)
	}
	for _, workspace := range []string{"usual", "kept", "open", "left"} {
		if got := below(after, "exports/"+workspace+"/"); !slices.Equal(got, below(before, "exports/"+workspace+"/")) {
			t.Errorf("%s has %q", workspace, got)
		}
	}
	// The tombstone stays, and the ledger says what went.
	closed, tombstone, err := l.Closed(t.Context(), "short")
	if err != nil || !closed || tombstone.Kind != exports.KindDeleted {
		t.Fatalf("%v %+v %v", closed, tombstone, err)
	}
	entries, err := l.Ledger(t.Context(), "short")
	if err != nil || len(entries) != 4 {
		t.Fatalf("%d entries: %v", len(entries), err)
	}
	var going, gone box.LedgerExportDeletion
	if err := errors.Join(json.Unmarshal(entries[2].Data, &going), json.Unmarshal(entries[3].Data, &gone)); err != nil {
		t.Fatal(err)
	}
	if entries[2].Kind != exports.KindExportsDeleting || len(going.Exports) != 1 || going.Exports[0].SHA256 == "" || going.By != "policy" {
		t.Errorf("%+v", going)
	}
	if entries[3].Kind != exports.KindExportsDeleted || len(gone.Exports) != 1 || gone.Objects != 5 {
		t.Errorf("%+v", gone)
	}
	if _, err := l.AppendLedger(t.Context(), "short", exports.Entry{ID: "late", Kind: exports.KindMarks, Epoch: 1}); box.ClassOf(err) != box.ClassFailedPrecondition {
		t.Errorf("the ledger is open again: %v", err)
	}
	// And no more than that, however often.
	for range 5 {
		if one, told := l.sweep(true)["short"]; told {
			t.Errorf("%+v", one)
		}
	}
	if !slices.Equal(l.keys(), after) {
		t.Error("a sweep with nothing to do did something")
	}
	l.clock.pass(80 * day)
	if one := l.sweep(true)["usual"]; one.Result != exports.SweepDeleted {
		t.Errorf("the default life is 90 days: %+v", one)
	}
}

func TestExportsOfADamagedLedgerStay(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.begin("ws", box.Duration(day))
	l.export("ws", 1, "a", box.Receipt{}, newServer(3))
	l.end("ws")
	l.change("ledger/ws/00000001.json", func(d []byte) []byte { return d[:20] })
	before := l.keys()
	l.clock.pass(1000 * day)
	one := l.sweep(true)["ws"]
	if one.Result != exports.SweepFailed || one.Error == "" {
		t.Errorf("%+v", one)
	}
	if !slices.Equal(l.keys(), before) {
		t.Error("something was deleted")
	}
}

func TestOnePlaceDeletes(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "bucket.Delete("); n > 0 && !strings.HasSuffix(file, "_test.go") {
			found = append(found, fmt.Sprintf("%s: %d", file, n))
		}
	}
	if !slices.Equal(found, []string{"remove.go: 1"}) {
		t.Errorf("%q delete from the store; there is one place for it, remove.go", found)
	}
}

// Wherever a sweep breaks off, no manifest is left that names what is gone, and
// the next one ends the work.
func TestASweepThatBreaksOffLeavesNoHalfExport(t *testing.T) {
	t.Parallel()
	for stop := range 40 {
		l := newLife(t)
		l.begin("ws", box.Duration(day))
		src := newServer(3, 1)
		first := l.export("ws", 1, "a", box.Receipt{}, src)
		src.grow(hex32(2), 2)
		l.export("ws", 1, "b", first, src) // names an object of the first
		l.end("ws")
		l.clock.pass(day)
		calls := 0
		l.deletes = func(string) error {
			if calls++; calls > stop {
				return errFailing
			}
			return nil
		}
		one := l.sweep(true)["ws"]
		l.deletes = nil
		complete(t, l)
		if one.Result == exports.SweepDeleted {
			if stop < 5 {
				t.Fatalf("%d deletions were enough", stop)
			}
			return
		}
		if one.Result != exports.SweepFailed {
			t.Fatalf("%+v", one)
		}
		if one = l.sweep(true)["ws"]; one.Result != exports.SweepDeleted {
			t.Fatalf("%+v", one)
		}
		if rest := below(l.keys(), "exports/"); len(rest) > 0 {
			t.Fatalf("%q stay", rest)
		}
		if _, err := l.Ledger(t.Context(), "ws"); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("it never ended")
}

// complete checks that every manifest that is there can be proven.
func complete(t *testing.T, l *life) {
	t.Helper()
	for _, key := range l.keys() {
		if strings.HasSuffix(key, "/manifest.json") {
			if _, err := l.Verify(t.Context(), "ws", box.Receipt{Key: key}); err != nil {
				t.Fatalf("%s names what is gone: %v", key, err)
			}
		}
	}
}

func TestTwoSweepsAtOnce(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	for _, workspace := range []string{"a", "b", "c"} {
		l.begin(workspace, box.Duration(day))
		for _, attempt := range []string{"x", "y", "z"} {
			l.export(workspace, 1, attempt, box.Receipt{}, newServer(3, 1, 4))
		}
		l.end(workspace)
	}
	l.clock.pass(day)
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() {
			errs <- l.again().Sweep(t.Context(), time.Time{}, true, func(one exports.Swept) {
				if one.Result == exports.SweepFailed {
					t.Errorf("%+v", one)
				}
			})
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if rest := below(l.keys(), "exports/"); len(rest) > 0 {
		t.Errorf("%q stay", rest)
	}
	for _, workspace := range []string{"a", "b", "c"} {
		if closed, _, err := l.Closed(t.Context(), workspace); !closed || err != nil {
			t.Errorf("%v %v", closed, err)
		}
		if _, err := l.Ledger(t.Context(), workspace); err != nil {
			t.Error(err)
		}
	}
}

func TestStrangersStay(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.begin("ws", box.Duration(day))
	l.export("ws", 1, "a", box.Receipt{}, newServer(1))
	l.end("ws")
	strangers := []string{"chunks/ws/notes.txt", "exports/ws/README.md"}
	for _, key := range strangers {
		l.change(key, func([]byte) []byte { return []byte("a person's") })
	}
	l.clock.pass(day)
	one := l.sweep(true)["ws"]
	if one.Result != exports.SweepDeleted || len(one.Strangers) != 2 {
		t.Errorf("%+v", one)
	}
	if rest := append(below(l.keys(), "chunks/"), below(l.keys(), "exports/")...); !slices.Equal(rest, strangers) {
		t.Errorf("%q stay", rest)
	}
}

// More entries about exports than an append looks back on do not open a ledger.
func TestTheEndIsSeenBehindManyDeletions(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.begin("ws", 0)
	l.end("ws")
	for i := range 40 {
		_, err := l.AppendLedger(t.Context(), "ws", exports.Entry{ID: strings.Repeat("x", i+1), Kind: exports.KindExportsDeleted})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []exports.Kind{exports.KindMarks, exports.KindCreateIntent} {
		_, err := l.AppendLedger(t.Context(), "ws", exports.Entry{ID: "late", Kind: kind, Epoch: 1})
		wantClass(t, err, box.ClassFailedPrecondition)
	}
}

func TestOneExportIsDeletedByItsToken(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.begin("ws", 0)
	src := newServer(3, 1)
	first := l.export("ws", 1, "a", box.Receipt{}, src)
	l.clock.pass(time.Hour)
	src.grow(hex32(2), 2)
	second := l.export("ws", 1, "b", first, src)
	before := l.keys()

	// What an open workspace stands on stays.
	_, err := l.AskDeletion(t.Context(), "ws", second.Key)
	wantClass(t, err, box.ClassFailedPrecondition)
	_, err = l.AskDeletion(t.Context(), "ws", first.Key)
	wantClass(t, err, box.ClassFailedPrecondition) // younger than a day
	l.clock.pass(day)
	asked, err := l.AskDeletion(t.Context(), "ws", first.Key)
	if err != nil {
		t.Fatal(err)
	}
	// The second names the first one's object of conversation 1.
	if asked.Objects != 2 || asked.Needed != 1 || len(asked.Lost) > 0 || asked.Export.Receipt != first {
		t.Errorf("%+v", asked)
	}
	for name, token := range map[string]string{"none": "", "words": "yes", "another's": box.ExportToken("x", l.clock.Now())} {
		if _, err := l.DeleteExport(t.Context(), "ws", first.Key, token, "ann"); err == nil {
			t.Errorf("%s was taken for a token", name)
		}
	}
	l.clock.pass(day + time.Second)
	_, err = l.DeleteExport(t.Context(), "ws", first.Key, asked.Token, "ann")
	wantClass(t, err, box.ClassFailedPrecondition) // too old
	if asked, err = l.AskDeletion(t.Context(), "ws", first.Key); err != nil {
		t.Fatal(err)
	}
	// What was shown changes: another export needs less or more.
	l.export("ws", 1, "c", box.Receipt{}, src)
	l.change("exports/ws/0001/b/manifest.json", func([]byte) []byte { return nil })
	_, err = l.DeleteExport(t.Context(), "ws", first.Key, asked.Token, "ann")
	wantClass(t, err, box.ClassFailedPrecondition)
	if got := below(l.keys(), "exports/ws/0001/a/"); !slices.Equal(got, below(before, "exports/ws/0001/a/")) {
		t.Fatal("a refused deletion deleted something")
	}
	if asked, err = l.AskDeletion(t.Context(), "ws", first.Key); err != nil {
		t.Fatal(err)
	}
	if asked.Objects != 3 || asked.Needed != 0 {
		t.Errorf("%+v", asked)
	}
	if _, err = l.DeleteExport(t.Context(), "ws", first.Key, asked.Token, "ann"); err != nil {
		t.Fatal(err)
	}
	if rest := below(l.keys(), "exports/ws/0001/a/"); len(rest) > 0 {
		t.Errorf("%q stay", rest)
	}
	_, err = l.DeleteExport(t.Context(), "ws", first.Key, asked.Token, "ann")
	wantClass(t, err, box.ClassNotFound)
	all, err := l.Histories(t.Context(), "ws")
	if err != nil || len(all) != 2 {
		t.Errorf("%+v %v", all, err)
	}
	entries, err := l.Ledger(t.Context(), "ws")
	if err != nil || entries[len(entries)-1].Kind != exports.KindExportsDeleted || !strings.Contains(string(entries[len(entries)-2].Data), `"ann"`) {
		t.Errorf("%+v %v", entries, err)
	}
}

// An export of a younger box may name objects of an older one's: they stay with
// the last export that names them.
func TestObjectsStayForTheExportsThatNameThem(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.begin("ws", 0)
	first := l.export("ws", 1, "a", box.Receipt{}, newServer(3, 1))
	second := l.export("ws", 2, "a", box.Receipt{}, newServer(3, 1))
	// The second names the first one's object, as after a restore.
	var m map[string]any
	l.change(second.Key, func(d []byte) []byte {
		if err := json.Unmarshal(d, &m); err != nil {
			t.Fatal(err)
		}
		entries, _ := m["conversations"].([]any)
		entry, ok := entries[0].(map[string]any)
		totals, also := m["totals"].(map[string]any)
		if !ok || !also {
			t.Fatal("no manifest")
		}
		entry["key"], entry["reused"] = "exports/ws/0001/a/conversations/"+hex32(1)+".zip", true
		totals["reused"] = 1
		out, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return out
	})
	complete(t, l)
	l.end("ws")
	asked, err := l.AskDeletion(t.Context(), "ws", first.Key)
	if err != nil || asked.Needed != 1 || asked.Objects != 2 {
		t.Fatalf("%+v %v", asked, err)
	}
	if _, err := l.DeleteExport(t.Context(), "ws", first.Key, asked.Token, "ann"); err != nil {
		t.Fatal(err)
	}
	complete(t, l)
	if asked, err = l.AskDeletion(t.Context(), "ws", second.Key); err != nil || len(asked.Lost) != 2 {
		t.Fatalf("%+v %v", asked, err)
	}
	// A manifest that cannot be read may need anything.
	l.export("other", 1, "a", box.Receipt{}, newServer(1))
	l.change("exports/ws/0003/a/manifest.json", func([]byte) []byte { return []byte(`{"version":99}`) })
	_, err = l.AskDeletion(t.Context(), "ws", second.Key)
	wantClass(t, err, box.ClassUnsupported)
}

func TestADeletionThatBreaksOffLeavesNoHalfExport(t *testing.T) {
	t.Parallel()
	for stop := range 10 {
		l := newLife(t)
		l.begin("ws", 0)
		src := newServer(3, 1)
		first := l.export("ws", 1, "a", box.Receipt{}, src)
		src.grow(hex32(2), 2)
		l.export("ws", 1, "b", first, src)
		l.end("ws")
		asked, err := l.AskDeletion(t.Context(), "ws", first.Key)
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		l.deletes = func(string) error {
			if calls++; calls > stop {
				return errFailing
			}
			return nil
		}
		_, err = l.DeleteExport(t.Context(), "ws", first.Key, asked.Token, "ann")
		l.deletes = nil
		complete(t, l)
		if err == nil {
			if stop != 3 { // the manifest, a history, the report of secrets
				t.Fatalf("%d deletions were enough", stop)
			}
			return
		}
	}
	t.Fatal("it never ended")
}
