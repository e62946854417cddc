package agentserver

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/openhands/boxkeeper/box"
)

// What bounds the memory of a verification.
const (
	maxList     = 8 << 20
	maxManifest = 64 << 20
	maxPending  = 200_000 // entries before the list that is about them
	maxWindow   = 8 << 20
)

// VerifyWorkspace reads an archive of a workspace to its end and returns its
// manifest, when every entry is as the lists and the manifest say and none is
// missing. ClassUnknown says what is wrong; an error of r itself is passed on.
func VerifyWorkspace(r io.Reader) (box.Manifest, error) {
	source := &remember{from: r}
	zip, err := zstd.NewReader(source, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return box.Manifest{}, box.Errorf(box.ClassInternal, "start to decompress: %w", err)
	}
	defer zip.Close()
	v := &verifier{streams: map[string]box.ManifestPart{}}
	err = v.all(tar.NewReader(zip))
	if err == nil {
		// The archive ends where the compression does, sum included.
		n, rest := io.Copy(io.Discard, zip)
		if err = rest; err == nil && n > 0 {
			err = errors.New("something follows its end")
		}
	}
	switch {
	case source.err != nil:
		return box.Manifest{}, source.err
	case err != nil:
		return box.Manifest{}, box.Errorf(box.ClassUnknown, "the archive of the workspace is damaged or cut off: %w", err)
	}
	return *v.manifest, nil
}

// remember keeps an error of the source, which says more than what it breaks.
type remember struct {
	from io.Reader
	err  error
}

func (r *remember) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// verifier is one reading of an archive.
type verifier struct {
	pending  []box.ManifestEntry // entries that no list was about yet
	lists    []box.ManifestPart
	streams  map[string]box.ManifestPart
	entries  int64
	files    int64
	bytes    int64
	leftOut  int64
	changed  int64
	manifest *box.Manifest
	// of the stream whose parts are being read
	stream box.ManifestPart
	sum    hash.Hash
}

func (v *verifier) all(archive *tar.Reader) error {
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
		if !strings.HasPrefix(name, box.WorkspaceRepositories) {
			v.endStream()
		}
		switch {
		case strings.HasPrefix(name, box.WorkspaceFiles):
			err = v.entry(header, archive)
		case strings.HasPrefix(name, box.WorkspaceLists):
			err = v.list(name, archive)
		case strings.HasPrefix(name, box.WorkspaceRepositories):
			err = v.part(name, archive)
		case name == box.WorkspaceManifest:
			err = v.end(archive)
		default:
			err = errors.New("it is no entry of a workspace's archive")
		}
		if err != nil {
			return fmt.Errorf("entry %q: %w", clip(name, 200), err)
		}
	}
}

func (v *verifier) entry(header *tar.Header, content io.Reader) error {
	if len(v.pending) == maxPending {
		return errors.New("no list says what came before it")
	}
	entry := box.ManifestEntry{Name: strings.TrimSuffix(strings.TrimPrefix(header.Name, box.WorkspaceFiles), "/")}
	// Nothing may be written outside of where an archive is unpacked.
	if clean := path.Clean(entry.Name); clean != entry.Name || clean == ".." || strings.HasPrefix(clean, "../") || strings.HasPrefix(clean, "/") {
		return errors.New("its name leads elsewhere")
	}
	switch header.Typeflag {
	case tar.TypeDir:
		entry.Type, entry.Mode = "directory", uint32(header.Mode) //nolint:gosec // compared, not used
	case tar.TypeSymlink:
		entry.Type, entry.Target = "link", strings.ToValidUTF8(header.Linkname, "�")
	case tar.TypeLink:
		entry.Type, entry.Target = "hardlink", strings.TrimPrefix(header.Linkname, box.WorkspaceFiles)
	case tar.TypeReg:
		sum := sha256.New()
		n, err := io.Copy(sum, content)
		if err != nil {
			return err
		}
		entry.Type, entry.Mode, entry.Bytes, entry.SHA256 = "file", uint32(header.Mode), n, hex.EncodeToString(sum.Sum(nil)) //nolint:gosec // compared, not used
	default:
		return errors.New("it is of a kind that no workspace's archive has")
	}
	v.pending = append(v.pending, entry)
	return nil
}

// list compares a list with the entries before it.
func (v *verifier) list(name string, content io.Reader) error {
	text, sum, err := readAll(content, maxList)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxList)
	for lines.Scan() {
		var said box.ManifestEntry
		if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
			return err
		}
		if said.Type == "left-out" {
			v.leftOut++
			continue
		}
		if len(v.pending) == 0 {
			return errors.New("it lists more than there is")
		}
		if said.NameBase64 != nil {
			said.Name, said.NameBase64 = string(said.NameBase64), nil
		}
		v.entries, v.bytes = v.entries+1, v.bytes+said.Bytes
		if said.Type == "file" {
			v.files++
		}
		if said.Changed {
			v.changed++
		}
		if said.Changed, said.Why = false, ""; !equalEntries(said, v.pending[0]) {
			return fmt.Errorf("%q is not as listed", clip(v.pending[0].Name, 200))
		}
		v.pending = v.pending[1:]
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if len(v.pending) > 0 {
		return errors.New("it lists less than there is")
	}
	v.lists = append(v.lists, box.ManifestPart{Name: name, Bytes: int64(len(text)), SHA256: sum})
	return nil
}

func equalEntries(a, b box.ManifestEntry) bool {
	return a.Name == b.Name && a.Type == b.Type && a.Target == b.Target && a.Bytes == b.Bytes && a.SHA256 == b.SHA256 && a.Mode == b.Mode
}

// part adds one part to its stream.
func (v *verifier) part(name string, content io.Reader) error {
	stream := path.Dir(name)
	if stream != v.stream.Name {
		v.endStream()
		if _, again := v.streams[stream]; again {
			return errors.New("its stream was there already")
		}
		if len(v.streams) == maxPending {
			return errors.New("there are too many streams")
		}
		v.stream, v.sum = box.ManifestPart{Name: stream}, sha256.New()
	}
	v.stream.Parts++
	if path.Base(name) != fmt.Sprintf("%06d", v.stream.Parts) {
		return errors.New("a part before it is missing")
	}
	n, err := io.Copy(v.sum, content)
	v.stream.Bytes += n
	return err
}

func (v *verifier) endStream() {
	if v.sum != nil {
		v.stream.SHA256 = hex.EncodeToString(v.sum.Sum(nil))
		v.streams[v.stream.Name] = v.stream
		v.stream, v.sum = box.ManifestPart{}, nil
	}
}

// end compares the manifest with everything.
func (v *verifier) end(content io.Reader) error {
	text, _, err := readAll(content, maxManifest)
	if err != nil {
		return err
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
	}
	named := 0
	for _, one := range m.Repositories {
		for _, part := range []box.ManifestPart{one.Bundle, one.Staged, one.Unstaged} {
			if part.Parts > 0 && v.streams[part.Name] != part {
				return fmt.Errorf("%q is not as it says", clip(part.Name, 200))
			}
			if part.Parts > 0 {
				named++
			}
		}
		named += one.GitFiles + one.BrokenOff
	}
	if named != len(v.streams) {
		return fmt.Errorf("it names %d streams of repositories, and there are %d", named, len(v.streams))
	}
	v.manifest = &m
	return nil
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
