package reclaim

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Deeper than this a directory is moved up before it is deleted, so that no
// tree, however deep, can use up the descriptors. One that can't be moved is
// entered all the same, down to twice this.
const moveUpDepth = 128

// maxPasses bounds how often a directory is read again in which names appear
// while it is emptied; the next sweep goes on.
const maxPasses = 64

// removal is what became of one trash entry.
type removal struct {
	held   int64 // bytes that a process has open under a name that was deleted before
	left   int
	faults []string
}

// discard deletes one trash entry, or waits for whoever deletes it already, and
// counts for the plan that moved it there. held are files that are open without a
// name.
func (r *Reclaimer) discard(name string, held map[inode]bool, out *removal) {
	d := deleter{tree: r.tree, ctx: r.stopped, held: held, offers: make(chan task)}
	one := &deletion{ended: make(chan struct{}), soFar: d.soFar}
	one.plan, one.item = r.planOf(name)
	r.mu.Lock()
	if other := r.busy[name]; other != nil {
		r.mu.Unlock()
		select {
		case <-other.ended:
		case <-r.stopped.Done():
		}
		return
	}
	r.busy[name] = one
	r.mu.Unlock()
	enough := r.noting()
	defer func() {
		enough()
		r.noteProgress(false)
		r.mu.Lock()
		one.count()
		delete(r.busy, name)
		r.mu.Unlock()
		close(one.ended)
	}()
	trash, err := r.tree.openTrash()
	if err != nil {
		d.faults.add("open", trashName, err)
	} else {
		d.top.fd = trash
		d.run(name)
		unix.Close(trash)
	}
	out.held, out.left = d.heldBytes, d.faults.total
	out.faults = d.faults.lines()
}

// own says that the pass of a plan looks through these entries, deletes them and
// counts what they free, so that the sweep leaves them to it.
func (r *Reclaimer) own(plan *record, taken []trashed, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range taken {
		if on {
			r.owned[t.name] = plan
		} else {
			delete(r.owned, t.name)
		}
	}
}

func (r *Reclaimer) owns(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owned[name] != nil
}

// deleter removes one tree with two workers, each in a directory of its own:
// within one directory the kernel lets only one work anyway. It counts while it
// deletes, since a file's links are known only then.
type deleter struct {
	tree   *tree
	ctx    context.Context //nolint:containedctx // one deletion's life
	held   map[inode]bool
	top    dir       // the trash
	offers chan task // nobody reads it unless free

	mu               sync.Mutex
	bytes, heldBytes int64
	faults           faults
	movedUp          []movedUp
}

// soFar is how many bytes came free until now.
func (d *deleter) soFar() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bytes
}

// dir is an open directory that is being emptied.
type dir struct {
	fd    int
	up    *dir
	name  string
	depth int
}

// movedUp is a directory that now lies in the trash itself.
type movedUp struct{ name, place string }

// task is a directory that one worker gives to the other.
type task struct {
	in   *dir
	name string
	done chan<- bool // has room for the answer
}

func (t task) run(d *deleter) { t.done <- d.removeDir(t.in, t.name) }

func (d *deleter) run(name string) {
	finished := make(chan struct{})
	var helper sync.WaitGroup
	helper.Go(func() {
		for {
			select {
			case job := <-d.offers:
				job.run(d)
			case <-finished:
				return
			}
		}
	})
	d.remove(&d.top, dirEntry{name: name, kind: unix.DT_UNKNOWN})
	for {
		d.mu.Lock()
		if len(d.movedUp) == 0 || d.ctx.Err() != nil {
			d.mu.Unlock()
			break
		}
		next := d.movedUp[0]
		d.movedUp = d.movedUp[1:]
		d.mu.Unlock()
		at := dir{fd: d.top.fd, name: next.place, up: &dir{up: &d.top}}
		d.removeDir(&at, next.name)
	}
	close(finished)
	helper.Wait()
}

// place names an entry of the directory, from the item on.
func (at *dir) place(name string) string {
	for ; at.up != nil && at.up.up != nil; at = at.up {
		name = at.name + "/" + name
	}
	return name
}

func (d *deleter) fault(op string, at *dir, name string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults.add(op, at.place(name), err)
}

// remove reports whether the name is gone.
func (d *deleter) remove(at *dir, entry dirEntry) bool {
	if d.tree.kindOf(at.fd, entry) == unix.DT_DIR {
		return d.removeDir(at, entry.name)
	}
	return d.unlink(at, entry.name, 0)
}

func (d *deleter) removeDir(at *dir, name string) bool {
	if d.ctx.Err() != nil {
		return false
	}
	if at.depth >= moveUpDepth {
		err := d.moveUp(at, name)
		if err == nil {
			return true
		}
		if at.depth >= 2*moveUpDepth {
			d.fault("rename", at, name, err)
			return false
		}
	}
	fd, err := d.tree.openDir(at.fd, name)
	if errors.Is(err, unix.EACCES) && d.unlock(at.fd, name) == nil {
		fd, err = d.tree.openDir(at.fd, name)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return true
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return d.unlink(at, name, 0) // swapped meanwhile: the new one goes, not what it leads to
	case errors.Is(err, unix.EXDEV):
		d.fault("open", at, name, errMount)
		return false
	case err != nil:
		d.fault("open", at, name, err)
		return false
	}
	here := &dir{fd: fd, up: at, name: name, depth: at.depth + 1}
	gone := d.empty(here)
	unix.Close(fd)
	return gone && d.unlink(at, name, unix.AT_REMOVEDIR)
}

// empty removes what is in a directory, and reports whether it is empty. Some
// filesystems leave names out of a listing while others are removed, so one in
// which something is left is read again, and the names that can't be removed
// are not tried again.
func (d *deleter) empty(here *dir) bool {
	stuck := map[string]bool{}
	all := readNames(here.fd)
	for range maxPasses {
		removed, met := d.pass(here, all, stuck)
		if d.ctx.Err() != nil {
			return false
		}
		if met == 0 || removed == 0 {
			return met == 0
		}
		if err := all.again(); err != nil {
			d.fault("read", here, "", err)
			return false
		}
	}
	d.fault("rmdir", here, "", unix.ENOTEMPTY)
	return false
}

// pass goes over a directory once.
func (d *deleter) pass(here *dir, all *nameReader, stuck map[string]bool) (removed, met int) {
	note := func(name string, gone bool) {
		if gone {
			removed++
		} else {
			stuck[name] = true
		}
	}
	var given string // what the other worker has, empty when nothing
	done := make(chan bool, 1)
	for d.ctx.Err() == nil {
		entry, ok, err := all.next()
		if err != nil {
			d.fault("read", here, "", err)
		}
		if err != nil || !ok {
			break
		}
		met++
		if stuck[entry.name] {
			continue
		}
		if given != "" {
			select {
			case gone := <-done:
				note(given, gone)
				given = ""
			default:
			}
		}
		if given == "" && d.tree.kindOf(here.fd, entry) == unix.DT_DIR {
			select {
			case d.offers <- task{here, entry.name, done}:
				given = entry.name
				continue
			default:
			}
		}
		note(entry.name, d.remove(here, entry))
	}
	for given != "" { // meanwhile the other one may have something to give
		select {
		case gone := <-done:
			note(given, gone)
			given = ""
		case job := <-d.offers:
			job.run(d)
		}
	}
	return removed, met
}

// moveUp renames a directory into the trash itself. A mount moves along with
// its directory; opened without crossing, it is found at the top again.
func (d *deleter) moveUp(at *dir, name string) error {
	up := "deep-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.FormatUint(serial.Add(1), 36)
	err := rename(at.fd, name, d.top.fd, up)
	if errors.Is(err, unix.EACCES) && d.unlock(at.fd, name) == nil {
		err = rename(at.fd, name, d.top.fd, up) // its own ".." changes too
	}
	if err == nil {
		d.mu.Lock()
		d.movedUp = append(d.movedUp, movedUp{up, at.place(name)})
		d.mu.Unlock()
	}
	return err
}

// serial makes names of moved directories unique within the process.
var serial atomic.Uint64 //nolint:gochecknoglobals // a counter

// unlink removes one name, or an empty directory, and counts what that freed.
// It reports whether the name is gone.
func (d *deleter) unlink(at *dir, name string, flags int) bool {
	op := "unlink"
	if flags == unix.AT_REMOVEDIR {
		op = "rmdir"
	}
	var st unix.Stat_t
	attributes, err := d.tree.statAt(at.fd, name, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return true
	case errors.Is(err, unix.EXDEV):
		d.fault(op, at, name, errMount)
		return false
	}
	counted := err == nil
	if counted && st.Nlink <= 1 {
		d.tree.unshare(at.fd, name, &st)
	}
	if err = unix.Unlinkat(at.fd, name, flags); errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		var above unix.Stat_t
		if unix.Fstat(at.fd, &above) == nil && above.Mode&0o300 != 0o300 && unix.Fchmod(at.fd, above.Mode&0o7777|0o700) == nil {
			err = unix.Unlinkat(at.fd, name, flags)
		}
	}
	if errors.Is(err, unix.EPERM) && attributes&(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND) != 0 {
		err = errImmutable
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		d.fault(op, at, name, err)
		return false
	}
	if err == nil && counted && (flags == unix.AT_REMOVEDIR || st.Nlink <= 1) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.bytes += st.Blocks * 512
		if d.held[inodeOf(&st)] {
			d.heldBytes += st.Blocks * 512
		}
	}
	return true
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
