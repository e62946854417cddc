//go:build linux

package reclaim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// Kernels and sandboxes without openat2 get the same answers from the slower way.
func TestTheFallBackRefusesWhatOpenat2Refuses(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "a/file"), []byte("x"), 0o600))
	require.NoError(t, os.Symlink("a", filepath.Join(root, "link")))
	fast, err := openTree(root)
	require.NoError(t, err)
	defer fast.close()
	if !fast.openat2 {
		t.Skip("this kernel has no openat2 to compare with")
	}
	slow, err := openTree(root)
	require.NoError(t, err)
	defer slow.close()
	slow.fallBack()
	require.NoError(t, slow.usable())
	for _, row := range []struct {
		name  string
		flags int
		want  error
	}{
		{"a/b", unix.O_RDONLY | unix.O_DIRECTORY, nil},
		{"a/file", unix.O_RDONLY, nil},
		{"a/file", unix.O_RDONLY | unix.O_DIRECTORY, unix.ENOTDIR},
		{"a/none", unix.O_RDONLY, unix.ENOENT},
		{"link/b", unix.O_RDONLY | unix.O_DIRECTORY, unix.ELOOP},
		{"a/../../x", unix.O_RDONLY, unix.EXDEV},
	} {
		for _, tree := range []*tree{fast, slow} {
			fd, err := tree.open(tree.fd, row.name, row.flags)
			if row.want == nil {
				require.NoError(t, err, row.name)
				unix.Close(fd)
				continue
			}
			require.ErrorIs(t, err, row.want, "%s openat2=%v", row.name, tree.openat2)
		}
	}
	if os.Getuid() != 0 {
		return
	}
	if err := unix.Mount(root, filepath.Join(root, "a/b"), "", unix.MS_BIND, ""); err != nil {
		t.Skip("this machine does not let us bind a mount: " + err.Error())
	}
	defer func() { _ = unix.Unmount(filepath.Join(root, "a/b"), unix.MNT_DETACH) }()
	require.NoError(t, unix.Mount(filepath.Join(root, "a/file"), filepath.Join(root, "a/file"), "", unix.MS_BIND, ""))
	defer func() { _ = unix.Unmount(filepath.Join(root, "a/file"), unix.MNT_DETACH) }()
	bare, err := openTree(root) // without statx too
	require.NoError(t, err)
	defer bare.close()
	bare.statx = false
	bare.fallBack()
	for _, tree := range []*tree{fast, slow, bare} {
		_, err = tree.open(tree.fd, "a/b", unix.O_RDONLY|unix.O_DIRECTORY)
		require.ErrorIs(t, err, unix.EXDEV)
		at, err := tree.open(tree.fd, "a", unix.O_RDONLY|unix.O_DIRECTORY)
		require.NoError(t, err)
		var st unix.Stat_t
		for _, name := range []string{"b", "file"} {
			_, err = tree.statAt(at, name, &st)
			require.ErrorIs(t, err, unix.EXDEV, "%s openat2=%v statx=%v", name, tree.openat2, tree.statx)
		}
		require.Equal(t, byte(unix.DT_DIR), tree.kindOf(at, dirEntry{name: "b"}))
		_, err = tree.parent(at, inode{1, 2})
		require.ErrorIs(t, err, unix.ESTALE, "another directory than the one that was left")
		unix.Close(at)
	}
}

func TestWithoutMountNumbersNothingIsDeleted(t *testing.T) {
	t.Parallel()
	r, err := Open(t.TempDir(), Options{})
	require.NoError(t, err)
	defer r.Close()
	r.working.Wait() // the sweep of the trash reads it
	r.tree.refusal = box.Errorf(box.ClassUnsupported, "test")
	_, err = r.Do(t.Context(), box.ReclaimRequest{})
	require.Equal(t, box.ClassUnsupported, box.ClassOf(err))
	selection, err := r.Select(t.Context())
	require.NoError(t, err)
	require.Len(t, selection.Errors, 1)
	require.False(t, r.Supported())
}

// Whoever tidies up the trash meanwhile does not delete what the pass that moved
// it has yet to look through.
func TestTheTrashIsNotTidiedBeforeItWasLookedThrough(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"home/.npm/_cacache/index-v5/x", "home/.npm/_cacache/content-v2/deep/x"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte("x"), 0o600))
	}
	var r *Reclaimer
	tidied := 0
	r, err := Open(root, Options{fault: func(step string) {
		if step == "proving" {
			require.True(t, r.resume(map[string]string{}), "something is left")
			tidied++
		}
	}})
	require.NoError(t, err)
	defer r.Close()
	r.working.Wait()
	plan, err := r.Do(t.Context(), box.ReclaimRequest{DryRun: true})
	require.NoError(t, err)
	late := filepath.Join(root, "home/.npm/_cacache/content-v2/deep/.env")
	require.NoError(t, os.WriteFile(late, []byte("x"), 0o600))
	report, err := r.Do(t.Context(), box.ReclaimRequest{PlanID: plan.PlanID})
	require.NoError(t, err)
	require.Equal(t, 1, tidied)
	require.Contains(t, report.Items[0].Skipped, "holds .env")
	require.FileExists(t, late)
}

// What a killed process had not looked through is looked through by the next.
func TestAfterACrashTheTrashIsLookedThroughFirst(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"home/.npm/_cacache/index-v5/x", "home/.npm/_cacache/content-v2/deep/x"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte("x"), 0o600))
	}
	r, err := Open(root, Options{})
	require.NoError(t, err)
	plan, err := r.plan(t.Context(), scope{tier: box.TierCaches})
	require.NoError(t, err)
	plan.State = applying
	r.remember(plan)
	r.Close()
	require.NoError(t, os.WriteFile(filepath.Join(root, "home/.npm/_cacache/content-v2/deep/.env"), []byte("x"), 0o600))
	require.NoError(t, os.Rename(filepath.Join(root, "home/.npm/_cacache"), filepath.Join(root, trashName, trashEntry(plan.ID, 0))))
	r, err = Open(root, Options{})
	require.NoError(t, err)
	defer r.Close()
	r.working.Wait()
	require.FileExists(t, filepath.Join(root, "home/.npm/_cacache/content-v2/deep/.env"), "it was put back")
}

// A pass that was cut off between the moves and the answer goes on when it is
// asked for again, and takes nothing that came since.
func TestACutOffPassGoesOn(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"home/.npm/_cacache/index-v5/x", "home/.npm/_cacache/content-v2/x", "home/.cache/go-build/00/x", "home/.cache/go-build/ff/x", "home/.cache/go-build/README"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte("x"), 0o600))
	}
	r, err := Open(root, Options{})
	require.NoError(t, err)
	plan, err := r.plan(t.Context(), scope{tier: box.TierCaches})
	require.NoError(t, err)
	plan.State = applying
	r.remember(plan)
	r.Close()
	// As left by a crash: the first item is in the trash, the other in its place.
	require.Equal(t, "home/.cache/go-build", plan.Items[0].Path)
	require.NoError(t, os.Rename(filepath.Join(root, "home/.cache/go-build"), filepath.Join(root, trashName, trashEntry(plan.ID, 0))))
	r, err = Open(root, Options{})
	require.NoError(t, err)
	defer r.Close()
	report, err := r.Do(t.Context(), box.ReclaimRequest{PlanID: plan.ID})
	require.NoError(t, err)
	for _, item := range report.Items {
		require.Empty(t, item.Skipped, item.Path)
	}
	entries, err := os.ReadDir(filepath.Join(root, trashName))
	require.NoError(t, err)
	require.Empty(t, entries)
	_, err = os.Lstat(filepath.Join(root, "home/.npm/_cacache"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
