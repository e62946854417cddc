package backup

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// compressed writes what write writes, compressed.
func compressed(t *testing.T, write func(w io.Writer)) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x")
	out, err := os.Create(file)
	require.NoError(t, err)
	z, err := zstd.NewWriter(out)
	require.NoError(t, err)
	write(z)
	require.NoError(t, z.Close())
	require.NoError(t, out.Close())
	return file
}

// start writes what every archive begins with.
func start(t *testing.T, w io.Writer) *tar.Writer {
	t.Helper()
	tw := tar.NewWriter(w)
	text, err := jsonLine(goodHead())
	require.NoError(t, err)
	for _, h := range []*tar.Header{{Name: headName, Typeflag: tar.TypeReg, Size: int64(len(text))}, {Name: "data", Typeflag: tar.TypeDir, Mode: 0o700}} {
		require.NoError(t, tw.WriteHeader(h))
		if h.Size > 0 {
			_, err = tw.Write(text)
			require.NoError(t, err)
		}
	}
	return tw
}

func TestHugeClaims(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		header tar.Header
		text   string
	}{
		"more than any disk holds": {tar.Header{Size: 1 << 62}, "claims"},
		"more than there is":       {tar.Header{Size: 1 << 40}, "cut off"},
		"holes as tar writes them": {tar.Header{Size: 8, PAXRecords: map[string]string{"BOXKEEPER.other": "1"}}, "has the extension"},
		"a directory with content": {tar.Header{Typeflag: tar.TypeDir, Name: "data/x"}, "cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, compressed(t, func(w io.Writer) {
				tw := start(t, w)
				h := tt.header
				if h.Name == "" {
					h.Name, h.Typeflag = "data/x", tar.TypeReg
				}
				h.Format = tar.FormatPAX
				require.NoError(t, tw.WriteHeader(&h)) // and not a byte of it
			}), tt.text)
		})
	}
	// Sparse files are what makes a few bytes into terabytes.
	for _, key := range []string{"GNU.sparse.major", "GNU.sparse.realsize", "GNU.sparse.name"} {
		_, err := entryOf(&tar.Header{Name: "data/x", Typeflag: tar.TypeReg, PAXRecords: map[string]string{key: "1"}})
		require.ErrorContains(t, err, "has the extension")
	}
	_, err := entryOf(&tar.Header{Name: "data/x", Typeflag: tar.TypeGNUSparse, Size: 1})
	require.ErrorContains(t, err, "of a type")
	// A line of a manifest that never ends takes no memory.
	refused(t, compressed(t, func(w io.Writer) {
		tw := start(t, w)
		require.NoError(t, tw.WriteHeader(&tar.Header{Name: "data/engine", Typeflag: tar.TypeDir, Mode: 0o700, Format: tar.FormatPAX}))
		require.NoError(t, tw.WriteHeader(&tar.Header{Name: "data/" + dataFile, Typeflag: tar.TypeReg, Format: tar.FormatPAX}))
		require.NoError(t, tw.WriteHeader(&tar.Header{Name: manifestName, Typeflag: tar.TypeReg, Size: 1 << 30, Format: tar.FormatPAX}))
		_, err := io.CopyN(tw, zeros{}, 1<<30)
		require.NoError(t, err)
		require.NoError(t, tw.Close())
	}), "cannot be used")
}

func TestRoomIsLookedForFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, roomFor(dir, 1))
	err := roomFor(dir, 1<<62)
	require.Equal(t, box.ClassExhausted, box.ClassOf(err))
	require.ErrorContains(t, err, "data: the backup needs 4.0 EiB and "+dir+" has room for ")
}

// TestMovingIntoADirectoryIsMarked looks at what a crash between two moves
// leaves: the engine is there with the mark that keeps it from starting.
func TestMovingIntoADirectoryIsMarked(t *testing.T) {
	t.Parallel()
	data, target := t.TempDir(), t.TempDir()
	for _, name := range []string{"engine/temporal.db", "a/f", "z"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(data, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(data, name), []byte("x"), 0o600))
	}
	// A crash has no undo: the state is looked at where the last move fails.
	require.NoError(t, os.WriteFile(filepath.Join(target, "z"), []byte("mine"), 0o600))
	var atCrash []string
	err := moveAll(data, target, "the/backup", func(string) {
		left, err := os.ReadDir(target)
		require.NoError(t, err)
		for _, e := range left {
			atCrash = append(atCrash, e.Name())
		}
		marked, err := os.ReadFile(filepath.Join(target, restoringFile))
		require.NoError(t, err)
		require.Equal(t, "the/backup\n", string(marked))
	})
	require.Equal(t, box.ClassConflict, box.ClassOf(err), "%v", err)
	require.Equal(t, []string{"engine", "z", "a", "engine", "z"}, atCrash)
	left, err := os.ReadDir(target)
	require.NoError(t, err)
	require.Len(t, left, 1, "what was moved did not go back")
	require.NoError(t, os.Remove(filepath.Join(target, "z")))
	require.NoError(t, moveInto(data, target, "the/backup"))
	for _, name := range []string{"engine/temporal.db", "a/f", "z"} {
		require.FileExists(t, filepath.Join(target, name))
	}
	require.NoFileExists(t, filepath.Join(target, restoringFile))
}

func TestModesComeBack(t *testing.T) {
	t.Parallel()
	for bits := range int64(0o10000) {
		require.Equal(t, bits, unixMode(fileMode(bits)))
	}
	require.Equal(t, fs.ModeSticky|0o777, fileMode(0o1777))
}

func FuzzRelOf(f *testing.F) {
	for _, name := range []string{"data", "data/a/b", "data/../x", "/data", "data//x", "data/.", "data/\xff/..", "data/a\x00b"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		rel, err := relOf(name)
		if err != nil {
			return
		}
		if rel != "" && (!filepath.IsLocal(rel) || filepath.Clean(rel) != rel || strings.ContainsRune(rel, 0)) {
			t.Fatalf("%q became %q", name, rel)
		}
	})
}
