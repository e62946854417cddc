package workspace

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

// maxStashes bounds the entries of a stash that are listed; older ones are kept as
// references.
const maxStashes = 1000

// repositories writes what the repositories in the tree hold. Those that share
// their objects share a bundle.
func (e *export) repositories(w *Workspace) error {
	bundled := map[string]string{} // common directory to the place of its bundle
	for i := 0; ; i++ {
		if i == len(e.found) {
			e.found = append(e.found, e.homes.unseen(e.tree.Root(), e.unknown)...)
		}
		if i == len(e.found) {
			return nil
		}
		place := e.found[i]
		if err := e.ctx.Err(); err != nil {
			return err
		}
		one := box.ManifestRepository{Path: place, Kind: box.RepositoryClone}
		prefix := fmt.Sprintf("%s%04d/", box.WorkspaceRepositories, i+1)
		if err := e.repository(w, &one, prefix, bundled); err != nil {
			return err
		}
		e.manifest.Repositories = append(e.manifest.Repositories, one)
	}
}

// repository writes one; only an error of the archive itself is returned.
func (e *export) repository(w *Workspace, one *box.ManifestRepository, prefix string, bundled map[string]string) error {
	var r *repo.Repository
	err := errors.New("there is no git program in the box")
	if w.opts.Git != nil {
		r, err = w.opts.Git.Open(e.ctx, filepath.Join(e.tree.Root(), one.Path))
	}
	if err != nil {
		gitDir := one.Path + "/.git"
		if strings.Contains(gitDir, "/.git/") {
			gitDir = one.Path
		}
		return e.unbundled(one, prefix, gitDir, err)
	}
	defer r.Close()
	if err := e.homes.note(r); err != nil {
		e.missing(one.Path + ": " + err.Error())
	}
	// Empty when it is outside: then it cannot be kept as files.
	common, inside := strings.CutPrefix(r.CommonDir(), e.tree.Root()+"/")
	if !inside {
		common = ""
	}
	switch {
	case r.Linked():
		one.Kind = box.RepositoryWorktree
	case r.WorkTree() == "":
		one.Kind = box.RepositoryBare
		if !strings.Contains(one.Path, "/.git/") {
			return nil // its directory is in the tree as it is
		}
	case !e.homes.accepts(e.tree.Root(), r.GitDir()):
		e.missing(one.Path + " has its git directory outside of the box")
		one.Unbundled = "its git directory lies outside of the box"
		return nil
	case one.Path+"/.git" != common:
		one.Kind = box.RepositorySubmodule
	}
	head, err := r.Head(e.ctx)
	if err != nil {
		return e.unbundled(one, prefix, common, err)
	}
	one.Branch, one.Head, one.Shallow = head.Branch, head.ID, r.Shallow()
	one.Remotes = map[string]string{}
	for _, remote := range r.Remotes() {
		one.Remotes[remote.Name] = remote.URL
	}
	if one.InProgress, err = r.InProgress(); err != nil {
		e.missing(one.Path + ": what is in progress: " + err.Error())
	}
	if err := e.patches(r, one, prefix); err != nil {
		return err
	}
	if at, ok := bundled[r.CommonDir()]; ok {
		one.BundleOf = at
		return nil
	}
	refs, err := r.Rescued(e.ctx)
	if err != nil {
		return e.unbundled(one, prefix, common, err)
	}
	stashes, err := r.Stashes(e.ctx)
	if err != nil {
		return e.unbundled(one, prefix, common, err)
	}
	for _, stash := range stashes[:min(len(stashes), maxStashes)] {
		one.Stashes = append(one.Stashes, box.ManifestStash(stash))
	}
	if len(refs) == 0 {
		return nil // no commit yet
	}
	part, filled, err := e.stream(prefix+"bundle", func(to io.Writer) error { return r.Bundle(e.ctx, to, refs) })
	if err != nil {
		return err
	}
	if filled != nil {
		one.BrokenOff += min(part.Parts, 1)
		return e.unbundled(one, prefix, common, filled)
	}
	one.Bundle, one.References = part, len(refs)
	for _, ref := range refs {
		if strings.HasPrefix(ref.Name, repo.RescueRefs) {
			one.Rescued++
		}
	}
	bundled[r.CommonDir()] = one.Path
	return nil
}

// patches writes what is not committed, in two steps, without large files: as they
// are now they are in the tree.
func (e *export) patches(r *repo.Repository, one *box.ManifestRepository, prefix string) error {
	large, unlisted := r.Large(e.ctx)
	var without [2][]string
	for _, change := range large {
		if change.Staged {
			one.StagedLarge++
			without[0] = append(without[0], change.Path)
		}
		if change.Unstaged {
			without[1] = append(without[1], change.Path)
		}
		if change.Twice {
			e.missing(fmt.Sprintf("%s: what is staged of %q, which is over %d MiB and was changed again", one.Path, change.Path, repo.MaxPatched>>20))
		}
	}
	for i, to := range []*box.ManifestPart{&one.Staged, &one.Unstaged} {
		name := []string{"staged.patch", "unstaged.patch"}[i]
		part, filled, err := e.stream(prefix+name, func(to io.Writer) error {
			if unlisted != nil {
				return unlisted
			}
			return r.Patch(e.ctx, to, i == 0, without[i])
		})
		if err != nil {
			return err
		}
		if filled != nil {
			one.BrokenOff += min(part.Parts, 1)
			e.missing(one.Path + ": the patch of what is not committed: " + filled.Error())
			continue
		}
		*to = part
	}
	return nil
}

// unbundled keeps the git directory as files instead.
func (e *export) unbundled(one *box.ManifestRepository, prefix, gitDir string, why error) error {
	if err := e.ctx.Err(); err != nil {
		return err
	}
	one.Unbundled = why.Error()
	e.missing(one.Path + ": the bundle of its repository, whose files are here instead where they lie in the box: " + why.Error())
	if gitDir == "" {
		return nil
	}
	files, err := e.gitDir(gitDir, prefix+"git/")
	one.GitFiles = files
	return err
}
