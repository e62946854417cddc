package exports

import (
	"context"
	"crypto/sha256"
	"io"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// WorkspaceCursor reads the contents of entries of a workspace one after the
// other, without looking for each by its name. It is used by one goroutine.
type WorkspaceCursor struct {
	reader *WorkspaceReader
	index  *index
}

// Cursor returns one, for entries that Entries yields.
func (r *WorkspaceReader) Cursor() *WorkspaceCursor {
	return &WorkspaceCursor{reader: r, index: r.index.cursor()}
}

// Content returns the content of a file, or of a part of a stream. What is lost
// or altered is Unknown and names the object, at the latest at the end. It is used
// up before the next one is asked for.
func (c *WorkspaceCursor) Content(ctx context.Context, e workspacetar.Entry) io.Reader {
	return &content{ctx: ctx, reader: c.reader, index: c.index, at: e.Offset, left: e.Bytes, want: e.SHA256, sum: sha256.New()}
}

// Reader is what it reads.
func (c *WorkspaceCursor) Reader() *WorkspaceReader { return c.reader }

// ProveWorkspace reads every object of the workspace in the export of a receipt
// back and compares it, and nothing else of the export. Unknown: one is lost or
// altered. NotFound: the export holds no workspace.
func (s *Store) ProveWorkspace(ctx context.Context, workspace string, receipt box.Receipt) error {
	r, err := s.Workspace(ctx, workspace, receipt)
	if err != nil {
		return err
	}
	return s.proveArchive(ctx, workspace, r.Archive(), func(string) error { return ctx.Err() }, func(int) {})
}
