package storage_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/storage"
)

func openBox(t *testing.T) (dir string, root *os.Root) {
	t.Helper()
	dir = t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	return dir, root
}

func TestOnlyPlainFilesAreRead(t *testing.T) {
	t.Parallel()
	dir, root := openBox(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("plain"), []byte("mine"), 0o600))
	require.NoError(t, os.Symlink("plain", at("link")))
	require.NoError(t, os.Mkdir(at("directory"), 0o700))
	require.NoError(t, syscall.Mkfifo(at("pipe"), 0o600))
	text, err := storage.ReadFile(root, "plain", 4)
	require.NoError(t, err)
	require.Equal(t, "mine", string(text))
	_, err = storage.ReadFile(root, "plain", 3)
	require.ErrorContains(t, err, "larger than 3 bytes")
	for _, name := range []string{"link", "directory", "pipe"} {
		_, err = storage.ReadFile(root, name, 4)
		require.ErrorContains(t, err, "no plain file", name)
	}
	_, err = storage.ReadFile(root, "none", 4)
	require.ErrorIs(t, err, os.ErrNotExist)
}
