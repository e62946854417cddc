package backup

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncEach says whether each file is synced by itself; here one call at the end
// does it for all of them.
const syncEach = false

// settle makes all that was written below dir survive a power loss.
func settle(dir *os.File) error { return unix.Syncfs(int(dir.Fd())) }

// renameOnly renames and never replaces.
func renameOnly(from, to string) error {
	return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
}
