package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/openhands/boxkeeper/agentserver/idlelock"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	ondisk "github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/dockerruntime"
	"github.com/openhands/boxkeeper/agentserver/storage/sharedworkspace"
	"github.com/openhands/boxkeeper/agentserver/storage/worktree"
	"github.com/openhands/boxkeeper/agentserver/workspace"
)

// rescueDir keeps what a person gave up with a worktree. Nothing cleans it.
const rescueDir = persistenceDir + "/rescue"

// insides are the parts of a box that look at its disk.
type insides struct {
	root      string
	git       *repo.Git // nil without the program
	catalogue *reclaim.Catalogue
	layouts   []reclaim.Layout
	worktrees *worktree.Layout // nil without git
	reclaimer *reclaim.Reclaimer
}

// assemble opens the parts of a box. Close the reclaimer.
func assemble(set settings, env func(string) string, log *slog.Logger) (*insides, error) {
	in := &insides{catalogue: set.catalogue}
	var err error
	if in.root, err = filepath.EvalSymlinks(set.root); err != nil {
		return nil, fmt.Errorf("find the box's directory: %w", err)
	}
	if in.git, err = repo.New(repo.Options{}); err != nil {
		log.Warn("without git nothing in a workspace is freed, and none of its work counts as saved", "error", err)
		in.git = nil
	}
	// The layouts write with what the reclaimer sets aside for a full disk.
	write := func(name string, content []byte) error { return in.reclaimer.WriteFile(name, content) }
	lock := idlelock.New(idlelock.Options{NoLeases: noLeases(set, env)})
	// A container is the sign there, whether leases are kept or not.
	containers := dockerruntime.New(set.root, write, dockerruntime.Options{Containers: dockerruntime.Containers("docker")})
	in.layouts = []reclaim.Layout{containers, containers.Forgotten(), sharedworkspace.New(set.root, write, sharedworkspace.Options{Lock: lock})}
	if in.git != nil {
		if in.worktrees, err = in.newWorktrees(lock, write); err != nil {
			return nil, err
		}
		in.layouts = append(in.layouts, in.worktrees)
	}
	opts := reclaim.Options{
		Env: env, Log: log, Catalogue: set.catalogue, Budget: set.budget, Layouts: in.layouts, Unsaved: in.unsaved, Needs: in.needs,
	}
	if in.git != nil {
		opts.Repos = in.git
	}
	in.reclaimer, err = reclaim.Open(set.root, opts)
	return in, err
}

func noLeases(set settings, env func(string) string) string {
	if len(set.argv) == 0 {
		return "" // no agent-server, so that nothing is loaded
	}
	return idlelock.NoLeases(env, set.root)
}

func (in *insides) newWorktrees(lock *idlelock.Locker, write ondisk.Writer) (*worktree.Layout, error) {
	// A link out of the box there would lead what is rescued to where nobody looks.
	if err := in.below(func(root *os.Root) error { return root.MkdirAll(rescueDir, 0o700) }); err != nil {
		return nil, fmt.Errorf("make %s: %w", rescueDir, err)
	}
	return worktree.New(in.root, write, worktree.Options{
		Git: in.git, Rescue: filepath.Join(in.root, rescueDir), Lock: lock, Recreatable: in.recreatable, Needs: in.needs,
	})
}

func (in *insides) below(do func(*os.Root) error) error {
	root, err := os.OpenRoot(in.root)
	if err != nil {
		return err
	}
	defer root.Close()
	return do(root)
}

// recreatable lists what can be made again in a repository, an absolute path:
// directories that git ignores and a rule recognises.
func (in *insides) recreatable(ctx context.Context, dir string) (map[string]string, error) {
	if in.git == nil {
		return nil, nil //nolint:nilnil // an empty list
	}
	ignored, err := in.git.IgnoredDirs(ctx, dir)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, name := range ignored {
		if rule, why := in.catalogue.Recognise(ctx, dir, name); why == "" {
			out[name] = rule
		}
	}
	return out, nil
}

// unsaved says which work in a workspace, an absolute path, is nowhere else;
// empty when none is.
func (in *insides) unsaved(ctx context.Context, dir string) (string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	place, err := filepath.Rel(in.root, dir)
	if err != nil || !filepath.IsLocal(place) {
		return "", errors.New("it lies outside of the box")
	}
	found, err := workspace.New(workspace.Options{Root: in.root, Dirs: []string{place}, Git: in.git, Recreatable: in.recreatable}).Unsaved(ctx)
	if err != nil {
		return "", err
	}
	if !found.Clean {
		return inWords(&found), nil
	}
	for i := range found.Repositories {
		if why, err := in.needed(ctx, dir, found.Repositories[i].Path); err != nil || why != "" {
			return why, err
		}
	}
	return "", nil
}

// needs looks which repositories in the workspaces of the box cannot do without
// what lies elsewhere; of says which cannot do without what lies in dir, an
// absolute path.
func (in *insides) needs(ctx context.Context) (of func(dir string) string, err error) {
	all := workspace.Options{Root: in.root, Dirs: []string{workspaceDir, worktreesDir, ondisk.DataDir}}
	found, err := workspace.New(all).Needs(ctx)
	if err != nil {
		return nil, err
	}
	return func(dir string) string {
		if below, err := filepath.EvalSymlinks(dir); err == nil {
			dir = below
		}
		return found(dir)
	}, nil
}

// needed says which worktree outside of dir would lose its repository, which is at
// place below the box.
func (in *insides) needed(ctx context.Context, dir, place string) (string, error) {
	r, err := in.git.Open(ctx, filepath.Join(in.root, place))
	if err != nil {
		return "", err
	}
	defer r.Close()
	if r.Linked() {
		return "", nil // its repository stays
	}
	trees, err := r.Worktrees()
	if err != nil {
		return "", err
	}
	for _, tree := range trees {
		// One that is gone may only not be seen from here.
		if below, err := filepath.Rel(dir, tree); err != nil || !filepath.IsLocal(below) {
			return "the repository of the worktree " + tree, nil
		}
	}
	return "", nil
}
