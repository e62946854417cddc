package backup

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// changedNamed is how many of the files that changed are named.
const changedNamed = 5

// inode names a file, whatever its names.
type inode struct{ device, number uint64 }

// first is where a file with several names was met first, and how it was.
type first struct {
	rel      string
	size     int64
	modified time.Time
}

// walker writes a tree into an archive. It goes from directory to directory by
// descriptor and follows no link: in boxes that run, names may be exchanged at
// any moment.
type walker struct {
	ctx     context.Context //nolint:containedctx // it lives as long as one call
	rules   rules
	archive *archive
	engine  string // the copy of the engine's data file
	linked  map[inode]first
	left    map[string]int
	changed []string
	changes int
	noticed string // the last of them
}

// whole writes the data directory.
func (w *walker) whole(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return box.Invalidf("data", "open the data directory %s: %v", dir, bare(err))
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return failed(err, "look at the data directory %s", dir)
	}
	return w.directory(root, "", info, 0)
}

// directory writes a directory, which is open, and what is in it.
func (w *walker) directory(dir *os.Root, rel string, info fs.FileInfo, depth int) error {
	if depth > maxDepth {
		return box.Errorf(box.ClassFailedPrecondition, "%q lies more than %d directories deep; move it up, or leave the boxes out with --no-boxes", rel, maxDepth)
	}
	e, err := entryFor(rel, info, tar.TypeDir)
	if err != nil {
		return err
	}
	if err := w.archive.add(e); err != nil {
		return err
	}
	if rel == engineDir {
		if err := w.dataFile(); err != nil {
			return err
		}
	}
	names, err := names(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // deleted meanwhile, it is empty
		return w.unreadable(err, rel)
	}
	w.rules.order(rel, names)
	for _, name := range names {
		if err := ended(w.ctx, "back up"); err != nil {
			return err
		}
		if err := w.child(dir, name, path.Join(rel, name), info, depth); err != nil {
			return err
		}
	}
	return nil
}

func names(dir *os.Root) ([]string, error) {
	opened, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	return opened.Readdirnames(-1)
}

// child writes one entry of a directory, whatever it is by now.
func (w *walker) child(dir *os.Root, name, rel string, parent fs.FileInfo, depth int) error {
	for range 3 {
		if err := w.once(dir, name, rel, parent, depth); !errors.Is(err, errExchanged) {
			return err
		}
	}
	return box.Errorf(box.ClassConflict, "%q was exchanged again and again while it was read; suspend its box first, or leave the boxes out with --no-boxes", rel)
}

// once is child, as long as nobody exchanges the entry. What is gone by now,
// was deleted.
func (w *walker) once(dir *os.Root, name, rel string, parent fs.FileInfo, depth int) error {
	info, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return w.unreadable(err, rel)
	}
	if why, out := w.rules.leaves(rel, info.Mode()); out {
		w.leave(why)
		return nil
	}
	switch {
	case info.Mode().IsRegular():
		return w.file(dir, name, rel, info)
	case info.Mode()&fs.ModeSymlink != 0:
		return w.symlink(dir, name, rel, info)
	}
	if deviceOf(info) != deviceOf(parent) && w.rules.inBox(rel) {
		w.leave(leftMounts)
		return nil
	}
	below, err := dir.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
		return errExchanged
	}
	if err != nil {
		return w.unreadable(err, rel)
	}
	defer below.Close()
	opened, err := below.Stat(".")
	if err != nil {
		return w.unreadable(err, rel)
	}
	if !os.SameFile(info, opened) {
		return errExchanged
	}
	return w.directory(below, rel, opened, depth+1)
}

func (w *walker) leave(why string) {
	if why != leftNowhere {
		w.left[why]++
	}
}

func (w *walker) unreadable(err error, rel string) error {
	if errors.Is(err, fs.ErrPermission) {
		return box.Errorf(box.ClassFailedPrecondition,
			"read %q: %w; make it readable, run this as a user who can read it, or leave the boxes out with --no-boxes", rel, bare(err))
	}
	return failed(err, "read %q", rel)
}

// errExchanged says that another entry took the name between two calls. Nothing
// was written for it.
var errExchanged = errors.New("it was exchanged for something else")

func (w *walker) symlink(dir *os.Root, name, rel string, info fs.FileInfo) error {
	target, err := dir.Readlink(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, syscall.EINVAL) {
		return errExchanged
	}
	if err != nil {
		return w.unreadable(err, rel)
	}
	e, err := entryFor(rel, info, tar.TypeSymlink)
	if err != nil {
		return err
	}
	e.target = target
	return w.archive.add(e)
}

// file writes a regular file, or the fact that it is one that was written
// before under another name.
func (w *walker) file(dir *os.Root, name, rel string, seen fs.FileInfo) error {
	// Without O_NONBLOCK a pipe that takes the file's place would hold us here.
	file, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) {
		return errExchanged
	}
	if err != nil {
		return w.unreadable(err, rel)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return w.unreadable(err, rel)
	}
	if !info.Mode().IsRegular() {
		return errExchanged
	}
	if !os.SameFile(seen, info) {
		w.notice(rel) // replaced as a whole, as careful writers do: the new one is as good
	}
	e, err := entryFor(rel, info, tar.TypeReg)
	if err != nil {
		return err
	}
	at, many := inodeOf(info)
	if before, known := w.linked[at]; known && many && before.size == e.size && before.modified.Equal(e.modified) {
		e.kind, e.size, e.target = tar.TypeLink, 0, before.rel
		return w.archive.add(e)
	}
	e.linked = many
	if e, err = w.content(e, file); err != nil {
		return err
	}
	if many {
		w.linked[at] = first{rel: e.rel, size: e.size, modified: e.modified}
	}
	return nil
}

// content writes exactly the size that a file has at its opening. If it gets
// shorter meanwhile it is read once more, through the same descriptor, so that
// it cannot vanish in between.
func (w *walker) content(e entry, file *os.File) (entry, error) {
	for again := false; ; again = true {
		err := w.archive.file(e, file)
		if err == nil {
			break
		}
		if !errors.Is(err, errShorter) {
			return e, err
		}
		if again {
			return e, box.Errorf(box.ClassConflict,
				"%q got shorter twice while it was read; suspend its box first, or leave the boxes out with --no-boxes", e.rel)
		}
		info, err := file.Stat()
		if err != nil {
			return e, w.unreadable(err, e.rel)
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return e, w.unreadable(err, e.rel)
		}
		linked := e.linked
		if e, err = entryFor(e.rel, info, tar.TypeReg); err != nil {
			return e, err
		}
		e.linked = linked
		w.notice(e.rel)
	}
	if after, err := file.Stat(); err != nil || after.Size() != e.size || !after.ModTime().Equal(e.modified) {
		w.notice(e.rel)
	}
	return e, nil
}

// notice counts a file that was written to while it was read.
func (w *walker) notice(rel string) {
	if rel == w.noticed {
		return
	}
	w.noticed = rel
	w.changes++
	if len(w.changed) < changedNamed {
		w.changed = append(w.changed, rel)
	}
}

// dataFile writes the engine's copy of its data file.
func (w *walker) dataFile() error {
	file, err := os.Open(w.engine)
	if err != nil {
		return failed(err, "read the copy of the engine's data file")
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return failed(err, "read the copy of the engine's data file")
	}
	e, err := entryFor(dataFile, info, tar.TypeReg)
	if err != nil {
		return err
	}
	return w.archive.file(e, file)
}

func entryFor(rel string, info fs.FileInfo, kind byte) (entry, error) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return entry{}, box.Errorf(box.ClassUnsupported, "this system does not tell the owner of %q", rel)
	}
	e := entry{rel: rel, kind: kind, mode: info.Mode(), modified: info.ModTime(), uid: int(stat.Uid), gid: int(stat.Gid)}
	if kind == tar.TypeReg {
		e.size = info.Size()
	}
	return e, nil
}

func deviceOf(info fs.FileInfo) uint64 {
	at, _ := inodeOf(info)
	return at.device
}

// inodeOf returns which file this is, and whether it has several names.
func inodeOf(info fs.FileInfo) (at inode, many bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return inode{}, false
	}
	//nolint:gosec,unconvert,nolintlint // the types differ between systems, the values fit
	return inode{device: uint64(stat.Dev), number: uint64(stat.Ino)}, uint64(stat.Nlink) > 1
}
