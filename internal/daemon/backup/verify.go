package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
)

// verify reads a backup file as a whole and writes nothing but spool.
func verify(ctx context.Context, file, spool string, tell func(Progress)) (contents, error) {
	m := &measure{}
	read, err := scan(ctx, file, spool, m, tell, "checking")
	read.need = m.need
	return read, err
}

// measure is the visitor that finds out how much room an archive needs.
type measure struct{ need int64 }

const perEntry = 4 << 10 // what a name costs on the disk, about

func (m *measure) enter(entry) error    { m.need += perEntry; return nil }
func (m *measure) leave() error         { return nil }
func (m *measure) symlink(entry) error  { m.need += perEntry; return nil }
func (m *measure) hardlink(entry) error { m.need += perEntry; return nil }

func (m *measure) file(e entry, content io.Reader, _ bool) error {
	m.need += perEntry
	if e.rel == dataFile {
		m.need += e.size // the engine makes a copy of it
	}
	return blocks(content, func(data []byte) error { m.need += int64(len(data)); return nil }, func(int64) error { return nil })
}

// blocks reads content in blocks and hands on those that are not all zero; of
// the others only the size.
func blocks(content io.Reader, write func([]byte) error, skip func(int64) error) error {
	buffer := make([]byte, copyBuffer)
	nothing := make([]byte, copyBuffer)
	for {
		n, err := io.ReadFull(content, buffer)
		empty := bytes.Equal(buffer[:n], nothing[:n])
		var done error
		if empty {
			done = skip(int64(n))
		} else {
			done = write(buffer[:n])
		}
		switch {
		case done != nil:
			return done
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // of content, see cut
			return nil
		case err != nil:
			return err
		}
	}
}
