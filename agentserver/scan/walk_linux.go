package scan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// blockSize is how much of a directory is read at once.
	blockSize = 64 << 10
	// maxRelative is how long a path from an open directory may get before another
	// one is opened to go on from. Descriptors are open for that alone, so that
	// neither depth nor width uses them up.
	maxRelative = 1024
	// maxAnchors bounds those; a tree so deep is no longer measured.
	maxAnchors = 512
	maxFaults  = 100
)

var (
	errLink = errors.New("is a link, or lies behind one, and is not followed")
	errDeep = errors.New("nested deeper than is measured")
	errHung = errors.New("has not answered since an earlier look")
)

// walk is one pass over the places.
type walk struct {
	scanner *Scanner
	root    *anchor
	open    opener
	all     bool // read everything, remembered or not
	number  uint64
	settled int64                // a directory that changed later is not remembered
	known   map[identity]*memory // only read while a worker of this walk lives
	workers []*worker

	late bool // it took too long

	pending atomic.Int64 // directories found and not yet done
	anchors atomic.Int64
	stopped atomic.Bool

	mu   sync.Mutex
	wake *sync.Cond
	idle atomic.Int64
}

// dir is a directory whose sub-directories are visited.
type dir struct {
	parent *dir
	name   string
	at     *spot
	anchor *anchor
	rel    string // from the anchor to here, empty for itself
}

func (d *dir) path(name string) string {
	if d.parent == nil {
		return name
	}
	above := d.parent.path(d.name)
	if above == "." {
		return name
	}
	return above + "/" + name
}

// frame is what is left to visit of a directory: names, each with a NUL at its
// end. It holds the anchor.
type frame struct {
	*dir
	names string
}

// take returns the next name; more says that there are others.
func (f *frame) take() (name string, more bool) {
	name, f.names, _ = strings.Cut(f.names, "\x00")
	return name, f.names != ""
}

// split gives away the second half of the names, if there are two or more.
func (f *frame) split() (half frame, ok bool) {
	middle := strings.IndexByte(f.names[len(f.names)/2:], 0) + len(f.names)/2 + 1
	if middle == len(f.names) {
		if middle = strings.IndexByte(f.names, 0) + 1; middle == len(f.names) {
			return frame{}, false
		}
	}
	half = frame{f.dir, f.names[middle:]}
	f.names = f.names[:middle]
	f.anchor.hold()
	return half, true
}

// begin puts the places on the first worker's stack.
func (w *walk) begin(top *spot) {
	var names strings.Builder
	for place := range top.below {
		names.WriteString(place + "\x00")
	}
	if names.Len() > 0 {
		w.pending.Store(int64(len(top.below)))
		first := &dir{at: top, anchor: w.root.hold()}
		w.workers[0].stack = []frame{{first, names.String()}}
	}
}

func (w *walk) stop() {
	w.stopped.Store(true)
	w.mu.Lock()
	w.wake.Broadcast()
	w.mu.Unlock()
}

// moved reports whether a worker that has something to do got on with it since
// the last call.
func (w *walk) moved() bool {
	moved := false
	for _, k := range w.workers {
		beat := k.beat.Load()
		if beat != k.lastBeat && !k.idle.Load() {
			moved = true
		}
		k.lastBeat = beat
	}
	return moved
}

// next finds the worker something to visit, until all is done.
func (w *walk) next(k *worker) (d *dir, name string, ok bool) {
	if d, name, ok = k.take(); ok {
		return d, name, ok
	}
	if w.steal(k) {
		if d, name, ok = k.take(); ok {
			return d, name, ok
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	k.idle.Store(true)
	defer k.idle.Store(false)
	for w.pending.Load() > 0 && !w.stopped.Load() {
		// Counted as idle before the last look, so that whoever finds a directory
		// later knows that somebody sleeps.
		w.idle.Add(1)
		if !w.steal(k) {
			w.wake.Wait()
		}
		w.idle.Add(-1)
		if d, name, ok = k.take(); ok {
			return d, name, true
		}
	}
	w.wake.Broadcast()
	return nil, "", false
}

// steal takes over half of what another worker left lowest on its stack, which
// is nearest to the root.
func (w *walk) steal(k *worker) bool {
	for _, other := range w.workers {
		if other == k {
			continue
		}
		other.mu.Lock()
		var got frame
		ok := len(other.stack) > 0
		if ok {
			if got, ok = other.stack[0].split(); !ok && (len(other.stack) > 1 || other.visiting) {
				got, ok = other.stack[0], true
				other.stack = slices.Delete(other.stack, 0, 1)
			}
		}
		other.mu.Unlock()
		if ok {
			k.mu.Lock()
			k.stack = append(k.stack, got)
			k.mu.Unlock()
			return true
		}
	}
	return false
}

// crop is what all workers found together.
type crop struct {
	Result
	runs []linkRun
	news []fresh
	// late says that a worker is not back: it may still read what was known.
	late bool
}

// harvest adds up what the workers found. From those that hang, their results so
// far are taken, and nothing later.
func (w *walk) harvest(labels int) *crop {
	out := &crop{Result: Result{Sizes: make([]Size, labels), Partial: make([]bool, labels), Watched: make([]string, labels)}}
	for _, k := range w.workers {
		k.mu.Lock()
		k.dropped = true
		out.late = out.late || !k.ended
		if !k.ended && k.visiting {
			path := k.now.path(k.nowName)
			k.hungAt = path
			w.scanner.setHung(path, true)
			at := k.now.at.step(k.nowName)
			at.mark(k.partial)
			k.fault(at.label, path, fmt.Errorf("did not answer within %s", w.scanner.opts.Stall))
		}
		for _, left := range k.stack { // of a walk that was cut short
			left.at.mark(k.partial)
			left.anchor.letGo()
		}
		k.stack = nil
		for i := range out.Sizes {
			out.Sizes[i].add(&k.sizes[i])
			out.Partial[i] = out.Partial[i] || k.partial[i]
			if k.watched[i] != "" && (out.Watched[i] == "" || k.watched[i] < out.Watched[i]) {
				out.Watched[i] = k.watched[i]
			}
		}
		out.Faults = append(out.Faults, k.faults...)
		out.FaultCount += k.faultCount
		out.Work.Read += k.work.Read
		out.Work.Kept += k.work.Kept
		out.Work.Looked += k.work.Looked
		out.Print += k.print
		out.runs = append(out.runs, k.runs...)
		out.news = append(out.news, k.news...)
		k.runs, k.news = nil, nil
		k.mu.Unlock()
	}
	if w.late {
		out.Faults = append(out.Faults, Fault{".", fmt.Errorf("not all was measured within %s", w.scanner.opts.Limit)})
		out.FaultCount++
	}
	slices.SortFunc(out.Faults, func(a, b Fault) int { return strings.Compare(a.Path, b.Path) })
	out.Faults = out.Faults[:min(len(out.Faults), maxFaults)]
	return out
}
