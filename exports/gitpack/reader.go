package gitpack

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // what git names objects by
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
)

// Kind is of what a text is.
type Kind string

// The kinds. Of a difference that could not be applied nobody knows of what it is.
const (
	References Kind = "references"
	Commit     Kind = "commit"
	Tree       Kind = "tree"
	Blob       Kind = "blob"
	Tag        Kind = "tag"
	Difference Kind = "difference"
)

// Format is what names the objects of a repository.
type Format int

// The formats that git has.
const (
	SHA1   Format = sha1.Size
	SHA256 Format = sha256.Size
)

// Visitor is told of everything in a stream, in its order. It takes what it is given
// before it returns, so that memory is bounded and nothing is known late.
type Visitor interface {
	// Begin is told of an object, or of the list of references, that begins at a
	// byte of the stream, counted from 0.
	Begin(kind Kind, at int64)
	// From says that what is written next begins at a byte of the object and has
	// nothing to do with what was written before. Lines counts the line breaks
	// before it, -1 when nobody knows.
	From(offset, lines int64)
	// Write takes text of the object. It never fails.
	io.Writer
	// End ends it. The id is empty of references, and of a difference that could
	// not be applied.
	End(id string)
}

const (
	// Context is how much of what a difference copies is handed out before and
	// behind what it inserts.
	Context = 512

	maxLine    = 64 << 10 // of the head of a bundle
	readBytes  = 4 << 10
	maxApplied = 1 << 20   // of an object that is held
	maxHeld    = 12 << 20  // of all of them
	maxPlain   = 4 << 20   // of those that are not compressed
	maxZipped  = 512 << 10 // of one that is
	maxDelta   = 256 << 10 // of a difference that is applied, when it is unpacked
	copyBytes  = 32 << 10

	// maxIdle is how much of a stream can be read without any text coming of it: a
	// window of 32 KiB that is not compressed, and the tables of many blocks.
	maxIdle = 64 << 10

	// What a stream can unfold to: as it is, and for each byte of it. Histories of
	// texts have 5 to 20 for each byte unpacked, and 100 with all differences
	// applied.
	freeUnfold = 1 << 30
	maxUnfold  = 200
)

// Fault says why a stream could not be read to its end. It repeats nothing of the
// stream.
type Fault struct {
	// At is where the object begins, or the part of the stream, that could not be
	// read. All that lies before was handed out.
	At  int64
	Why string
}

func (f *Fault) Error() string { return fmt.Sprintf("byte %d: %s", f.At, f.Why) }

// Reader reads one stream after the other, in the same memory. It is used by one
// goroutine.
type Reader struct {
	from  counter
	in    *bufio.Reader
	zip   io.ReadCloser
	sum   hash.Hash
	of    Format
	visit Visitor
	tree  treeNames
	copy  []byte

	held     held
	start    int64 // of what is read now
	unfolded int64 // bytes, of objects
	applied  int64 // bytes, of differences that were applied
	free     int64 // freeUnfold; tests have less
}

// NewReader makes a reader.
func NewReader() *Reader {
	r := &Reader{copy: make([]byte, copyBytes), free: freeUnfold}
	r.in = bufio.NewReaderSize(&r.from, maxLine)
	return r
}

// counter counts what was read, and ends a stream of which no text comes.
type counter struct {
	from io.Reader
	n    int64
	idle int64 // n at the last text
	err  error // of the source
}

var errIdle = errors.New("it goes on without holding anything")

func (c *counter) Read(p []byte) (int, error) {
	if c.n-c.idle > maxIdle+readBytes {
		return 0, errIdle
	}
	n, err := c.from.Read(p[:min(len(p), readBytes)])
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// begin makes the reader ready for a stream.
func (r *Reader) begin(from io.Reader, of Format, v Visitor) {
	r.from = counter{from: from}
	r.in.Reset(&r.from)
	r.visit, r.start, r.unfolded, r.applied = v, 0, 0, 0
	r.held.clear()
	r.format(of)
}

func (r *Reader) format(of Format) {
	if r.sum != nil && r.of == of {
		return
	}
	if r.of = of; of == SHA256 {
		r.sum = sha256.New()
	} else {
		r.of, r.sum = SHA1, sha1.New() //nolint:gosec // what git names objects by
	}
}

// at is the byte of the stream that is read next.
func (r *Reader) at() int64 { return r.from.n - int64(r.in.Buffered()) }

// progress says that something came of what was read.
func (r *Reader) progress() { r.from.idle = r.at() }

// wrong makes the fault of what is read now. A source's own error is returned as it
// is.
func (r *Reader) wrong(why string) error {
	if r.from.err != nil {
		return r.from.err
	}
	return &Fault{At: r.start, Why: why}
}

// broken is wrong for an error that a part of the reading gave.
func (r *Reader) broken(err error, what string) error {
	var fault *Fault
	switch {
	case errors.As(err, &fault):
		return err
	case errors.Is(err, errIdle):
		return r.wrong(errIdle.Error())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return r.wrong("it ends in " + what)
	}
	return r.wrong(what + " cannot be unpacked")
}

// Bundle reads a bundle to its end. A [Fault] says why it could not; an error of the
// source is returned as it is.
func (r *Reader) Bundle(from io.Reader, v Visitor) error {
	r.begin(from, SHA1, v)
	defer r.held.clear()
	if err := r.head(); err != nil {
		return err
	}
	return r.pack()
}

// Pack is [Reader.Bundle] for a pack, which does not say what names its objects.
func (r *Reader) Pack(from io.Reader, of Format, v Visitor) error {
	r.begin(from, of, v)
	defer r.held.clear()
	return r.pack()
}

// head reads what stands before the pack of a bundle: names, beside ids.
func (r *Reader) head() error {
	line := func() (string, error) {
		text, err := r.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return "", r.wrong("a line of its head is too long")
		}
		if err != nil {
			return "", r.broken(err, "its head")
		}
		r.progress()
		return string(text[:len(text)-1]), nil
	}
	first, err := line()
	if err != nil {
		return err
	}
	if first != "# v2 git bundle" && first != "# v3 git bundle" {
		return r.wrong("it is no bundle of a known version")
	}
	r.visit.Begin(References, 0)
	r.visit.From(0, 0)
	defer func() { r.visit.End("") }()
	for {
		text, err := line()
		if err != nil || text == "" {
			return err
		}
		if name, ok := strings.CutPrefix(text, "@object-format="); ok {
			switch name {
			case "sha1":
			case "sha256":
				r.format(SHA256)
			default:
				return r.wrong("its objects have names of an unknown kind")
			}
			continue
		}
		if _, name, ok := strings.Cut(text, " "); ok && !strings.HasPrefix(text, "@") {
			text = name
		}
		_, _ = io.WriteString(r.visit, text+"\n") // never fails; documented
	}
}
