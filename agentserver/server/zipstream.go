package server

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/klauspost/compress/flate"
)

// zipStream writes the bytes that a [zip.Writer] writes. That one keeps some 400
// bytes and the name of each entry until the end, and a history has an event for
// each; this one keeps the directory as it will be written, by giving its entries to
// one writer after the other.
type zipStream struct {
	out       switched
	writer    *zip.Writer
	pack      zip.Compressor
	entries   int // of the writer
	all       int64
	directory [][]byte
}

// zipBatch is how many entries one writer gets.
const zipBatch = 500

func newZipStream(to io.Writer) *zipStream {
	s := &zipStream{out: switched{to: to}}
	var deflater *flate.Writer // one entry is packed at a time
	s.pack = func(w io.Writer) (io.WriteCloser, error) {
		if deflater == nil {
			var err error
			deflater, err = flate.NewWriter(w, flate.DefaultCompression)
			return deflater, err
		}
		deflater.Reset(w)
		return deflater, nil
	}
	return s
}

// create begins the next entry.
func (s *zipStream) create(h *zip.FileHeader) (io.Writer, error) {
	if s.entries == zipBatch {
		if err := s.end(); err != nil {
			return nil, err
		}
	}
	if s.writer == nil {
		s.writer = zip.NewWriter(&s.out)
		s.writer.SetOffset(s.out.n)
		s.writer.RegisterCompressor(zip.Deflate, s.pack)
	}
	s.entries++
	s.all++
	return s.writer.CreateHeader(h)
}

// end ends a writer, and keeps its part of the directory.
func (s *zipStream) end() error {
	if s.writer == nil {
		return nil
	}
	if err := s.writer.Flush(); err != nil {
		return err
	}
	// What it writes now is the rest of its last entry, the records of all of them,
	// and an end.
	var tail bytes.Buffer
	out := s.out
	s.out.to = &tail
	err := s.writer.Close()
	s.out, s.writer, s.entries = out, nil, 0
	if err != nil {
		return err
	}
	rest, records, ok := cutTail(tail.Bytes())
	if !ok {
		return errors.New("the directory of a zip is not where it must be")
	}
	s.directory = append(s.directory, bytes.Clone(records))
	_, err = s.out.Write(rest)
	return err
}

const (
	most16, most32 = 1<<16 - 1, 1<<32 - 1
	endLen         = 22
	wideEndLen     = 56 + 20 // of what comes before it when numbers are large
)

// cutTail takes the records of a directory out of the last bytes of a zip.
func cutTail(tail []byte) (before, records []byte, ok bool) {
	le := binary.LittleEndian
	end := len(tail) - endLen
	if end < 0 || le.Uint32(tail[end:]) != 0x06054b50 {
		return nil, nil, false
	}
	size := uint64(le.Uint32(tail[end+12:]))
	if size == most32 {
		if end -= wideEndLen; end < 0 || le.Uint32(tail[end:]) != 0x06064b50 {
			return nil, nil, false
		}
		size = le.Uint64(tail[end+40:])
	}
	if size > uint64(end) { //nolint:gosec // not negative, see above
		return nil, nil, false
	}
	start := end - int(size) //nolint:gosec // not more than end
	return tail[:start], tail[start:end], true
}

// close writes the directory and its end.
func (s *zipStream) close() error {
	if err := s.end(); err != nil {
		return err
	}
	start := s.out.n
	for _, records := range s.directory {
		if _, err := s.out.Write(records); err != nil {
			return err
		}
	}
	_, err := s.out.Write(zipEnd(s.all, start, s.out.n-start))
	return err
}

// zipEnd is what follows a directory.
func zipEnd(entries, start, size int64) (b []byte) {
	le := binary.LittleEndian
	if entries >= most16 || size >= most32 || start >= most32 {
		b = le.AppendUint32(b, 0x06064b50)
		b = le.AppendUint64(b, 56-12)
		b = le.AppendUint16(le.AppendUint16(b, 45), 45)
		b = le.AppendUint32(le.AppendUint32(b, 0), 0)
		for _, n := range []int64{entries, entries, size, start} {
			b = le.AppendUint64(b, uint64(n)) //nolint:gosec // never negative
		}
		b = le.AppendUint32(b, 0x07064b50)
		b = le.AppendUint32(b, 0)
		b = le.AppendUint64(b, uint64(start+size)) //nolint:gosec // never negative
		b = le.AppendUint32(b, 1)
		entries, size, start = most16, most32, most32
	}
	b = le.AppendUint32(b, 0x06054b50)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint16(le.AppendUint16(b, uint16(entries)), uint16(entries))
	b = le.AppendUint32(le.AppendUint32(b, uint32(size)), uint32(start))
	return le.AppendUint16(b, 0)
}

// switched counts what goes to a writer.
type switched struct {
	to io.Writer
	n  int64
}

func (s *switched) Write(p []byte) (int, error) {
	n, err := s.to.Write(p)
	s.n += int64(n)
	return n, err
}
