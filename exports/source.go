package exports

import (
	"context"
	"io"

	"github.com/openhands/boxkeeper/box"
)

// Source is where conversations come from: a box's agent-server. The store
// does not trust it: it counts, sums and asks again.
type Source interface {
	// Conversations lists all conversations with their event counts. A partial
	// list must be an error. It must not wake or use the box.
	Conversations(ctx context.Context) ([]box.ConversationMark, error)
	// Download opens the zip of one conversation; the length is -1 when the
	// server did not say. The store reads one at a time and closes it, also from
	// another goroutine when ctx ends. NotFound is never taken as "empty".
	Download(ctx context.Context, id string) (body io.ReadCloser, length int64, err error)
}

// WorkspaceSource is a [Source] that may have the box's workspace too. Without
// one an export holds conversations only, and its receipt says so.
type WorkspaceSource interface {
	Source
	// Workspace opens the archive of the workspace, a tar compressed with zstd.
	// The store reads one at a time, checks all of it, and closes it, also from
	// another goroutine when ctx ends. Unsupported: this box cannot give one, for
	// the reason in the error's message, which is kept and shown.
	Workspace(ctx context.Context) (io.ReadCloser, error)
}

// Request says what to export.
type Request struct {
	Workspace string
	Epoch     int
	// Attempt scopes what is written: 1 to 80 of a-z, 0-9, "-" and "_", the same
	// at every retry of one step.
	Attempt string
	// Previous is the newest receipt of this box; conversations that did not
	// change since are not fetched again. Zero fetches all.
	Previous box.Receipt
	// Secrets is what is done about secrets in the history; zero takes the store's
	// own setting.
	Secrets box.SecretsPolicy
}

// Stage is what an export is doing.
type Stage string

// The stages. Those from download to read-back repeat for each conversation;
// read-back without a conversation is of the workspace.
const (
	StageList     Stage = "list"
	StageDownload Stage = "download"
	StageCheck    Stage = "check"
	StageScan     Stage = "scan" // for secrets
	StageMask     Stage = "mask"
	StageStore    Stage = "store"
	StageReadBack Stage = "read-back"
	StageManifest Stage = "manifest"
	StageArchive  Stage = "workspace" // its archive is fetched, checked, cut and stored
	StageRestore  Stage = "restore"   // one conversation is back in a box
)

// Progress is told often, from the goroutine of the export: at every stage, and
// at most once per copied buffer within one.
type Progress struct {
	Stage        Stage
	Conversation string // id; empty where it is about none
	Done, Total  int    // conversations
	Bytes        int64  // of this stage of this conversation, or of the workspace
	Size         int64  // its total, -1 when unknown
}
