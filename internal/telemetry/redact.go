package telemetry

import (
	"bytes"
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"github.com/openhands/boxkeeper/box"
)

const mask = "[redacted]"

// minMasked is the length below which a value is too common a text to mask.
const minMasked = 6

// Redactor masks the values of secrets. The zero value masks nothing yet. It is
// safe for concurrent use.
type Redactor struct {
	mu    sync.Mutex
	forms atomic.Pointer[[][]byte] // longest first, each once
}

// Add registers values; from now on they are masked. Values under 6 bytes are
// left out.
func (r *Redactor) Add(secrets ...box.Secret) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var forms [][]byte
	if had := r.forms.Load(); had != nil {
		forms = slices.Clone(*had)
	}
	for _, s := range secrets {
		for _, form := range writtenAs(s.Reveal()) {
			if len(form) >= minMasked && !slices.ContainsFunc(forms, func(have []byte) bool { return string(have) == form }) {
				forms = append(forms, []byte(form))
			}
		}
	}
	slices.SortStableFunc(forms, func(a, b []byte) int { return len(b) - len(a) })
	r.forms.Store(&forms)
}

// writtenAs returns how encoders write a value: as it is, in JSON with and
// without HTML escapes, quoted by Go, and in URLs.
func writtenAs(secret string) []string {
	forms := []string{secret, url.QueryEscape(secret), url.PathEscape(secret)}
	if quoted, err := json.Marshal(secret); err == nil {
		forms = append(forms, strings.Trim(string(quoted), `"`))
	}
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	if enc.Encode(secret) == nil {
		forms = append(forms, strings.Trim(strings.TrimSpace(plain.String()), `"`))
	}
	forms = append(forms, strings.Trim(strconv.Quote(secret), `"`))
	return forms
}

// Redact returns text with every registered value masked.
func (r *Redactor) Redact(text string) string { return string(r.bytes([]byte(text))) }

func (r *Redactor) bytes(line []byte) []byte {
	forms := r.forms.Load()
	if forms == nil {
		return line
	}
	for _, form := range *forms {
		if bytes.Contains(line, form) {
			line = bytes.ReplaceAll(line, form, []byte(mask))
		}
	}
	return line
}

// redactingWriter masks whole lines: a logger writes each with one call.
type redactingWriter struct {
	to       io.Writer
	redactor *Redactor
}

func (w redactingWriter) Write(line []byte) (int, error) {
	if _, err := w.to.Write(w.redactor.bytes(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// escape makes text one line that cannot drive a terminal.
func escape(text string) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if hidden(r) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
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
