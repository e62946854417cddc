package backup

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/openhands/boxkeeper/box"
)

// entry is one file, directory or link of a data directory.
type entry struct {
	rel      string // below the data directory, "" for itself
	kind     byte   // a type flag of tar: TypeReg, TypeDir, TypeSymlink or TypeLink
	mode     fs.FileMode
	size     int64
	modified time.Time
	uid, gid int
	target   string // of a symbolic link as it is; of a hard link below the data directory
	linked   bool   // hard links to it may follow
}

func (e entry) base() string { return path.Base(e.rel) }

// header returns the entry as the archive writes it.
func (e entry) header() *tar.Header {
	h := &tar.Header{
		Format: tar.FormatPAX, Typeflag: e.kind, Name: path.Join(dataName, e.rel), Mode: unixMode(e.mode),
		Size: e.size, ModTime: e.modified, Uid: e.uid, Gid: e.gid, Linkname: e.target,
	}
	if e.kind == tar.TypeLink {
		h.Linkname = path.Join(dataName, e.target)
	}
	if e.linked {
		h.PAXRecords = map[string]string{linkedKey: "1"}
	}
	return h
}

// entryOf checks a header of an archive, which may be anybody's.
func entryOf(h *tar.Header) (entry, error) {
	e := entry{kind: h.Typeflag, mode: fileMode(h.Mode), size: h.Size, modified: h.ModTime, uid: h.Uid, gid: h.Gid, target: h.Linkname}
	var err error
	if e.rel, err = relOf(strings.TrimSuffix(h.Name, "/")); err != nil {
		return e, err
	}
	for key := range h.PAXRecords {
		switch key {
		case "path", "linkpath", "size", "mtime", "uid", "gid":
		case linkedKey:
			e.linked = true
		default: // such as those that make a small file of many terabytes
			return e, notOurs("the entry %q has the extension %q", e.rel, key)
		}
	}
	switch e.kind {
	case tar.TypeReg, tar.TypeDir:
		e.target = ""
	case tar.TypeSymlink:
		if e.target == "" {
			return e, notOurs("the link %q leads nowhere", e.rel)
		}
	case tar.TypeLink:
		if e.target, err = relOf(e.target); err != nil {
			return e, err
		}
	default:
		return e, notOurs("the entry %q is of a type %q", e.rel, e.kind)
	}
	if e.size < 0 || e.size > maxFile || e.kind != tar.TypeReg && e.size != 0 {
		return e, notOurs("the entry %q claims %d bytes", e.rel, e.size)
	}
	if h.Mode < 0 || h.Mode > 0o7777 || e.uid < 0 || e.gid < 0 {
		return e, notOurs("the entry %q has an impossible mode or owner", e.rel)
	}
	if e.rel == "" && e.kind != tar.TypeDir {
		return e, notOurs("the data directory is no directory")
	}
	return e, nil
}

// relOf returns a name of the archive below the data directory. It refuses
// absolute names, "..", and every second way to write a name.
func relOf(name string) (string, error) {
	if name == dataName {
		return "", nil
	}
	rel, ok := strings.CutPrefix(name, dataName+"/")
	if !ok || rel == "." || !fs.ValidPath(strings.ToValidUTF8(rel, "?")) || strings.ContainsRune(rel, 0) {
		return "", notOurs("the name %q is not one below %s/", name, dataName)
	}
	return rel, nil
}

// line is an entry in a manifest.
type line struct {
	Path string `json:"path,omitzero"`
	// RawPath and RawTarget take the place of names that are not valid UTF-8,
	// which JSON cannot hold.
	RawPath   []byte `json:"raw_path,omitempty"`
	Type      string `json:"type"`
	Mode      string `json:"mode,omitzero"`
	Size      int64  `json:"size"`
	SHA256    string `json:"sha256,omitzero"`
	Target    string `json:"target,omitzero"`
	RawTarget []byte `json:"raw_target,omitempty"`
}

// manifestLine returns the entry's line, with a newline.
func (e entry) manifestLine(sum string) ([]byte, error) {
	l := line{Mode: fmt.Sprintf("%04o", unixMode(e.mode)), Size: e.size, SHA256: sum}
	l.Path, l.RawPath = text(path.Join(dataName, e.rel))
	switch e.kind {
	case tar.TypeReg:
		l.Type = "file"
	case tar.TypeDir:
		l.Type = "directory"
	case tar.TypeSymlink:
		l.Type = "link"
		l.Target, l.RawTarget = text(e.target)
	case tar.TypeLink:
		l.Type = "hardlink"
		l.Target, l.RawTarget = text(path.Join(dataName, e.target))
	}
	return jsonLine(l)
}

func text(name string) (valid string, raw []byte) {
	if utf8.ValidString(name) {
		return name, nil
	}
	return "", []byte(name)
}

func jsonLine(value any) ([]byte, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "write the manifest: %w", err)
	}
	return append(data, '\n'), nil
}

// The bits that tar, like Unix, keeps above the permissions.
const (
	setuid = 0o4000
	setgid = 0o2000
	sticky = 0o1000
)

func unixMode(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	if m&fs.ModeSetuid != 0 {
		bits |= setuid
	}
	if m&fs.ModeSetgid != 0 {
		bits |= setgid
	}
	if m&fs.ModeSticky != 0 {
		bits |= sticky
	}
	return bits
}

func fileMode(bits int64) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	if bits&setuid != 0 {
		m |= fs.ModeSetuid
	}
	if bits&setgid != 0 {
		m |= fs.ModeSetgid
	}
	if bits&sticky != 0 {
		m |= fs.ModeSticky
	}
	return m
}

// notOurs is what is wrong with an archive that this package did not write.
func notOurs(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errNotOurs}, args...)...)
}
