package scan

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// settle is how long a directory must have been left alone before it is
// remembered: within one tick of the filesystem's clock, which can be as coarse as
// two seconds, a second change has the same time as the first.
const settle = 2 * time.Second

// afterStop is how long workers get to notice that a walk was ended.
const afterStop = 100 * time.Millisecond

// Scanner measures trees below one root and remembers their directories. It is
// safe for concurrent use; walks take turns. Between walks it holds no
// descriptor.
type Scanner struct {
	path  string
	opts  Options
	turn  chan struct{} // holds one token while no walk is on
	cache cache
	walks uint64

	mu sync.Mutex
	// hung are the directories that a worker of an earlier walk is still waiting
	// for. They are left out until it comes back, so that no more workers hang.
	hung    map[string]bool
	anyHung atomic.Int64
}

// New returns a Scanner of the trees below root.
func New(root string, opts Options) *Scanner {
	if opts.Workers <= 0 {
		opts.Workers = min(max(4, 2*runtime.GOMAXPROCS(0)), 64)
	}
	if opts.CacheBytes <= 0 {
		opts.CacheBytes = 48 << 20
	}
	if opts.Stall <= 0 {
		opts.Stall = 10 * time.Second
	}
	if opts.Limit <= 0 {
		opts.Limit = 5 * time.Minute
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	s := &Scanner{
		path: root, opts: opts, turn: make(chan struct{}, 1), hung: map[string]bool{},
		cache: cache{most: opts.CacheBytes, known: map[identity]*memory{}},
	}
	s.turn <- struct{}{}
	return s
}

// openRoot opens the root for one walk.
func (s *Scanner) openRoot() (*anchor, opener, error) {
	// The root itself is the operator's choice and may be reached through links.
	real, err := filepath.EvalSymlinks(s.path)
	if err != nil {
		return nil, opener{}, fmt.Errorf("find the tree: %w", err)
	}
	fd, err := unix.Open(real, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, opener{}, fmt.Errorf("open the tree: %w", err)
	}
	open, err := newOpener(fd)
	if err != nil {
		unix.Close(fd)
		return nil, opener{}, err
	}
	if s.opts.stepwise {
		if err := open.fallBack(); err != nil {
			unix.Close(fd)
			return nil, opener{}, err
		}
	}
	return newAnchor(fd), open, nil
}

// Walk measures the places. What cannot be read is listed in the result, and so
// is what does not answer within Options.Stall or Options.Limit; neither is an error. The
// walk ends early, without a result, when ctx does: box.ClassCanceled. It may be
// repeated at any time. ClassUnsupported when the kernel cannot keep a look-up on
// one mount.
func (s *Scanner) Walk(ctx context.Context, places []Place) (Result, error) {
	top, labels, err := chart(places, len(s.opts.Watch))
	if err != nil {
		return Result{}, err
	}
	select {
	case <-s.turn:
	case <-ctx.Done():
		return Result{}, ended(ctx)
	}
	defer func() { s.turn <- struct{}{} }()
	root, open, err := s.openRoot()
	if err != nil {
		return Result{}, err
	}
	// A worker that hangs holds it too, and lets go when its system call returns.
	defer root.letGo()
	result, elsewhere, whole := s.pass(ctx, &walk{scanner: s, root: root, open: open}, top, labels)
	if result.Work.Kept > 0 && whole && elsewhere != s.cache.elsewhere {
		// A file got or lost a name: what is remembered of its other names, or of the
		// only one that it had, is wrong. Nothing says where those are.
		first := result.Work
		result, elsewhere, whole = s.pass(ctx, &walk{scanner: s, root: root, open: open, all: true}, top, labels)
		result.Work.Read += first.Read
		result.Work.Looked += first.Looked
		result.Work.Again = true
	}
	if ctx.Err() != nil {
		return Result{}, ended(ctx)
	}
	if whole {
		s.cache.elsewhere = elsewhere
	}
	return result, nil
}

func ended(ctx context.Context) error {
	return box.Errorf(box.ClassCanceled, "measure the disk: %w", context.Cause(ctx))
}

// pass walks once; whole says that nothing was cut short.
func (s *Scanner) pass(ctx context.Context, w *walk, top *spot, labels int) (result Result, elsewhere uint64, whole bool) {
	s.walks++
	w.number, w.known, w.workers = s.walks, s.cache.known, make([]*worker, s.opts.Workers)
	w.settled = s.opts.Now().Add(-settle).UnixNano()
	w.wake = sync.NewCond(&w.mu)
	for i := range w.workers {
		w.workers[i] = newWorker(w, labels)
	}
	w.begin(top)
	ended := make(chan struct{})
	var running sync.WaitGroup
	for _, k := range w.workers {
		running.Go(k.run)
	}
	go func() {
		running.Wait()
		close(ended)
	}()
	whole = w.watch(ctx, ended)
	found := w.harvest(labels)
	found.alone = make([]freed, labels)
	for i, size := range found.Sizes {
		found.alone[i] = freed{size.Allocated, size.Inodes}
	}
	found.groups, elsewhere = join(found.runs, found.Sizes)
	if found.late {
		s.cache.known = maps.Clone(s.cache.known)
	}
	s.cache.keep(found.news, w.number, whole)
	return found.Result, elsewhere, whole
}

// watch waits for the end of a walk, and ends it when ctx does, when it takes too
// long, or when all that still work wait for the system; whole says that none of
// these came.
func (w *walk) watch(ctx context.Context, ended <-chan struct{}) (whole bool) {
	stall := w.scanner.opts.Stall
	tick := time.NewTicker(stall / 8)
	defer tick.Stop()
	limit := time.NewTimer(w.scanner.opts.Limit)
	defer limit.Stop()
	moved := time.Now()
	for {
		select {
		case <-ended:
			return true
		case <-ctx.Done():
		case <-limit.C:
			w.late = true
		case <-tick.C:
			if w.moved() {
				moved = time.Now()
			}
			if time.Since(moved) < stall {
				continue
			}
		}
		w.stop()
		timer := time.NewTimer(afterStop)
		defer timer.Stop()
		select {
		case <-ended:
		case <-timer.C:
		}
		return false
	}
}

func (s *Scanner) isHung(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hung[path]
}

func (s *Scanner) setHung(path string, hung bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hung {
		s.hung[path] = true
	} else {
		delete(s.hung, path)
	}
	s.anyHung.Store(int64(len(s.hung)))
}
