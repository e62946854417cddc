package gitpack

import (
	"bytes"
	"encoding/hex"
)

// delta reads the instructions of a difference as they are unpacked.
type delta struct {
	// sizes is told of both sizes when they are known, insert of a part of what is
	// inserted, and copied of what is copied; all are within the sizes.
	sizes  func(base, result int64) error
	insert func(p []byte)
	copied func(from, n int64)

	step         deltaStep
	shift        int
	base, result int64
	made         int64 // of the result
	op           byte
	args         [7]byte
	have, need   int
	left         int // of what is inserted
}

type deltaStep int

const (
	stepBase deltaStep = iota
	stepResult
	stepOp
	stepCopy
	stepInsert
)

const badDelta = "a difference cannot be right"

// feed takes the next part. It returns what is wrong, or nothing.
func (d *delta) feed(p []byte) (wrong string, err error) {
	for len(p) > 0 {
		c := p[0]
		switch d.step {
		case stepBase, stepResult:
			p = p[1:]
			if wrong, err = d.size(c); wrong != "" || err != nil {
				return wrong, err
			}
		case stepOp:
			p = p[1:]
			switch {
			case c == 0:
				return badDelta, nil
			case c < 0x80:
				d.step, d.left = stepInsert, int(c)
				if d.made += int64(c); d.made > d.result {
					return badDelta, nil
				}
			default:
				d.step, d.op, d.have, d.need = stepCopy, c, 0, 0
				for bit := range 7 {
					d.need += int(c >> bit & 1)
				}
				if d.need == 0 && !d.copy() {
					return badDelta, nil
				}
			}
		case stepCopy:
			p = p[1:]
			d.args[d.have] = c
			if d.have++; d.have == d.need && !d.copy() {
				return badDelta, nil
			}
		case stepInsert:
			n := min(d.left, len(p))
			d.insert(p[:n])
			p = p[n:]
			if d.left -= n; d.left == 0 {
				d.step = stepOp
			}
		}
	}
	return "", nil
}

// size takes a byte of one of the sizes.
func (d *delta) size(c byte) (wrong string, err error) {
	to := &d.base
	if d.step == stepResult {
		to = &d.result
	}
	if d.shift > 55 {
		return "a difference says an impossible size", nil
	}
	*to |= int64(c&0x7f) << d.shift
	d.shift += 7
	if c&0x80 != 0 {
		return "", nil
	}
	d.shift = 0
	if d.step++; d.step == stepOp {
		return "", d.sizes(d.base, d.result)
	}
	return "", nil
}

// copy ends an instruction to copy, and reports whether it can be right.
func (d *delta) copy() bool {
	var from, n int64
	at := 0
	for bit := range 7 {
		if d.op>>bit&1 == 0 {
			continue
		}
		if bit < 4 {
			from |= int64(d.args[at]) << (8 * bit)
		} else {
			n |= int64(d.args[at]) << (8 * (bit - 4))
		}
		at++
	}
	if n == 0 {
		n = 1 << 16
	}
	d.step = stepOp
	if d.made += n; d.made > d.result || from+n > d.base {
		return false
	}
	d.copied(from, n)
	return true
}

// ended reports whether everything is there.
func (d *delta) ended() bool { return d.step == stepOp && d.made == d.result }

// difference reads a difference to other, which is nil when it is not held.
func (r *Reader) difference(at, size int64, other *object) error {
	if size > maxDelta {
		other = nil
	}
	begun := false
	id := ""
	defer func() {
		if begun {
			r.visit.End(id)
		}
	}()
	var d delta
	var a *applied
	d.sizes = func(base, result int64) error {
		if other != nil && base != int64(len(other.data)) {
			return r.wrong(badDelta)
		}
		begun = true
		if other == nil || result > maxApplied || r.applied+result > r.free/16+maxUnfold*r.at() {
			r.visit.Begin(Difference, at)
			r.alone(&d)
			return nil
		}
		r.applied += result
		r.visit.Begin(other.kind, at)
		a = &applied{data: r.held.buffer(result)}
		d.insert = a.insert
		d.copied = func(from, n int64) { a.data = append(a.data, other.data[from:from+n]...) }
		return nil
	}
	if err := r.unzip(); err != nil {
		return r.broken(err, "an object")
	}
	err := r.unpack(size, func(p []byte) error {
		wrong, err := d.feed(p)
		if wrong != "" {
			return r.wrong(wrong)
		}
		return err
	})
	switch {
	case err != nil:
		if a != nil {
			r.hand(other.kind, a) // what is there of it
		}
		return err
	case !d.ended():
		return r.wrong(badDelta)
	case a == nil:
		return nil
	}
	r.name(other.kind, int64(len(a.data)))
	_, _ = r.sum.Write(a.data) // never fails; documented
	made := &object{at: at, id: string(r.sum.Sum(nil)), kind: other.kind, data: a.data}
	id = hex.EncodeToString([]byte(made.id))
	r.hand(other.kind, a)
	r.held.add(made)
	return nil
}

// alone hands out what a difference inserts, which is all that is known of it.
func (r *Reader) alone(d *delta) {
	inserting := false
	d.insert = func(p []byte) {
		if !inserting {
			r.visit.From(d.made-int64(d.left), -1)
			inserting = true
		}
		_, _ = r.visit.Write(p) // never fails; documented
	}
	d.copied = func(int64, int64) {
		if inserting {
			r.visit.From(d.made, -1) // nothing waits while much is copied
			inserting = false
		}
	}
}

// applied is an object that is made of a difference.
type applied struct {
	data     []byte
	inserted []span
}

type span struct{ start, end int }

func (a *applied) insert(p []byte) {
	start := len(a.data)
	a.data = append(a.data, p...)
	if last := len(a.inserted) - 1; last >= 0 && a.inserted[last].end == start {
		a.inserted[last].end = len(a.data)
		return
	}
	a.inserted = append(a.inserted, span{start, len(a.data)})
}

// hand hands out what was inserted, with what is around it.
func (r *Reader) hand(kind Kind, a *applied) {
	text := a.data
	if kind == Tree {
		text = bytes.Clone(a.data)
		(&treeNames{id: int(r.of)}).blank(text)
	}
	lines, counted := linesOf(kind), 0
	for i := 0; i < len(a.inserted); {
		in := around(text, a.inserted[i])
		for i++; i < len(a.inserted) && a.inserted[i].start-Context <= in.end; i++ {
			in.end = around(text, a.inserted[i]).end
		}
		if lines >= 0 {
			lines += int64(bytes.Count(text[counted:in.start], []byte{'\n'}))
			counted = in.start
		}
		r.visit.From(int64(in.start), lines)
		_, _ = r.visit.Write(text[in.start:in.end]) // never fails; documented
	}
}

// around is a part of a text with what stands around it, in whole lines where lines
// are short: half of a value would be taken for another one.
func around(text []byte, in span) span {
	low, high := max(0, in.start-Context), min(len(text), in.end+Context)
	if low > 0 {
		if i := bytes.IndexByte(text[low:in.start], '\n'); i >= 0 {
			low += i + 1
		}
	}
	if high < len(text) {
		if i := bytes.LastIndexByte(text[in.end:high], '\n'); i >= 0 {
			high = in.end + i + 1
		}
	}
	return span{low, high}
}
