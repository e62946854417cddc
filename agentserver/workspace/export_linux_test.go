package workspace_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

func export(t *testing.T, root string) ([]byte, box.Manifest) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, newWorkspace(t, root).Export(t.Context(), &out))
	manifest, err := agentserver.VerifyWorkspace(bytes.NewReader(out.Bytes()))
	require.NoError(t, err)
	return out.Bytes(), manifest
}

// unpack writes an archive below a new directory, as tar does.
func unpack(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	zip, err := zstd.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	defer zip.Close()
	entries := tar.NewReader(zip)
	for {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		require.NoError(t, err)
		to := filepath.Join(dir, header.Name)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		switch header.Typeflag {
		case tar.TypeDir:
			require.NoError(t, os.MkdirAll(to, 0o755))
		case tar.TypeSymlink:
			require.NoError(t, os.Symlink(header.Linkname, to))
		case tar.TypeLink:
			require.NoError(t, os.Link(filepath.Join(dir, header.Linkname), to))
		default:
			file, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fs.FileMode(header.Mode))
			require.NoError(t, err)
			_, err = io.Copy(file, entries)
			require.NoError(t, err)
			require.NoError(t, file.Close())
		}
	}
}

// names lists what an archive has below files/, in its order.
func names(t *testing.T, archive []byte) []string {
	t.Helper()
	zip, err := zstd.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	defer zip.Close()
	var out []string
	for entries := tar.NewReader(zip); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		if name, ok := strings.CutPrefix(header.Name, box.WorkspaceFiles); ok {
			out = append(out, strings.TrimSuffix(name, "/"))
		}
	}
}

// join puts the parts of a stream together.
func join(t *testing.T, dir string, part box.ManifestPart) []byte {
	t.Helper()
	var out []byte
	names, err := filepath.Glob(filepath.Join(dir, part.Name, "*"))
	require.NoError(t, err)
	require.Len(t, names, part.Parts)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		out = append(out, text...)
	}
	return out
}

// restore brings a repository back as the manifest's comment says.
func restore(t *testing.T, dir string, manifest box.Manifest, one box.ManifestRepository) string {
	t.Helper()
	bundle := one.Bundle
	for _, other := range manifest.Repositories {
		if one.BundleOf == other.Path {
			bundle = other.Bundle
		}
	}
	file := filepath.Join(t.TempDir(), "bundle")
	require.NoError(t, os.WriteFile(file, join(t, dir, bundle), 0o600))
	tree := filepath.Join(dir, "files", one.Path)
	gitDir := filepath.Join(tree, ".git")
	agentservertest.Git(t, dir, "clone", "-q", "--mirror", file, gitDir)
	agentservertest.Git(t, gitDir, "config", "core.bare", "false")
	agentservertest.Git(t, gitDir, "config", "--unset", "remote.origin.mirror")
	agentservertest.Git(t, gitDir, "fsck", "--full", "--strict")
	if one.Branch == "" {
		agentservertest.Git(t, tree, "update-ref", "--no-deref", "HEAD", one.Head)
	} else {
		agentservertest.Git(t, tree, "symbolic-ref", "HEAD", "refs/heads/"+one.Branch)
	}
	agentservertest.Git(t, tree, "reset", "-q")
	if one.Staged.Parts > 0 {
		patch := filepath.Join(t.TempDir(), "staged")
		require.NoError(t, os.WriteFile(patch, join(t, dir, one.Staged), 0o600))
		agentservertest.Git(t, tree, "apply", "--cached", patch)
	}
	return tree
}

func TestAnArchiveBringsAllWorkBack(t *testing.T) {
	t.Parallel()
	root, clone := agentservertest.ClonedBox(t)
	first := agentservertest.Git(t, clone, "rev-parse", "HEAD")
	second := agentservertest.Commit(t, clone, "unpushed")
	agentservertest.Git(t, clone, "branch", "side", first)
	lost := agentservertest.Commit(t, clone, "lost")
	agentservertest.Git(t, clone, "reset", "-q", "--hard", "HEAD~1")
	write(t, filepath.Join(clone, "a.txt"), "in the stash")
	agentservertest.Git(t, clone, "stash")
	write(t, filepath.Join(clone, "a.txt"), "in an older stash, really")
	agentservertest.Git(t, clone, "stash")
	write(t, filepath.Join(clone, "staged.bin"), "\x00\x01staged")
	agentservertest.Git(t, clone, "add", "staged.bin")
	write(t, filepath.Join(clone, "a.txt"), "not committed")
	write(t, filepath.Join(clone, "untracked.txt"), "untracked")
	write(t, filepath.Join(clone, ".env"), "KEY=1")
	write(t, filepath.Join(clone, "node_modules/x/index.js"), "made again")
	write(t, filepath.Join(root, "workspace/notes.md"), "a plain file")
	linked := filepath.Join(root, "worktrees/x/project")
	agentservertest.Git(t, clone, "worktree", "add", "-q", "--detach", linked)
	detached := agentservertest.Commit(t, linked, "in the worktree")
	write(t, filepath.Join(linked, "more.txt"), "untracked there")

	archive, manifest := export(t, root)
	require.Empty(t, manifest.Incomplete)
	require.Len(t, manifest.Repositories, 2)
	dir := unpack(t, archive)
	require.NoFileExists(t, filepath.Join(dir, "files/workspace/project/node_modules/x/index.js"))
	require.FileExists(t, filepath.Join(dir, "files/workspace/notes.md"))

	tree := restore(t, dir, manifest, manifest.Repositories[0])
	require.Equal(t, second, agentservertest.Git(t, tree, "rev-parse", "main"))
	require.Equal(t, first, agentservertest.Git(t, tree, "rev-parse", "side"))
	for _, id := range []string{lost, detached, agentservertest.Git(t, clone, "rev-parse", "stash@{0}"), agentservertest.Git(t, clone, "rev-parse", "stash@{1}")} {
		require.Equal(t, "commit", agentservertest.Git(t, tree, "cat-file", "-t", id))
	}
	require.Equal(t, agentservertest.Git(t, clone, "stash", "show", "-p", "stash@{0}"), agentservertest.Git(t, tree, "diff", "refs/stash^1", "refs/stash"))
	require.Equal(t, agentservertest.Git(t, clone, "status", "--porcelain"), agentservertest.Git(t, tree, "status", "--porcelain"))
	require.Equal(t, agentservertest.Git(t, clone, "diff", "--binary"), agentservertest.Git(t, tree, "diff", "--binary"))
	require.Equal(t, agentservertest.Git(t, clone, "diff", "--binary", "--cached"), agentservertest.Git(t, tree, "diff", "--binary", "--cached"))
	env, err := os.ReadFile(filepath.Join(tree, ".env"))
	require.NoError(t, err)
	require.Equal(t, "KEY=1", string(env))

	require.Equal(t, "workspace/project", manifest.Repositories[1].BundleOf)
	other := restore(t, dir, manifest, manifest.Repositories[1])
	require.Equal(t, detached, agentservertest.Git(t, other, "rev-parse", "HEAD"))
	require.Equal(t, "?? more.txt", agentservertest.Git(t, other, "status", "--porcelain"))
}

func TestSubmodulesAreBundledCheckedOutOrNot(t *testing.T) {
	t.Parallel()
	root, clone := agentservertest.ClonedBox(t)
	origin := agentservertest.Git(t, clone, "config", "remote.origin.url")
	var ids []string
	for _, name := range []string{"inner", "gone"} {
		agentservertest.Git(t, clone, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", origin, name)
		ids = append(ids, agentservertest.Commit(t, filepath.Join(clone, name), "work in "+name))
	}
	agentservertest.Git(t, clone, "commit", "-q", "-m", "with submodules")
	agentservertest.Git(t, clone, "submodule", "--quiet", "deinit", "-f", "gone")
	archive, manifest := export(t, root)
	require.Empty(t, manifest.Incomplete)
	require.Len(t, manifest.Repositories, 3)
	require.Equal(t, box.RepositorySubmodule, manifest.Repositories[1].Kind)
	require.Equal(t, "workspace/project/.git/modules/gone", manifest.Repositories[2].Path)
	dir := unpack(t, archive)
	for i, id := range ids {
		file, bare := filepath.Join(t.TempDir(), "bundle"), filepath.Join(t.TempDir(), "bare")
		require.NoError(t, os.WriteFile(file, join(t, dir, manifest.Repositories[i+1].Bundle), 0o600))
		agentservertest.Git(t, dir, "clone", "-q", "--mirror", file, bare)
		require.Equal(t, "commit", agentservertest.Git(t, bare, "cat-file", "-t", id))
	}
}

func TestWhatCanBeMadeAgainIsKeptWhenARepositoryLiesInIt(t *testing.T) {
	t.Parallel()
	root, clone := agentservertest.ClonedBox(t)
	write(t, filepath.Join(clone, "pkg/node_modules/x"), "made again")
	agentservertest.Git(t, clone, "clone", "-q", ".", "node_modules/dep")
	write(t, filepath.Join(clone, "node_modules/dep/a.txt"), "patched")
	archive, manifest := export(t, root)
	require.Len(t, manifest.Repositories, 2)
	dir := unpack(t, archive)
	require.FileExists(t, filepath.Join(dir, "files/workspace/project/node_modules/dep/a.txt"))
	require.NoFileExists(t, filepath.Join(dir, "files/workspace/project/pkg/node_modules/x"))
}

func TestTheSameTreeGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	root, clone := agentservertest.ClonedBox(t)
	agentservertest.Commit(t, clone, "more")
	write(t, filepath.Join(clone, "a.txt"), "changed")
	write(t, filepath.Join(clone, "node_modules/x"), "x")
	one, _ := export(t, root)
	// Neither looking nor the removal of what can be made again changes it.
	_ = unsaved(t, root)
	two, _ := export(t, root)
	require.True(t, bytes.Equal(one, two))
	require.NoError(t, os.Remove(filepath.Join(clone, "node_modules/x")))
	three, _ := export(t, root)
	require.True(t, bytes.Equal(one, three))
	write(t, filepath.Join(clone, "a.txt"), "Changed")
	four, _ := export(t, root)
	require.False(t, bytes.Equal(one, four))
}

func TestNamesOfEveryKindAreKept(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "box")
	work := filepath.Join(root, "workspace")
	for _, name := range []string{"new\nline", "tab\there", "\xff\xfe not utf-8", "..two dots", "ü", strings.Repeat("n", 250)} {
		write(t, filepath.Join(work, name, name), name)
	}
	write(t, filepath.Join(work, "hard/one"), "linked")
	require.NoError(t, os.Link(filepath.Join(work, "hard/one"), filepath.Join(work, "hard/two")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(work, "out")))
	require.NoError(t, os.Symlink(strings.Repeat("long/", 300), filepath.Join(work, "long")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(work, "pipe"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(work, "run.sh"), []byte("#!/bin/sh\n"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(work, "empty"), 0o755))
	sparse, err := os.Create(filepath.Join(work, "sparse"))
	require.NoError(t, err)
	_, err = sparse.WriteAt([]byte("end"), 40<<20)
	require.NoError(t, err)
	_, err = sparse.WriteAt([]byte("middle"), 20<<20)
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(50<<20))
	require.NoError(t, sparse.Close())

	archive, manifest := export(t, root)
	require.Less(t, len(archive), 1<<20, "holes take no room")
	require.Empty(t, manifest.Incomplete)
	require.EqualValues(t, 1, manifest.LeftOut, "the pipe")
	files := filepath.Join(unpack(t, archive), "files/workspace")
	var order []string
	require.NoError(t, filepath.WalkDir(work, func(at string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(root, at); rel != "workspace/pipe" {
			order = append(order, rel)
		}
		return err
	}))
	require.Equal(t, order, names(t, archive), "in the order of names, whatever the filesystem's")
	require.NoError(t, filepath.WalkDir(work, func(at string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		rel, err := filepath.Rel(work, at)
		require.NoError(t, err)
		to := filepath.Join(files, rel)
		switch {
		case rel == "pipe":
			require.NoFileExists(t, to)
		case entry.Type() == fs.ModeSymlink:
			want, err := os.Readlink(at)
			require.NoError(t, err)
			got, err := os.Readlink(to)
			require.NoError(t, err)
			require.Equal(t, want, got)
		case entry.Type().IsRegular():
			want, err := os.ReadFile(at)
			require.NoError(t, err)
			got, err := os.ReadFile(to)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), rel)
		default:
			require.DirExists(t, to)
		}
		return nil
	}))
	one, err := os.Stat(filepath.Join(files, "hard/one"))
	require.NoError(t, err)
	two, err := os.Stat(filepath.Join(files, "hard/two"))
	require.NoError(t, err)
	require.True(t, os.SameFile(one, two))
	info, err := os.Stat(filepath.Join(files, "run.sh"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o755), info.Mode().Perm())
}
