package workspacetar

import (
	"io"
	"strings"
	"unicode/utf8"
)

// LinkTarget is where a link leads, or the place below files/ of the file that a
// hard link is another name of, in the bytes that it has; exact is false where an
// index of an earlier version did not keep them.
func (e Entry) LinkTarget() (target string, exact bool) {
	if e.TargetBase64 != nil {
		return string(e.TargetBase64), true
	}
	return e.Target, !strings.ContainsRune(e.Target, utf8.RuneError)
}

// Take is told of an entry of the tree, of a part of a stream, or of the manifest,
// when its header was read. It returns where the content goes, or nil. Nothing of it was compared
// yet: all that it is given is worth nothing until the reading ends without an
// error. SHA256 is not set, Bytes is what the header promises.
type Take func(Entry) (io.WriteCloser, error)

// odd returns a target that a text cannot say.
func odd(target string) []byte {
	if strings.ContainsRune(target, utf8.RuneError) {
		return []byte(target)
	}
	return nil
}

// hand copies the content of an entry to where it is summed up, and to where it
// is wanted.
func (v *reading) hand(e Entry, sum io.Writer, content io.Reader) (n int64, err error) {
	to, err := v.take(e)
	if err != nil {
		return 0, err
	}
	if to == nil {
		return v.pour(sum, content)
	}
	n, err = v.pour(io.MultiWriter(sum, to), content)
	if closed := to.Close(); err == nil {
		err = closed
	}
	return n, err
}
