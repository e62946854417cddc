package repo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// inProgress are the files by which git remembers that something is under way.
var inProgress = []struct{ name, what string }{ //nolint:gochecknoglobals // a constant table
	{"rebase-merge", "rebase"},
	{"rebase-apply", "rebase"},
	{"REBASE_HEAD", "rebase"},
	{"MERGE_HEAD", "merge"},
	{"MERGE_AUTOSTASH", "merge"},
	{"CHERRY_PICK_HEAD", "cherry-pick"},
	{"REVERT_HEAD", "revert"},
	{"BISECT_LOG", "bisect"},
	{"sequencer", "sequence"},
	{"index.lock", "an index that is locked"},
	{"HEAD.lock", "a head that is locked"},
}

// InProgress lists what is under way in this working tree, each once.
func (r *Repository) InProgress() ([]string, error) {
	return inTime(r.git, nil, r.gitDir, r.inProgress, nil)
}

func (r *Repository) inProgress() ([]string, error) {
	var out []string
	for _, one := range inProgress {
		_, err := os.Lstat(filepath.Join(r.gitDir, one.name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("look for what is in progress: %w", err)
		case !slices.Contains(out, one.what):
			out = append(out, one.what)
		}
	}
	return out, nil
}

// Fetched is when the repository last heard of a remote, by this box's clock; the
// zero time when that is not known.
func (r *Repository) Fetched() time.Time {
	at, err := inTime(r.git, nil, r.common, func() (time.Time, error) { return r.fetched(), nil }, nil)
	if err != nil {
		return time.Time{}
	}
	return at
}

func (r *Repository) fetched() time.Time {
	var newest time.Time
	note := func(info fs.FileInfo, err error) {
		if err == nil && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	note(os.Lstat(filepath.Join(r.common, "FETCH_HEAD")))
	seen := 0
	_ = filepath.WalkDir(filepath.Join(r.common, "logs/refs/remotes"), func(_ string, entry fs.DirEntry, err error) error {
		if seen++; err != nil || seen > 10_000 {
			return fs.SkipAll
		}
		if entry.Type().IsRegular() {
			note(entry.Info())
		}
		return nil
	})
	return newest
}

// Modules lists the git directories of submodules that are kept with this
// working tree, checked out or not: absolute paths, in order.
func (r *Repository) Modules() ([]string, error) {
	return inTime(r.git, nil, r.gitDir, func() ([]string, error) { return modulesIn(r.gitDir) }, nil)
}

func modulesIn(gitDir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(filepath.Join(gitDir, "modules"), func(at string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		case isGitDir(at):
			out = append(out, at)
			// One may keep others, at modules/NAME/modules/INNER.
			more, err := modulesIn(at)
			if err != nil {
				return err
			}
			out = append(out, more...)
			return fs.SkipDir
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the submodules: %w", err)
	}
	return out, nil
}

// Worktrees lists the working trees that were added to the repository, as git has
// them on record, there or not: absolute paths, in order.
func (r *Repository) Worktrees() ([]string, error) {
	return inTime(r.git, nil, r.common, r.worktrees, nil)
}

func (r *Repository) worktrees() ([]string, error) {
	records, err := os.ReadDir(filepath.Join(r.common, "worktrees"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the worktrees: %w", err)
	}
	var out []string
	for _, record := range records {
		dir := filepath.Join(r.common, "worktrees", record.Name())
		at, err := pointer(filepath.Join(dir, "gitdir"), "", dir)
		if err != nil {
			return nil, err
		}
		out = append(out, filepath.Dir(at))
	}
	slices.Sort(out)
	return out, nil
}

// Remotes lists the remotes that the configuration names.
func (r *Repository) Remotes() []Remote { return slices.Clone(r.settings.remotes) }
