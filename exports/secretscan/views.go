package secretscan

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	maxUndone   = 3  // times that escapes are undone
	minEncoded  = 24 // base64 characters: 18 bytes
	firstDecode = 24 // base64 characters that tell whether the rest is worth it
)

// view is one way to read a piece.
type view struct {
	text []byte
	// under is the view whose escapes are undone here, nil for the piece itself.
	under *view
	// parts say where in the text of under this text comes from, by place. Escapes
	// are few beside what is around them, which is copied as a whole.
	parts []part
}

// part is text that comes from one place.
type part struct {
	at   int32 // in the text of the view
	from int32 // in the text of the view under it
	// escaped is a character that an escape stands for: all its bytes come from
	// where the escape begins.
	escaped bool
}

// span returns the bytes of the piece that text[start:end] is made of.
func (v *view) span(start, end int) (from, to int) {
	for ; v.under != nil; v = v.under {
		start, end = v.place(start), v.place(end)
	}
	return start, end
}

// place returns where in the text of under text[i] comes from; i may be its end.
func (v *view) place(i int) int {
	n, found := slices.BinarySearchFunc(v.parts, i, func(p part, i int) int { return cmp.Compare(int(p.at), i) })
	if !found {
		n-- // the first part is at 0
	}
	p := v.parts[n]
	if p.escaped {
		return int(p.from)
	}
	return int(p.from) + i - int(p.at)
}

// undo returns the view with one layer of escapes undone, in the memory of
// into, or false when there is none. What is no escape of JSON stays as it is.
func (v *view) undo(into *view) bool {
	src := v.text
	first := bytes.IndexByte(src, '\\')
	if first < 0 {
		return false
	}
	if cap(into.text) < len(src) { // it never grows
		into.text = make([]byte, 0, len(src))
	}
	text, parts := into.text[:0], into.parts[:0]
	add := func(from int, escaped bool) {
		parts = append(parts, part{int32(len(text)), int32(from), escaped}) //nolint:gosec // a piece is far smaller
	}
	changed, copied := false, 0
	for i := first; i >= 0 && i < len(src); {
		r, n := escape(src[i:])
		if n == 0 {
			i = backslash(src, i+1)
			continue
		}
		if copied < i {
			add(copied, false)
			text = append(text, src[copied:i]...)
		}
		add(i, true)
		text = utf8.AppendRune(text, r)
		changed = true
		copied = i + n
		i = backslash(src, copied)
	}
	add(copied, false) // also where nothing is left, for the end
	*into = view{append(text, src[copied:]...), v, parts}
	return changed
}

// backslash returns where the first one from i on is, or -1.
func backslash(text []byte, i int) int {
	if i < len(text) && text[i] == '\\' { // they come in rows
		return i
	}
	n := bytes.IndexByte(text[i:], '\\')
	if n < 0 {
		return -1
	}
	return i + n
}

// escape reads one escape of JSON at the start of text; its length is 0 when
// there is none.
func escape(text []byte) (r rune, n int) {
	if len(text) < 2 {
		return 0, 0
	}
	switch text[1] {
	case '"', '\\', '/', '\'':
		return rune(text[1]), 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'x':
		if r, ok := hexRune(text[2:], 2); ok {
			return r, 4
		}
	case 'u':
		r, ok := hexRune(text[2:], 4)
		if !ok {
			return 0, 0
		}
		if !utf16.IsSurrogate(r) {
			return r, 6
		}
		if both, ok := pair(r, text[6:]); ok {
			return both, 12
		}
		return utf8.RuneError, 6
	}
	return 0, 0
}

// pair reads the second half of a character that takes two escapes.
func pair(high rune, text []byte) (r rune, ok bool) {
	if !bytes.HasPrefix(text, []byte(`\u`)) {
		return 0, false
	}
	low, ok := hexRune(text[2:], 4)
	r = utf16.DecodeRune(high, low)
	return r, ok && r != utf8.RuneError
}

func hexRune(text []byte, digits int) (r rune, ok bool) {
	if len(text) < digits {
		return 0, false
	}
	for _, c := range text[:digits] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// encoded calls fn with each run of base64 in text that is ASCII when it is
// decoded.
func encoded(text []byte, fn func(start, end int, decoded []byte)) {
	// A run that is long enough and begins at i or later has a byte at each
	// minEncoded-th place, so most of the others need no look.
	for i := 0; i+minEncoded <= len(text); {
		at := i + minEncoded - 1
		start := at + 1
		for start > i && base64Byte[text[start-1]] {
			start--
		}
		if start > i {
			i = start
			if start > at {
				continue
			}
		}
		end := at + 1
		for end < len(text) && base64Byte[text[end]] {
			end++
		}
		i = end
		run := text[start:end]
		if len(run) < minEncoded || !printable(decode(run[:firstDecode])) {
			continue
		}
		if decoded := decode(run); printable(decoded) {
			fn(start, end, decoded)
		}
	}
}

// decode takes either alphabet; nil means that it is no base64.
func decode(run []byte) []byte {
	encoding := base64.RawStdEncoding
	if bytes.ContainsAny(run, "-_") {
		encoding = base64.RawURLEncoding
	}
	if len(run)%4 == 1 {
		run = run[:len(run)-1] // cut somewhere
	}
	out := make([]byte, encoding.DecodedLen(len(run)))
	n, err := encoding.Decode(out, run)
	if err != nil {
		return nil
	}
	return out[:n]
}

func printable(text []byte) bool {
	for _, c := range text {
		if c > '~' || c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			return false
		}
	}
	return len(text) > 0
}

var base64Byte = func() (set [256]bool) { //nolint:gochecknoglobals // a table that nothing writes to
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_") {
		set[c] = true
	}
	return set
}()
