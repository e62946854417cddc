package putback_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/putback"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

const scratch = "run/restore"

// tarOf is the tar in an archive, and its sum.
func tarOf(t *testing.T, archive []byte) (tar []byte, sum string) {
	t.Helper()
	zip, err := workspacetar.Decompress(bytes.NewReader(archive))
	require.NoError(t, err)
	defer zip.Close()
	tar, err = io.ReadAll(zip)
	require.NoError(t, err)
	return tar, sumOf(tar)
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// freshBox is a box as its boxd finds it: empty.
func freshBox(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "fresh")
	for _, name := range []string{"workspace", "worktrees", "conversations", "run"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, name), 0o755))
	}
	return root
}

func taking(t *testing.T, root string) *putback.Box {
	t.Helper()
	git, err := repo.New(repo.Options{Scratch: []string{t.TempDir()}})
	require.NoError(t, err)
	return putback.New(putback.Options{Root: root, Dirs: []string{"workspace", "worktrees"}, Git: git, Scratch: scratch})
}

// putBack restores an archive into a box, which must go well.
func putBack(t *testing.T, root string, archive []byte) agentserver.Restored {
	t.Helper()
	tar, sum := tarOf(t, archive)
	out, fresh, err := taking(t, root).Restore(t.Context(), sum, int64(len(tar)), bytes.NewReader(tar))
	require.NoError(t, err)
	require.True(t, fresh)
	require.NoDirExists(t, filepath.Join(root, scratch, "staging"))
	return out
}

// tree tells everything below the places of work: kind, mode, content, time and
// where links lead. Git directories are for git to compare.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{"workspace", "worktrees"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(at string, entry fs.DirEntry, err error) error {
			if err != nil || entry.Name() == ".git" {
				if err == nil && entry.IsDir() {
					return fs.SkipDir
				}
				return err
			}
			name, err := filepath.Rel(root, at)
			require.NoError(t, err)
			info, err := entry.Info()
			require.NoError(t, err)
			switch {
			case name == dir:
			case info.Mode()&fs.ModeSymlink != 0:
				to, err := os.Readlink(at)
				require.NoError(t, err)
				out[name] = "link to " + to
			case info.IsDir():
				out[name] = "directory " + info.Mode().String()
			default:
				text, err := os.ReadFile(at)
				require.NoError(t, err)
				out[name] = fmt.Sprintf("file %s %d %s %d", info.Mode(), len(text), sumOf(text), info.ModTime().Unix())
			}
			return nil
		})
		if !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}
	}
	return out
}

// told is a report of unsaved work without what depends on the time.
func told(t *testing.T, root string) string {
	t.Helper()
	out := unsaved(t, root)
	for i := range out.Repositories {
		out.Repositories[i].FetchedSeconds = 0
	}
	text, err := json.MarshalIndent(out, "", " ")
	require.NoError(t, err)
	return string(text)
}

// refs are all references of a repository but those that we add.
func refs(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	for line := range strings.Lines(agentservertest.Git(t, dir, "for-each-ref", "--format=%(refname) %(objectname)")) {
		if !strings.HasPrefix(line, repo.RescueRefs) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return strings.Join(out, "\n")
}

// busyBox is a box with work of every kind that a box can hold.
func busyBox(t *testing.T) (root, clone string) {
	t.Helper()
	root, clone = agentservertest.ClonedBox(t)
	agentservertest.Commit(t, clone, "unpushed")
	agentservertest.Git(t, clone, "branch", "side", "HEAD~1")
	agentservertest.Git(t, clone, "tag", "-a", "-m", "a tag", "v1")
	agentservertest.Commit(t, clone, "lost")
	agentservertest.Git(t, clone, "reset", "-q", "--hard", "HEAD~1")
	for _, text := range []string{"in the oldest stash", "in the middle one", "in the newest"} {
		write(t, filepath.Join(clone, "a.txt"), text)
		agentservertest.Git(t, clone, "stash", "push", "-m", text)
	}
	write(t, filepath.Join(clone, "staged.bin"), "\x00\x01staged")
	write(t, filepath.Join(clone, "both.txt"), "staged")
	agentservertest.Git(t, clone, "add", "staged.bin", "both.txt")
	write(t, filepath.Join(clone, "both.txt"), "staged and changed")
	write(t, filepath.Join(clone, "a.txt"), "not committed")
	write(t, filepath.Join(clone, "untracked.txt"), "untracked")
	write(t, filepath.Join(clone, ".env"), "KEY=1")
	require.NoError(t, os.Chmod(filepath.Join(clone, "untracked.txt"), 0o755))
	old := time.Unix(1_500_000_000, 0)
	require.NoError(t, os.Chtimes(filepath.Join(clone, ".env"), old, old))

	// A worktree with a head on no branch.
	linked := filepath.Join(root, "worktrees/x/project")
	agentservertest.Git(t, clone, "worktree", "add", "-q", "--detach", linked)
	agentservertest.Commit(t, linked, "in the worktree")
	write(t, filepath.Join(linked, "more.txt"), "untracked there")
	// A clone in a clone, which git ignores.
	nested := filepath.Join(clone, "nested/inner")
	agentservertest.Git(t, root, "clone", "-q", clone, nested)
	agentservertest.Commit(t, nested, "in the nested one")
	agentservertest.Git(t, nested, "checkout", "-q", "--detach")
	agentservertest.Commit(t, nested, "detached there")
	// A submodule with work, and a repository without a commit.
	origin := agentservertest.Git(t, clone, "config", "remote.origin.url")
	agentservertest.Git(t, clone, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", origin, "module")
	agentservertest.Git(t, clone, "commit", "-q", "-m", "with a submodule", "--", "module", ".gitmodules")
	agentservertest.Commit(t, filepath.Join(clone, "module"), "in the submodule")
	empty := filepath.Join(root, "workspace/empty")
	require.NoError(t, os.MkdirAll(empty, 0o755))
	agentservertest.Git(t, empty, "init", "-q", "-b", "trunk")
	write(t, filepath.Join(empty, "first.txt"), "added and never committed")
	agentservertest.Git(t, empty, "add", "first.txt")
	bare := filepath.Join(root, "workspace/mirror.git")
	agentservertest.Git(t, root, "clone", "-q", "--bare", clone, bare)

	work := filepath.Join(root, "workspace")
	for _, name := range []string{"new\nline", "tab\there", "\xff\xfe not utf-8", "..two dots", "ü"} {
		write(t, filepath.Join(work, "odd", name, name), name)
	}
	require.NoError(t, os.Link(filepath.Join(work, "odd/\xff\xfe not utf-8/\xff\xfe not utf-8"), filepath.Join(work, "odd/\xff\xfe zz another name")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(work, "out")))
	require.NoError(t, os.Symlink("to \xff nowhere", filepath.Join(work, "dangling")))
	require.NoError(t, os.MkdirAll(filepath.Join(work, "closed/deep"), 0o755))
	write(t, filepath.Join(work, "closed/deep/file"), "in a directory that is closed")
	require.NoError(t, os.Chmod(filepath.Join(work, "closed/deep/file"), 0o400))
	require.NoError(t, os.Chmod(filepath.Join(work, "closed/deep"), 0o555))
	require.NoError(t, os.Chmod(filepath.Join(work, "closed"), 0o555))
	sparse, err := os.Create(filepath.Join(work, "sparse"))
	require.NoError(t, err)
	_, err = sparse.WriteAt([]byte("middle"), 2<<20)
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(4<<20))
	require.NoError(t, sparse.Close())
	opened(t, root)
	return root, clone
}

// opened lets a test remove what is closed.
func opened(t *testing.T, root string) {
	t.Helper()
	t.Cleanup(func() {
		for _, name := range []string{"workspace/closed", "workspace/closed/deep"} {
			_ = os.Chmod(filepath.Join(root, name), 0o755)
		}
	})
}

// sameWork compares two boxes in everything that a person works with.
func sameWork(t *testing.T, old, fresh string) {
	t.Helper()
	require.Equal(t, tree(t, old), tree(t, fresh))
	require.Equal(t, told(t, old), told(t, fresh))
	for _, one := range unsaved(t, old).Repositories {
		a, b := filepath.Join(old, one.Path), filepath.Join(fresh, one.Path)
		require.Equal(t, refs(t, a), refs(t, b), one.Path)
		agentservertest.Git(t, b, "fsck", "--full", "--strict")
		if one.Kind == box.RepositoryBare {
			continue
		}
		require.Equal(t, agentservertest.Git(t, a, "status", "--porcelain"), agentservertest.Git(t, b, "status", "--porcelain"), one.Path)
		require.Equal(t, agentservertest.Git(t, a, "diff", "--binary"), agentservertest.Git(t, b, "diff", "--binary"), one.Path)
		require.Equal(t, agentservertest.Git(t, a, "diff", "--binary", "--cached"), agentservertest.Git(t, b, "diff", "--binary", "--cached"), one.Path)
		require.Equal(t, agentservertest.Git(t, a, "stash", "list", "--format=%H %gs"), agentservertest.Git(t, b, "stash", "list", "--format=%H %gs"), one.Path)
		require.Equal(t, agentservertest.Git(t, a, "remote", "-v"), agentservertest.Git(t, b, "remote", "-v"), one.Path)
	}
}

// gitFails runs git where it must not go well.
func gitFails(t *testing.T, dir string, args ...string) {
	t.Helper()
	_, err := agentservertest.TryGit(t, dir, args...)
	require.Error(t, err)
}

func TestAWorkspaceIsPutBackAsItWas(t *testing.T) {
	t.Parallel()
	old, clone := busyBox(t)
	archive, manifest := export(t, old)
	require.Empty(t, manifest.Incomplete)
	fresh := freshBox(t)
	opened(t, fresh)
	out := putBack(t, fresh, archive)
	require.Empty(t, out.Notes)
	require.Equal(t, manifest.Files, out.Files)
	require.Equal(t, len(manifest.Repositories), out.Repositories)
	require.Len(t, manifest.Repositories, 6)
	sameWork(t, old, fresh)

	var a, b syscall.Stat_t
	require.NoError(t, syscall.Stat(filepath.Join(fresh, "workspace/sparse"), &a))
	require.Less(t, a.Blocks*512, int64(1<<20), "holes stay holes")
	names := filepath.Join(fresh, "workspace/odd")
	require.NoError(t, syscall.Stat(filepath.Join(names, "\xff\xfe not utf-8/\xff\xfe not utf-8"), &a))
	require.NoError(t, syscall.Stat(filepath.Join(names, "\xff\xfe zz another name"), &b))
	require.Equal(t, a.Ino, b.Ino, "one file with two names stays one")

	// Work goes on: the worktree is one, the remote is where it was.
	back := filepath.Join(fresh, "workspace/project")
	require.Contains(t, agentservertest.Git(t, back, "worktree", "list"), filepath.Join(fresh, "worktrees/x/project"))
	agentservertest.Git(t, back, "fetch", "-q", "origin")
	require.Contains(t, agentservertest.Git(t, back, "stash", "show", "-p", "stash@{2}"), "+in the oldest stash")
	require.Equal(t, agentservertest.Git(t, clone, "log", "--format=%H %s", "main", "side"), agentservertest.Git(t, back, "log", "--format=%H %s", "main", "side"))
}

// What is exported once more is the same again: nothing was lost on the way.
func TestScenario98ARestoredWorkspaceIsExportedAlike(t *testing.T) {
	t.Parallel()
	old, _ := busyBox(t)
	archive, first := export(t, old)
	fresh := freshBox(t)
	opened(t, fresh)
	putBack(t, fresh, archive)
	_, second := export(t, fresh)
	require.Equal(t, first.Lists, second.Lists, "every file, by name, mode, length and sum")
	require.Equal(t, first.Missing, second.Missing)
	for i := range first.Repositories {
		a, b := first.Repositories[i], second.Repositories[i]
		require.Equal(t, []any{a.Path, a.Branch, a.Head, a.Staged, a.Unstaged, a.Remotes, a.Stashes}, []any{b.Path, b.Branch, b.Head, b.Staged, b.Unstaged, b.Remotes, b.Stashes})
	}
}

func TestAShallowCloneComesBack(t *testing.T) {
	t.Parallel()
	root, clone := agentservertest.ClonedBox(t)
	agentservertest.Commit(t, clone, "second")
	agentservertest.Commit(t, clone, "third")
	shallow := filepath.Join(root, "workspace/shallow")
	agentservertest.Git(t, root, "clone", "-q", "--depth", "1", "file://"+clone, shallow)
	agentservertest.Commit(t, shallow, "on top of it")
	require.NoError(t, os.RemoveAll(clone))
	archive, manifest := export(t, root)
	require.Empty(t, manifest.Incomplete)
	require.True(t, manifest.Repositories[0].Shallow)
	fresh := freshBox(t)
	require.Empty(t, putBack(t, fresh, archive).Notes)
	back := filepath.Join(fresh, "workspace/shallow")
	require.Equal(t, agentservertest.Git(t, shallow, "log", "--format=%H"), agentservertest.Git(t, back, "log", "--format=%H"))
	agentservertest.Git(t, back, "fsck", "--full", "--strict")
	require.Equal(t, told(t, root), told(t, fresh))
}

func TestARepositoryOfFilesComesBack(t *testing.T) {
	t.Parallel()
	root, clone := agentservertest.ClonedBox(t)
	agentservertest.Commit(t, clone, "more")
	write(t, filepath.Join(clone, "staged.txt"), "staged")
	agentservertest.Git(t, clone, "add", "staged.txt")
	blob := agentservertest.Git(t, clone, "rev-parse", "HEAD:.gitignore")
	require.NoError(t, os.Chmod(filepath.Join(clone, ".git/objects", blob[:2], blob[2:]), 0o600))
	write(t, filepath.Join(clone, ".git/objects", blob[:2], blob[2:]), "damaged")
	write(t, filepath.Join(clone, ".git/hooks/post-checkout"), "#!/bin/sh\ntouch /tmp/ran")
	archive, manifest := export(t, root)
	require.Positive(t, manifest.Repositories[0].GitFiles)
	fresh := freshBox(t)
	out := putBack(t, fresh, archive)
	require.Equal(t, manifest.Missing, out.Missing)
	back := filepath.Join(fresh, "workspace/project")
	require.Equal(t, agentservertest.Git(t, clone, "log", "--format=%H"), agentservertest.Git(t, back, "log", "--format=%H"))
	require.Equal(t, "A  staged.txt", agentservertest.Git(t, back, "status", "--porcelain"))
	require.NoDirExists(t, filepath.Join(back, ".git/hooks"))
	require.Contains(t, agentservertest.Git(t, back, "remote", "-v"), "origin")
}

func TestScenario98WhatWasInProgressIsSaid(t *testing.T) {
	t.Parallel()
	root, clone := agentservertest.ClonedBox(t)
	agentservertest.Commit(t, clone, "mine")
	agentservertest.Git(t, clone, "checkout", "-q", "-b", "other", "HEAD~1")
	agentservertest.Commit(t, clone, "theirs")
	write(t, filepath.Join(clone, "b.txt"), "staged before")
	agentservertest.Git(t, clone, "add", "b.txt")
	agentservertest.Git(t, clone, "commit", "-q", "-m", "b")
	gitFails(t, clone, "merge", "main")
	archive, manifest := export(t, root)
	require.Equal(t, []string{"merge"}, manifest.Repositories[0].InProgress)
	fresh := freshBox(t)
	notes := putBack(t, fresh, archive).Notes
	require.NotEmpty(t, notes)
	require.Contains(t, notes[0], "what was in progress (merge)")
	text, err := os.ReadFile(filepath.Join(fresh, "workspace/project/a.txt"))
	require.NoError(t, err)
	require.Contains(t, string(text), "<<<<<<<", "the files are as they were")
	require.Equal(t, refs(t, clone), refs(t, filepath.Join(fresh, "workspace/project")))
}

func TestLargeFilesThatWereStagedAreSaid(t *testing.T) {
	t.Parallel()
	root, clone := agentservertest.ClonedBox(t)
	write(t, filepath.Join(clone, "large.bin"), "large")
	require.NoError(t, os.Truncate(filepath.Join(clone, "large.bin"), repo.MaxPatched+1))
	agentservertest.Git(t, clone, "add", "large.bin")
	archive, _ := export(t, root)
	fresh := freshBox(t)
	notes := putBack(t, fresh, archive).Notes
	require.Equal(t, []string{"workspace/project: changes of large files were staged (1) and are not any more; the files are there"}, notes)
	require.Equal(t, "?? large.bin", agentservertest.Git(t, filepath.Join(fresh, "workspace/project"), "status", "--porcelain"))
}

func TestARestoreNeedsAnEmptyBox(t *testing.T) {
	t.Parallel()
	old, _ := agentservertest.ClonedBox(t)
	archive, _ := export(t, old)
	tar, sum := tarOf(t, archive)
	t.Run("work is not written over", func(t *testing.T) {
		t.Parallel()
		root := freshBox(t)
		write(t, filepath.Join(root, "worktrees/theirs"), "theirs")
		_, _, err := taking(t, root).Restore(t.Context(), sum, -1, bytes.NewReader(tar))
		require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), err)
		require.ErrorContains(t, err, "worktrees/theirs")
		require.Equal(t, []string{"worktrees/theirs"}, slices.Collect(maps.Keys(tree(t, root))))
	})
	t.Run("empty directories are no work", func(t *testing.T) {
		t.Parallel()
		root := freshBox(t)
		require.NoError(t, os.MkdirAll(filepath.Join(root, "workspace/project/sub"), 0o755))
		putBack(t, root, archive)
		sameWork(t, old, root)
	})
	t.Run("another export was put back", func(t *testing.T) {
		t.Parallel()
		root := freshBox(t)
		putBack(t, root, archive)
		_, _, err := taking(t, root).Restore(t.Context(), strings.Repeat("0", 64), -1, bytes.NewReader(tar))
		require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), err)
	})
	t.Run("a repeat reads nothing and changes nothing", func(t *testing.T) {
		t.Parallel()
		root := freshBox(t)
		first := putBack(t, root, archive)
		write(t, filepath.Join(root, "workspace/project/a.txt"), "worked on since")
		before := tree(t, root)
		again, fresh, err := taking(t, root).Restore(t.Context(), sum, -1, broken{errors.New("it was read")})
		require.NoError(t, err)
		require.False(t, fresh)
		require.Equal(t, first, again)
		require.Equal(t, before, tree(t, root))
	})
	t.Run("a workspace that is a link is not followed", func(t *testing.T) {
		t.Parallel()
		root, away := freshBox(t), t.TempDir()
		require.NoError(t, os.Remove(filepath.Join(root, "workspace")))
		require.NoError(t, os.Symlink(away, filepath.Join(root, "workspace")))
		_, _, err := taking(t, root).Restore(t.Context(), sum, -1, bytes.NewReader(tar))
		require.Error(t, err)
		list, err := os.ReadDir(away)
		require.NoError(t, err)
		require.Empty(t, list)
	})
	t.Run("more than is free", func(t *testing.T) {
		t.Parallel()
		root := freshBox(t)
		_, _, err := taking(t, root).Restore(t.Context(), sum, 1<<60, broken{errors.New("it was read")})
		require.Equal(t, box.ClassExhausted, box.ClassOf(err), err)
	})
	t.Run("announced as another", func(t *testing.T) {
		t.Parallel()
		root := freshBox(t)
		_, _, err := taking(t, root).Restore(t.Context(), strings.Repeat("a", 64), -1, bytes.NewReader(tar))
		require.Equal(t, box.ClassUnknown, box.ClassOf(err), err)
		untouched(t, root)
	})
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

// untouched: nothing but the scratch directory is there, and no record of it.
func untouched(t *testing.T, root string) {
	t.Helper()
	require.Empty(t, tree(t, root))
	require.NoFileExists(t, filepath.Join(root, scratch, "record.json"))
	require.NoDirExists(t, filepath.Join(root, scratch, "staging"))
	list, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Len(t, list, 4)
}

// A connection that breaks anywhere leaves an empty box, and the next try is as
// good as the first.
func TestARestoreThatIsCutOffAnywhere(t *testing.T) {
	t.Parallel()
	old, clone := agentservertest.ClonedBox(t)
	agentservertest.Commit(t, clone, "unpushed")
	write(t, filepath.Join(clone, "staged.txt"), "staged")
	agentservertest.Git(t, clone, "add", "staged.txt")
	archive, _ := export(t, old)
	tar, sum := tarOf(t, archive)
	root := freshBox(t)
	w := taking(t, root)
	cut := box.Errorf(box.ClassUnavailable, "the connection broke")
	for n := 0; n < len(tar); n += 509 {
		_, _, err := w.Restore(t.Context(), sum, int64(len(tar)), io.MultiReader(bytes.NewReader(tar[:n]), broken{cut}))
		require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%d: %v", n, err)
		untouched(t, root)
		_, _, err = w.Restore(t.Context(), sum, int64(len(tar)), bytes.NewReader(tar[:n]))
		require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%d: %v", n, err)
		untouched(t, root)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err := w.Restore(ctx, sum, -1, io.MultiReader(bytes.NewReader(tar[:len(tar)/2]), readerFunc(func([]byte) (int, error) {
		cancel()
		return 0, ctx.Err()
	})))
	require.Equal(t, box.ClassCanceled, box.ClassOf(err), err)
	untouched(t, root)
	putBack(t, root, archive)
	sameWork(t, old, root)
}

// A kill between any two moves to their places: what was begun goes on, whether
// boxd starts again or the restore is repeated.
func TestARestoreThatIsKilledWhileItMoves(t *testing.T) {
	t.Parallel()
	old, _ := busyBox(t)
	archive, _ := export(t, old)
	_, sum := tarOf(t, archive)
	placed := freshBox(t)
	opened(t, placed)
	putBack(t, placed, archive)
	want, report := tree(t, placed), told(t, placed)
	var names []string
	for _, dir := range []string{"workspace", "worktrees"} {
		list, err := os.ReadDir(filepath.Join(placed, dir))
		require.NoError(t, err)
		for _, one := range list {
			names = append(names, filepath.Join(dir, one.Name()))
		}
	}
	record, err := os.ReadFile(filepath.Join(placed, scratch, "record.json"))
	require.NoError(t, err)
	var said map[string]any
	require.NoError(t, json.Unmarshal(record, &said))
	require.Equal(t, "placed", said["phase"])
	said["phase"] = "placing"
	said["shut"] = []map[string]any{{"name": []byte("workspace/closed"), "mode": 0o555}}
	record, err = json.Marshal(said)
	require.NoError(t, err)
	for moved := range len(names) + 1 {
		// Back to where a kill after so many moves leaves it.
		require.NoError(t, os.Chmod(filepath.Join(placed, "workspace/closed"), 0o755))
		require.NoError(t, os.MkdirAll(filepath.Join(placed, scratch, "staging/files/workspace"), 0o700))
		require.NoError(t, os.MkdirAll(filepath.Join(placed, scratch, "staging/files/worktrees"), 0o700))
		for _, name := range names[moved:] {
			require.NoError(t, os.Rename(filepath.Join(placed, name), filepath.Join(placed, scratch, "staging/files", name)))
		}
		require.NoError(t, os.WriteFile(filepath.Join(placed, scratch, "record.json"), record, 0o600))
		if moved%2 == 0 {
			require.NoError(t, taking(t, placed).Continue())
		} else {
			out, fresh, err := taking(t, placed).Restore(t.Context(), sum, -1, broken{errors.New("it was read")})
			require.NoError(t, err)
			require.False(t, fresh)
			require.Equal(t, sum, out.SHA256)
		}
		require.Equal(t, want, tree(t, placed), "after %d moves", moved)
		require.NoDirExists(t, filepath.Join(placed, scratch, "staging"))
	}
	require.Equal(t, report, told(t, placed))
	// One that was killed before leaves nothing that counts.
	fresh := freshBox(t)
	write(t, filepath.Join(fresh, scratch, "staging/files/workspace/half"), "half")
	require.NoError(t, taking(t, fresh).Continue())
	untouched(t, fresh)
}

func TestANameThatTookThePlaceIsNotWrittenOver(t *testing.T) {
	t.Parallel()
	root := freshBox(t)
	write(t, filepath.Join(root, scratch, "staging/files/workspace/project/a.txt"), "exported")
	write(t, filepath.Join(root, scratch, "record.json"), `{"phase":"placing","restored":{"sha256":"x"}}`)
	write(t, filepath.Join(root, "workspace/project/a.txt"), "somebody's")
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(taking(t, root).Continue()), "and not that the archive is damaged")
	text, err := os.ReadFile(filepath.Join(root, "workspace/project/a.txt"))
	require.NoError(t, err)
	require.Equal(t, "somebody's", string(text))
	require.FileExists(t, filepath.Join(root, scratch, "staging/files/workspace/project/a.txt"), "neither is lost")
}
