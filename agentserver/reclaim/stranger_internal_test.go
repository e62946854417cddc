//go:build linux

package reclaim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// A rename goes by name. Killed right after it, a pass can't look any more at
// what it moved; the next start does, and puts back what is not the cache.
func TestWhatTookThePlaceOfACacheIsPutBackAfterACrash(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	cache := filepath.Join(root, "home/.npm/_cacache")
	for _, name := range []string{"index-v5/x", "content-v2/x"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(cache, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(cache, name), []byte("x"), 0o600))
	}
	r, err := Open(root, Options{})
	require.NoError(t, err)
	plan, err := r.plan(t.Context(), scope{tier: box.TierCaches})
	require.NoError(t, err)
	require.Empty(t, plan.Items[0].Skipped)
	plan.State = applying
	r.remember(plan)
	r.Close()
	// What another process put there in the last moment, moved instead.
	require.NoError(t, os.Rename(cache, filepath.Join(root, "aside")))
	moved := filepath.Join(root, trashName, trashEntry(plan.ID, 0))
	require.NoError(t, os.MkdirAll(moved, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(moved, "work"), []byte("precious"), 0o600))
	link := filepath.Join(root, trashName, trashEntry(plan.ID, 7)) // no such item: nobody's
	require.NoError(t, os.MkdirAll(link, 0o755))

	r, err = Open(root, Options{})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	r.working.Wait()
	content, err := os.ReadFile(filepath.Join(cache, "work"))
	require.NoError(t, err)
	require.Equal(t, "precious", string(content))
	require.NoDirExists(t, moved)
	require.NoDirExists(t, link)
}

// Another directory in the place of the trash is nobody's to empty.
func TestADirectoryInThePlaceOfTheTrashIsLeft(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r, err := Open(root, Options{})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	r.working.Wait()
	require.NoError(t, os.Rename(filepath.Join(root, trashName), filepath.Join(root, "aside")))
	require.NoError(t, os.MkdirAll(filepath.Join(root, trashName, "work"), 0o700))
	require.True(t, r.resume(map[string]string{}), "something is wrong, so it is looked at again")
	require.DirExists(t, filepath.Join(root, trashName, "work"))
}

// Our own files are written by path, so these must lead where they seem to.
func TestABoxWhoseOwnDirectoriesAreLinksIsRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{trashName, "run", journalName} {
		root := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(root, "other/reclaim"), 0o700))
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700))
		to := "other"
		if name == journalName {
			to = "../other"
		}
		require.NoError(t, os.Symlink(to, filepath.Join(root, name)))
		_, err := Open(root, Options{})
		require.ErrorContains(t, err, "must be no link", name)
	}
}
