package reclaim

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// dirEntry is one name; kind is the d_type, DT_UNKNOWN where the filesystem does
// not say.
type dirEntry struct {
	name string
	kind byte
}

// nameReader reads a directory piece by piece, so that one with a million names
// needs no more memory than another, and without a look at any of the files,
// since looking can hang at a dead mount.
type nameReader struct {
	fd     int
	buffer []byte
	rest   []byte
}

// chunk is how much is read of a directory at once.
const chunk = 32 << 10

func readNames(fd int) *nameReader { return &nameReader{fd: fd, buffer: make([]byte, chunk)} }

// again starts from the first name.
func (n *nameReader) again() error {
	n.rest = nil
	_, err := unix.Seek(n.fd, 0, 0)
	return err
}

// next returns the next name; ok is false at the end.
func (n *nameReader) next() (entry dirEntry, ok bool, err error) {
	for {
		if len(n.rest) < direntHeader {
			size, err := unix.ReadDirent(n.fd, n.buffer)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil:
				return dirEntry{}, false, err
			case size == 0:
				return dirEntry{}, false, nil
			}
			n.rest = n.buffer[:size]
		}
		length := int(binary.NativeEndian.Uint16(n.rest[16:]))
		if length < direntHeader || length > len(n.rest) {
			return dirEntry{}, false, unix.EBADMSG
		}
		name, _, _ := bytes.Cut(n.rest[direntHeader:length], []byte{0})
		entry = dirEntry{name: string(name), kind: n.rest[18]}
		n.rest = n.rest[length:]
		if entry.name != "." && entry.name != ".." && entry.name != "" {
			return entry, true, nil
		}
	}
}

// direntHeader is the fixed part of struct linux_dirent64: inode, offset,
// length, type.
const direntHeader = 8 + 8 + 2 + 1

// readDir returns all names of an open directory.
func readDir(fd int) ([]dirEntry, error) {
	all := readNames(fd)
	if err := all.again(); err != nil {
		return nil, err
	}
	var out []dirEntry
	for {
		entry, ok, err := all.next()
		if err != nil || !ok {
			return out, err
		}
		out = append(out, entry)
	}
}
