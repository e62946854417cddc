package repo

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// RescueRefs is the space below which a bundle names commits that no reference
// of the repository names.
const RescueRefs = "refs/rescue/"

// Rescued lists all that a copy of the repository must hold: every reference,
// and below [RescueRefs] one more for each commit that only a reflog, an older
// entry of the stash, a detached head or an operation in progress of any of its
// worktrees names. Nothing is written to the repository.
func (r *Repository) Rescued(ctx context.Context) ([]Ref, error) {
	refs, err := r.Refs(ctx)
	if err != nil {
		return nil, err
	}
	own, err := r.Remembered()
	if err != nil {
		return nil, err
	}
	others, err := r.Forgotten()
	if err != nil {
		return nil, err
	}
	tips := append(own, others...)
	slices.Sort(tips)
	tips = slices.Compact(tips)
	alone, err := r.Unreachable(ctx, tips, BesidesAll)
	if err != nil {
		return nil, err
	}
	lost := make(map[string]bool, len(alone))
	for _, id := range alone {
		lost[id] = true
	}
	for _, id := range tips {
		if lost[id] {
			refs = append(refs, Ref{Name: RescueRefs + id, ID: id})
		}
	}
	return refs, nil
}

// Bundle streams a git bundle of refs and of the head to w. The references need
// not exist: they are those of the bundle. Equal refs over an equal store of
// objects give equal bytes. It fails without references.
func (r *Repository) Bundle(ctx context.Context, w io.Writer, refs []Ref) error {
	if len(refs) == 0 {
		return box.Errorf(box.ClassNotFound, "the repository has no commit yet")
	}
	lines := make([]string, 0, len(refs))
	for _, ref := range refs {
		if !isID(ref.ID) || !strings.HasPrefix(ref.Name, "refs/") || strings.ContainsAny(ref.Name, " \n\x00") {
			return box.Errorf(box.ClassInternal, "%q is no reference", ref.Name)
		}
		lines = append(lines, ref.ID+" "+ref.Name)
	}
	set := r.settings
	set.lines = slices.DeleteFunc(slices.Clone(set.lines), func(line string) bool { return strings.Contains(line, "refstorage") })
	dir, err := r.git.makeStandIn(set, r.head, func(dir string) error {
		if err := os.Mkdir(filepath.Join(dir, "refs"), 0o700); err != nil {
			return err
		}
		if _, err := os.Lstat(filepath.Join(r.common, "shallow")); err == nil {
			if err := os.Symlink(filepath.Join(r.common, "shallow"), filepath.Join(dir, "shallow")); err != nil {
				return err
			}
		}
		return os.WriteFile(filepath.Join(dir, "packed-refs"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
	})
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // see Close
	what := r.ask("bundle", "create", "--quiet", "-", "--all")
	// One thread, since more make packs that differ; and little memory, since
	// this is a box that somebody else works in.
	what.config = []string{
		"pack.threads=1", "pack.windowMemory=16m", "pack.deltaCacheSize=1m", "core.bigFileThreshold=8m",
		"core.packedGitWindowSize=1m", "core.packedGitLimit=32m", "core.deltaBaseCacheLimit=8m", "pack.useBitmaps=false",
	}
	what.dir = dir
	what.env = []string{"GIT_DIR=" + dir, "GIT_OBJECT_DIRECTORY=" + filepath.Join(r.common, "objects")}
	what.stream = true
	what.out = func(answer io.Reader) error {
		_, err := io.Copy(w, answer)
		return err
	}
	return r.git.do(ctx, what)
}

// Patch streams what is changed and tracked to w: between the last commit and
// the index when staged, else between the index and the working tree. Apply the
// staged one first, with "git apply --index". Without names files that are left
// out, of [Repository.Large]: with a large one git takes more memory than a box may
// have.
func (r *Repository) Patch(ctx context.Context, w io.Writer, staged bool, without []string) error {
	if r.workTree == "" {
		return nil
	}
	what := r.ask("diff", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--ignore-submodules=dirty")
	if staged {
		what.args = append(what.args, "--cached")
	}
	for _, name := range without {
		what.besides = append(what.besides, ":(top,exclude,literal)"+name)
	}
	// Else git would write the times that it saw into the index. And the lines of a
	// text take a hundred bytes each: a larger one is compared as bytes.
	what.config = []string{"diff.autoRefreshIndex=false", "core.bigFileThreshold=1m"}
	what.stream = true
	what.out = func(answer io.Reader) error {
		if _, err := io.Copy(w, answer); err != nil {
			return fmt.Errorf("pass on the patch: %w", err)
		}
		return nil
	}
	return r.git.do(ctx, what)
}
