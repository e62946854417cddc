package putback

import "github.com/openhands/boxkeeper/agentserver/repo"

// Options says what a [Box] is.
type Options struct {
	// Root is the box's directory.
	Root string
	// Dirs are below Root, where work is done, one element each.
	Dirs []string
	// Scratch is a directory of ours, relative to Root and on its filesystem, for
	// what is put back and for the record of it.
	Scratch string
	// Git makes repositories of bundles; with nil only those come back that are
	// kept as files.
	Git *repo.Git
}

// Box takes a workspace in. One call at a time.
type Box struct{ opts Options }

// New returns a Box. It opens nothing.
func New(opts Options) *Box { return &Box{opts: opts} }
