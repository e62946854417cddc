package unpack

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/box"
)

const (
	maxDepth = 250
	// maxShut bounds the directories that their owner may not write to, which get
	// their mode at the end.
	maxShut = 100_000
	// ourDir lets us write until then.
	ourDir = 0o700
)

// Dir is the directory that a tree is written below. It is used by one
// goroutine. The errors of its methods are of class Unknown for what no archive
// that means well holds, AlreadyExists for what is there, Exhausted when the disk
// is full, and Internal for what else fails here.
type Dir struct {
	root *os.Root
	// open is the directory of the newest entry and those around it: entries come
	// in the order of a walk.
	open []string
	shut []Shut
}

// Shut is a directory that waits for its mode. Its name is in bytes, so that JSON
// keeps what is no text.
type Shut struct {
	Name []byte `json:"name"`
	Mode uint32 `json:"mode"`
}

// In takes a directory, which stays the caller's.
func In(root *os.Root) *Dir { return &Dir{root: root} }

// Directory makes one. Those around it that no entry told of are made private.
func (d *Dir) Directory(name string, mode fs.FileMode) error {
	if err := d.around(name); err != nil {
		return err
	}
	if err := d.mkdir(name); err != nil {
		return err
	}
	d.open = append(d.open, name)
	if mode&ourDir != ourDir {
		if len(d.shut) == maxShut {
			return box.Errorf(box.ClassExhausted, "more than %d directories are closed to their owner", maxShut)
		}
		d.shut = append(d.shut, Shut{[]byte(name), uint32(mode)})
		return nil
	}
	return local("set the mode of", name, d.root.Chmod(name, mode))
}

// File makes a file that is filled by writing. Close makes it whole: its length,
// mode and time. One that is not closed, or closed after an error, is worth
// nothing.
func (d *Dir) File(name string, mode fs.FileMode, modified time.Time) (io.WriteCloser, error) {
	if err := d.around(name); err != nil {
		return nil, err
	}
	f, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, local("make", name, err)
	}
	return &file{dir: d, name: name, file: f, mode: mode, modified: modified}, nil
}

// Link makes a symbolic link, wherever it leads: nothing here follows it.
func (d *Dir) Link(name, target string) error {
	if err := d.around(name); err != nil {
		return err
	}
	if target == "" || strings.ContainsRune(target, 0) {
		return hostile(name, "links to nothing")
	}
	return local("make the link", name, d.root.Symlink(target, name))
}

// Hardlink gives a file that was written before another name.
func (d *Dir) Hardlink(name, target string) error {
	if err := d.around(name); err != nil {
		return err
	}
	if err := named(target); err != nil {
		return err
	}
	info, err := d.root.Lstat(target)
	if err == nil && !info.Mode().IsRegular() || errors.Is(err, fs.ErrNotExist) {
		return hostile(name, "is another name of what is no file")
	}
	if err != nil {
		return local("look at", target, err)
	}
	return local("make the hard link", name, d.root.Link(target, name))
}

// Shut returns the directories that Finish is for.
func (d *Dir) Shut() []Shut { return d.shut }

// Finish sets the modes of directories that their owner may not write to, below
// root, where the tree lies now. Nothing can be written after it; it may be
// repeated.
func Finish(root *os.Root, shut []Shut) error {
	for _, one := range shut { // what is around it before what is inside: it may have its mode already
		if err := root.Chmod(string(one.Name), ourDir); err != nil {
			return local("open", string(one.Name), err)
		}
	}
	for _, one := range slices.Backward(shut) { // what is inside before what is around it
		if err := root.Chmod(string(one.Name), fs.FileMode(one.Mode)); err != nil {
			return local("set the mode of", string(one.Name), err)
		}
	}
	return nil
}

// named refuses a name that leads elsewhere, or that git takes for its own.
func named(name string) error {
	elements := strings.Split(name, "/")
	if len(elements) > maxDepth {
		return hostile(name, "is nested too deep")
	}
	for _, element := range elements {
		switch {
		case element == "", element == ".", element == "..", strings.ContainsRune(element, 0):
			return hostile(name, "leads elsewhere")
		case element == ".git", runtime.GOOS != "linux" && strings.EqualFold(element, ".git"):
			// Git runs programs that are named there.
			return hostile(name, "is in a git directory, which no archive holds")
		}
	}
	return nil
}

// around makes sure that the directory of name is one of ours.
func (d *Dir) around(name string) error {
	if err := named(name); err != nil {
		return err
	}
	dir := path.Dir(name)
	for len(d.open) > 0 {
		top := d.open[len(d.open)-1]
		if dir == top || strings.HasPrefix(dir, top+"/") {
			break
		}
		d.open = d.open[:len(d.open)-1]
	}
	return d.enter(dir)
}

// enter makes the directories down to dir that are missing. What is there under
// such a name must be a directory, not a link to one.
func (d *Dir) enter(dir string) error {
	if dir == "." || len(d.open) > 0 && d.open[len(d.open)-1] == dir {
		return nil
	}
	if err := d.enter(path.Dir(dir)); err != nil {
		return err
	}
	err := d.mkdir(dir)
	if box.ClassOf(err) == box.ClassAlreadyExists {
		info, looked := d.root.Lstat(dir)
		if err = local("look at", dir, looked); err == nil && !info.IsDir() {
			return hostile(dir, "is no directory, and something is to lie below it")
		}
	}
	if err == nil {
		d.open = append(d.open, dir)
	}
	return err
}

func (d *Dir) mkdir(name string) error {
	return local("make the directory", name, d.root.Mkdir(name, ourDir))
}

func hostile(name, why string) error {
	return box.Errorf(box.ClassUnknown, "%q %s", clip(name), why)
}

// local gives an error of this machine its class.
func local(what, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist):
		return box.Errorf(box.ClassAlreadyExists, "%q is there already and was not changed; on a filesystem that does not tell cases apart two names may be one", clip(name))
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return box.Errorf(box.ClassExhausted, "%s %q: the disk is full: %w", what, clip(name), err)
	}
	return box.Errorf(box.ClassInternal, "%s %q: %w", what, clip(name), err)
}

// clip cuts what an archive says to what an error can hold.
func clip(text string) string {
	const most = 200
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
