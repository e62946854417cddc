//go:build unix

package repo

import (
	"io/fs"
	"syscall"
)

// noFollow opens neither a link nor, blocking, a pipe.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

func ownerOf(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
