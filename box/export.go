package box

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// ConversationMark is one conversation's share of a history digest.
type ConversationMark struct {
	ID     string `json:"id"` // 32 lower-case hex digits
	Events int    `json:"events"`
}

// HistoryDigest fingerprints a history: the ids and the event counts, in any
// order. Two equal digests mean that nothing was said in between.
func HistoryDigest(marks []ConversationMark) string {
	lines := make([]string, 0, len(marks))
	for _, m := range marks {
		lines = append(lines, fmt.Sprintf("%s %d\n", m.ID, m.Events))
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(sum[:])
}

// Receipt is the proof of an export. It exists only after the manifest and
// every object were read back from the store and matched.
type Receipt struct {
	Workspace string `json:"workspace"`
	Epoch     int    `json:"epoch"`
	// Key is the manifest's place in the export store.
	Key string `json:"key"`
	// SHA256 is the manifest's; it covers the sum of every object.
	SHA256        string `json:"sha256"`
	Bytes         int64  `json:"bytes"`
	Conversations int    `json:"conversations"`
	Events        int    `json:"events"`
	// Digest is the HistoryDigest of what was exported.
	Digest string `json:"digest"`
	// Reused counts conversations that an earlier export held already.
	Reused int `json:"reused,omitzero"`
	// Archive is what the export holds of the workspace. Exports of earlier
	// versions held none, and it is not set.
	Archive ArchiveReceipt `json:"workspace_archive,omitzero"`
	// Secrets is what was found by the look for secrets. Earlier versions did not
	// say, and it is not set.
	Secrets SecretsReceipt `json:"secrets,omitzero"`
}

// SecretsReceipt counts what looks like a credential in an export. Where it stands
// is in the report beside the export, and what it is nowhere.
type SecretsReceipt struct {
	// Scanned is set when all of the export was looked through, but what is packed.
	Scanned bool `json:"scanned,omitzero"`
	// Found counts all of them, Masked those of which the export holds a mask.
	Found  int `json:"found,omitzero"`
	Masked int `json:"masked,omitzero"`
}

// ArchiveReceipt is what an export holds of a workspace's files.
type ArchiveReceipt struct {
	// None says why the export holds none of them; all else is then not set, but
	// Withheld, which says that it is for the secrets in them.
	None     string `json:"none,omitzero"`
	Withheld bool   `json:"withheld,omitzero"`
	// Bytes and SHA256 are those of the tar.
	Bytes        int64  `json:"bytes,omitzero"`
	SHA256       string `json:"sha256,omitzero"`
	Files        int64  `json:"files,omitzero"`
	Repositories int    `json:"repositories,omitzero"`
	// Missing counts what could not be read in the box and cannot be made again;
	// the archive's manifest names it.
	Missing int64 `json:"missing,omitzero"`
	// Changed counts files that changed while they were read: what the export has
	// of them may be of two moments.
	Changed int64 `json:"changed,omitzero"`
}

// IsZero reports whether there is no export.
func (r Receipt) IsZero() bool { return r == Receipt{} }

// Covers reports whether the export holds all of a history with this digest,
// for this box.
func (r Receipt) Covers(epoch int, digest string) bool {
	return !r.IsZero() && r.Epoch == epoch && digest != "" && r.Digest == digest
}

// ConfirmationToken returns the token that a confirmation must repeat: a
// fingerprint of what the person was shown, not a secret. It binds the
// workspace, the epoch, the history and the request.
func ConfirmationToken(workspace string, epoch int, shown, request string) string {
	sum := sha256.Sum256([]byte(fmt.Sprintf("%s\n%d\n%s\n%s", workspace, epoch, shown, request)))
	return hex.EncodeToString(sum[:10])
}
