package reclaim

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openDirs bounds how many directories of one path are open at once; those
// further up are closed and found again from below.
const openDirs = 64

type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Stat_t) inode {
	return inode{uint64(st.Dev), st.Ino} //nolint:unconvert // the width differs between architectures
}

// links counts, for a file with several names, how many were met. There can be a
// million of them.
type links struct {
	bytes       int64
	nlink, seen uint32
}

// met is l with more names seen.
func (l links) met(names uint32) links {
	l.seen += names
	return l
}

// tally is what deleting a set of trees frees: a file counts when its last link
// is inside.
type tally struct {
	single  int64 // bytes of what has one name, and of directories
	singles int64 // how many those are
	shared  map[inode]links
	// unread counts what could not be read; faults says it in words.
	unread int
	faults faults
	// least counts files that share blocks with others, or may: only what is
	// theirs alone is in the sum.
	least int
	// stay says why the tree must not be taken, empty when it may.
	stay string
}

func newTally() *tally { return &tally{shared: map[inode]links{}} }

// freed is the bytes that come free.
func (t *tally) freed() int64 {
	sum := t.single
	for _, l := range t.shared {
		if l.seen >= l.nlink {
			sum += l.bytes
		}
	}
	return sum
}

// inodes is how many files and directories go.
func (t *tally) inodes() int64 {
	sum := t.singles
	for _, l := range t.shared {
		if l.seen >= l.nlink {
			sum++
		}
	}
	return sum
}

// lowerBound says that at least freed come free.
func (t *tally) lowerBound() bool { return t.unread > 0 || t.least > 0 }

// add joins o into t, so that links between the two count once. It uses o up.
func (t *tally) add(o *tally) {
	t.single += o.single
	t.singles += o.singles
	t.unread += o.unread
	t.faults.join(&o.faults)
	t.least += o.least
	if len(t.shared) < len(o.shared) {
		t.shared, o.shared = o.shared, t.shared
	}
	for key, l := range o.shared {
		if have, ok := t.shared[key]; ok {
			l = have.met(l.seen)
		}
		t.shared[key] = l
	}
	o.shared = nil
}

func (t *tally) count(st *unix.Stat_t) {
	bytes := st.Blocks * 512
	if st.Mode&unix.S_IFMT == unix.S_IFDIR || st.Nlink <= 1 {
		t.single += bytes
		t.singles++
		return
	}
	key := inodeOf(st)
	have, ok := t.shared[key]
	if !ok {
		have = links{bytes: bytes, nlink: uint32(st.Nlink)} //nolint:gosec // no file has that many
	}
	t.shared[key] = have.met(1)
}

func (t *tally) fault(op, place string, err error) {
	t.unread++
	t.faults.add(op, place, err)
}

// measure adds the tree whose directory is open at fd, which it keeps open, and
// whose names were read. It also looks for what must never go, as look says.
// Entries that vanish meanwhile are no error. Memory grows with the depth and
// with how many subdirectories one directory has, not with the files.
func (t *tree) measure(ctx context.Context, fd int, names []dirEntry, look look, out *tally) error {
	if out.stay = unfit(fd); out.stay != "" {
		return nil
	}
	return t.run(ctx, &measuring{tree: t, look: look, out: out, keep: fd}, fd, names)
}

// unfit says why an open directory must stay, as far as that shows without going
// in. The table of mounts never blocks.
func unfit(fd int) string {
	if place, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err == nil {
		if mount, err := mountsBelow(place); err == nil && mount != "" {
			return mountedInside
		}
	}
	if inImage(fd) {
		return inLayer
	}
	return ""
}

// walk is measure without the sizes: it only looks for what must never go.
func (t *tree) walk(ctx context.Context, fd int, names []dirEntry, look look, out *tally) error {
	return t.run(ctx, &measuring{tree: t, look: look, out: out, keep: fd, namesOnly: true}, fd, names)
}

func (*tree) run(ctx context.Context, m *measuring, fd int, names []dirEntry) error {
	defer m.close()
	if err := m.push(fd, ""); err != nil {
		return err
	}
	for _, entry := range names {
		m.meet(entry)
	}
	for len(m.path) > 0 && m.out.stay == "" {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.step(); err != nil {
			return err
		}
	}
	return nil
}

// measuring is one walk.
type measuring struct {
	tree *tree
	look look
	out  *tally
	keep int // the caller's descriptor
	// namesOnly leaves the sizes out.
	namesOnly bool
	path      []opened
}

// opened is a directory on the way to where the walk is.
type opened struct {
	fd   int // -1 while it is closed
	id   inode
	name string
	dirs []string // below it, still to be measured
	bare byte     // which names of a bare repository are in it
}

// bareNames are those by which git takes a directory for a bare repository.
var bareNames = map[string]byte{"HEAD": 1, "objects": 2, "refs": 4} //nolint:gochecknoglobals // a constant table

const bareRepository = 1 | 2 | 4

func (m *measuring) close() {
	for _, l := range m.path {
		m.release(l.fd)
	}
}

func (m *measuring) release(fd int) {
	if fd >= 0 && fd != m.keep {
		unix.Close(fd)
	}
}

func (m *measuring) push(fd int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		m.release(fd)
		return err
	}
	m.out.count(&st)
	m.path = append(m.path, opened{fd: fd, id: inodeOf(&st), name: name})
	if far := len(m.path) - 1 - openDirs; far > 0 {
		m.release(m.path[far].fd)
		m.path[far].fd = -1
	}
	return nil
}

// place names an entry of the directory where the walk is, from the item on.
func (m *measuring) place(name string) string {
	var out strings.Builder
	for _, l := range m.path[1:] {
		out.WriteString(l.name + "/")
	}
	return out.String() + name
}

// meet counts one name, or puts it aside when it is a directory.
func (m *measuring) meet(entry dirEntry) {
	if m.out.stay != "" {
		return
	}
	here := &m.path[len(m.path)-1]
	if pattern, bad := m.look.mustStay(entry.name); bad {
		m.out.stay = "holds " + pattern + ", which no cache holds"
		return
	}
	// A clone without a working tree has no .git.
	if here.bare |= bareNames[entry.name]; here.bare == bareRepository && m.look != lookNone {
		m.out.stay = "holds a bare repository, which no cache holds: " + strings.TrimSuffix("./"+m.place(""), "/")
		return
	}
	if m.tree.kindOf(here.fd, entry) == unix.DT_DIR {
		here.dirs = append(here.dirs, entry.name)
		return
	}
	if m.namesOnly {
		return
	}
	var st unix.Stat_t
	_, err := m.tree.statAt(here.fd, entry.name, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
	case errors.Is(err, unix.EXDEV):
		m.out.stay = mountedInside
	case err != nil:
		m.out.fault("stat", m.place(entry.name), err)
	case st.Mode&unix.S_IFMT == unix.S_IFDIR: // it took the place of a file
		here.dirs = append(here.dirs, entry.name)
	default:
		if !m.tree.unshare(here.fd, entry.name, &st) {
			m.out.least++
		}
		m.out.count(&st)
	}
}

// mountedInside is the reason of a tree that carries a mount.
const mountedInside = "another filesystem is mounted inside"

// step goes into the next directory, or back when there is none.
func (m *measuring) step() error {
	here := &m.path[len(m.path)-1]
	if len(here.dirs) == 0 {
		m.pop()
		return nil
	}
	name := here.dirs[len(here.dirs)-1]
	here.dirs = here.dirs[:len(here.dirs)-1]
	fd, err := m.tree.openDir(here.fd, name)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil
	case errors.Is(err, unix.EXDEV):
		m.out.stay = mountedInside
		return nil
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return err
	case err != nil:
		place := m.place(name)
		m.out.fault("open", place, err)
		if m.look != lookNone {
			m.out.stay = "cannot tell whether work is inside, open " + place + ": " + reason(err)
		}
		return nil
	}
	if err := m.push(fd, name); err != nil {
		return err
	}
	m.read(fd)
	return nil
}

// read meets all that is in the directory where the walk is.
func (m *measuring) read(fd int) {
	for all := readNames(fd); ; {
		entry, ok, err := all.next()
		if err != nil {
			m.out.fault("read", m.place(""), err)
		}
		if err != nil || !ok {
			return
		}
		m.meet(entry)
	}
}

func (m *measuring) pop() {
	last := len(m.path) - 1
	done := m.path[last]
	m.path = m.path[:last]
	if last > 0 && m.path[last-1].fd < 0 {
		var err error
		if m.path[last-1].fd, err = m.tree.parent(done.fd, m.path[last-1].id); err != nil {
			m.out.stay = "changed while it was measured: " + reason(err)
		}
	}
	m.release(done.fd)
}
