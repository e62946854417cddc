package reclaim

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// TrashDir is where things are moved aside, below the root.
const TrashDir = trashName

// Search says which names forbid to take a directory when they are inside, however
// deep. It is a question for Forbids.
type Search int

// The searches.
const (
	SearchNothing  Search = iota // whatever is inside goes with it
	SearchPackages               // a clone, an environment file or a key is somebody's
	SearchAll                    // also what is code in a package, such as "token"
)

// Forbids returns the pattern that forbids to take a directory with this name
// inside, empty when none does. It takes no memory for names that are nothing
// special, which is nearly all.
func (s Search) Forbids(name []byte) string {
	if s == SearchNothing || !suspect(name) {
		return ""
	}
	how := lookPackages
	if s == SearchAll {
		how = lookAll
	}
	pattern, _ := how.mustStay(string(name))
	return pattern
}

// suspects are the first letters of the names in never and neverInPackages, and
// the middles of the patterns that begin with anything.
var suspects = func() (out struct { //nolint:gochecknoglobals // made of constants
	first   [256]bool
	middles [][]byte
},
) {
	for _, pattern := range append(append([]string{}, never...), neverInPackages...) {
		if middle := strings.Trim(pattern, "*"); pattern[0] == '*' {
			out.middles = append(out.middles, []byte(middle))
		} else {
			out.first[pattern[0]] = true
			out.first[strings.ToUpper(pattern)[0]] = true
		}
	}
	return out
}()

// suspect reports whether a name may match a pattern at all.
func suspect(name []byte) bool {
	if len(name) == 0 {
		return false
	}
	if suspects.first[name[0]] {
		return true
	}
	for _, middle := range suspects.middles {
		for at := bytes.IndexByte(name, middle[0]); at >= 0 && len(name)-at >= len(middle); {
			if bytes.EqualFold(name[at:at+len(middle)], middle) {
				return true
			}
			next := bytes.IndexByte(name[at+1:], middle[0])
			if next < 0 {
				break
			}
			at += 1 + next
		}
	}
	return false
}

// Candidate is a directory that a rule is about, not measured.
type Candidate struct {
	box.ReclaimItem
	// Search is what must not be inside; it was not looked for.
	Search Search
}

// Selection is what a pass of the deepest tier would look at.
type Selection struct {
	// Places are the conversations of the layouts, with paths relative to the root.
	Places []Place
	// Items are sorted by path. One with Skipped set would be left; of two taken,
	// one inside the other, the outer counts.
	Items  []Candidate
	Errors []string // what could not be read
}

// Disk reads the filesystem of the root, and the budgets that it is kept to.
func (r *Reclaimer) Disk() (box.Disk, error) {
	disk, err := diskOf(r.root)
	if err != nil {
		return box.Disk{}, fmt.Errorf("read the size of the disk: %w", err)
	}
	disk.Budget, disk.TreeBudgetBytes = r.opts.Budget.High, r.opts.Budget.Bytes
	return disk, nil
}

// Select finds what a pass of the deepest tier would look at, and the places of
// the conversations, without measuring: whoever measures must also ask the
// candidate's Search. It changes nothing and may be repeated. It fails only when
// ctx ends or Close is called; what could not be read is listed in Errors.
func (r *Reclaimer) Select(ctx context.Context) (Selection, error) {
	var out Selection
	if err := r.tree.usable(); err != nil {
		out.Errors = append(out.Errors, err.Error())
		return out, nil
	}
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return out, err
	}
	defer leave()
	return out, r.candidates(ctx, &out)
}

// Covers returns the items that a pass of this tier takes, among those wanted: of
// two, one inside the other, the outer. Items are in the order of their paths.
func Covers(items []box.ReclaimItem, tier box.Tier, wanted func(*box.ReclaimItem) bool) []*box.ReclaimItem {
	takes := func(i *box.ReclaimItem) bool { return i.Skipped == "" && level(i.Tier) <= level(tier) && wanted(i) }
	return outermost(items, takes, func(i *box.ReclaimItem) string { return i.Path })
}

// outermost returns those of all that are wanted: of two, one inside the other,
// the outer. They are in the order of their paths, so that what is inside comes
// later.
func outermost[T any](all []T, wanted func(*T) bool, at func(*T) string) []*T {
	var out []*T
	outer := map[string]bool{}
	for i := range all {
		one := &all[i]
		if !wanted(one) || insideOf(outer, at(one)) {
			continue
		}
		outer[at(one)] = true
		out = append(out, one)
	}
	return out
}

// insideOf reports whether place lies inside one of the directories.
func insideOf(dirs map[string]bool, place string) bool {
	for at := path.Dir(place); at != "."; at = path.Dir(at) {
		if dirs[at] {
			return true
		}
	}
	return false
}
