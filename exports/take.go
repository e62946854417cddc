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

// taken is what became of the workspace.
type taken struct {
	archive *WorkspaceArchive
	// none says why there is none, and withheld that it is for what was found in it.
	none     string
	withheld bool
	// object is the archive in the report of secrets; nil when nobody gave one.
	object *objectID
}

// archive takes the workspace into the store and proves it, or says why there
// is none.
func (e *exporter) archive(ctx context.Context) (taken, error) {
	src, ok := e.src.(WorkspaceSource)
	if !ok {
		return taken{none: "what gives the history gives no workspace"}, nil
	}
	var last error
	for try := range downloadTries {
		if try > 0 {
			if err := pause(ctx, time.Duration(try)*retryPause); err != nil {
				return taken{}, err
			}
		}
		t, err := e.take(ctx, src)
		if err == nil {
			return t, nil
		}
		if unsupported, ok := errors.AsType[noArchive](err); ok {
			return taken{none: unsupported.why}, nil
		}
		bad, again := errors.AsType[badCopy](err)
		if !again {
			return taken{}, err
		}
		last = bad.err
	}
	return taken{}, &box.Error{
		Class: copyClass(last), Err: last, RetryAfter: retryAfter(last),
		Message: fmt.Sprintf("the workspace cannot be exported whole after %d tries, so the box must stay", downloadTries),
	}
}

// noArchive is the answer of a box that cannot give its workspace.
type noArchive struct{ why string }

func (n noArchive) Error() string { return n.why }

// take reads the archive once. What another try may repair is a badCopy.
func (e *exporter) take(ctx context.Context, src WorkspaceSource) (taken, error) {
	e.stage(StageArchive, "", -1)
	body, err := src.Workspace(ctx)
	if err != nil {
		return taken{}, workspaceFault(ctx, err)
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
		return taken{}, err
	}
	defer spool.Close()
	keeper, err := newChunkKeeper(e.store, e.req.Workspace)
	if err != nil {
		return taken{}, err
	}
	defer keeper.close()
	index, err := newIndexWriter(spoolWriter{spool})
	if err != nil {
		return taken{}, err
	}
	past := e.pastFiles(ctx)
	defer past.stop()
	t := &taking{exporter: e, keeper: keeper, index: index, files: e.scan.beginFiles(past), refused: e.scan.refused()}
	manifest, err := t.read(ctx, body)
	if err != nil {
		return taken{}, err
	}
	if t.shut() {
		id := objectID{key: indexKey(e.prefix, 1)}
		t.files.object.Withheld = true
		e.scan.record(id, t.files.object)
		return taken{none: withheldText(t.files.object.Findings, e.scan.policy), withheld: true, object: &id}, nil
	}
	e.stage(StageScan, "", -1)
	if err := t.files.finish(ctx, keeper, e.tick); err != nil {
		return taken{}, err
	}
	if err := index.chunks(keeper.chunks); err != nil {
		return taken{}, err
	}
	a := &WorkspaceArchive{
		Bytes: t.cut.size, SHA256: hex.EncodeToString(t.cut.sum.Sum(nil)), Chunks: len(keeper.chunks), StoredBytes: keeper.stored,
		Files: manifest.Files, Repositories: len(manifest.Repositories),
		Missing: manifest.Missing, LeftOut: manifest.LeftOut, Changed: manifest.Changed,
	}
	if a.Index, err = index.finish(a.Chunks, a.Bytes); err != nil {
		return taken{}, err
	}
	e.stage(StageReadBack, "", a.Bytes)
	if err := keeper.readBack(ctx, e.tick); err != nil {
		return taken{}, err
	}
	a.Index.Key, err = e.putFirst(ctx, "application/zstd", io.NewSectionReader(spool, 0, a.Index.Bytes), a.Index.SHA256, indexKey)
	if err != nil {
		return taken{}, err
	}
	id := objectID{a.Index.Key, a.Index.SHA256}
	e.scan.record(id, t.files.object)
	return taken{archive: a, object: &id}, nil
}

// withheldText is for the receipt.
func withheldText(found int, policy box.SecretsPolicy) string {
	return fmt.Sprintf("they hold %d possible secrets (what could not be looked into counts as one), and export_secrets is %s: nothing is masked in files, so they are not stored; the report of secrets lists the places", found, policy)
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

// taking is one reading of an archive.
type taking struct {
	*exporter
	keeper  *chunkKeeper
	index   *indexWriter
	files   *fileScan
	cut     *cutter
	refused bool // the export is, for what the conversations hold
}

// shut reports whether nothing of the archive goes into the store any more.
func (t *taking) shut() bool { return t.refused || t.files.withheld() }

// read unpacks the archive, checks it, looks through it, and writes down what is
// where, while the tar is cut and kept.
func (t *taking) read(ctx context.Context, body io.Reader) (box.Manifest, error) {
	source := &remember{from: body}
	tarball, err := workspacetar.Decompress(source)
	if err != nil {
		return box.Manifest{}, err
	}
	defer tarball.Close()
	t.cut = newCutter(func(data []byte) error { return t.keeper.keep(ctx, data) })
	through := &gate{to: t.cut, hold: t.scan.policy.Withholds(), shut: t.shut, wait: func() bool { return t.files.between }}
	var ours error
	manifest, err := workspacetar.ReadInto(io.TeeReader(ticking{ctx, tarball, t.tick}, through), t.files.take, func(entry workspacetar.Entry) error {
		t.files.told(entry)
		ours = t.index.entry(entry)
		return ours
	})
	t.files.end()
	if err == nil {
		err = through.open()
	}
	var kept error
	if err == nil && !t.shut() {
		kept = t.cut.Close()
	} else {
		kept = t.cut.Abort()
	}
	switch {
	case ctx.Err() != nil:
		return box.Manifest{}, fault(ctx, "download the workspace", ctx.Err())
	case kept != nil: // the store's, which is what the reading broke on
		return box.Manifest{}, kept
	case err == nil:
		return manifest, nil
	case ours != nil, t.cut.size > maxTarBytes:
		return box.Manifest{}, err
	case source.err != nil:
		return box.Manifest{}, badCopy{source.err}
	}
	return box.Manifest{}, badCopy{workspacetar.Damaged(err)}
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
