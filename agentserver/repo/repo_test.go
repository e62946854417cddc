package repo_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

// plain runs git as a person would, with the repository's configuration in
// force, and a home of its own.
func plain(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	return plainWith(t, dir, "", args...)
}

func plainWith(t *testing.T, dir, input string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(input)
	home := filepath.Join(filepath.Dir(dir), "home")
	require.NoError(t, os.MkdirAll(home, 0o700))
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.invalid", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.invalid",
	}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// do is plain where nothing may fail.
func do(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := plain(t, dir, args...)
	require.NoError(t, err, "git %s: %s", strings.Join(args, " "), out)
	return out
}

func write(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(content), 0o644))
}

// newRepo is a repository with one commit of two files.
func newRepo(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "repo")
	require.NoError(t, os.Mkdir(dir, 0o755))
	do(t, dir, "init", "-q", "-b", "main")
	write(t, filepath.Join(dir, "a.txt"), "one\n")
	write(t, filepath.Join(dir, "sub/b.txt"), "two\n")
	do(t, dir, "add", "-A")
	do(t, dir, "commit", "-q", "-m", "first")
	return dir
}

// newGit runs the real git, with stand-ins in a directory of the test, which is
// empty again at its end.
func newGit(t *testing.T) *repo.Git {
	t.Helper()
	scratch := t.TempDir()
	t.Cleanup(func() {
		left, err := os.ReadDir(scratch)
		require.NoError(t, err)
		require.Empty(t, left, "every stand-in is removed")
	})
	git, err := repo.New(repo.Options{Scratch: []string{scratch}})
	require.NoError(t, err)
	return git
}

func open(t *testing.T, git *repo.Git, dir string) *repo.Repository {
	t.Helper()
	r, err := git.Open(t.Context(), dir)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

// ours asks everything that the package offers, and returns what went wrong.
func ours(t *testing.T, git *repo.Git, dir string) error {
	t.Helper()
	ctx := t.Context()
	_, err := git.IgnoredDirs(ctx, dir)
	all := []error{err}
	note := func(err error) { all = append(all, err) }
	r, err := git.Open(ctx, dir)
	if err != nil {
		return err
	}
	defer r.Close()
	note(r.Status(ctx, func(repo.Entry) error { return nil }))
	note(r.Index(ctx, func(repo.IndexEntry) error { return nil }))
	head, err := r.Head(ctx)
	note(err)
	refs, err := r.Rescued(ctx)
	note(err)
	_, err = r.Stashes(ctx)
	note(err)
	_, err = r.Unreachable(ctx, []string{head.ID}, repo.BesidesRemotes)
	note(err)
	var sink bytes.Buffer
	note(r.Bundle(ctx, &sink, refs))
	_, err = r.Large(ctx)
	note(err)
	note(r.Patch(ctx, &sink, true, []string{"no-such-file"}))
	note(r.Patch(ctx, &sink, false, nil))
	note(r.Keep(ctx, []repo.Ref{{Name: "refs/openhands/rescue/x/1", ID: head.ID}}))
	if r.Linked() {
		note(r.Lock(ctx, "boxd"))
		note(r.Unlock(ctx))
		// As a removal does it: the directory is aside first.
		require.NoError(t, os.Rename(dir, dir+".aside"))
		note(r.Unlist(ctx))
		require.NoError(t, os.Rename(dir+".aside", dir))
	}
	return errors.Join(all...)
}

func TestIgnoredDirsAreThoseThatGitIgnoresAsAWhole(t *testing.T) {
	t.Parallel()
	dir := newRepo(t)
	write(t, filepath.Join(dir, ".gitignore"), "node_modules/\n.venv\nlinked\n*.log\nbuild/\n")
	write(t, filepath.Join(dir, "node_modules/x/index.js"), "x")
	write(t, filepath.Join(dir, "pkg/node_modules/y/index.js"), "x")
	write(t, filepath.Join(dir, ".venv/pyvenv.cfg"), "x")
	write(t, filepath.Join(dir, "logs/a.log"), "ignored by its name alone")
	write(t, filepath.Join(dir, "mixed/a.log"), "x")
	write(t, filepath.Join(dir, "mixed/note.txt"), "untracked")
	write(t, filepath.Join(dir, "build/out.bin"), "x")
	write(t, filepath.Join(dir, "build/kept.txt"), "tracked")
	write(t, filepath.Join(dir, "new\nline/node_modules/z"), "x")
	require.NoError(t, os.Symlink(filepath.Join(dir, "sub"), filepath.Join(dir, "linked")))
	do(t, dir, "add", "-f", "build/kept.txt")
	dirs, err := newGit(t).IgnoredDirs(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, []string{".venv", "new\nline/node_modules", "node_modules", "pkg/node_modules"},
		dirs, "no link, nothing with a tracked file inside, no directory with other things inside")
	some, err := newGit(t).IgnoredDirs(t.Context(), dir, "pkg/node_modules", "build", ".venv", "mixed", "sub", "gone", "linked", "new\nline/node_modules")
	require.NoError(t, err)
	require.Equal(t, []string{".venv", "new\nline/node_modules", "pkg/node_modules"}, some, "asked by name, the same of these")
	many := make([]string, 1000)
	for i := range many {
		many[i] = ".venv"
	}
	some, err = newGit(t).IgnoredDirs(t.Context(), dir, many...)
	require.NoError(t, err)
	require.Subset(t, dirs, some)
	require.Contains(t, some, ".venv", "however many are named")
	_, err = newGit(t).IgnoredDirs(t.Context(), filepath.Join(dir, "sub"))
	require.Error(t, err, "a directory that is no working tree has no answer")
}

func TestWhatIsNotUnderstoodIsRefused(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"an extension that is not known": func(t *testing.T, dir string) {
			t.Helper()

			do(t, dir, "config", "core.repositoryformatversion", "1")
			do(t, dir, "config", "extensions.frobnicate", "true")
		},
		"a format that is not known": func(t *testing.T, dir string) {
			t.Helper()
			do(t, dir, "config", "core.repositoryformatversion", "7")
		},
		"a head that leads out": func(t *testing.T, dir string) {
			t.Helper()

			write(t, filepath.Join(dir, ".git/HEAD"), "ref: refs/../../../etc/passwd\n")
		},
		"a .git that is a link": func(t *testing.T, dir string) {
			t.Helper()

			require.NoError(t, os.Rename(filepath.Join(dir, ".git"), filepath.Join(dir, "elsewhere")))
			require.NoError(t, os.Symlink("elsewhere", filepath.Join(dir, ".git")))
		},
		"a .git that names the record of another worktree": func(t *testing.T, dir string) {
			t.Helper()

			other := filepath.Join(filepath.Dir(dir), "other")
			do(t, dir, "worktree", "add", "-q", "--detach", other)
			require.NoError(t, os.Rename(filepath.Join(dir, ".git"), filepath.Join(filepath.Dir(dir), "moved")))
			write(t, filepath.Join(dir, ".git"), "gitdir: "+filepath.Join(filepath.Dir(dir), "moved/worktrees/other")+"\n")
		},
		"a setting that would be written as two lines": func(t *testing.T, dir string) {
			t.Helper()

			write(t, filepath.Join(dir, ".git/config"), "[core]\n\tfilemode = \"true\\n[filter \\\"x\\\"]\"\n")
		},
		"a configuration that is a pipe": func(t *testing.T, dir string) {
			t.Helper()

			require.NoError(t, os.Remove(filepath.Join(dir, ".git/config")))
			makePipe(t, filepath.Join(dir, ".git/config"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			git, dir := newGit(t), newRepo(t)
			_ = open(t, git, dir)
			spoil(t, dir)
			r, err := git.Open(t.Context(), dir)
			if err == nil {
				r.Close()
			}
			require.Error(t, err)
			t.Log(err)
		})
	}
}

func TestAQuestionIsBounded(t *testing.T) {
	t.Parallel()
	dir := newRepo(t)
	program := filepath.Join(t.TempDir(), "git")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\nsleep 300 & echo $! > "+program+".pid\nwait\n"), 0o755))
	git, err := repo.New(repo.Options{Program: program, Timeout: 300_000_000, Scratch: []string{t.TempDir()}})
	require.NoError(t, err)
	_, err = git.Open(t.Context(), dir)
	require.ErrorContains(t, err, "no answer within 300ms")
	requireEnded(t, program+".pid")

	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\nyes | tr '\\n' '\\000'\n"), 0o755))
	git, err = repo.New(repo.Options{Program: program, MaxOutput: 1 << 20, Scratch: []string{t.TempDir()}})
	require.NoError(t, err)
	_, err = git.Open(t.Context(), dir)
	require.Equal(t, box.ClassExhausted, box.ClassOf(err), "an endless answer ends")
}

func TestABundleHoldsWhatOnlyReflogsName(t *testing.T) {
	t.Parallel()
	git, dir := newGit(t), newRepo(t)
	commit := func(dir, text string) string {
		write(t, filepath.Join(dir, "a.txt"), text)
		do(t, dir, "commit", "-q", "-a", "-m", text)
		return do(t, dir, "rev-parse", "HEAD")
	}
	reset := commit(dir, "lost by a reset")
	do(t, dir, "reset", "-q", "--hard", "HEAD~1")
	write(t, filepath.Join(dir, "a.txt"), "older stash")
	do(t, dir, "stash")
	older := do(t, dir, "rev-parse", "stash@{0}")
	write(t, filepath.Join(dir, "a.txt"), "newer stash")
	do(t, dir, "stash")
	linked := filepath.Join(filepath.Dir(dir), "linked")
	do(t, dir, "worktree", "add", "-q", "--detach", linked)
	detached := commit(linked, "on a detached head")
	do(t, dir, "update-ref", "refs/hidden/x", reset+"~1")
	do(t, dir, "tag", "-a", "-m", "t", "v1")
	before := snapshot(t, filepath.Join(dir, ".git"))

	r := open(t, git, dir)
	refs, err := r.Rescued(t.Context())
	require.NoError(t, err)
	var first, second bytes.Buffer
	require.NoError(t, r.Bundle(t.Context(), &first, refs))
	require.NoError(t, r.Bundle(t.Context(), &second, refs))
	require.True(t, bytes.Equal(first.Bytes(), second.Bytes()), "the same repository gives the same bytes")
	require.Equal(t, before, snapshot(t, filepath.Join(dir, ".git")), "nothing was written to the repository")

	file := filepath.Join(t.TempDir(), "repo.bundle")
	require.NoError(t, os.WriteFile(file, first.Bytes(), 0o600))
	clone := filepath.Join(t.TempDir(), "clone")
	do(t, dir, "clone", "-q", "--mirror", file, clone)
	do(t, clone, "fsck", "--full", "--strict")
	for _, id := range []string{reset, older, detached} {
		require.Equal(t, "commit", do(t, clone, "cat-file", "-t", id))
	}
	require.Equal(t, do(t, dir, "rev-parse", "refs/stash", "refs/hidden/x", "v1", "main"), do(t, clone, "rev-parse", "refs/stash", "refs/hidden/x", "v1", "main"))

	stashes, err := r.Stashes(t.Context())
	require.NoError(t, err)
	require.Len(t, stashes, 2)
	require.Equal(t, older, stashes[1].ID)
}

// snapshot lists every file below dir with its content's length and its time.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.Walk(dir, func(at string, info os.FileInfo, err error) error {
		if err == nil {
			out[at] = info.Mode().String() + info.ModTime().String()
		}
		return err
	}))
	return out
}

func TestPatchesBringBackWhatWasChanged(t *testing.T) {
	t.Parallel()
	git, dir := newGit(t), newRepo(t)
	// Git writes what it learns of such a file into the index, if it may.
	write(t, filepath.Join(dir, "touched.txt"), "same\n")
	do(t, dir, "add", "touched.txt")
	do(t, dir, "commit", "-q", "-m", "more")
	long := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(dir, "touched.txt"), long, long))
	write(t, filepath.Join(dir, "a.txt"), "staged\n")
	do(t, dir, "add", "a.txt")
	write(t, filepath.Join(dir, "a.txt"), "staged and changed\n")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub/b.txt"), []byte{0, 1, 2, 255}, 0o644))
	r := open(t, git, dir)
	before := snapshot(t, filepath.Join(dir, ".git"))
	var staged, unstaged bytes.Buffer
	require.NoError(t, r.Patch(t.Context(), &staged, true, nil))
	require.NoError(t, r.Patch(t.Context(), &unstaged, false, nil))
	require.Equal(t, before, snapshot(t, filepath.Join(dir, ".git")))

	clone := filepath.Join(t.TempDir(), "clone")
	do(t, dir, "clone", "-q", dir, clone)
	for file, patch := range map[string][]byte{"1": staged.Bytes(), "2": unstaged.Bytes()} {
		require.NoError(t, os.WriteFile(filepath.Join(clone, ".git", file), patch, 0o600))
	}
	do(t, clone, "apply", "--index", ".git/1")
	do(t, clone, "apply", ".git/2")
	require.Equal(t, do(t, dir, "status", "--porcelain"), do(t, clone, "status", "--porcelain"))
	require.Equal(t, do(t, dir, "diff", "--binary"), do(t, clone, "diff", "--binary"))
}

// A repository that says that its working tree, its objects or its ignore list
// are elsewhere is judged by the directory that it is in.
func TestARepositoryCannotPointElsewhere(t *testing.T) {
	t.Parallel()
	git, dir := newGit(t), newRepo(t)
	write(t, filepath.Join(dir, "unsaved.txt"), "work\n")
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	do(t, dir, "clone", "-q", dir, elsewhere)
	do(t, dir, "config", "core.worktree", elsewhere)
	do(t, dir, "config", "core.excludesFile", "/proc/self/mounts")
	ignore := filepath.Join(t.TempDir(), "ignore")
	write(t, ignore, "unsaved.txt\n")
	do(t, dir, "config", "core.excludesFile", ignore)
	require.Empty(t, do(t, dir, "status", "--porcelain"), "plain git is fooled")
	var seen []string
	require.NoError(t, open(t, git, dir).Status(t.Context(), func(entry repo.Entry) error {
		seen = append(seen, string(entry.Kind)+entry.Path)
		return nil
	}))
	require.Equal(t, []string{"?unsaved.txt"}, seen)
}

// Replaced objects and grafts can hide commits; neither does here.
func TestReplacedHistoryHidesNothing(t *testing.T) {
	t.Parallel()
	git, dir := newGit(t), newRepo(t)
	first := do(t, dir, "rev-parse", "HEAD")
	do(t, dir, "update-ref", "refs/remotes/origin/main", first)
	write(t, filepath.Join(dir, "a.txt"), "unpushed\n")
	do(t, dir, "commit", "-q", "-a", "-m", "unpushed")
	second := do(t, dir, "rev-parse", "HEAD")
	do(t, dir, "replace", "--graft", first, second)
	require.Empty(t, do(t, dir, "rev-list", "HEAD", "--not", "--remotes"), "plain git is fooled")
	ids, err := open(t, git, dir).Unreachable(t.Context(), []string{second}, repo.BesidesRemotes)
	require.NoError(t, err)
	require.Equal(t, []string{second}, ids)
}
