package exports

import (
	"bufio"
	"compress/flate"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
)

// maskedComment is the comment of a zip that was written by zipWriter, so that
// nobody takes it for what the agent-server gave.
const maskedComment = "boxkeeper masked secrets in this copy"

const (
	versionNeeded = 45 // of the format: 64-bit sizes
	creatorUnix   = 3 << 8
	wideExtra     = 20 // bytes of the extra field that holds two 64-bit sizes
	wide          = 0xffffffff
)

// zipWriter writes a zip with the same bytes for the same content: no times, no
// order of its own. It holds no directory in memory: that is a second spool file
// until the end.
type zipWriter struct {
	file    *os.File
	at      int64 // end of what is written
	dir     *os.File
	dirBuf  *bufio.Writer
	dirSize int64
	entries int64
	packer  *flate.Writer
}

func newZipWriter(file, dir *os.File) (*zipWriter, error) {
	packer, err := flate.NewWriter(io.Discard, flate.DefaultCompression)
	if err != nil {
		return nil, err
	}
	return &zipWriter{file: file, dir: dir, dirBuf: bufio.NewWriterSize(dir, 64<<10), packer: packer}, nil
}

// put packs an entry with other content than e has.
func (w *zipWriter) put(e zipEntry, fill func(io.Writer) error) error {
	start := w.at + localLen + int64(len(e.name)) + wideExtra
	packed := &countingWriter{w: bufio.NewWriterSize(io.NewOffsetWriter(w.file, start), 64<<10)}
	w.packer.Reset(packed)
	sum := crc32.NewIEEE()
	plain := &countingWriter{w: bufio.NewWriterSize(io.MultiWriter(w.packer, sum), 32<<10)}
	if err := fill(plain); err != nil {
		return err
	}
	for _, flush := range []func() error{plain.w.Flush, w.packer.Close, packed.w.Flush} {
		if err := flush(); err != nil {
			return err
		}
	}
	e.method, e.crc, e.packed, e.size = methodFlate, sum.Sum32(), packed.n, plain.n
	return w.close(e)
}

// keep copies an entry as it is packed.
func (w *zipWriter) keep(ctx context.Context, e zipEntry, packed io.Reader) error {
	start := w.at + localLen + int64(len(e.name)) + wideExtra
	if err := pour(ctx, io.NewOffsetWriter(w.file, start), io.LimitReader(packed, e.packed), nil); err != nil {
		return err
	}
	return w.close(e)
}

// close writes both headers of the entry whose data are there.
func (w *zipWriter) close(e zipEntry) error {
	le := binary.LittleEndian
	e.flags &= flagUTF8
	h := make([]byte, 0, localLen+len(e.name)+wideExtra)
	h = le.AppendUint32(h, localRecord)
	h = le.AppendUint16(h, versionNeeded)
	h = w.common(h, e)
	h = le.AppendUint16(h, uint16(len(e.name))) //nolint:gosec // at most maxNameBytes
	h = le.AppendUint16(h, wideExtra)
	h = append(h, e.name...)
	h = le.AppendUint16(h, 1)
	h = le.AppendUint16(h, wideExtra-4)
	h = le.AppendUint64(h, uint64(e.size))   //nolint:gosec // never negative
	h = le.AppendUint64(h, uint64(e.packed)) //nolint:gosec // never negative
	if _, err := w.file.WriteAt(h, w.at); err != nil {
		return err
	}
	d := make([]byte, 0, centralLen+len(e.name)+wideExtra+8)
	d = le.AppendUint32(d, centralRecord)
	d = le.AppendUint16(d, creatorUnix|versionNeeded)
	d = le.AppendUint16(d, versionNeeded)
	d = w.common(d, e)
	d = le.AppendUint16(d, uint16(len(e.name))) //nolint:gosec // at most maxNameBytes
	d = le.AppendUint16(d, wideExtra+8)
	d = append(d, 0, 0, 0, 0, 0, 0) // no comment, first disk, no kind
	d = le.AppendUint32(d, e.mode<<16)
	d = le.AppendUint32(d, wide)
	d = append(d, e.name...)
	d = le.AppendUint16(d, 1)
	d = le.AppendUint16(d, wideExtra-4+8)
	d = le.AppendUint64(d, uint64(e.size))   //nolint:gosec // never negative
	d = le.AppendUint64(d, uint64(e.packed)) //nolint:gosec // never negative
	d = le.AppendUint64(d, uint64(w.at))     //nolint:gosec // never negative
	if _, err := w.dirBuf.Write(d); err != nil {
		return err
	}
	w.dirSize += int64(len(d))
	w.entries++
	w.at += int64(len(h)) + e.packed
	return nil
}

// common appends what both headers share: from the flags to the sizes, which are
// in the extra field.
func (w *zipWriter) common(h []byte, e zipEntry) []byte {
	le := binary.LittleEndian
	h = le.AppendUint16(h, e.flags)
	h = le.AppendUint16(h, e.method)
	h = append(h, 0, 0, 0x21, 0) // the first time that the format can say
	h = le.AppendUint32(h, e.crc)
	h = le.AppendUint32(h, wide)
	return le.AppendUint32(h, wide)
}

// finish appends the directory and returns the size of the whole.
func (w *zipWriter) finish(ctx context.Context) (int64, error) {
	if err := w.dirBuf.Flush(); err != nil {
		return 0, err
	}
	if err := pour(ctx, io.NewOffsetWriter(w.file, w.at), io.NewSectionReader(w.dir, 0, w.dirSize), nil); err != nil {
		return 0, err
	}
	le := binary.LittleEndian
	end := w.at + w.dirSize
	b := le.AppendUint32(nil, end64Record)
	b = le.AppendUint64(b, end64Len-12)
	b = le.AppendUint16(b, creatorUnix|versionNeeded)
	b = le.AppendUint16(b, versionNeeded)
	b = le.AppendUint64(b, 0) // one disk
	for _, n := range []int64{w.entries, w.entries, w.dirSize, w.at} {
		b = le.AppendUint64(b, uint64(n)) //nolint:gosec // never negative
	}
	b = le.AppendUint32(b, end64Locator)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, uint64(end)) //nolint:gosec // never negative
	b = le.AppendUint32(b, 1)
	b = le.AppendUint32(b, endRecord)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint32(b, wide) // both counts of entries
	b = le.AppendUint32(b, wide)
	b = le.AppendUint32(b, wide)
	b = le.AppendUint16(b, uint16(len(maskedComment)))
	b = append(b, maskedComment...)
	_, err := w.file.WriteAt(b, end)
	return end + int64(len(b)), err
}

type countingWriter struct {
	w *bufio.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
