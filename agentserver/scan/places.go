package scan

import (
	"path"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// spot is a step in the tree of places.
type spot struct {
	label    int32
	estimate bool
	watch    int
	below    map[string]*spot // where something else applies, or does deeper
	inner    *spot            // everywhere else below
}

func newSpot(label int32, estimate bool, watch int) *spot {
	inner := &spot{label: label, estimate: estimate, watch: watch}
	inner.inner = inner
	return &spot{label: label, estimate: estimate, watch: watch, inner: inner}
}

// step returns what applies to the directory of this name.
func (s *spot) step(name string) *spot {
	if next := s.below[name]; next != nil {
		return next
	}
	return s.inner
}

// mark sets the labels of all that may lie here.
func (s *spot) mark(labels []bool) {
	if s.inner != nil { // the top has no label of its own
		labels[s.label] = true
	}
	for _, next := range s.below {
		next.mark(labels)
	}
}

// under returns the spot of a path below, made with what applies there so far.
func (s *spot) under(names []string) *spot {
	for _, name := range names {
		next := s.below[name]
		if next == nil {
			if s.below == nil {
				s.below = map[string]*spot{}
			}
			next = newSpot(s.label, s.estimate, s.watch)
			s.below[name] = next
		}
		s = next
	}
	return s
}

// chart makes the tree of places. The top holds those that lie in no other one
// by their whole paths.
func chart(places []Place, watches int) (top *spot, labels int, err error) {
	top = &spot{below: map[string]*spot{}}
	sorted := slices.Clone(places)
	// Outer places first, and "." before all.
	slices.SortStableFunc(sorted, func(a, b Place) int {
		return len(strings.TrimPrefix(a.Path, ".")) - len(strings.TrimPrefix(b.Path, "."))
	})
	roots := map[string]*spot{}
	for _, place := range sorted {
		if place.Label < 0 || place.Label >= 1<<20 {
			return nil, 0, box.Invalidf("places", "label %d of %q is out of range", place.Label, place.Path)
		}
		if place.Watch < 0 || place.Watch > watches {
			return nil, 0, box.Invalidf("places", "%q is watched for what no option says", place.Path)
		}
		if place.Path == "" || path.Clean(place.Path) != place.Path || place.Path[0] == '/' || place.Path == ".." || strings.HasPrefix(place.Path, "../") {
			return nil, 0, box.Invalidf("places", "%q is no path below the root; write it like home/.cache, or \".\"", place.Path)
		}
		labels = max(labels, place.Label+1)
		at := newSpot(int32(place.Label), place.Estimate, place.Watch)
		root, rest := outer(roots, place.Path)
		switch {
		case root == nil:
			roots[place.Path], top.below[place.Path] = at, at
		case len(rest) == 0: // given twice: the later one applies
			*root = *at
		default:
			parent := root.under(rest[:len(rest)-1])
			if parent.below == nil {
				parent.below = map[string]*spot{}
			}
			parent.below[rest[len(rest)-1]] = at
		}
	}
	return top, labels, nil
}

// outer finds the place that a path lies in, and the names from there.
func outer(roots map[string]*spot, place string) (root *spot, rest []string) {
	if root := roots["."]; root != nil {
		if place == "." {
			return root, nil
		}
		return root, strings.Split(place, "/")
	}
	for dir := place; dir != "." && dir != "/"; dir = path.Dir(dir) {
		if root := roots[dir]; root != nil {
			if dir == place {
				return root, nil
			}
			return root, strings.Split(place[len(dir)+1:], "/")
		}
	}
	return nil, nil
}
