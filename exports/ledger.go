package exports

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// Kind says what an [Entry] records; what it means is the rules' to say.
type Kind = box.LedgerKind

// Entry is one line of a ledger.
type Entry = box.LedgerEntry

// The kinds, as package box defines them.
const (
	KindCreateIntent  = box.LedgerCreateIntent
	KindCreated       = box.LedgerCreated
	KindSuspendIntent = box.LedgerSuspendIntent
	KindSuspended     = box.LedgerSuspended
	KindResumeIntent  = box.LedgerResumeIntent
	KindResumed       = box.LedgerResumed
	KindExported      = box.LedgerExported
	KindNoticed       = box.LedgerNoticed
	KindMarks         = box.LedgerMarks
	KindDeleteIntent  = box.LedgerDeleteIntent
	KindDeleted       = box.LedgerDeleted
	KindAdoptIntent   = box.LedgerAdoptIntent
	KindAdopted       = box.LedgerAdopted
	KindRestored      = box.LedgerRestored
	KindAbandoned     = box.LedgerAbandoned

	KindExportsDeleting = box.LedgerExportsDeleting
	KindExportsDeleted  = box.LedgerExportsDeleted
)

func known(k Kind) bool {
	switch k {
	case KindCreateIntent, KindCreated, KindSuspendIntent, KindSuspended, KindResumeIntent, KindResumed,
		KindExported, KindNoticed, KindMarks, KindDeleteIntent, KindDeleted,
		KindAdoptIntent, KindAdopted, KindRestored, KindAbandoned, KindExportsDeleting, KindExportsDeleted:
		return true
	}
	return false
}

// begins reports whether it says that a box is about to be the workspace's.
func begins(k Kind) bool { return k == KindCreateIntent || k == KindAdoptIntent }

const (
	ledgerVersion   = 1
	maxEntryBytes   = 1 << 20
	idempotentReach = 32 // how far back a repeated append is recognised
	maxCollisions   = 1000
)

// ledgerObject is how an entry is stored: its own sum makes alteration visible.
type ledgerObject struct {
	Version int             `json:"version"`
	SHA256  string          `json:"sha256"`
	Entry   json.RawMessage `json:"entry"`
}

// AppendLedger writes the next entry and returns its sequence number. It is
// safe to repeat: an entry of the same id, kind and epoch among the newest 32
// answers with its number, the first one wins. Writers in any number of
// processes never overwrite each other. After the entry that closes a workspace
// everything new is FailedPrecondition, but for what becomes of its exports. Data that looks like it holds a
// secret is Invalid.
func (s *Store) AppendLedger(ctx context.Context, workspace string, e Entry) (int, error) {
	if err := validateEntry(workspace, e); err != nil {
		return 0, err
	}
	if e.At.IsZero() {
		e.At = s.now()
	}
	e.At = e.At.UTC()
	numbers, _, err := s.ledgerNumbers(ctx, workspace)
	if err != nil {
		return 0, err
	}
	last := 0
	if len(numbers) > 0 {
		last = numbers[len(numbers)-1]
	}
	seen, err := s.newest(ctx, workspace, e, numbers)
	if seen.same > 0 || err != nil {
		return seen.same, err
	}
	if err := s.mayFollow(ctx, workspace, e.Kind, seen); err != nil {
		return 0, err
	}
	for try := range maxCollisions {
		e.Seq = last + 1 + try
		if e.Seq > maxSequence {
			break
		}
		data, err := encodeEntry(e)
		if err != nil {
			return 0, err
		}
		err = s.put(ctx, ledgerKey(workspace, e.Seq), "application/json", bytes.NewReader(data), nil)
		if err == nil {
			return e.Seq, nil
		}
		if box.ClassOf(err) != box.ClassAlreadyExists {
			return 0, err
		}
		// Taken by another writer, or by our own call whose answer was lost.
		other, err := s.entry(ctx, workspace, e.Seq)
		if err != nil {
			return 0, err
		}
		if done, err := sameEntry(other, e); done || err != nil {
			return e.Seq, err
		}
		if other.Kind.Closes() && !e.Kind.Aside() {
			return 0, refuseClosed(workspace)
		}
	}
	return 0, box.Errorf(box.ClassConflict, "the ledger of workspace %s is being written by too many at once; try again", workspace)
}

// BeginLedger is AppendLedger for the first entry of a workspace that must have
// none: of it and all that others begin at the same time one comes first, and the
// others hear of it. It may be repeated. FailedPrecondition: there is a ledger, and
// nothing was written; read it.
func (s *Store) BeginLedger(ctx context.Context, workspace string, e Entry) error {
	if err := validateEntry(workspace, e); err != nil {
		return err
	}
	if e.At.IsZero() {
		e.At = s.now()
	}
	e.At, e.Seq = e.At.UTC(), 1
	data, err := encodeEntry(e)
	if err != nil {
		return err
	}
	err = s.put(ctx, ledgerKey(workspace, e.Seq), "application/json", bytes.NewReader(data), nil)
	if box.ClassOf(err) != box.ClassAlreadyExists {
		return err
	}
	first, err := s.entry(ctx, workspace, e.Seq)
	if err == nil {
		if done, err := sameEntry(first, e); done || err != nil {
			return err
		}
	}
	if err != nil && !damaged(err) {
		return err
	}
	return box.Errorf(box.ClassFailedPrecondition, "workspace %s has a ledger already", workspace)
}

// mayFollow refuses what comes after the end.
func (s *Store) mayFollow(ctx context.Context, workspace string, kind Kind, seen newest) (err error) {
	closed := seen.closed
	if !closed && (begins(kind) || seen.aside) { // the one that must not be wrong, or an end further back: read all of it
		if closed, _, err = s.Closed(ctx, workspace); err != nil && (begins(kind) || !damaged(err)) {
			return err
		}
	}
	if closed && !kind.Aside() {
		return refuseClosed(workspace)
	}
	return nil
}

// newest is what the end of a ledger tells a writer.
type newest struct {
	same   int  // the number of the entry, when it was appended before
	closed bool // the tombstone is there
	aside  bool // so are entries that may come after it
}

// newest looks for an entry that was appended before, and for the tombstone:
// nothing but what was on its way comes after it, and what became of the exports.
func (s *Store) newest(ctx context.Context, workspace string, e Entry, numbers []int) (out newest, err error) {
	for _, n := range numbers[max(0, len(numbers)-idempotentReach):] {
		seen, err := s.entry(ctx, workspace, n)
		if damaged(err) {
			continue // a damaged old entry must not stop the record of new facts
		}
		if err != nil {
			return newest{}, err
		}
		if done, err := sameEntry(seen, e); done || err != nil {
			return newest{same: n}, err
		}
		out.closed = out.closed || seen.Kind.Closes()
		out.aside = out.aside || seen.Kind.Aside()
	}
	return out, nil
}

func validateEntry(workspace string, e Entry) error {
	if err := box.ValidateWorkspace(workspace); err != nil {
		return err
	}
	if err := validateEpoch(e.Epoch); err != nil {
		return err
	}
	switch {
	case !known(e.Kind):
		return box.Invalidf("kind", "%.40q is not a kind of ledger entry", e.Kind)
	case e.ID == "" || len(e.ID) > 200:
		return box.Invalidf("id", "an entry needs an id of 1 to 200 bytes, the same at every retry of its step")
	case len(e.Data) > maxEntryBytes:
		return box.Invalidf("data", "is larger than 1 MiB; put a reference there instead")
	}
	if len(e.Data) == 0 {
		return nil
	}
	if trimmed := bytes.TrimSpace(e.Data); !json.Valid(e.Data) || trimmed[0] != '{' {
		return box.Invalidf("data", "is not a JSON object")
	}
	if where, found := findSecret(e.Data); found {
		return box.Invalidf(where, "looks like a secret; a ledger is kept for years in the clear: put a reference such as env:NAME there")
	}
	if where, found := findSecretIn("id", e.ID); found {
		return box.Invalidf(where, "looks like a secret")
	}
	return nil
}

func refuseClosed(workspace string) error {
	return box.Errorf(box.ClassFailedPrecondition, "workspace %s was deleted or abandoned, and its id stays closed; use a new workspace id", workspace)
}

// sameEntry reports whether b is a repeat of a. One id for two steps is a
// fault of the caller.
func sameEntry(a, b Entry) (bool, error) {
	if a.ID != b.ID {
		return false, nil
	}
	if a.Kind != b.Kind || a.Epoch != b.Epoch {
		return false, box.Errorf(box.ClassAlreadyExists, "ledger entry %d has this id already, as %s of epoch %d; use another id for another step", a.Seq, a.Kind, a.Epoch)
	}
	return true, nil
}

func encodeEntry(e Entry) ([]byte, error) {
	raw, err := json.Marshal(e)
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "encode a ledger entry: %w", err)
	}
	data, err := json.Marshal(ledgerObject{Version: ledgerVersion, SHA256: sumOf(raw), Entry: raw})
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "encode a ledger entry: %w", err)
	}
	return append(data, '\n'), nil
}

func decodeEntry(seq int, data []byte) (Entry, error) {
	refuse := func(why string) (Entry, error) {
		return Entry{}, box.Errorf(box.ClassUnknown, "ledger entry %d %s", seq, why)
	}
	var o ledgerObject
	if err := json.Unmarshal(data, &o); err != nil {
		return refuse("is not readable")
	}
	if o.Version != ledgerVersion {
		return Entry{}, box.Errorf(box.ClassUnsupported, "ledger entry %d has version %d, this program reads %d; use a newer program", seq, o.Version, ledgerVersion)
	}
	if sumOf(o.Entry) != o.SHA256 {
		return refuse("was altered: its sum does not match")
	}
	var e Entry
	if err := json.Unmarshal(o.Entry, &e); err != nil {
		return refuse("is not readable")
	}
	if e.Seq != seq {
		return refuse(fmt.Sprintf("was written as number %d", e.Seq))
	}
	return e, nil
}

func (s *Store) entry(ctx context.Context, workspace string, seq int) (Entry, error) {
	data, err := s.small(ctx, ledgerKey(workspace, seq), 2*maxEntryBytes)
	if box.ClassOf(err) == box.ClassNotFound {
		return Entry{}, box.Errorf(box.ClassUnknown, "ledger entry %d of workspace %s is missing from the store", seq, workspace)
	}
	if err != nil {
		return Entry{}, err
	}
	return decodeEntry(seq, data)
}

// damaged tells an entry that is lost, altered or of a newer program from one
// that could not be read just now.
func damaged(err error) bool {
	class := box.ClassOf(err)
	return class == box.ClassUnknown || class == box.ClassUnsupported
}

// ledgerNumbers lists the sequence numbers that are there, in order, and says
// whether something else is there too.
func (s *Store) ledgerNumbers(ctx context.Context, workspace string) (numbers []int, stranger, err error) {
	if err := box.ValidateWorkspace(workspace); err != nil {
		return nil, nil, err
	}
	err = s.list(ctx, ledgerPrefix(workspace), func(key string) {
		seq, ok := parseLedgerKey(key)
		if !ok {
			stranger = box.Errorf(box.ClassUnknown, "the ledger of workspace %s holds an object that is no entry: %s", workspace, printable(key))
			return
		}
		numbers = append(numbers, seq)
	})
	return numbers, stranger, err
}

// Ledger returns the entries of a workspace in order, none when it has no
// ledger. A missing, altered or unreadable entry is Unknown and says which;
// the entries that could be read are returned beside the error.
func (s *Store) Ledger(ctx context.Context, workspace string) ([]Entry, error) {
	numbers, damage, err := s.ledgerNumbers(ctx, workspace)
	if err != nil {
		return nil, err
	}
	var out []Entry
	want := 1
	for _, n := range numbers {
		if n != want && damage == nil {
			damage = box.Errorf(box.ClassUnknown, "ledger entry %d of workspace %s is missing from the store; restore it from a backup", want, workspace)
		}
		want = n + 1
		e, err := s.entry(ctx, workspace, n)
		switch {
		case err == nil:
			out = append(out, e)
		case !damaged(err):
			return nil, err // could not read is not damage
		case damage == nil:
			damage = err
		}
	}
	return out, damage
}

// Closed reports whether the workspace has a tombstone, and returns it. A
// ledger that cannot be read completely and shows no tombstone is an error,
// never an open workspace.
func (s *Store) Closed(ctx context.Context, workspace string) (bool, Entry, error) {
	entries, err := s.Ledger(ctx, workspace)
	for _, e := range entries {
		if e.Kind.Closes() {
			return true, e, nil
		}
	}
	return false, Entry{}, err
}

// Workspaces returns the ids of all workspaces that have a ledger, closed ones
// too, sorted. An object that belongs to none is Unknown, beside the ids.
func (s *Store) Workspaces(ctx context.Context) ([]string, error) {
	var out []string
	var stranger error
	err := s.list(ctx, "ledger/", func(key string) {
		workspace, _, _ := strings.Cut(strings.TrimPrefix(key, "ledger/"), "/")
		switch {
		case len(out) > 0 && out[len(out)-1] == workspace:
		case box.ValidateWorkspace(workspace) != nil || !strings.HasPrefix(key, ledgerPrefix(workspace)):
			stranger = firstError(stranger, box.Errorf(box.ClassUnknown, "the ledgers hold an object of no workspace: %s", printable(key)))
		default:
			out = append(out, workspace)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(out) // keys go by byte, where "a-b/" comes before "a/"
	return out, stranger
}
