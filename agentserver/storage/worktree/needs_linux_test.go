package worktree_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// A repository in a worktree that another one of the box borrows from is a doubt:
// nobody can give that up for the other one. A worktree without one lends nothing.
func TestARepositoryInAWorktreeThatAnotherNeedsKeepsIt(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		nested bool
		err    error
		why    string
	}{
		"another borrows from it": {true, nil, "is needed: workspace/b borrows objects"},
		"nobody can tell":         {true, errors.New("no answer"), "cannot tell whether something else in the box needs what is in it: no answer"},
		"it holds no repository":  {false, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if row.nested {
				f.git(f.tree, "clone", "-q", f.remote, "nested/inner")
			}
			f.opts.Needs = func(context.Context) (func(string) string, error) {
				return func(dir string) string {
					require.Equal(t, f.tree, dir)
					return "workspace/b borrows objects"
				}, row.err
			}
			item := f.remove(f.layout(), true)
			if row.why == "" {
				f.requireGone(item)
				return
			}
			f.requireKept(item, row.why)
		})
	}
}
