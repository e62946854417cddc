package worktree_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/idlelock"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
	"github.com/openhands/boxkeeper/agentserver/storage/worktree"
	"github.com/openhands/boxkeeper/box"
)

const (
	conversation = "0123456789abcdef0123456789abcdef"
	dashed       = "01234567-89ab-cdef-0123-456789abcdef"
)

// fixture is a box with one conversation and its clean, pushed worktree.
type fixture struct {
	t                         *testing.T
	box, main, tree, remote   string
	trees, trash, rescue      string
	opts                      worktree.Options
	mark                      storage.Writer
	busy                      string // in use by whom
	beforeHeld, whenRecreated func()
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, box: filepath.Join(t.TempDir(), "box"), remote: filepath.Join(t.TempDir(), "remote")}
	f.main, f.tree = filepath.Join(f.box, "workspace/project"), filepath.Join(f.box, "worktrees", dashed, "project")
	f.trees, f.trash, f.rescue = filepath.Join(f.box, "worktrees"), filepath.Join(f.box, reclaim.TrashDir), filepath.Join(f.box, "rescue")
	for _, dir := range []string{f.trash, filepath.Join(f.box, "workspace"), f.remote} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	storagetest.Converse(t, f.box, conversation, f.tree, time.Now())
	f.mark = storagetest.Writer(f.box)
	f.git(f.remote, "init", "-q", "-b", "main")
	f.write(filepath.Join(f.remote, ".gitignore"), ".env\nnode_modules/\nnested/\n")
	f.write(filepath.Join(f.remote, "a.txt"), "first")
	f.write(filepath.Join(f.remote, "dir/b.txt"), "first")
	f.git(f.remote, "add", "-A")
	f.git(f.remote, "commit", "-q", "-m", "first")
	f.git(f.box, "clone", "-q", f.remote, f.main)
	f.git(f.main, "worktree", "add", "-q", "-b", "openhands/"+conversation, f.tree)
	git, err := repo.New(repo.Options{Timeout: time.Minute, Scratch: []string{t.TempDir()}})
	require.NoError(t, err)
	f.opts = worktree.Options{
		Git: git, Rescue: f.rescue,
		// Finds nobody, so that what a removal looks for itself shows.
		Lock: idlelock.New(idlelock.Options{Users: func(_ context.Context, dirs []string) (string, error) {
			require.Equal(t, []string{filepath.Join(f.box, "conversations", conversation), filepath.Dir(f.tree)}, dirs)
			if f.beforeHeld != nil {
				f.beforeHeld()
			}
			return f.busy, nil
		}}),
		Recreatable: func(_ context.Context, dir string) (map[string]string, error) {
			if f.whenRecreated != nil {
				f.whenRecreated()
			}
			out := map[string]string{}
			if _, err := os.Stat(filepath.Join(dir, "node_modules")); err == nil {
				out["node_modules"] = "npm"
			}
			return out, nil
		},
	}
	return f
}

func (f *fixture) git(dir string, args ...string) string {
	f.t.Helper()
	return agentservertest.Git(f.t, dir, args...)
}

func (f *fixture) write(file, content string) {
	f.t.Helper()
	require.NoError(f.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(f.t, os.WriteFile(file, []byte(content), 0o644))
}

func (f *fixture) commit(dir, content string) string {
	f.t.Helper()
	f.write(filepath.Join(dir, "a.txt"), content)
	f.git(dir, "commit", "-q", "-a", "-m", content)
	return f.git(dir, "rev-parse", "HEAD")
}

func (f *fixture) layout() *worktree.Layout {
	f.t.Helper()
	l, err := worktree.New(f.box, f.mark, f.opts)
	require.NoError(f.t, err)
	return l
}

// remove removes, and checks what is true however it ends.
func (f *fixture) remove(l *worktree.Layout, confirmed bool) box.ReclaimItem {
	f.t.Helper()
	branches := f.git(f.main, "for-each-ref", "refs/heads", "refs/tags", "refs/stash")
	items, err := l.Remove(f.t.Context(), conversation, confirmed)
	require.NoError(f.t, err)
	require.Len(f.t, items, 1)
	release, busy, err := idlelock.New(idlelock.Options{}).Hold(f.t.Context(), filepath.Join(f.box, "conversations", conversation))
	require.NoError(f.t, err)
	require.Empty(f.t, busy, "the conversation is let go")
	release()
	require.Equal(f.t, branches, f.git(f.main, "for-each-ref", "refs/heads", "refs/tags", "refs/stash"), "no branch, tag or stash is touched")
	item := items[0]
	require.Equal(f.t, "worktrees/"+dashed+"/project", item.Path)
	require.Equal(f.t, box.TierRuntime, item.Tier)
	require.Equal(f.t, conversation, item.ConversationID)
	return item
}

func (f *fixture) requireGone(item box.ReclaimItem) {
	f.t.Helper()
	require.Empty(f.t, item.Skipped)
	require.NotEmpty(f.t, item.Evidence)
	require.NoDirExists(f.t, f.tree)
	require.NoDirExists(f.t, filepath.Join(f.main, ".git/worktrees/project"))
	require.NotContains(f.t, f.git(f.main, "worktree", "list"), dashed)
	trashed, err := filepath.Glob(filepath.Join(f.trash, "removed-*"))
	require.NoError(f.t, err)
	require.Len(f.t, trashed, 1)
}

// requireKept checks that it is as it was, and that git still works in it.
func (f *fixture) requireKept(item box.ReclaimItem, why string) {
	f.t.Helper()
	require.Contains(f.t, item.Skipped, why)
	require.DirExists(f.t, f.tree)
	entries, err := os.ReadDir(filepath.Dir(f.tree))
	require.NoError(f.t, err)
	require.Len(f.t, entries, 1, "nothing lies aside")
	trashed, err := os.ReadDir(f.trash)
	require.NoError(f.t, err)
	require.Empty(f.t, trashed)
}

// state is one state of a worktree. why is empty when it may go.
type state struct {
	name string
	make func(f *fixture)
	why  string
	// doubt says that no confirmation lets it go.
	doubt bool
}

var states = []state{
	{name: "clean and pushed", make: func(*fixture) {}},
	{name: "modified", make: func(f *fixture) { f.write(f.tree+"/a.txt", "changed") }, why: `1 uncommitted changes, such as "a.txt"`},
	{name: "untracked", make: func(f *fixture) { f.write(f.tree+"/new.txt", "x") }, why: `1 untracked files, such as "new.txt"`},
	{name: "staged", make: func(f *fixture) {
		f.write(f.tree+"/new.txt", "x")
		f.git(f.tree, "add", "new.txt")
	}, why: "1 uncommitted changes"},
	{name: "a rebase with a conflict", make: func(f *fixture) {
		f.commit(f.tree, "ours")
		f.git(f.tree, "branch", "ours")
		f.git(f.tree, "reset", "-q", "--hard", "HEAD~1")
		f.commit(f.tree, "theirs")
		cmd := exec.CommandContext(f.t.Context(), "git", "-c", "user.name=a", "-c", "user.email=a@example.invalid", "rebase", "ours")
		cmd.Dir = f.tree
		require.Error(f.t, cmd.Run())
	}, why: "a rebase is in progress"},
	{name: "a stopped interactive rebase with a clean tree", make: func(f *fixture) {
		f.git(f.tree, "-c", "sequence.editor=sed -i s/pick/edit/", "rebase", "-q", "-i", "--root")
		require.Empty(f.t, f.git(f.tree, "status", "--porcelain"))
	}, why: "a rebase is in progress"},
	{name: "a merge in progress", make: func(f *fixture) {
		f.git(f.tree, "checkout", "-q", "-b", "other")
		f.commit(f.tree, "other")
		f.git(f.tree, "checkout", "-q", "openhands/"+conversation)
		f.git(f.tree, "merge", "-q", "--no-commit", "--no-ff", "other")
	}, why: "a merge is in progress"},
	{name: "a bisection", make: func(f *fixture) { f.git(f.tree, "bisect", "start") }, why: "a bisect is in progress"},
	{name: "locked by somebody", make: func(f *fixture) { f.git(f.tree, "worktree", "lock", "--reason", "mine", f.tree) }, why: "is locked in git: mine", doubt: true},
	{name: "an index that is locked", make: func(f *fixture) { f.write(f.main+"/.git/worktrees/project/index.lock", "") }, why: "an index that is locked", doubt: true},
	{name: "a clean and pushed submodule", make: func(f *fixture) { f.submodule() }},
	{name: "a submodule with changes", make: func(f *fixture) {
		f.submodule()
		f.write(f.tree+"/inner/a.txt", "changed")
	}, why: "inner: 1 uncommitted changes"},
	{name: "a submodule with commits that are not pushed", make: func(f *fixture) {
		f.submodule()
		f.git(f.tree+"/inner", "checkout", "-q", "-b", "side")
		f.commit(f.tree+"/inner", "more")
		f.git(f.tree, "update-index", "--assume-unchanged", "inner")
	}, why: "inner: 1 unpushed commits"},
	{name: "a submodule that is no longer checked out", make: func(f *fixture) {
		f.submodule()
		f.git(f.tree+"/inner", "checkout", "-q", "-b", "side")
		f.commit(f.tree+"/inner", "more")
		f.git(f.tree, "submodule", "--quiet", "deinit", "-f", "inner")
	}, why: "submodule that is not checked out", doubt: true},
	{name: "an ignored .env", make: func(f *fixture) { f.write(f.tree+"/.env", "KEY=1") }, why: `1 ignored files that cannot be made again, such as ".env"`},
	{name: "only what can be made again", make: func(f *fixture) { f.write(f.tree+"/node_modules/x/index.js", "x") }},
	{name: "a branch that is ahead of its remote", make: func(f *fixture) { f.commit(f.tree, "more") }},
	{name: "a detached head on a commit of the remote", make: func(f *fixture) { f.git(f.tree, "checkout", "-q", "--detach") }},
	{name: "a detached head with commits", make: func(f *fixture) {
		f.git(f.tree, "checkout", "-q", "--detach")
		f.commit(f.tree, "more")
	}, why: "1 commits that are on no branch"},
	{name: "a commit that only its reflog names", make: func(f *fixture) {
		f.commit(f.tree, "lost")
		f.git(f.tree, "reset", "-q", "--hard", "HEAD~1")
	}, why: "1 commits that are on no branch"},
	{name: "a commit that only a reference of its own names", make: func(f *fixture) {
		f.git(f.tree, "checkout", "-q", "--detach")
		f.commit(f.tree, "own")
		f.git(f.tree, "update-ref", "refs/worktree/own", "HEAD")
		f.git(f.tree, "checkout", "-q", "openhands/"+conversation)
		require.NoError(f.t, os.Remove(f.main+"/.git/worktrees/project/logs/HEAD"))
		_ = os.Remove(f.main + "/.git/worktrees/project/ORIG_HEAD")
	}, why: "1 commits that are on no branch"},
	{name: "an edit hidden by assume-unchanged", make: func(f *fixture) {
		f.git(f.tree, "update-index", "--assume-unchanged", "a.txt")
		f.write(f.tree+"/a.txt", "hidden")
	}, why: "git was told not to look at"},
	{name: "an edit hidden by skip-worktree", make: func(f *fixture) {
		f.git(f.tree, "update-index", "--skip-worktree", "a.txt")
		f.write(f.tree+"/a.txt", "hidden")
	}, why: "git was told not to look at"},
	{name: "a sparse checkout", make: func(f *fixture) {
		f.git(f.tree, "sparse-checkout", "set", "--no-cone", "/a.txt", "/.gitignore")
		require.NoFileExists(f.t, f.tree+"/dir/b.txt")
	}},
	{name: "a nested repository in an ignored directory", make: func(f *fixture) {
		f.git(f.tree, "clone", "-q", f.remote, "nested/inner")
		f.commit(f.tree+"/nested/inner", "more")
	}, why: "nested/inner: 1 unpushed commits"},
	{name: "a nested repository among what can be made again", make: func(f *fixture) {
		f.git(f.tree, "clone", "-q", f.remote, "node_modules/inner")
		f.write(f.tree+"/node_modules/inner/a.txt", "patched")
	}, why: "node_modules/inner: 1 uncommitted changes"},
	{name: "a stash, which belongs to the repository", make: func(f *fixture) {
		f.write(f.tree+"/a.txt", "set aside")
		f.git(f.tree, "stash")
	}},
	{name: "a repository that git cannot read", make: func(f *fixture) { f.write(f.main+"/.git/worktrees/project/HEAD", "nonsense") }, why: "cannot be judged", doubt: true},
	{name: "a record that names another directory", make: func(f *fixture) {
		f.write(f.main+"/.git/worktrees/project/gitdir", f.box+"/elsewhere/.git\n")
	}, why: "cannot be judged", doubt: true},
}

// submodule adds a submodule whose commits are on its remote.
func (f *fixture) submodule() {
	f.t.Helper()
	f.git(f.tree, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f.remote, "inner")
	f.git(f.tree, "commit", "-q", "-m", "with a submodule")
}

func TestAWorktreeGoesOnlyWithoutAnythingOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, s := range states {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			s.make(f)
			item := f.remove(f.layout(), false)
			if s.why == "" {
				f.requireGone(item)
				require.NoDirExists(t, filepath.Dir(f.tree), "nothing is left of the conversation's")
				return
			}
			f.requireKept(item, s.why)
			require.NoFileExists(t, f.main+"/.git/worktrees/project/locked.lock")
			if s.name != "locked by somebody" {
				require.NoFileExists(t, f.main+"/.git/worktrees/project/locked", "our lock is taken away again")
			}
			require.NoDirExists(t, f.rescue)
		})
	}
}

// With a confirmation all of it is kept elsewhere first, and can be read there.
func TestAConfirmedRemovalKeepsEverythingElsewhere(t *testing.T) {
	t.Parallel()
	for _, s := range states {
		if s.why == "" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			s.make(f)
			tips := f.tips()
			item := f.remove(f.layout(), true)
			if s.doubt {
				f.requireKept(item, s.why)
				return
			}
			f.requireGone(item)
			archives, err := filepath.Glob(f.rescue + "/*")
			require.NoError(t, err)
			require.Len(t, archives, 1)
			require.Contains(t, item.Evidence, archives[0])
			file, err := os.Open(archives[0])
			require.NoError(t, err)
			defer file.Close()
			manifest, err := agentserver.VerifyWorkspace(file)
			require.NoError(t, err)
			require.Empty(t, manifest.Incomplete)
			require.NotEmpty(t, manifest.Repositories[0].Bundle.SHA256)
			// Even when git throws away what nothing names.
			f.git(f.main, "reflog", "expire", "--expire=now", "--all")
			f.git(f.main, "gc", "-q", "--prune=now")
			for _, id := range tips {
				require.Equal(t, "commit", f.git(f.main, "cat-file", "-t", id))
			}
		})
	}
}

// tips are the commits that the worktree's own reflog names.
func (f *fixture) tips() []string {
	text, err := os.ReadFile(f.main + "/.git/worktrees/project/logs/HEAD")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if id := strings.Fields(line)[1]; strings.Trim(id, "0") != "" {
			out = append(out, id)
		}
	}
	return out
}

func TestAnArchiveThatCannotBeWrittenKeepsTheWorktree(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(f.tree+"/a.txt", "changed")
	f.write(f.rescue, "a file in its place")
	f.requireKept(f.remove(f.layout(), true), "cannot be kept elsewhere")
	require.Equal(t, "M a.txt", f.git(f.tree, "status", "--porcelain"))
}
