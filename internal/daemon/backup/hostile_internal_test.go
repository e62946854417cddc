package backup

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// forger writes archives with the means of this package, and beside them.
type forger struct {
	*archive
	t *testing.T
}

func (f forger) dir(rel string) { f.add(entry{rel: rel, kind: tar.TypeDir, mode: 0o700}) }

func (f forger) add(e entry) {
	f.t.Helper()
	e.modified = time.Unix(1, 0)
	require.NoError(f.t, f.archive.add(e))
}

func (f forger) file(rel, text string) {
	f.t.Helper()
	e := entry{rel: rel, kind: tar.TypeReg, mode: 0o600, size: int64(len(text)), modified: time.Unix(1, 0)}
	require.NoError(f.t, f.archive.file(e, strings.NewReader(text)))
}

// raw writes a header as it is, with as many bytes as it says, and a line in
// the manifest that goes with it.
func (f forger) raw(h tar.Header) {
	f.t.Helper()
	h.Mode, h.Format = 0o600, tar.FormatPAX
	require.NoError(f.t, f.tar.WriteHeader(&h))
	if h.Typeflag == tar.TypeReg {
		_, err := io.CopyN(f.tar, zeros{}, h.Size)
		require.NoError(f.t, err)
	}
	require.NoError(f.t, f.record(entry{rel: strings.TrimPrefix(h.Name, dataName+"/"), kind: h.Typeflag, target: h.Linkname, size: h.Size}, ""))
}

// forge writes an archive that would be a whole backup but for what forge adds.
func forge(t *testing.T, h head, start, add func(f forger)) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "forged")
	out, err := os.Create(file)
	require.NoError(t, err)
	spool, err := os.Create(file + ".manifest")
	require.NoError(t, err)
	a, err := newArchive(t.Context(), out, spool, h, func(Progress) {})
	require.NoError(t, err)
	defer a.close()
	f := forger{archive: a, t: t}
	start(f)
	add(f)
	require.NoError(t, a.end())
	require.NoError(t, out.Close())
	require.NoError(t, spool.Close())
	return file
}

func goodHead() head { return head{Format: formatName, Version: formatVersion} }

func goodStart(f forger) {
	f.dir("")
	f.dir("engine")
	f.file(dataFile, "the engine's")
}

func restoreInto(t *testing.T, file string) (dir string, err error) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "below", "d")
	require.NoError(t, os.Mkdir(filepath.Dir(dir), 0o700))
	_, err = Restore(t.Context(), file, Target{DataDir: dir, PutDataFile: func(_ context.Context, src, dataDir string) error {
		return os.Rename(src, filepath.Join(dataDir, dataFile))
	}})
	return dir, err
}

// TestAForgedBackupThatIsRight is what makes the refusals below worth
// something: the same archive without what they are about is taken.
func TestAForgedBackupThatIsRight(t *testing.T) {
	t.Parallel()
	file := forge(t, goodHead(), goodStart, func(f forger) {
		f.dir("a")
		f.add(entry{rel: "a/link", kind: tar.TypeSymlink, target: "/etc"})
		f.add(entry{rel: "b", kind: tar.TypeSymlink, target: "a"})
		f.raw(tar.Header{Name: "data/zero", Typeflag: tar.TypeDir})
	})
	dir, err := restoreInto(t, file)
	// But for the last line, whose mode differs, as forger.raw means it to.
	require.ErrorContains(t, err, `disagree about "data/zero"`)
	require.NoDirExists(t, dir)

	file = forge(t, goodHead(), goodStart, func(f forger) {
		f.dir("a")
		f.add(entry{rel: "a/link", kind: tar.TypeSymlink, target: "/etc"})
		f.add(entry{rel: "b", kind: tar.TypeSymlink, target: "a"})
	})
	dir, err = restoreInto(t, file)
	require.NoError(t, err)
	to, err := os.Readlink(filepath.Join(dir, "a", "link"))
	require.NoError(t, err)
	require.Equal(t, "/etc", to)
}

func TestHostileArchives(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	tests := []struct {
		name string
		add  func(f forger)
		text string
	}{
		{"a name that leads up", func(f forger) { f.raw(tar.Header{Name: "data/../../evil", Typeflag: tar.TypeReg, Size: 1}) }, "is not one below"},
		{"a name that leads up out of a directory", func(f forger) {
			f.dir("a")
			f.raw(tar.Header{Name: "data/a/../../../evil", Typeflag: tar.TypeReg, Size: 1})
		}, "is not one below"},
		{"an absolute name", func(f forger) { f.raw(tar.Header{Name: outside + "/evil", Typeflag: tar.TypeReg, Size: 1}) }, "is not one below"},
		{"an absolute name below data", func(f forger) { f.raw(tar.Header{Name: "data//etc/evil", Typeflag: tar.TypeReg, Size: 1}) }, "is not one below"},
		{"a second way to write a name", func(f forger) { f.raw(tar.Header{Name: "data/./evil", Typeflag: tar.TypeReg, Size: 1}) }, "is not one below"},
		{"a name beside data", func(f forger) { f.raw(tar.Header{Name: "data2/evil", Typeflag: tar.TypeReg, Size: 1}) }, "is not one below"},
		{"a file through a link that leads out", func(f forger) {
			f.add(entry{rel: "a", kind: tar.TypeSymlink, target: outside})
			f.file("a/evil", "x")
		}, "does not follow its directory"},
		{"a file through a link that leads nowhere else", func(f forger) {
			f.dir("a")
			f.add(entry{rel: "b", kind: tar.TypeSymlink, target: "a"})
			f.file("b/evil", "x")
		}, "does not follow its directory"},
		{"a directory in the place of a link", func(f forger) {
			f.add(entry{rel: "a", kind: tar.TypeSymlink, target: outside})
			f.dir("a")
			f.file("a/evil", "x")
		}, "two files"},
		{"a link in the place of a directory", func(f forger) {
			f.dir("a")
			f.add(entry{rel: "a", kind: tar.TypeSymlink, target: outside})
			f.file("a/evil", "x")
		}, "does not follow its directory"},
		{"a file in a directory that was left", func(f forger) {
			f.dir("a")
			f.dir("b")
			f.file("a/evil", "x")
		}, "does not follow its directory"},
		{"a hard link to a file of this machine", func(f forger) {
			f.raw(tar.Header{Name: "data/a", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"})
		}, "is not one below"},
		{"a hard link that leads up", func(f forger) {
			f.raw(tar.Header{Name: "data/a", Typeflag: tar.TypeLink, Linkname: "data/../../../etc/passwd"})
		}, "is not one below"},
		{"a hard link to a link", func(f forger) {
			f.add(entry{rel: "a", kind: tar.TypeSymlink, target: "/etc/passwd"})
			f.add(entry{rel: "b", kind: tar.TypeLink, target: "a"})
		}, "names no file before it"},
		{"a hard link through a link", func(f forger) {
			f.add(entry{rel: "a", kind: tar.TypeSymlink, target: "/etc"})
			f.add(entry{rel: "b", kind: tar.TypeLink, target: "a/passwd"})
		}, "names no file before it"},
		{"a file twice", func(f forger) {
			f.file("a", "1")
			f.file("b", "2")
			f.file("a", "3")
		}, "two files"},
		{"a device", func(f forger) { f.raw(tar.Header{Name: "data/null", Typeflag: tar.TypeChar}) }, "of a type"},
		{"a pipe", func(f forger) { f.raw(tar.Header{Name: "data/pipe", Typeflag: tar.TypeFifo}) }, "of a type"},
		{"a link for the engine to write through", func(f forger) {
			f.add(entry{rel: restoringFile, kind: tar.TypeSymlink, target: filepath.Join(outside, "evil")})
		}, `"engine/restoring" is in it`},
		{"backups elsewhere", func(f forger) { f.add(entry{rel: "backups", kind: tar.TypeSymlink, target: outside}) }, `"backups" is in it`},
		{"the data directory twice", func(f forger) { f.dir("") }, "twice"},
		{"the engine twice", func(f forger) { f.dir("engine") }, "two files"},
		{"directories without end", func(f forger) {
			rel := ""
			for range maxDepth + 2 {
				rel = strings.TrimPrefix(rel+"/d", "/")
				f.dir(rel)
			}
		}, "too deep"},
		{"a file of the archive's own name", func(f forger) { f.raw(tar.Header{Name: headName, Typeflag: tar.TypeReg, Size: 1}) }, "is not one below"},
		{"content that the manifest does not know", func(f forger) {
			require.NoError(f.t, f.tar.WriteHeader(entry{rel: "a", kind: tar.TypeDir}.header()))
		}, "disagree about"},
		{"a manifest that knows more", func(f forger) {
			require.NoError(f.t, f.record(entry{rel: "a", kind: tar.TypeDir}, ""))
		}, "disagree"},
		{"content of another sum", func(f forger) {
			e := entry{rel: "a", kind: tar.TypeReg, size: 3, modified: time.Unix(1, 0)}
			require.NoError(f.t, f.tar.WriteHeader(e.header()))
			_, err := f.tar.Write([]byte("two"))
			require.NoError(f.t, err)
			require.NoError(f.t, f.record(e, strings.Repeat("0", 64)))
		}, `disagree about "data/a"`},
		{"another mode", func(f forger) {
			e := entry{rel: "a", kind: tar.TypeDir, mode: 0o700}
			require.NoError(f.t, f.tar.WriteHeader(e.header()))
			e.mode = 0o777
			require.NoError(f.t, f.record(e, ""))
		}, `disagree about "data/a"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			refused(t, forge(t, goodHead(), goodStart, tt.add), tt.text)
		})
	}
	t.Cleanup(func() { // after all of them
		left, err := os.ReadDir(outside)
		if err != nil || len(left) > 0 {
			t.Errorf("something was written to another place: %v %v", left, err)
		}
	})
}

// refused proves that an archive is Invalid and that nothing is left of it.
func refused(t *testing.T, file, text string) {
	t.Helper()
	dir, err := restoreInto(t, file)
	require.Error(t, err)
	require.Equal(t, box.ClassInvalid, box.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, text)
	left, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestForgedEngines(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		start func(f forger)
		text  string
	}{
		"none": {func(f forger) { f.dir("") }, "no data file of an engine"},
		"a link in its place": {func(f forger) {
			f.dir("")
			f.dir("engine")
			f.add(entry{rel: dataFile, kind: tar.TypeSymlink, target: "/etc/passwd"})
		}, `"engine/temporal.db" is in it`},
		"a link in the place of its mark": {func(f forger) {
			f.dir("")
			f.dir("engine")
			f.add(entry{rel: restoringFile, kind: tar.TypeSymlink, target: "/tmp/evil"})
		}, `"engine/restoring" is in it`},
		"a log beside it": {func(f forger) {
			goodStart(f)
			f.file(dataFile+"-wal", "x")
		}, `"engine/temporal.db-wal" is in it`},
		"two": {func(f forger) { goodStart(f); f.file("engine/z", "x"); f.file(dataFile, "another") }, "two files"},
		"a second take": {func(f forger) {
			f.dir("")
			f.dir("engine")
			require.NoError(f.t, f.tar.WriteHeader(entry{rel: dataFile, kind: tar.TypeReg}.header()))
			f.file(dataFile, "another")
		}, "twice"},
		"no directory":   {func(f forger) { f.raw(tar.Header{Name: "data/x", Typeflag: tar.TypeReg}) }, "does not follow its directory"},
		"data is a file": {func(f forger) { f.raw(tar.Header{Name: "data", Typeflag: tar.TypeReg}) }, "is no directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, forge(t, goodHead(), tt.start, func(forger) {}), tt.text)
		})
	}
}

func TestForgedHeads(t *testing.T) {
	t.Parallel()
	refused(t, forge(t, head{Format: "another", Version: 1}, goodStart, func(forger) {}), "not a backup")
	refused(t, forge(t, head{Format: formatName}, goodStart, func(forger) {}), "not a backup")
	_, err := restoreInto(t, forge(t, head{Format: formatName, Version: 2}, goodStart, func(forger) {}))
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	require.ErrorContains(t, err, "newer release")
}
