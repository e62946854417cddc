package storage_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/storage"
)

// os.Root keeps a look-up in the box, and follows links there.
func TestScenario100AFileThatIsSwappedForALinkIsNotReadThroughIt(t *testing.T) {
	t.Parallel()
	dir, root := openBox(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("theirs"), []byte("theirs"), 0o600))
	require.NoError(t, os.WriteFile(at("name"), []byte("mine"), 0o600))
	over := make(chan struct{})
	require.NoError(t, os.Symlink("theirs", at("link")))
	swap := func() error {
		return unix.Renameat2(unix.AT_FDCWD, at("name"), unix.AT_FDCWD, at("link"), unix.RENAME_EXCHANGE)
	}
	require.NoError(t, errors.Join(swap(), swap()))
	var swapped error
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for swapped == nil {
			select {
			case <-over:
				return
			default:
				swapped = swap()
			}
		}
	})
	read := map[string]int{}
	for range 20_000 {
		if text, err := storage.ReadFile(root, "name", 100); err == nil {
			read[string(text)]++
		}
	}
	close(over)
	swapper.Wait()
	require.NoError(t, swapped)
	require.Positive(t, read["mine"])
	require.Zero(t, read["theirs"])
}
