package scan

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// worker visits directories. What it found is under its lock, which is never
// held over a system call, so that the results of one that hangs can be taken.
type worker struct {
	walk *walk
	beat atomic.Int64 // counts what the system answered
	idle atomic.Bool

	block, path, names []byte // for one directory at a time
	links              []link
	filePrint          uint64 // of the files in the directory that is read
	stat               unix.Statx_t

	mu       sync.Mutex
	stack    []frame
	now      *dir // what is visited
	nowName  string
	visiting bool
	ended    bool
	dropped  bool   // its results were taken, and later ones do not count
	hungAt   string // where it was then

	sizes      []Size // by label
	partial    []bool
	watched    []string
	runs       []linkRun
	news       []fresh
	faults     []Fault
	faultCount int
	work       Work
	print      uint64

	lastBeat int64 // of the walk's watch
}

func newWorker(w *walk, labels int) *worker {
	return &worker{
		walk: w, sizes: make([]Size, labels), partial: make([]bool, labels), watched: make([]string, labels),
	}
}

func (k *worker) run() {
	k.block = make([]byte, blockSize)
	for {
		d, name, ok := k.walk.next(k)
		if !ok {
			break
		}
		k.visit(d, name)
		k.mu.Lock()
		k.visiting = false
		k.mu.Unlock()
		d.anchor.letGo()
		if k.walk.pending.Add(-1) == 0 {
			k.walk.mu.Lock()
			k.walk.wake.Broadcast()
			k.walk.mu.Unlock()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	if k.hungAt != "" {
		k.walk.scanner.setHung(k.hungAt, false)
	}
}

// take returns the next directory from the worker's own stack; the caller lets
// go of its anchor.
func (k *worker) take() (d *dir, name string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.stack) == 0 || k.walk.stopped.Load() {
		return nil, "", false
	}
	last := &k.stack[len(k.stack)-1]
	d = last.dir
	name, more := last.take()
	if more {
		d.anchor.hold()
	} else {
		k.stack = k.stack[:len(k.stack)-1]
	}
	k.now, k.nowName, k.visiting = d, name, true
	return d, name, true
}

// visit measures one directory and puts those in it on the stack.
func (k *worker) visit(parent *dir, name string) {
	w, at := k.walk, parent.at.step(name)
	open := &w.open
	k.path = k.path[:0]
	if parent.rel != "" {
		k.path = append(append(k.path, parent.rel...), '/')
	}
	k.path = append(append(k.path, name...), 0)
	if w.scanner.anyHung.Load() > 0 && w.scanner.isHung(parent.path(name)) {
		k.refuse(parent, name, at, errHung)
		return
	}
	if w.scanner.opts.pause != nil {
		w.scanner.opts.pause(parent.path(name))
	}
	remembering := at.estimate && open.mount != 0
	// What leads to a place may have become a link, so a place itself is opened.
	if remembering && parent.parent != nil {
		err := look(parent.anchor.fd, k.path, open.quick, &k.stat)
		k.beat.Add(1)
		if err == nil && k.stat.Mode&unix.S_IFMT == unix.S_IFDIR && k.stat.Mnt_id == open.mount {
			if old := k.recall(at); old != nil {
				k.again(parent, name, at, old)
				return
			}
		}
	}
	fd, err := open.openDir(parent.anchor.fd, string(k.path[:len(k.path)-1]))
	k.beat.Add(1)
	if err != nil {
		k.shut(parent, name, at, err)
		return
	}
	kept := newAnchor(fd)
	defer kept.letGo()
	if err := lookOpen(fd, &k.stat); err != nil {
		k.refuse(parent, name, at, err)
		return
	}
	if remembering {
		if old := k.recall(at); old != nil {
			k.again(parent, name, at, old)
			return
		}
	}
	k.readAll(parent, name, at, kept, remembering)
}

// recall returns what is remembered of the directory that was looked at, if that
// is still right.
func (k *worker) recall(at *spot) *memory {
	if k.walk.all {
		return nil
	}
	old := k.walk.known[identityOf(&k.stat)]
	if old == nil || old.mtime != nanoseconds(k.stat.Mtime) || old.ctime != nanoseconds(k.stat.Ctime) || at.watch != 0 && at.watch != old.asked {
		return nil
	}
	old.walk.Store(k.walk.number)
	return old
}

// again counts a directory as it is remembered.
func (k *worker) again(parent *dir, name string, at *spot, old *memory) {
	k.account(at, old, nil)
	k.push(parent, name, at, nil, old.dirs, old.count)
}

// readAll reads the names of an open directory and looks at each file.
func (k *worker) readAll(parent *dir, name string, at *spot, open *anchor, remembering bool) {
	w := k.walk
	one := &memory{mtime: nanoseconds(k.stat.Mtime), ctime: nanoseconds(k.stat.Ctime), asked: at.watch}
	one.walk.Store(w.number)
	itself := k.stat
	one.files.Dirs, one.files.Inodes = 1, 1
	k.names, k.links, k.filePrint = k.names[:0], k.links[:0], 0
	remembering = remembering && one.ctime < w.settled && one.mtime < w.settled
	for {
		n, err := read(open.fd, k.block)
		k.beat.Add(1)
		if err != nil && !errors.Is(err, unix.ENOENT) { // removed meanwhile
			k.refuse(parent, name, at, err)
			remembering = false
			break
		}
		if n <= 0 {
			break
		}
		if !k.lookAll(parent, name, at, open.fd, k.block[:n], one) {
			remembering = false
		}
		if w.stopped.Load() {
			k.mu.Lock()
			at.mark(k.partial)
			k.mu.Unlock()
			return
		}
	}
	k.stat = itself
	one.dirs = string(k.names)
	one.links = slices.Clone(k.links)
	id := identityOf(&k.stat)
	if !remembering {
		id = identity{}
	}
	k.account(at, one, &id)
	k.push(parent, name, at, open, one.dirs, one.count)
}

// lookAll looks at the files of one block of names; it reports false when what
// it found must not be remembered.
func (k *worker) lookAll(parent *dir, name string, at *spot, fd int, block []byte, one *memory) bool {
	w, sound := k.walk, true
	for len(block) > 0 && !w.stopped.Load() {
		kind, file, rest, err := entry(block)
		if err != nil {
			k.refuse(parent, name, at, err)
			return false
		}
		block = rest
		if !plain(file) {
			continue
		}
		if at.watch != 0 && w.scanner.opts.Watch[at.watch-1](file[:len(file)-1]) {
			if text := string(file[:len(file)-1]); one.watched == "" || text < one.watched {
				one.watched = text
			}
		}
		if kind == unix.DT_DIR {
			k.names = append(k.names, file...)
			one.count++
			continue
		}
		err = look(fd, file, w.open.quick, &k.stat)
		k.beat.Add(1)
		switch {
		case errors.Is(err, unix.ENOENT):
			continue
		case err != nil:
			k.refuse(parent, name+"/"+string(file[:len(file)-1]), at, err)
			sound = false
			continue
		case k.stat.Mode&unix.S_IFMT == unix.S_IFDIR: // the filesystem did not say so
			k.names = append(k.names, file...)
			one.count++
			continue
		case w.open.mount != 0 && k.stat.Mnt_id != w.open.mount:
			k.refuse(parent, name+"/"+string(file[:len(file)-1]), at, ErrMounted)
			sound = false
			continue
		}
		one.files.Files++
		if !at.estimate {
			k.filePrint += mixed(k.stat.Ino, k.stat.Size, uint64(nanoseconds(k.stat.Ctime))) //nolint:gosec // any number does
		}
		if k.stat.Nlink > 1 {
			k.links = append(k.links, link{k.stat.Ino, k.stat.Size, k.stat.Blocks, k.stat.Nlink, device(&k.stat)})
			continue
		}
		one.files.Inodes++
		one.files.Allocated += int64(k.stat.Blocks) * 512 //nolint:gosec // no file is that large
		one.files.Apparent += int64(k.stat.Size)          //nolint:gosec // no file is that large
	}
	return sound
}

// account adds one directory, which was looked at just now, with the files in it
// to the sums of its label. read is nil for one that was remembered; its number,
// when it is not zero, is what to remember it by.
func (k *worker) account(at *spot, one *memory, read *identity) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dropped {
		return
	}
	k.print += mixed(uint64(at.label), k.stat.Ino, uint64(nanoseconds(k.stat.Mtime)), uint64(nanoseconds(k.stat.Ctime))) //nolint:gosec // any number does
	sum := &k.sizes[at.label]
	sum.add(&one.files)
	sum.Allocated += int64(k.stat.Blocks) * 512 //nolint:gosec // no directory is that large
	sum.Apparent += int64(k.stat.Size)          //nolint:gosec // no directory is that large
	if len(one.links) > 0 {
		k.runs = append(k.runs, linkRun{at.label, one.links})
	}
	if at.watch != 0 && one.watched != "" && (k.watched[at.label] == "" || one.watched < k.watched[at.label]) {
		k.watched[at.label] = one.watched
	}
	if read == nil {
		k.work.Kept++
		return
	}
	if *read != (identity{}) {
		k.news = append(k.news, fresh{*read, one})
	}
	k.print += k.filePrint
	k.work.Read++
	k.work.Looked += one.files.Files
}

// push puts the sub-directories of the directory at k.path on the stack. open is
// that directory when it is open.
func (k *worker) push(parent *dir, name string, at *spot, open *anchor, names string, count int) {
	if count == 0 {
		return
	}
	w := k.walk
	d := &dir{parent: parent, name: name, at: at}
	if rel := k.path[:len(k.path)-1]; len(rel) <= maxRelative {
		d.rel, d.anchor = string(rel), parent.anchor.hold()
	} else if d.anchor = k.anchorAt(parent, name, at, open); d.anchor == nil {
		return
	}
	w.pending.Add(int64(count))
	k.mu.Lock()
	dropped := k.dropped
	if !dropped {
		k.stack = append(k.stack, frame{d, names})
	}
	k.mu.Unlock()
	switch {
	case dropped:
		d.anchor.letGo()
	case w.idle.Load() > 0:
		w.mu.Lock()
		w.wake.Signal()
		w.mu.Unlock()
	}
}

// anchorAt makes the directory at k.path one that others are opened from.
func (k *worker) anchorAt(parent *dir, name string, at *spot, open *anchor) *anchor {
	if k.walk.anchors.Add(1) > maxAnchors {
		k.walk.anchors.Add(-1)
		k.refuse(parent, name, at, errDeep)
		return nil
	}
	if open != nil {
		open.count = &k.walk.anchors
		return open.hold()
	}
	fd, err := k.walk.open.open(parent.anchor.fd, string(k.path[:len(k.path)-1]), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		k.walk.anchors.Add(-1)
		k.shut(parent, name, at, err)
		return nil
	}
	made := newAnchor(fd)
	made.count = &k.walk.anchors
	return made
}

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
			k.account(at, &memory{files: Size{Dirs: 1, Inodes: 1}}, &identity{})
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

func identityOf(st *unix.Statx_t) identity { return identity{st.Ino, device(st)} }

// device is the number of the filesystem as the kernel keeps it.
func device(st *unix.Statx_t) uint32 { return st.Dev_major<<20 | st.Dev_minor&(1<<20-1) }

func nanoseconds(at unix.StatxTimestamp) int64 { return at.Sec*1e9 + int64(at.Nsec) }
