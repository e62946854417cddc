package reclaim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// tree opens paths below one root in a way that no link and no mount can lead
// out of it.
type tree struct {
	path string
	fd   int
	// mount is the root's mount, for kernels that cannot keep a look-up on one
	// mount by themselves.
	mount   uint64
	openat2 bool
	refusal error // why nothing may be deleted here; nil when all is well
}

const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS

func openTree(root string) (*tree, error) {
	// The root itself is the operator's choice and may be reached through links.
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, fmt.Errorf("find the box: %w", err)
	}
	fd, err := unix.Open(real, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the box: %w", err)
	}
	t := &tree{path: real, fd: fd}
	probe, err := t.resolve(fd, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		unix.Close(probe)
		t.openat2 = true
		return t, nil
	}
	t.fallBack()
	return t, nil
}

// fallBack tells mounts apart by their number, or refuses when the kernel does
// not give one: the device number is the same across a bind mount.
func (t *tree) fallBack() {
	t.openat2 = false
	mount, err := mountOf(t.fd)
	if err != nil {
		t.refusal = box.Errorf(box.ClassUnsupported, "this kernel cannot tell mounts apart (%w), so nothing is deleted; Linux 5.8 or newer can", err)
		return
	}
	t.mount = mount
}

func (t *tree) usable() error { return t.refusal }

func (t *tree) close() { unix.Close(t.fd) }

func (t *tree) realPath() string { return t.path }

// open opens name, which may have several elements, below the directory at. It
// fails with ELOOP at a link and with EXDEV at a mount.
func (t *tree) open(at int, name string, flags int) (int, error) {
	if t.refusal != nil {
		return -1, t.refusal
	}
	if t.openat2 {
		return t.resolve(at, name, flags)
	}
	return t.step(at, name, flags)
}

func (t *tree) resolve(at int, name string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: beneath} //nolint:gosec // flags are never negative
	for {
		fd, err := unix.Openat2(at, name, &how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// step opens one element after the other without following links, and compares
// the mount of each before it is entered.
func (t *tree) step(at int, name string, flags int) (int, error) {
	elements := strings.Split(name, "/")
	from := at
	for i, element := range elements {
		if element == ".." || element == "" {
			return -1, unix.EXDEV
		}
		// O_PATH touches neither a device nor a hung file server.
		fd, err := unix.Openat(from, element, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if from != at {
			unix.Close(from)
		}
		if err != nil {
			return -1, err
		}
		from = fd
		mount, err := mountOf(fd)
		if err == nil && mount != t.mount {
			err = unix.EXDEV
		}
		var st unix.Stat_t
		if err == nil {
			err = unix.Fstat(fd, &st)
		}
		last := i == len(elements)-1
		switch {
		case err != nil:
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			err = unix.ELOOP
		case st.Mode&unix.S_IFMT != unix.S_IFDIR && (!last || flags&unix.O_DIRECTORY != 0):
			err = unix.ENOTDIR
		}
		if err != nil {
			unix.Close(fd)
			return -1, err
		}
	}
	if flags&unix.O_PATH != 0 {
		return from, nil
	}
	defer unix.Close(from)
	// Opening the descriptor again cannot reach another file.
	return unix.Open("/proc/self/fd/"+strconv.Itoa(from), flags&^unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func mountOf(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, errors.New("no mount number")
	}
	return st.Mnt_id, nil
}

// openDir opens a directory for reading its names.
func (t *tree) openDir(at int, name string) (int, error) {
	return t.open(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_NOATIME)
}

// list opens a directory and returns its names. O_NOATIME is the owner's only.
func (t *tree) list(at int, name string) (fd int, names []dirEntry, err error) {
	fd, err = t.openDir(at, name)
	if errors.Is(err, unix.EPERM) {
		fd, err = t.open(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	}
	if err != nil {
		return -1, nil, err
	}
	if names, err = readDir(fd); err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, names, nil
}

// dirEntry is one name; kind is the d_type, DT_UNKNOWN where the filesystem does
// not say.
type dirEntry struct {
	name string
	kind byte
}

// readDir returns all names of an open directory without a look at any of the
// files, since looking can hang at a dead mount.
func readDir(fd int) ([]dirEntry, error) {
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return nil, err
	}
	var out []dirEntry
	buffer := make([]byte, 32<<10)
	for {
		n, err := unix.ReadDirent(fd, buffer)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n == 0:
			return out, nil
		}
		for rest := buffer[:n]; len(rest) >= direntHeader; {
			length := int(binary.NativeEndian.Uint16(rest[16:]))
			if length < direntHeader || length > len(rest) {
				return nil, unix.EBADMSG
			}
			name := rest[direntHeader:length]
			for i, b := range name {
				if b == 0 {
					name = name[:i]
					break
				}
			}
			if text := string(name); text != "." && text != ".." && text != "" {
				out = append(out, dirEntry{name: text, kind: rest[18]})
			}
			rest = rest[length:]
		}
	}
}

// direntHeader is the fixed part of struct linux_dirent64: inode, offset,
// length, type.
const direntHeader = 8 + 8 + 2 + 1

// kindOf resolves DT_UNKNOWN without following or entering anything.
func (t *tree) kindOf(dir int, entry dirEntry) byte {
	if entry.kind != unix.DT_UNKNOWN {
		return entry.kind
	}
	fd, err := t.open(dir, entry.name, unix.O_PATH)
	if err != nil {
		if errors.Is(err, unix.EXDEV) {
			return unix.DT_DIR // a mount: opening it as a directory says so
		}
		return unix.DT_LNK
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.DT_DIR
	}
	return unix.DT_REG
}

// tagged reports whether the directory carries a valid CACHEDIR.TAG: a regular
// file of its own with the signature at its beginning.
func (t *tree) tagged(dir int) bool {
	fd, err := t.open(dir, cacheTag, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return false
	}
	file := os.NewFile(uintptr(fd), cacheTag)
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	head := make([]byte, len(cacheSignature))
	n, _ := file.ReadAt(head, 0)
	return string(head[:n]) == cacheSignature
}

// mountsBelow returns a mount point at or below the absolute path, if any; the
// table never blocks, whatever the mount does.
func mountsBelow(abs string) (string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("read the table of mounts: %w", err)
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if at := unescape(fields[4]); at == abs || strings.HasPrefix(at, abs+"/") {
			return at, nil
		}
	}
	return "", nil
}

// unescape reads the octal form in which the kernel writes blanks.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}
