package workspace

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/openhands/boxkeeper/agentserver/repo"
)

// Options says what a [Workspace] looks at.
type Options struct {
	// Root is the box's directory. Names in answers are relative to it.
	Root string
	// Dirs are below Root, where work is done; those that are missing are empty.
	Dirs []string
	// Git asks about repositories; with nil nothing is known of any.
	Git *repo.Git
	// Recreatable lists what can be made again in a directory, which is absolute:
	// paths relative to it, with the rule for each. Nil means nothing can.
	Recreatable func(ctx context.Context, dir string) (map[string]string, error)
}

// Workspace looks at the work in a box. It is safe for concurrent use.
type Workspace struct{ opts Options }

// New returns a Workspace. It opens nothing.
func New(opts Options) *Workspace { return &Workspace{opts: opts} }

// again lists what can be made again in dir, by its place below the root.
func (w *Workspace) again(ctx context.Context, root, dir string) (map[string]string, error) {
	if w.opts.Recreatable == nil {
		return nil, nil //nolint:nilnil // an empty list
	}
	list, err := w.opts.Recreatable(ctx, filepath.Join(root, dir))
	if err != nil {
		return nil, fmt.Errorf("tell what can be made again in %s: %w", dir, err)
	}
	out := make(map[string]string, len(list))
	for place, rule := range list {
		out[path.Join(dir, place)] = rule
	}
	return out, nil
}

// within reports whether place is dir or below it.
func within(dir, place string) bool {
	return place == dir || strings.HasPrefix(place, strings.TrimSuffix(dir, "/")+"/")
}
