package backup

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"syscall"

	"github.com/klauspost/compress/zstd"

	"github.com/openhands/boxkeeper/box"
)

// maxWindow bounds the memory that an archive can make us use, in bytes; ours
// need 8 MiB.
const maxWindow = 64 << 20

var (
	errNotOurs = errors.New("it is not a backup as boxkeeperd writes them")
	errCutOff  = errors.New("it is cut off")
	errDamaged = errors.New("it is damaged")
)

// visitor is told what is in an archive, in order. Names are checked: each
// entry is directly in the directory that was entered and not left.
type visitor interface {
	enter(e entry) error
	leave() error
	// file must read all of content. With again, the file takes the place of
	// the one right before, which has the same name.
	file(e entry, content io.Reader, again bool) error
	symlink(e entry) error
	hardlink(e entry) error
}

// contents is what was read from a backup file.
type contents struct {
	head  head
	total total
	need  int64  // bytes on the disk, holes left out
	bytes int64  // of the backup file
	sum   string // of the backup file
}

// scan reads a backup file from its first byte to its last and shows a visitor
// what is in it. It holds every entry against the manifest, for which spool
// names a new file. Damage is Invalid and says of what kind it is.
func scan(ctx context.Context, file, spool string, v visitor, tell func(Progress), stage string) (_ contents, err error) {
	in, err := openBackup(file)
	if err != nil {
		return contents{}, err
	}
	defer in.Close()
	lines, err := os.OpenFile(spool, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return contents{}, failed(err, "make a file to check the manifest with")
	}
	defer os.Remove(spool)
	defer lines.Close()

	raw := &counter{hash: sha256.New()}
	z, err := zstd.NewReader(io.TeeReader(faults{reader{ctx, in}}, raw),
		zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return contents{}, damage(file, err)
	}
	defer z.Close()
	s := &scanner{tar: tar.NewReader(z), visitor: v, lines: lines, seen: bufio.NewWriter(lines), tell: tell, stage: stage}
	if err := s.all(ctx); err != nil {
		return contents{}, damage(file, err)
	}
	// Whatever follows was not written by us.
	if n, err := io.Copy(io.Discard, z); err != nil || n > 0 {
		return contents{}, damage(file, errors.Join(errDamaged, err))
	}
	s.read.bytes, s.read.sum = raw.bytes, hex.EncodeToString(raw.hash.Sum(nil))
	return s.read, nil
}

func openBackup(file string) (*os.File, error) {
	in, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, box.Invalidf("file", "open the backup %s: %v; name the file that a backup wrote", file, bare(err))
	}
	if info, err := in.Stat(); err != nil || !info.Mode().IsRegular() {
		in.Close()
		return nil, box.Invalidf("file", "%s is not a regular file: name the file that a backup wrote", file)
	}
	return in, nil
}

// damage turns what reading met into an error for people. What the caller's
// side caused keeps its class.
func damage(file string, err error) error {
	if _, ours := errors.AsType[*box.Error](err); ours {
		return err
	}
	if f, disk := errors.AsType[fault](err); disk {
		return failed(f.err, "read the backup %s", file)
	}
	what := errDamaged
	for _, known := range []error{errNotOurs, errCutOff, errDamaged} {
		if errors.Is(err, known) {
			return &box.Error{Class: box.ClassInvalid, Field: "file", Message: file + " cannot be used, take another backup", Err: err}
		}
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		what = errCutOff
	case errors.Is(err, zstd.ErrMagicMismatch), errors.Is(err, tar.ErrHeader):
		what = errNotOurs
	}
	return &box.Error{Class: box.ClassInvalid, Field: "file", Message: file + " cannot be used, take another backup: " + what.Error(), Err: err}
}

// scanner is one reading of an archive.
type scanner struct {
	tar     *tar.Reader
	visitor visitor
	lines   *os.File // the manifest as it should be
	seen    *bufio.Writer
	tell    func(Progress)
	stage   string

	read    contents
	inside  []string // the directories that were entered and not left
	pending []byte   // the line of the last file, which the next entry may replace
	last    entry
	engine  bool // the engine's data file was there
}

func (s *scanner) all(ctx context.Context) error {
	if err := s.head(); err != nil {
		return err
	}
	for {
		if err := ended(ctx, s.stage+" the backup"); err != nil {
			return err
		}
		h, err := s.next()
		if err != nil {
			return err
		}
		if h.Name == manifestName {
			return s.end(h)
		}
		e, err := entryOf(h)
		if err != nil {
			return err
		}
		if err := s.entry(e); err != nil {
			return err
		}
	}
}

// next returns the next header. An archive ends with its manifest, never here.
func (s *scanner) next() (*tar.Header, error) {
	h, err := s.tar.Next()
	if errors.Is(err, io.EOF) {
		return nil, errCutOff
	}
	return h, err
}

func (s *scanner) head() error {
	h, err := s.next()
	if err != nil {
		return err
	}
	if h.Name != headName || h.Typeflag != tar.TypeReg || h.Size > maxLine {
		return errNotOurs
	}
	data, err := io.ReadAll(s.tar)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &s.read.head); err != nil || s.read.head.Format != formatName || s.read.head.Version < 1 {
		return errNotOurs
	}
	if s.read.head.Version > formatVersion {
		return &box.Error{
			Class: box.ClassFailedPrecondition, Field: "file",
			Message: "a newer release made this backup; restore it with that release",
		}
	}
	_, err = s.seen.Write(data)
	return failed(err, "check the manifest")
}

// entry checks one entry's place and shows it to the visitor.
func (s *scanner) entry(e entry) error {
	again := s.pending != nil && e.kind == tar.TypeReg && e.rel == s.last.rel
	if again {
		s.pending = nil
	} else if err := s.record(); err != nil {
		return err
	}
	if err := s.goTo(e); err != nil {
		return err
	}
	if _, out := (rules{}).leaves(e.rel, e.mode); (out || e.rel == dataFile) && (e.rel != dataFile || e.kind != tar.TypeReg) {
		// A link in such a place would lead the engine astray.
		return notOurs("%q is in it", e.rel)
	}
	sum := ""
	var err error
	switch e.kind {
	case tar.TypeDir:
		s.inside = append(s.inside, e.rel)
		err = s.visitor.enter(e)
	case tar.TypeSymlink:
		err = s.visitor.symlink(e)
	case tar.TypeLink:
		err = s.visitor.hardlink(e)
	case tar.TypeReg:
		s.engine = s.engine || e.rel == dataFile
		sum, err = s.content(e, again)
	}
	if err != nil {
		return err
	}
	s.last = e
	s.pending, err = e.manifestLine(sum)
	s.tell(Progress{Stage: s.stage, Entries: s.read.total.Entries, Bytes: s.read.total.Bytes, Path: e.rel})
	return err
}

// record keeps the line of the last entry, which nothing can replace any more.
func (s *scanner) record() error {
	if s.pending == nil {
		return nil
	}
	s.read.total.Entries++
	s.read.total.Bytes += s.last.size
	_, err := s.seen.Write(s.pending)
	s.pending = nil
	return failed(err, "check the manifest")
}

// goTo leaves directories until e is directly in the one that is left. So a
// file can only be in a directory of the archive, and never behind a link.
func (s *scanner) goTo(e entry) error {
	if e.rel == "" {
		if s.inside != nil {
			return notOurs("the data directory is in it twice")
		}
		return nil
	}
	parent := path.Dir(e.rel)
	if parent == "." {
		parent = ""
	}
	for len(s.inside) > 0 && s.inside[len(s.inside)-1] != parent {
		if err := s.leave(); err != nil {
			return err
		}
	}
	if len(s.inside) == 0 {
		return notOurs("the entry %q does not follow its directory", e.rel)
	}
	if len(s.inside) > maxDepth+1 {
		return notOurs("the entry %q lies too deep", e.rel)
	}
	return nil
}

func (s *scanner) leave() error {
	s.inside = s.inside[:len(s.inside)-1]
	return s.visitor.leave()
}

func (s *scanner) content(e entry, again bool) (sum string, err error) {
	hash := sha256.New()
	counted := &counter{hash: hash, tell: func(n int64) {
		s.tell(Progress{Stage: s.stage, Entries: s.read.total.Entries, Bytes: s.read.total.Bytes + n, Path: e.rel})
	}}
	if err := s.visitor.file(e, io.TeeReader(cut{s.tar}, counted), again); err != nil {
		return "", err
	}
	if counted.bytes != e.size {
		return "", errCutOff
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// cut tells an archive that ends in the middle of a file from a file's end.
type cut struct{ io.Reader }

func (r cut) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errCutOff
	}
	return n, err
}

// end holds what was read against the manifest, and expects nothing after it.
func (s *scanner) end(h *tar.Header) error {
	if h.Typeflag != tar.TypeReg {
		return errNotOurs
	}
	if err := s.record(); err != nil {
		return err
	}
	for len(s.inside) > 0 {
		if err := s.leave(); err != nil {
			return err
		}
	}
	if !s.engine {
		return notOurs("it holds no data file of an engine")
	}
	last, err := jsonLine(s.read.total)
	if err != nil {
		return err
	}
	if _, err := s.seen.Write(last); err != nil {
		return failed(err, "check the manifest")
	}
	if _, err := rewind(s.lines, s.seen); err != nil {
		return failed(err, "check the manifest")
	}
	if err := sameLines(s.tar, s.lines); err != nil {
		return err
	}
	if _, err := s.tar.Next(); !errors.Is(err, io.EOF) {
		return errors.Join(errDamaged, err)
	}
	return nil
}

// sameLines compares a manifest with what was read.
func sameLines(said, read io.Reader) error {
	a, b := bufio.NewReaderSize(said, maxLine), bufio.NewReaderSize(read, maxLine)
	for {
		x, errX := a.ReadSlice('\n')
		y, errY := b.ReadSlice('\n')
		if errX != nil && !errors.Is(errX, io.EOF) {
			return errX
		}
		if errY != nil && !errors.Is(errY, io.EOF) {
			return failed(errY, "check the manifest")
		}
		if !bytes.Equal(x, y) {
			var l line
			if json.Unmarshal(y, &l) != nil || l.Path == "" {
				return notOurs("its manifest and its content disagree")
			}
			return notOurs("its manifest and its content disagree about %q", l.Path)
		}
		if errX != nil || errY != nil {
			if errX == nil || errY == nil {
				return notOurs("its manifest and its content disagree about how much there is")
			}
			return nil
		}
	}
}
