package backup

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/openhands/boxkeeper/box"
)

const copyBuffer = 256 << 10

// archive writes one backup. Close it, also after an error.
type archive struct {
	ctx      context.Context //nolint:containedctx // it lives as long as one call
	tar      *tar.Writer
	zstd     *zstd.Encoder
	spool    *os.File // the manifest so far
	manifest *bufio.Writer
	buffer   []byte
	total    total
	tell     func(Progress)
}

// newArchive begins an archive in out. The manifest is collected in spool.
func newArchive(ctx context.Context, out io.Writer, spool *os.File, h head, tell func(Progress)) (*archive, error) {
	z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(2))
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "begin the backup: %w", err)
	}
	a := &archive{
		ctx: ctx, tar: tar.NewWriter(z), zstd: z, spool: spool, manifest: bufio.NewWriter(spool),
		buffer: make([]byte, copyBuffer), tell: tell,
	}
	first, err := jsonLine(h)
	if err == nil {
		err = a.own(headName, int64(len(first)), bytes.NewReader(first))
	}
	if err == nil {
		_, err = a.manifest.Write(first)
	}
	if err != nil {
		a.close()
		return nil, failed(err, "begin the backup")
	}
	return a, nil
}

// own writes a file of the archive's own.
func (a *archive) own(name string, size int64, content io.Reader) error {
	err := a.tar.WriteHeader(&tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: size})
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(plain{a.tar}, reader{a.ctx, content}, a.buffer)
	return err
}

// plain hides all other methods of a writer, so that the given buffer is used.
type plain struct{ io.Writer }

// add writes an entry without content.
func (a *archive) add(e entry) error {
	if err := a.tar.WriteHeader(e.header()); err != nil {
		return failed(err, "add %q to the backup", e.rel)
	}
	return a.record(e, "")
}

func (a *archive) record(e entry, sum string) error {
	l, err := e.manifestLine(sum)
	if err != nil {
		return err
	}
	if _, err := a.manifest.Write(l); err != nil {
		return failed(err, "write the manifest of the backup")
	}
	a.total.Entries++
	a.total.Bytes += e.size
	a.tell(Progress{Stage: "reading", Entries: a.total.Entries, Bytes: a.total.Bytes, Path: e.rel})
	return nil
}

// errShorter says that a file had less to read than it had at first.
var errShorter = errors.New("it got shorter while it was read")

// file writes a file of e.size bytes; what content has beyond is left. On
// errShorter the entry is filled up, and nothing is recorded: write the file
// again at once.
func (a *archive) file(e entry, content io.Reader) error {
	if err := a.tar.WriteHeader(e.header()); err != nil {
		return failed(err, "add %q to the backup", e.rel)
	}
	sum := &counter{hash: sha256.New(), tell: func(n int64) {
		a.tell(Progress{Stage: "reading", Entries: a.total.Entries, Bytes: a.total.Bytes + n, Path: e.rel})
	}}
	source := readErrors{Reader: reader{a.ctx, io.LimitReader(content, e.size)}}
	n, err := io.CopyBuffer(plain{io.MultiWriter(a.tar, sum)}, &source, a.buffer)
	switch {
	case source.err != nil:
		return failed(source.err, "read %q", e.rel)
	case err != nil:
		return failed(err, "write %q to the backup", e.rel)
	case n < e.size:
		if _, err := io.CopyBuffer(plain{a.tar}, io.LimitReader(reader{a.ctx, zeros{}}, e.size-n), a.buffer); err != nil {
			return failed(err, "write %q to the backup", e.rel)
		}
		return errShorter
	}
	return a.record(e, hex.EncodeToString(sum.hash.Sum(nil)))
}

// readErrors remembers the error of a reader, to tell it from the writer's.
type readErrors struct {
	io.Reader
	err error
}

func (r *readErrors) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// end writes the manifest and what closes the archive.
func (a *archive) end() error {
	last, err := jsonLine(a.total)
	if err != nil {
		return err
	}
	if _, err := a.manifest.Write(last); err != nil {
		return failed(err, "write the manifest of the backup")
	}
	size, err := rewind(a.spool, a.manifest)
	if err != nil {
		return failed(err, "read the manifest of the backup")
	}
	if err := a.own(manifestName, size, a.spool); err != nil {
		return failed(err, "write the manifest of the backup")
	}
	if err := errors.Join(a.tar.Close(), a.zstd.Close()); err != nil {
		return failed(err, "end the backup")
	}
	return nil
}

// rewind flushes what was written to a file and goes to its start.
func rewind(file *os.File, w *bufio.Writer) (size int64, err error) {
	if err := w.Flush(); err != nil {
		return 0, err
	}
	if size, err = file.Seek(0, io.SeekCurrent); err != nil {
		return 0, err
	}
	_, err = file.Seek(0, io.SeekStart)
	return size, err
}

// close ends the compressor's goroutines. Safe after end.
func (a *archive) close() { _ = a.zstd.Close() }
