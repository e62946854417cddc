package gitpack

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zlib"
)

// pack reads a pack and what must not follow it.
func (r *Reader) pack() error {
	r.start = r.at()
	var h [12]byte
	if _, err := io.ReadFull(r.in, h[:]); err != nil {
		return r.broken(err, "the head of the pack")
	}
	if version := binary.BigEndian.Uint32(h[4:]); string(h[:4]) != "PACK" || version != 2 && version != 3 {
		return r.wrong("it is no pack of a known version")
	}
	for n := binary.BigEndian.Uint32(h[8:]); n > 0; n-- {
		if err := r.object(); err != nil {
			return err
		}
	}
	r.start = r.at()
	if _, err := io.CopyN(io.Discard, r.in, int64(r.of)); err != nil {
		return r.broken(err, "the sum of the pack")
	}
	return r.ended()
}

// ended refuses what follows the end: nobody would look at it.
func (r *Reader) ended() error {
	r.start = r.at()
	switch _, err := r.in.ReadByte(); {
	case err == nil:
		return r.wrong("something follows its end")
	case !errors.Is(err, io.EOF):
		return r.broken(err, "what follows it")
	}
	return nil
}

// The types of objects in a pack.
const (
	typeOffset = 6 // a difference to an object that lies so far before
	typeID     = 7 // a difference to an object by its id
)

// object reads the next object of a pack.
func (r *Reader) object() error {
	at := r.at()
	r.start = at
	c, err := r.in.ReadByte()
	if err != nil {
		return r.broken(err, "the objects of the pack")
	}
	kind, size := c>>4&7, int64(c&15)
	for shift := 4; c&0x80 != 0; shift += 7 {
		if c, err = r.in.ReadByte(); err != nil {
			return r.broken(err, "the head of an object")
		}
		if shift > 55 {
			return r.wrong("an object says an impossible size")
		}
		size |= int64(c&0x7f) << shift
	}
	switch kind {
	case 1:
		return r.whole(Commit, at, size)
	case 2:
		return r.whole(Tree, at, size)
	case 3:
		return r.whole(Blob, at, size)
	case 4:
		return r.whole(Tag, at, size)
	case typeOffset:
		back, err := r.distance()
		if err != nil {
			return err
		}
		if back <= 0 || back >= at {
			return r.wrong("a difference is to what does not lie before it")
		}
		return r.difference(at, size, r.held.at(at-back))
	case typeID:
		id := make([]byte, r.of)
		if _, err := io.ReadFull(r.in, id); err != nil {
			return r.broken(err, "the head of an object")
		}
		return r.difference(at, size, r.held.named(string(id)))
	}
	return r.wrong("an object is of a kind that git does not have")
}

// distance reads how far back the other object of a difference lies.
func (r *Reader) distance() (int64, error) {
	n := int64(0)
	for i := 0; ; i++ {
		c, err := r.in.ReadByte()
		if err != nil {
			return 0, r.broken(err, "the head of an object")
		}
		if i == 8 {
			return 0, r.wrong("a difference is to what does not lie before it")
		}
		n = n<<7 | int64(c&0x7f)
		if c&0x80 == 0 {
			return n, nil
		}
		n++
	}
}

// whole reads an object that is none of a difference, and holds it if it is small.
func (r *Reader) whole(kind Kind, at, size int64) error {
	if err := r.unzip(); err != nil {
		return r.broken(err, "an object")
	}
	o := &object{at: at, kind: kind}
	if size <= maxApplied {
		o.data = r.held.buffer(size)
	}
	err := r.content(o, size)
	if err == nil && o.data != nil {
		r.held.add(o)
	}
	return err
}

// content reads the content of an object and hands it out.
func (r *Reader) content(o *object, size int64) error {
	r.visit.Begin(o.kind, o.at)
	id := ""
	defer func() { r.visit.End(id) }()
	r.visit.From(0, linesOf(o.kind))
	r.name(o.kind, size)
	to := r.text(o.kind)
	err := r.unpack(size, func(p []byte) error {
		_, _ = r.sum.Write(p) // never fails; documented
		if o.data != nil {
			o.data = append(o.data, p...)
		}
		_, _ = to.Write(p) // never fails; documented
		return nil
	})
	if err != nil {
		return err
	}
	o.id = string(r.sum.Sum(nil))
	id = hex.EncodeToString([]byte(o.id))
	return nil
}

// linesOf is how many line breaks are before the beginning of an object: a tree has
// no lines.
func linesOf(kind Kind) int64 {
	if kind == Tree {
		return -1
	}
	return 0
}

// name begins the sum that names an object.
func (r *Reader) name(kind Kind, size int64) {
	r.sum.Reset()
	_, _ = fmt.Fprintf(r.sum, "%s %d\x00", kind, size) // never fails; documented
}

// text is where the content of a whole object goes: of a tree that is its names.
func (r *Reader) text(kind Kind) io.Writer {
	if kind != Tree {
		return r.visit
	}
	r.tree = treeNames{to: r.visit, id: int(r.of)}
	return &r.tree
}

// unpack reads what is size bytes long when it is unpacked, and no byte more; unzip
// goes before it.
func (r *Reader) unpack(size int64, do func([]byte) error) error {
	for left := size; ; {
		n, err := r.zip.Read(r.copy)
		r.progress()
		if left -= int64(n); left < 0 {
			return r.wrong("an object is larger than it says")
		}
		if r.unfolded += int64(n); r.unfolded > r.free+maxUnfold*r.at() {
			return r.wrong("it unfolds to far more than git makes")
		}
		if n > 0 {
			if err := do(r.copy[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && left > 0:
			return r.wrong("an object is smaller than it says")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return r.broken(err, "an object")
		}
	}
}

func (r *Reader) unzip() error {
	r.progress()
	if r.zip == nil {
		zip, err := zlib.NewReader(r.in)
		if err == nil {
			r.zip = zip
		}
		return err
	}
	return r.zip.(zlib.Resetter).Reset(r.in, nil) //nolint:forcetypeassert,errcheck // documented
}
