package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/workspace"
	"github.com/openhands/boxkeeper/exports"
)

// working is a box with a conversation and a workspace.
type working struct {
	source
	archive []byte
}

func (w working) Workspace(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(w.archive)), nil
}

func lay(t *testing.T, name, content string, mode fs.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(content), mode))
	old := time.Unix(1_600_000_000, 0)
	require.NoError(t, os.Chtimes(name, old, old))
}

// noise does not compress, so that it fills chunks of its own.
func noise(seed uint64, n int) string {
	out := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(out)
	return string(out)
}

// worked makes a data directory whose store holds one conversation and a
// workspace; root is the box that it was exported from.
func worked(t *testing.T, change func(t *testing.T, root, project string)) (data, root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "box")
	project := filepath.Join(root, "workspace/project")
	lay(t, filepath.Join(project, "a.txt"), "one", 0o644)
	agentservertest.Git(t, project, "init", "-q", "-b", "main")
	agentservertest.Git(t, project, "add", "a.txt")
	agentservertest.Git(t, project, "commit", "-q", "-m", "one")
	lay(t, filepath.Join(project, "a.txt"), "in the stash", 0o644)
	agentservertest.Git(t, project, "stash")
	lay(t, filepath.Join(project, "a.txt"), "never pushed", 0o644)
	agentservertest.Git(t, project, "commit", "-q", "-am", "never pushed")
	agentservertest.Git(t, project, "worktree", "add", "-q", "--detach", filepath.Join(root, "worktrees/w"))
	lay(t, filepath.Join(project, "staged.txt"), "staged", 0o644)
	agentservertest.Git(t, project, "add", "staged.txt")
	lay(t, filepath.Join(project, "run.sh"), "#!/bin/sh\n", 0o755)
	lay(t, filepath.Join(root, "workspace/notes/new\nline"), "odd", 0o600)
	require.NoError(t, os.Link(filepath.Join(root, "workspace/notes/new\nline"), filepath.Join(root, "workspace/other-name")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(root, "workspace/link")))
	require.NoError(t, os.Symlink("no \xff text", filepath.Join(root, "workspace/odd-link")))
	if change != nil {
		change(t, root, project)
	}
	git, err := repo.New(repo.Options{})
	require.NoError(t, err)
	var archive bytes.Buffer
	require.NoError(t, workspace.New(workspace.Options{Root: root, Dirs: []string{"workspace", "worktrees"}, Git: git}).Export(t.Context(), &archive))
	data = exported(t)
	packed, err := os.ReadFile(one(t, data, "exports/exports/mine/*/*/conversations/*.zip"))
	require.NoError(t, err)
	store, err := exports.Open(t.Context(), "file://"+filepath.Join(data, "exports"))
	require.NoError(t, err)
	defer store.Close() //nolint:errcheck // a test's
	_, err = store.Export(t.Context(), exports.Request{Workspace: "mine", Epoch: 2, Attempt: "w"}, working{source{packed}, archive.Bytes()}, nil)
	require.NoError(t, err)
	return data, root
}

// incomplete makes a repository that cannot be bundled.
func incomplete(t *testing.T, _, project string) {
	t.Helper()
	blob := agentservertest.Git(t, project, "rev-parse", "HEAD:a.txt")
	object := filepath.Join(project, ".git/objects", blob[:2], blob[2:])
	require.NoError(t, os.Chmod(object, 0o600))
	require.NoError(t, os.WriteFile(object, []byte("damaged"), 0o600))
}

type shown struct {
	Verified bool
	Files    *shownFiles `json:"workspace_export"`
}

type shownFiles struct {
	Epoch, Files, Missing int
	Incomplete            []string
	Repositories          []struct {
		Path, Kind string
		Stashes    int
	}
}

func TestTheFilesOfAWorkspaceAreShown(t *testing.T) {
	t.Parallel()
	data, _ := worked(t, nil)
	for _, args := range [][]string{{"--workspace"}, {}, {"--workspace", "--verify"}, {"--verify"}} {
		text := runIn(t, nil, data, "", append([]string{"box", "history", "mine"}, args...)...)
		require.Equal(t, 0, text.code, "%v: %s", args, text.stderr)
		assert.Contains(t, text.stdout, "of box 2", args)
		var out shown
		got := runIn(t, nil, data, "", append([]string{"box", "history", "mine", "-o", "json"}, args...)...)
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &out), got.stdout)
		require.NotNil(t, out.Files)
		assert.Equal(t, 2, out.Files.Epoch)
		assert.Len(t, out.Files.Repositories, 2)
		assert.Equal(t, 1, out.Files.Repositories[0].Stashes)
		assert.Equal(t, len(args) > 0 && args[len(args)-1] == "--verify", out.Verified, args)
	}
	list := runIn(t, nil, data, "", "box", "history", "mine", "--workspace", "--files")
	require.Equal(t, 0, list.code, list.stderr)
	assert.Contains(t, list.stdout, "workspace/project/a.txt\tfile\t12\n")
	assert.Contains(t, list.stdout, "workspace/link\tlink\t/etc/passwd\n")
	assert.Contains(t, list.stdout, "workspace/project/.git\tleft-out\tis in the bundle")
	lines := runIn(t, nil, data, "", "box", "history", "mine", "--workspace", "--files", "-o", "json")
	for line := range strings.Lines(lines.stdout) {
		assert.True(t, json.Valid([]byte(line)), line)
	}
	none := runIn(t, nil, exported(t), "", "box", "history", "mine", "--workspace")
	assert.Equal(t, 3, none.code, none.stderr)
	assert.Equal(t, 3, runIn(t, nil, data, "", "box", "history", "mine", "--workspace", "--epoch", "1").code)
	assert.Equal(t, 0, runIn(t, nil, data, "", "box", "history", "mine", "--workspace", "--epoch", "2").code)
	assert.Equal(t, 3, runIn(t, nil, data, "", "box", "history", "other", "--workspace").code)
}

func TestScenario98WhatTheExportLacksIsShown(t *testing.T) {
	t.Parallel()
	data, _ := worked(t, incomplete)
	to := filepath.Join(t.TempDir(), "to")
	for _, args := range [][]string{{"--workspace"}, {}, {"--verify"}, {"--workspace", "--extract", to}} {
		text := runIn(t, nil, data, "", append([]string{"box", "history", "mine"}, args...)...)
		require.Equal(t, 0, text.code, "%v: %s", args, text.stderr)
		assert.Contains(t, text.stdout+text.stderr, "workspace/project: the bundle of its repository", args)
		require.NoError(t, os.RemoveAll(to))
		got := runIn(t, nil, data, "", append([]string{"box", "history", "mine", "-o", "json"}, args...)...)
		assert.Contains(t, got.stdout, `"incomplete"`, args)
		if len(args) > 1 && args[1] == "--extract" {
			assert.Contains(t, got.stderr, "workspace/project: the bundle", "also where a program reads the answer")
		}
	}
	assert.FileExists(t, filepath.Join(to, "workspace/project/.git/HEAD"), "its repository is there as files")
}

// below tells everything below a directory but git's own.
func below(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(at string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		name, err := filepath.Rel(dir, at)
		require.NoError(t, err)
		info, err := entry.Info()
		require.NoError(t, err)
		switch {
		case entry.Name() == ".git" && entry.IsDir():
			return fs.SkipDir
		case entry.Name() == ".git", name == ".":
		case info.Mode()&fs.ModeSymlink != 0:
			out[name], err = os.Readlink(at)
			require.NoError(t, err)
		case entry.IsDir():
			out[name] = info.Mode().String()
		default:
			text, err := os.ReadFile(at)
			require.NoError(t, err)
			out[name] = info.Mode().String() + info.ModTime().UTC().Truncate(time.Second).String() + string(text)
		}
		return nil
	}))
	return out
}

func TestAWorkspaceIsTakenOutOfTheStore(t *testing.T) {
	t.Parallel()
	data, root := worked(t, nil)
	to := filepath.Join(t.TempDir(), "new", "place")
	got := runIn(t, nil, data, "", "box", "history", "mine", "--workspace", "--extract", to, "-o", "json")
	require.Equal(t, 0, got.code, got.stderr)
	var out struct {
		Files, Repositories, Epoch int
		Notes                      []string
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &out), got.stdout)
	assert.Equal(t, 2, out.Repositories)
	assert.Equal(t, 2, out.Epoch)
	assert.Empty(t, out.Notes)
	assert.Contains(t, got.stderr, "Owners are not in an export")
	require.Equal(t, below(t, root), below(t, to))
	for _, place := range []string{"workspace/project", "worktrees/w"} {
		a, b := filepath.Join(root, place), filepath.Join(to, place)
		assert.Equal(t, agentservertest.Git(t, a, "status", "--porcelain"), agentservertest.Git(t, b, "status", "--porcelain"), place)
		assert.Equal(t, agentservertest.Git(t, a, "rev-parse", "HEAD"), agentservertest.Git(t, b, "rev-parse", "HEAD"), place)
		assert.Equal(t, agentservertest.Git(t, a, "stash", "list"), agentservertest.Git(t, b, "stash", "list"), place)
		agentservertest.Git(t, b, "fsck", "--strict")
	}
	info, err := os.Stat(to)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o700), info.Mode().Perm(), "nobody else reads it")

	// What is there is not touched.
	before := below(t, to)
	again := runIn(t, nil, data, "", "box", "history", "mine", "--workspace", "--extract", to)
	assert.Equal(t, 4, again.code, again.stderr)
	assert.Equal(t, before, below(t, to))
}

func TestAPartOfAWorkspaceIsTakenOut(t *testing.T) {
	t.Parallel()
	data, _ := worked(t, nil)
	to := t.TempDir()
	got := runIn(t, nil, data, "", "box", "history", "mine", "--workspace", "--extract", to, "--only", "workspace/notes", "--only", "workspace/project/run.sh")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Equal(t, []string{"workspace", "workspace/notes", "workspace/notes/new\nline", "workspace/project", "workspace/project/run.sh"}, everything(t, to))
	// One name of a file with two, without the other.
	to = t.TempDir()
	got = runIn(t, nil, data, "", "box", "history", "mine", "--workspace", "--extract", to, "--only", "workspace/other-name")
	require.Equal(t, 0, got.code, got.stderr)
	text, err := os.ReadFile(filepath.Join(to, "workspace/other-name"))
	require.NoError(t, err)
	assert.Equal(t, "odd", string(text))
	to = t.TempDir()
	assert.Equal(t, 3, runIn(t, nil, data, "", "box", "history", "mine", "--workspace", "--extract", to, "--only", "workspace/nothing").code)
}

func TestRepositoriesAreBundlesWhenTheyAreToBe(t *testing.T) {
	t.Parallel()
	data, root := worked(t, nil)
	to := t.TempDir()
	got := runIn(t, nil, data, "", "box", "history", "mine", "--workspace", "--extract", to, "--raw")
	require.Equal(t, 0, got.code, got.stderr)
	clone := filepath.Join(t.TempDir(), "clone")
	agentservertest.Git(t, to, "clone", "-q", "--mirror", filepath.Join(to, "repositories/0001/bundle"), clone)
	assert.Equal(t, agentservertest.Git(t, filepath.Join(root, "workspace/project"), "rev-parse", "main", "refs/stash"), agentservertest.Git(t, clone, "rev-parse", "main", "refs/stash"))
	assert.FileExists(t, filepath.Join(to, "repositories/0001/staged.patch"))
	assert.NoDirExists(t, filepath.Join(to, "workspace/project/.git"))
}

// What the store lost or altered is left out and named, with its object; the rest
// is written.
func TestWhatIsDamagedInTheStoreIsLeftOut(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(string) error{
		"lost":    os.Remove,
		"altered": func(file string) error { return os.WriteFile(file, []byte("something else"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, _ := worked(t, func(t *testing.T, root, _ string) {
				t.Helper()
				lay(t, filepath.Join(root, "workspace/a-first"), "whole", 0o600)
				lay(t, filepath.Join(root, "workspace/b-large"), noise(1, 12<<20), 0o600)
			})
			chunks, err := filepath.Glob(filepath.Join(data, "exports/chunks/mine/*/*"))
			require.NoError(t, err)
			largest, size := "", int64(0)
			for _, file := range chunks {
				info, err := os.Stat(file)
				require.NoError(t, err)
				if info.Size() > size {
					largest, size = file, info.Size()
				}
			}
			require.Greater(t, len(chunks), 2)
			require.NoError(t, harm(largest))
			to := t.TempDir()
			got := runIn(t, nil, data, "", "box", "history", "mine", "--workspace", "--extract", to)
			require.Equal(t, 1, got.code, got.stderr)
			assert.Contains(t, got.stderr, filepath.Base(largest), "the object is named")
			assert.Contains(t, got.stdout, "workspace/b-large is damaged in the store and was left out")
			assert.NoFileExists(t, filepath.Join(to, "workspace/b-large"))
			verified := runIn(t, nil, data, "", "box", "history", "mine", "--verify", "-o", "json")
			assert.Equal(t, 1, verified.code)
			assert.Contains(t, verified.stdout, `"verified": false`)
		})
	}
}

func TestHistoryOfAWorkspaceRefusesWhatDoesNotGoTogether(t *testing.T) {
	t.Parallel()
	data, _ := worked(t, nil)
	to := filepath.Join(t.TempDir(), "to")
	for _, args := range [][]string{
		{talk, "--workspace"},
		{"--workspace", "--from", "1"},
		{"--workspace", "--extract", to, "--zip"},
		{"--workspace", "--extract", to, "--force"},
		{"--workspace", "--extract", to, "--files"},
		{"--workspace", "--extract", to, "--verify"},
		{"--workspace", "--files", "--verify"},
		{"--workspace", "--only", "workspace"},
		{"--workspace", "--raw"},
		{"--workspace", "--extract", to, "--raw", "--only", "workspace"},
		{"--workspace", "--epoch", "-1"},
		{"--epoch", "1"},
		{"--raw", "--extract", to},
	} {
		got := runIn(t, nil, data, "", append([]string{"box", "history", "mine"}, args...)...)
		assert.Equal(t, 2, got.code, "%v: %s", args, got.stderr)
		assert.Empty(t, got.stdout, args)
	}
	assert.NoDirExists(t, to)
}
