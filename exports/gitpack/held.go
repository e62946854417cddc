package gitpack

import (
	"bytes"
	"container/list"

	"github.com/klauspost/compress/s2"
)

// object is one that was read, whole or made of differences.
type object struct {
	at   int64
	id   string // raw
	kind Kind
	data []byte
	zip  []byte // the data, compressed, where that is nil
	use  *list.Element
}

func (o *object) size() int { return len(o.data) + len(o.zip) + overhead }

// held holds the objects that were used last: some as they are, and more of them
// compressed, since what a difference is to may lie some megabytes before it.
type held struct {
	byAt map[int64]*object
	byID map[string]*object
	// plain and packed are in the order of use, the last one first.
	plain, packed tier
	// scratch is what compresses, and spare the memory of one that was: there are
	// many objects, and each would be garbage soon.
	scratch, spare []byte
}

type tier struct {
	order *list.List
	bytes int
}

func (t *tier) add(o *object) {
	o.use = t.order.PushFront(o)
	t.bytes += o.size()
}

func (t *tier) remove(o *object) {
	t.order.Remove(o.use)
	t.bytes -= o.size()
}

// oldest returns the one that was used longest ago.
func (t *tier) oldest() *object {
	return t.order.Back().Value.(*object) //nolint:forcetypeassert,errcheck // nothing else is in it
}

// overhead is what an object takes beside its content, about.
const overhead = 256

func (h *held) clear() {
	h.byAt, h.byID = map[int64]*object{}, map[string]*object{}
	h.plain, h.packed = tier{order: list.New()}, tier{order: list.New()}
}

func (h *held) add(o *object) {
	h.byAt[o.at], h.byID[o.id] = o, o
	h.plain.add(o)
	h.fit()
}

// fit compresses, and forgets, what was not used for long.
func (h *held) fit() {
	for h.plain.bytes > maxPlain {
		o := h.plain.oldest()
		h.plain.remove(o)
		h.scratch = s2.Encode(h.scratch[:cap(h.scratch)], o.data)
		if cap(o.data) > cap(h.spare) {
			h.spare = o.data[:0]
		}
		if o.data = nil; len(h.scratch) > maxZipped {
			h.forget(o) // one that is not text, most likely
			continue
		}
		o.zip = bytes.Clone(h.scratch)
		h.packed.add(o)
	}
	for h.packed.bytes > maxHeld-maxPlain {
		o := h.packed.oldest()
		h.packed.remove(o)
		h.forget(o)
	}
}

func (h *held) forget(o *object) {
	delete(h.byAt, o.at)
	if h.byID[o.id] == o {
		delete(h.byID, o.id)
	}
}

// buffer returns memory for an object.
func (h *held) buffer(size int64) []byte {
	if spare := h.spare; int64(cap(spare)) >= size && size > 4<<10 {
		h.spare = nil
		return spare
	}
	return make([]byte, 0, size)
}

// at returns the object that begins at a byte of the stream, or nil.
func (h *held) at(at int64) *object { return h.used(h.byAt[at]) }

// named returns the object with an id, or nil.
func (h *held) named(id string) *object { return h.used(h.byID[id]) }

func (h *held) used(o *object) *object {
	switch {
	case o == nil:
		return nil
	case o.data != nil:
		h.plain.order.MoveToFront(o.use)
		return o
	}
	data, err := s2.Decode(nil, o.zip)
	if err != nil {
		return nil // it was made here; without it a difference is looked at alone
	}
	h.packed.remove(o)
	o.data, o.zip = data, nil
	h.plain.add(o)
	h.fit()
	return o
}
