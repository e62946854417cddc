package scan

import (
	"bytes"
	"encoding/binary"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// direntHeader is the fixed part of struct linux_dirent64: inode, offset, length,
// type.
const direntHeader = 8 + 8 + 2 + 1

// entry takes the first entry off a block that getdents64 filled. The name still
// has its NUL at the end, and points into the block. A block that is cut or that
// lies about a length is EBADMSG.
func entry(block []byte) (kind byte, name, rest []byte, err error) {
	if len(block) < direntHeader {
		return 0, nil, nil, unix.EBADMSG
	}
	length := int(binary.NativeEndian.Uint16(block[16:]))
	if length <= direntHeader || length > len(block) {
		return 0, nil, nil, unix.EBADMSG
	}
	name = block[direntHeader:length]
	end := bytes.IndexByte(name, 0)
	if end < 0 {
		return 0, nil, nil, unix.EBADMSG
	}
	return block[18], name[:end+1], block[length:], nil
}

// plain reports whether a name, with its NUL, is one of a file in the directory:
// neither of the two dots, nor one that would lead somewhere else.
func plain(name []byte) bool {
	switch len(name) {
	case 1:
		return false
	case 2:
		return name[0] != '.' && name[0] != '/'
	case 3:
		if name[0] == '.' && name[1] == '.' {
			return false
		}
	}
	return bytes.IndexByte(name, '/') < 0
}

const statMask = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID

// look is statx(2) of a name that ends in NUL. It makes no copy of the name, and
// it may sleep, so the scheduler is told.
func look(dir int, name []byte, flags int, out *unix.Statx_t) error {
	for {
		_, _, errno := syscall.Syscall6(
			unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(&name[0])), //nolint:gosec // a name that ends in NUL, see plain
			uintptr(flags), statMask, uintptr(unsafe.Pointer(out)), 0, //nolint:gosec // as the kernel wants it
		)
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

var itself = []byte{0} //nolint:gochecknoglobals // a constant

// lookOpen is statx(2) of an open descriptor.
func lookOpen(fd int, out *unix.Statx_t) error { return look(fd, itself, unix.AT_EMPTY_PATH, out) }

// read fills the block with entries; 0 is the end of the directory.
func read(fd int, block []byte) (int, error) {
	for {
		n, err := unix.Getdents(fd, block)
		if err != unix.EINTR {
			return n, err
		}
	}
}
