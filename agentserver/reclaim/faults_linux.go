package reclaim

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// maxExamples bounds how many names are told of each kind of fault, so that a
// tree with a million of them still gives a report that can be read and kept.
const maxExamples = 5

// faults are what could not be done in one tree: every kind by its system call
// and error, with the number of entries that it met.
type faults struct {
	total int
	kinds []fault
}

type fault struct {
	op, why  string
	count    int
	examples []string
}

// add notes that op on the entry at place, below the item, ended in err.
func (f *faults) add(op, place string, err error) {
	f.note(op, place, reason(err), 1)
}

func (f *faults) note(op, place, why string, count int) {
	f.total += count
	at := -1
	for i := range f.kinds {
		if f.kinds[i].op == op && f.kinds[i].why == why {
			at = i
		}
	}
	if at < 0 {
		at = len(f.kinds)
		f.kinds = append(f.kinds, fault{op: op, why: why})
	}
	kind := &f.kinds[at]
	kind.count += count
	if place != "" && len(kind.examples) < maxExamples {
		kind.examples = append(kind.examples, place)
	}
}

// join adds what another tree met.
func (f *faults) join(o *faults) {
	for _, kind := range o.kinds {
		for i, place := range kind.examples {
			f.note(kind.op, place, kind.why, min(1, kind.count-i))
		}
		if more := kind.count - len(kind.examples); more > 0 {
			f.note(kind.op, "", kind.why, more)
		}
	}
}

// lines says each kind with its number and examples.
func (f *faults) lines() []string {
	kinds := make([]string, 0, len(f.kinds))
	for _, kind := range f.kinds {
		var names []string
		for _, place := range kind.examples {
			names = append(names, fmt.Sprintf("%q", place))
		}
		text := kind.op + ": " + kind.why + ": " + strings.Join(names, ", ")
		if more := kind.count - len(kind.examples); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		kinds = append(kinds, text)
	}
	return kinds
}

// errImmutable is what EPERM means for a file with the immutable or append-only
// attribute, also to root.
var errImmutable = fmt.Errorf("immutable or append-only: %w", unix.EPERM)

// errMount is what is left of a directory that something is mounted on.
var errMount = fmt.Errorf("a mount, left alone: %w", unix.EXDEV)

// reason says an error with the name of its number.
func reason(err error) string {
	if number, ok := errors.AsType[unix.Errno](err); ok {
		if name := unix.ErrnoName(number); name != "" {
			return err.Error() + " (" + name + ")"
		}
	}
	return err.Error()
}
