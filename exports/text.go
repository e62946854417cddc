package exports

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// maxText bounds what is shown of one event; the export holds the rest.
	maxText = 64 << 10
	// maxParsed is the largest event that is taken apart: a tree of small values
	// takes forty times its text.
	maxParsed = 512 << 10
	maxName   = 200
)

// WriteText writes a conversation for reading; see [Conversation.WriteText].
func (s *Store) WriteText(ctx context.Context, w io.Writer, workspace, conversation string) error {
	c, err := s.OpenConversation(ctx, workspace, conversation)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // nothing is written
	return c.WriteText(ctx, w, 0, 0)
}

// WriteText writes events for reading, one paragraph each, of any kind; from
// and count are those of [Conversation.Events]. Control characters, also those
// that reorder text, are escaped, so that a hostile history cannot drive a
// terminal. After an error of the store, what came before it was written.
func (c *Conversation) WriteText(ctx context.Context, w io.Writer, from, count int) error {
	out := bufio.NewWriterSize(w, 32<<10)
	fmt.Fprintf(out, "conversation %s, %d events, exported %s\n", c.ID, c.History.Events, c.At.Format(time.RFC3339))
	var failed error
	for e, err := range c.Events(ctx, from, count) {
		if failed = err; err != nil || writeEvent(out, e) != nil {
			break
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write conversation %s: %w", c.ID, err)
	}
	return failed
}

func writeEvent(w io.Writer, e Event) error {
	var head strings.Builder
	fmt.Fprintf(&head, "\n#%d", e.Index)
	if !e.Timestamp.IsZero() {
		head.WriteString(" " + e.Timestamp.Format(time.RFC3339))
	}
	for _, part := range []string{e.Source, e.Kind} {
		if part != "" {
			head.WriteString(" " + oneLine(part, 80))
		}
	}
	body := ""
	switch e.Raw {
	case nil:
		body = fmt.Sprintf("(an event of %d bytes, not shown; it is in the zip)", e.SizeBytes)
	default:
		body = eventText(e.Raw)
	}
	_, err := io.WriteString(w, head.String()+"\n"+indent(body))
	return err
}

// eventText finds the words in an event; what has none is shown as JSON.
func eventText(raw []byte) string {
	if len(raw) > maxParsed {
		return string(raw[:maxText]) + fmt.Sprintf("… (%d bytes in all)", len(raw))
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return "(not JSON) " + string(raw[:min(len(raw), maxText)])
	}
	fields, ok := v.(map[string]any)
	if !ok {
		return string(raw)
	}
	for _, name := range []string{"id", "kind", "source", "timestamp"} {
		delete(fields, name)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		words(&b, name, fields[name])
		if b.Len() > maxText {
			break
		}
	}
	return b.String()
}

// words writes "name: text" lines for what is worth reading in v.
func words(b *strings.Builder, name string, v any) {
	if b.Len() > maxText {
		return
	}
	switch v := v.(type) {
	case nil:
	case string:
		if v != "" {
			line(b, name, v)
		}
	case map[string]any:
		// A block of text is its text.
		if text, ok := v["text"].(string); ok && (len(v) == 1 || v["type"] == "text") {
			words(b, name, text)
			return
		}
		for _, inner := range slices.Sorted(maps.Keys(v)) {
			words(b, joined(name, inner), v[inner])
		}
	case []any:
		for _, e := range v {
			words(b, name, e)
		}
	default:
		line(b, name, fmt.Sprint(v))
	}
}

func line(b *strings.Builder, name, text string) {
	if len(text) > maxText {
		text = text[:maxText] + fmt.Sprintf("… (%d bytes in all)", len(text))
	}
	b.WriteString(cut(name) + ": " + text + "\n")
}

// joined names an inner value; the length is bounded at any depth.
func joined(name, inner string) string {
	if len(name) >= maxName {
		return name
	}
	return name + "." + cut(inner)
}

func cut(name string) string {
	if len(name) > maxName {
		return name[:maxName] + "…"
	}
	return name
}

// indent escapes a text and moves every line of it in, so that no content looks
// like the head of another event.
func indent(text string) string {
	if len(text) > 2*maxText {
		text = text[:2*maxText] + "…"
	}
	var b strings.Builder
	for part := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		b.WriteString("    ")
		escape(&b, strings.TrimSuffix(part, "\r"))
		b.WriteByte('\n')
	}
	return b.String()
}

func oneLine(text string, most int) string {
	if len(text) > most {
		text = text[:most] + "…"
	}
	var b strings.Builder
	escape(&b, strings.ReplaceAll(text, "\n", " "))
	return b.String()
}

// escape writes a line with nothing in it that a terminal acts on: controls
// (C0, DEL, C1), format characters (which turn the direction of text or hide
// it), line separators, and bytes that are not UTF-8.
func escape(b *strings.Builder, text string) {
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(b, `\x%02x`, text[0])
		case r == '\t':
			b.WriteByte('\t')
		case r < 0x100 && unicode.IsControl(r):
			fmt.Fprintf(b, `\x%02x`, r)
		case unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Cs):
			fmt.Fprintf(b, `\u{%x}`, r)
		default:
			b.WriteRune(r)
		}
		text = text[n:]
	}
}
