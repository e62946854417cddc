package workspace

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// What bounds a look: what lies beyond is unknown.
const (
	maxDepth        = 200
	maxNames        = 20_000_000
	maxRepositories = 10_000
)

// visitor is told what a walk finds, in the order of names.
type visitor struct {
	// enter is called for each directory, with its names; it reports whether to
	// go on into it. The descriptor is the walk's.
	enter func(fd int, place string, names []reclaim.Name) (bool, error)
	// name is called for everything in a directory that is none.
	name func(dir int, place string, entry reclaim.Name) error
	// unknown is called for what could not be looked at.
	unknown func(place, why string) error
}

// walk goes through everything at and below place.
func walk(ctx context.Context, tree *reclaim.Beneath, place string, v visitor) error {
	seen := 0
	var visit func(at int, name, place string, depth int) error
	visit = func(at int, name, place string, depth int) error {
		if err := ctx.Err(); err != nil {
			return box.Errorf(box.ClassCanceled, "look at the workspace: %w", err)
		}
		if depth > maxDepth {
			return v.unknown(place, "is nested too deep")
		}
		fd, names, err := tree.List(at, name)
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil // gone meanwhile, or never there
		case err != nil:
			return v.unknown(place, reason(err))
		}
		defer unix.Close(fd)
		if seen += len(names); seen > maxNames {
			return box.Errorf(box.ClassExhausted, "the workspace holds more than %d names", maxNames)
		}
		slices.SortFunc(names, func(a, b reclaim.Name) int { return strings.Compare(a.Name, b.Name) })
		// A directory that changes while it is listed may tell a name twice.
		names = slices.CompactFunc(names, func(a, b reclaim.Name) bool { return a.Name == b.Name })
		into, err := v.enter(fd, place, names)
		if err != nil || !into {
			return err
		}
		for _, entry := range names {
			below := path.Join(place, entry.Name)
			if entry.Kind == unix.DT_DIR {
				err = visit(fd, entry.Name, below, depth+1)
			} else {
				err = v.name(fd, below, entry)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return visit(tree.Fd(), place, place, 0)
}

const (
	whyMounted   = "another filesystem is mounted there"
	whyForbidden = "may not be read"
)

// reason says in words why something could not be opened.
func reason(err error) string {
	switch {
	case errors.Is(err, unix.EXDEV):
		return whyMounted
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return "was replaced by a link or a file"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return whyForbidden
	}
	return fmt.Sprintf("could not be read: %s", err)
}

// isRepository reports whether names are those of a working tree of git, or of a
// bare repository.
func isRepository(names []reclaim.Name) bool {
	bare := 0
	for _, entry := range names {
		switch entry.Name {
		case ".git":
			return true
		case "objects", "refs":
			if entry.Kind == unix.DT_DIR {
				bare++
			}
		case "HEAD":
			if entry.Kind != unix.DT_DIR {
				bare++
			}
		}
	}
	return bare == 3
}

// again adds what can be made again in a repository, by its place below the root.
func (w *Workspace) again(ctx context.Context, root, repository string, names []reclaim.Name, to map[string]string) error {
	work := slices.ContainsFunc(names, func(entry reclaim.Name) bool { return entry.Name == ".git" })
	if w.opts.Recreatable == nil || !work {
		return nil
	}
	list, err := w.opts.Recreatable(ctx, filepath.Join(root, repository))
	if err != nil {
		return fmt.Errorf("tell what can be made again in %s: %w", repository, err)
	}
	for place, rule := range list {
		to[path.Join(repository, place)] = rule
	}
	return nil
}
