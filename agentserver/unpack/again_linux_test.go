package unpack_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/unpack"
)

// A kill may come between the modes and the record of them. They are set again
// then, by somebody whom the outer ones keep out of the inner ones.
func TestModesAreSetAgainAfterAKill(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	if os.Geteuid() == 0 { // no mode keeps root out
		require.NoError(t, os.Chown(dir, nobody, nobody))
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		require.NoError(t, unix.Setfsuid(nobody))
		defer func() { require.NoError(t, unix.Setfsuid(0)) }()
	}
	d := unpack.In(root)
	require.NoError(t, d.Directory("a", 0o400))
	require.NoError(t, d.Directory("a/b", 0o500))
	for range 2 {
		require.NoError(t, unpack.Finish(root, d.Shut()))
	}
	info, err := root.Stat("a")
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o400, info.Mode())
	require.NoError(t, root.Chmod("a", 0o700)) // to be removed again
	info, err = root.Stat("a/b")
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o500, info.Mode())
}
