package worktree_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

func TestScenario85GitIsAskedAgainRightBeforeARemoval(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(f *fixture){
		"a commit on no branch": func(f *fixture) {
			f.git(f.tree, "checkout", "-q", "--detach")
			f.commit(f.tree, "in between")
		},
		"an untracked file": func(f *fixture) { f.write(f.tree+"/new.txt", "in between") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.beforeHeld = func() { change(f) }
			item := f.remove(f.layout(), false)
			require.NotEmpty(t, item.Skipped)
			f.requireKept(item, "")
			require.NoFileExists(t, f.main+"/.git/worktrees/project/locked")
		})
	}
}

// What is written after git was asked for the last time is seen too.
func TestAWriteAfterTheLastQuestionKeepsTheWorktree(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(f.tree+"/node_modules/x", "x")
	asked := 0
	f.whenRecreated = func() {
		// Asked once before and once while it is held; git looks after that.
		if asked++; asked == 2 {
			f.write(f.tree+"/node_modules/x", "written at the last moment")
		}
	}
	f.requireKept(f.remove(f.layout(), false), "changed while it was judged")
	require.Equal(t, 2, asked)
	f.whenRecreated = nil
	f.requireGone(f.remove(f.layout(), false))
}

func TestScenario86WhatGitRefusesIsNotRemovedOtherwise(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	// A git that refuses to remove worktrees, and works otherwise.
	real, err := exec.LookPath("git")
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "git")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\ncase \"$*\" in *\"worktree remove\"*) echo \"fatal: refused\" >&2; exit 128;; esac\nexec "+real+" \"$@\"\n"), 0o755))
	f.opts.Git, err = repo.New(repo.Options{Program: program, Scratch: []string{t.TempDir()}})
	require.NoError(t, err)
	f.requireKept(f.remove(f.layout(), false), "git refuses to remove it")
	require.Empty(t, f.git(f.tree, "status", "--porcelain"), "it works as before")
	require.Contains(t, f.git(f.main, "worktree", "list"), dashed)
}

func TestScenario87AWorktreeThatAProcessWorksInIsSkipped(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	inside := exec.CommandContext(t.Context(), "sleep", "300")
	inside.Dir = f.tree + "/dir"
	require.NoError(t, inside.Start())
	f.requireKept(f.remove(f.layout(), false), "in use by process")
	require.Empty(t, f.git(f.tree, "status", "--porcelain"), "it works as before")
	require.NoError(t, inside.Process.Kill())
	_ = inside.Wait()
	// One that was started from an environment in it shows that in its own alone.
	beside := exec.CommandContext(t.Context(), "sleep", "300")
	beside.Env = []string{"PATH=" + os.Getenv("PATH"), "VIRTUAL_ENV=" + f.tree + "/.venv"}
	beside.Dir = f.main
	require.NoError(t, beside.Start())
	f.requireKept(f.remove(f.layout(), false), "in use by process")
	require.NoError(t, beside.Process.Kill())
	_ = beside.Wait()
	f.requireGone(f.remove(f.layout(), false))
}

func TestAConversationInUseKeepsItsWorktree(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.busy = "process 7 vim"
	f.requireKept(f.remove(f.layout(), false), "its conversation is in use: in use by process 7 vim")
	f.requireKept(f.remove(f.layout(), true), "its conversation is in use: in use by process 7 vim")
}

func TestScenario89AWorktreeThatResolvesToTheMainCheckoutIsRefused(t *testing.T) {
	t.Parallel()
	for name, swap := range map[string]func(f *fixture){
		"a link to it": func(f *fixture) {
			require.NoError(f.t, os.Rename(f.tree, f.box+"/moved"))
			require.NoError(f.t, os.Symlink(f.main, f.tree))
		},
		"a .git that names its git directory": func(f *fixture) { f.write(f.tree+"/.git", "gitdir: "+f.main+"/.git\n") },
		"a main checkout in its place": func(f *fixture) {
			require.NoError(f.t, os.Rename(f.tree, f.box+"/moved"))
			f.git(f.box, "clone", "-q", f.remote, f.tree)
		},
		"a bind mount of it": func(f *fixture) {
			if err := syscall.Mount(f.main, f.tree, "", syscall.MS_BIND, ""); err != nil {
				f.t.Skip("nothing can be mounted here:", err)
			}
			f.t.Cleanup(func() { require.NoError(f.t, syscall.Unmount(f.tree, syscall.MNT_DETACH)) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			files := f.git(f.main, "ls-files")
			swap(f)
			for _, confirmed := range []bool{false, true} {
				require.NotEmpty(t, f.remove(f.layout(), confirmed).Skipped)
			}
			require.Equal(t, files, f.git(f.main, "ls-files"))
			require.Empty(t, f.git(f.main, "status", "--porcelain"), "every file of the main checkout is there")
			require.Empty(t, f.git(f.main, "ls-files", "--deleted"))
		})
	}
}

func TestScenario100ARootThatWasSwappedForALinkIsRefused(t *testing.T) {
	t.Parallel()
	for name, swap := range map[string]func(f *fixture, other string){
		"for a link": func(f *fixture, other string) {
			require.NoError(f.t, os.Symlink(other, f.trees))
		},
		"for another directory": func(f *fixture, other string) {
			require.NoError(f.t, os.Rename(other, f.trees))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			l := f.layout()
			require.NoError(t, os.Rename(f.trees, f.box+"/moved"))
			other := f.box + "/other"
			f.git(f.main, "worktree", "add", "-q", "--detach", filepath.Join(other, dashed, "project"))
			swap(f, other)
			_, err := l.Remove(t.Context(), conversation, true)
			require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
			_, err = l.Places(t.Context())
			require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
			require.FileExists(t, filepath.Join(f.trees, dashed, "project/a.txt"))
		})
	}
	t.Run("a conversation's directory for a link", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		require.NoError(t, os.Rename(filepath.Dir(f.tree), f.box+"/moved"))
		require.NoError(t, os.Symlink(f.box+"/moved", filepath.Dir(f.tree)))
		items, err := f.layout().Remove(t.Context(), conversation, true)
		require.NoError(t, err)
		require.Len(t, items, 1)
		require.NotEmpty(t, items[0].Skipped)
		require.FileExists(t, f.box+"/moved/project/a.txt")
	})
}

// A crash leaves it aside; the next look puts it back, or ends what git agreed to.
func TestARemovalThatACrashCutOffIsUndoneOrEnded(t *testing.T) {
	t.Parallel()
	t.Run("before git unlisted it", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.write(f.tree+"/new.txt", "x")
		f.git(f.main, "worktree", "lock", "--reason", "boxd: being removed", f.tree)
		require.NoError(t, os.Rename(f.tree, filepath.Dir(f.tree)+"/.boxd-removing-0011223344556677-project"))
		require.NoError(t, f.layout().Recover(t.Context()))
		require.Equal(t, "?? new.txt", f.git(f.tree, "status", "--porcelain"), "it works as before")
		f.requireKept(f.remove(f.layout(), false), "untracked")
		require.NoFileExists(t, f.main+"/.git/worktrees/project/locked")
	})
	t.Run("after git unlisted it", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		require.NoError(t, os.Rename(f.tree, filepath.Dir(f.tree)+"/.boxd-removing-0011223344556677-project"))
		f.git(f.main, "worktree", "remove", f.tree)
		require.NoError(t, f.layout().Recover(t.Context()))
		require.DirExists(t, f.trash+"/removed-0011223344556677-project")
		require.NoDirExists(t, filepath.Dir(f.tree))
	})
	t.Run("with the repository gone from sight", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		aside := filepath.Dir(f.tree) + "/.boxd-removing-0011223344556677-project"
		require.NoError(t, os.Rename(f.tree, aside))
		require.NoError(t, os.Rename(f.main, f.box+"/moved"))
		require.NoError(t, f.layout().Recover(t.Context()))
		require.DirExists(t, aside)
	})
}

func TestPlacesListsConversationsTheLongestUnusedFirst(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := "f" + conversation[1:]
	f.write(filepath.Join(f.box, "worktrees", "f"+dashed[1:], "project/a.txt"), "x")
	f.write(filepath.Join(f.box, "worktrees", "not-a-conversation/x"), "x")
	state := filepath.Join(f.box, "conversations", conversation, "base_state.json")
	event := filepath.Join(f.box, "conversations", conversation, "events/event-00001-0a1b2c3d.json")
	require.NoError(t, os.Remove(filepath.Join(filepath.Dir(state), "meta.json")))
	f.write(event, "{}")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.NoError(t, os.Chtimes(state, at.Add(-time.Hour), at.Add(-time.Hour)))
	require.NoError(t, os.Chtimes(event, at, at))
	places, err := f.layout().Places(t.Context())
	require.NoError(t, err)
	require.Len(t, places, 2)
	require.Equal(t, conversation, places[0].Conversation)
	require.Equal(t, []string{"worktrees/" + dashed + "/project"}, places[0].Workspaces)
	require.Equal(t, "newest event", places[0].LastActiveFrom)
	require.True(t, at.Equal(places[0].LastActive))
	require.Empty(t, places[0].Runtime)
	require.Equal(t, other, places[1].Conversation, "one whose last use is unknown comes last")
	release, busy, err := f.layout().Hold(t.Context(), other)
	require.NoError(t, err)
	require.Empty(t, busy)
	release()
}

func TestHostileConfigurationIsNotRunByARemoval(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	mark := filepath.Join(t.TempDir(), "ran")
	program := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho x >> "+mark+"\n"), 0o755))
	f.write(f.tree+"/.gitattributes", "* filter=evil\n")
	f.git(f.tree, "add", "-A")
	f.git(f.tree, "commit", "-q", "-m", "attributes")
	f.git(f.tree, "config", "filter.evil.clean", program)
	f.git(f.tree, "config", "core.fsmonitor", program)
	f.git(f.tree, "status")
	require.FileExists(t, mark, "plain git runs it")
	require.NoError(t, os.Remove(mark))
	// The helpers of this test are plain git, so not f.remove.
	items, err := f.layout().Remove(t.Context(), conversation, false)
	require.NoError(t, err)
	require.Len(t, items, 1)
	require.Empty(t, items[0].Skipped)
	require.NoDirExists(t, f.tree)
	require.NoFileExists(t, mark)
}
