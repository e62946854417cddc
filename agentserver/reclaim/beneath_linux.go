package reclaim

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Beneath opens what lies below one directory, in a way that no link and no
// mount leads out of it. It is for other parts of boxd that read a person's
// files. It is safe for concurrent use until Close.
type Beneath struct{ tree *tree }

// OpenBeneath opens the directory root, which may itself be reached through
// links. Unsupported when this kernel cannot tell mounts apart.
func OpenBeneath(root string) (*Beneath, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", root, err)
	}
	t, err := openTree(root)
	if err != nil {
		return nil, err
	}
	if err := t.usable(); err != nil {
		t.close()
		return nil, err
	}
	return &Beneath{tree: t}, nil
}

// Close ends it; descriptors that it opened stay open.
func (b *Beneath) Close() { b.tree.close() }

// Root is the directory, without links; Fd is a descriptor of it, for Open and
// List.
func (b *Beneath) Root() string { return b.tree.path }

// Fd is a descriptor of the root.
func (b *Beneath) Fd() int { return b.tree.fd }

// Open opens name, which may have several elements, below the directory at. It
// fails with ELOOP at a link, with EXDEV at a mount.
func (b *Beneath) Open(at int, name string, flags int) (int, error) {
	return b.tree.open(at, name, flags)
}

// Name is one name in a directory. Kind is its d_type: one of unix.DT_REG and the
// like, never DT_UNKNOWN.
type Name struct {
	Name string
	Kind byte
}

// List opens a directory and returns its names in no order, without a look at
// what they name, which could hang.
func (b *Beneath) List(at int, name string) (fd int, names []Name, err error) {
	fd, entries, err := b.tree.list(at, name)
	if err != nil {
		return -1, nil, err
	}
	names = make([]Name, len(entries))
	for i, entry := range entries {
		names[i] = Name{Name: entry.name, Kind: b.tree.kindOf(fd, entry)}
	}
	return fd, names, nil
}

// UserOf returns who uses the directory name in dir, both below the root: a
// process that has its working directory, its program, an open or a mapped file
// in it, or names former, the absolute path that it had before it was renamed,
// in its command line or as its environment; empty when nobody is seen. That
// somebody may use it whom we cannot see is an error. Our own process does not
// count.
func (b *Beneath) UserOf(dir, name, former string) (string, error) {
	found, err := b.tree.users(dir, map[string]string{name: former})
	return found[name], err
}

// MountIn returns a mount point at or below dir, an absolute path without links;
// empty when there is none.
func MountIn(dir string) (string, error) { return mountsBelow(filepath.Clean(dir)) }

// MoveAside renames a directory, never over another one, by descriptors of the
// directories that they are in.
func MoveAside(fromDir int, from string, toDir int, to string) error {
	if err := rename(fromDir, from, toDir, to); err != nil {
		return err
	}
	_ = unix.Fsync(fromDir)
	_ = unix.Fsync(toDir)
	return nil
}
