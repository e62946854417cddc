//go:build !linux

package scan

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"github.com/openhands/boxkeeper/box"
)

// Scanner measures trees below one root, one file after the other. Here nothing
// is remembered, nothing keeps a slow system call from holding up a walk, and a
// mount is known by its device alone.
type Scanner struct {
	path string
	opts Options
}

// New returns a Scanner of the trees below root.
func New(root string, opts Options) *Scanner { return &Scanner{root, opts} }

// Walk measures the places; see the package comment. It may be repeated.
func (s *Scanner) Walk(ctx context.Context, places []Place) (Result, error) {
	top, labels, err := chart(places, len(s.opts.Watch))
	if err != nil {
		return Result{}, err
	}
	root, err := os.OpenRoot(s.path)
	if err != nil {
		return Result{}, err
	}
	defer root.Close()
	w := &plainWalk{ctx: ctx, root: root, watch: s.opts.Watch, runs: map[int32][]link{}}
	w.out.Sizes, w.out.Partial, w.out.Watched = make([]Size, labels), make([]bool, labels), make([]string, labels)
	for place, at := range top.below {
		if info, err := root.Lstat(place); err == nil && info.IsDir() {
			w.visit(place, at, info)
		}
	}
	if ctx.Err() != nil {
		return Result{}, box.Errorf(box.ClassCanceled, "measure the disk: %w", context.Cause(ctx))
	}
	for _, size := range w.out.Sizes {
		w.out.alone = append(w.out.alone, freed{size.Allocated, size.Inodes})
	}
	var runs []linkRun
	for label, links := range w.runs {
		runs = append(runs, linkRun{label, links})
	}
	w.out.groups, _ = join(runs, w.out.Sizes)
	return w.out, nil
}

type plainWalk struct {
	ctx   context.Context //nolint:containedctx // one walk's life
	root  *os.Root
	watch []func([]byte) bool
	out   Result
	runs  map[int32][]link
}

func (w *plainWalk) visit(dir string, at *spot, info fs.FileInfo) {
	w.count(info, at)
	entries, err := w.list(dir, info)
	w.out.Work.Read++
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.fault(dir, at, err)
	}
	for _, entry := range entries {
		if w.ctx.Err() != nil {
			return
		}
		name := path.Join(dir, entry.Name())
		if at.watch != 0 && w.watch[at.watch-1]([]byte(entry.Name())) {
			if known := w.out.Watched[at.label]; known == "" || entry.Name() < known {
				w.out.Watched[at.label] = entry.Name()
			}
		}
		below, err := w.root.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			w.fault(name, at, err)
		case device(below) != device(info):
			w.fault(name, at, ErrMounted)
		case below.IsDir():
			w.visit(name, at.step(entry.Name()), below)
		default:
			w.out.Work.Looked++
			w.count(below, at)
		}
	}
}

// list reads the names of a directory that was looked at, and of no other.
func (w *plainWalk) list(dir string, info fs.FileInfo) ([]fs.DirEntry, error) {
	file, err := w.root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if opened, err := file.Stat(); err != nil || !os.SameFile(info, opened) {
		return nil, cmp.Or(err, fs.ErrNotExist)
	}
	entries, err := file.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return entries, err
}

func (w *plainWalk) count(info fs.FileInfo, at *spot) {
	sum := &w.out.Sizes[at.label]
	w.out.Print += mixed(uint64(at.label), uint64(info.Size()), uint64(info.ModTime().UnixNano())) //nolint:gosec // any number does
	if info.IsDir() {
		sum.Dirs++
	} else {
		sum.Files++
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		w.fault(info.Name(), at, errors.New("its size on the disk is not known"))
		return
	}
	if !info.IsDir() && st.Nlink > 1 {
		w.runs[at.label] = append(w.runs[at.label], link{
			ino: st.Ino, size: uint64(st.Size), blocks: uint64(st.Blocks), nlink: uint32(st.Nlink), dev: uint32(st.Dev), //nolint:gosec,unconvert // sizes are not negative, and widths differ
		})
		return
	}
	sum.Inodes++
	sum.Allocated += st.Blocks * 512
	sum.Apparent += st.Size
}

func (w *plainWalk) fault(name string, at *spot, err error) {
	w.out.Partial[at.label] = true
	w.out.FaultCount++
	if len(w.out.Faults) < 100 {
		w.out.Faults = append(w.out.Faults, Fault{name, err})
	}
}

func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Dev) //nolint:gosec,unconvert // the type differs between systems
	}
	return 0
}
