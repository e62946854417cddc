package backup

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncEach says whether each file is synced by itself: there is no call that
// waits for a whole file system here.
const syncEach = true

// settle makes the name of what was written in dir survive a power loss.
func settle(dir *os.File) error { return dir.Sync() }

// renameOnly renames and never replaces.
func renameOnly(from, to string) error { return unix.RenamexNp(from, to, unix.RENAME_EXCL) }
