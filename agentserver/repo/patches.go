package repo

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// patchBytes is how much of a patch git is given at once, up to the end of a file's
// part: it holds all of what it is given, and refuses a gigabyte.
const patchBytes = 4 << 20

// patches cuts a patch of git's into several, each of whole files. It reads as one
// of them, to io.EOF, and then next is the turn of the following one.
type patches struct {
	in    *bufio.Reader
	rest  []byte // of a piece of a line that was read
	inner bool   // the next piece goes on with a line
	given int
	err   error // of the source
}

func newPatches(from io.Reader) *patches { return &patches{in: bufio.NewReaderSize(from, maxRecord)} }

// partStart begins the part of a file. Nothing else in a patch begins a line so: text
// has another sign before it, and what stands for bytes has no blank.
var partStart = []byte("diff --git ") //nolint:gochecknoglobals // a constant

// next reports whether there is another one.
func (p *patches) next() bool {
	p.given = 0
	if len(p.rest) > 0 || p.err != nil {
		return p.err == nil
	}
	_, err := p.in.Peek(1)
	if !errors.Is(err, io.EOF) {
		p.err = err
	}
	return err == nil
}

func (p *patches) Read(to []byte) (int, error) {
	if len(p.rest) == 0 {
		if p.given >= patchBytes && !p.inner {
			if ahead, _ := p.in.Peek(len(partStart)); bytes.Equal(ahead, partStart) {
				return 0, io.EOF
			}
		}
		var err error
		p.rest, err = p.in.ReadSlice('\n')
		p.inner = errors.Is(err, bufio.ErrBufferFull)
		switch {
		case p.inner, err == nil:
		case !errors.Is(err, io.EOF):
			p.err = err
			return 0, err
		case len(p.rest) == 0:
			return 0, io.EOF
		}
	}
	n := copy(to, p.rest)
	p.rest, p.given = p.rest[n:], p.given+n
	return n, nil
}
