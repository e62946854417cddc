package scan

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// beneath keeps a look-up off links and on one mount.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS

// anchor is an open directory that others are opened from. It is closed by
// whoever lets go of it last.
type anchor struct {
	fd    int
	refs  atomic.Int64
	count *atomic.Int64 // goes down when it is closed
}

func newAnchor(fd int) *anchor {
	a := &anchor{fd: fd}
	a.refs.Store(1)
	return a
}

func (a *anchor) hold() *anchor {
	a.refs.Add(1)
	return a
}

func (a *anchor) letGo() {
	if a.refs.Add(-1) == 0 {
		unix.Close(a.fd)
		if a.count != nil {
			a.count.Add(-1)
		}
	}
}

// opener opens directories below the root in a way that no link and no mount can
// lead out of it.
type opener struct {
	openat2 bool
	mount   uint64 // of the root; 0 when the kernel does not number mounts
	// quick are the flags for a look at a name. On a local filesystem the kernel
	// is told not to ask anybody else for fresh figures: then even a look at the
	// mount point of a file server that hangs returns at once.
	quick int
}

func newOpener(root int) (opener, error) {
	o := opener{openat2: true, quick: unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT}
	var st unix.Statx_t
	if err := lookOpen(root, &st); err != nil {
		return o, err
	}
	if st.Mask&unix.STATX_MNT_ID != 0 {
		o.mount = st.Mnt_id
	}
	var disk unix.Statfs_t
	if unix.Fstatfs(root, &disk) == nil && isLocal(int64(disk.Type)) { //nolint:unconvert // the width differs between architectures
		o.quick |= unix.AT_STATX_DONT_SYNC
	}
	fd, err := o.open(root, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		unix.Close(fd)
		return o, nil
	}
	return o, o.fallBack()
}

// fallBack compares the mounts of each step, where the kernel has no openat2 or
// a sandbox forbids it.
func (o *opener) fallBack() error {
	o.openat2 = false
	if o.mount == 0 {
		return box.Errorf(box.ClassUnsupported, "this kernel cannot tell mounts apart, so nothing is measured; Linux 5.8 or newer can")
	}
	return nil
}

// isLocal reports whether a filesystem keeps its own figures, by its magic
// number.
func isLocal(magic int64) bool {
	switch magic {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC:
		return true
	}
	return false
}

// open opens a path of one or more names below the directory at. It fails with
// ELOOP at a link and with EXDEV at a mount.
func (o *opener) open(at int, path string, flags int) (int, error) {
	if !o.openat2 {
		return o.step(at, path, flags)
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: beneath} //nolint:gosec // flags are never negative
	for {
		fd, err := unix.Openat2(at, path, &how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// step opens one name after the other, without following links and without
// waking what lies behind a mount.
func (o *opener) step(at int, path string, flags int) (int, error) {
	from := at
	for name := range strings.SplitSeq(path, "/") {
		if name == ".." || name == "" {
			return -1, unix.EXDEV
		}
		fd, err := unix.Openat(from, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if from != at {
			unix.Close(from)
		}
		if err != nil {
			return -1, err
		}
		from = fd
		var st unix.Statx_t
		err = look(fd, itself, unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, &st)
		switch {
		case err != nil:
		case st.Mnt_id != o.mount:
			err = unix.EXDEV
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			err = unix.ELOOP
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
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
	// Opening the descriptor again cannot reach another directory.
	return unix.Open("/proc/self/fd/"+strconv.Itoa(from), flags&^unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// openDir opens a directory for reading its names. O_NOATIME is the owner's only.
func (o *opener) openDir(at int, path string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK
	fd, err := o.open(at, path, flags|unix.O_NOATIME)
	if errors.Is(err, unix.EPERM) {
		fd, err = o.open(at, path, flags)
	}
	return fd, err
}
