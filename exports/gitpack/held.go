package gitpack

import "container/list"

// object is one that was read, whole or made of differences.
type object struct {
	at   int64
	id   string // raw
	kind Kind
	data []byte
	use  *list.Element
}

// held holds the objects that were used last.
type held struct {
	byAt  map[int64]*object
	byID  map[string]*object
	order *list.List // the one used last is the first
	bytes int
}

// overhead is what an object takes beside its content, about.
const overhead = 256

func (h *held) clear() {
	h.byAt, h.byID, h.order, h.bytes = map[int64]*object{}, map[string]*object{}, list.New(), 0
}

func (h *held) add(o *object) {
	for h.bytes += len(o.data) + overhead; h.bytes > maxHeld; {
		last := h.order.Remove(h.order.Back()).(*object) //nolint:forcetypeassert,errcheck // nothing else is in it
		h.bytes -= len(last.data) + overhead
		delete(h.byAt, last.at)
		if h.byID[last.id] == last {
			delete(h.byID, last.id)
		}
	}
	o.use = h.order.PushFront(o)
	h.byAt[o.at], h.byID[o.id] = o, o
}

// at returns the object that begins at a byte of the stream, or nil.
func (h *held) at(at int64) *object { return h.used(h.byAt[at]) }

// named returns the object with an id, or nil.
func (h *held) named(id string) *object { return h.used(h.byID[id]) }

func (h *held) used(o *object) *object {
	if o != nil {
		h.order.MoveToFront(o.use)
	}
	return o
}
