//go:build linux

package scan

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// FuzzEntry feeds the reader of directory blocks what no kernel would send: it
// must end, stay inside the block, and give names that end where they say.
func FuzzEntry(f *testing.F) {
	dir := f.TempDir()
	for _, name := range []string{"a", ".hidden", "with\nnewline", "\xff\xfe", strings.Repeat("x", 255)} {
		require.NoError(f, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	require.NoError(f, err)
	defer unix.Close(fd)
	block := make([]byte, blockSize)
	n, err := read(fd, block)
	require.NoError(f, err)
	f.Add(slices.Clone(block[:n]))
	f.Add(slices.Clone(block[:n-1]))
	f.Add([]byte{})
	f.Add(make([]byte, direntHeader))
	f.Add(append(make([]byte, 16), 20, 0, 8, 'x')) // no NUL
	f.Fuzz(func(t *testing.T, block []byte) {
		whole := slices.Clone(block)
		taken := 0
		for rest := block; len(rest) > 0; {
			_, name, left, err := entry(rest)
			if err != nil {
				require.ErrorIs(t, err, unix.EBADMSG)
				break
			}
			require.Less(t, len(left), len(rest), "it goes on")
			require.NotEmpty(t, name)
			require.Zero(t, name[len(name)-1])
			require.NotContains(t, string(name[:len(name)-1]), "\x00")
			at := taken + direntHeader
			require.Equal(t, whole[at:at+len(name)], name, "the name lies in the block")
			if plain(name) {
				require.NotContains(t, string(name), "/")
				require.NotContains(t, []string{"\x00", ".\x00", "..\x00"}, string(name))
			}
			taken += len(rest) - len(left)
			rest = left
		}
		require.Equal(t, whole, block, "nothing is written")
	})
}

func TestABlockIsReadAsTheKernelWroteIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := []string{"a", "..b", "...", "tab\there", "new\nline", "\xff\xfe", "ünï", strings.Repeat("y", 255)}
	for _, name := range want {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	block := make([]byte, blockSize)
	n, err := read(fd, block)
	require.NoError(t, err)
	var got []string
	for rest := block[:n]; len(rest) > 0; {
		kind, name, left, err := entry(rest)
		require.NoError(t, err)
		if plain(name) {
			require.Contains(t, []byte{unix.DT_REG, unix.DT_UNKNOWN}, kind)
			got = append(got, string(name[:len(name)-1]))
		}
		rest = left
	}
	require.ElementsMatch(t, want, got)
}
