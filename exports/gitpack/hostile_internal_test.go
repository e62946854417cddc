package gitpack

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zlib"
)

// tally counts what it is told, and holds nothing.
type tally struct {
	objects, open int
	bytes         int64
	// idle is the most that was read of the stream while a text waited for its end.
	from     *counting
	since    int64
	waiting  bool
	mostIdle int64
}

type counting struct {
	from io.Reader
	n    int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	return n, err
}

func (t *tally) look() {
	if t.from != nil && t.waiting {
		t.mostIdle = max(t.mostIdle, t.from.n-t.since)
	}
	t.waiting = false
}

func (t *tally) Begin(Kind, int64) { t.objects, t.open = t.objects+1, t.open+1 }
func (t *tally) From(int64, int64) { t.look() }
func (t *tally) End(string)        { t.open--; t.look() }
func (t *tally) Write(p []byte) (int, error) {
	t.look()
	if t.from != nil {
		t.since, t.waiting = t.from.n, len(p) > 0
	}
	t.bytes += int64(len(p))
	return len(p), nil
}

func packHead(objects uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), objects)
}

// head is the head of an object in a pack.
func head(kind byte, size uint64) []byte {
	out := []byte{kind<<4 | byte(size&15)}
	for size >>= 4; size > 0; size >>= 7 {
		out[len(out)-1] |= 0x80
		out = append(out, byte(size&0x7f))
	}
	return out
}

func varint(n uint64) []byte { return binary.AppendUvarint(nil, n) }

func zipped(data []byte) []byte {
	var out bytes.Buffer
	w := zlib.NewWriter(&out)
	_, _ = w.Write(data)
	_ = w.Close()
	return out.Bytes()
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

var sum = make([]byte, SHA1)

// blob is a whole object in a pack.
func blob(data []byte) []byte { return join(head(3, uint64(len(data))), zipped(data)) }

// emptyBlocks is a stream of zlib that never ends and holds one byte.
func emptyBlocks() io.Reader {
	var out bytes.Buffer
	w, _ := flate.NewWriter(&out, flate.NoCompression)
	_, _ = w.Write([]byte("x"))
	_ = w.Flush()
	return io.MultiReader(bytes.NewReader([]byte{0x78, 0x01}), &out, &repeated{of: []byte{0, 0, 0, 0xff, 0xff}})
}

type repeated struct {
	of []byte
	at int
}

func (r *repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.of[r.at]
		r.at = (r.at + 1) % len(r.of)
	}
	return len(p), nil
}

// endless is zlib of zeros without an end.
func endless() io.Reader {
	r, w := io.Pipe()
	go func() {
		z := zlib.NewWriter(w)
		zeros := make([]byte, 1<<20)
		for {
			if _, err := z.Write(zeros); err != nil {
				return
			}
		}
	}()
	return r
}

// hostile are packs that no git made.
func hostile() map[string][]byte {
	base := bytes.Repeat([]byte("a line of the base\n"), 20)
	first := join(packHead(2), blob(base))
	back := byte(len(first) - 12)
	to := func(delta []byte) []byte {
		return join(first, head(typeOffset, uint64(len(delta))), []byte{back}, zipped(delta), sum)
	}
	size := varint(uint64(len(base)))
	return map[string][]byte{
		"nothing":                            {},
		"half of a head":                     packHead(1)[:7],
		"another version":                    join([]byte("PACK\x00\x00\x00\x09\x00\x00\x00\x00"), sum),
		"no objects and no sum":              packHead(0),
		"something behind the end":           join(packHead(0), sum, []byte("x")),
		"less objects than there are":        join(packHead(1), blob(base), blob(base), sum),
		"more objects than there are":        join(packHead(3), blob(base), blob(base), sum),
		"ten million objects claimed":        join(packHead(10_000_000), bytes.Repeat(blob(nil), 100)),
		"cut off in the middle":              join(packHead(1), blob(bytes.Repeat(base, 50))[:60]),
		"no kind":                            join(packHead(1), head(0, 1), zipped([]byte("x")), sum),
		"kind five":                          join(packHead(1), head(5, 1), zipped([]byte("x")), sum),
		"a size without an end":              join(packHead(1), bytes.Repeat([]byte{0xbf}, 40)),
		"a size of many bytes":               join(packHead(1), head(3, 1<<62), zipped([]byte("x")), sum),
		"smaller than it says":               join(packHead(1), head(3, 9), zipped([]byte("x")), sum),
		"larger than it says":                join(packHead(1), head(3, 1), zipped(base), sum),
		"a wrong sum of the zlib":            join(packHead(1), head(3, 1), append(zipped([]byte("x"))[:9], 1, 2, 3, 4), sum),
		"no zlib":                            join(packHead(1), head(3, 9), []byte("something else altogether"), sum),
		"a difference to itself":             join(packHead(1), head(typeOffset, 4), []byte{0}, zipped([]byte{1, 1, 1, 'x'}), sum),
		"a difference to before the start":   join(packHead(1), head(typeOffset, 4), []byte{0x80, 0x80, 0x80, 1}, zipped([]byte{1, 1, 1, 'x'}), sum),
		"a distance without an end":          join(packHead(1), head(typeOffset, 4), bytes.Repeat([]byte{0xff}, 40), sum),
		"a difference that says a huge base": to(join(varint(1<<62), varint(1<<40), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})),
		"a difference to a base of 1 GiB":    join(packHead(1), head(typeID, 12), make([]byte, 20), zipped(join(varint(1<<30), varint(1<<30), []byte{0x80, 0x80})), sum),
		"sizes without an end":               to(bytes.Repeat([]byte{0x80}, 40)),
		"an instruction that is none":        to(join(size, varint(5), []byte{0})),
		"an insert that is cut off":          to(join(size, varint(5), []byte{5, 'a'})),
		"an insert beyond the end":           to(join(size, varint(1), []byte{5, 'a', 'b', 'c', 'd', 'e'})),
		"a copy that is cut off":             to(join(size, varint(5), []byte{0x91, 1})),
		"a copy beyond the base":             to(join(size, varint(1<<16), []byte{0x80})),
		"a copy from beyond the base":        to(join(size, varint(4), []byte{0x9f, 0xff, 0xff, 0xff, 0xff, 4})),
		"a copy beyond the end":              to(join(size, varint(3), []byte{0x90, 4})),
		"less than it says":                  to(join(size, varint(300), []byte{0x90, 4})),
		"another size of the base":           to(join(varint(7), varint(1), []byte{1, 'x'})),
		"a difference of nothing":            to(nil),
	}
}

func TestHostilePacksAreToldAndEnd(t *testing.T) {
	t.Parallel()
	for name, data := range hostile() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := &tally{}
			err := NewReader().Pack(bytes.NewReader(data), SHA1, seen)
			fault, ok := errors.AsType[*Fault](err)
			if !ok || fault.At < 0 || fault.At > int64(len(data)) || fault.Why == "" {
				t.Errorf("it is read as %v", err)
			}
			if seen.open != 0 {
				t.Errorf("%d of %d objects did not end", seen.open, seen.objects)
			}
			t.Log(err)
		})
	}
}

// What goes on for ever ends soon, and not by being cut off.
func TestEndlessPacksEnd(t *testing.T) {
	t.Parallel()
	many := func(parts ...[]byte) io.Reader { return bytes.NewReader(join(parts...)) }
	base := bytes.Repeat([]byte("0123456789abcdef"), 4096)[:1<<16]
	first := join(packHead(1<<31), blob(base))
	// Copies of one byte, without an end: 2 bytes each that copy nothing new.
	copies := func() io.Reader {
		r, w := io.Pipe()
		go func() {
			z := zlib.NewWriter(w)
			_, err := z.Write(join(varint(1<<16), varint(1<<55), []byte{3, 'a', 'b', 'c'}))
			for some := bytes.Repeat([]byte{0x90, 1}, 1<<16); err == nil; {
				_, err = z.Write(some)
			}
		}()
		return r
	}
	for name, row := range map[string]struct {
		from io.Reader
		why  string
		most int64 // of the stream that is read
	}{
		"zeros":                     {io.MultiReader(many(packHead(1), head(3, 1<<55)), endless()), "far more than git makes", 1 << 20},
		"zeros that are few":        {io.MultiReader(many(packHead(1), head(3, 1<<20)), endless()), "larger than it says", 1 << 20},
		"blocks that hold nothing":  {io.MultiReader(many(packHead(1), head(3, 1<<20)), emptyBlocks()), "without holding anything", 1 << 20},
		"a line without an end":     {io.MultiReader(many([]byte("# v2 git bundle\n")), &repeated{of: []byte("x")}), "too long", 1 << 20},
		"a difference of copies":    {io.MultiReader(many(packHead(1), head(typeID, 1<<55), make([]byte, 20)), copies()), "far more than git makes", 4 << 20},
		"a difference in no bounds": {io.MultiReader(many(first, head(typeOffset, 1<<55), []byte{5}), copies()), "", 4 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := &counting{from: row.from}
			seen := &tally{from: from}
			r := NewReader()
			r.free = 16 << 20
			read := func() error { return r.Pack(from, SHA1, seen) }
			if strings.HasPrefix(name, "a line") {
				read = func() error { return r.Bundle(from, seen) }
			}
			err := read()
			fault, ok := errors.AsType[*Fault](err)
			if !ok || !strings.Contains(fault.Why, row.why) || from.n > row.most {
				t.Errorf("after %d bytes it ends with %v", from.n, err)
			}
			if seen.mostIdle > 512<<10 {
				t.Errorf("%d bytes were read while a text waited to be looked at", seen.mostIdle)
			}
		})
	}
}

// A source that breaks off is no fault of the pack.
func TestAnErrorOfTheSourceIsReturned(t *testing.T) {
	t.Parallel()
	broken := errors.New("the line is dead")
	whole := join(packHead(1), blob(bytes.Repeat([]byte("text\n"), 100)), sum)
	for n := range len(whole) + 1 {
		err := NewReader().Pack(io.MultiReader(bytes.NewReader(whole[:n]), failing{broken}), SHA1, &tally{})
		if !errors.Is(err, broken) {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A few bytes of a difference make a large object; what all of them make is bounded,
// and what is added is seen all the same.
func TestDifferencesThatMakeMuchAreNotAllApplied(t *testing.T) {
	t.Parallel()
	base := bytes.Repeat([]byte("0123456789abcdef"), 1<<12)
	pack := join(packHead(1001), blob(base))
	delta := join(varint(1<<16), varint(15<<16+3), bytes.Repeat([]byte{0x80}, 15), []byte{3, 'n', 'e', 'w'})
	id := NewReader()
	id.format(SHA1)
	id.name(Blob, int64(len(base)))
	_, _ = id.sum.Write(base)
	for range 1000 {
		pack = join(pack, head(typeID, uint64(len(delta))), id.sum.Sum(nil), zipped(delta))
	}
	seen := &tally{}
	r := NewReader()
	if err := r.Pack(bytes.NewReader(join(pack, sum)), SHA1, seen); err != nil {
		t.Fatal(err)
	}
	if seen.objects != 1001 || r.applied > r.free/16+maxUnfold*int64(len(pack)) || r.applied < r.free/32 {
		t.Errorf("%d objects, %d bytes made of %d", seen.objects, r.applied, len(pack))
	}
	if seen.bytes < int64(len(base))+3*1000 {
		t.Errorf("%d bytes were handed out", seen.bytes)
	}
}

// What is held is bounded, whatever there is.
func TestWhatIsHeldIsBounded(t *testing.T) {
	t.Parallel()
	var h held
	var sums [][sha256.Size]byte
	random := rand.NewChaCha8([32]byte{4})
	h.clear()
	for i := range 200 {
		data := make([]byte, 300_000)
		_, _ = random.Read(data)
		h.add(&object{at: int64(i), id: fmt.Sprint(i % 150), data: bytes.Clone(data)})
		if n := h.plain.bytes + h.packed.bytes; n > maxHeld || len(h.byAt) != h.plain.order.Len()+h.packed.order.Len() || len(h.byID) > len(h.byAt) {
			t.Fatalf("%d bytes of %d objects", n, len(h.byAt))
		}
		sums = append(sums, sha256.Sum256(data))
		if o := h.at(int64(i)); o == nil || h.named(fmt.Sprint(i%150)) != o || !bytes.Equal(o.data, data) {
			t.Fatal("the newest is not held")
		}
		// One that was used a while ago was compressed meanwhile.
		while := max(0, i-12)
		if o := h.at(int64(while)); o == nil || sha256.Sum256(o.data) != sums[while] {
			t.Fatalf("%d is not held at %d, or is not what it was", while, i)
		}
		h.at(0) // it is used, so it stays
	}
	if h.at(0) == nil || h.at(1) != nil {
		t.Error("the one that was used is gone, or the one that was not is there")
	}
}

// FuzzReader gives any bytes to everything that reads: it ends, tells each object's
// end, and holds no more than it says.
func FuzzReader(f *testing.F) {
	for _, data := range hostile() {
		f.Add(data)
		f.Add(append([]byte("# v2 git bundle\n0123456789012345678901234567890123456789 refs/heads/x\n\n"), data...))
	}
	f.Add(zipped([]byte("blob 4\x00text")))
	f.Add(zipped([]byte("tree 33\x00100644 name\x00012345678901234567")))
	f.Add([]byte("# v3 git bundle\n@object-format=sha256\n\nPACK"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader()
		r.free = 1 << 20
		for name, read := range map[string]func(io.Reader, Visitor) error{
			"bundle": r.Bundle,
			"pack":   func(from io.Reader, v Visitor) error { return r.Pack(from, SHA1, v) },
			"pack, of other names": func(from io.Reader, v Visitor) error {
				return r.Pack(from, SHA256, v)
			},
			"loose": func(from io.Reader, v Visitor) error { return r.Loose(from, SHA1, v) },
		} {
			seen := &tally{}
			err := read(bytes.NewReader(data), seen)
			if fault, ok := errors.AsType[*Fault](err); err != nil && (!ok || fault.At < 0 || fault.At > int64(len(data))) {
				t.Fatalf("%s: %v", name, err)
			}
			if seen.open != 0 {
				t.Fatalf("%s: an object did not end", name)
			}
			if most := 2*r.free + (2*maxUnfold+4)*int64(len(data)); seen.bytes > most {
				t.Fatalf("%s: %d bytes were handed out of %d", name, seen.bytes, len(data))
			}
		}
	})
}
