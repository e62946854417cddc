package secretscan

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/openhands/boxkeeper/box"
)

const (
	// shortestValue is the shortest that is looked for where no rule finds it.
	shortestValue = 8
	// maxValues and maxValueBytes bound what is kept while one object is masked.
	maxValues     = 20_000
	maxValueBytes = 4 << 20
)

// Values are found values that are to be masked wherever they stand. They stay
// in memory for as long as one object is masked.
type Values struct {
	list  values
	have  map[string]bool
	bytes int
}

// Add keeps a find's value. Exhausted: the object has more than can be kept.
func (v *Values) Add(f Found) error {
	if len(f.value) < shortestValue || v.have[string(f.value)] {
		return nil
	}
	if v.have == nil {
		v.have = map[string]bool{}
	}
	if v.bytes += len(f.value); v.bytes > maxValueBytes || len(v.have) >= maxValues {
		return box.Errorf(box.ClassExhausted, "there are more than %d different secrets in one object; it cannot be masked by this version", maxValues)
	}
	v.have[string(f.value)] = true
	v.list.add(f.value)
	return nil
}

// AddAll adds what other holds.
func (v *Values) AddAll(other *Values) error {
	for _, value := range slices.Sorted(maps.Keys(other.have)) {
		if err := v.Add(Found{value: []byte(value)}); err != nil {
			return err
		}
	}
	return nil
}

// values finds many texts, by a table of how they begin.
type values struct {
	maybe [1 << 13]uint64 // mixed of hashes of the first 8 bytes
	by    map[uint64][][]byte
}

func (v *values) add(value []byte) {
	first := binary.LittleEndian.Uint64(value)
	h := mixed(first)
	v.maybe[h>>6] |= 1 << (h & 63)
	if v.by == nil {
		v.by = map[uint64][][]byte{}
	}
	v.by[first] = append(v.by[first], value)
	slices.SortFunc(v.by[first], func(a, b []byte) int { return len(b) - len(a) }) // the longest first
}

// each calls fn with the place of each value in text, the longest where several
// begin, without overlap.
func (v *values) each(text []byte, fn func(start, end int)) {
	for i := 0; i+shortestValue <= len(text); i++ {
		first := binary.LittleEndian.Uint64(text[i:])
		if h := mixed(first); v.maybe[h>>6]&(1<<(h&63)) == 0 {
			continue
		}
		for _, value := range v.by[first] {
			if bytes.HasPrefix(text[i:], value) {
				fn(i, i+len(value))
				i += len(value) - 1
				break
			}
		}
	}
}

// mixed mixes 8 bytes to a number below 2^19.
func mixed(x uint64) uint64 { return x * 0x9e3779b97f4a7c15 >> 45 }
