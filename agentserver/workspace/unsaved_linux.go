package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

const (
	maxUnknown = 100
	// maxCounted bounds the branches whose commits are counted one by one.
	maxCounted = 50
)

// search is what a walk for repositories has found.
type search struct {
	answer box.Unsaved
	again  map[string]string
	more   int
}

func (s *search) unknown(place, why string) error {
	if len(s.answer.Unknown) < maxUnknown {
		s.answer.Unknown = append(s.answer.Unknown, place+" "+why)
	} else {
		s.more++
	}
	return nil
}

// Unsaved finds the work that exists nowhere else. It fails only when nothing can
// be said at all: Unsupported where this system cannot keep a look inside the
// box, Canceled when ctx ends. It may be repeated.
func (w *Workspace) Unsaved(ctx context.Context) (box.Unsaved, error) {
	tree, err := reclaim.OpenBeneath(w.opts.Root)
	if err != nil {
		return box.Unsaved{}, err
	}
	defer tree.Close()
	s := &search{again: map[string]string{}}
	for _, dir := range w.opts.Dirs {
		if err := s.look(ctx, w, tree, dir); err != nil {
			return box.Unsaved{}, err
		}
	}
	if s.more > 0 {
		s.answer.Unknown = append(s.answer.Unknown, fmt.Sprintf("%d more could not be looked at", s.more))
	}
	looking := &looking{root: tree.Root(), git: w.opts.Git, again: s.again, found: map[string]bool{}}
	for _, one := range s.answer.Repositories {
		looking.found[one.Path] = true
	}
	inner := map[string]bool{}
	// The list grows by submodules that are not checked out.
	for i := 0; i < len(s.answer.Repositories); i++ {
		one := &s.answer.Repositories[i]
		looking.judge(ctx, one)
		for _, place := range one.Submodules {
			inner[path.Join(one.Path, place)] = true
		}
		if err := ctx.Err(); err != nil {
			return box.Unsaved{}, box.Errorf(box.ClassCanceled, "look at the repositories: %w", err)
		}
		if i == len(s.answer.Repositories)-1 {
			for _, place := range looking.homes.unseen(tree.Root(), s.unknown) {
				s.answer.Repositories = append(s.answer.Repositories, box.UnsavedRepository{Path: place, FetchedSeconds: -1})
			}
		}
	}
	for i := range s.answer.Repositories {
		if one := &s.answer.Repositories[i]; inner[one.Path] && one.Kind == box.RepositoryClone {
			one.Kind = box.RepositorySubmodule
		}
	}
	s.answer.Judge()
	return s.answer, nil
}

// look finds the repositories below dir and counts the files outside of them.
func (s *search) look(ctx context.Context, w *Workspace, tree *reclaim.Beneath, dir string) error {
	repository := "" // the innermost one around the walk
	return walk(ctx, tree, dir, visitor{
		unknown: s.unknown,
		enter: func(_ int, place string, names []reclaim.Name) (bool, error) {
			if repository != "" && !within(repository, place) {
				repository = around(s.answer.Repositories, place)
			}
			if path.Base(place) == ".git" && place != dir {
				return false, nil
			}
			if !isRepository(names) {
				return true, nil
			}
			if len(s.answer.Repositories) == maxRepositories {
				return false, box.Errorf(box.ClassExhausted, "the workspace holds more than %d repositories", maxRepositories)
			}
			repository = place
			s.answer.Repositories = append(s.answer.Repositories, box.UnsavedRepository{Path: place, Kind: box.RepositoryClone, FetchedSeconds: -1})
			// Where that fails nothing can be made again, and all counts; the judging
			// says what is wrong with the repository.
			_ = w.again(ctx, tree.Root(), place, names, s.again)
			return true, nil
		},
		name: func(at int, place string, entry reclaim.Name) error {
			if repository != "" && !within(repository, place) {
				repository = around(s.answer.Repositories, place)
			}
			if repository != "" {
				return nil
			}
			var st unix.Stat_t
			err := unix.Fstatat(at, entry.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
			switch {
			case errors.Is(err, unix.ENOENT):
			case err != nil:
				return s.unknown(place, reason(err))
			case st.Mode&unix.S_IFMT == unix.S_IFREG, st.Mode&unix.S_IFMT == unix.S_IFLNK:
				s.answer.PlainFiles++
				s.answer.PlainBytes += st.Size
			}
			return nil
		},
	})
}

// around returns the innermost repository found that place is in.
func around(list []box.UnsavedRepository, place string) string {
	for _, one := range slices.Backward(list) {
		if within(one.Path, place) {
			return one.Path
		}
	}
	return ""
}

// looking is what the judging of one repository knows of the others.
type looking struct {
	root  string
	git   *repo.Git
	again map[string]string
	found map[string]bool // places of repositories
	homes homes
}

// homes are the git directories that were seen.
type homes struct {
	seen map[string]bool
	// records are those of worktrees: what lies in one is accepted like what lies
	// in the box, since it belongs to the worktree.
	records []string
	modules []string // of submodules, seen or not
}

// note remembers where a repository keeps its state.
func (h *homes) note(r *repo.Repository) error {
	if h.seen == nil {
		h.seen = map[string]bool{}
	}
	h.seen[r.GitDir()] = true
	if r.Linked() {
		h.records = append(h.records, r.GitDir())
	}
	modules, err := r.Modules()
	h.modules = append(h.modules, modules...)
	return err
}

// accepts says whether a repository of the box may keep its state in gitDir.
func (h *homes) accepts(root, gitDir string) bool {
	return within(root, gitDir) || slices.ContainsFunc(h.records, func(home string) bool { return within(home, gitDir) })
}

// unseen returns the git directories of submodules that no working tree was seen
// of, as places below root, each once; those that lie elsewhere are unknown.
func (h *homes) unseen(root string, unknown func(place, why string) error) []string {
	var out []string
	for _, dir := range h.modules {
		if h.seen[dir] {
			continue
		}
		h.seen[dir] = true
		if place, ok := strings.CutPrefix(dir, root+"/"); ok {
			out = append(out, place)
		} else {
			_ = unknown(filepath.Base(dir), "is a submodule that is not checked out, whose repository lies outside of the box")
		}
	}
	return out
}

// judge asks git about one repository. Whatever goes wrong makes it unknown.
func (l *looking) judge(ctx context.Context, one *box.UnsavedRepository) {
	defer one.Judge()
	if err := l.ask(ctx, one); err != nil {
		one.Unknown = err.Error()
	}
}

func (l *looking) ask(ctx context.Context, one *box.UnsavedRepository) error {
	if l.git == nil {
		return errors.New("there is no git program in the box")
	}
	r, err := l.git.Open(ctx, filepath.Join(l.root, one.Path))
	if err != nil {
		return err
	}
	defer r.Close()
	if err := l.homes.note(r); err != nil {
		return err
	}
	switch {
	case r.Linked():
		one.Kind = box.RepositoryWorktree
	case r.WorkTree() == "":
		one.Kind = box.RepositoryBare
	case !l.homes.accepts(l.root, r.GitDir()):
		return errors.New("its git directory lies outside of the box")
	}
	one.Remotes = len(r.Remotes())
	if at := r.Fetched(); !at.IsZero() {
		one.FetchedSeconds = int64(max(0, time.Since(at)) / time.Second)
	}
	if one.Kind != box.RepositoryBare {
		if err := files(ctx, r, one, l.again, l.found); err != nil {
			return err
		}
	}
	return commits(ctx, r, one)
}

// files fills in what the working tree holds.
func files(ctx context.Context, r *repo.Repository, one *box.UnsavedRepository, again map[string]string, found map[string]bool) error {
	var err error
	if one.InProgress, err = r.InProgress(); err != nil {
		return err
	}
	err = r.Status(ctx, func(entry repo.Entry) error {
		place := path.Join(one.Path, entry.Path)
		switch entry.Kind {
		case '?':
			// A repository of its own is an entry of its own.
			if !strings.HasSuffix(entry.Path, "/") || !found[place] {
				one.Untracked.Add(entry.Path)
			}
		case '!':
			if !recreatable(again, place) {
				one.Ignored.Add(entry.Path)
			}
		default:
			one.Uncommitted.Add(entry.Path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.Index(ctx, func(entry repo.IndexEntry) error {
		switch {
		case entry.Submodule && found[path.Join(one.Path, entry.Path)]:
			one.Submodules = append(one.Submodules, entry.Path)
		case entry.Assumed:
			one.Hidden.Add(entry.Path)
		case entry.Skipped:
			// Absent is what a sparse checkout means by it.
			if _, err := os.Lstat(filepath.Join(r.WorkTree(), entry.Path)); !errors.Is(err, os.ErrNotExist) {
				one.Hidden.Add(entry.Path)
			}
		}
		return nil
	})
}

// recreatable reports whether place is, or is in, what can be made again.
func recreatable(again map[string]string, place string) bool {
	for ; place != "." && place != "/"; place = path.Dir(place) {
		if _, ok := again[place]; ok {
			return true
		}
	}
	return false
}

// commits fills in what the repository holds and no remote does.
func commits(ctx context.Context, r *repo.Repository, one *box.UnsavedRepository) error {
	head, err := r.Head(ctx)
	if err != nil {
		return err
	}
	one.Branch, one.Head, one.Detached = head.Branch, head.ID, head.Branch == ""
	refs, err := r.Refs(ctx)
	if err != nil {
		return err
	}
	stashes, err := r.Stashes(ctx)
	if err != nil {
		return err
	}
	for _, stash := range stashes {
		one.Stashes = append(one.Stashes, stash.Subject)
	}
	remembered, err := r.Remembered()
	if err != nil {
		return err
	}
	if !r.Linked() {
		// What worktrees elsewhere remember goes with this repository.
		more, err := r.Forgotten()
		if err != nil {
			return err
		}
		remembered = append(remembered, more...)
	}
	// The stash is told of by itself.
	stashed := map[string]bool{}
	for _, stash := range stashes {
		stashed[stash.ID] = true
	}
	tips := remembered[:0]
	for _, id := range remembered {
		if !stashed[id] {
			tips = append(tips, id)
		}
	}
	unnamed, err := r.Unreachable(ctx, tips, repo.BesidesShared)
	if err != nil {
		return err
	}
	one.UnnamedCommits = len(unnamed)
	for _, ref := range refs {
		// A tag may have come from the remote with a commit that is on no branch of
		// it. Made here, its commit is in the reflog.
		// What a restore kept for the repository is told of there, and does not go
		// with a worktree.
		kept := r.Linked() && strings.HasPrefix(ref.Name, repo.RescueRefs)
		if !kept && !strings.HasPrefix(ref.Name, "refs/remotes/") && !strings.HasPrefix(ref.Name, "refs/tags/") && ref.Name != "refs/stash" {
			tips = append(tips, ref.ID)
		}
	}
	alone, err := r.Unreachable(ctx, tips, repo.BesidesRemotes)
	if err != nil {
		return err
	}
	set := make(map[string]bool, len(alone))
	for _, id := range alone {
		set[id] = true
	}
	for _, id := range unnamed {
		delete(set, id)
	}
	one.UnpushedCommits = len(set)
	for _, ref := range refs {
		branch, ok := strings.CutPrefix(ref.Name, "refs/heads/")
		if !ok || !set[ref.ID] {
			continue
		}
		count := -1
		if len(one.Unpushed) < maxCounted {
			ids, err := r.Unreachable(ctx, []string{ref.ID}, repo.BesidesRemotes)
			if err != nil {
				return err
			}
			count = len(ids)
		}
		one.Unpushed = append(one.Unpushed, box.UnpushedBranch{Branch: branch, Commits: count})
	}
	return nil
}
