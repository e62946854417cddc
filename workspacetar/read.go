package workspacetar

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// What bounds the memory of a reading.
const (
	maxList         = 8 << 20 // the writer ends one after 1 MiB
	maxManifest     = 16 << 20
	maxName         = 64 << 10
	maxPending      = 100_000 // entries before the list that is about them
	maxPendingBytes = 16 << 20
	copyBuffer      = 64 << 10
	maxStreams      = 50_000 // bundles and patches; the files of a git directory are not counted
)

// blockSize is what everything in a tar is a multiple of; two empty blocks end
// it.
const blockSize = 512

// TypePart is the [Entry.Type] of everything that is not below files/: lists,
// parts of bundles and patches, the manifest.
const TypePart = "part"

// Entry is one entry of an archive, or one thing that it says it left out.
type Entry struct {
	// ManifestEntry is as listed, but that Name is the whole name in the tar,
	// "files/..." for the tree, in the bytes that it has there, without a slash at
	// the end. Of a TypePart only Name, Type and Bytes are set.
	box.ManifestEntry
	// Offset is where its content begins in the tar.
	Offset int64 `json:"offset,omitzero"`
	// Modified is a file's time of change, in seconds since 1970.
	Modified int64 `json:"modified,omitzero"`
	// TargetBase64 is the target in the bytes that it has, where Target, a text,
	// cannot say it.
	TargetBase64 []byte `json:"target_base64,omitzero"`
}

// Read reads a tar to its end and returns its manifest, when all of it holds.
// Each entry is told after it was read and compared: those below files/ in the
// order of a walk, all others in theirs. told may be nil; an error of it ends
// the reading and is returned as it is, and so is one of r. Any other error says
// what is wrong with the archive, and then what was told is worth nothing.
func Read(r io.Reader, told func(Entry) error) (box.Manifest, error) {
	return ReadInto(r, nil, told)
}

// ReadInto is [Read] for somebody who puts the content somewhere; take may be
// nil. An error of take, or of what it returns, ends the reading and is returned
// with the entry's name.
func ReadInto(r io.Reader, take Take, told func(Entry) error) (box.Manifest, error) {
	if told == nil {
		told = func(Entry) error { return nil }
	}
	if take == nil {
		take = func(Entry) (io.WriteCloser, error) { return nil, nil } //nolint:nilnil // nowhere
	}
	at := &counter{from: r}
	v := &reading{at: at, take: take, told: told, streams: map[string]box.ManifestPart{}, file: sha256.New(), copy: make([]byte, copyBuffer)}
	err := v.all(tar.NewReader(at))
	if at.err != nil {
		return box.Manifest{}, at.err
	}
	if err == nil {
		// A tar ends with its first empty block; what a reader hides there is not
		// in any sum.
		switch n, rest := io.Copy(io.Discard, at); {
		case rest != nil:
			err = rest
		case n > 0:
			err = errors.New("something follows its end")
		case at.n != v.content+2*blockSize:
			err = errors.New("its end is missing")
		}
	}
	if err != nil {
		return box.Manifest{}, err
	}
	return *v.manifest, nil
}

// counter counts, and keeps an error of the source, which says more than what
// it breaks.
type counter struct {
	from io.Reader
	n    int64
	err  error
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// reading is one reading of an archive.
type reading struct {
	at   *counter
	take Take
	told func(Entry) error
	file hash.Hash // of the file that is being read
	copy []byte

	pending      []Entry // that no list was about yet
	pendingBytes int
	last         Entry // the newest one below files/ that a list was about

	lists   []box.ManifestPart
	streams map[string]box.ManifestPart
	gitFile string // the newest stream of a git directory, which are too many to keep
	git     int

	entries, files, bytes, leftOut, changed int64

	manifest *box.Manifest
	content  int64 // where the content ends, and the end of the tar begins
	// of the stream whose parts are being read
	stream box.ManifestPart
	sum    hash.Hash
}

func (v *reading) all(archive *tar.Reader) error {
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			if v.manifest == nil {
				return errors.New("it has no manifest")
			}
			return nil
		}
		if err != nil {
			return err
		}
		if v.manifest != nil {
			return errors.New("an entry follows the manifest")
		}
		name := header.Name
		if err := plain(header); err != nil {
			return fmt.Errorf("entry %q: %w", clip(name), err)
		}
		if !strings.HasPrefix(name, box.WorkspaceRepositories) {
			v.endStream()
		}
		switch {
		case strings.HasPrefix(name, box.WorkspaceFiles):
			err = v.entry(header, archive)
		case header.Typeflag != tar.TypeReg:
			err = errors.New("it is of a kind that only the tree has")
		case strings.HasPrefix(name, box.WorkspaceLists):
			err = v.list(header, archive)
		case strings.HasPrefix(name, box.WorkspaceRepositories):
			err = v.part(header, archive)
		case name == box.WorkspaceManifest:
			err = v.end(header, archive)
		default:
			err = errors.New("it is no entry of a workspace's archive")
		}
		if err != nil {
			return fmt.Errorf("entry %q: %w", clip(name), err)
		}
	}
}

// plain refuses what the writer never writes: a header that says more than name,
// kind, length, mode and time is one that some other program may act on.
func plain(h *tar.Header) error {
	if len(h.Name) > maxName || len(h.Linkname) > maxName {
		return errors.New("its name is too long")
	}
	if h.Mode&^0o777 != 0 {
		return errors.New("it has more than permissions in its mode")
	}
	for key := range h.PAXRecords {
		switch key {
		case "path", "linkpath", "size", "mtime":
		default:
			return fmt.Errorf("its header says %q, which no workspace's archive does", clip(key))
		}
	}
	return nil
}

// entry reads one of the tree; the next list must be about it.
func (v *reading) entry(h *tar.Header, content io.Reader) error {
	name := h.Name
	if h.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
	}
	if len(v.pending) == maxPending || v.pendingBytes > maxPendingBytes {
		return errors.New("no list says what came before it")
	}
	entry := Entry{ManifestEntry: box.ManifestEntry{Name: name}, Offset: v.at.n}
	if below, ok := strings.CutPrefix(name, box.WorkspaceFiles); !ok || !Whole(below) {
		return errors.New("its name leads elsewhere")
	}
	switch h.Typeflag {
	case tar.TypeDir:
		entry.Type, entry.Mode = "directory", uint32(h.Mode) //nolint:gosec // at most 0777
	case tar.TypeSymlink:
		entry.Type, entry.Target = "link", strings.ToValidUTF8(h.Linkname, "�")
		entry.TargetBase64 = odd(h.Linkname)
	case tar.TypeLink:
		target, inside := strings.CutPrefix(h.Linkname, box.WorkspaceFiles)
		if !inside || !Whole(target) || Order(h.Linkname, name) >= 0 {
			return errors.New("it links to what is no file before it")
		}
		// As JSON writes a text that is none.
		entry.Type, entry.Target = "hardlink", string([]rune(target))
		entry.TargetBase64 = odd(target)
	case tar.TypeReg:
		entry.Type, entry.Mode, entry.Bytes, entry.Modified = "file", uint32(h.Mode), h.Size, h.ModTime.Unix() //nolint:gosec // at most 0777
	default:
		return errors.New("it is of a kind that no workspace's archive has")
	}
	v.file.Reset()
	n, err := v.hand(entry, v.file, content)
	if err != nil {
		return err
	}
	if v.at.n-entry.Offset != n {
		return errors.New("its content is not where its header says") // some sparse format
	}
	if entry.Type == "file" {
		entry.Bytes, entry.SHA256 = n, hex.EncodeToString(v.file.Sum(nil))
	}
	v.pending = append(v.pending, entry)
	v.pendingBytes += len(entry.Name) + len(entry.Target)
	return nil
}

// list compares a list with the entries before it, and tells them.
func (v *reading) list(h *tar.Header, content io.Reader) error {
	offset := v.at.n
	text, sum, err := readAll(content, maxList)
	if err != nil {
		return err
	}
	for rest := text; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		if !ended {
			return errors.New("its last line does not end")
		}
		rest = after
		var said box.ManifestEntry
		if err := json.Unmarshal(line, &said); err != nil {
			return err
		}
		if said.NameBase64 != nil {
			said.Name, said.NameBase64 = string(said.NameBase64), nil
		}
		if err := v.line(said); err != nil {
			return err
		}
	}
	if len(v.pending) > 0 {
		return errors.New("it lists less than there is")
	}
	v.pending, v.pendingBytes = nil, 0
	v.lists = append(v.lists, box.ManifestPart{Name: h.Name, Bytes: int64(len(text)), SHA256: sum})
	return v.told(part(h, offset))
}

// line is about the first entry that no list was about, or about something that
// is not in the archive.
func (v *reading) line(said box.ManifestEntry) error {
	one := Entry{ManifestEntry: said}
	one.Name = box.WorkspaceFiles + said.Name
	if said.Type == "left-out" {
		if !Whole(said.Name) || len(said.Name) > maxName {
			return errors.New("a name in it leads elsewhere")
		}
		v.leftOut++
	} else {
		if len(v.pending) == 0 {
			return errors.New("it lists more than there is")
		}
		there := v.pending[0]
		v.pending = v.pending[1:]
		if !alike(one.ManifestEntry, there.ManifestEntry) {
			return fmt.Errorf("%q is not as listed", clip(there.Name))
		}
		one.Offset, one.Modified, one.TargetBase64 = there.Offset, there.Modified, there.TargetBase64
		v.entries, v.bytes = v.entries+1, v.bytes+said.Bytes
		if said.Type == "file" {
			v.files++
		}
		if said.Changed {
			v.changed++
		}
	}
	switch {
	case v.last.Name == "":
	case Order(v.last.Name, one.Name) >= 0:
		return fmt.Errorf("%q is there twice, or out of its order", clip(one.Name))
	case v.last.Type != "directory" && strings.HasPrefix(one.Name, v.last.Name+"/"):
		return fmt.Errorf("%q lies below what is no directory", clip(one.Name))
	}
	v.last = one
	return v.told(one)
}

func alike(a, b box.ManifestEntry) bool {
	return a.Name == b.Name && a.Type == b.Type && a.Target == b.Target && a.Bytes == b.Bytes && a.SHA256 == b.SHA256 && a.Mode == b.Mode
}

// end compares the manifest with everything.
func (v *reading) end(h *tar.Header, content io.Reader) error {
	offset := v.at.n
	var all bytes.Buffer
	if _, err := v.hand(part(h, offset), &all, io.LimitReader(content, maxManifest+1)); err != nil {
		return err
	}
	text := all.Bytes()
	if len(text) > maxManifest {
		return fmt.Errorf("it is longer than %d bytes", maxManifest)
	}
	var m box.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	switch {
	case m.Version != 1:
		return fmt.Errorf("version %d is not known here", m.Version)
	case len(v.pending) > 0:
		return errors.New("entries before it are on no list")
	case !slices.Equal(m.Lists, v.lists):
		return errors.New("the lists are not those that it names")
	case m.Entries != v.entries || m.Files != v.files || m.Bytes != v.bytes || m.LeftOut != v.leftOut || m.Changed != v.changed:
		return errors.New("the counts are not those that it names")
	case m.Missing < 0:
		return errors.New("it counts less than nothing as missing")
	}
	named := 0
	for _, one := range m.Repositories {
		for _, part := range []box.ManifestPart{one.Bundle, one.Staged, one.Unstaged} {
			if part.Parts > 0 && v.streams[part.Name] != part {
				return fmt.Errorf("%q is not as it says", clip(part.Name))
			}
			if part.Parts > 0 {
				named++
			}
		}
		if one.GitFiles < 0 || one.BrokenOff < 0 {
			return errors.New("it counts fewer streams than none")
		}
		named += one.GitFiles + one.BrokenOff
	}
	if there := len(v.streams) + v.git; named != there {
		return fmt.Errorf("it names %d streams of repositories, and there are %d", named, there)
	}
	// An older boxd names what is missing and counts none of it.
	m.Missing = max(m.Missing, int64(len(m.Incomplete)))
	v.content = (v.at.n + blockSize - 1) / blockSize * blockSize
	v.manifest = &m
	return v.told(part(h, offset))
}

// pour copies with a buffer of the reading: there may be a million files.
func (v *reading) pour(w io.Writer, r io.Reader) (int64, error) {
	return io.CopyBuffer(w, struct{ io.Reader }{r}, v.copy)
}

func readAll(r io.Reader, most int64) (text []byte, sum string, err error) {
	if text, err = io.ReadAll(io.LimitReader(r, most+1)); err != nil {
		return nil, "", err
	}
	if int64(len(text)) > most {
		return nil, "", fmt.Errorf("it is longer than %d bytes", most)
	}
	all := sha256.Sum256(text)
	return text, hex.EncodeToString(all[:]), nil
}
