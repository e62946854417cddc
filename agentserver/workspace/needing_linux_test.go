package workspace_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/workspace"
	"github.com/openhands/boxkeeper/box"
)

// needs says what in the box needs a directory below its root.
func needs(t *testing.T, root, dir string) string {
	t.Helper()
	of, err := workspace.New(workspace.Options{Root: root, Dirs: []string{"workspace", "worktrees", "none"}}).Needs(t.Context())
	require.NoError(t, err)
	real, err := filepath.EvalSymlinks(filepath.Join(root, dir))
	require.NoError(t, err)
	return of(real)
}

// A row makes a repository that cannot do without workspace/project, and it shows:
// with that gone, git has lost objects of its history, or all of it.
func TestWhatARepositoryBorrowsIsNeeded(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		make func(t *testing.T, root, lender string) (borrower string)
		want string
	}{
		"a shared clone": {func(t *testing.T, root, lender string) string {
			t.Helper()
			agentservertest.Git(t, root, "clone", "-q", "--shared", lender, filepath.Join(root, "workspace/b"))
			return "workspace/b"
		}, "borrows objects"},
		"a clone with a reference, in a worktree directory": {func(t *testing.T, root, lender string) string {
			t.Helper()
			remote := agentservertest.Git(t, lender, "remote", "get-url", "origin")
			agentservertest.Git(t, root, "clone", "-q", "--reference", lender, "file://"+remote, filepath.Join(root, "worktrees/x/b"))
			return "worktrees/x/b"
		}, "borrows objects"},
		"a bare clone": {func(t *testing.T, root, lender string) string {
			t.Helper()
			agentservertest.Git(t, root, "clone", "-q", "--shared", "--bare", lender, filepath.Join(root, "workspace/deep/er/b.git"))
			return "workspace/deep/er/b.git"
		}, "borrows objects"},
		"a relative path": {func(t *testing.T, root, lender string) string {
			t.Helper()
			agentservertest.Git(t, root, "clone", "-q", "--shared", lender, filepath.Join(root, "workspace/b"))
			write(t, filepath.Join(root, "workspace/b/.git/objects/info/alternates"), "# where\n../../../project/.git/objects\n")
			return "workspace/b"
		}, "borrows objects"},
		"a path in quotes, behind others": {func(t *testing.T, root, lender string) string {
			t.Helper()
			agentservertest.Git(t, root, "clone", "-q", "--shared", lender, filepath.Join(root, "workspace/b"))
			quoted := strings.ReplaceAll(filepath.Join(lender, ".git/objects"), "project", `\160roject`)
			write(t, filepath.Join(root, "workspace/b/.git/objects/info/alternates"), "/nonexistent\n\n\""+quoted+"\"\n")
			return "workspace/b"
		}, "borrows objects"},
		"a path over a link": {func(t *testing.T, root, lender string) string {
			t.Helper()
			require.NoError(t, os.Symlink(lender, filepath.Join(root, "link")))
			agentservertest.Git(t, root, "clone", "-q", "--shared", lender, filepath.Join(root, "workspace/b"))
			write(t, filepath.Join(root, "workspace/b/.git/objects/info/alternates"), filepath.Join(root, "link/.git/objects")+"\n")
			return "workspace/b"
		}, "borrows objects"},
		"a store of objects that is a link": {func(t *testing.T, root, lender string) string {
			t.Helper()
			agentservertest.Git(t, root, "clone", "-q", lender, filepath.Join(root, "workspace/b"))
			objects := filepath.Join(root, "workspace/b/.git/objects")
			require.NoError(t, os.RemoveAll(objects))
			require.NoError(t, os.Symlink(filepath.Join(lender, ".git/objects"), objects))
			return "workspace/b"
		}, "borrows objects"},
		"a submodule that borrows": {func(t *testing.T, root, lender string) string {
			t.Helper()
			b := filepath.Join(root, "workspace/b")
			agentservertest.Git(t, root, "init", "-q", b)
			agentservertest.Git(t, b, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "--reference", lender, "file://"+lender, "inner")
			return "workspace/b/inner"
		}, "borrows objects"},
		"a git directory elsewhere": {func(t *testing.T, root, lender string) string {
			t.Helper()
			remote := agentservertest.Git(t, lender, "remote", "get-url", "origin")
			agentservertest.Git(t, root, "clone", "-q", "--separate-git-dir", filepath.Join(lender, "b.git"), remote, filepath.Join(root, "workspace/b"))
			return "workspace/b"
		}, "keeps its git directory"},
		"a worktree": {func(t *testing.T, root, lender string) string {
			t.Helper()
			agentservertest.Git(t, lender, "worktree", "add", "-q", filepath.Join(root, "worktrees/y/b"))
			return "worktrees/y/b"
		}, "keeps its git directory"},
		"a .git that is a link": {func(t *testing.T, root, lender string) string {
			t.Helper()
			require.NoError(t, os.Mkdir(filepath.Join(root, "workspace/b"), 0o700))
			require.NoError(t, os.Symlink(filepath.Join(lender, ".git"), filepath.Join(root, "workspace/b/.git")))
			return "workspace/b"
		}, "keeps its git directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, lender := agentservertest.ClonedBox(t)
			require.Empty(t, needs(t, root, "workspace/project"))
			borrower := row.make(t, root, lender)
			why := needs(t, root, "workspace/project")
			require.Contains(t, why, row.want)
			require.Contains(t, why, strings.TrimSuffix(borrower, "/inner"), "it names the borrower")
			require.Contains(t, why, "first", "and the next step")
			require.Empty(t, needs(t, root, borrower), "nobody needs the borrower")
			require.Empty(t, needs(t, root, "."), "what goes along is no reason")
			require.NoError(t, os.Rename(lender, lender+".gone"))
			said, err := agentservertest.TryGit(t, filepath.Join(root, borrower), "fsck", "--full")
			require.Error(t, err, "plain git cannot do without: %s", said)
		})
	}
}

func TestWhatStandsAloneNeedsNothing(t *testing.T) {
	t.Parallel()
	root, lender := agentservertest.ClonedBox(t)
	remote := agentservertest.Git(t, lender, "remote", "get-url", "origin")
	agentservertest.Git(t, root, "clone", "-q", lender, filepath.Join(root, "workspace/hard-links"))
	agentservertest.Git(t, root, "clone", "-q", "--reference", lender, "--dissociate", "file://"+remote, filepath.Join(root, "workspace/apart"))
	agentservertest.Git(t, root, "clone", "-q", "--shared", lender, filepath.Join(lender, "nested"))
	agentservertest.Git(t, root, "clone", "-q", "--shared", lender, filepath.Join(root, "workspace/repacked"))
	repacked := filepath.Join(root, "workspace/repacked")
	agentservertest.Git(t, repacked, "repack", "-q", "-a", "-d")
	require.NoError(t, os.Remove(filepath.Join(repacked, ".git/objects/info/alternates")))
	agentservertest.Git(t, root, "clone", "-q", "--shared", remote, filepath.Join(root, "workspace/of-another"))
	write(t, filepath.Join(root, "workspace/note/.git"), "no pointer")
	write(t, filepath.Join(root, "workspace/lost/.git"), "gitdir: /nonexistent/x\n")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "workspace/pipe"), 0o700))
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "workspace/pipe/.git"), 0o600))
	require.Empty(t, needs(t, root, "workspace/project"))
	require.Contains(t, needs(t, root, "workspace/project/.git"), "workspace/project/nested", "only with all of it")
}

// What cannot be told keeps everything, with the name of what is at fault.
func TestWhereABorrowerLeadsMustBeTold(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, alternates string){
		"a list that is a pipe": func(t *testing.T, alternates string) {
			t.Helper()
			require.NoError(t, syscall.Mkfifo(alternates, 0o600))
		},
		"a list that is a link": func(t *testing.T, alternates string) {
			t.Helper()
			require.NoError(t, os.Symlink("../pack", alternates))
		},
		"a list that is endless": func(t *testing.T, alternates string) {
			t.Helper()
			write(t, alternates, strings.Repeat("/x\n", 100_000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, lender := agentservertest.ClonedBox(t)
			agentservertest.Git(t, root, "clone", "-q", lender, filepath.Join(root, "workspace/b"))
			spoil(t, filepath.Join(root, "workspace/b/.git/objects/info/alternates"))
			_, err := workspace.New(workspace.Options{Root: root, Dirs: []string{"workspace"}}).Needs(t.Context())
			require.ErrorContains(t, err, "workspace/b")
			require.NotEqual(t, box.ClassNotFound, box.ClassOf(err))
		})
	}
}
