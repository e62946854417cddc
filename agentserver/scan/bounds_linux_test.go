package scan_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/scan"
)

func TestLinksAreNeverFollowed(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "big/file"), 1<<20)
	write(t, filepath.Join(root, "real/file"), 1000)
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "real/out")))
	require.NoError(t, os.Symlink("real", filepath.Join(root, "in")))
	s := scan.New(root, scan.Options{Now: later})
	for range 2 {
		got := walk(
			t, s, scan.Place{Path: "real", Estimate: true}, scan.Place{Path: "real/out/big", Label: 1, Estimate: true},
			scan.Place{Path: "in", Label: 2, Estimate: true},
		)
		require.Equal(t, measure(t, filepath.Join(root, "real")).Size, got.Sizes[0])
		require.Zero(t, got.Sizes[1])
		require.Zero(t, got.Sizes[2])
		require.Len(t, got.Faults, 1)
		require.Equal(t, "in", got.Faults[0].Path)
		require.Equal(t, []bool{false, false, true}, got.Partial)
	}
	// What was measured as itself must not be found again behind a link.
	require.NoError(t, os.MkdirAll(filepath.Join(root, "p/q"), 0o755))
	before := walk(t, s, scan.Place{Path: "p/q", Estimate: true})
	require.EqualValues(t, 1, before.Sizes[0].Dirs)
	require.NoError(t, os.Rename(filepath.Join(root, "p"), filepath.Join(root, "moved")))
	require.NoError(t, os.Symlink("moved", filepath.Join(root, "p")))
	after := walk(t, s, scan.Place{Path: "p/q", Estimate: true})
	require.Zero(t, after.Sizes[0])
	require.Len(t, after.Faults, 1)
}

func TestADirectoryThatCannotBeReadIsListed(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root reads every directory")
	}
	root := t.TempDir()
	write(t, filepath.Join(root, "open/file"), 1000)
	write(t, filepath.Join(root, "shut/file"), 1000)
	require.NoError(t, os.Chmod(filepath.Join(root, "shut"), 0))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "shut"), 0o700) })
	got := walk(t, scan.New(root, scan.Options{}), scan.Place{Path: "."})
	require.Equal(t, []bool{true}, got.Partial)
	require.Len(t, got.Faults, 1)
	require.Equal(t, "shut", got.Faults[0].Path)
	require.ErrorIs(t, got.Faults[0].Err, unix.EACCES)
	require.EqualValues(t, 3, got.Sizes[0].Dirs, "it takes space itself")
	require.EqualValues(t, 1, got.Sizes[0].Files)
}

func TestAMountInsideIsNotCrossed(t *testing.T) {
	t.Parallel()
	root, other := t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "tree/file"), 1000)
	write(t, filepath.Join(other, "big"), 1<<20)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "tree/bound"), 0o755))
	write(t, filepath.Join(root, "tree/bound-file"), 0)
	want := measure(t, filepath.Join(root, "tree"), filepath.Join(root, "tree/bound"))
	s := scan.New(root, scan.Options{Now: later})
	walk(t, s, scan.Place{Path: "tree", Estimate: true}) // remembers what lies below the mounts
	bind(t, other, filepath.Join(root, "tree/bound"))
	for _, estimate := range []bool{false, true} {
		got := walk(t, s, scan.Place{Path: "tree", Estimate: estimate}, scan.Place{Path: "tree/bound/x", Label: 1})
		require.Equal(t, want.Size, got.Sizes[0])
		require.Equal(t, "tree/bound", got.Faults[0].Path)
		require.ErrorContains(t, got.Faults[0].Err, "mounted")
		require.True(t, got.Partial[0])
	}
	// A directory that is mounted over itself has the same numbers and times.
	write(t, filepath.Join(root, "tree/itself/file"), 1000)
	walk(t, s, scan.Place{Path: "tree", Estimate: true})
	bind(t, filepath.Join(root, "tree/itself"), filepath.Join(root, "tree/itself"))
	itself := walk(t, s, scan.Place{Path: "tree", Estimate: true})
	require.Len(t, itself.Faults, 2)
	require.Equal(t, walk(t, s, scan.Place{Path: "tree"}).Sizes, itself.Sizes)
	bind(t, filepath.Join(other, "big"), filepath.Join(root, "tree/bound-file"))
	got := walk(t, s, scan.Place{Path: "tree"})
	require.Less(t, got.Sizes[0].Apparent, int64(1<<20), "a file of another mount")
	require.Len(t, got.Faults, 3)
}

// bind mounts one place over another, or skips the test.
func bind(t *testing.T, from, to string) {
	t.Helper()
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		t.Skip("this user cannot mount: " + err.Error())
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(to, unix.MNT_DETACH)) })
}

func TestDepthAndWidthAreBounded(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	const deep = 3000
	for i := range deep { // far longer than any path that can be opened at once
		name := fmt.Sprintf("level-%04d", i)
		require.NoError(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		unix.Close(at)
		at = next
		if i%100 == 0 {
			file, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
			require.NoError(t, err)
			unix.Close(file)
		}
	}
	unix.Close(at)
	for i := range 500 {
		require.NoError(t, os.Mkdir(filepath.Join(root, fmt.Sprintf("wide-%d", i)), 0o755))
	}
	s := scan.New(root, scan.Options{Now: later})
	for range 2 {
		got := walk(t, s, scan.Place{Path: ".", Estimate: true})
		require.Empty(t, got.Faults)
		require.EqualValues(t, 1+deep+500, got.Sizes[0].Dirs)
		require.EqualValues(t, deep/100, got.Sizes[0].Files)
	}
}
