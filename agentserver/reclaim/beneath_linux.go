package reclaim

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

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

// UserOf returns a process that has its working directory, its program, an open
// or a mapped file in the directory dir, or names former in its command line or
// environment, as one does that was started from an environment in it; empty
// when none is seen. Both are absolute paths without links; former is where dir
// was before it was renamed. Our own process does not count.
func UserOf(dir, former string) (string, error) {
	// A child of ours holds all of our descriptors until it runs its program.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return "", fmt.Errorf("read the list of processes: %w", err)
	}
	own := strconv.Itoa(os.Getpid())
	for _, process := range processes {
		pid := process.Name()
		if pid == own || strings.Trim(pid, "0123456789") != "" {
			continue
		}
		// The directory itself is what a shell in it has for its own.
		cwd, _ := os.Readlink("/proc/" + pid + "/cwd")
		if cwd == dir || len(placesOf(pid, dir+"/")) > 0 || names(pid, former) {
			return "process " + pid + commandOf(pid), nil
		}
	}
	return "", nil
}

// names reports whether a process was started with dir, or something below it.
func names(pid, dir string) bool {
	for _, file := range []string{"/cmdline", "/environ"} {
		text, _ := os.ReadFile("/proc/" + pid + file) // unreadable: another user's, see the package comment
		for rest := text; ; {
			at := bytes.Index(rest, []byte(dir))
			if at < 0 {
				break
			}
			rest = rest[at+len(dir):]
			if len(rest) == 0 || strings.IndexByte("/\x00: ", rest[0]) >= 0 {
				return true
			}
		}
	}
	return false
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
