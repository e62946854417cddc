package secretscan

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/openhands/boxkeeper/box"
)

const (
	pieceBytes = 256 << 10
	// filePiece is less: beside files there is the rest of an archive in memory.
	filePiece = 96 << 10
	// behind is how much of what follows a find's beginning is seen for sure;
	// before is what a rule may want to see before it.
	behind = 16 << 10
	before = 1 << 10
)

// Scanner holds the rules. It is safe for concurrent use, and about 10 MB, so
// a process makes one.
type Scanner struct {
	rules  []rule
	global allowlist
	words  *keywords
	users  [][]int // rules by keyword
	ruleID string
}

// New compiles the rules. An error is a fault of this build: nothing may be
// exported then.
func New() (*Scanner, error) {
	rules, global, err := loadRules()
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "read the rules that find secrets: %w", err)
	}
	s := &Scanner{rules: rules, global: global}
	sum := sha256.Sum256([]byte(gitleaksRules + "\n" + fmt.Sprint(ours(), addresses(), version)))
	s.ruleID = hex.EncodeToString(sum[:8])
	var words []string
	index := map[string]int{}
	for n, r := range rules {
		if r.re == nil {
			continue
		}
		for _, k := range r.keywords {
			i, ok := index[k]
			if !ok {
				i = len(words)
				index[k] = i
				words = append(words, k)
				s.users = append(s.users, nil)
			}
			s.users[i] = append(s.users[i], n)
		}
	}
	s.words = newKeywords(words)
	return s, nil
}

// version changes when the same rules would find other things.
const version = 2

// Rules names the rules and how they are applied: two scans with one name find
// the same.
func (s *Scanner) Rules() string { return s.ruleID }

// Key makes fingerprints that tell whether two values are equal, and nothing
// else: without the key a value cannot be guessed and compared.
type Key [sha256.Size]byte

// NewKey derives the key of one workspace from a secret; without one it is
// random, and fingerprints compare within one process only.
func NewKey(secret []byte, workspace string) Key {
	if len(secret) == 0 {
		secret = make([]byte, sha256.Size)
		_, _ = rand.Read(secret) // never fails; documented
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("boxkeeper fingerprints of secrets\x00" + workspace))
	return Key(mac.Sum(nil))
}

func (k Key) fingerprint(value []byte) string {
	mac := hmac.New(sha256.New, k[:])
	mac.Write(value)
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// Found is one find in one entry.
type Found struct {
	Rule string
	// Offset and End are where the value stands, in bytes of the entry, and Line
	// is its line, from 1.
	Offset, End, Line int64
	Fingerprint       string
	// Promised says that the agent-server masks such a value in an export, and
	// did not.
	Promised bool
	// File says that the whole entry is the secret, by its name; it has no place.
	File bool

	from, to int64 // what is masked
	cut      bool
	value    []byte
}

// Stream scans one entry as it is written. It keeps a piece of it, not more,
// and looks at everything by the time that Close returns. Found is called in
// order of the place.
type Stream struct {
	scanner *Scanner
	key     Key
	name    string
	json    bool // an agent-server promises to mask in it
	files   bool // nobody does
	known   *values
	found   func(Found)

	piece  int    // how much is looked at in one go
	buf    []byte // from base on
	base   int64  // place of buf[0] in the entry
	next   int64  // finds that begin before it were told
	lines  int64  // line breaks before counted
	lined  int64
	work   *work
	closed bool

	wide *wide // what a file in UTF-16 says
	told bool  // whether it is in that is known
}

// Stream begins the scan of an entry. Its name decides only which rules are for
// it: no name keeps an entry from being scanned.
//
// With known values, each place where one of them stands is found too, with no
// rule.
func (s *Scanner) Stream(key Key, name string, known *Values, found func(Found)) *Stream {
	t := &Stream{scanner: s, key: key, found: found, work: &work{}, piece: pieceBytes}
	if known != nil && len(known.have) > 0 {
		t.known = &known.list
	}
	t.Reset(name)
	return t
}

// Files begins scans of what people have in a workspace, with [Stream.Reset] for
// each file: the rules about what an agent-server promises to mask in an export are
// not for them.
func (s *Scanner) Files(key Key, found func(Found)) *Stream {
	return &Stream{scanner: s, key: key, found: found, work: &work{}, piece: filePiece, files: true, closed: true}
}

// unnamed is no name that a file can have.
const unnamed = "\x00"

// Reset makes a stream ready for another entry, in the same memory.
func (t *Stream) Reset(name string) {
	t.name, t.json = name, !t.files && isJSON(name)
	t.buf, t.base, t.next, t.lines, t.lined, t.closed = t.buf[:0], 0, 0, 0, 0, false
	t.told = !t.files
	if t.wide != nil {
		t.wide.open = false
	}
}

// Unnamed is [Stream.Reset] for a text whose file nobody knows: rules for files of
// some name are tried too.
func (t *Stream) Unnamed() { t.Reset(unnamed) }

var _ io.WriteCloser = (*Stream)(nil)

// Write never fails before Close.
func (t *Stream) Write(p []byte) (int, error) {
	if t.closed {
		return 0, io.ErrClosedPipe
	}
	n := len(p)
	if t.told && t.wide.on() {
		t.wide.write(p)
	}
	for len(p) > 0 {
		room := t.piece + behind + before - len(t.buf)
		k := min(room, len(p))
		t.buf = append(t.buf, p[:k]...)
		p = p[k:]
		if k == room {
			t.tell(p)
			t.scan(false)
		}
	}
	return n, nil
}

// Close scans the rest. A second call does nothing.
func (t *Stream) Close() error {
	if !t.closed {
		t.tell(nil)
		t.scan(true)
		t.wide.close()
		t.closed = true
	}
	return nil
}

// scan looks at what is buffered, tells what begins before the last part, and
// keeps that part and a little before it.
func (t *Stream) scan(last bool) {
	cut := len(t.buf)
	if !last {
		cut -= behind
	}
	for _, h := range t.scanner.piece(t.work, t.name, t.json, t.buf, t.known) {
		start := t.base + int64(h.start)
		if h.start >= cut || start < t.next {
			continue
		}
		end := t.base + int64(h.end)
		f := Found{
			Offset: start, End: end, Line: t.line(h.start), Fingerprint: t.key.fingerprint(h.value),
			Promised: h.promised, from: t.base + int64(h.from), to: t.base + int64(h.to), cut: h.cut && !last, value: h.value,
		}
		if h.rule >= 0 {
			f.Rule = t.scanner.rules[h.rule].id
		}
		t.found(f)
		t.next = end
	}
	if last {
		return
	}
	t.next = max(t.next, t.base+int64(cut))
	keep := max(0, cut-before)
	t.line(keep)
	t.buf = t.buf[:copy(t.buf, t.buf[keep:])]
	t.base += int64(keep)
}

// line returns the line of buf[i], where i never goes back.
func (t *Stream) line(i int) int64 {
	from := int(t.lined - t.base)
	if from < i {
		t.lines += int64(bytes.Count(t.buf[from:i], []byte{'\n'}))
		t.lined = t.base + int64(i)
	}
	return t.lines + 1
}

// Name looks for secrets in a name and returns it with them masked. It also
// applies the rules that go by the name alone; those find nothing to mask.
func (s *Scanner) Name(key Key, name string, known *Values, found func(Found)) (masked string) {
	return s.Stream(key, "", known, nil).Name(name, found)
}

// Name is [Scanner.Name] in the memory of a stream, which is of no entry then.
func (t *Stream) Name(name string, found func(Found)) (masked string) {
	t.Reset("")
	t.told = true // a name is bytes; what is found comes in its order
	from := 0
	t.found = func(f Found) {
		masked += name[from:f.Offset] + NameMask
		from = int(f.End)
		found(f)
	}
	_, _ = t.Write([]byte(name)) // never fails; documented
	_ = t.Close()
	for _, r := range t.scanner.rules {
		if r.re == nil && r.path.MatchString(name) {
			found(Found{Rule: r.id, File: true, Fingerprint: t.key.fingerprint([]byte(name))})
		}
	}
	return masked + name[from:]
}
