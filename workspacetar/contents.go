package workspacetar

import (
	"archive/tar"
	"io"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// Begun is an entry of an archive that begins. Nothing is known to be right then:
// neither its name nor its content, and in the end there may be no archive.
type Begun struct {
	// Name is the whole name in the tar, without a slash at the end.
	Name string
	// Target is where a link or a hard link leads.
	Target string
	// File says that it has content.
	File  bool
	Bytes int64
}

// ReadContents is [Read] for somebody who wants to see what the entries hold on
// the way: begins is called with each one when it begins, and its content is
// written to what that returns, unless that is nil. An error of that ends the
// reading.
func ReadContents(r io.Reader, told func(Entry) error, begins func(Begun) io.Writer) (box.Manifest, error) {
	return read(r, told, begins)
}

// shown is the content of an entry as who looks on sees it pass.
func (v *reading) shown(h *tar.Header, content io.Reader) io.Reader {
	if v.begins == nil {
		return content
	}
	w := v.begins(Begun{Name: strings.TrimSuffix(h.Name, "/"), Target: h.Linkname, File: h.Typeflag == tar.TypeReg, Bytes: h.Size})
	if w == nil {
		return content
	}
	return io.TeeReader(content, w)
}
