package server

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	ondisk "github.com/openhands/boxkeeper/agentserver/storage"
)

const (
	trajectoryPath = "/api/file/download-trajectory/"
	// wholeJSON is how much of a file is checked and redacted in one read. Larger
	// ones are read twice.
	wholeJSON = 1 << 20
)

// trajectoryOf returns the name of the conversation whose download a path asks
// for: of the whole box's path, or of a conversation's own.
func trajectoryOf(place string) (name string, ok bool) {
	if name, ok = strings.CutPrefix(place, trajectoryPath); ok {
		return name, name != "" && !strings.Contains(name, "/")
	}
	rest, ok := strings.CutPrefix(place, underConversations)
	if !ok {
		return "", false
	}
	scope, rest, _ := strings.Cut(rest, "/")
	name, ok = strings.CutPrefix("/api/"+rest, trajectoryPath)
	if !ok {
		return "", false
	}
	// What is not the scope's own is the agent-server's to refuse.
	of, valid := shortID(scope)
	id, same := shortID(name)
	return name, valid && same && of == id
}

// getTrajectory streams the history of a conversation as a zip, in turn with
// other downloads of it. It needs no room on the disk and no agent-server. When
// packing fails the connection is broken off, so that a part never passes for
// the whole.
func (s *Server) getTrajectory(w http.ResponseWriter, r *http.Request, id string) {
	leave, err := s.turns.lock(r.Context(), id)
	if err != nil {
		return // the caller has gone
	}
	defer leave()
	dir, err := s.history.open(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		refuse(w, http.StatusNotFound, "Conversation not found")
		return
	case err != nil:
		refuse(w, http.StatusInternalServerError, "the conversation cannot be read")
		return
	}
	defer dir.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="`+id+`.zip"`)
	control := http.NewResponseController(w)
	if err := pack(r.Context(), dir, id, &patientWriter{w, control, s.patience}); err != nil {
		s.log.Warn("pack a trajectory", "conversation", id, "error", err)
		panic(http.ErrAbortHandler)
	}
	_ = control.SetWriteDeadline(time.Time{}) // for what comes next on the connection
}

// patientWriter gives every write its time.
type patientWriter struct {
	w        io.Writer
	control  *http.ResponseController
	patience time.Duration
}

func (p *patientWriter) Write(b []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.patience)) // a writer without one waits
	return p.w.Write(b)
}

// packer writes one history as a zip.
type packer struct {
	ctx     context.Context //nolint:containedctx // one download's life
	archive *zipStream
	whole   bytes.Buffer
}

// pack writes the history of a conversation to w, entries rooted at its id. The
// same history gives the same bytes. What is no regular file is left out, and
// so are locks and leases, which say nothing to a reader; an event that cannot
// be read is an error. Of a history that grows meanwhile it holds the events up
// to some moment, without a gap.
func pack(ctx context.Context, dir *os.Root, id string, w io.Writer) error {
	p := packer{ctx: ctx, archive: newZipStream(w)}
	if err := p.dir(dir, id, 0); err != nil {
		return err
	}
	return p.archive.close()
}

func (p *packer) dir(dir *os.Root, name string, depth int) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if depth > maxDepth {
		return fmt.Errorf("%s is nested too deep", name)
	}
	entries, err := listDir(dir, ".")
	if err == nil && depth == 1 && path.Base(name) == "events" {
		entries, err = settled(dir, entries)
	}
	if err != nil {
		return err
	}
	if _, err := p.archive.create(header(name+"/", fs.ModeDir|0o700, zip.Store)); err != nil {
		return err
	}
	for _, entry := range plainNames(entries) {
		inner := name + "/" + entry.plain
		switch {
		case leftOut(entry.name), depth == 0 && entry.name == "acp":
		case entry.kind.IsDir():
			if err := p.below(dir, entry.name, inner, depth+1); err != nil {
				return err
			}
		case entry.kind.IsRegular():
			if err := p.file(dir, entry.name, inner); err != nil {
				return fmt.Errorf("pack %s: %w", inner, err)
			}
		}
	}
	return nil
}

func (p *packer) below(dir *os.Root, entry, inner string, depth int) error {
	sub, err := openDir(dir, entry)
	if errors.Is(err, fs.ErrNotExist) && entry != "events" {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	return p.dir(sub, inner, depth)
}

// settled lists events again and returns those that are no newer than the
// newest of the first list. A list that is made while events are written may
// lack one and hold a later one; by the second time those are all there.
func settled(dir *os.Root, first []named) ([]named, error) {
	newest := -1
	for _, entry := range first {
		newest = max(newest, indexOf(entry.name))
	}
	again, err := listDir(dir, ".")
	return slices.DeleteFunc(again, func(entry named) bool { return indexOf(entry.name) > newest }), err
}

// plainEntry is an entry with its name in a zip.
type plainEntry struct {
	named
	plain string
}

// plainNames gives the entries of a directory their names in a zip, and sorts
// by them. What is no text, drives a terminal or is a separator elsewhere is
// written as %XX: a reader refuses such a name, and then one odd file would keep
// a whole history, and its box, for ever.
func plainNames(entries []named) []plainEntry {
	out := make([]plainEntry, len(entries))
	var taken map[string]bool // there are many names, and seldom an odd one
	for i, entry := range entries {
		out[i] = plainEntry{entry, plainName(entry.name)}
		if out[i].plain != entry.name && taken == nil {
			taken = map[string]bool{}
		}
	}
	if taken != nil {
		for _, entry := range entries {
			taken[entry.name] = true
		}
	}
	for i := range out {
		one := &out[i]
		if one.plain == one.name {
			continue
		}
		for taken[one.plain] {
			one.plain += "~"
		}
		taken[one.plain] = true
	}
	slices.SortFunc(out, func(a, b plainEntry) int { return strings.Compare(a.plain, b.plain) })
	return out
}

// plainName escapes a name that is odd, and returns any other as it is.
func plainName(name string) string {
	odd := func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }
	if utf8.ValidString(name) && !strings.ContainsFunc(name, odd) {
		return name
	}
	var b strings.Builder
	for rest := name; rest != ""; {
		r, n := utf8.DecodeRuneInString(rest)
		if odd(r) || r == '%' || r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&b, "%%%02X", rest[0])
		} else {
			b.WriteString(rest[:n])
		}
		rest = rest[n:]
	}
	return b.String()
}

// leftOut says which names are not part of a history: locks, leases, counts
// that are kept beside it, and files that are still being written.
func leftOut(name string) bool {
	return name == "owner_lease.json" || strings.HasSuffix(name, ".lock") || strings.HasSuffix(name, ".tmp") ||
		strings.HasPrefix(name, ".eventlog-len-")
}

// file packs one file. One that is replaced meanwhile is packed as it was or as
// it is, never in between.
func (p *packer) file(dir *os.Root, entry, inner string) error {
	file, err := ondisk.OpenFile(dir, entry)
	if errors.Is(err, fs.ErrNotExist) && !eventForm.MatchString(entry) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	to, err := p.archive.create(header(inner, 0o600, zip.Deflate))
	if err != nil {
		return err
	}
	source := &reader{ctx: p.ctx, file: file}
	if suffix := strings.ToLower(path.Ext(entry)); suffix != ".json" && suffix != ".jsonl" {
		_, err = io.Copy(to, source)
		return err
	}
	p.whole.Reset()
	if _, err := io.CopyN(&p.whole, source, wholeJSON); errors.Is(err, io.EOF) {
		// What was checked is what is packed.
		var check jsonChecker
		if check.write(p.whole.Bytes()) && check.complete() {
			return redactJSON(to, &p.whole)
		}
		return redactText(to, &p.whole)
	} else if err != nil {
		return err
	}
	size, checked := io.Copy(io.Discard, &checkedJSON{r: io.MultiReader(&p.whole, source)})
	if checked != nil && !errors.Is(checked, errNotJSON) {
		return checked
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if checked != nil {
		return redactText(to, source)
	}
	// Lines that were added since are not part of it.
	return redactJSON(to, io.LimitReader(source, size))
}

// header gives entries one fixed time, so that the archive depends on the
// content only.
func header(name string, mode fs.FileMode, method uint16) *zip.FileHeader {
	h := &zip.FileHeader{Name: name, Method: method, Modified: time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)}
	h.SetMode(mode)
	return h
}

// reader ends reading when ctx does.
type reader struct {
	ctx  context.Context //nolint:containedctx // one copy's life
	file *os.File
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.file.Read(p)
}
