package scan

import "slices"

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

// partition is about how many names are joined at a time: so many files fit into
// a table that stays small.
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
	sets := labelSets{known: map[string]int32{}, next: map[[2]int32]int32{}}
	parts := uint64(total/partition + 1)
	table := joint{parts: parts}
	for part := range parts {
		table.empty(total / int(parts))
		for _, run := range runs {
			for i := range run.links {
				if hash := run.links[i].hash(); hash%parts == part {
					table.add(&run.links[i], hash, run.label, &sets)
				}
			}
		}
		for i := range table.files {
			file := &table.files[i]
			labels := sets.all[file.labels]
			bytes := int64(file.blocks) * 512 //nolint:gosec // no file is that large
			sizes[labels[0]].Allocated += bytes
			sizes[labels[0]].Apparent += int64(file.size) //nolint:gosec // no file is that large
			sizes[labels[0]].Inodes++
			if file.seen < file.nlink {
				elsewhere += mixed(file.ino, uint64(file.dev), uint64(file.nlink), uint64(file.seen))
				continue
			}
			for len(groups) <= int(file.labels) {
				groups = append(groups, group{labels: sets.all[len(groups)]})
			}
			groups[file.labels].bytes += bytes
			groups[file.labels].inodes++
		}
	}
	return groups, elsewhere
}

// joint is a table of the files of one partition, by their numbers.
type joint struct {
	parts uint64
	slots []uint32 // one more than the index of a file, 0 for none
	files []jointFile
}

type jointFile struct {
	link
	seen   uint32
	labels int32 // which of the label sets
}

// empty makes room for about so many names.
func (t *joint) empty(names int) {
	t.files = t.files[:0]
	size := 1024
	for size < 2*names {
		size *= 2
	}
	if len(t.slots) < size {
		t.slots = make([]uint32, size)
		return
	}
	clear(t.slots)
}

// find returns the slot of a file, or the one where it belongs.
func (t *joint) find(name *link, hash uint64) *uint32 {
	mask := uint64(len(t.slots) - 1) //nolint:gosec // it is not negative
	at := hash / t.parts & mask
	for t.slots[at] != 0 {
		if file := &t.files[t.slots[at]-1]; file.ino == name.ino && file.dev == name.dev {
			break
		}
		at = (at + 1) & mask
	}
	return &t.slots[at]
}

func (t *joint) add(name *link, hash uint64, label int32, sets *labelSets) {
	slot := t.find(name, hash)
	if *slot != 0 {
		file := &t.files[*slot-1]
		// Looked at one after the other, the names can tell of different times.
		file.nlink, file.blocks, file.size = max(file.nlink, name.nlink), max(file.blocks, name.blocks), max(file.size, name.size)
		file.seen++
		file.labels = sets.with(file.labels, label)
		return
	}
	t.files = append(t.files, jointFile{*name, 1, sets.with(-1, label)})
	*slot = uint32(len(t.files)) //nolint:gosec // bounded by the memory
	if 4*len(t.files) < 3*len(t.slots) {
		return
	}
	// More files than are likely fell into this partition.
	t.slots = make([]uint32, 2*len(t.slots))
	for i := range t.files {
		one := &t.files[i].link
		*t.find(one, one.hash()) = uint32(i + 1)
	}
}

// labelSets numbers the sets of labels that files have names under.
type labelSets struct {
	all   [][]int32 // sorted
	known map[string]int32
	next  map[[2]int32]int32
}

// with returns the number of the set that has the label too; -1 is no set.
func (s *labelSets) with(set, label int32) int32 {
	if set >= 0 {
		if labels := s.all[set]; labels[len(labels)-1] == label {
			return set
		}
	}
	if next, known := s.next[[2]int32{set, label}]; known {
		return next
	}
	var labels []int32
	if set >= 0 {
		labels = slices.Clone(s.all[set])
	}
	if at, has := slices.BinarySearch(labels, label); !has {
		labels = slices.Insert(labels, at, label)
	}
	var key []byte
	for _, l := range labels {
		key = append(key, byte(l), byte(l>>8), byte(l>>16), byte(l>>24)) //nolint:gosec // its bytes
	}
	next, known := s.known[string(key)]
	if !known {
		next = int32(len(s.all)) //nolint:gosec // there are few
		s.all = append(s.all, labels)
		s.known[string(key)] = next
	}
	s.next[[2]int32{set, label}] = next
	return next
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
