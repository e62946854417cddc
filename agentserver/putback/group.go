package putback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

// group makes the repositories that share their objects: one that has them, and
// its worktrees.
func (b *Rebuild) group(ctx context.Context, m box.Manifest, members []int, numbers map[string]string, owner string) (notes []string, err error) {
	main := members[0]
	for _, i := range members {
		if m.Repositories[i].Kind != box.RepositoryWorktree {
			main = i
			break
		}
	}
	one := &m.Repositories[main]
	if one.Kind == box.RepositoryBare && !strings.Contains(one.Path, "/.git/") {
		return nil, nil // it is in the tree as it is
	}
	at, made, err := b.objects(one, numbers[owner])
	if err != nil || !made {
		return left(one, at), err
	}
	dir := filepath.Join(b.Path, at.dir)
	home := path.Join(one.Path, ".git")
	if strings.Contains(one.Path, "/.git/") {
		home = one.Path
	}
	to := repo.Settled{Head: repo.Head{Branch: one.Branch, ID: one.Head}, Refs: at.refs, Shallow: one.Shallow && !at.files}
	for _, i := range members {
		for _, stash := range m.Repositories[i].Stashes {
			to.Stashes = append(to.Stashes, repo.Stash(stash))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(one.Remotes)) {
		to.Remotes = append(to.Remotes, repo.Remote{Name: name, URL: one.Remotes[name]})
	}
	if to.Logged = at.files && one.Kind != box.RepositoryWorktree; at.files && !to.Logged {
		_ = b.Root.Remove(path.Join(at.dir, "index")) // it is another working tree's
	}
	more, err := b.Git.Settle(ctx, dir, to)
	if err != nil {
		err = cmp.Or(fullOrEnded(ctx, err), err)
		return nil, fmt.Errorf("bring back the repository %s: %w", one.Path, err)
	}
	notes = append(notes, about(one, more)...)
	if !b.indexed(at) && one.Kind != box.RepositoryBare {
		more, err := b.index(ctx, one, numbers[one.Path], dir, filepath.Join(dir, "index"))
		if err != nil {
			return nil, err
		}
		notes = append(notes, more...)
	}
	pointers := map[string]string{}
	for _, i := range members {
		if i == main {
			continue
		}
		other := &m.Repositories[i]
		more, pointer, err := b.worktree(ctx, other, numbers[other.Path], dir, home)
		if err != nil {
			return nil, fmt.Errorf("bring back the worktree %s: %w", other.Path, err)
		}
		notes, pointers[other.Path] = append(notes, more...), pointer
	}
	if err := b.place(at, home); err != nil {
		return nil, fmt.Errorf("bring back the repository %s: %w", one.Path, err)
	}
	for _, place := range slices.Sorted(maps.Keys(pointers)) {
		if err := b.write(path.Join(b.Tree, place, ".git"), strings.NewReader(pointers[place])); err != nil {
			return nil, fmt.Errorf("bring back the worktree %s: %w", place, err)
		}
	}
	return notes, nil
}

// worktree puts a worktree on the record of the repository in dir, which will be at
// home, and returns the text of its .git file.
func (b *Rebuild) worktree(ctx context.Context, one *box.ManifestRepository, number, dir, home string) (notes []string, pointer string, err error) {
	record, pointer, err := repo.AddWorktree(dir, filepath.Join(b.Final, home), filepath.Join(b.Final, one.Path), repo.Head{Branch: one.Branch, ID: one.Head})
	if err != nil {
		return nil, "", cmp.Or(fullOrEnded(ctx, err), err)
	}
	notes, err = b.index(ctx, one, number, dir, filepath.Join(record, "index"))
	return append(about(one, nil), notes...), pointer, err
}

// objects returns the git directory with what a repository holds. It is not made
// where the archive holds nothing of it.
func (b *Rebuild) objects(one *box.ManifestRepository, number string) (at *store, made bool, err error) {
	at, err = b.store(number)
	switch {
	case err != nil:
		return nil, false, err
	case at.taken:
		return nil, false, box.Errorf(box.ClassUnknown, "the archive has one bundle for %q and for another repository", one.Path)
	}
	at.taken = true
	switch {
	case at.files:
		for _, name := range []string{"objects", "refs"} {
			if err := b.Root.MkdirAll(path.Join(at.dir, name), 0o755); err != nil {
				return nil, false, localFault(err)
			}
		}
		return at, true, nil
	case one.Unbundled != "":
		return at, false, nil
	case at.err != nil:
		return nil, false, fmt.Errorf("bring back the repository %s: %w", one.Path, at.err)
	case len(at.refs) > 0:
		return at, true, nil
	case one.Head != "":
		return nil, false, box.Errorf(box.ClassUnknown, "the archive holds no commit of %q, which has one", one.Path)
	}
	// One without a commit yet.
	return at, true, repo.Empty(filepath.Join(b.Path, at.dir))
}

// left says that nothing of a repository is there but its files.
func left(one *box.ManifestRepository, at *store) []string {
	if at == nil {
		return nil
	}
	return []string{one.Path + ": the export holds no commits of it: " + one.Unbundled}
}

// about says what of a repository is not as it was.
func about(one *box.ManifestRepository, notes []string) (out []string) {
	for _, note := range notes {
		out = append(out, one.Path+": "+note)
	}
	if one.StagedLarge > 0 {
		out = append(out, fmt.Sprintf("%s: changes of large files were staged (%d) and are not any more; the files are there", one.Path, one.StagedLarge))
	}
	if len(one.InProgress) > 0 {
		out = append(out, fmt.Sprintf("%s: what was in progress (%s) is not any more; its commits are below refs/rescue/ where no branch has them", one.Path, strings.Join(one.InProgress, ", ")))
	}
	return out
}

// indexed reports whether the index came with the files of a git directory.
func (b *Rebuild) indexed(at *store) bool {
	_, err := b.Root.Lstat(path.Join(at.dir, "index"))
	return err == nil
}

// index makes an index with what was staged. Where the archive is why that fails
// all files are there all the same, and the patch is kept beside the index.
func (b *Rebuild) index(ctx context.Context, one *box.ManifestRepository, number, dir, place string) (notes []string, err error) {
	at := b.stores[number]
	if one.Head == "" && (at == nil || at.staged == "") {
		return nil, nil
	}
	var staged io.Reader
	if at != nil && at.staged != "" {
		f, err := b.Root.Open(at.staged)
		if err != nil {
			return nil, fmt.Errorf("read what was staged in %s: %w", one.Path, localFault(err))
		}
		defer f.Close()
		staged = f
	}
	err = errNoGit
	if b.Git != nil {
		err = b.Git.ReadIndex(ctx, dir, place, one.Head, staged)
	}
	if err == nil {
		return nil, nil
	}
	if local := fullOrEnded(ctx, err); local != nil {
		return nil, fmt.Errorf("bring back what was staged in %s: %w", one.Path, local)
	}
	note := one.Path + ": what was staged is not: " + err.Error()
	if staged != nil {
		kept := filepath.Join(filepath.Dir(place), "staged.patch")
		if moved := os.Rename(filepath.Join(b.Path, at.staged), kept); moved == nil {
			note += "; it is in staged.patch in its git directory"
		}
	}
	return []string{note}, nil
}

// place moves a git directory to where it belongs.
func (b *Rebuild) place(at *store, home string) error {
	to := path.Join(b.Tree, home)
	if err := b.Root.MkdirAll(path.Dir(to), 0o755); err != nil {
		return fmt.Errorf("make its directory: %w", localFault(err))
	}
	if _, err := b.Root.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return box.Errorf(box.ClassUnknown, "the archive has something where its git directory must be")
	}
	return b.Root.Rename(at.dir, to)
}
