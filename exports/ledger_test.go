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

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func note(id string) exports.Entry {
	return exports.Entry{ID: id, Kind: exports.KindMarks, Epoch: 1, Data: json.RawMessage(`{"reason":"` + id + `"}`)}
}

// What box.ValidateWorkspace takes is the first thing in a key: an id that the
// store refuses would be a workspace whose box can never be created.
func TestEveryWorkspaceIDHasALedger(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"-", "--", "-x", "x-", "0", strings.Repeat("-", 40)} {
		if err := box.ValidateWorkspace(id); err != nil {
			t.Fatal(err)
		}
		s, _ := directoryStore(t)
		if _, err := s.AppendLedger(t.Context(), id, note("one")); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		if got, err := s.Ledger(t.Context(), id); err != nil || len(got) != 1 {
			t.Errorf("%q: %d entries, %v", id, len(got), err)
		}
		if all, err := s.Workspaces(t.Context()); err != nil || !slices.Equal(all, []string{id}) {
			t.Errorf("%q is listed as %q, %v", id, all, err)
		}
	}
}

func TestLedgerKeepsOrderAndContent(t *testing.T) {
	t.Parallel()
	s, dir := directoryStore(t)
	kinds := []exports.Kind{
		exports.KindCreateIntent, exports.KindCreated, exports.KindSuspended, exports.KindResumed,
		exports.KindExported, exports.KindDeleteIntent, exports.KindMarks, exports.KindDeleted,
	}
	for i, kind := range kinds {
		closed, _, err := s.Closed(t.Context(), "ws")
		if err != nil || closed {
			t.Fatalf("closed before the tombstone: %v %v", closed, err)
		}
		e := exports.Entry{ID: fmt.Sprint(i), Kind: kind, Epoch: 2, Data: json.RawMessage(fmt.Sprintf(`{ "n": %d }`, i))}
		seq, err := s.AppendLedger(t.Context(), "ws", e)
		if err != nil || seq != i+1 {
			t.Fatalf("entry %d: %d %v", i, seq, err)
		}
	}
	fresh, err := exports.Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close() //nolint:errcheck // a test's
	got, err := fresh.Ledger(t.Context(), "ws")
	if err != nil || len(got) != len(kinds) {
		t.Fatalf("%d entries: %v", len(got), err)
	}
	for i, e := range got {
		if e.Seq != i+1 || e.Kind != kinds[i] || e.Epoch != 2 || !e.At.Equal(clock()) || string(e.Data) != fmt.Sprintf(`{"n":%d}`, i) {
			t.Errorf("entry %d reads as %+v", i, e)
		}
	}
	closed, tombstone, err := fresh.Closed(t.Context(), "ws")
	if err != nil || !closed || tombstone.Seq != 8 {
		t.Fatalf("closed %v %+v %v", closed, tombstone, err)
	}
	_, err = s.AppendLedger(t.Context(), "ws", exports.Entry{ID: "again", Kind: exports.KindCreateIntent, Epoch: 3})
	wantClass(t, err, box.ClassFailedPrecondition)
	for i, kind := range kinds {
		_, err = s.AppendLedger(t.Context(), "ws", exports.Entry{ID: fmt.Sprint("late", i), Kind: kind, Epoch: 2})
		wantClass(t, err, box.ClassFailedPrecondition)
		seq, err := s.AppendLedger(t.Context(), "ws", exports.Entry{ID: fmt.Sprint(i), Kind: kind, Epoch: 2})
		if err != nil || seq != i+1 {
			t.Errorf("a repeat of what was written before the tombstone: %d %v", seq, err)
		}
	}
	if closed, _, err := s.Closed(t.Context(), "ws"); err != nil || !closed {
		t.Errorf("closed %v %v", closed, err)
	}
	if other, err := s.Ledger(t.Context(), "w"); err != nil || len(other) != 0 {
		t.Errorf("another workspace reads %v %v", other, err)
	}
}

// A writer that read the ledger before the tombstone and writes after it loses:
// a closed workspace gets no second life from a late answer.
func TestLedgerWriterThatMeetsTheTombstoneIsRefused(t *testing.T) {
	t.Parallel()
	b, elsewhere := newBucket(), newBucket()
	s := b.store(exports.Options{})
	for _, bucket := range []*bucket{b, elsewhere} {
		if _, err := bucket.store(exports.Options{}).AppendLedger(t.Context(), "ws", note("x")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := elsewhere.store(exports.Options{}).AppendLedger(t.Context(), "ws", exports.Entry{ID: "t", Kind: exports.KindDeleted, Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	b.beforeWrite = func(_ int, key string) error { // between its list and its write another one closes the workspace
		if key == "ledger/ws/00000002.json" {
			b.objects[key] = elsewhere.objects[key]
		}
		return nil
	}
	_, err := s.AppendLedger(t.Context(), "ws", exports.Entry{ID: "late", Kind: exports.KindResumed, Epoch: 1})
	wantClass(t, err, box.ClassFailedPrecondition)
}

func TestWorkspacesListsEveryLedger(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	if got, err := s.Workspaces(t.Context()); err != nil || len(got) != 0 {
		t.Fatalf("an empty store has %v %v", got, err)
	}
	for _, ws := range []string{"b", "a", "a-b", "a", "b"} {
		if _, err := s.AppendLedger(t.Context(), ws, note(ws+fmt.Sprint(len(b.keys())))); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Workspaces(t.Context())
	if err != nil || !slices.Equal(got, []string{"a", "a-b", "b"}) {
		t.Errorf("%v %v", got, err)
	}
	b.objects["ledger/Not_One/00000001.json"] = []byte("{}")
	got, err = s.Workspaces(t.Context())
	wantClass(t, err, box.ClassUnknown)
	if !slices.Equal(got, []string{"a", "a-b", "b"}) {
		t.Errorf("beside a stranger: %v", got)
	}
}

func TestLedgerAppendIsIdempotentByID(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	for i := range 3 {
		if _, err := s.AppendLedger(t.Context(), "ws", note(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	seq, err := s.AppendLedger(t.Context(), "ws", exports.Entry{ID: "1", Kind: exports.KindMarks, Epoch: 1, Data: json.RawMessage(`{"other":1}`)})
	if err != nil || seq != 2 {
		t.Errorf("a repeat gave %d %v", seq, err)
	}
	_, err = s.AppendLedger(t.Context(), "ws", exports.Entry{ID: "1", Kind: exports.KindSuspended, Epoch: 1})
	wantClass(t, err, box.ClassAlreadyExists)

	// A lost answer: the entry is there, the caller saw an error.
	b.afterWrite = func(int, string) error { return errFailing }
	_, err = s.AppendLedger(t.Context(), "ws", note("lost"))
	wantClass(t, err, box.ClassUnavailable)
	b.afterWrite = nil
	seq, err = s.AppendLedger(t.Context(), "ws", note("lost"))
	if err != nil || seq != 4 || len(b.keys()) != 4 {
		t.Errorf("after a lost answer: %d %v %v", seq, err, b.keys())
	}
}

// TestLedgerWritersNeverOverwrite appends from many goroutines and two stores
// on one directory, each entry twice: every id is there once, without a gap.
func TestLedgerWritersNeverOverwrite(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "boxkeeper-ledger-*") //nolint:usetesting // one for each draw, gone at its end
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a test's
		writers := rapid.IntRange(1, 6).Draw(rt, "writers")
		each := rapid.IntRange(1, 4).Draw(rt, "entries each")
		kinds := []exports.Kind{exports.KindMarks, exports.KindSuspended, exports.KindResumed}
		var wg sync.WaitGroup
		var mu sync.Mutex
		numbers := map[string]int{}
		for w := range writers {
			s, err := exports.Open(t.Context(), "file://"+dir)
			if err != nil {
				rt.Fatal(err)
			}
			defer s.Close() //nolint:errcheck // a test's
			wg.Go(func() {
				for i := range each {
					e := exports.Entry{ID: fmt.Sprintf("%d-%d", w/2, i), Kind: kinds[i%3], Epoch: 1} // two writers share their ids
					seq, err := s.AppendLedger(t.Context(), "ws", e)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if old, ok := numbers[e.ID]; ok && old != seq {
						t.Errorf("%s is entry %d and %d", e.ID, old, seq)
					}
					numbers[e.ID] = seq
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		s, err := exports.Open(t.Context(), "file://"+dir)
		if err != nil {
			rt.Fatal(err)
		}
		defer s.Close() //nolint:errcheck // a test's
		all, err := s.Ledger(t.Context(), "ws")
		if err != nil {
			rt.Fatal(err)
		}
		if len(all) != len(numbers) {
			rt.Fatalf("%d entries for %d ids", len(all), len(numbers))
		}
		for _, e := range all {
			if numbers[e.ID] != e.Seq {
				rt.Fatalf("entry %d holds %s, which was told to be %d", e.Seq, e.ID, numbers[e.ID])
			}
		}
	})
}

func TestLedgerSaysWhichEntryIsDamaged(t *testing.T) {
	t.Parallel()
	key := "ledger/ws/00000002.json"
	for name, c := range map[string]struct {
		damage func([]byte) []byte
		says   string
	}{
		"lost":             {func([]byte) []byte { return nil }, "entry 2 of workspace ws is missing"},
		"cut":              {func(d []byte) []byte { return d[:len(d)/2] }, "entry 2 is not readable"},
		"empty":            {func([]byte) []byte { return []byte{} }, "entry 2 is not readable"},
		"kind changed":     {func(d []byte) []byte { return []byte(strings.Replace(string(d), `"marks"`, `"deleted"`, 1)) }, "entry 2 was altered"},
		"of another place": {func([]byte) []byte { return nil }, ""},
		"newer version":    {func(d []byte) []byte { return []byte(strings.Replace(string(d), `"version":1`, `"version":2`, 1)) }, "version 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBucket()
			s := b.store(exports.Options{})
			for _, id := range []string{"x", "y", "z"} {
				if _, err := s.AppendLedger(t.Context(), "ws", note(id)); err != nil {
					t.Fatal(err)
				}
			}
			says := c.says
			if name == "of another place" {
				first := slices.Clone(b.objects["ledger/ws/00000001.json"])
				b.change(key, func([]byte) []byte { return first })
				says = "entry 2 was written as number 1"
			} else {
				b.change(key, c.damage)
			}
			all, err := s.Ledger(t.Context(), "ws")
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Fatalf("%v does not say %q", err, says)
			}
			if len(all) != 2 || all[0].ID != "x" || all[1].ID != "z" {
				t.Errorf("the rest reads as %+v", all)
			}
			if closed, _, err := s.Closed(t.Context(), "ws"); closed || err == nil {
				t.Errorf("a damaged ledger is taken for an open workspace: %v %v", closed, err)
			}
			_, err = s.AppendLedger(t.Context(), "ws", exports.Entry{ID: "new", Kind: exports.KindCreateIntent, Epoch: 1})
			if err == nil {
				t.Error("a box may be created on a damaged ledger")
			}
			// New facts are recorded all the same, behind everything.
			seq, err := s.AppendLedger(t.Context(), "ws", exports.Entry{ID: "t", Kind: exports.KindDeleted, Epoch: 1})
			if err != nil || seq != 4 {
				t.Fatalf("%d %v", seq, err)
			}
			if closed, _, err := s.Closed(t.Context(), "ws"); !closed || err != nil {
				t.Errorf("a tombstone that is there is not seen: %v %v", closed, err)
			}
		})
	}
}

func TestLedgerThatCannotBeReadIsNoAnswer(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	if _, err := s.AppendLedger(t.Context(), "ws", note("x")); err != nil {
		t.Fatal(err)
	}
	b.read = func(string) error { return errFailing }
	if _, err := s.Ledger(t.Context(), "ws"); box.ClassOf(err) != box.ClassUnavailable {
		t.Errorf("%v", err)
	}
	if closed, _, err := s.Closed(t.Context(), "ws"); closed || box.ClassOf(err) != box.ClassUnavailable {
		t.Errorf("%v %v", closed, err)
	}
}

func TestDirectoryThatCannotBeReadIsNotEmpty(t *testing.T) {
	t.Parallel()
	if os.Getuid() == 0 {
		t.Log("running as root: modes do not bind it, so a file takes the directory's place instead")
	}
	s, dir := directoryStore(t)
	if _, err := s.AppendLedger(t.Context(), "ws", note("x")); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "ledger", "ws")
	if err := errors.Join(os.Rename(name, name+"-old"), os.WriteFile(name, nil, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AppendLedger(t.Context(), "ws", note("y")); err == nil {
		t.Error("an append into a file works")
	}
	// The whole directory replaced while it is in use.
	if err := errors.Join(os.Rename(dir, dir+"-moved"), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir + "-moved") })
	if _, err := s.Ledger(t.Context(), "ws"); err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("a replaced directory reads as %v", err)
	}
	if err := s.Check(t.Context()); err == nil {
		t.Error("a replaced directory passes the check")
	}
}

func TestLedgerRefusesSecrets(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	for where, data := range map[string]string{
		"data.spec.env.X":             `{"spec":{"env":{"X":"sk-abcdefghijklmnopqrstuvwxyz"}}}`,
		"data.a[1]":                   `{"a":["fine","ghp_abcdefghijklmnopqrstuvwxyz0123456789"]}`,
		"data.session_key":            `{"session_key":"hunter2"}`,
		"data.OPENAI_API_KEY":         `{"OPENAI_API_KEY":"abc"}`,
		"data.password":               `{"password":"x"}`,
		"data.note":                   `{"note":"Authorization: Bearer abcdef0123456789abcdef"}`,
		"data.url":                    `{"url":"https://user:pass@example.com/"}`,
		"data.pem":                    `{"pem":"-----BEGIN RSA PRIVATE KEY-----\nMII"}`,
		"data":                        `{"sk-abcdefghijklmnopqrstuvwxyz":1}`,
		"data.fernet":                 `{"fernet":"gAAAA` + strings.Repeat("B", 70) + `"}`,
		"data.aws":                    `{"aws":"AKIAIOSFODNN7EXAMPLE"}`,
		"data.secrets.GITHUB_API_KEY": `{"secrets":{"GITHUB_API_KEY":"plain"}}`,
	} {
		_, err := s.AppendLedger(t.Context(), "ws", exports.Entry{ID: "1", Kind: exports.KindMarks, Data: json.RawMessage(data)})
		wantClass(t, err, box.ClassInvalid)
		if !strings.HasPrefix(err.Error(), where+": ") {
			t.Errorf("%v does not name %s", err, where)
		}
		var v any
		_ = json.Unmarshal([]byte(data), &v)
		for _, canary := range []string{"hunter2", "sk-abc", "ghp_abc", "user:pass", "MII"} {
			if strings.Contains(err.Error(), canary) {
				t.Errorf("the error repeats the secret: %v", err)
			}
		}
	}
	if len(b.keys()) != 0 {
		t.Errorf("written: %v", b.keys())
	}
	policy := box.DefaultPolicy()
	spec := box.Spec{
		Version: 1, Workspace: "ws", Provider: "local", Policy: policy, Owner: "user@example.com",
		Env: map[string]string{"PATH": "/usr/bin"}, Secrets: map[string]string{"OPENAI_API_KEY": "env:OPENAI_API_KEY", "GH_TOKEN": "file:/run/secrets/gh", "DB_PASSWORD": "credential:db"},
	}
	data, err := json.Marshal(map[string]any{
		"spec": spec, "receipt": box.Receipt{Workspace: "ws", Key: "exports/ws/0001/a/manifest.json", SHA256: strings.Repeat("a", 64)},
		"ref": box.Ref{Provider: "local", ID: "123", Fingerprint: "0f"}, "token": box.ConfirmationToken("ws", 1, "x", "y"), "session_key": box.Secret("hidden"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.AppendLedger(t.Context(), "ws", exports.Entry{ID: "1", Kind: exports.KindCreated, Epoch: 1, Data: data}); err != nil {
		t.Errorf("a spec with references is refused: %v", err)
	}
}

func TestLedgerKeepsAnyText(t *testing.T) {
	t.Parallel()
	s := newBucket().store(exports.Options{})
	data := "{\"a\" : \"<&>\u2028\xff\\u0000\\ud800 \U0001f600\", \"a\":1e400}"
	if _, err := s.AppendLedger(t.Context(), "ws", exports.Entry{ID: "\x00\xff<&>", Kind: exports.KindMarks, Data: json.RawMessage(data)}); err != nil {
		t.Fatal(err)
	}
	all, err := s.Ledger(t.Context(), "ws")
	if err != nil || len(all) != 1 {
		t.Fatalf("%v %v", all, err)
	}
}

func TestLedgerRefusesBadEntries(t *testing.T) {
	t.Parallel()
	s := newBucket().store(exports.Options{})
	for field, e := range map[string]exports.Entry{
		"kind":  {ID: "1", Kind: "unheard-of"},
		"id":    {Kind: exports.KindMarks},
		"epoch": {ID: "1", Kind: exports.KindMarks, Epoch: 10_000},
		"data":  {ID: "1", Kind: exports.KindMarks, Data: json.RawMessage(`[1]`)},
	} {
		_, err := s.AppendLedger(t.Context(), "ws", e)
		if box.ClassOf(err) != box.ClassInvalid || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, data := range []string{` `, `{`, `{"a":1} x`, `"text"`, `{"a":"` + strings.Repeat("x", 1<<20) + `"}`} {
		_, err := s.AppendLedger(t.Context(), "ws", exports.Entry{ID: "1", Kind: exports.KindMarks, Data: json.RawMessage(data)})
		wantClass(t, err, box.ClassInvalid)
	}
	for _, ws := range []string{"", "..", "a/b", "A", strings.Repeat("x", 41)} {
		_, err := s.AppendLedger(t.Context(), ws, note("1"))
		wantClass(t, err, box.ClassInvalid)
		_, err = s.Ledger(t.Context(), ws)
		wantClass(t, err, box.ClassInvalid)
	}
}
