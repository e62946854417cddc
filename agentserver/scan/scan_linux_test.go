package scan_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/scan"
	"github.com/openhands/boxkeeper/box"
)

// naive measures a tree in the plainest way.
type naive struct {
	scan.Size
	links map[uint64]*naiveLink
	alone int64
}

type naiveLink struct {
	bytes       int64
	nlink, seen uint64
}

func measure(t *testing.T, root string, skip ...string) *naive {
	t.Helper()
	out := &naive{links: map[uint64]*naiveLink{}}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if slices.Contains(skip, path) {
			return filepath.SkipDir
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if entry.IsDir() {
			out.Dirs++
		} else {
			out.Files++
		}
		if !entry.IsDir() && st.Nlink > 1 {
			if known := out.links[st.Ino]; known != nil {
				known.seen++
				return nil
			}
			out.links[st.Ino] = &naiveLink{st.Blocks * 512, uint64(st.Nlink), 1} //nolint:unconvert // the width differs between architectures
		} else {
			out.alone += st.Blocks * 512
		}
		out.Allocated += st.Blocks * 512
		out.Apparent += st.Size
		out.Inodes++
		return nil
	}))
	return out
}

func (n *naive) freed() int64 {
	sum := n.alone
	for _, l := range n.links {
		if l.seen >= l.nlink {
			sum += l.bytes
		}
	}
	return sum
}

func walk(t testing.TB, s *scan.Scanner, places ...scan.Place) scan.Result {
	t.Helper()
	result, err := s.Walk(t.Context(), places)
	require.NoError(t, err)
	return result
}

func write(t *testing.T, name string, size int) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, make([]byte, size), 0o600))
}

func TestATreeIsMeasuredLikeThePlainestWayDoes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for i := range 300 {
		write(t, filepath.Join(root, fmt.Sprintf("d%d/e%d/f%d", i%7, i%31, i)), i*37)
	}
	for _, odd := range []string{"new\nline", "tab\there", "\xff\xfe", "...", "..x", strings.Repeat("n", 255), "space ", "-rf"} {
		write(t, filepath.Join(root, "odd", odd, odd), 100)
	}
	require.NoError(t, os.Symlink("/etc", filepath.Join(root, "link-to-a-directory")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(root, "dangling")))
	require.NoError(t, unix.Mkfifo(filepath.Join(root, "pipe"), 0o600))
	sparse, err := os.Create(filepath.Join(root, "sparse"))
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(10<<30))
	require.NoError(t, sparse.Close())
	want := measure(t, root)
	require.Less(t, want.Allocated, int64(10<<20))
	require.Greater(t, want.Apparent, int64(10<<30))
	for _, workers := range []int{1, 2, 16} {
		s := scan.New(root, scan.Options{Workers: workers})
		got := walk(t, s, scan.Place{Path: "."})
		require.Equal(t, want.Size, got.Sizes[0], "%d workers", workers)
		require.Empty(t, got.Faults)
		require.Equal(t, []bool{false}, got.Partial)
		bytes, inodes := got.Freed(0)
		require.Equal(t, want.Allocated, bytes)
		require.Equal(t, want.Inodes, inodes)
	}
}

func TestHardLinksCountOnceAndFreeWithTheLastName(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"uv/a", "uv/b", "uv/c", "outside/keep"} {
		write(t, filepath.Join(root, name), 40_000)
	}
	link := func(from, to string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, to)), 0o755))
		require.NoError(t, os.Link(filepath.Join(root, from), filepath.Join(root, to)))
	}
	link("uv/a", "venv1/a")
	link("uv/a", "venv2/a")
	link("uv/b", "venv1/b")
	link("outside/keep", "venv2/kept")
	link("uv/c", "uv/c2")
	s := scan.New(root, scan.Options{})
	got := walk(t, s, scan.Place{Path: "venv1", Label: 2}, scan.Place{Path: "uv", Label: 1}, scan.Place{Path: "venv2", Label: 3})
	block := measure(t, filepath.Join(root, "outside")).links
	require.Len(t, block, 1)
	var file int64
	for _, one := range block {
		file = one.bytes
	}
	dir := func(name string) int64 {
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(filepath.Join(root, name), &st))
		return st.Blocks * 512
	}
	require.Equal(t, 3*file+dir("uv"), got.Sizes[1].Allocated)
	require.Equal(t, dir("venv1"), got.Sizes[2].Allocated, "its files are counted with the cache")
	require.Equal(t, file+dir("venv2"), got.Sizes[3].Allocated)
	for _, row := range []struct {
		labels []int
		files  int64
		dirs   []string
	}{
		{[]int{1}, 1, []string{"uv"}}, // c alone has all its names there
		{[]int{2}, 0, []string{"venv1"}},
		{[]int{3}, 0, []string{"venv2"}},
		{[]int{1, 2}, 2, []string{"uv", "venv1"}},
		{[]int{2, 3}, 0, []string{"venv1", "venv2"}},
		{[]int{1, 2, 3}, 3, []string{"uv", "venv1", "venv2"}}, // one is kept outside
		{[]int{1, 1, 2, 3, 2}, 3, []string{"uv", "venv1", "venv2"}},
		{nil, 0, nil},
	} {
		want := row.files * file
		for _, name := range row.dirs {
			want += dir(name)
		}
		bytes, inodes := got.Freed(row.labels...)
		require.Equal(t, want, bytes, "%v", row.labels)
		require.Equal(t, row.files+int64(len(row.dirs)), inodes, "%v", row.labels)
	}
}

func TestAPlaceInsideAnotherIsTakenOutOfIt(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "home/work/a"), 5000)
	write(t, filepath.Join(root, "home/work/node_modules/x/b"), 9000)
	write(t, filepath.Join(root, "home/work/node_modules/.cache/c"), 17_000)
	write(t, filepath.Join(root, "home/.cache/uv/d"), 33_000)
	write(t, filepath.Join(root, "homely/e"), 65_000)
	at := func(name string, skip ...string) scan.Size {
		for i := range skip {
			skip[i] = filepath.Join(root, skip[i])
		}
		return measure(t, filepath.Join(root, name), skip...).Size
	}
	s := scan.New(root, scan.Options{})
	got := walk(
		t, s, scan.Place{Path: "home/work/node_modules/.cache", Label: 3}, scan.Place{Path: "home", Label: 0},
		scan.Place{Path: "home/work/node_modules", Label: 2}, scan.Place{Path: "home/.cache/uv", Label: 1},
		scan.Place{Path: "gone", Label: 4}, scan.Place{Path: "homely/e", Label: 5},
	)
	require.Equal(t, []scan.Size{
		at("home", "home/work/node_modules", "home/.cache/uv"), at("home/.cache/uv"),
		at("home/work/node_modules", "home/work/node_modules/.cache"), at("home/work/node_modules/.cache"),
		{},
		{},
	}, got.Sizes)
	require.Empty(t, got.Faults)
	whole := walk(t, s, scan.Place{Path: "home", Label: 1}, scan.Place{Path: ".", Label: 0})
	require.Equal(t, []scan.Size{at(".", "home"), at("home")}, whole.Sizes)
}

func TestBadPlacesAreRefused(t *testing.T) {
	t.Parallel()
	s := scan.New(t.TempDir(), scan.Options{})
	for _, place := range []scan.Place{{Path: ""}, {Path: "/etc"}, {Path: ".."}, {Path: "../x"}, {Path: "a/../.."}, {Path: "a//b"}, {Path: "a/"}, {Path: "x", Label: -1}, {Path: "x", Watch: 1}} {
		_, err := s.Walk(t.Context(), []scan.Place{place})
		require.Equal(t, box.ClassInvalid, box.ClassOf(err), "%+v", place)
	}
	require.Empty(t, walk(t, s).Sizes)
}

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
	bind(t, filepath.Join(other, "big"), filepath.Join(root, "tree/bound-file"))
	got := walk(t, s, scan.Place{Path: "tree"})
	require.Less(t, got.Sizes[0].Apparent, int64(1<<20), "a file of another mount")
	require.Len(t, got.Faults, 2)
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

func TestACanceledWalkEnds(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "a/b"), 10)
	s := scan.New(root, scan.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller has gone")
	cancel(gone)
	_, err := s.Walk(ctx, []scan.Place{{Path: "."}})
	require.Equal(t, box.ClassCanceled, box.ClassOf(err))
	require.ErrorIs(t, err, gone)
	require.EqualValues(t, 1, walk(t, s, scan.Place{Path: "."}).Sizes[0].Files, "the next one is not harmed")
}

func TestNamesAreWatchedFor(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"a/x/.env", "a/y/.git/config", "b/.env", "c/plain"} {
		write(t, filepath.Join(root, name), 10)
	}
	s := scan.New(root, scan.Options{Now: later, Watch: []func([]byte) bool{func(name []byte) bool { return string(name) == ".env" || string(name) == ".git" }}})
	for range 2 {
		got := walk(
			t, s, scan.Place{Path: "a", Label: 0, Watch: 1, Estimate: true}, scan.Place{Path: "b", Label: 1, Estimate: true},
			scan.Place{Path: "c", Label: 2, Watch: 1, Estimate: true},
		)
		require.Equal(t, []string{".env", "", ""}, got.Watched)
	}
	got := walk(t, s, scan.Place{Path: "b", Watch: 1, Estimate: true})
	require.Equal(t, []string{".env"}, got.Watched, "what was remembered without a watch is looked at again")
}

func TestATreeThatVanishesMeanwhileIsNoFault(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := scan.New(root, scan.Options{})
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			for j := range 20 {
				dir := filepath.Join(root, fmt.Sprintf("t%d", i%3), fmt.Sprintf("d%d", j))
				if err := os.MkdirAll(dir, 0o755); err != nil {
					ended <- err
					return
				}
				if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
					ended <- err
					return
				}
			}
			if err := os.RemoveAll(filepath.Join(root, fmt.Sprintf("t%d", (i+1)%3))); err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 50 {
		got := walk(t, s, scan.Place{Path: ".", Estimate: true})
		require.Empty(t, got.Faults)
	}
	close(stop)
	require.NoError(t, <-ended)
}
