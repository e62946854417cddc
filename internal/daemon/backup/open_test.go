package backup_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/internal/daemon/backup"
)

// TestNothingStaysOpen is not parallel: it counts what the process has open.
func TestNothingStaysOpen(t *testing.T) { //nolint:paralleltest // see above
	data := newData(t)
	oddTree(t, data)
	file, _ := newBackup(t, data)
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	cut := filepath.Join(t.TempDir(), "cut")
	require.NoError(t, os.WriteFile(cut, whole[:len(whole)/2], 0o600))
	once := func() {
		at := t.TempDir()
		writable(t, at)
		_, err := backup.Create(t.Context(), filepath.Join(at, "x"), options(data))
		require.NoError(t, err)
		_, err = backup.Create(t.Context(), filepath.Join(at, "x"), options(data))
		require.Error(t, err)
		_, err = backup.Restore(t.Context(), file, target(filepath.Join(at, "d")))
		require.NoError(t, err)
		_, err = backup.Restore(t.Context(), cut, target(filepath.Join(at, "e")))
		require.Error(t, err)
	}
	once() // what is made once for ever
	open, running := openFiles(), runtime.NumGoroutine()
	for range 5 {
		once()
	}
	require.Eventually(t, func() bool { return openFiles() <= open && runtime.NumGoroutine() <= running+1 }, 10*time.Second, 10*time.Millisecond,
		"before: %d files and %d goroutines", open, running) // Eventually has one of its own
}

// openFiles counts descriptors where the system tells, else it is 0.
func openFiles() int {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(fds)
}

func TestOwnersComeBack(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to others")
	}
	const owner, group = 12345, 23456
	data := newData(t)
	require.NoError(t, os.Symlink("nowhere", filepath.Join(data, "exports", "link")))
	require.NoError(t, filepath.WalkDir(data, func(name string, _ fs.DirEntry, err error) error {
		require.NoError(t, err)
		return os.Lchown(name, owner, group)
	}))
	file, _ := newBackup(t, data)
	for name, empty := range map[string]bool{"new": false, "empty": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "d")
			if empty {
				require.NoError(t, os.Mkdir(dir, 0o700))
				require.NoError(t, os.Chown(dir, owner, group))
			}
			_, err := backup.Restore(t.Context(), file, target(dir))
			require.NoError(t, err)
			require.NoError(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
				require.NoError(t, err)
				info, err := d.Info()
				require.NoError(t, err)
				stat, ok := info.Sys().(*syscall.Stat_t)
				require.True(t, ok)
				require.Equal(t, [2]uint32{owner, group}, [2]uint32{stat.Uid, stat.Gid}, name)
				return nil
			}))
		})
	}
}
