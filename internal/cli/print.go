package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
)

// format is how a command answers.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
)

func (f *format) String() string { return string(*f) }
func (*format) Type() string     { return "text|json" }

func (f *format) Set(text string) error {
	switch format(text) {
	case formatText, formatJSON:
		*f = format(text)
		return nil
	}
	return box.Invalidf("output", "%q is not a form of output; use text or json", printable(text))
}

// page collects what a command prints, so that it is written once and whole.
type page struct{ strings.Builder }

func (p *page) linef(form string, values ...any) {
	fmt.Fprintf(p, form, values...)
	p.WriteByte('\n')
}

// table writes rows with aligned columns; cells are escaped.
func (p *page) table(rows [][]string) {
	w := tabwriter.NewWriter(p, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				_, _ = io.WriteString(w, "\t")
			}
			_, _ = io.WriteString(w, printable(cell))
		}
		_, _ = io.WriteString(w, "\n")
	}
	_ = w.Flush() // into memory
}

// facts writes names and values; empty values are left out.
func (p *page) facts(pairs ...[2]string) {
	var rows [][]string
	for _, pair := range pairs {
		if pair[1] != "" {
			rows = append(rows, []string{pair[0] + ":", pair[1]})
		}
	}
	p.table(rows)
}

// show answers: value as JSON, or what text writes.
func (a *Shared) show(c *cobra.Command, value any, text func(p *page)) error {
	if a.output == formatJSON {
		return writeJSON(c.OutOrStdout(), value)
	}
	var p page
	text(&p)
	return write(c.OutOrStdout(), p.String())
}

// note says something beside the answer, on standard error.
func note(c *cobra.Command, form string, values ...any) {
	_, _ = fmt.Fprintln(c.ErrOrStderr(), printable(fmt.Sprintf(form, values...))) // a note that nobody reads is no failure
}

func write(w io.Writer, text string) error {
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// writeJSON writes one value and a newline. What could drive a terminal is
// escaped, which JSON allows for every character.
func writeJSON(w io.Writer, value any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(value); err != nil {
		return box.Errorf(box.ClassInternal, "encode the answer: %w", err)
	}
	return write(w, escapeJSON(buf.String()))
}

// writeJSONLine writes one value on one line.
func writeJSONLine(w io.Writer, value any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return box.Errorf(box.ClassInternal, "encode the answer: %w", err)
	}
	return write(w, escapeJSON(buf.String()))
}

// escapeJSON escapes, inside of an encoded value, the characters that JSON lets
// through raw and terminals act on. Outside of strings there are none of them
// but the newlines of the layout.
func escapeJSON(text string) string {
	return mapHidden(text, func(r rune) string {
		if r == '\n' {
			return "\n"
		}
		if r > 0xffff {
			hi, lo := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			return fmt.Sprintf(`\u%04x\u%04x`, hi, lo)
		}
		return fmt.Sprintf(`\u%04x`, r)
	})
}

// printable makes text one line that cannot drive a terminal.
func printable(text string) string {
	return mapHidden(text, func(r rune) string { return strings.Trim(strconv.QuoteRuneToASCII(r), "'") })
}

// multiline is printable, with newlines let through.
func multiline(text string) string {
	return mapHidden(text, func(r rune) string {
		if r == '\n' {
			return "\n"
		}
		return strings.Trim(strconv.QuoteRuneToASCII(r), "'")
	})
}

func mapHidden(text string, as func(rune) string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if hidden(r) {
			b.WriteString(as(r))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// hidden reports characters that control or reorder, instead of being shown.
func hidden(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// moment writes a time with its distance from now.
func (a *Shared) moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	far := t.Sub(a.env.Now())
	switch text := box.Duration(far.Abs().Round(time.Second)).String(); {
	case far.Abs() < time.Second:
		return stamp(t) + " (now)"
	case far < 0:
		return stamp(t) + " (" + text + " ago)"
	default:
		return stamp(t) + " (in " + text + ")"
	}
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// size writes bytes for people.
func size(n int64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	value, units := float64(n), "KMGTPE"
	i := -1
	for value >= step && i < len(units)-1 {
		value /= step
		i++
	}
	return fmt.Sprintf("%.1f %ciB", value, units[i])
}

// age writes how long ago something was; unset is nothing.
func age(d box.Duration) string {
	switch {
	case d == 0:
		return ""
	case d.IsNever():
		return "never"
	}
	return d.String() + " ago"
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func plural[N int | int64](n N, word string) string {
	if n == 1 {
		return "1 " + word
	}
	if stem, ok := strings.CutSuffix(word, "y"); ok {
		return strconv.FormatInt(int64(n), 10) + " " + stem + "ies"
	}
	return strconv.FormatInt(int64(n), 10) + " " + word + "s"
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func stringOf(n int64) string { return strconv.FormatInt(n, 10) }

// archiveText says what an export holds of the workspace; empty when it is of a
// version that held none.
func archiveText(a box.ArchiveReceipt) string {
	if a.None != "" {
		return "not exported: " + printable(a.None)
	}
	if !a.Held() {
		return ""
	}
	text := plural(a.Files, "file") + ", " + plural(a.Repositories, "repository") + ", " + size(a.Bytes)
	if a.Missing > 0 {
		text += "; " + plural(a.Missing, "thing") + " could not be read"
	}
	if a.Changed > 0 {
		text += "; " + plural(a.Changed, "file") + " changed meanwhile"
	}
	return text
}
