package backup_test

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/daemon/backup"
	"github.com/openhands/boxkeeper/internal/engine/datafile"
)

// schema is one that a data file is made with; no engine is needed for it.
func schema(version string) datafile.Schema {
	return datafile.Schema{
		Files: fstest.MapFS{
			"temporal/schema.sql":   {Data: []byte("CREATE TABLE base (id INT); INSERT INTO base VALUES (42);")},
			"visibility/schema.sql": {Data: []byte("CREATE TABLE visible (id INT);")},
		},
		Temporal: version, Visibility: "0.1",
	}
}

// putDataFile is what the engine does at a restore.
func putDataFile(ctx context.Context, src, dataDir string) error {
	return datafile.Restore(ctx, src, dataDir, schema("0.1"))
}

// newData makes a data directory like a used one. Its boxes are in the default
// place.
func newData(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	lock, err := datafile.Acquire(dir)
	require.NoError(t, err)
	_, err = datafile.Prepare(t.Context(), dir, schema("0.1"))
	require.NoError(t, err)
	lock.Release()
	for name, text := range map[string]string{
		"installation.key": strings.Repeat("k", 64), "installation.id": "0123abcd\n", "boxkeeper.toml": "listen = \"off\"\n",
		"credentials/token": "secret", "exports/ws/ledger/1": "{}", "exports/ws/c.zip": "zip",
		"boxes/local/engine-id": "id", "boxes/local/boxes/.engine-id": "id", "boxes/local/control/bk-1.json": "{}",
		"boxes/local/boxes/bk-1/workspace/main.go": "package main", "boxes/local/boxes/bk-1/run/boxd.log": "log",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "boxes", "local", "trash"), 0o700))
	return dir
}

// leftOut are files in dir that no backup takes.
func leftOut(t *testing.T, dir string) (names []string) {
	t.Helper()
	names = []string{
		"backups/x.db", "demo/d/key", "engine/restoring.old/../lock", "boxes/local/trash/bk-9/f", "boxes/local/control/bk-1.lock",
		"boxes/local/control/.new-1", "boxes/local/.new-2", "boxes/local/boxes/bk-1/run/address", "boxes/local/boxes/bk-1/run/boxd.lock",
		"exports/.incoming/half", ".installation.key.123", "lost+found/x", ".boxkeeper-restore-1/temporal.db",
	}
	for i, name := range names {
		names[i] = filepath.Clean(name)
		write(t, filepath.Join(dir, names[i]), "left out")
	}
	return names
}

func write(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
}

func options(data string) backup.Options {
	return backup.Options{
		DataDir: data, Instances: []string{filepath.Join(data, "boxes", "local")}, Exports: filepath.Join(data, "exports"),
		Installation: "0123abcd", Now: func() time.Time { return time.Unix(1_800_000_000, 0) },
	}
}

func target(dir string) backup.Target {
	return backup.Target{DataDir: dir, PutDataFile: putDataFile}
}

// newBackup makes a backup of a data directory.
func newBackup(t *testing.T, data string) (file string, s backup.Summary) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "x.tar.zst")
	s, err := backup.Create(t.Context(), file, options(data))
	require.NoError(t, err)
	return file, s
}

// tree is what lies below a directory, in words that tell what was lost.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	inodes := map[uint64]string{}
	require.NoError(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %d %q", info.ModTime().UnixNano(), data)
			if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink > 1 {
				if inodes[stat.Ino] == "" {
					inodes[stat.Ino] = rel
				}
				text += " same as " + inodes[stat.Ino]
			}
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(name)
			if err != nil {
				return err
			}
			text += " to " + to
		case info.IsDir():
			text += fmt.Sprintf(" %d", info.ModTime().UnixNano())
		}
		out[rel] = text
		return nil
	}))
	return out
}

// comparable takes out of a tree what a backup replaces or makes anew.
func comparable(t *testing.T, dir string, gone ...string) map[string]string {
	t.Helper()
	all := tree(t, dir)
	for name := range all {
		first, _, _ := strings.Cut(name, "/")
		if first == "engine" || name == "." {
			delete(all, name)
		}
		for _, g := range gone {
			if name == g || strings.HasPrefix(name, g+"/") {
				delete(all, name)
			}
		}
	}
	return all
}

func requireClass(t *testing.T, want box.Class, err error, texts ...string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want, box.ClassOf(err), "%v", err)
	for _, text := range texts {
		require.ErrorContains(t, err, text)
	}
}

func requireNames(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	have := []string{}
	for _, e := range entries {
		have = append(have, e.Name())
	}
	require.ElementsMatch(t, names, have)
}

// oddTree adds to dir what is easily lost.
func oddTree(t *testing.T, dir string) {
	t.Helper()
	odd := filepath.Join(dir, "boxes", "local", "boxes", "bk-1", "odd")
	names := []string{"new\nline", "-dash", "ünï", "back\\slash", " ", "star*", strings.Repeat("n", 255), "a\tb", "...", "data"}
	if _, err := os.Lstat("/proc"); err == nil {
		names = append(names, "bytes\xff\xfe") // macOS takes UTF-8 only
	}
	for i, name := range names {
		write(t, filepath.Join(odd, name), fmt.Sprint(i))
		require.NoError(t, os.Chtimes(filepath.Join(odd, name), time.Time{}, time.Unix(int64(1_000_000_000+i), 123_456_789)))
	}
	for name, to := range map[string]string{
		"dangling": "nowhere", "absolute": "/etc/passwd", "up": "../../../../../..", "dir": ".", "raw": "x\xffy",
	} {
		require.NoError(t, os.Symlink(to, filepath.Join(odd, "link-"+name)))
	}
	require.NoError(t, os.Link(filepath.Join(odd, "-dash"), filepath.Join(odd, "z-dash-again")))
	require.NoError(t, os.Link(filepath.Join(odd, "-dash"), filepath.Join(dir, "exports", "dash-too")))
	write(t, filepath.Join(odd, "empty"), "")
	holes, err := os.Create(filepath.Join(odd, "holes"))
	require.NoError(t, err)
	_, err = holes.WriteAt([]byte("end"), 3<<20)
	require.NoError(t, err)
	require.NoError(t, holes.Truncate(5<<20))
	require.NoError(t, holes.Close())
	for name, mode := range map[string]fs.FileMode{"f-400": 0o400, "f-755": 0o755, "f-set": 0o755 | fs.ModeSetuid | fs.ModeSetgid, "f-777": 0o777} {
		write(t, filepath.Join(odd, name), name)
		require.NoError(t, os.Chmod(filepath.Join(odd, name), mode))
	}
	deep := filepath.Join(odd, "ro")
	for i := range 60 {
		deep = filepath.Join(deep, fmt.Sprintf("d%02d", i))
	}
	write(t, filepath.Join(deep, "f"), "deep")
	write(t, filepath.Join(dir, "ro-top", "f"), "f")
	for _, ro := range []string{deep, filepath.Dir(deep), filepath.Join(odd, "ro"), filepath.Join(dir, "ro-top")} {
		require.NoError(t, os.Chtimes(ro, time.Time{}, time.Unix(1_100_000_000, 5)))
		require.NoError(t, os.Chmod(ro, 0o555))
		t.Cleanup(func() { _ = os.Chmod(ro, 0o755) })
	}
	require.NoError(t, os.Mkdir(filepath.Join(odd, "sticky"), 0o700))
	require.NoError(t, os.Chmod(filepath.Join(odd, "sticky"), 0o777|fs.ModeSticky))
}

// writable gives the test's clean-up the right to remove what is below dir.
func writable(t *testing.T, dir string) {
	t.Helper()
	t.Cleanup(func() {
		_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				_ = os.Chmod(name, 0o700)
			}
			return nil
		})
	})
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	data := newData(t)
	oddTree(t, data)
	want := comparable(t, data)
	gone := leftOut(t, data)
	listen, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(data, "s"))
	require.NoError(t, err)
	defer listen.Close()
	require.NoError(t, syscall.Mkfifo(filepath.Join(data, "exports", "fifo"), 0o600))
	gone = append(gone, "s", "exports/fifo")

	file, made := newBackup(t, data)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	require.Equal(t, info.Size(), made.FileBytes)
	requireNames(t, filepath.Dir(file), "x.tar.zst")
	require.Contains(t, made.LeftOut, backup.LeftOut{What: "sockets, pipes and devices", Count: 2})
	require.Zero(t, made.Changed)
	require.True(t, made.Boxes)

	// Made by the additions above; all else must be as it was.
	touched := []string{"exports", "boxes/local", "boxes/local/control", "boxes/local/trash", "boxes/local/boxes/bk-1/run"}
	for name, prepare := range map[string]func(dir string){
		"where nothing is":       func(string) {},
		"in an empty directory":  func(dir string) { require.NoError(t, os.Mkdir(dir, 0o755)) },
		"on a fresh file system": func(dir string) { require.NoError(t, os.MkdirAll(filepath.Join(dir, "lost+found"), 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			dir := filepath.Join(parent, "new")
			prepare(dir)
			writable(t, dir)
			s, err := backup.Restore(t.Context(), file, target(dir))
			require.NoError(t, err)
			have := comparable(t, dir, "lost+found")
			for _, name := range touched {
				require.Contains(t, have, name)
				delete(have, name)
			}
			want := want
			for name, text := range want {
				if _, skip := find(touched, name); !skip {
					require.Equal(t, text, have[name], name)
				}
			}
			require.Len(t, have, len(want)-len(touched), "more than there was")
			for _, name := range gone {
				if name != "engine/lock" && !strings.HasPrefix(name, "lost+found") { // the engine makes its own
					require.NoFileExists(t, filepath.Join(dir, name))
				}
			}
			requireNames(t, parent, "new")
			require.Equal(t, made.SHA256, s.SHA256)
			require.Equal(t, made.Entries, s.Entries)
			require.Equal(t, made.Bytes, s.Bytes)
			require.Equal(t, "0123abcd", s.Installation)
			require.Equal(t, int64(1_800_000_000), s.CreatedAt.Unix())
			requireEngine(t, dir)
		})
	}
}

func find(all []string, name string) (int, bool) {
	for i, a := range all {
		if a == name {
			return i, true
		}
	}
	return 0, false
}

// requireEngine proves that the data file is sound, served by nobody, and has
// its content.
func requireEngine(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, datafile.IntegrityCheck(t.Context(), dir))
	require.NoFileExists(t, filepath.Join(dir, "engine", "restoring"))
	lock, err := datafile.Acquire(dir)
	require.NoError(t, err)
	defer lock.Release()
	p, err := datafile.Prepare(t.Context(), dir, schema("0.1"))
	require.NoError(t, err)
	require.False(t, p.Created)
	db, err := sql.Open("sqlite", "file:"+datafile.URIPath(datafile.Path(dir)))
	require.NoError(t, err)
	defer db.Close() //nolint:errcheck // only read
	var id int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT id FROM base").Scan(&id))
	require.Equal(t, 42, id)
}

func TestBackupWhileTheDataFileIsInUse(t *testing.T) {
	t.Parallel()
	data := newData(t)
	lock, err := datafile.Acquire(data)
	require.NoError(t, err)
	defer lock.Release()
	db, err := sql.Open("sqlite", "file:"+datafile.URIPath(datafile.Path(data))+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(15000)")
	require.NoError(t, err)
	defer db.Close() //nolint:errcheck // of a test
	_, err = db.ExecContext(t.Context(), "UPDATE base SET id = 42")
	require.NoError(t, err) // it is in the log now, not in the file
	file, _ := newBackup(t, data)
	dir := filepath.Join(t.TempDir(), "new")
	_, err = backup.Restore(t.Context(), file, target(dir))
	require.NoError(t, err)
	requireEngine(t, dir)
}

func TestNoBoxes(t *testing.T) {
	t.Parallel()
	data := newData(t)
	write(t, filepath.Join(data, "boxes/former/boxes/bk-2/f"), "of an instance that is configured no more")
	require.NoError(t, os.Mkdir(filepath.Join(data, "boxes/former/control"), 0o700))
	o := options(data)
	o.NoBoxes = true
	file := filepath.Join(t.TempDir(), "x")
	s, err := backup.Create(t.Context(), file, o)
	require.NoError(t, err)
	require.False(t, s.Boxes)
	require.Contains(t, s.LeftOut, backup.LeftOut{What: "directories of boxes (--no-boxes)", Count: 2})
	dir := filepath.Join(t.TempDir(), "new")
	s, err = backup.Restore(t.Context(), file, target(dir))
	require.NoError(t, err)
	require.False(t, s.Boxes)
	require.FileExists(t, filepath.Join(dir, "boxes/local/control/bk-1.json"))
	require.FileExists(t, filepath.Join(dir, "boxes/local/boxes/.engine-id"))
	require.NoDirExists(t, filepath.Join(dir, "boxes/local/boxes/bk-1"))
	require.NoDirExists(t, filepath.Join(dir, "boxes/former/boxes/bk-2"))
}

func TestWithin(t *testing.T) {
	t.Parallel()
	data, away := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(away, filepath.Join(data, "away")))
	require.NoError(t, os.Symlink(data, filepath.Join(away, "back")))
	for path, want := range map[string]bool{
		filepath.Join(data, "exports"): true, filepath.Join(data, "boxes", "local"): true, data: true,
		filepath.Join(away, "back", "exports"): true, filepath.Join(data, "away"): false, filepath.Join(data, "away", "not", "there"): false,
		away: false, filepath.Dir(data): false, data + "2": false, filepath.Join(data, "backups", "exports"): false, filepath.Join(data, "demo"): false,
	} {
		require.Equal(t, want, backup.Within(data, path), path)
		require.Equal(t, want, backup.Within(filepath.Join(away, "back"), path), path)
	}
}
