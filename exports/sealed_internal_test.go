package exports

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/openhands/boxkeeper/box"
)

func identity(t *testing.T) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	must(t, err)
	return id
}

// keysOf are those of somebody who writes for the first one, if any, and reads
// as all.
func keysOf(t *testing.T, writes bool, ids ...*age.X25519Identity) Keys {
	t.Helper()
	var recipients []string
	var secrets []box.Secret
	for i, id := range ids {
		if i == 0 && writes {
			recipients = append(recipients, id.Recipient().String())
		}
		secrets = append(secrets, box.Secret("# a comment\n"+id.String()+"\n"))
	}
	keys, err := ParseKeys(recipients, secrets)
	must(t, err)
	return keys
}

// stored reads the files of a directory.
func stored(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		out[name] = data
		return err
	}))
	return out
}

const manifestAt = "exports/ws/0001/a/manifest.json"

func note(t *testing.T, s *Store, id string) error {
	t.Helper()
	_, err := s.AppendLedger(t.Context(), "ws", Entry{ID: id, Kind: KindMarks, Epoch: 1, Data: json.RawMessage(`{"what":"the-words-of-somebody"}`)})
	return err
}

func TestNothingButNamesIsInTheClear(t *testing.T) {
	t.Parallel()
	dir, mine := t.TempDir(), identity(t)
	s := openAt(t, "file://"+dir, Options{Keys: keysOf(t, true, mine)})
	must(t, s.Check(t.Context()))
	must(t, s.put(t.Context(), manifestAt, "application/json", strings.NewReader(strings.Repeat("the-words-of-somebody", 10000)), nil))
	must(t, note(t, s, "a"))
	files := stored(t, dir)
	if len(files) != 2 {
		t.Fatalf("%d files", len(files))
	}
	for name, data := range files {
		if !bytes.HasPrefix(data, []byte(sealedMark)) || bytes.Contains(data, []byte("the-words")) {
			t.Errorf("%s is in the clear: %.80q", name, data)
		}
		if bytes.Contains(data, []byte(mine.String())) {
			t.Errorf("%s holds the key", name)
		}
	}
}

func TestWhatWasWrittenInTheClearIsReadBesideWhatIsEncrypted(t *testing.T) {
	t.Parallel()
	dir, mine, next := t.TempDir(), identity(t), identity(t)
	at := "file://" + dir
	plain := openAt(t, at, Options{})
	must(t, note(t, plain, "plain"))
	first := openAt(t, at, Options{Keys: keysOf(t, true, mine)})
	must(t, note(t, first, "first"))
	// The key changes: the new one writes, the old one still reads.
	second := openAt(t, at, Options{Keys: keysOf(t, true, next, mine)})
	must(t, note(t, second, "second"))
	entries, err := second.Ledger(t.Context(), "ws")
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d entries: %v", len(entries), err)
	}
	// Encryption is turned off: what was encrypted is still read.
	off := openAt(t, at, Options{Keys: keysOf(t, false, mine, next)})
	must(t, note(t, off, "off"))
	if entries, err = off.Ledger(t.Context(), "ws"); err != nil || len(entries) != 4 {
		t.Fatalf("%d entries: %v", len(entries), err)
	}
	if data := stored(t, dir)["ledger/ws/00000004.json"]; !json.Valid(data) {
		t.Errorf("%.40q", data)
	}
}

func TestAWrongKeyIsNeverALoss(t *testing.T) {
	t.Parallel()
	dir, mine := t.TempDir(), identity(t)
	at := "file://" + dir
	right := openAt(t, at, Options{Keys: keysOf(t, true, mine)})
	must(t, note(t, right, "a"))
	must(t, right.put(t.Context(), manifestAt, "application/json", bytes.NewReader(someBytes(5*sealedChunk)), nil))
	for name, keys := range map[string]Keys{"another key": keysOf(t, true, identity(t)), "no key": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openAt(t, at, Options{Keys: keys})
			_, _, closed := s.Closed(t.Context(), "ws")
			_, ledger := s.Ledger(t.Context(), "ws")
			_, verified := s.Verify(t.Context(), "ws", box.Receipt{Key: manifestAt})
			_, conversations := s.Conversations(t.Context(), "ws")
			_, err := s.bucket.NewRangeReader(t.Context(), manifestAt, 100, 50, nil)
			_, asked := s.AskDeletion(t.Context(), "ws", manifestAt)
			for what, err := range map[string]error{
				"closed": closed, "ledger": ledger, "verify": verified, "conversations": conversations, "a part": fault(t.Context(), "read", err), "append": note(t, s, "b"), "deletion": asked,
			} {
				if class := box.ClassOf(err); class != box.ClassUnauthorized {
					t.Errorf("%s: class %q: %v", what, class, err)
				} else if !strings.Contains(err.Error(), "not lost") || strings.Contains(err.Error(), "AGE-SECRET") {
					t.Errorf("%s: %v", what, err)
				}
			}
			swept := 0
			must(t, s.Sweep(t.Context(), time.Time{}, true, func(one Swept) {
				swept++
				if one.Result != SweepFailed || !strings.Contains(one.Error, "not lost") {
					t.Errorf("%+v", one)
				}
			}))
			if swept != 1 {
				t.Errorf("%d workspaces", swept)
			}
		})
	}
}

func TestAlteredObjectsAreToldFromWrongKeys(t *testing.T) {
	t.Parallel()
	mine := identity(t)
	for name, change := range map[string]func(data []byte) []byte{
		"a byte of the text":       func(d []byte) []byte { d[len(d)-40] ^= 1; return d },
		"a byte of the first part": func(d []byte) []byte { d[3000] ^= 1; return d },
		"its end is cut":           func(d []byte) []byte { return d[:len(d)-1] },
		"a part is cut":            func(d []byte) []byte { return d[:len(d)-sealedChunk-sealedTag] },
		"something follows":        func(d []byte) []byte { return append(d, 0) },
		"the header is cut":        func(d []byte) []byte { return d[:60] },
		"the sum of the header":    func(d []byte) []byte { d[bytes.Index(d, []byte("\n---"))+8] ^= 1; return d },
		"the header has no end":    func([]byte) []byte { return append([]byte(sealedMark), bytes.Repeat([]byte("-> X\n"), 20000)...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := openAt(t, "file://"+dir, Options{Keys: keysOf(t, true, mine)})
			size := 3*sealedChunk + 77
			must(t, s.put(t.Context(), manifestAt, "application/json", bytes.NewReader(someBytes(size)), nil))
			file := filepath.Join(dir, manifestAt)
			data, err := os.ReadFile(file)
			must(t, err)
			must(t, os.WriteFile(file, change(data), 0o600))
			wantKind(t, box.ClassUnknown, readAll(t, s, manifestAt))
			for _, part := range [][2]int64{{0, 1000}, {1, sealedChunk}, {int64(size) - 100, -1}, {0, int64(size)}} {
				r, err := s.bucket.NewRangeReader(t.Context(), manifestAt, part[0], part[1], nil)
				if err == nil {
					got, rerr := readPart(r)
					want := someBytes(size)[part[0]:]
					if part[1] >= 0 {
						want = want[:min(len(want), int(part[1]))]
					}
					if err = rerr; err == nil && !bytes.Equal(got, want) {
						t.Errorf("%v: %d other bytes were read", part, len(got))
					}
				}
				if err != nil {
					wantKind(t, box.ClassUnknown, fault(t.Context(), "read", err))
				}
			}
		})
	}
}

func readPart(r io.ReadCloser) ([]byte, error) {
	defer r.Close()
	return io.ReadAll(r)
}

func TestKeysThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	mine, other := identity(t), identity(t)
	for name, row := range map[string]struct {
		recipients []string
		identities []box.Secret
		field      string
	}{
		"a recipient that is none":               {[]string{"age1nothing"}, []box.Secret{box.Secret(mine.String())}, "encryption.recipients"},
		"a secret key for a recipient":           {[]string{mine.String()}, []box.Secret{box.Secret(mine.String())}, "encryption.recipients"},
		"two recipients in one":                  {[]string{mine.Recipient().String() + "\n" + other.Recipient().String()}, []box.Secret{box.Secret(mine.String())}, "encryption.recipients"},
		"an identity that is none":               {nil, []box.Secret{"AGE-SECRET-KEY-1NOTHING"}, "encryption.identities"},
		"a recipient for an identity":            {nil, []box.Secret{box.Secret(mine.Recipient().String())}, "encryption.identities"},
		"recipients without an identity":         {[]string{mine.Recipient().String()}, nil, "encryption.identities"},
		"an identity that opens nothing of them": {[]string{mine.Recipient().String()}, []box.Secret{box.Secret(other.String())}, "encryption.identities"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseKeys(row.recipients, row.identities)
			wantKind(t, box.ClassInvalid, err)
			if !strings.HasPrefix(err.Error(), row.field+": ") || strings.Contains(err.Error(), "AGE-SECRET-KEY-1") {
				t.Error(err)
			}
		})
	}
	hybrid, err := age.GenerateHybridIdentity()
	must(t, err)
	keys, err := ParseKeys([]string{hybrid.Recipient().String()}, []box.Secret{box.Secret(hybrid.String())})
	must(t, err)
	s := openAt(t, "mem://", Options{Keys: keys})
	must(t, s.Check(t.Context()))
	_, err = ParseKeys([]string{hybrid.Recipient().String(), mine.Recipient().String()}, []box.Secret{box.Secret(mine.String())})
	wantKind(t, box.ClassInvalid, err)
}
