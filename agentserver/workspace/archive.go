package workspace

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"github.com/openhands/boxkeeper/box"
)

const (
	partSize = 4 << 20 // of a stream whose length is not known
	// A list is written when it is this long, so that it takes little memory
	// here and at the reader's.
	listSize   = 1 << 20
	windowSize = 1 << 20
	maxNotes   = 100
)

// archive writes the entries. It is used by one goroutine.
type archive struct {
	zip      *zstd.Encoder
	tar      *tar.Writer
	manifest box.Manifest
	list     bytes.Buffer // the lines of the next list
	part     []byte       // the next part of a stream
	noted    int          // of what is missing, beyond those that are named
}

func newArchive(w io.Writer) (*archive, error) {
	zip, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(windowSize), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("start to compress: %w", err)
	}
	return &archive{
		zip: zip, tar: tar.NewWriter(zip), part: make([]byte, 0, partSize),
		manifest: box.Manifest{Version: 1, Lists: []box.ManifestPart{}, Repositories: []box.ManifestRepository{}},
	}, nil
}

// header fills in what is the same for all entries.
func (a *archive) header(h tar.Header) error {
	if h.ModTime.IsZero() {
		h.ModTime = time.Unix(0, 0)
	}
	return a.tar.WriteHeader(&h)
}

// record adds an entry to the list, and writes that when it is long enough.
func (a *archive) record(name string, entry box.ManifestEntry) error {
	if utf8.ValidString(name) {
		entry.Name = name
	} else {
		entry.NameBase64 = []byte(name)
	}
	line, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("list %q: %w", name, err)
	}
	a.list.Write(line)
	a.list.WriteByte('\n')
	if entry.Type == "left-out" {
		a.manifest.LeftOut++
	} else {
		a.manifest.Entries++
		a.manifest.Bytes += entry.Bytes
	}
	if entry.Type == "file" {
		a.manifest.Files++
	}
	if entry.Changed {
		a.manifest.Changed++
	}
	if a.list.Len() >= listSize {
		return a.flushList()
	}
	return nil
}

// leaveOut records what is not in the archive. What cannot be made again is
// missing.
func (a *archive) leaveOut(place, why string, missing bool) error {
	if missing {
		a.missing(place + " " + why)
	}
	return a.record(place, box.ManifestEntry{Type: "left-out", Why: why})
}

// missing says in the manifest that something is.
func (a *archive) missing(what string) {
	a.manifest.Missing++
	if len(a.manifest.Incomplete) < maxNotes {
		a.manifest.Incomplete = append(a.manifest.Incomplete, what)
		return
	}
	a.noted++
}

func (a *archive) flushList() error {
	if a.list.Len() == 0 {
		return nil
	}
	name := box.WorkspaceLists + fmt.Sprintf("%06d.jsonl", len(a.manifest.Lists)+1)
	sum := sha256.Sum256(a.list.Bytes())
	a.manifest.Lists = append(a.manifest.Lists, box.ManifestPart{Name: name, Bytes: int64(a.list.Len()), SHA256: hex.EncodeToString(sum[:])})
	err := a.whole(name, a.list.Bytes())
	a.list.Reset()
	return err
}

// whole writes an entry of ours.
func (a *archive) whole(name string, content []byte) error {
	if err := a.header(tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o600}); err != nil {
		return err
	}
	_, err := a.tar.Write(content)
	return err
}

// stream lets fill write a stream of any length below name, in parts. An error
// of fill is returned apart from one of the archive, which ends everything.
func (a *archive) stream(name string, fill func(io.Writer) error) (out box.ManifestPart, filled, err error) {
	s := &parts{archive: a, name: name, sum: sha256.New()}
	a.part = a.part[:0]
	filled = fill(s)
	if s.err == nil {
		s.err = s.flush()
	}
	if s.err != nil {
		return out, nil, s.err
	}
	if s.count == 0 {
		return out, filled, nil
	}
	return box.ManifestPart{Name: name, Parts: s.count, Bytes: s.bytes, SHA256: hex.EncodeToString(s.sum.Sum(nil))}, filled, nil
}

// parts is a writer that cuts what it gets into entries.
type parts struct {
	archive *archive
	name    string
	sum     hash.Hash
	count   int
	bytes   int64
	err     error
}

func (s *parts) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 && s.err == nil {
		a := s.archive
		take := min(len(p), partSize-len(a.part))
		a.part = append(a.part, p[:take]...)
		n, p = n+take, p[take:]
		if len(a.part) == partSize {
			s.err = s.flush()
		}
	}
	return n, s.err
}

func (s *parts) flush() error {
	a := s.archive
	if len(a.part) == 0 {
		return nil
	}
	s.count++
	s.bytes += int64(len(a.part))
	s.sum.Write(a.part)
	err := a.whole(fmt.Sprintf("%s/%06d", s.name, s.count), a.part)
	a.part = a.part[:0]
	return err
}

// close writes the manifest and ends the archive.
func (a *archive) close() error {
	if err := a.flushList(); err != nil {
		return err
	}
	if a.noted > 0 {
		a.manifest.Incomplete = append(a.manifest.Incomplete, strconv.Itoa(a.noted)+" more are missing; the lists name them")
	}
	text, err := json.MarshalIndent(a.manifest, "", "  ")
	if err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	if err := a.whole(box.WorkspaceManifest, append(text, '\n')); err != nil {
		return err
	}
	if err := a.tar.Close(); err != nil {
		return err
	}
	return a.zip.Close()
}
