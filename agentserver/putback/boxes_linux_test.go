package putback_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/workspace"
	"github.com/openhands/boxkeeper/box"
)

func do(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_EDITOR=true",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.invalid", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.invalid",
		"GIT_AUTHOR_DATE=2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z",
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "git %s: %s", strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

func write(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(content), 0o644))
}

func commit(t *testing.T, dir, content string) string {
	t.Helper()
	write(t, filepath.Join(dir, "a.txt"), content)
	do(t, dir, "add", "a.txt")
	do(t, dir, "commit", "-q", "-m", content)
	return do(t, dir, "rev-parse", "HEAD")
}

// newBox is a box with a clone whose remote has all of it.
func newBox(t *testing.T) (root, clone string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "box")
	remote := filepath.Join(t.TempDir(), "remote")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "workspace"), 0o755))
	require.NoError(t, os.MkdirAll(remote, 0o755))
	do(t, remote, "init", "-q", "-b", "main")
	write(t, filepath.Join(remote, ".gitignore"), ".env\nnode_modules/\nnested/\n")
	do(t, remote, "add", ".gitignore")
	commit(t, remote, "first\n")
	clone = filepath.Join(root, "workspace/project")
	do(t, root, "clone", "-q", remote, clone)
	return root, clone
}

func newWorkspace(t *testing.T, root string) *workspace.Workspace {
	t.Helper()
	git, err := repo.New(repo.Options{Scratch: []string{t.TempDir()}})
	require.NoError(t, err)
	return workspace.New(workspace.Options{Root: root, Dirs: []string{"workspace", "worktrees"}, Git: git})
}

func unsaved(t *testing.T, root string) box.Unsaved {
	t.Helper()
	out, err := newWorkspace(t, root).Unsaved(t.Context())
	require.NoError(t, err)
	return out
}

func export(t *testing.T, root string) ([]byte, box.Manifest) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, newWorkspace(t, root).Export(t.Context(), &out))
	manifest, err := agentserver.VerifyWorkspace(bytes.NewReader(out.Bytes()))
	require.NoError(t, err)
	return out.Bytes(), manifest
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
