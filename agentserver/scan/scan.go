package scan

import (
	"encoding/binary"
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

// link is one name of a file that has several.
type link struct {
	ino, size, blocks uint64
	nlink, dev        uint32
}

func (l *link) hash() uint64 {
	h := (l.ino ^ uint64(l.dev)<<48) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}

// linkRun is the names of such files in one directory.
type linkRun struct {
	label int32
	links []link
}

// partition is how many names are sorted at a time.
const partition = 1 << 16

// join finds which names lead to the same file, adds each file to the size of
// its lowest label, and returns the groups and a fingerprint of the files that
// have names elsewhere.
func join(runs []linkRun, sizes []Size) (groups []group, elsewhere uint64) {
	total := 0
	for _, run := range runs {
		total += len(run.links)
	}
	if total == 0 {
		return nil, 0
	}
	type name struct {
		link
		label int32
	}
	parts := uint64(total/partition + 1)
	scratch := make([]name, 0, min(total, 2*partition))
	byLabels := map[string]int{}
	var key []byte
	for part := range parts {
		scratch = scratch[:0]
		for _, run := range runs {
			for i := range run.links {
				if run.links[i].hash()%parts == part {
					scratch = append(scratch, name{run.links[i], run.label})
				}
			}
		}
		slices.SortFunc(scratch, func(a, b name) int {
			switch {
			case a.ino != b.ino:
				return less(a.ino < b.ino)
			case a.dev != b.dev:
				return less(a.dev < b.dev)
			}
			return int(a.label - b.label)
		})
		for from := 0; from < len(scratch); {
			first := &scratch[from]
			most, to := *first, from
			key = key[:0]
			for ; to < len(scratch) && scratch[to].ino == first.ino && scratch[to].dev == first.dev; to++ {
				most.nlink = max(most.nlink, scratch[to].nlink)
				most.blocks, most.size = max(most.blocks, scratch[to].blocks), max(most.size, scratch[to].size)
				if to == from || scratch[to].label != scratch[to-1].label {
					key = binary.NativeEndian.AppendUint32(key, uint32(scratch[to].label)) //nolint:gosec // labels are not negative
				}
			}
			seen := uint32(to - from) //nolint:gosec // no tree has so many names
			from = to
			bytes := int64(most.blocks) * 512 //nolint:gosec // no file is that large
			sizes[first.label].Allocated += bytes
			sizes[first.label].Apparent += int64(most.size) //nolint:gosec // no file is that large
			sizes[first.label].Inodes++
			if seen < most.nlink {
				elsewhere += mixed(most.ino, uint64(most.dev), uint64(most.nlink), uint64(seen))
				continue
			}
			at, known := byLabels[string(key)]
			if !known {
				at = len(groups)
				byLabels[string(key)] = at
				one := group{}
				for rest := key; len(rest) > 0; rest = rest[4:] {
					one.labels = append(one.labels, int32(binary.NativeEndian.Uint32(rest))) //nolint:gosec // put in above
				}
				groups = append(groups, one)
			}
			groups[at].bytes += bytes
			groups[at].inodes++
		}
	}
	return groups, elsewhere
}

// mixed makes a number of several that is no other's but by chance.
func mixed(numbers ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, n := range numbers {
		h = (h ^ n) * 0xbf58476d1ce4e5b9
		h ^= h >> 31
	}
	return h
}

func less(yes bool) int {
	if yes {
		return -1
	}
	return 1
}
