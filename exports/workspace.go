package exports

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"strings"
	"sync"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// WorkspaceEntry is one thing in the archive of a workspace; see
// [workspacetar.Entry].
type WorkspaceEntry = workspacetar.Entry

// WorkspaceReader reads the workspace in one export, by the parts that are asked
// for: a frame of the index and a chunk of the tar are in memory, and nothing on
// disk. What it gives was proven against the manifest. It is safe for concurrent
// use.
type WorkspaceReader struct {
	workspace string
	index     *index // its directory; read through cursors of it
	manifest  Manifest

	mu sync.Mutex
	// The chunk that was read last, since small files share one.
	held chunk
	data []byte
	read *chunkReader
}

// Workspace opens the workspace in the export of a receipt; of one with only a
// Key the manifest is taken as stored. Only the directory of the index is read.
// NotFound: the export holds no workspace, with the reason. Unknown: something
// is lost or altered.
func (s *Store) Workspace(ctx context.Context, workspace string, receipt box.Receipt) (*WorkspaceReader, error) {
	m, now, err := s.receipted(ctx, workspace, receipt.Key)
	switch {
	case err != nil:
		return nil, err
	case receipt != (box.Receipt{Key: receipt.Key}) && !sameReceipt(receipt, now):
		return nil, box.Errorf(box.ClassUnknown, "manifest %s is not the one that the receipt was given for", receipt.Key)
	case m.Archive == nil && m.NoArchive == "":
		return nil, box.Errorf(box.ClassNotFound, "the export %s holds no workspace: it was taken by a version that kept conversations only", receipt.Key)
	case m.Archive == nil:
		return nil, box.Errorf(box.ClassNotFound, "the export %s holds no workspace: %s", receipt.Key, m.NoArchive)
	}
	x, err := s.openIndex(ctx, workspace, *m.Archive)
	if err != nil {
		return nil, err
	}
	return &WorkspaceReader{workspace: workspace, index: x, manifest: m, read: newChunkReader(s, workspace)}, nil
}

// Archive is what the export's manifest says.
func (r *WorkspaceReader) Archive() WorkspaceArchive { return *r.manifest.Archive }

// Entries yields everything below files/ in the order of a walk, what was left
// out among it, and then all other entries of the tar. It ends after the first
// error.
func (r *WorkspaceReader) Entries(ctx context.Context) iter.Seq2[WorkspaceEntry, error] {
	return func(yield func(WorkspaceEntry, error) bool) {
		x, more := r.index.cursor(), true
		for _, kind := range []pieceKind{pieceFiles, pieceParts} {
			if !more {
				return
			}
			err := x.entries(ctx, kind, "", func(e workspacetar.Entry) bool {
				more = yield(e, nil)
				return more
			})
			if err != nil {
				yield(WorkspaceEntry{}, err)
				return
			}
		}
	}
}

// Find returns the entry with a name, such as "files/workspace/a.txt". NotFound:
// there is none.
func (r *WorkspaceReader) Find(ctx context.Context, name string) (WorkspaceEntry, error) {
	kind := pieceParts
	if strings.HasPrefix(name, box.WorkspaceFiles) {
		kind = pieceFiles
	}
	var found WorkspaceEntry
	err := r.index.cursor().entries(ctx, kind, name, func(e workspacetar.Entry) bool {
		if e.Name == name {
			found = e
			return false
		}
		return kind == pieceParts || workspacetar.Order(e.Name, name) < 0
	})
	if err == nil && found.Name == "" {
		err = box.Errorf(box.ClassNotFound, "the archive of workspace %s has no %q", r.workspace, printable(name))
	}
	return found, err
}

// Open returns the content of one file, or of a stream of parts by its name,
// such as "repositories/0001/bundle". A hard link gives the file that it is one
// of. The caller closes it. NotFound: there is no such thing, or it was left
// out. FailedPrecondition: it is a directory or a link, which nobody follows.
// What is lost or altered is Unknown, at the latest at the end of the content.
func (r *WorkspaceReader) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	e, err := r.Find(ctx, name)
	if box.ClassOf(err) == box.ClassNotFound && !strings.HasPrefix(name, box.WorkspaceFiles) {
		return r.openStream(ctx, name, err)
	}
	if err != nil {
		return nil, err
	}
	if e.Type == "hardlink" {
		target, _ := e.LinkTarget()
		if e, err = r.Find(ctx, box.WorkspaceFiles+target); box.ClassOf(err) == box.ClassNotFound || err == nil && e.Type != "file" {
			return nil, box.Errorf(box.ClassUnknown, "%q links to what the archive does not hold as a file", printable(name))
		}
		if err != nil {
			return nil, err
		}
	}
	switch e.Type {
	case "file", workspacetar.TypePart:
		return &content{ctx: ctx, reader: r, index: r.index.cursor(), at: e.Offset, left: e.Bytes, want: e.SHA256, sum: sha256.New()}, nil
	case "left-out":
		return nil, box.Errorf(box.ClassNotFound, "%q is not in the archive: it %s", printable(name), printable(e.Why))
	case "link":
		return nil, box.Errorf(box.ClassFailedPrecondition, "%q is a link to %q, which is not followed", printable(name), printable(e.Target))
	}
	return nil, box.Errorf(box.ClassFailedPrecondition, "%q is a %s and has no content", printable(name), printable(e.Type))
}

// openStream joins the parts of a stream.
func (r *WorkspaceReader) openStream(ctx context.Context, name string, none error) (io.ReadCloser, error) {
	var parts []io.Reader
	x := r.index.cursor() // one for all: they are read one after the other
	err := r.index.cursor().entries(ctx, pieceParts, "", func(e workspacetar.Entry) bool {
		if e.Name == fmt.Sprintf("%s/%06d", name, len(parts)+1) {
			parts = append(parts, &content{ctx: ctx, reader: r, index: x, at: e.Offset, left: e.Bytes, sum: sha256.New()})
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if len(parts) == 0 {
		return nil, none
	}
	return io.NopCloser(io.MultiReader(parts...)), nil
}

// Manifest returns the archive's own manifest: repositories with their bundles,
// and what is missing, by name.
func (r *WorkspaceReader) Manifest(ctx context.Context) (box.Manifest, error) {
	f, err := r.Open(ctx, box.WorkspaceManifest)
	if err != nil {
		return box.Manifest{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return box.Manifest{}, err
	}
	var m box.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return box.Manifest{}, box.Errorf(box.ClassUnknown, "the manifest in the archive of workspace %s cannot be read: %w", r.workspace, err)
	}
	return m, nil
}

// Tar returns the whole tar, put together from its chunks, for a restore: the
// last read fails with Unknown where the bytes are not those that were exported.
// The caller closes it.
func (r *WorkspaceReader) Tar(ctx context.Context) io.ReadCloser {
	a := r.manifest.Archive
	return &content{ctx: ctx, reader: r, index: r.index.cursor(), left: a.Bytes, want: a.SHA256, sum: sha256.New()}
}

// chunk returns the bytes of a chunk, which nobody may change.
func (r *WorkspaceReader) chunk(ctx context.Context, c chunk) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.data != nil && r.held.sum == c.sum {
		return r.data, nil
	}
	data, err := r.read.get(ctx, c, make([]byte, 0, c.bytes))
	if err != nil {
		return nil, err
	}
	r.held, r.data = c, data
	return data, nil
}

// content reads a part of the tar, chunk by chunk.
type content struct {
	ctx    context.Context //nolint:containedctx // of the one who reads
	reader *WorkspaceReader
	index  *index
	at     int64 // in the tar
	left   int64
	buf    []byte // what is left of the chunk in hand
	want   string // sum of all of it; empty when only the chunks have one
	sum    hash.Hash
	err    error
}

func (c *content) Read(p []byte) (int, error) {
	if c.err == nil {
		c.err = c.fill()
	}
	if c.err != nil {
		return 0, c.err
	}
	n := copy(p, c.buf)
	_, _ = c.sum.Write(c.buf[:n]) // never fails; documented
	c.buf = c.buf[n:]
	c.at, c.left = c.at+int64(n), c.left-int64(n)
	return n, nil
}

// fill brings the next chunk when the one in hand is used up; at the end it
// compares the sum.
func (c *content) fill() error {
	switch {
	case len(c.buf) > 0:
		return nil
	case c.left == 0 && c.want != "" && hex.EncodeToString(c.sum.Sum(nil)) != c.want:
		return c.index.damaged(errors.New("what it says of a content is not so"))
	case c.left == 0:
		return io.EOF
	case c.ctx.Err() != nil:
		return fault(c.ctx, "read the workspace", c.ctx.Err())
	}
	one, begins, err := c.index.find(c.ctx, c.at)
	if err != nil {
		return err
	}
	data, err := c.reader.chunk(c.ctx, one)
	if err != nil {
		return err
	}
	c.buf = data[c.at-begins:]
	c.buf = c.buf[:min(int64(len(c.buf)), c.left)]
	return nil
}

func (c *content) Close() error {
	if c.err == nil {
		c.err = errClosed
	}
	return nil
}

var errClosed = errors.New("the content is closed")
