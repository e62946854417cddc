package reclaim

import (
	"context"

	"golang.org/x/sys/unix"
)

// usedBytes is what lies below the root, links counted once. Mounts and what
// cannot be read are left out.
func (r *Reclaimer) usedBytes(ctx context.Context) (int64, error) {
	fd, names, err := r.tree.list(r.tree.fd, ".")
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	seen := map[inode]bool{}
	var sum int64
	r.tree.weigh(ctx, fd, names, 0, func(st *unix.Stat_t) {
		key := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // the width differs between architectures
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if seen[key] {
				return
			}
			seen[key] = true
		}
		sum += st.Blocks * 512
	})
	return sum, ctx.Err()
}

func (t *tree) weigh(ctx context.Context, fd int, names []dirEntry, depth int, count func(*unix.Stat_t)) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil {
		count(&st)
	}
	if depth > maxDepth || ctx.Err() != nil {
		return
	}
	for _, entry := range names {
		if t.kindOf(fd, entry) != unix.DT_DIR {
			if unix.Fstatat(fd, entry.name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) == nil {
				count(&st)
			}
			continue
		}
		if child, below, err := t.list(fd, entry.name); err == nil {
			t.weigh(ctx, child, below, depth+1, count)
			unix.Close(child)
		}
	}
}
