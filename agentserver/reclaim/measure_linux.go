package reclaim

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// maxDepth bounds how deep a tree is measured: one descriptor is open for each
// level. No tool nests its cache like that.
const maxDepth = 256

type inode struct{ dev, ino uint64 }

// links counts, for a file with several names, how many were met.
type links struct {
	bytes       int64
	nlink, seen uint64
}

// tally is what deleting a set of trees frees: a file counts when its last link
// is inside.
type tally struct {
	single int64 // bytes of what has one name, and of directories
	shared map[inode]*links
	// unread counts directories that could not be read: the sum is a lower bound.
	unread int
	// stay says why the tree must not be taken, empty when it may.
	stay string
}

func newTally() *tally { return &tally{shared: map[inode]*links{}} }

func (t *tally) freed() int64 {
	sum := t.single
	for _, l := range t.shared {
		if l.seen >= l.nlink {
			sum += l.bytes
		}
	}
	return sum
}

// add joins o into t, so that links between the two count once.
func (t *tally) add(o *tally) {
	t.single += o.single
	t.unread += o.unread
	for key, l := range o.shared {
		if have := t.shared[key]; have != nil {
			have.seen += l.seen
		} else {
			again := *l
			t.shared[key] = &again
		}
	}
}

func (t *tally) count(st *unix.Stat_t) {
	bytes := st.Blocks * 512
	if st.Mode&unix.S_IFMT == unix.S_IFDIR || st.Nlink <= 1 {
		t.single += bytes
		return
	}
	key := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // the width differs between architectures
	if have := t.shared[key]; have != nil {
		have.seen++
		return
	}
	t.shared[key] = &links{bytes: bytes, nlink: uint64(st.Nlink), seen: 1} //nolint:unconvert // the width differs between architectures
}

// measure adds the tree whose directory is open at fd, which it keeps open.
// It also looks for what must never go, as look says. Entries that vanish
// meanwhile are no error.
func (t *tree) measure(ctx context.Context, fd int, names []dirEntry, look look, depth int, out *tally) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	out.count(&st)
	if depth > maxDepth {
		out.stay = "nested deeper than any cache is"
		return nil
	}
	for _, entry := range names {
		if out.stay != "" {
			return nil
		}
		if pattern, bad := look.mustStay(entry.name); bad {
			out.stay = "holds " + pattern + ", which no cache holds"
			return nil
		}
		if t.kindOf(fd, entry) != unix.DT_DIR {
			if unix.Fstatat(fd, entry.name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) == nil {
				out.count(&st)
			}
			continue
		}
		child, below, err := t.list(fd, entry.name)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		case errors.Is(err, unix.EXDEV):
			out.stay = "another filesystem is mounted inside"
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
			return err
		case err != nil:
			out.unread++
		default:
			err = t.measure(ctx, child, below, look, depth+1, out)
			unix.Close(child)
			if err != nil {
				return err
			}
		}
	}
	return nil
}
