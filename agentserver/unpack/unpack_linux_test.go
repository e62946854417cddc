package unpack_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/unpack"
	"github.com/openhands/boxkeeper/box"
)

var then = time.Unix(1_500_000_000, 0)

func below(t *testing.T) (dir string, root *os.Root, d *unpack.Dir) {
	t.Helper()
	dir = t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	return dir, root, unpack.In(root)
}

func put(t *testing.T, d *unpack.Dir, name, text string) error {
	t.Helper()
	f, err := d.File(name, 0o640, then)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(text))
	require.NoError(t, err)
	return f.Close()
}

func TestATreeIsWrittenAsToldOf(t *testing.T) {
	t.Parallel()
	dir, root, d := below(t)
	require.NoError(t, d.Directory("a", 0o750))
	require.NoError(t, d.Directory("a/shut", 0o500))
	require.NoError(t, put(t, d, "a/shut/inside", "inside"))
	require.NoError(t, put(t, d, "a/z", "zet"))
	require.NoError(t, d.Hardlink("a/zz", "a/z"))
	require.NoError(t, d.Link("b", "../../etc/passwd"))
	require.NoError(t, put(t, d, "untold/of/c", "c"))
	require.NoError(t, put(t, d, "\xff\n", "odd"))
	require.Len(t, d.Shut(), 1)
	for range 2 {
		require.NoError(t, unpack.Finish(root, d.Shut()))
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "a/shut"), 0o700) })
	mode := func(name string) fs.FileMode {
		info, err := os.Lstat(filepath.Join(dir, name))
		require.NoError(t, err)
		return info.Mode()
	}
	require.Equal(t, fs.ModeDir|0o750, mode("a"))
	require.Equal(t, fs.ModeDir|0o500, mode("a/shut"))
	require.Equal(t, fs.FileMode(0o640), mode("a/z"))
	require.Equal(t, fs.ModeDir|0o700, mode("untold/of"), "private, since nobody told of it")
	to, err := os.Readlink(filepath.Join(dir, "b"))
	require.NoError(t, err)
	require.Equal(t, "../../etc/passwd", to)
	one, err := os.Stat(filepath.Join(dir, "a/z"))
	require.NoError(t, err)
	two, err := os.Stat(filepath.Join(dir, "a/zz"))
	require.NoError(t, err)
	require.True(t, os.SameFile(one, two))
	require.Equal(t, then.Unix(), one.ModTime().Unix())
}

func TestNothingIsWrittenElsewhere(t *testing.T) {
	t.Parallel()
	dir, _, d := below(t)
	require.NoError(t, d.Link("link", ".."))
	require.NoError(t, put(t, d, "plain", "x"))
	for _, name := range []string{
		"", "/abs", "../a", "a/../../b", "a//b", "./a", "a/.", "a\x00b", ".git/config", "a/.git", "link/a", "plain/a", strings.Repeat("d/", 300) + "f",
	} {
		for what, err := range map[string]error{
			"a file": put(t, d, name, "x"), "a directory": d.Directory(name, 0o755), "a link": d.Link(name, "x"), "a hard link": d.Hardlink(name, "plain"),
		} {
			require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%s at %q: %v", what, name, err)
		}
	}
	for _, target := range []string{"../x", "/etc/passwd", "none", "link", "", ".git/x"} {
		require.Equal(t, box.ClassUnknown, box.ClassOf(d.Hardlink("hard", target)), target)
	}
	require.Equal(t, box.ClassUnknown, box.ClassOf(d.Link("empty", "")))
	list, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Len(t, list, 1)
	list, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 2)
}

func TestWhatIsThereStays(t *testing.T) {
	t.Parallel()
	dir, _, d := below(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("theirs"), 0o600))
	for _, err := range []error{put(t, d, "a", "x"), d.Directory("a", 0o755), d.Link("a", "x")} {
		require.Equal(t, box.ClassAlreadyExists, box.ClassOf(err), err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "a"))
	require.NoError(t, err)
	require.Equal(t, "theirs", string(text))
}

// Whatever pieces a content comes in, it is the same, and blocks of zeros take no
// room.
func TestHolesStayHoles(t *testing.T) {
	t.Parallel()
	content := make([]byte, 300_000)
	copy(content[100_000:], "in the middle")
	content[250_001] = 1
	for _, piece := range []int{1 << 20, 64 << 10, 4096, 1000, 4097} {
		dir, _, d := below(t)
		f, err := d.File("f", 0o600, then)
		require.NoError(t, err)
		for rest := content; len(rest) > 0; {
			n, err := f.Write(rest[:min(piece, len(rest))])
			require.NoError(t, err)
			rest = rest[n:]
		}
		require.NoError(t, f.Close())
		got, err := os.ReadFile(filepath.Join(dir, "f"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, got), "in pieces of %d", piece)
		if piece < 4096 {
			continue
		}
		var st syscall.Stat_t
		require.NoError(t, syscall.Stat(filepath.Join(dir, "f"), &st))
		require.Less(t, st.Blocks*512, int64(100_000), "in pieces of %d", piece)
	}
}
