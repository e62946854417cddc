package reclaim

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Filesystems by the number that statfs gives them.
const (
	ext4Magic     = 0xef53 // ext2 and ext3 too
	tmpfsMagic    = 0x01021994
	f2fsMagic     = 0xf2f52010
	overlayMagic  = 0x794c7630
	xfsMagic      = 0x58465342
	btrfsMagic    = 0x9123683e
	bcachefsMagic = 0xca451a4e
	ocfs2Magic    = 0x7461636f
)

func magicOf(fd int) int64 {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return 0
	}
	return int64(uint32(st.Type)) //nolint:gosec // the width and sign differ between architectures
}

// sharesBlocks reports whether a copy on this filesystem may share its blocks
// with the original and can tell so. An overlay passes the question on. Network
// and FUSE filesystems, and ZFS, can't tell: there a file counts as allocated.
func sharesBlocks(fd int) bool {
	switch magicOf(fd) {
	case xfsMagic, btrfsMagic, bcachefsMagic, ocfs2Magic, overlayMagic:
		return true
	}
	return false
}

// unshare lowers what a file is counted with to the blocks that are its alone,
// and reports whether these are all of them: a clone gives back nothing while
// the other one lives, and its link count is one. What can't be told counts as
// shared.
func (t *tree) unshare(dir int, name string, st *unix.Stat_t) (whole bool) {
	if !t.shares || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Blocks == 0 {
		return true
	}
	const flags = unix.O_RDONLY | unix.O_NONBLOCK
	fd, err := t.open(dir, name, flags|unix.O_NOATIME)
	if errors.Is(err, unix.EPERM) {
		fd, err = t.open(dir, name, flags)
	}
	own := int64(0)
	if err == nil {
		own, whole = extents(fd)
		unix.Close(fd)
	}
	if !whole {
		st.Blocks = min(st.Blocks, own/512)
	}
	return whole
}

// inLayer is the reason of what lies in an image: deleting it from the overlay
// frees nothing and takes space for a mark that it is gone.
const inLayer = "lies in a layer of the image, where removing it frees nothing"

// inImage reports whether an open directory on an overlay lies in a lower layer,
// in part or whole. Its file handle tells that since Linux 6.6; before, it is
// found only when the directory can't be renamed. What was made in an upper
// directory is all above the layers.
func inImage(fd int) bool {
	if magicOf(fd) != overlayMagic {
		return false
	}
	const identifyOnly, overlayHandle, headMagic, inUpper = 0x200, 0xf8, 0xfb, 0x04
	handle, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH|identifyOnly)
	if err != nil || handle.Type() != overlayHandle || handle.Size() < 8 {
		return false
	}
	head := handle.Bytes()[3:] // aligned so that the identity is; version, magic, length, flags
	return head[1] == headMagic && head[3]&inUpper == 0
}

// The numbers of FS_IOC_FIEMAP (linux/fiemap.h).
const (
	fiemapRequest = 0xc020660b
	fiemapHead    = 32
	fiemapExtent  = 56
	fiemapBatch   = 128

	extentLast    = 0x1
	extentUnknown = 0x2
	extentDelayed = 0x4
	extentEncoded = 0x8
	extentInline  = 0x200
	extentShared  = 0x2000
)

// extents sums the blocks that an open file has to itself. whole says that
// these are all of its blocks.
func extents(fd int) (own int64, whole bool) {
	buffer := make([]byte, fiemapHead+fiemapBatch*fiemapExtent)
	whole = true
	for start := uint64(0); ; {
		clear(buffer)
		binary.NativeEndian.PutUint64(buffer[0:], start)
		binary.NativeEndian.PutUint64(buffer[8:], ^uint64(0)-start)
		binary.NativeEndian.PutUint32(buffer[24:], fiemapBatch)
		//nolint:gosec // the kernel fills the buffer, which lives until the call is back
		if _, _, number := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fiemapRequest, uintptr(unsafe.Pointer(&buffer[0]))); number != 0 {
			return 0, false
		}
		mapped := int(binary.NativeEndian.Uint32(buffer[20:]))
		if mapped == 0 {
			return own, whole
		}
		for i := range mapped {
			extent := buffer[fiemapHead+i*fiemapExtent:]
			logical, length := binary.NativeEndian.Uint64(extent), binary.NativeEndian.Uint64(extent[16:])
			flags := binary.NativeEndian.Uint32(extent[40:])
			// What is not written back yet has blocks reserved for it alone.
			if flags&extentDelayed == 0 && flags&(extentShared|extentUnknown|extentEncoded|extentInline) != 0 {
				whole = false
			} else {
				own += int64(length) //nolint:gosec // no file is that large
			}
			if flags&extentLast != 0 {
				return own, whole
			}
			start = logical + length
		}
	}
}
