package putback_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

func mounted(t *testing.T, at, options string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a filesystem of its own needs root")
	}
	if err := unix.Mount("none", at, "tmpfs", 0, options); err != nil {
		t.Skip("no filesystem can be mounted here:", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// Nothing can be moved there as a whole. That is seen before anything is written,
// and is not taken for somebody's work.
func TestAPlaceOfWorkThatIsAFilesystemOfItsOwn(t *testing.T) {
	t.Parallel()
	old, _ := agentservertest.ClonedBox(t)
	archive, _ := export(t, old)
	tar, sum := tarOf(t, archive)
	root := freshBox(t)
	mounted(t, filepath.Join(root, "workspace"), "")
	_, _, err := taking(t, root).Restored(t.Context(), sum, int64(len(tar)))
	require.Equal(t, box.ClassUnsupported, box.ClassOf(err), err)
	_, _, err = taking(t, root).Restore(t.Context(), sum, int64(len(tar)), bytes.NewReader(tar))
	require.Equal(t, box.ClassUnsupported, box.ClassOf(err), err)
	require.ErrorContains(t, err, "workspace")
	untouched(t, root)
}

// Wherever the disk becomes full, that is what is said, and the box stays empty.
func TestADiskThatBecomesFullAnywhere(t *testing.T) {
	t.Parallel()
	old, clone := agentservertest.ClonedBox(t)
	write(t, filepath.Join(clone, "big"), string(bytes.Repeat([]byte("big\n"), 30_000)))
	agentservertest.Git(t, clone, "add", "big")
	agentservertest.Git(t, clone, "commit", "-q", "-m", "big")
	write(t, filepath.Join(clone, "a.txt"), "staged\n")
	agentservertest.Git(t, clone, "add", "a.txt")
	archive, _ := export(t, old)
	tar, sum := tarOf(t, archive)
	whole := 0
	for room := 120; whole < 2; room += 40 {
		require.Less(t, room, 2000, "it fits at last")
		at := t.TempDir()
		mounted(t, at, fmt.Sprintf("size=%dk", room))
		root := filepath.Join(at, "box")
		for _, dir := range []string{"workspace", "worktrees", "conversations", "run"} {
			require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		}
		// No length: what is free does not stop it at once.
		_, _, err := taking(t, root).Restore(t.Context(), sum, -1, bytes.NewReader(tar))
		if err != nil {
			require.Equal(t, box.ClassExhausted, box.ClassOf(err), "%d KiB: %v", room, err)
			untouched(t, root)
			continue
		}
		whole++
		require.Equal(t, agentservertest.Git(t, clone, "diff", "--cached"), agentservertest.Git(t, filepath.Join(root, "workspace/project"), "diff", "--cached"))
	}
}
