package unpack

import (
	"bytes"
	"io/fs"
	"os"
	"time"
)

// blockSize is what is looked at for zeros in one piece.
const blockSize = 4 << 10

var zeros [blockSize]byte //nolint:gochecknoglobals // a constant

// file writes one file. Blocks of zeros are skipped, so that a sparse file
// takes no more room than it took.
type file struct {
	dir      *Dir
	name     string
	file     *os.File
	mode     fs.FileMode
	modified time.Time
	at       int64
	err      error
}

// Write writes what is not zero. It keeps its first error.
func (f *file) Write(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	for done := 0; done < len(p); {
		zero, n := run(p[done:], f.at)
		if !zero {
			if _, err := f.file.WriteAt(p[done:done+n], f.at); err != nil {
				f.err = local("write", f.name, err)
				return done, f.err
			}
		}
		done, f.at = done+n, f.at+int64(n)
	}
	return len(p), nil
}

// run returns how many of the bytes, which lie at an offset of a file, are to be
// written, or are zeros as far as their blocks are here.
func run(p []byte, at int64) (zero bool, n int) {
	for n < len(p) {
		size := min(blockSize-int((at+int64(n))%blockSize), len(p)-n)
		empty := bytes.Equal(p[n:n+size], zeros[:size])
		if n > 0 && empty != zero {
			return zero, n
		}
		zero = empty
		n += size
	}
	return zero, n
}

// Close sets length, mode and time.
func (f *file) Close() error {
	if f.err != nil {
		_ = f.file.Close()
		return f.err
	}
	f.err = fs.ErrClosed
	err := f.file.Truncate(f.at)
	if err == nil {
		err = f.file.Chmod(f.mode)
	}
	if closed := f.file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = f.dir.root.Chtimes(f.name, f.modified, f.modified)
	}
	return local("write", f.name, err)
}
