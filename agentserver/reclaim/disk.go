package reclaim

import (
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// diskOf reads the filesystem of a path. Free is what an unprivileged writer
// gets; used does not include what is reserved for root.
func diskOf(path string) (box.Disk, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return box.Disk{}, err
	}
	size := int64(st.Bsize) //nolint:unconvert // the width differs between systems
	return box.Disk{
		TotalBytes: int64(st.Blocks) * size,          //nolint:gosec // no disk is that large
		UsedBytes:  int64(st.Blocks-st.Bfree) * size, //nolint:gosec // no disk is that large
		FreeBytes:  int64(st.Bavail) * size,          //nolint:gosec // no disk is that large
		// Zero files means that the filesystem has no limit.
		TotalInodes: int64(st.Files), //nolint:gosec // no disk has that many
		FreeInodes:  int64(st.Ffree), //nolint:gosec // no disk has that many
	}, nil
}
