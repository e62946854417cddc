package exports_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/exports"
)

func lay(t *testing.T, name, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
}

// TestScenario80WorkThatNobodyPushedComesBack exports a box through boxd and
// brings everything back out of the store alone: what was pushed nowhere, a
// stash, a detached head, what was staged, changed and never added.
func TestScenario80WorkThatNobodyPushedComesBack(t *testing.T) {
	t.Parallel()
	server, err := agentservertest.Start(agentservertest.Options{Root: filepath.Join(t.TempDir(), "box")})
	require.NoError(t, err)
	end := sync.OnceFunc(server.Close)
	defer end()
	client, err := agentserver.New(agentserver.Options{URL: server.URL})
	require.NoError(t, err)
	defer client.Close()
	info, err := client.Info(t.Context())
	require.NoError(t, err)
	require.True(t, info.Has(agentserver.CapabilityExport))
	_, err = agentservertest.WriteConversation(server.Conversations(), agentservertest.Conversation{Title: "t"})
	require.NoError(t, err)

	remote, clone := filepath.Join(t.TempDir(), "remote"), filepath.Join(server.Root, "workspace/project")
	require.NoError(t, os.MkdirAll(remote, 0o755))
	agentservertest.Git(t, remote, "init", "-q", "-b", "main")
	lay(t, filepath.Join(remote, "a.txt"), "first\n")
	agentservertest.Git(t, remote, "add", "a.txt")
	agentservertest.Git(t, remote, "commit", "-q", "-m", "first")
	require.NoError(t, os.MkdirAll(filepath.Dir(clone), 0o755))
	agentservertest.Git(t, filepath.Dir(clone), "clone", "-q", remote, clone)
	lay(t, filepath.Join(clone, "a.txt"), "never pushed\n")
	agentservertest.Git(t, clone, "commit", "-q", "-am", "never pushed")
	unpushed := agentservertest.Git(t, clone, "rev-parse", "HEAD")
	agentservertest.Git(t, clone, "checkout", "-q", "-b", "idea")
	lay(t, filepath.Join(clone, "a.txt"), "an idea\n")
	agentservertest.Git(t, clone, "commit", "-q", "-am", "an idea")
	lay(t, filepath.Join(clone, "a.txt"), "put aside\n")
	agentservertest.Git(t, clone, "stash")
	stash := agentservertest.Git(t, clone, "rev-parse", "refs/stash")
	agentservertest.Git(t, clone, "checkout", "-q", "--detach")
	lay(t, filepath.Join(clone, "a.txt"), "on no branch\n")
	agentservertest.Git(t, clone, "commit", "-q", "-am", "on no branch")
	detached := agentservertest.Git(t, clone, "rev-parse", "HEAD")
	lay(t, filepath.Join(clone, "staged.txt"), "staged\n")
	agentservertest.Git(t, clone, "add", "staged.txt")
	lay(t, filepath.Join(clone, "a.txt"), "changed and not staged\n")
	lay(t, filepath.Join(clone, "notes/plan.md"), "never added\n")
	lay(t, filepath.Join(clone, "large.bin"), noise(8, 9<<20))

	dir := t.TempDir()
	s, err := exports.OpenWith(t.Context(), "file://"+dir, exports.Options{SpoolDir: t.TempDir()})
	require.NoError(t, err)
	receipt, err := s.Export(t.Context(), request("a"), agentserver.History{Client: client}, nil)
	require.NoError(t, err)
	require.Zero(t, receipt.Archive.Missing)
	require.Equal(t, 1, receipt.Archive.Repositories)

	// The same tree is the same bytes: nothing is written again.
	require.NoError(t, s.Close())
	before := filesBelow(t, dir)
	s, err = exports.OpenWith(t.Context(), "file://"+dir, exports.Options{SpoolDir: t.TempDir()})
	require.NoError(t, err)
	req := request("b")
	req.Previous = receipt
	second, err := s.Export(t.Context(), req, agentserver.History{Client: client}, nil)
	require.NoError(t, err)
	require.Equal(t, receipt.Archive, second.Archive)
	fresh := slices.DeleteFunc(filesBelow(t, dir), func(name string) bool { return slices.Contains(before, name) })
	require.Equal(t, []string{"exports/ws/0001/b/manifest.json", "exports/ws/0001/b/secrets.json", "exports/ws/0001/b/workspace.json.zst"}, fresh)
	require.NoError(t, s.Close())

	// The box is gone.
	end()
	require.NoError(t, os.RemoveAll(server.Root))
	s, err = exports.OpenWith(t.Context(), "file://"+dir, exports.Options{SpoolDir: t.TempDir()})
	require.NoError(t, err)
	defer s.Close() //nolint:errcheck // a test's
	_, err = s.Verify(t.Context(), "ws", receipt)
	require.NoError(t, err)
	r, err := s.Workspace(t.Context(), "ws", receipt)
	require.NoError(t, err)
	m, err := r.Manifest(t.Context())
	require.NoError(t, err)
	one := m.Repositories[0]

	back := t.TempDir()
	bundle := filepath.Join(back, "bundle")
	read := func(name, to string) {
		t.Helper()
		f, err := r.Open(t.Context(), name)
		require.NoError(t, err)
		out, err := os.Create(to)
		require.NoError(t, err)
		_, err = io.Copy(out, f)
		require.NoError(t, err)
		require.NoError(t, out.Close())
		require.NoError(t, f.Close())
	}
	read(one.Bundle.Name, bundle)
	tree := filepath.Join(back, "project")
	agentservertest.Git(t, back, "clone", "-q", "--mirror", bundle, filepath.Join(tree, ".git"))
	agentservertest.Git(t, filepath.Join(tree, ".git"), "bundle", "verify", bundle)
	agentservertest.Git(t, filepath.Join(tree, ".git"), "config", "core.bare", "false")
	for _, commit := range []string{unpushed, stash, detached} {
		agentservertest.Git(t, tree, "cat-file", "-e", commit+"^{commit}")
	}
	require.Equal(t, unpushed, agentservertest.Git(t, tree, "rev-parse", "refs/heads/main"))
	require.Equal(t, stash, agentservertest.Git(t, tree, "rev-parse", "refs/stash"))
	require.Equal(t, detached, one.Head)
	for entry, err := range r.Entries(t.Context()) {
		require.NoError(t, err)
		name, in := strings.CutPrefix(entry.Name, "files/workspace/project/")
		if !in || entry.Type != "file" {
			continue
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o755))
		read(entry.Name, filepath.Join(tree, name))
	}
	agentservertest.Git(t, tree, "update-ref", "--no-deref", "HEAD", one.Head)
	agentservertest.Git(t, tree, "reset", "-q")
	staged := filepath.Join(back, "staged")
	read(one.Staged.Name, staged)
	agentservertest.Git(t, tree, "apply", "--cached", staged)
	require.Equal(t, "M a.txt\nA  staged.txt\n?? large.bin\n?? notes/", agentservertest.Git(t, tree, "status", "--porcelain"))
	text, err := os.ReadFile(filepath.Join(tree, "notes/plan.md"))
	require.NoError(t, err)
	require.Equal(t, "never added\n", string(text))
	text, err = os.ReadFile(filepath.Join(tree, "large.bin"))
	require.NoError(t, err)
	require.Equal(t, noise(8, 9<<20), string(text))
	require.Contains(t, agentservertest.Git(t, tree, "stash", "show", "-p", stash), "+put aside")
}

func filesBelow(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	require.NoError(t, filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			name, err = filepath.Rel(dir, name)
			out = append(out, filepath.ToSlash(name))
		}
		return err
	}))
	return out
}
