package putback_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/workspace"
	"github.com/openhands/boxkeeper/box"
)

func write(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(content), 0o644))
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
