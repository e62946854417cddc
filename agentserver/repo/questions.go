package repo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// Head is what a working tree is at.
type Head struct {
	// Branch is its branch without refs/heads/; empty when the head is detached.
	Branch string
	// ID is its commit; empty when the branch has none yet.
	ID string
}

// Head returns what the working tree is at.
func (r *Repository) Head(ctx context.Context) (Head, error) {
	var out Head
	if ref, ok := strings.CutPrefix(r.head, "ref: "); ok {
		out.Branch = strings.TrimPrefix(ref, "refs/heads/")
		text, err := r.git.text(ctx, r.ask("for-each-ref", "--format=%(refname) %(objectname)", ref))
		if err != nil {
			return Head{}, err
		}
		for line := range strings.Lines(text) {
			if name, id, _ := strings.Cut(strings.TrimSpace(line), " "); name == ref {
				out.ID = id
			}
		}
		return out, nil
	}
	out.ID = r.head
	return out, nil
}

// Status calls fn with every path that is not as the last commit has it:
// changed, staged, unmerged, untracked or ignored. Changes of submodules are
// those of their commits; what is in them is for their own repository to say.
func (r *Repository) Status(ctx context.Context, fn func(Entry) error) error {
	what := r.ask("status", "--porcelain=v2", "-z", "--branch", "--untracked-files=all",
		"--ignored=matching", "--ignore-submodules=dirty", "--no-renames")
	what.out = func(out io.Reader) error { return parseStatus(out, fn) }
	return r.git.do(ctx, what)
}

// Index calls fn with every entry of the index.
func (r *Repository) Index(ctx context.Context, fn func(IndexEntry) error) error {
	what := r.ask("ls-files", "-v", "-s", "-z")
	what.out = func(out io.Reader) error { return parseIndex(out, fn) }
	return r.git.do(ctx, what)
}

// maxAbout is about how many directories git is asked by name: each is compared
// with every file that it tracks.
const maxAbout = 64

// IgnoredDirs lists the directories of a working tree that git ignores as a
// whole, by a pattern that matches the directory itself: untracked, with nothing
// tracked inside, real directories and no links.
// Paths are relative to workTree, without a trailing slash, in order. With some
// named in only, which is quicker, the answer says nothing of others. With an
// error, keep everything.
func (g *Git) IgnoredDirs(ctx context.Context, workTree string, only ...string) ([]string, error) {
	r, err := g.Open(ctx, workTree)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.workTree == "" {
		return nil, refused("a bare repository has no working tree")
	}
	var out []string
	// Directories that only hold what is ignored, and are not ignored themselves:
	// git lists them beside what is in them.
	above := map[string]bool{}
	if len(only) > maxAbout {
		only = nil
	}
	about := func(args ...string) run { return r.ask(slices.Concat(args, []string{"--"}, only)...) }
	what := about("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
	what.out = func(answer io.Reader) error {
		return eachRecord(answer, func(name string) error {
			dir, ok := strings.CutSuffix(name, "/")
			for up := filepath.Dir(dir); up != "." && !above[up]; up = filepath.Dir(up) {
				above[up] = true
			}
			if !ok {
				return nil
			}
			if info, err := os.Lstat(filepath.Join(r.workTree, dir)); err != nil || !info.IsDir() {
				return nil //nolint:nilerr // gone or replaced: not a directory to name
			}
			out = append(out, dir)
			return nil
		})
	}
	if err := g.do(ctx, what); err != nil {
		return nil, err
	}
	// What is tracked is never named by it; asked once more, since on this list
	// things are deleted.
	tracked := map[string]bool{}
	what = about("ls-files", "-z")
	what.out = func(answer io.Reader) error {
		return eachRecord(answer, func(name string) error {
			for dir := name; dir != "."; dir = filepath.Dir(dir) {
				if tracked[dir] {
					break
				}
				tracked[dir] = true
			}
			return nil
		})
	}
	if err := g.do(ctx, what); err != nil {
		return nil, err
	}
	out = slices.DeleteFunc(out, func(dir string) bool { return tracked[dir] || above[dir] })
	slices.Sort(out)
	return out, nil
}

// Ref is one reference.
type Ref struct{ Name, ID string }

const maxRefs = 100_000

// Refs lists all references, by name, those of hidden spaces among them.
func (r *Repository) Refs(ctx context.Context) ([]Ref, error) {
	var out []Ref
	what := r.ask("for-each-ref", "--format=%(objectname) %(refname)%00")
	what.out = func(answer io.Reader) error {
		return eachRecord(answer, func(record string) error {
			id, name, _ := strings.Cut(strings.TrimPrefix(record, "\n"), " ")
			if record == "\n" || record == "" { // the end, also where there is none
				return nil
			}
			if !isID(id) || !strings.HasPrefix(name, "refs/") {
				return fmt.Errorf("git for-each-ref said %.20q, which is not understood", record)
			}
			if len(out) == maxRefs {
				return box.Errorf(box.ClassExhausted, "it has more than %d references", maxRefs)
			}
			out = append(out, Ref{Name: name, ID: id})
			return nil
		})
	}
	// Each line ends with NUL and newline, so the answer ends with a newline.
	inner := what.out
	what.out = func(answer io.Reader) error { return inner(io.MultiReader(answer, strings.NewReader("\x00"))) }
	return out, r.git.do(ctx, what)
}

// Stash is one entry of the stash.
type Stash struct{ ID, Subject string }

const maxStashes = 10_000

// Stashes lists the stash, newest first. It belongs to the repository, so all
// worktrees of it list the same.
func (r *Repository) Stashes(ctx context.Context) ([]Stash, error) {
	if _, err := os.Lstat(filepath.Join(r.standIn, "logs/refs/stash")); err != nil {
		return r.stashWithoutLog(ctx)
	}
	var out []Stash
	what := r.ask("log", "--walk-reflogs", "--first-parent", "-z", "--no-show-signature", "--format=%H %gs", "refs/stash", "--")
	what.out = func(answer io.Reader) error {
		return eachRecord(io.MultiReader(answer, strings.NewReader("\x00")), func(record string) error {
			if record == "" {
				return nil
			}
			id, subject, _ := strings.Cut(record, " ")
			if !isID(id) || len(out) == maxStashes {
				return errors.New("the stash is not understood, or endless")
			}
			out = append(out, Stash{ID: id, Subject: oneLine(subject)})
			return nil
		})
	}
	return out, r.git.do(ctx, what)
}

// stashWithoutLog is for a stash whose reflog was lost, or kept elsewhere.
func (r *Repository) stashWithoutLog(ctx context.Context) ([]Stash, error) {
	refs, err := r.Refs(ctx)
	if err != nil {
		return nil, err
	}
	for _, ref := range refs {
		if ref.Name == "refs/stash" {
			return []Stash{{ID: ref.ID}}, nil
		}
	}
	return nil, nil
}

// heads are the files of a git directory that hold commits beside references.
var heads = []string{ //nolint:gochecknoglobals // a constant table
	"HEAD", "ORIG_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "MERGE_AUTOSTASH",
	"BISECT_EXPECTED_REV", "rebase-merge/orig-head", "rebase-merge/onto", "rebase-merge/stopped-sha",
	"rebase-merge/autostash", "rebase-apply/orig-head", "rebase-apply/abort-safety", "rebase-apply/autostash",
}

const maxRemembered = 200_000

// Remembered lists the commits that this working tree remembers beside its
// branches: the head, those of its reflog, those of what is in progress, and
// references that it shares with no other worktree. It reads files only.
func (r *Repository) Remembered() ([]string, error) {
	return inTime(r.git, nil, r.gitDir, func() ([]string, error) { return rememberedIn(r.gitDir, r.linked) }, nil)
}

func rememberedIn(gitDir string, linked bool) ([]string, error) {
	seen := map[string]bool{}
	note := func(text string) {
		for field := range strings.FieldsSeq(text) {
			if isID(field) {
				seen[field] = true
			}
		}
	}
	for _, name := range heads {
		text, err := small(filepath.Join(gitDir, name))
		if err == nil {
			note(text)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	log, err := openRegular(filepath.Join(gitDir, "logs/HEAD"))
	if err == nil {
		err = parseReflog(log, func(id string) { seen[id] = true })
		log.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if linked {
		err := filepath.WalkDir(filepath.Join(gitDir, "refs"), func(at string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := small(at)
			note(text)
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if len(seen) > maxRemembered {
		return nil, box.Errorf(box.ClassExhausted, "its reflog names more than %d commits", maxRemembered)
	}
	return sortedKeys(seen), nil
}

// Forgotten lists the commits in the reflogs of branches, of other worktrees'
// heads and of the stash, beside Remembered.
func (r *Repository) Forgotten() ([]string, error) {
	return inTime(r.git, nil, r.common, r.forgotten, nil)
}

func (r *Repository) forgotten() ([]string, error) {
	seen := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(r.common, "logs"), func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		log, err := openRegular(at)
		if err != nil {
			return err
		}
		defer log.Close()
		if err := parseReflog(log, func(id string) { seen[id] = true }); err != nil {
			return err
		}
		if len(seen) > maxRemembered {
			return box.Errorf(box.ClassExhausted, "its reflogs name more than %d commits", maxRemembered)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	records, err := os.ReadDir(filepath.Join(r.common, "worktrees"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the worktrees: %w", err)
	}
	for _, record := range records {
		ids, err := rememberedIn(filepath.Join(r.common, "worktrees", record.Name()), true)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			seen[id] = true
		}
	}
	return sortedKeys(seen), nil
}

func sortedKeys(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for key := range set {
		out = append(out, key)
	}
	slices.Sort(out)
	return out
}

// Which references keep commits alive, for Unreachable.
var (
	// BesidesRemotes: what the remotes had when they were last heard of.
	BesidesRemotes = []string{"--remotes"} //nolint:gochecknoglobals // constant
	// BesidesShared: what stays in the repository when a worktree goes.
	BesidesShared = []string{"--branches", "--tags", "--remotes"} //nolint:gochecknoglobals // constant
	// BesidesAll: every reference, and the head.
	BesidesAll = []string{"--all"} //nolint:gochecknoglobals // constant
)

// Unreachable lists the commits that can be reached from tips and not from what
// besides names. Names of commits that are gone already count for nothing. Tips
// may be names of references. Exhausted when there are more than 200,000.
func (r *Repository) Unreachable(ctx context.Context, tips, besides []string) ([]string, error) {
	if len(tips) == 0 {
		return nil, nil
	}
	// Git before 2.42 takes no such options on its standard input. The second
	// --not turns the first one off for what comes there.
	what := r.ask(append(append([]string{"rev-list", "--ignore-missing", "--not"}, besides...), "--not", "--stdin")...)
	what.stdin = strings.NewReader(strings.Join(tips, "\n") + "\n")
	var out []string
	what.out = func(answer io.Reader) error {
		return eachLine(answer, func(line string) error {
			if !isID(line) {
				return fmt.Errorf("git rev-list said %.20q, which is not understood", line)
			}
			if len(out) == maxRemembered {
				return box.Errorf(box.ClassExhausted, "more than %d commits are reachable from it alone", maxRemembered)
			}
			out = append(out, line)
			return nil
		})
	}
	return out, r.git.do(ctx, what)
}
