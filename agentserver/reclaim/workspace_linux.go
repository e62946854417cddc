package reclaim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// workspace considers what git ignores in the repositories of a workspace.
func (g *gathering) workspace(ctx context.Context, workspace string) error {
	repos, err := g.r.checkouts(workspace)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		g.leave(workspace, cmp.Or(g.place.Busy, refusal(err)))
		return nil
	case len(repos) == 0:
		g.leave(workspace, "is no git repository, so nothing says what in it can be made again")
		return nil
	}
	for _, repo := range repos {
		if err := g.objects(ctx, repo); err != nil {
			return err
		}
		dirs, err := g.r.ignored(ctx, repo)
		if err != nil {
			g.leave(repo, err.Error())
			continue
		}
		for _, dir := range dirs {
			if err := g.ignoredDir(ctx, path.Join(repo, dir)); err != nil {
				return err
			}
		}
	}
	return nil
}

// ignoredDir considers one directory that git ignores as a whole.
func (g *gathering) ignoredDir(ctx context.Context, dir string) error {
	c := g.r.opts.Catalogue
	for i := range c.rules {
		rule := &c.rules[i]
		if rule.in != inWorkspace || level(rule.tier) > level(g.scope.tier) {
			continue
		}
		at := dir
		// What is inside an ignored directory is ignored too.
		if first, rest, two := strings.Cut(rule.path, "/"); two && path.Base(dir) == first {
			at = path.Join(dir, rest)
		}
		if !rule.endsIn(at) {
			continue
		}
		if err := g.consider(ctx, rule, at); err != nil {
			return err
		}
	}
	return nil
}

// leave lists a directory of which nothing is taken.
func (g *gathering) leave(place, why string) {
	if _, twice := g.at[place]; twice || level(g.scope.tier) < level(box.TierDependencies) {
		return
	}
	g.add(item{ReclaimItem: box.ReclaimItem{
		Path: place, Rule: gitRule, Tier: box.TierDependencies, ConversationID: g.place.Conversation, Skipped: why,
	}}, nil)
}

// checkouts returns the git work trees of a workspace: itself, and the ones
// right inside.
func (r *Reclaimer) checkouts(workspace string) ([]string, error) {
	fd, names, err := r.tree.list(r.tree.fd, workspace)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var out []string
	for _, entry := range names {
		if entry.name == ".git" {
			out = append(out, workspace)
			continue
		}
		if r.tree.kindOf(fd, entry) != unix.DT_DIR {
			continue
		}
		// A mount or a link is not entered.
		below, err := r.tree.open(fd, entry.name+"/.git", unix.O_PATH)
		if err == nil {
			unix.Close(below)
			out = append(out, path.Join(workspace, entry.name))
		}
	}
	return out, nil
}

// ignored asks git about a work tree, or about some directories of it alone.
// Whatever is wrong keeps all of it.
func (r *Reclaimer) ignored(ctx context.Context, repo string, only ...string) ([]string, error) {
	if r.opts.Repos == nil {
		return nil, errors.New("git is not there to ask what in it can be made again")
	}
	dirs, err := r.opts.Repos.IgnoredDirs(ctx, r.abs(repo), only...)
	if err != nil {
		return nil, fmt.Errorf("git does not say what in it can be made again: %w", err)
	}
	for _, dir := range dirs {
		if !filepath.IsLocal(dir) || path.Clean(dir) != dir || dir == "." {
			return nil, fmt.Errorf("git named %q, which is no directory inside", dir)
		}
	}
	return dirs, nil
}

// ignoring are directories that git ignores, by their repository.
type ignoring map[string][]string

// stillIgnored asks git again about items of one conversation, and gives the
// ones that it does not ignore any more their reason. It returns the directories
// that git named for the others: asked with these, it asks about them alone, which
// is quick enough while the conversation is held.
func (r *Reclaimer) stillIgnored(ctx context.Context, place *placed, items []*item, named ignoring) ignoring {
	answers, out := ignoring{}, ignoring{}
	for _, entry := range items {
		rule := place.rule(r.opts.Catalogue, entry)
		if rule == nil || rule.in != inWorkspace {
			continue
		}
		repos, err := r.checkouts(place.workspaceOf(entry.Path))
		if err != nil {
			entry.Skipped = refusal(err)
			continue
		}
		// The innermost one tracks it or not; what is around may ignore all of that.
		repo := ""
		for _, one := range repos {
			if strings.HasPrefix(entry.Path, one+"/") && len(one) > len(repo) {
				repo = one
			}
		}
		dirs, asked := answers[repo]
		if repo != "" && !asked {
			if dirs, err = r.ignored(ctx, repo, named[repo]...); err != nil {
				entry.Skipped = err.Error()
				continue
			}
			answers[repo] = dirs
		}
		at := slices.IndexFunc(dirs, func(dir string) bool {
			at := path.Join(repo, dir)
			return entry.Path == at || strings.HasPrefix(entry.Path, at+"/")
		})
		switch {
		case at < 0:
			entry.Skipped = "changed since the plan: git does not ignore it any more, or tracks something in it"
		case !slices.Contains(out[repo], dirs[at]):
			out[repo] = append(out[repo], dirs[at])
		}
	}
	return out
}
