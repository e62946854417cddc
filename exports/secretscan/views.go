package secretscan

import (
	"bytes"
	"encoding/base64"
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
	// from[i] is where in the piece text[i] comes from; it has one more entry for
	// the end. Nil means that text is the piece.
	from []int32
}

// span returns the bytes of the piece that text[start:end] is made of.
func (v *view) span(start, end int) (from, to int) {
	if v.from == nil {
		return start, end
	}
	return int(v.from[start]), int(v.from[end])
}

// undo returns the view with one layer of escapes undone, in the memory of
// into, or false when there is none. What is no escape of JSON stays as it is.
func (v *view) undo(into *view) bool {
	first := bytes.IndexByte(v.text, '\\')
	if first < 0 {
		return false
	}
	if cap(into.text) < len(v.text) { // it never grows
		into.text, into.from = make([]byte, 0, len(v.text)), make([]int32, 0, len(v.text)+1)
	}
	text, from := into.text[:0], into.from[:0]
	changed := false
	src := v.text
	place := func(i int) int32 {
		if v.from == nil {
			return int32(i) //nolint:gosec // a piece is far smaller
		}
		return v.from[i]
	}
	for i := 0; i < len(src); {
		c := src[i]
		if c != '\\' {
			text, from = append(text, c), append(from, place(i))
			i++
			continue
		}
		r, n := escape(src[i:])
		if n == 0 {
			text, from = append(text, c), append(from, place(i))
			i++
			continue
		}
		changed = true
		was := len(text)
		text = utf8.AppendRune(text, r)
		for range len(text) - was {
			from = append(from, place(i))
		}
		i += n
	}
	into.text, into.from = text, append(from, place(len(src)))
	return changed
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
	for i := 0; i < len(text); {
		if !base64Byte[text[i]] {
			i++
			continue
		}
		start := i
		for i < len(text) && base64Byte[text[i]] {
			i++
		}
		run := text[start:i]
		if len(run) < minEncoded || !printable(decode(run[:firstDecode])) {
			continue
		}
		if decoded := decode(run); printable(decoded) {
			fn(start, i, decoded)
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
