package scan

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// shut tells of a directory that could not be opened. One that is gone by now is
// no fault.
func (k *worker) shut(parent *dir, name string, at *spot, err error) {
	switch {
	case errors.Is(err, unix.ENOENT):
		return
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		// A place that is a link itself is told; deeper, one that took the place of a
		// directory meanwhile is a link like all others.
		if parent.parent != nil || errors.Is(err, unix.ENOTDIR) && !k.isLink(parent) {
			return
		}
		err = errLink
	case errors.Is(err, unix.EXDEV):
		err = ErrMounted
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		// It takes space itself, whatever is inside.
		if look(parent.anchor.fd, k.path, k.walk.open.quick, &k.stat) == nil && k.stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			k.filePrint = 0
			k.account(at, &memory{}, &identity{})
		}
	}
	k.refuse(parent, name, at, err)
}

// isLink reports whether k.path is a link.
func (k *worker) isLink(parent *dir) bool {
	return look(parent.anchor.fd, k.path, k.walk.open.quick, &k.stat) == nil && k.stat.Mode&unix.S_IFMT == unix.S_IFLNK
}

func (k *worker) refuse(parent *dir, name string, at *spot, err error) {
	path := parent.path(name)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.dropped {
		k.fault(at.label, path, err)
	}
}

// fault is for the holder of the lock.
func (k *worker) fault(label int32, path string, err error) {
	k.partial[label] = true
	k.faultCount++
	if len(k.faults) < maxFaults {
		k.faults = append(k.faults, Fault{strings.ToValidUTF8(path, "\uFFFD"), err})
	}
}
