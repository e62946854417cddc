package reclaim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxFaults bounds how many errors of one item are told in words.
const maxFaults = 5

// deeper than this a directory is moved up before it is deleted, so that no
// tree, however deep, can use up the descriptors.
const moveUpDepth = 128

// removal is what became of one trash entry.
type removal struct {
	bytes  int64 // of what was unlinked as its last link
	left   int
	faults []string
}

func (d *removal) fault(name string, err error) {
	d.left++
	if len(d.faults) < maxFaults {
		d.faults = append(d.faults, fmt.Sprintf("%q: %v", name, err))
	}
}

// discard deletes one trash entry, or waits for whoever deletes it already.
func (r *Reclaimer) discard(name string, out *removal) {
	r.mu.Lock()
	if other := r.busy[name]; other != nil {
		r.mu.Unlock()
		select {
		case <-other:
		case <-r.stopped.Done():
		}
		return
	}
	finished := make(chan struct{})
	r.busy[name] = finished
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.busy, name)
		r.mu.Unlock()
		close(finished)
	}()
	trash, err := r.tree.openDir(r.tree.fd, trashName)
	if err != nil {
		out.fault(trashName, err)
		return
	}
	defer unix.Close(trash)
	d := deleter{tree: r.tree, ctx: r.stopped, trash: trash, out: out}
	d.remove(trash, dirEntry{name: name, kind: unix.DT_UNKNOWN}, 0)
	for len(d.movedUp) > 0 && r.stopped.Err() == nil {
		next := d.movedUp[0]
		d.movedUp = d.movedUp[1:]
		d.remove(trash, dirEntry{name: next, kind: unix.DT_DIR}, 0)
	}
}

// trashBytes is what deleting the trash will free.
func (r *Reclaimer) trashBytes(ctx context.Context) (int64, error) {
	trash, names, err := r.tree.list(r.tree.fd, trashName)
	if err != nil {
		return 0, nil // no trash, nothing in it
	}
	defer unix.Close(trash)
	sum := newTally()
	for _, entry := range names {
		fd, below, err := r.tree.list(trash, entry.name)
		if err != nil {
			continue
		}
		err = r.tree.measure(ctx, fd, below, lookNone, 0, sum)
		unix.Close(fd)
		if err != nil {
			return 0, err
		}
		sum.stay = ""
	}
	return sum.freed(), nil
}

// deleter removes one tree. It counts while it deletes, since a file's links
// are known only then.
type deleter struct {
	tree    *tree
	ctx     context.Context //nolint:containedctx // one deletion's life
	trash   int
	out     *removal
	movedUp []string
}

func (d *deleter) remove(parent int, entry dirEntry, depth int) {
	if d.ctx.Err() != nil {
		return
	}
	if entry.kind == unix.DT_UNKNOWN {
		entry.kind = d.tree.kindOf(parent, entry)
	}
	if entry.kind != unix.DT_DIR {
		d.unlink(parent, entry.name, 0)
		return
	}
	if depth > moveUpDepth {
		name := "deep-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.FormatUint(serial.Add(1), 36)
		// A mount moves along with its directory; opened without crossing, it is
		// found at the top again.
		if err := rename(parent, entry.name, d.trash, name); err == nil {
			d.movedUp = append(d.movedUp, name)
			return
		}
	}
	fd, names, err := d.tree.list(parent, entry.name)
	if errors.Is(err, unix.EACCES) {
		if d.unlock(parent, entry.name) == nil {
			fd, names, err = d.tree.list(parent, entry.name)
		}
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		d.unlink(parent, entry.name, 0) // swapped meanwhile: the new one goes, not what it leads to
		return
	case errors.Is(err, unix.EXDEV):
		d.out.fault(entry.name, errors.New("a mount, left alone"))
		return
	case err != nil:
		d.out.fault(entry.name, err)
		return
	}
	defer unix.Close(fd)
	for _, below := range names {
		d.remove(fd, below, depth+1)
	}
	if d.ctx.Err() == nil {
		d.unlink(parent, entry.name, unix.AT_REMOVEDIR)
	}
}

// serial makes names of moved directories unique within the process.
var serial atomic.Uint64 //nolint:gochecknoglobals // a counter

// unlink removes one name, or an empty directory, and counts what that freed.
func (d *deleter) unlink(parent int, name string, flags int) {
	var st unix.Stat_t
	known := unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) == nil
	err := unix.Unlinkat(parent, name, flags)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		var dir unix.Stat_t
		if unix.Fstat(parent, &dir) == nil && dir.Mode&0o300 != 0o300 && unix.Fchmod(parent, dir.Mode&0o7777|0o700) == nil {
			err = unix.Unlinkat(parent, name, flags)
		}
	}
	switch {
	case err == nil:
		if known && (flags == unix.AT_REMOVEDIR || st.Nlink <= 1) {
			d.out.bytes += st.Blocks * 512
		}
	case errors.Is(err, unix.ENOENT):
	case errors.Is(err, unix.ENOTEMPTY) && d.out.left > 0:
		// What is inside has been told already.
	default:
		d.out.fault(name, err)
	}
}

// unlock lets the owner into a directory without read permission. It goes by
// descriptor, so that a swapped link cannot lead elsewhere.
func (d *deleter) unlock(parent int, name string) error {
	fd, err := d.tree.open(parent, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700)
}
