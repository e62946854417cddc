package scan

import (
	"errors"
	"slices"
	"time"
)

// Options is what a Scanner may be told; the zero value works.
type Options struct {
	// Workers is how many directories are read at once; zero means twice the
	// processors that may be used, at least 4 and at most 64.
	Workers int
	// CacheBytes bounds what is remembered of directories; zero means 48 MiB,
	// enough for about 250,000. What does not fit is read again each time.
	CacheBytes int64
	// Stall is how long one system call may take before what it is about is given
	// up; zero means 10 seconds.
	Stall time.Duration
	// Limit is how long a walk may take before the rest is left out; zero means 5
	// minutes.
	Limit time.Duration
	// Watch are questions whether a name is one that the caller wants to know of;
	// Place.Watch says which is asked where. None may keep the name.
	Watch []func(name []byte) bool
	// Now is the clock that the filesystem stamps with; nil means time.Now.
	Now func() time.Time

	pause    func(path string) // where a test makes the system hang
	stepwise bool              // as where the kernel has no openat2
}

// Place is one tree to measure.
type Place struct {
	// Path is below the root, with slashes; "." is the root itself. A place inside
	// another one is taken out of that one's sums. One that is not there counts
	// nothing.
	Path string
	// Label says under which number it is summed up, from 0. Places may share one.
	Label int
	// Estimate lets what did not change since the last walk be taken from memory.
	Estimate bool
	// Watch is which of Options.Watch is asked about the names below, from 1; 0
	// asks none.
	Watch int
}

// Size is what lies under one label. A file with several names is counted once,
// under the lowest of the labels that it has names under.
type Size struct {
	Allocated int64 // bytes on the disk, as blocks
	Apparent  int64 // bytes as programs see them
	Files     int64 // names of everything that is no directory
	Dirs      int64
	Inodes    int64
}

func (s *Size) add(o *Size) {
	s.Allocated += o.Allocated
	s.Apparent += o.Apparent
	s.Files += o.Files
	s.Dirs += o.Dirs
	s.Inodes += o.Inodes
}

// Fault is something that was not measured.
type Fault struct {
	Path string // below the root
	Err  error
}

// ErrMounted is the fault of a place on another mount.
var ErrMounted = errors.New("another filesystem is mounted here, and is not measured")

// Work is what a walk cost.
type Work struct {
	Read   int64 // directories whose names were read
	Kept   int64 // directories answered from memory
	Looked int64 // files and links that were looked at
	Again  bool  // the memory did not fit the links, so everything was read
}

// Result is what a walk found.
type Result struct {
	Sizes []Size // by label
	// Partial says, by label, that something below could not be measured.
	Partial []bool
	// Watched is, by label, the first by the alphabet of the names that were watched
	// for, if any.
	Watched []string
	// Print is a fingerprint of all that was looked at: equal ones mean that nothing
	// changed in between. In an estimate, files that changed in place don't show.
	Print uint64
	// Faults lists what was not measured, at most 100; FaultCount counts all.
	Faults     []Fault
	FaultCount int
	Work       Work

	alone  []freed // by label, of directories and of what has one name
	groups []group // of files whose names all were met
}

// freed is what a deletion gives back.
type freed struct{ bytes, inodes int64 }

// group is what files with names under these labels, and no others, take.
type group struct {
	freed
	labels []int32
}

// Freed returns what deleting everything under these labels frees, in bytes and
// inodes: a file counts when its last name is among them.
func (r *Result) Freed(labels ...int) (bytes, inodes int64) {
	in := make([]bool, len(r.Sizes))
	for _, label := range labels {
		if !in[label] {
			bytes += r.alone[label].bytes
			inodes += r.alone[label].inodes
		}
		in[label] = true
	}
	for _, g := range r.groups {
		if !slices.ContainsFunc(g.labels, func(label int32) bool { return !in[label] }) {
			bytes += g.bytes
			inodes += g.inodes
		}
	}
	return bytes, inodes
}
