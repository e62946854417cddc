package exports

import (
	"errors"
	"io"
	"iter"
	"regexp"
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports/gitpack"
	"github.com/openhands/boxkeeper/exports/secretscan"
)

const (
	// maxSeen bounds the values of one history that are remembered; what is found
	// beyond them is counted each time.
	maxSeen = 20_000
	// sniffed is how much tells whether something is a pack or a loose object.
	sniffed = 4
)

// packedForm is how git has compressed something.
type packedForm struct {
	kind   packedKind
	format gitpack.Format
	// sure says that nothing else has this name: then what cannot be read is told,
	// and not looked through as the file that it may be.
	sure bool
}

type packedKind int

const (
	packedBundle packedKind = iota
	packedPack
	packedLoose
)

var packedPlace = regexp.MustCompile(`(?:^|/)objects/(?:(pack)/(?:pack-([0-9a-f]{40}|[0-9a-f]{64})\.pack|[^/]+)|[0-9a-f]{2}/(?:([0-9a-f]{38}|[0-9a-f]{62})|[^/]+))$`)

// packedBy says how git has compressed what has such a name in an archive: a bundle,
// or, of a repository without one and of a bare one among the files, a pack or an
// object by itself.
func packedBy(name string) (packedForm, bool) {
	below, ours := strings.CutPrefix(name, box.WorkspaceRepositories)
	if _, file, _ := strings.Cut(below, "/"); ours && file == "bundle" {
		return packedForm{kind: packedBundle, sure: true}, true
	}
	at := packedPlace.FindStringSubmatch(name)
	if at == nil {
		return packedForm{}, false
	}
	form := packedForm{kind: packedLoose, format: gitpack.SHA1}
	sum, long := at[3], 62
	if at[1] != "" {
		form.kind, sum, long = packedPack, at[2], 64
	}
	if len(sum) == long {
		form.format = gitpack.SHA256
	}
	form.sure = ours && sum != ""
	return form, true
}

// begins reports whether the first bytes are those of such a thing.
func (p packedForm) begins(start []byte) bool {
	if len(start) < sniffed {
		return false
	}
	if p.kind == packedPack {
		return string(start[:sniffed]) == "PACK"
	}
	return start[0] == 0x78 && (int(start[0])<<8|int(start[1]))%31 == 0
}

// history looks through what git has compressed, while it is written to the look
// through files, which has one of it. What reads it runs in the writes and at no
// other time.
type history struct {
	files  *fileScan
	reader *gitpack.Reader

	expected *packedForm // until its first bytes tell
	first    []byte
	open     bool
	next     func() (struct{}, bool) // nil when the reading ended
	rest     []byte                  // what was written and not read
	over     bool
	err      error
	bytes    int64

	// of the object that is read
	kind          gitpack.Kind
	at            int64
	offset, lines int64
	pending       []SecretFinding // until its id is known

	scope string // the repository that seen is of
	seen  map[string]struct{}
}

// expect says that the entry that begins may be compressed by git.
func (h *history) expect(name string, form packedForm) {
	scope := name
	if below, ours := strings.CutPrefix(name, box.WorkspaceRepositories); ours {
		scope, _, _ = strings.Cut(below, "/")
	}
	if h.seen == nil || h.scope != scope {
		h.scope, h.seen = scope, map[string]struct{}{}
	}
	if form.sure {
		h.begin(form)
		return
	}
	h.expected, h.first = &form, h.first[:0]
}

// takes is given a part of the content of an entry, and reports whether it was for it.
func (h *history) takes(p []byte) bool {
	if h.expected != nil {
		k := min(len(p), sniffed-len(h.first))
		h.first, p = append(h.first, p[:k]...), p[k:]
		if len(h.first) < sniffed {
			return true
		}
		h.tell()
		if !h.open {
			_, _ = h.files.text(p) // never fails; documented
			return true
		}
	}
	if h.open {
		h.push(p)
	}
	return h.open
}

// tell decides by the first bytes what the entry is.
func (h *history) tell() {
	form := *h.expected
	h.expected = nil
	if !form.begins(h.first) {
		_, _ = h.files.text(h.first) // never fails; documented
		return
	}
	h.begin(form)
	h.push(h.first)
}

func (h *history) begin(form packedForm) {
	if h.reader == nil {
		h.reader = gitpack.NewReader()
	}
	h.open, h.over, h.err, h.bytes = true, false, nil, 0
	h.next, _ = iter.Pull(func(yield func(struct{}) bool) {
		from := written{h, yield}
		switch form.kind {
		case packedBundle:
			h.err = h.reader.Bundle(from, h)
		case packedPack:
			h.err = h.reader.Pack(from, form.format, h)
		case packedLoose:
			h.err = h.reader.Loose(from, form.format, h)
		}
	})
}

// written is what is written, for somebody who reads.
type written struct {
	to    *history
	yield func(struct{}) bool
}

func (w written) Read(p []byte) (int, error) {
	for len(w.to.rest) == 0 {
		if w.to.over || !w.yield(struct{}{}) {
			return 0, io.EOF
		}
	}
	n := copy(p, w.to.rest)
	w.to.rest = w.to.rest[n:]
	return n, nil
}

// push gives p to the reading, which is done with it when push returns.
func (h *history) push(p []byte) {
	h.bytes += int64(len(p))
	h.rest = p
	h.resume()
}

func (h *history) resume() {
	if h.next == nil {
		return
	}
	if _, more := h.next(); more {
		return
	}
	h.next = nil
	if fault, ok := errors.AsType[*gitpack.Fault](h.err); ok {
		h.files.count(SecretFinding{Rule: NotLookedInto, Entry: h.files.name, At: fault.At, Why: fault.Why})
	}
}

// end ends the entry.
func (h *history) end() {
	if h.expected != nil {
		h.tell()
	}
	if !h.open {
		return
	}
	h.over = true
	h.resume()
	if fault, ok := errors.AsType[*gitpack.Fault](h.err); ok {
		h.files.object.Packed += h.bytes - fault.At
	}
	h.open, h.rest = false, nil
}

// Begin is told of an object.
func (h *history) Begin(kind gitpack.Kind, at int64) { h.kind, h.at = kind, at }

// From is told where the next text of it begins.
func (h *history) From(offset, lines int64) {
	_ = h.files.stream.Close() // never fails; documented
	h.files.stream.Unnamed()
	h.offset, h.lines = offset, lines
}

// Write takes a text of it.
func (h *history) Write(p []byte) (int, error) { return h.files.text(p) }

// End is told of its id.
func (h *history) End(id string) {
	_ = h.files.stream.Close() // never fails; documented
	for _, one := range h.pending {
		one.Object = id
		h.files.list(one)
	}
	h.pending = h.pending[:0]
	switch {
	case id != "":
		h.files.object.Objects++
	case h.kind == gitpack.Difference:
		h.files.object.Partial++
	}
}

// found is told of a find in the object. It is counted at once, since what must be
// withheld waits for no id.
func (h *history) found(v secretscan.Found) {
	key := v.Rule + " " + v.Fingerprint
	if _, again := h.seen[key]; again {
		return
	}
	if len(h.seen) < maxSeen {
		h.seen[key] = struct{}{}
	}
	h.files.object.Findings++
	if len(h.pending) == maxListedArchive {
		return
	}
	one := SecretFinding{
		Rule: v.Rule, Entry: h.files.name, Git: string(h.kind), At: h.at, Offset: h.offset + v.Offset, Fingerprint: v.Fingerprint,
	}
	if h.lines >= 0 {
		one.Line = h.lines + v.Line
	}
	h.pending = append(h.pending, one)
}
