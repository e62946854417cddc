package secretscan

const (
	wideStart = 1 << 10 // what tells UTF-16 where no mark does
	wideLeast = 16
	wideBytes = 4 << 10
)

// wide looks through a file in UTF-16, beside the look through its bytes. Each
// unit becomes one byte, so that a place in one is twice that in the other: what is
// no ASCII becomes some byte that is none, and nothing that a rule asks for.
type wide struct {
	stream *Stream
	open   bool
	high   int  // which byte of a unit is the higher one
	odd    bool // half of a unit waits
	half   byte
	text   []byte
}

// on reports whether the entry is in UTF-16.
func (w *wide) on() bool { return w != nil && w.open }

// tell finds out whether an entry is in UTF-16, after its beginning was buffered.
// The rest of what is being written comes after that.
func (t *Stream) tell(rest []byte) {
	if t.told {
		return
	}
	t.told = true
	high, ok := wideOrder(t.buf)
	if !ok {
		return
	}
	if t.wide == nil {
		t.wide = &wide{stream: &Stream{
			scanner: t.scanner, key: t.key, work: &work{}, piece: t.piece, told: true,
			found: func(f Found) {
				f.Offset, f.End, f.from, f.to = 2*f.Offset, 2*f.End, 2*f.from, 2*f.to
				t.found(f)
			},
		}}
	}
	t.wide.open, t.wide.high, t.wide.odd, t.wide.text = true, high, false, t.wide.text[:0]
	t.wide.stream.Reset("")
	t.wide.stream.name = t.name
	t.wide.write(t.buf)
	t.wide.write(rest)
}

// wideOrder reports whether a text that begins so is in UTF-16, and which byte of a
// unit is the higher one.
func wideOrder(start []byte) (high int, ok bool) {
	switch {
	case len(start) < 2:
		return 0, false
	case start[0] == 0xff && start[1] == 0xfe:
		return 1, true
	case start[0] == 0xfe && start[1] == 0xff:
		return 0, true
	}
	start = start[:min(len(start), wideStart)]
	if len(start) < wideLeast {
		return 0, false
	}
	var zero [2]int
	for i, c := range start {
		if c == 0 {
			zero[i%2]++
		}
	}
	of := [2]int{(len(start) + 1) / 2, len(start) / 2}
	for high := range 2 {
		if zero[high] == of[high] && zero[1-high] < of[1-high] {
			return high, true
		}
	}
	return 0, false
}

func (w *wide) write(p []byte) {
	if cap(w.text) == 0 {
		w.text = make([]byte, 0, wideBytes)
	}
	for _, c := range p {
		if w.odd = !w.odd; w.odd {
			w.half = c
			continue
		}
		low, high := w.half, c
		if w.high == 0 {
			low, high = c, w.half
		}
		if high != 0 {
			low |= 0x80
		}
		if w.text = append(w.text, low); len(w.text) == wideBytes {
			w.flush()
		}
	}
}

func (w *wide) flush() {
	_, _ = w.stream.Write(w.text) // never fails; documented
	w.text = w.text[:0]
}

// close looks at the rest.
func (w *wide) close() {
	if !w.on() {
		return
	}
	w.flush()
	_ = w.stream.Close() // never fails; documented
	w.open = false
}
