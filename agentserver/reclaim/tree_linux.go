package reclaim

import (
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
	// mount is the root's mount, zero when this kernel doesn't number them.
	mount   uint64
	openat2 bool
	statx   bool // tells the mount of what it looks at
	// trash is the identity of the trash, so that nothing else is emptied.
	trash inode
	// shares says that files on this filesystem may share blocks with others.
	shares  bool
	refusal error // why nothing may be deleted here; nil when all is well
}

const (
	noEscape = unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS
	beneath  = unix.RESOLVE_BENEATH | noEscape
)

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
	t := &tree{path: real, fd: fd, shares: sharesBlocks(fd)}
	t.mount, t.statx = numbered(fd)
	if t.openat2 = resolves(fd); !t.openat2 {
		t.fallBack()
	}
	return t, nil
}

func numbered(fd int) (mount uint64, ok bool) {
	mount, err := mountByStatx(fd)
	return mount, err == nil
}

// resolves reports whether openat2 is to be had. Old kernels answer ENOSYS and
// filters of system calls EPERM; whatever it is, the slower way is as strict.
func resolves(fd int) bool {
	probe, err := resolve(fd, ".", unix.O_PATH|unix.O_DIRECTORY, beneath)
	if err == nil {
		unix.Close(probe)
	}
	return err == nil
}

// fallBack tells mounts apart by their number, or refuses when the kernel does
// not give one: the device number is the same across a bind mount.
func (t *tree) fallBack() {
	t.openat2 = false
	mount, err := mountOf(t.fd)
	if err != nil {
		t.refusal = box.Errorf(box.ClassUnsupported, "this kernel cannot tell mounts apart (%w), so nothing is deleted; Linux 5.8 or newer can, and older ones with /proc", err)
		return
	}
	t.mount = mount
	probe, err := reopen(t.fd, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		t.refusal = box.Errorf(box.ClassUnsupported, "without openat2, /proc is needed to open files safely (%w), so nothing is deleted; mount /proc", err)
		return
	}
	unix.Close(probe)
}

func (t *tree) usable() error { return t.refusal }

// genuine reports whether our own directories are reached without links and
// mounts, and keeps in mind which one the trash is.
func (t *tree) genuine() error {
	if t.refusal != nil {
		return nil // nothing is deleted here
	}
	for _, name := range []string{journalName, trashName} {
		fd, err := t.open(t.fd, name, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return fmt.Errorf("open %s, which must be no link and no mount: %w", name, err)
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		t.trash = inodeOf(&st)
	}
	return nil
}

// openTrash opens the trash. Another directory that took its place is nobody's
// to empty: ESTALE.
func (t *tree) openTrash() (int, error) {
	fd, err := t.openDir(t.fd, trashName)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && inodeOf(&st) != t.trash {
		err = unix.ESTALE
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (t *tree) close() { unix.Close(t.fd) }

func (t *tree) realPath() string { return t.path }

// open opens name, which may have several elements, below the directory at. It
// fails with ELOOP at a link and with EXDEV at a mount.
func (t *tree) open(at int, name string, flags int) (int, error) {
	if t.refusal != nil {
		return -1, t.refusal
	}
	if t.openat2 {
		return resolve(at, name, flags, beneath)
	}
	return t.step(at, name, flags)
}

func resolve(at int, name string, flags int, how uint64) (int, error) {
	open := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: how} //nolint:gosec // flags are never negative
	for {
		fd, err := unix.Openat2(at, name, &open)
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
		last := i == len(elements)-1
		fd, err := -1, error(unix.EXDEV)
		if element != ".." && element != "" {
			fd, err = t.enter(from, element, !last || flags&unix.O_DIRECTORY != 0)
		}
		if from != at {
			unix.Close(from)
		}
		if err != nil {
			return -1, err
		}
		from = fd
	}
	if flags&unix.O_PATH != 0 {
		return from, nil
	}
	defer unix.Close(from)
	return reopen(from, flags)
}

// enter opens one element as a place only, which touches neither a device nor a
// hung file server, and refuses it on another mount.
func (t *tree) enter(at int, element string, directory bool) (int, error) {
	fd, err := unix.Openat(at, element, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	mount, err := mountOf(fd)
	if err == nil && mount != t.mount {
		err = unix.EXDEV
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		err = unix.ELOOP
	case st.Mode&unix.S_IFMT != unix.S_IFDIR && directory:
		err = unix.ENOTDIR
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// reopen opens what a place refers to; it cannot reach another file.
func reopen(place, flags int) (int, error) {
	return unix.Open("/proc/self/fd/"+strconv.Itoa(place), flags&^unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// parent opens the directory above an open one when it still is the one that
// was left, want; ESTALE means that the tree was moved meanwhile.
func (t *tree) parent(fd int, want inode) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK
	var up int
	var err error
	if t.openat2 {
		up, err = resolve(fd, "..", flags, noEscape)
	} else if up, err = t.enter(fd, "..", true); err == nil {
		place := up
		up, err = reopen(place, flags)
		unix.Close(place)
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(up, &st); err == nil && inodeOf(&st) != want {
		err = unix.ESTALE
	}
	if err != nil {
		unix.Close(up)
		return -1, err
	}
	return up, nil
}

// statAt reads what a name in an open directory is, without following a link,
// without leaving the mount (EXDEV), and without waiting for a file server:
// a single file can be a mount too. It returns the attributes that statx knows.
func (t *tree) statAt(dir int, name string, st *unix.Stat_t) (attributes uint64, err error) {
	if t.refusal != nil {
		return 0, t.refusal
	}
	if !t.statx {
		fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		mount, err := mountOf(fd)
		switch {
		case err != nil:
			return 0, err
		case mount != t.mount:
			return 0, unix.EXDEV
		}
		return 0, unix.Fstat(fd, st)
	}
	var stx unix.Statx_t
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &stx); err != nil {
		return 0, err
	}
	if stx.Mask&unix.STATX_MNT_ID == 0 || stx.Mnt_id != t.mount {
		return 0, unix.EXDEV
	}
	fill(st, &stx)
	return stx.Attributes, nil
}

// fill copies what this package reads of a file.
func fill(st *unix.Stat_t, stx *unix.Statx_t) {
	*st = unix.Stat_t{Ino: stx.Ino, Mode: uint32(stx.Mode), Blocks: int64(stx.Blocks)} //nolint:gosec // no file is that large
	st.Dev = unix.Mkdev(stx.Dev_major, stx.Dev_minor)
	setLinks(&st.Nlink, stx.Nlink)
}

// setLinks exists since the width of the field differs between architectures.
func setLinks[T uint32 | uint64](to *T, n uint32) { *to = T(n) }

// mountOf returns the number of the mount that an open file lies on.
func mountOf(fd int) (uint64, error) {
	mount, err := mountByStatx(fd)
	if err == nil {
		return mount, nil
	}
	return mountByProc(fd)
}

func mountByStatx(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, errors.New("no mount number")
	}
	return st.Mnt_id, nil
}

// mountByProc is for kernels before 5.8, and where statx is filtered away.
func mountByProc(fd int) (uint64, error) {
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if number, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.ParseUint(strings.TrimSpace(number), 10, 64)
		}
	}
	return 0, errors.New("no mount number")
}

// openDir opens a directory for reading its names. O_NOATIME is the owner's
// only.
func (t *tree) openDir(at int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK
	fd, err := t.open(at, name, flags|unix.O_NOATIME)
	if errors.Is(err, unix.EPERM) {
		fd, err = t.open(at, name, flags)
	}
	return fd, err
}

// list opens a directory and returns its names.
func (t *tree) list(at int, name string) (fd int, names []dirEntry, err error) {
	if fd, err = t.openDir(at, name); err != nil {
		return -1, nil, err
	}
	if names, err = readDir(fd); err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, names, nil
}

// kindOf resolves DT_UNKNOWN without following or entering anything.
func (t *tree) kindOf(dir int, entry dirEntry) byte {
	if entry.kind != unix.DT_UNKNOWN {
		return entry.kind
	}
	var st unix.Stat_t
	_, err := t.statAt(dir, entry.name, &st)
	switch {
	case errors.Is(err, unix.EXDEV):
		return unix.DT_DIR // a mount: opening it as a directory says so
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return unix.DT_DIR
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK:
		return unix.DT_REG
	}
	return unix.DT_LNK
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
