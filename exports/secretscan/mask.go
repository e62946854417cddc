package secretscan

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
)

const (
	// Mask stands where a value stood: what agent-servers write.
	Mask = "**********"
	// NameMask stands in a name, where a star would be in the way.
	NameMask = "masked"
)

// Span is a part of an entry, in bytes, that is to be masked.
type Span struct {
	Start, End int64
	// Open says that the value may go on to the end of its JSON string.
	Open bool
}

// SpanOf returns what is masked for a find: its value, and what else is taken for
// one where it stands.
func SpanOf(f Found) Span {
	return Span{f.from, f.to, f.cut}
}

// join sorts spans and makes one of those that overlap.
func join(spans []Span) []Span {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b Span) int { return cmp.Compare(a.Start, b.Start) })
	out := spans[:0]
	for _, s := range spans {
		if n := len(out) - 1; n >= 0 && s.Start < out[n].End {
			out[n].End, out[n].Open = max(out[n].End, s.End), out[n].Open || s.Open
			continue
		}
		out = append(out, s)
	}
	return out
}

// MaskEntry copies an entry and masks the spans. In a file
// that is JSON by its name a string stays a string and a number a number, so that
// what was valid stays valid; nothing of a span is copied but the signs and
// blanks between values.
func MaskEntry(ctx context.Context, dst io.Writer, src io.Reader, name string, spans []Span) error {
	m := masker{out: bufio.NewWriterSize(dst, 32<<10), in: bufio.NewReaderSize(src, 64<<10), spans: join(spans)}
	var err error
	if isJSON(name) {
		err = m.json(ctx)
	} else {
		err = m.text(ctx)
	}
	if err != nil {
		return err
	}
	return m.out.Flush()
}

type masker struct {
	in    *bufio.Reader
	out   *bufio.Writer
	at    int64
	spans []Span
	open  bool // an open span ended in the string that is being read
}

// inside reports whether the next n bytes are in a span, if only in part.
func (m *masker) inside(n int) bool {
	for len(m.spans) > 0 && m.spans[0].End <= m.at {
		m.open = m.open || m.spans[0].Open
		m.spans = m.spans[1:]
	}
	return len(m.spans) > 0 && m.spans[0].Start < m.at+int64(n)
}

func (m *masker) text(ctx context.Context) error {
	masked := int64(-1) // the span that the mask was written for begins here
	for n := 0; ; n++ {
		if n%(64<<10) == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		c, err := m.in.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !m.inside(1) {
			err = m.out.WriteByte(c)
		} else if masked != m.spans[0].Start {
			masked = m.spans[0].Start
			_, err = m.out.WriteString(Mask)
		}
		m.at++
		if err != nil {
			return err
		}
	}
}

// json reads units: a byte, or an escape in a string.
func (m *masker) json(ctx context.Context) error {
	inString, masked, begins := false, false, true // masked: for what is being left out, the mask is written
	for n := 0; ; n++ {
		if n%(64<<10) == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		c, err := m.in.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		unit := []byte{c}
		if inString && c == '\\' {
			if unit, err = m.escape(unit); err != nil {
				return err
			}
		}
		hide := m.inside(len(unit)) || m.open && inString
		sign := !inString && bytes.IndexByte([]byte("{}[],: \t\r\n"), c) >= 0
		switch {
		case c == '"':
			inString, hide, m.open = !inString, false, false
		case sign:
			hide = false
		case !inString && begins:
			if unit, err = m.word(unit); err != nil {
				return err
			}
			hide = m.inside(len(unit)) && !slices.Contains([]string{"true", "false", "null"}, string(unit))
		}
		begins = sign || c == '"'
		if err := m.unit(unit, hide, masked, inString); err != nil {
			return err
		}
		masked = hide
	}
}

// unit writes a unit, or the mask where what is hidden begins.
func (m *masker) unit(unit []byte, hide, masked, inString bool) (err error) {
	switch {
	case !hide:
		_, err = m.out.Write(unit)
	case masked:
	case inString:
		_, err = m.out.WriteString(Mask)
	default:
		err = m.out.WriteByte('1') // a digit is right wherever a number has one
	}
	m.at += int64(len(unit))
	return err
}

// escape reads the rest of an escape, which is masked or copied as a whole.
func (m *masker) escape(unit []byte) ([]byte, error) {
	more := 1
	if next, err := m.in.Peek(1); err == nil && next[0] == 'u' {
		more = 5
	}
	rest, err := m.in.Peek(more)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if more == 5 && (len(rest) < 5 || !allHex(rest[1:])) {
		rest = rest[:1] // no escape of JSON; nothing of it may hide a quote
	}
	unit = append(unit, rest...)
	_, err = m.in.Discard(len(rest))
	return unit, err
}

func allHex(text []byte) bool {
	_, ok := hexRune(text, len(text))
	return ok
}

// word reads the rest of a number or a literal, which is masked or copied as a
// whole: a part of a number can make another one wrong, and a literal is no
// secret.
func (m *masker) word(unit []byte) ([]byte, error) {
	for len(unit) < 4<<10 {
		next, err := m.in.Peek(1)
		if errors.Is(err, io.EOF) {
			return unit, nil
		}
		if err != nil {
			return nil, err
		}
		if c := next[0]; (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '+' && c != '-' && c != '.' {
			return unit, nil
		}
		unit = append(unit, next[0])
		if _, err := m.in.Discard(1); err != nil {
			return nil, err
		}
	}
	return unit, nil
}
