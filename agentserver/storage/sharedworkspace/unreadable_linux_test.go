package sharedworkspace_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// unprivileged does something as a user to whom the modes of files apply.
func unprivileged(t *testing.T, do func()) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: this thread ends with its rights
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var rights [2]unix.CapUserData
		err := unix.Capget(&header, &rights[0])
		if err == nil {
			rights[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
			err = unix.Capset(&header, &rights[0])
		}
		if err == nil {
			do()
		}
		failed <- err
	}()
	require.NoError(t, <-failed)
}

// Unknown is not gone: what cannot be looked at is not called unknown.
func TestAConversationThatCannotBeReadIsNotCalledUnknown(t *testing.T) {
	t.Parallel()
	root, layout := newBox(t)
	id := idOf('a')
	converse(t, root, id, filepath.Join(root, "workspace/app"), time.Now())
	for _, dir := range []string{"conversations/" + id, "conversations"} {
		at := filepath.Join(root, dir)
		require.NoError(t, os.Chmod(at, 0))
		var err error
		unprivileged(t, func() { err = layout.Archive(t.Context(), id) })
		require.NoError(t, os.Chmod(at, 0o700))
		require.ErrorIs(t, err, os.ErrPermission, dir)
		require.NotEqual(t, box.ClassNotFound, box.ClassOf(err), dir)
		require.NoFileExists(t, filepath.Join(root, "persistence/runtime-control", id+".archived.json"))
	}
	require.NoError(t, layout.Archive(t.Context(), id))
	require.Equal(t, box.ClassNotFound, box.ClassOf(layout.Archive(t.Context(), idOf('b'))))
}
