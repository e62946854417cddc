package worktree

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/workspace"
	"github.com/openhands/boxkeeper/box"
)

// verdict is what one look at a worktree found.
type verdict struct {
	// doubts are reasons that no confirmation takes away.
	doubts []string
	// losses are what would be lost, and can be kept elsewhere.
	losses []string
	// unnamed says that commits are among them.
	unnamed  bool
	evidence string
}

func (v *verdict) reasons() []string { return append(append([]string{}, v.doubts...), v.losses...) }

// work looks at one worktree, named relative to the root.
func (l *Layout) work(place string) *workspace.Workspace {
	return workspace.New(workspace.Options{
		Root: l.dir, Dirs: []string{place}, Git: l.opts.Git, Recreatable: l.opts.Recreatable,
	})
}

// judge asks git and the files. It never answers "nothing" where it is in doubt.
func (l *Layout) judge(ctx context.Context, place string) verdict {
	var v verdict
	doubt := func(format string, args ...any) verdict {
		v.doubts = append(v.doubts, fmt.Sprintf(format, args...))
		return v
	}
	at := filepath.Join(l.dir, place)
	if why := mounted(at); why != "" {
		return doubt("%s", why)
	}
	r, err := l.opts.Git.Open(ctx, at)
	if err != nil {
		return doubt("cannot be judged: %s", err)
	}
	defer r.Close()
	if !r.Linked() {
		return doubt("is a main checkout or a repository of its own, not a worktree")
	}
	if filepath.Dir(r.CommonDir()) == at || sameDir(filepath.Dir(r.CommonDir()), at) {
		return doubt("is the main checkout")
	}
	if reason, locked := r.Locked(); locked && reason != lockReason {
		return doubt("is locked in git: %s", reason)
	}
	found, err := l.work(place).Unsaved(ctx)
	if err != nil {
		return doubt("cannot be judged: %s", err)
	}
	for _, what := range found.Unknown {
		doubt("%s", what)
	}
	if len(found.Repositories) == 0 || found.Repositories[0].Path != place {
		return doubt("is no longer a worktree")
	}
	own := found.Repositories[0]
	v.evidence = "worktree of " + filepath.Dir(r.CommonDir()) + ", nothing in it is only there"
	v.unnamed = own.UnnamedCommits > 0
	v.note(place, own, true)
	for _, other := range found.Repositories[1:] {
		v.note(place, other, false)
	}
	// What the worktree itself shows is in its repository, which stays.
	if len(found.Repositories) > 1 && l.opts.Needs != nil {
		of, err := l.opts.Needs(ctx)
		if err != nil {
			return doubt("cannot tell whether something else in the box needs what is in it: %s", err)
		}
		if why := of(at); why != "" {
			return doubt("is needed: %s", why)
		}
	}
	return v
}

// note adds what one repository in the worktree says.
func (v *verdict) note(place string, one box.UnsavedRepository, own bool) {
	name := ""
	if !own {
		name = strings.TrimPrefix(one.Path, place+"/") + ": "
	}
	if one.Unknown != "" {
		v.doubts = append(v.doubts, name+"cannot be judged: "+one.Unknown)
		return
	}
	if !own && one.Kind == box.RepositoryWorktree {
		v.doubts = append(v.doubts, name+"is a worktree of another repository")
	}
	lose := func(n int, what string, example []string) {
		if n > 0 {
			text := fmt.Sprintf("%s%d %s", name, n, what)
			if len(example) > 0 {
				text += fmt.Sprintf(", such as %q", example[0])
			}
			v.losses = append(v.losses, text)
		}
	}
	lose(one.Uncommitted.Count, "uncommitted changes", one.Uncommitted.Paths)
	lose(one.Untracked.Count, "untracked files", one.Untracked.Paths)
	lose(one.Hidden.Count, "files that git was told not to look at", one.Hidden.Paths)
	lose(one.Ignored.Count, "ignored files that cannot be made again", one.Ignored.Paths)
	lose(one.UnnamedCommits, "commits that are on no branch", nil)
	for _, what := range one.InProgress {
		if strings.Contains(what, "locked") {
			v.doubts = append(v.doubts, name+"has "+what)
		} else {
			v.losses = append(v.losses, name+"a "+what+" is in progress")
		}
	}
	if !own {
		// Its repository goes as well, so only remotes keep anything.
		lose(one.UnpushedCommits, "unpushed commits", nil)
		lose(len(one.Stashes), "stashes", one.Stashes)
	}
}

// mounted says why a directory cannot be looked through: a dead mount in it would
// hang whoever looks.
func mounted(at string) string {
	mount, err := reclaim.MountIn(at)
	switch {
	case err != nil:
		return "cannot tell whether something is mounted inside: " + err.Error()
	case mount != "":
		return "another filesystem is mounted inside"
	}
	return ""
}

func sameDir(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// split returns the conversation's directory and the name in it.
func split(place string) (dir, name string) { return path.Dir(place), path.Base(place) }
