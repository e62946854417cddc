package exports

import (
	"context"

	"github.com/openhands/boxkeeper/box"
)

// Report is what [Store.Verify] proved.
type Report struct {
	Receipt       box.Receipt         `json:"receipt"` // as the store holds it
	Conversations []ConversationEntry `json:"conversations"`
	// Archive is the workspace; nil when the export holds none.
	Archive *WorkspaceArchive `json:"workspace_archive,omitzero"`
	// UnpackedBytes is how much was read out of the zips.
	UnpackedBytes int64 `json:"unpacked_bytes"`

	marks map[string]mark // of the objects, from right before they were read
	// archive is the same of the objects of the workspace, folded into one sum:
	// there may be a great many of them.
	archive string
}

// Verify proves an export from the store alone: the manifest against the
// receipt, every object's length and sum, every zip entry's checksum, every
// event count, and every chunk of the workspace. Of a receipt with only a Key, the manifest is taken as stored.
// It is safe to repeat; anything lost or altered is Unknown and named.
func (s *Store) Verify(ctx context.Context, workspace string, receipt box.Receipt) (Report, error) {
	m, now, err := s.receipted(ctx, workspace, receipt.Key)
	if err != nil {
		return Report{}, err
	}
	report := Report{Receipt: now, Conversations: m.Conversations, marks: map[string]mark{}}
	if receipt != (box.Receipt{Key: receipt.Key}) && !sameReceipt(receipt, report.Receipt) {
		return report, box.Errorf(box.ClassUnknown, "manifest %s is not the one that the receipt was given for", receipt.Key)
	}
	if err := s.proveSecrets(ctx, m); err != nil {
		return report, err
	}
	for _, c := range m.Conversations {
		at, err := s.mark(ctx, c.Key)
		if box.ClassOf(err) == box.ClassNotFound {
			return report, lost(c)
		}
		if err != nil {
			return report, err
		}
		report.marks[c.Key] = at
		f, facts, err := s.proveCopy(ctx, c)
		if err != nil {
			return report, err
		}
		report.UnpackedBytes += facts.unpacked
		_ = f.Close()
	}
	if m.Archive == nil {
		return report, nil
	}
	report.Archive = m.Archive
	fold := newMarkFold(s)
	err = s.proveArchive(ctx, m.Workspace, *m.Archive, func(key string) error {
		err := fold.add(ctx, key)
		if box.ClassOf(err) == box.ClassNotFound {
			return box.Errorf(box.ClassUnknown, "the export store lost %s; check the store, then export again", key)
		}
		return err
	}, nil)
	if err != nil {
		return report, err
	}
	report.archive = fold.sum()
	return report, nil
}

// sameReceipt reports whether a receipt is of the export that now is one of. A
// receipt that went through a program that knew no workspace in an export, or no
// count of secrets, lost that part; the sum of the manifest covers it all the same.
func sameReceipt(given, now box.Receipt) bool {
	if given.Archive == (box.ArchiveReceipt{}) {
		now.Archive = given.Archive
	}
	if given.Secrets == (box.SecretsReceipt{}) {
		now.Secrets, now.Archive.Withheld = given.Secrets, given.Archive.Withheld
	}
	return given == now
}

// receipted reads the manifest of a receipt's key and answers what it would be
// given a receipt for now. Invalid: the key is of no manifest of the workspace.
// Unknown: the manifest is lost.
func (s *Store) receipted(ctx context.Context, workspace, key string) (Manifest, box.Receipt, error) {
	if err := box.ValidateWorkspace(workspace); err != nil {
		return Manifest{}, box.Receipt{}, err
	}
	if owner, _, _, ok := parseManifestKey(key); !ok || owner != workspace {
		return Manifest{}, box.Receipt{}, box.Invalidf("receipt.key", "%q is not the key of a manifest of workspace %s", printable(key), workspace)
	}
	m, sum, err := s.manifest(ctx, key)
	if box.ClassOf(err) == box.ClassNotFound {
		return Manifest{}, box.Receipt{}, box.Errorf(box.ClassUnknown, "the export store has lost manifest %s", key)
	}
	if err != nil {
		return Manifest{}, box.Receipt{}, err
	}
	return m, m.receipt(key, sum), nil
}

// proveCopy spools one copy and checks all that its entry says. The caller
// closes the file. Unknown means lost or altered.
func (s *Store) proveCopy(ctx context.Context, c ConversationEntry) (*spooled, zipFacts, error) {
	f, facts, err := s.inspect(ctx, c.Key, c.ID, nil, nil)
	if box.ClassOf(err) == box.ClassNotFound {
		return nil, zipFacts{}, lost(c)
	}
	if err != nil {
		return nil, zipFacts{}, err
	}
	if f.sum != c.SHA256 || f.size != c.Bytes || facts.events != c.Events {
		_ = f.Close()
		return nil, zipFacts{}, lost(c)
	}
	return f, facts, nil
}
