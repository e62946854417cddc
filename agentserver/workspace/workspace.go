package workspace

import (
	"context"
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
	// Recreatable lists what can be made again in the working tree of a repository,
	// an absolute path: paths relative to it, with the rule for each. An error
	// means that nothing can there, and so does nil anywhere.
	Recreatable func(ctx context.Context, dir string) (map[string]string, error)
}

// Workspace looks at the work in a box. It is safe for concurrent use.
type Workspace struct{ opts Options }

// New returns a Workspace. It opens nothing.
func New(opts Options) *Workspace { return &Workspace{opts: opts} }

// within reports whether place is dir or below it.
func within(dir, place string) bool {
	return place == dir || strings.HasPrefix(place, strings.TrimSuffix(dir, "/")+"/")
}
