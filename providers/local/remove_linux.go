package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// deepest is how many directories are open at once; what lies deeper is moved
// up first, so that no tree can exhaust descriptors or the stack.
const deepest = 64

// remover empties one directory tree. It goes from directory to directory by
// descriptor and never by path, so that nothing that is exchanged for a link
// meanwhile leads it elsewhere.
type remover struct {
	ctx     context.Context //nolint:containedctx // of one call
	top     int
	hoisted int
}

// removeTree removes name under dir, follows no link and crosses no mount. It
// is safe to repeat.
func removeTree(ctx context.Context, dir, name string) error {
	parent, err := os.Open(dir)
	if err != nil {
		return ioError("open "+dir, err)
	}
	defer parent.Close()
	r := &remover{ctx: ctx, top: -1}
	return r.entry(int(parent.Fd()), name, name, 0)
}

// entry removes one entry of the directory at.
func (r *remover) entry(at int, name, shown string, depth int) error {
	if err := driver.Ended(r.ctx); err != nil {
		return err
	}
	err := unix.Unlinkat(at, name, 0)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return mounted(shown)
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return ioError(fmt.Sprintf("remove %q", shown), err)
	}
	dir, opened := openDir(at, name)
	switch {
	case errors.Is(opened, unix.EXDEV):
		return mounted(shown)
	case errors.Is(opened, unix.ENOTDIR) || errors.Is(opened, unix.ELOOP):
		// Not a directory, so EPERM meant what it says: an immutable file.
		return ioError(fmt.Sprintf("remove %q", shown), err)
	case errors.Is(opened, unix.ENOSYS):
		return box.Errorf(box.ClassUnsupported, "removing a box's directory safely needs Linux 5.6 or newer: %w", opened)
	case opened != nil:
		return ioError(fmt.Sprintf("open %q", shown), opened)
	}
	defer dir.Close()
	if depth == deepest {
		return r.hoist(at, name, shown)
	}
	if depth == 0 {
		r.top = int(dir.Fd())
	}
	if err := r.empty(dir, shown, depth); err != nil {
		return err
	}
	if err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		if errors.Is(err, unix.EBUSY) {
			return mounted(shown)
		}
		return ioError(fmt.Sprintf("remove %q", shown), err)
	}
	return nil
}

// empty removes all that a directory holds. It reads from the start after each
// round, since removing shifts what a reading goes on from.
func (r *remover) empty(dir *os.File, shown string, depth int) error {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return ioError(fmt.Sprintf("list %q", shown), err)
		}
		names, err := dir.Readdirnames(1024)
		if err != nil && !errors.Is(err, io.EOF) {
			return ioError(fmt.Sprintf("list %q", shown), err)
		}
		if len(names) == 0 {
			return nil
		}
		for _, name := range names {
			if err := r.entry(int(dir.Fd()), name, shown+"/"+name, depth+1); err != nil {
				return err
			}
		}
	}
}

// hoist moves a directory to the top of the tree, where a later round finds it.
func (r *remover) hoist(at int, name, shown string) error {
	for {
		r.hoisted++
		err := unix.Renameat2(at, name, r.top, fmt.Sprintf(".deep-%d", r.hoisted), unix.RENAME_NOREPLACE)
		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EBUSY):
			return mounted(shown)
		case !errors.Is(err, unix.EEXIST):
			return ioError(fmt.Sprintf("move %q up", shown), err)
		}
	}
}

// openDir opens a real directory on the same mount, and makes it ours to empty:
// dependency caches are often without write permission.
func openDir(at int, name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	}
	fd, err := openat2(at, name, how)
	if errors.Is(err, unix.EACCES) {
		path := how
		path.Flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		bare, bareErr := openat2(at, name, path)
		if bareErr != nil {
			return nil, bareErr
		}
		err = unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", bare), 0o700)
		_ = unix.Close(bare)
		if err != nil {
			return nil, err
		}
		fd, err = openat2(at, name, how)
	}
	if err != nil {
		return nil, err
	}
	_ = unix.Fchmod(fd, 0o700) // if it matters, the removal says so
	return os.NewFile(uintptr(fd), name), nil
}

func openat2(at int, name string, how unix.OpenHow) (int, error) {
	for {
		fd, err := unix.Openat2(at, name, &how)
		// EAGAIN: something was renamed elsewhere while this was resolved.
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

func mounted(shown string) error {
	return box.Errorf(box.ClassFailedPrecondition, "something is mounted at %q; unmount it first", shown)
}

// refuseMounts answers FailedPrecondition when something is mounted at or below
// dir.
func refuseMounts(dir string) error {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ioError("look for mounts", err)
	}
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if at := unescape(fields[4]); at == dir || strings.HasPrefix(at, dir+"/") {
			return mounted(at)
		}
	}
	return nil
}

// unescape reads the octal escapes of mountinfo.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}
