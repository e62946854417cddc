package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Watch is not to be had on this system.
func (d *Driver) Watch(context.Context, func(driver.Listed)) error {
	return box.Errorf(box.ClassUnsupported, "noticing the end of local boxes needs Linux")
}

// refuseMounts answers FailedPrecondition when another filesystem is mounted
// at or below dir.
func refuseMounts(dir string) error {
	parent, err := os.Lstat(filepath.Dir(dir))
	if err != nil {
		return ioError("look for mounts", err)
	}
	home, ok := parent.Sys().(*syscall.Stat_t)
	if !ok {
		return box.Errorf(box.ClassInternal, "this system does not number its filesystems")
	}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Dev != home.Dev {
			return box.Errorf(box.ClassFailedPrecondition, "something is mounted at %q; unmount it first", path)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || err == nil {
		return nil
	}
	if box.ClassOf(err) == box.ClassFailedPrecondition {
		return err
	}
	return ioError("look for mounts", err)
}

// removeTree removes name under dir and follows no link. It is safe to repeat.
func removeTree(ctx context.Context, dir, name string) error {
	if err := driver.Ended(ctx); err != nil {
		return err
	}
	if err := refuseMounts(filepath.Join(dir, name)); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ioError("open "+dir, err)
	}
	defer root.Close()
	if err := root.RemoveAll(name); err != nil {
		return ioError("remove "+name, err)
	}
	return nil
}
