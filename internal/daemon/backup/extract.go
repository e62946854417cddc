package backup

import (
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/openhands/boxkeeper/box"
)

// extract is the visitor that writes a data directory into a directory that
// nobody else uses.
type extract struct {
	top    string // the new data directory; it is there and empty
	engine string // where the engine's data file goes
	owners bool   // give files to their owners, as root may
	stack  []level
	linked map[string]bool // files that hard links may name
	keeper entry           // the engine's directory, for the owner of what is in it
}

// level is a directory that was entered.
type level struct {
	root *os.Root
	entry
}

// close closes what an error left open.
func (x *extract) close() {
	for _, l := range x.stack {
		l.root.Close()
	}
}

func (x *extract) here() *os.Root { return x.stack[len(x.stack)-1].root }

func (x *extract) enter(e entry) error {
	if len(x.stack) == 0 {
		root, err := os.OpenRoot(x.top)
		if err != nil {
			return failed(err, "open %s", x.top)
		}
		x.stack = append(x.stack, level{root, e})
		return nil
	}
	if err := x.here().Mkdir(e.base(), 0o700); err != nil {
		return x.failed(err, e)
	}
	root, err := x.here().OpenRoot(e.base())
	if err != nil {
		return x.failed(err, e)
	}
	x.stack = append(x.stack, level{root, e})
	if e.rel == engineDir {
		x.keeper = e
	}
	return nil
}

// handOver gives what was made for the engine to the owner of its directory,
// who may be another than the one who restores.
func (x *extract) handOver() error {
	if !x.owners {
		return nil
	}
	dir := filepath.Join(x.top, engineDir)
	made, err := os.ReadDir(dir)
	if err != nil {
		return x.failed(err, x.keeper)
	}
	for _, m := range made {
		if err := os.Lchown(filepath.Join(dir, m.Name()), x.keeper.uid, x.keeper.gid); err != nil {
			return x.failed(err, x.keeper)
		}
	}
	return nil
}

// leave gives a directory its mode and its times, when nothing in it changes
// any more.
func (x *extract) leave() error {
	l := x.stack[len(x.stack)-1]
	x.stack = x.stack[:len(x.stack)-1]
	l.root.Close()
	if len(x.stack) > 0 {
		return x.finish(l.entry)
	}
	// It is moved as a whole later, which takes the right to write to it.
	if x.owners {
		if err := os.Chown(x.top, l.uid, l.gid); err != nil {
			return x.failed(err, l.entry)
		}
	}
	return x.failed(os.Chmod(x.top, l.mode.Perm()|0o700), l.entry)
}

// finish sets owner, mode and times of a file or directory that was made here.
func (x *extract) finish(e entry) error {
	if x.owners { // first: a change of owner takes set-id bits away
		if err := x.here().Lchown(e.base(), e.uid, e.gid); err != nil {
			return x.failed(err, e)
		}
	}
	if err := x.here().Chmod(e.base(), fileMode(unixMode(e.mode))); err != nil {
		return x.failed(err, e)
	}
	return x.failed(x.here().Chtimes(e.base(), e.modified, e.modified), e)
}

func (x *extract) file(e entry, content io.Reader, again bool) error {
	if e.rel == dataFile {
		if again {
			return notOurs("the engine's data file is in it twice")
		}
		file, err := os.OpenFile(x.engine, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return x.failed(err, e)
		}
		return x.write(e, file, content)
	}
	if again {
		if err := x.here().Remove(e.base()); err != nil {
			return x.failed(err, e)
		}
	}
	file, err := x.here().OpenFile(e.base(), os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return x.failed(err, e)
	}
	if err := x.write(e, file, content); err != nil {
		return err
	}
	if e.linked {
		x.linked[e.rel] = true
	}
	return x.finish(e)
}

// write fills a file, with holes where there are only zeros, and closes it.
func (x *extract) write(e entry, file *os.File, content io.Reader) (err error) {
	defer func() {
		if closed := file.Close(); err == nil {
			err = x.failed(closed, e)
		}
	}()
	err = blocks(content, func(data []byte) error {
		_, err := file.Write(data)
		return x.failed(err, e)
	}, func(n int64) error {
		_, err := file.Seek(n, io.SeekCurrent)
		return x.failed(err, e)
	})
	if err != nil {
		return err
	}
	if err := file.Truncate(e.size); err != nil {
		return x.failed(err, e)
	}
	if syncEach {
		return x.failed(file.Sync(), e)
	}
	return nil
}

func (x *extract) symlink(e entry) error {
	if err := x.here().Symlink(e.target, e.base()); err != nil {
		return x.failed(err, e)
	}
	if x.owners {
		return x.failed(x.here().Lchown(e.base(), e.uid, e.gid), e)
	}
	return nil
}

func (x *extract) hardlink(e entry) error {
	if !x.linked[e.target] {
		return notOurs("the hard link %q names no file before it", e.rel)
	}
	return x.failed(x.stack[0].root.Link(e.target, e.rel), e)
}

func (x *extract) failed(err error, e entry) error {
	if err == nil {
		return nil
	}
	if os.IsExist(err) {
		return &box.Error{
			Class: box.ClassInvalid, Field: "file",
			Message: "the backup holds two files where this file system keeps one", Err: notOurs("%q", e.rel),
		}
	}
	return failed(err, "write %q", e.rel)
}
