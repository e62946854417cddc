package exports

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"time"

	"gocloud.dev/blob"

	"github.com/openhands/boxkeeper/box"
)

// Swept is what a sweep found of one workspace, and did.
type Swept struct {
	Workspace string         `json:"workspace"`
	Result    SweepResult    `json:"result"`
	Life      box.ExportLife `json:"life"`
	// Exports are the manifests, by key.
	Exports []string `json:"exports,omitempty"`
	// Objects is how many there are beside the manifests, and StoredBytes how much
	// all of it takes in the store.
	Objects     int   `json:"objects,omitzero"`
	StoredBytes int64 `json:"stored_bytes,omitzero"`
	// Unneeded counts those that no export names, of a closed workspace whose
	// exports have no end, and UnneededBytes what they take. They go all the same.
	Unneeded      int   `json:"unneeded,omitzero"`
	UnneededBytes int64 `json:"unneeded_bytes,omitzero"`
	// Strangers are objects of no known form, which stay.
	Strangers []string `json:"strangers,omitempty"`
	// Error is why nothing, or not all, was done; never set beside deleted.
	Error string `json:"error,omitzero"`
}

// SweepResult says what became of the exports of a workspace.
type SweepResult string

// The results. A sweep that only looks answers due for what it would delete.
const (
	SweepKept    SweepResult = "kept"    // their time has not come, or never comes
	SweepDue     SweepResult = "due"     // they would be deleted
	SweepDeleted SweepResult = "deleted" // they are gone
	SweepFailed  SweepResult = "failed"  // it could not be told, or not all is gone
)

// object is one key of a list.
type object struct {
	key  string
	size int64
}

// exported are the objects below the exports of one workspace.
type exported struct {
	manifests []object
	others    []object
	strangers []string
}

// Sweep looks through all workspaces for exports whose life is over: that of a
// box-archived workspace ends so long after its end as its policy says. It calls
// each for every workspace that has exports, and with remove it deletes what is
// due: the manifests first, so that none is left that names what is gone, then
// all else. What was deleted stays in the ledger, which is never swept.
//
// Exports without an end, such as those of an abandoned workspace, stay. What no
// manifest names goes from a closed workspace all the same: the rest of attempts
// that did not end, and of exports that a person deleted.
//
// It is safe to repeat, also twice at once and after a crash at any point. A
// ledger that cannot be read whole keeps its exports. One workspace that fails
// does not stop the others; the error is that of the store's list. What is due
// is due by the clock of the store's options and, unless that is zero, by the
// caller's: one that runs ahead must not end a life.
func (s *Store) Sweep(ctx context.Context, at time.Time, remove bool, each func(Swept)) error {
	now := s.now()
	if !at.IsZero() && at.Before(now) {
		now = at
	}
	workspaces, stranger := s.Workspaces(ctx)
	if stranger != nil && !damaged(stranger) {
		return stranger
	}
	for _, workspace := range workspaces {
		if err := ctx.Err(); err != nil {
			return fault(ctx, "sweep the exports", err)
		}
		out, err := s.sweepOne(ctx, workspace, now, remove)
		if err != nil {
			out.Result, out.Error = SweepFailed, err.Error()
		}
		if out.Result != SweepKept || len(out.Exports)+out.Objects > 0 {
			each(out)
		}
	}
	return nil
}

func (s *Store) sweepOne(ctx context.Context, workspace string, now time.Time, remove bool) (Swept, error) {
	out := Swept{Workspace: workspace, Result: SweepKept}
	entries, err := s.Ledger(ctx, workspace)
	if err != nil {
		return out, err
	}
	if out.Life, err = box.ExportLifeOf(workspace, entries); err != nil {
		return out, err
	}
	there, err := s.exportedOf(ctx, workspace)
	if err != nil {
		return out, err
	}
	for _, o := range there.manifests {
		out.Exports = append(out.Exports, o.key)
		out.StoredBytes += o.size
	}
	for _, o := range there.others {
		out.StoredBytes += o.size
	}
	out.Objects, out.Strangers = len(there.others), there.strangers
	if len(out.Exports)+out.Objects == 0 {
		return out, nil
	}
	if out.Life.Stays(now.Add(-quietFor)) {
		return out, s.sweepUnneeded(ctx, &out, there.others, remove)
	}
	if !out.Life.Over(now) {
		return out, nil
	}
	out.Result = SweepDue
	if !remove {
		return out, nil
	}
	why := removal{workspace: workspace, by: "policy", because: out.Life.Reason}
	if err := s.removeAll(ctx, why, there.manifests, there.others); err != nil {
		return out, err
	}
	out.Result = SweepDeleted
	return out, nil
}

// sweepUnneeded deletes what no manifest of a closed workspace names. Where one
// cannot be read it may name anything, so nothing goes.
func (s *Store) sweepUnneeded(ctx context.Context, out *Swept, others []object, remove bool) error {
	if len(others) == 0 {
		return nil
	}
	needed, _, err := s.needed(ctx, out.Workspace, "")
	if err != nil {
		return err
	}
	goes := slices.DeleteFunc(slices.Clone(others), func(o object) bool { return needed[o.key] })
	for _, o := range goes {
		out.Unneeded, out.UnneededBytes = out.Unneeded+1, out.UnneededBytes+o.size
	}
	if !remove || len(goes) == 0 {
		return nil
	}
	return s.removeOthers(ctx, removal{workspace: out.Workspace, by: "policy", because: "no export of the closed workspace names them"}, nil, goes)
}

// exportedOf lists what a workspace has in the store beside its ledger.
func (s *Store) exportedOf(ctx context.Context, workspace string) (exported, error) {
	var out exported
	for _, prefix := range []string{exportsPrefix(workspace), chunksPrefix(workspace)} {
		err := s.listObjects(ctx, prefix, func(o object) {
			switch {
			case manifestKeyForm.MatchString(o.key):
				out.manifests = append(out.manifests, o)
			case attemptKeyForm.MatchString(o.key), chunkKeyForm.MatchString(o.key):
				out.others = append(out.others, o)
			default:
				out.strangers = append(out.strangers, printable(o.key))
			}
		})
		if err != nil {
			return exported{}, err
		}
	}
	return out, nil
}

// listObjects is list with the sizes, as stored.
func (s *Store) listObjects(ctx context.Context, prefix string, fn func(object)) error {
	it := s.bucket.List(&blob.ListOptions{Prefix: prefix})
	for last := ""; ; {
		obj, err := it.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fault(ctx, "list "+prefix, err)
		case ctx.Err() != nil:
			return fault(ctx, "list "+prefix, ctx.Err())
		case obj.Key <= last:
			// Ledgers rely on the order, and a list that begins anew never ends.
			return box.Errorf(box.ClassUnsupported, "list %s: the store does not list its objects in order; use one that does", prefix)
		}
		last = obj.Key
		fn(object{obj.Key, obj.Size})
	}
}

// removal says for the ledger whose exports go, and why.
type removal struct{ workspace, by, because string }

// removeAll deletes manifests, and then the other objects. Each manifest is in
// the ledger before it goes.
func (s *Store) removeAll(ctx context.Context, why removal, manifests, others []object) error {
	if err := s.removeManifests(ctx, why, manifests); err != nil {
		return err
	}
	return s.removeOthers(ctx, why, manifests, others)
}

// removalBatch is how many exports one entry of a ledger names, so that it
// stays small.
const removalBatch = 500

func (s *Store) removeManifests(ctx context.Context, why removal, manifests []object) error {
	for some := range slices.Chunk(manifests, removalBatch) {
		data := box.LedgerExportDeletion{By: why.by, Because: why.because}
		for _, o := range some {
			raw, err := s.small(ctx, o.key, maxManifestBytes)
			if err != nil && box.ClassOf(err) != box.ClassNotFound && !damaged(err) {
				return err
			}
			one := box.DeletedExport{Key: o.key}
			if err == nil {
				one.SHA256 = sumOf(raw)
			}
			data.Exports = append(data.Exports, one)
		}
		if err := s.recordRemoval(ctx, why, KindExportsDeleting, data, some); err != nil {
			return err
		}
		for _, o := range some {
			if err := s.remove(ctx, o.key); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) removeOthers(ctx context.Context, why removal, manifests, others []object) error {
	for _, o := range others {
		if err := s.remove(ctx, o.key); err != nil {
			return err
		}
	}
	data := box.LedgerExportDeletion{By: why.by, Because: why.because, Objects: len(others)}
	for some := range slices.Chunk(manifests, removalBatch) {
		data.Exports = nil
		for _, o := range some {
			data.Exports = append(data.Exports, box.DeletedExport{Key: o.key})
		}
		if err := s.recordRemoval(ctx, why, KindExportsDeleted, data, some); err != nil {
			return err
		}
	}
	if len(manifests) > 0 {
		return nil
	}
	return s.recordRemoval(ctx, why, KindExportsDeleted, data, others)
}

// recordRemoval writes what is about to go, or is gone. Its id is made of what
// goes, so that a repeat is one entry.
func (s *Store) recordRemoval(ctx context.Context, why removal, kind Kind, data box.LedgerExportDeletion, goes []object) error {
	raw, err := json.Marshal(data)
	if err != nil {
		return box.Errorf(box.ClassInternal, "encode a ledger entry: %w", err)
	}
	id := sha256.New()
	for _, o := range goes {
		_, _ = io.WriteString(id, o.key+"\n") // never fails; documented
	}
	_, err = s.AppendLedger(ctx, why.workspace, Entry{ID: string(kind) + "-" + hex.EncodeToString(id.Sum(nil)[:10]), Kind: kind, Data: raw})
	return err
}
