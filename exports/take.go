package exports

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// archive takes the workspace into the store and proves it, or says why there
// is none.
func (e *exporter) archive(ctx context.Context) (a *WorkspaceArchive, none string, err error) {
	src, ok := e.src.(WorkspaceSource)
	if !ok {
		return nil, "what gives the history gives no workspace", nil
	}
	var last error
	for try := range downloadTries {
		if try > 0 {
			if err := pause(ctx, time.Duration(try)*retryPause); err != nil {
				return nil, "", err
			}
		}
		a, err := e.take(ctx, src)
		if err == nil {
			return a, "", nil
		}
		if unsupported, ok := errors.AsType[noArchive](err); ok {
			return nil, unsupported.why, nil
		}
		bad, again := errors.AsType[badCopy](err)
		if !again {
			return nil, "", err
		}
		last = bad.err
	}
	return nil, "", &box.Error{
		Class: copyClass(last), Err: last, RetryAfter: retryAfter(last),
		Message: fmt.Sprintf("the workspace cannot be exported whole after %d tries, so the box must stay", downloadTries),
	}
}

// noArchive is the answer of a box that cannot give its workspace.
type noArchive struct{ why string }

func (n noArchive) Error() string { return n.why }

// take reads the archive once. What another try may repair is a badCopy.
func (e *exporter) take(ctx context.Context, src WorkspaceSource) (*WorkspaceArchive, error) {
	e.stage(StageArchive, "", -1)
	body, err := src.Workspace(ctx)
	if err != nil {
		return nil, workspaceFault(ctx, err)
	}
	body = &onceCloser{ReadCloser: body}
	// A read that hangs ends with its body.
	stop := context.AfterFunc(ctx, func() { _ = body.Close() })
	defer func() {
		stop()
		_ = body.Close()
	}()
	spool, err := e.store.newSpool()
	if err != nil {
		return nil, err
	}
	defer spool.Close()
	keeper, err := newChunkKeeper(e.store, e.req.Workspace)
	if err != nil {
		return nil, err
	}
	defer keeper.close()
	index, err := newIndexWriter(spoolWriter{spool})
	if err != nil {
		return nil, err
	}
	manifest, cut, err := e.readTar(ctx, body, keeper, index)
	if err != nil {
		return nil, err
	}
	if err := index.chunks(keeper.chunks); err != nil {
		return nil, err
	}
	a := &WorkspaceArchive{
		Bytes: cut.size, SHA256: hex.EncodeToString(cut.sum.Sum(nil)), Chunks: len(keeper.chunks), StoredBytes: keeper.stored,
		Files: manifest.Files, Repositories: len(manifest.Repositories),
		Missing: manifest.Missing, LeftOut: manifest.LeftOut, Changed: manifest.Changed,
	}
	if a.Index, err = index.finish(a.Chunks, a.Bytes); err != nil {
		return nil, err
	}
	e.stage(StageReadBack, "", a.Bytes)
	if err := keeper.readBack(ctx, e.tick); err != nil {
		return nil, err
	}
	a.Index.Key, err = e.putFirst(ctx, "application/zstd", io.NewSectionReader(spool, 0, a.Index.Bytes), a.Index.SHA256, indexKey)
	return a, err
}

// workspaceFault sorts what a source says instead of giving its workspace.
func workspaceFault(ctx context.Context, err error) error {
	switch class := box.ClassOf(err); {
	case ctx.Err() != nil, class == box.ClassUnauthorized, class == box.ClassFailedPrecondition, class == box.ClassExhausted:
		return sourceFault(ctx, "download the workspace", err)
	case class == box.ClassUnsupported:
		return noArchive{cmp.Or(printable(err.Error()), "the box gives none")}
	}
	return badCopy{err}
}

// readTar unpacks the archive, checks it, and writes down what is where, while
// the tar is cut and kept.
func (e *exporter) readTar(ctx context.Context, body io.Reader, keeper *chunkKeeper, index *indexWriter) (box.Manifest, *cutter, error) {
	source := &remember{from: body}
	tarball, err := workspacetar.Decompress(source)
	if err != nil {
		return box.Manifest{}, nil, err
	}
	defer tarball.Close()
	cut := newCutter(func(data []byte) error { return keeper.keep(ctx, data) })
	var ours error
	manifest, err := workspacetar.Read(io.TeeReader(ticking{ctx, tarball, e.tick}, cut), func(entry workspacetar.Entry) error {
		ours = index.entry(entry)
		return ours
	})
	var kept error
	if err == nil {
		kept = cut.Close()
	} else {
		kept = cut.Abort()
	}
	switch {
	case ctx.Err() != nil:
		return box.Manifest{}, nil, fault(ctx, "download the workspace", ctx.Err())
	case kept != nil: // the store's, which is what the reading broke on
		return box.Manifest{}, nil, kept
	case err == nil:
		return manifest, cut, nil
	case ours != nil, cut.size > maxTarBytes:
		return box.Manifest{}, nil, err
	case source.err != nil:
		return box.Manifest{}, nil, badCopy{source.err}
	}
	return box.Manifest{}, nil, badCopy{workspacetar.Damaged(err)}
}

// ticking tells of every read, and ends with its context.
type ticking struct {
	ctx  context.Context //nolint:containedctx // it lives for one stream
	from io.Reader
	tick func(int)
}

func (t ticking) Read(p []byte) (int, error) {
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := t.from.Read(p)
	if n > 0 {
		t.tick(n)
	}
	return n, err
}
