package repo_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Git knows where a pack ends and does not wait for the end of what it reads. A
// bundle is whole then, however late that end is, as with a store whose next chunk
// takes a while.
func TestABundleWhoseEndIsLateIsWhole(t *testing.T) {
	t.Parallel()
	from := newRepo(t)
	place := filepath.Join(t.TempDir(), "bundle")
	do(t, from, "bundle", "create", "-q", place, "--all")
	bundle, err := os.ReadFile(place)
	require.NoError(t, err)
	in, out := io.Pipe()
	go func() {
		_, _ = out.Write(bundle)
		// Longer than is waited for the input of a program that has ended.
		time.Sleep(2500 * time.Millisecond)
		_ = out.Close()
	}()
	refs, err := newGit(t).Unbundle(t.Context(), filepath.Join(t.TempDir(), "late"), in)
	require.NoError(t, err)
	require.NotEmpty(t, refs)
}
