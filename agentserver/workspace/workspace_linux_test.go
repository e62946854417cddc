package workspace_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/workspace"
	"github.com/openhands/boxkeeper/box"
)

func write(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(content), 0o644))
}

// modules says that each node_modules can be made again.
func modules(_ context.Context, dir string) (map[string]string, error) {
	out := map[string]string{}
	return out, filepath.WalkDir(dir, func(at string, entry os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return filepath.SkipDir
		}
		if err == nil && entry.IsDir() && entry.Name() == "node_modules" {
			rel, err := filepath.Rel(dir, at)
			out[rel] = "npm"
			if err != nil {
				return err
			}
			return filepath.SkipDir
		}
		return err
	})
}

func newWorkspace(t *testing.T, root string) *workspace.Workspace {
	t.Helper()
	git, err := repo.New(repo.Options{Scratch: []string{t.TempDir()}})
	require.NoError(t, err)
	return workspace.New(workspace.Options{Root: root, Dirs: []string{"workspace", "worktrees"}, Git: git, Recreatable: modules})
}

func unsaved(t *testing.T, root string) box.Unsaved {
	t.Helper()
	out, err := newWorkspace(t, root).Unsaved(t.Context())
	require.NoError(t, err)
	return out
}

func TestWhatAPushedCloneHoldsIsSaved(t *testing.T) {
	t.Parallel()
	root, clone := agentservertest.ClonedBox(t)
	write(t, filepath.Join(clone, "node_modules/x/index.js"), "made again")
	out := unsaved(t, root)
	require.True(t, out.Clean, "%+v", out)
	require.Len(t, out.Repositories, 1)
	one := out.Repositories[0]
	require.Equal(t, "workspace/project", one.Path)
	require.Equal(t, "main", one.Branch)
	require.Equal(t, box.Yes, one.SurvivesRemote)
	require.Equal(t, 1, one.Remotes)
	require.GreaterOrEqual(t, one.FetchedSeconds, int64(0))
	require.Zero(t, out.PlainFiles)
}

// A row changes a clone that is saved, and what it must show; then it is no
// longer clean.
func TestUnsavedWorkIsListed(t *testing.T) {
	t.Parallel()
	type row struct {
		name   string
		change func(t *testing.T, root, clone string)
		want   func(t *testing.T, out box.Unsaved, one box.UnsavedRepository)
	}
	for _, r := range []row{
		{
			"a changed file", func(t *testing.T, _, clone string) {
				t.Helper()
				write(t, filepath.Join(clone, "a.txt"), "changed")
			},
			func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
				t.Helper()

				require.Equal(t, []string{"a.txt"}, one.Uncommitted.Paths)
			},
		},
		{"a staged file", func(t *testing.T, _, clone string) {
			t.Helper()

			write(t, filepath.Join(clone, "b.txt"), "new")
			agentservertest.Git(t, clone, "add", "b.txt")
		}, func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
			t.Helper()

			require.Equal(t, []string{"b.txt"}, one.Uncommitted.Paths)
		}},
		{
			"an untracked file", func(t *testing.T, _, clone string) {
				t.Helper()
				write(t, filepath.Join(clone, "new\nline"), "x")
			},
			func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
				t.Helper()

				require.Equal(t, []string{"new\nline"}, one.Untracked.Paths)
			},
		},
		{
			"an ignored file that cannot be made again", func(t *testing.T, _, clone string) {
				t.Helper()
				write(t, filepath.Join(clone, ".env"), "KEY=1")
			},
			func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
				t.Helper()

				require.Equal(t, []string{".env"}, one.Ignored.Paths)
			},
		},
		{
			"a commit that was not pushed", func(t *testing.T, _, clone string) {
				t.Helper()
				agentservertest.Commit(t, clone, "more")
			},
			func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
				t.Helper()

				require.Equal(t, []box.UnpushedBranch{{Branch: "main", Commits: 1}}, one.Unpushed)
				require.Equal(t, 1, one.UnpushedCommits)
				require.Equal(t, box.Yes, one.SurvivesLocal)
				require.Equal(t, box.No, one.SurvivesRemote)
			},
		},
		{"a commit on another branch", func(t *testing.T, _, clone string) {
			t.Helper()

			agentservertest.Git(t, clone, "checkout", "-q", "-b", "side")
			agentservertest.Commit(t, clone, "more")
			agentservertest.Git(t, clone, "checkout", "-q", "main")
		}, func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
			t.Helper()

			require.Equal(t, []box.UnpushedBranch{{Branch: "side", Commits: 1}}, one.Unpushed)
		}},
		{"a commit that only a tag of ours names", func(t *testing.T, _, clone string) {
			t.Helper()

			agentservertest.Git(t, clone, "checkout", "-q", "--detach")
			agentservertest.Commit(t, clone, "tagged")
			agentservertest.Git(t, clone, "tag", "v1")
			agentservertest.Git(t, clone, "checkout", "-q", "main")
		}, func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
			t.Helper()

			require.Equal(t, 1, one.UnpushedCommits)
			require.Equal(t, box.Yes, one.SurvivesLocal)
		}},
		{"a commit that only the reflog names", func(t *testing.T, _, clone string) {
			t.Helper()

			agentservertest.Commit(t, clone, "lost")
			agentservertest.Git(t, clone, "reset", "-q", "--hard", "HEAD~1")
		}, func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
			t.Helper()

			require.Equal(t, 1, one.UnnamedCommits)
			require.Equal(t, box.No, one.SurvivesLocal)
		}},
		{"a stopped rebase with a clean tree", func(t *testing.T, _, clone string) {
			t.Helper()

			agentservertest.Git(t, clone, "-c", "sequence.editor=sed -i s/pick/edit/", "rebase", "-q", "-i", "--root")
		}, func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
			t.Helper()

			require.Contains(t, one.InProgress, "rebase")
		}},
		{
			"a bisection", func(t *testing.T, _, clone string) {
				t.Helper()
				agentservertest.Git(t, clone, "bisect", "start")
			},
			func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
				t.Helper()

				require.Equal(t, []string{"bisect"}, one.InProgress)
			},
		},
		{"an edit hidden by assume-unchanged", func(t *testing.T, _, clone string) {
			t.Helper()

			agentservertest.Git(t, clone, "update-index", "--assume-unchanged", "a.txt")
			write(t, filepath.Join(clone, "a.txt"), "hidden")
		}, func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
			t.Helper()

			require.Equal(t, []string{"a.txt"}, one.Hidden.Paths)
		}},
		{"an edit hidden by skip-worktree", func(t *testing.T, _, clone string) {
			t.Helper()

			agentservertest.Git(t, clone, "update-index", "--skip-worktree", "a.txt")
			write(t, filepath.Join(clone, "a.txt"), "hidden")
		}, func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
			t.Helper()

			require.Equal(t, []string{"a.txt"}, one.Hidden.Paths)
		}},
		{
			"a repository without a remote", func(t *testing.T, _, clone string) {
				t.Helper()
				agentservertest.Git(t, clone, "remote", "remove", "origin")
			},
			func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
				t.Helper()

				require.Zero(t, one.Remotes)
				require.Equal(t, 1, one.UnpushedCommits)
				require.Equal(t, []box.UnpushedBranch{{Branch: "main", Commits: 1}}, one.Unpushed)
				require.Equal(t, box.No, one.SurvivesRemote)
			},
		},
		{"a nested clone in an ignored directory", func(t *testing.T, _, clone string) {
			t.Helper()

			agentservertest.Git(t, clone, "clone", "-q", ".", "nested/inner")
			agentservertest.Commit(t, filepath.Join(clone, "nested/inner"), "inner work")
		}, func(t *testing.T, out box.Unsaved, _ box.UnsavedRepository) {
			t.Helper()

			require.Len(t, out.Repositories, 2)
			require.Equal(t, "workspace/project/nested/inner", out.Repositories[1].Path)
			require.Equal(t, 1, out.Repositories[1].UnpushedCommits)
		}},
		{"a nested clone among what can be made again", func(t *testing.T, _, clone string) {
			t.Helper()

			agentservertest.Git(t, clone, "clone", "-q", ".", "node_modules/dep")
			write(t, filepath.Join(clone, "node_modules/dep/a.txt"), "patched")
		}, func(t *testing.T, out box.Unsaved, _ box.UnsavedRepository) {
			t.Helper()

			require.Len(t, out.Repositories, 2)
			require.Equal(t, 1, out.Repositories[1].Uncommitted.Count)
		}},
		{"a worktree with a detached head", func(t *testing.T, root, clone string) {
			t.Helper()

			linked := filepath.Join(root, "worktrees/x/project")
			agentservertest.Git(t, clone, "worktree", "add", "-q", "--detach", linked)
			agentservertest.Commit(t, linked, "in the worktree")
		}, func(t *testing.T, out box.Unsaved, _ box.UnsavedRepository) {
			t.Helper()

			require.Len(t, out.Repositories, 2)
			require.Equal(t, box.RepositoryWorktree, out.Repositories[1].Kind)
			require.Equal(t, 1, out.Repositories[1].UnnamedCommits)
			require.True(t, out.Repositories[1].Detached)
		}},
		{"a submodule with work in it", func(t *testing.T, _, clone string) {
			t.Helper()

			origin := agentservertest.Git(t, clone, "config", "remote.origin.url")
			agentservertest.Git(t, clone, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", origin, "inner")
			agentservertest.Git(t, clone, "commit", "-q", "-m", "with a submodule")
			agentservertest.Git(t, clone, "push", "-q", "origin", "HEAD:refs/heads/pushed")
			write(t, filepath.Join(clone, "inner/a.txt"), "changed")
		}, func(t *testing.T, out box.Unsaved, one box.UnsavedRepository) {
			t.Helper()

			require.Equal(t, []string{"inner"}, one.Submodules)
			require.Len(t, out.Repositories, 2)
			require.Equal(t, box.RepositorySubmodule, out.Repositories[1].Kind)
			require.Equal(t, 1, out.Repositories[1].Uncommitted.Count)
			require.True(t, one.Saved, "%+v", one)
		}},
		{"a submodule that is no longer checked out", func(t *testing.T, _, clone string) {
			t.Helper()
			origin := agentservertest.Git(t, clone, "config", "remote.origin.url")
			agentservertest.Git(t, clone, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", origin, "inner")
			agentservertest.Git(t, clone, "commit", "-q", "-m", "with a submodule")
			agentservertest.Git(t, clone, "push", "-q", "origin", "HEAD:refs/heads/pushed")
			agentservertest.Commit(t, filepath.Join(clone, "inner"), "work in it")
			agentservertest.Git(t, clone, "submodule", "--quiet", "deinit", "-f", "inner")
		}, func(t *testing.T, out box.Unsaved, _ box.UnsavedRepository) {
			t.Helper()
			require.Len(t, out.Repositories, 2)
			require.Equal(t, "workspace/project/.git/modules/inner", out.Repositories[1].Path)
			require.Equal(t, 1, out.Repositories[1].UnpushedCommits)
		}},
		{"a bare repository", func(t *testing.T, root, clone string) {
			t.Helper()

			agentservertest.Git(t, clone, "clone", "-q", "--bare", ".", filepath.Join(root, "workspace/store"))
		}, func(t *testing.T, out box.Unsaved, _ box.UnsavedRepository) {
			t.Helper()

			require.Len(t, out.Repositories, 2)
			require.Equal(t, box.RepositoryBare, out.Repositories[1].Kind)
			require.Equal(t, 1, out.Repositories[1].UnpushedCommits, "it has no remote of its own")
		}},
		{
			"files outside of any repository", func(t *testing.T, root, _ string) {
				t.Helper()
				write(t, filepath.Join(root, "workspace/notes/plan.md"), "four")
			},
			func(t *testing.T, out box.Unsaved, _ box.UnsavedRepository) {
				t.Helper()

				require.EqualValues(t, 1, out.PlainFiles)
				require.EqualValues(t, 4, out.PlainBytes)
			},
		},
		{
			"a repository that cannot be judged", func(t *testing.T, _, clone string) {
				t.Helper()
				write(t, filepath.Join(clone, ".git/HEAD"), "nonsense")
			},
			func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
				t.Helper()

				require.NotEmpty(t, one.Unknown)
				require.Equal(t, box.Unknown, one.SurvivesRemote)
			},
		},
		{
			"an index that git cannot read", func(t *testing.T, _, clone string) {
				t.Helper()
				write(t, filepath.Join(clone, ".git/index"), "DIRCgarbage")
			},
			func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
				t.Helper()
				require.NotEmpty(t, one.Unknown)
			},
		},
		{"a git directory that lies outside of the box", func(t *testing.T, root, clone string) {
			t.Helper()

			outside := filepath.Join(filepath.Dir(root), "outside")
			require.NoError(t, os.Rename(filepath.Join(clone, ".git"), outside))
			write(t, filepath.Join(clone, ".git"), "gitdir: "+outside+"\n")
		}, func(t *testing.T, _ box.Unsaved, one box.UnsavedRepository) {
			t.Helper()

			require.Contains(t, one.Unknown, "outside of the box")
		}},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			root, clone := agentservertest.ClonedBox(t)
			require.True(t, unsaved(t, root).Clean)
			r.change(t, root, clone)
			out := unsaved(t, root)
			require.False(t, out.Clean)
			require.NotEmpty(t, out.Repositories)
			r.want(t, out, out.Repositories[0])
		})
	}
}

func TestScenario81UnpushedCommitsADetachedHeadAndStashesAreListed(t *testing.T) {
	t.Parallel()
	root, clone := agentservertest.ClonedBox(t)
	agentservertest.Commit(t, clone, "one")
	agentservertest.Commit(t, clone, "two")
	write(t, filepath.Join(clone, "a.txt"), "set aside")
	agentservertest.Git(t, clone, "stash")
	agentservertest.Git(t, clone, "checkout", "-q", "--detach")
	agentservertest.Commit(t, clone, "on a detached head")
	one := unsaved(t, root).Repositories[0]
	require.Zero(t, one.Uncommitted.Count+one.Untracked.Count, "the tree is clean")
	require.Equal(t, []box.UnpushedBranch{{Branch: "main", Commits: 2}}, one.Unpushed)
	require.Equal(t, 2, one.UnpushedCommits)
	require.True(t, one.Detached)
	require.Equal(t, 1, one.UnnamedCommits)
	require.Len(t, one.Stashes, 1)
	require.Contains(t, one.Stashes[0], "WIP on main")
	require.False(t, one.Saved)
}

func TestWithoutGitNothingIsClean(t *testing.T) {
	t.Parallel()
	root, _ := agentservertest.ClonedBox(t)
	out, err := workspace.New(workspace.Options{Root: root, Dirs: []string{"workspace"}}).Unsaved(t.Context())
	require.NoError(t, err)
	require.False(t, out.Clean)
	require.Contains(t, out.Repositories[0].Unknown, "no git")
}

func TestALookFollowsNoLink(t *testing.T) {
	t.Parallel()
	root, _ := agentservertest.ClonedBox(t)
	_, elsewhere := agentservertest.ClonedBox(t)
	write(t, filepath.Join(elsewhere, "a.txt"), "changed")
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(root, "workspace/linked")))
	out := unsaved(t, root)
	require.Len(t, out.Repositories, 1)
	require.EqualValues(t, 1, out.PlainFiles, "the link itself")

	require.NoError(t, os.Rename(filepath.Join(root, "workspace"), filepath.Join(root, "moved")))
	require.NoError(t, os.Symlink("moved", filepath.Join(root, "workspace")))
	out = unsaved(t, root)
	require.Empty(t, out.Repositories)
	require.False(t, out.Clean)
	require.Len(t, out.Unknown, 1)
}

// An agent-server makes every new workspace a repository, in which there is
// nothing yet.
func TestARepositoryWithoutACommitIsLookedAtLikeAnyOther(t *testing.T) {
	t.Parallel()
	root, _ := agentservertest.ClonedBox(t)
	made := filepath.Join(root, "workspace/new")
	require.NoError(t, os.Mkdir(made, 0o755))
	agentservertest.Git(t, made, "init", "-q", "-b", "main")
	out := unsaved(t, root)
	require.True(t, out.Clean, "%+v", out)
	require.Len(t, out.Repositories, 2)
	_, manifest := export(t, root)
	require.Empty(t, manifest.Incomplete)
	write(t, filepath.Join(made, "notes.md"), "mine")
	out = unsaved(t, root)
	require.False(t, out.Clean)
	require.Empty(t, out.Repositories[0].Unknown)
	require.Equal(t, []string{"notes.md"}, out.Repositories[0].Untracked.Paths)
	agentservertest.Git(t, made, "add", "notes.md")
	require.Equal(t, []string{"notes.md"}, unsaved(t, root).Repositories[0].Uncommitted.Paths)
	_, manifest = export(t, root)
	require.Empty(t, manifest.Incomplete)
}
