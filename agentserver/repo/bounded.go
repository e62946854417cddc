package repo

import "github.com/openhands/boxkeeper/agentserver/bounded"

// looks is how many questions a look at files may take as long as: opening a
// repository asks git twice.
const looks = 3

// inTime does work that reads the files of a repository at place, which may lie on
// a file server that does not answer. given ends the wait; undo gets what came too
// late.
func inTime[T any](g *Git, given <-chan struct{}, place string, work func() (T, error), undo func(T)) (T, error) {
	return bounded.In(&g.looks, given, place, looks*g.opts.Timeout, work, undo)
}
