package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
)

// mask replaces a credential in what leaves the box; agent-servers use the same.
const mask = "**********"

// secretFields are the keys whose text values never leave the box.
var secretFields = map[string]bool{ //nolint:gochecknoglobals // a constant table
	"api_key": true, "llm_api_key": true,
	"aws_access_key_id": true, "aws_secret_access_key": true, "aws_session_token": true,
}

const (
	// tokenStart begins everything that an agent-server encrypted with its key.
	tokenStart = "gAAAA"
	// valueStart is what upstream masks a whole value for.
	valueStart = "gAAAAA"
	// tokenRest is how much must follow for a token inside other text.
	tokenRest = 60
)

// redactJSON copies JSON documents from r to w with credentials masked; all
// other bytes stay as they are. It needs little memory, whatever the size of a
// value. Input that is no JSON ends it with errNotJSON, before anything of the
// block with the fault is written.
func redactJSON(w io.Writer, r io.Reader) error {
	d := redactor{in: bufio.NewReaderSize(&checkedJSON{r: r}, 64<<10), out: bufio.NewWriterSize(w, 64<<10)}
	return d.copy()
}

type redactor struct {
	in  *bufio.Reader
	out *bufio.Writer
}

func (d *redactor) copy() error {
	var last string // the text before, which is a key when ":" follows
	known, hide := false, false
	for {
		b, err := d.in.ReadByte()
		if errors.Is(err, io.EOF) {
			return d.out.Flush()
		}
		if err != nil {
			return err
		}
		switch b {
		case ' ', '\t', '\r', '\n':
		case ':':
			hide, known = known && secretFields[last], false
		case '"':
			if err := d.out.WriteByte(b); err != nil {
				return err
			}
			if last, known, err = d.text(hide); err != nil {
				return err
			}
			hide = false
			continue
		default:
			hide, known = false, false
		}
		if err := d.out.WriteByte(b); err != nil {
			return err
		}
	}
}

// maxKey is longer than any key of secretFields, every character escaped.
const maxKey = 256

// text copies one string up to and with its closing quote. It returns the
// string when it is short enough to be a key.
func (d *redactor) text(hide bool) (value string, short bool, err error) {
	if next, err := d.in.Peek(1); err == nil && next[0] == '"' {
		hide = false // an empty value shows that there is none
	}
	if hide || d.beginsToken() {
		if _, err := d.out.WriteString(mask + `"`); err != nil {
			return "", false, err
		}
		return "", false, d.skip()
	}
	name := key{}
	for {
		if err := d.plain(&name); err != nil {
			return "", false, err
		}
		b, err := d.in.ReadByte()
		if err != nil {
			return "", false, cutOff(err)
		}
		if b == tokenStart[0] {
			masked, err := d.token()
			if err != nil {
				return "", false, err
			}
			if masked {
				name.long = true
				continue
			}
		}
		if err := d.out.WriteByte(b); err != nil {
			return "", false, err
		}
		switch b {
		case '"':
			value, short = name.value()
			return value, short, nil
		case '\\':
			name.add(b)
			if b, err = d.in.ReadByte(); err != nil {
				return "", false, cutOff(err)
			}
			if err := d.out.WriteByte(b); err != nil {
				return "", false, err
			}
		}
		name.add(b)
	}
}

// plain copies what is buffered up to the next byte that means something.
func (d *redactor) plain(name *key) error {
	ahead, _ := d.in.Peek(d.in.Buffered())
	n := 0
	for n < len(ahead) && ahead[n] != '"' && ahead[n] != '\\' && ahead[n] != tokenStart[0] {
		n++
	}
	for _, b := range ahead[:min(n, maxKey+1)] {
		name.add(b)
	}
	if _, err := d.out.Write(ahead[:n]); err != nil {
		return err
	}
	_, err := d.in.Discard(n)
	return err
}

// key collects a string as it is written, as long as it can be a key.
type key struct {
	raw  []byte
	long bool
}

func (k *key) add(b byte) {
	if k.long = k.long || len(k.raw) == maxKey; !k.long {
		k.raw = append(k.raw, b)
	}
}

func (k *key) value() (value string, ok bool) {
	ok = !k.long && json.Unmarshal([]byte(`"`+string(k.raw)+`"`), &value) == nil
	return value, ok
}

// beginsToken reports whether the string ahead begins like an encrypted value,
// escaped characters included.
func (d *redactor) beginsToken() bool {
	ahead, _ := d.in.Peek(6 * len(valueStart))
	for i := range len(valueStart) {
		switch {
		case len(ahead) > 0 && ahead[0] == valueStart[i]:
			ahead = ahead[1:]
		case len(ahead) >= 6 && ahead[0] == '\\' && ahead[1] == 'u':
			var one string
			if json.Unmarshal([]byte(`"`+string(ahead[:6])+`"`), &one) != nil || one != valueStart[i:i+1] {
				return false
			}
			ahead = ahead[6:]
		default:
			return false
		}
	}
	return true
}

// token is called after the first character of tokenStart was read. It masks a
// token inside other text; otherwise nothing more was read.
func (d *redactor) token() (bool, error) {
	ahead, _ := d.in.Peek(len(tokenStart) - 1 + tokenRest)
	if len(ahead) < len(tokenStart)-1+tokenRest || string(ahead[:len(tokenStart)-1]) != tokenStart[1:] {
		return false, nil
	}
	for _, b := range ahead {
		if !tokenByte(b) {
			return false, nil
		}
	}
	for {
		b, err := d.in.ReadByte()
		if err != nil {
			return false, cutOff(err)
		}
		if !tokenByte(b) && b != '=' {
			if err := d.in.UnreadByte(); err != nil {
				return false, err
			}
			_, err := d.out.WriteString(mask)
			return true, err
		}
	}
}

func tokenByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_'
}

// skip reads to the end of a string.
func (d *redactor) skip() error {
	for {
		b, err := d.in.ReadByte()
		if err != nil {
			return cutOff(err)
		}
		switch b {
		case '"':
			return nil
		case '\\':
			if _, err := d.in.Discard(1); err != nil {
				return cutOff(err)
			}
		}
	}
}

func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

var (
	looseField = regexp.MustCompile(`(?i)((?:llm_)?api(?:_|\\u005f)key|aws(?:_|\\u005f)(?:access|secret|session)[a-z_]*(?:\\u005f[a-z_]*)*)(\\*["'])?(\s*[:=]\s*)(?:(\\*["'])[^"'\r\n]*|[^\s"',}]+)`)
	looseToken = regexp.MustCompile(`(?:gAAAA[A-Za-z0-9_-]{20}|\*{10})[A-Za-z0-9_-]*={0,2}`)
)

const (
	window  = 1 << 20  // how much text is scanned at once
	overlap = 64 << 10 // and how much of it again with the next, for what lies across
)

// redactText copies text that is no valid JSON from r to w, masking whatever
// looks like a credential: rather too much than too little. What was masked up
// to the end of a window is masked further with the next one.
func redactText(w io.Writer, r io.Reader) error {
	var held []byte
	chunk := make([]byte, window)
	for {
		n, err := io.ReadFull(r, chunk)
		held = append(held, chunk[:n]...)
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return err
		}
		// The patterns are slow; most windows hold nothing for them.
		if lower := bytes.ToLower(held); bytes.Contains(lower, []byte("api")) || bytes.Contains(lower, []byte("aws")) {
			held = looseField.ReplaceAll(held, []byte(`${1}${2}${3}${4}`+mask))
		}
		if bytes.Contains(held, []byte(tokenStart)) || bytes.Contains(held, []byte(mask)) {
			held = looseToken.ReplaceAll(held, []byte(mask))
		}
		ready := held
		if !last {
			ready = held[:max(0, len(held)-overlap)]
		}
		if _, err := w.Write(ready); err != nil {
			return err
		}
		if last {
			return nil
		}
		held = append([]byte(nil), held[len(ready):]...)
	}
}
