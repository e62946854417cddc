package backup_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/daemon/backup"
	"github.com/openhands/boxkeeper/internal/engine/datafile"
)

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(t *testing.T, data string) (file string)
		class  box.Class
		texts  []string
	}{
		{"a file that is there", func(t *testing.T, data string) string {
			t.Helper()
			write(t, data+"-out/x", "mine")
			return data + "-out/x"
		}, box.ClassAlreadyExists, []string{"file: ", "move that one away"}},
		{"a link that leads nowhere", func(t *testing.T, data string) string {
			t.Helper()
			require.NoError(t, os.Symlink("nowhere", data+"-x"))
			return data + "-x"
		}, box.ClassAlreadyExists, nil},
		{"a directory that is not there", func(_ *testing.T, data string) string { return data + "-out/x" }, box.ClassInvalid, []string{"file: ", "make it first"}},
		{"standard output", func(*testing.T, string) string { return "-" }, box.ClassInvalid, []string{"file: "}},
		{"no name", func(_ *testing.T, data string) string { return filepath.Dir(data) + "/none/" }, box.ClassInvalid, []string{"file: "}},
		{"a file in the data directory", func(_ *testing.T, data string) string { return data + "/x" }, box.ClassInvalid, []string{"file: ", "lost with it"}},
		{"a file in the data directory through a link", func(t *testing.T, data string) string {
			t.Helper()
			require.NoError(t, os.Symlink(data+"/exports", data+"-link"))
			return data + "-link/x"
		}, box.ClassInvalid, []string{"lost with it"}},
		{"a data directory that is not there", func(t *testing.T, data string) string {
			t.Helper()
			require.NoError(t, os.Rename(data, data+"-moved"))
			return data + "-x"
		}, box.ClassInvalid, []string{"data: ", "--data"}},
		{"a data directory without an engine", func(t *testing.T, data string) string {
			t.Helper()
			require.NoError(t, os.RemoveAll(data+"/engine"))
			return data + "-x"
		}, box.ClassNotFound, []string{"no data file"}},
		{"a restore that is under way", func(t *testing.T, data string) string {
			t.Helper()
			write(t, data+"/engine/restoring", "x")
			return data + "-x"
		}, box.ClassFailedPrecondition, []string{"restore"}},
		{"a damaged data file", func(t *testing.T, data string) string {
			t.Helper()
			write(t, datafile.Path(data), "this is no database, it only takes the place of one")
			return data + "-x"
		}, box.ClassFailedPrecondition, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			data := newData(t)
			file := tt.change(t, data)
			before := tree(t, filepath.Dir(data))
			_, err := backup.Create(t.Context(), file, options(data))
			requireClass(t, tt.class, err, tt.texts...)
			after := tree(t, filepath.Dir(data))
			for name := range before {
				require.Contains(t, after, name)
			}
			require.NoFileExists(t, data+"/x")
		})
	}
}

// A backup below backups/ is allowed, and is not in the next one.
func TestABackupAmongTheEnginesOwn(t *testing.T) {
	t.Parallel()
	data := newData(t)
	require.NoError(t, os.Mkdir(filepath.Join(data, "backups"), 0o700))
	one, err := backup.Create(t.Context(), filepath.Join(data, "backups", "1"), options(data))
	require.NoError(t, err)
	two, err := backup.Create(t.Context(), filepath.Join(data, "backups", "2"), options(data))
	require.NoError(t, err)
	require.Equal(t, one.Entries, two.Entries)
	requireNames(t, filepath.Join(data, "backups"), "1", "2")
}

func TestRestoreRefusesWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	file, _ := newBackup(t, newData(t))
	tests := []struct {
		name string
		make func(t *testing.T, dir string)
		text string
	}{
		{"a file in it", func(t *testing.T, dir string) { t.Helper(); write(t, dir+"/boxkeeper.toml", "mine") }, "is not empty, and a restore overwrites nothing: move it aside"},
		{"an engine that runs", func(t *testing.T, dir string) {
			t.Helper()
			lock, err := datafile.Acquire(dir)
			require.NoError(t, err)
			t.Cleanup(lock.Release)
		}, "stop that one first"},
		{"an engine that ran", func(t *testing.T, dir string) {
			t.Helper()
			lock, err := datafile.Acquire(dir)
			require.NoError(t, err)
			lock.Release()
		}, "is not empty"},
		{"an interrupted restore that began to move", func(t *testing.T, dir string) { t.Helper(); write(t, dir+"/engine/restoring", "x") }, "was interrupted; move that directory aside"},
		{"an interrupted restore that did not", func(t *testing.T, dir string) { t.Helper(); write(t, dir+"/.boxkeeper-restore-1/data/x", "x") }, "remove it and restore again"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "d")
			tt.make(t, dir)
			before := comparable(t, dir)
			_, err := backup.Restore(t.Context(), file, target(dir))
			requireClass(t, box.ClassFailedPrecondition, err, tt.text)
			require.Equal(t, before, comparable(t, dir))
		})
	}
	t.Run("a file instead of it", func(t *testing.T) {
		t.Parallel()
		name := filepath.Join(t.TempDir(), "d")
		write(t, name, "mine")
		_, err := backup.Restore(t.Context(), file, target(name))
		requireClass(t, box.ClassInvalid, err, "data: ", "is not a directory")
	})
}

// Somebody may use the place while the restore works. What they made stays,
// and what was moved already goes back.
func TestRestoreYieldsToWhoeverCameFirst(t *testing.T) {
	t.Parallel()
	file, _ := newBackup(t, newData(t))
	for name, empty := range map[string]bool{"where nothing was": false, "in an empty directory": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			dir := filepath.Join(parent, "d")
			if empty {
				require.NoError(t, os.Mkdir(dir, 0o700))
			}
			to := target(dir)
			to.PutDataFile = func(ctx context.Context, src, dataDir string) error {
				write(t, filepath.Join(dir, "installation.key"), "another")
				return putDataFile(ctx, src, dataDir)
			}
			_, err := backup.Restore(t.Context(), file, to)
			requireClass(t, box.ClassConflict, err, "by someone else meanwhile")
			requireNames(t, parent, "d")
			requireNames(t, dir, "installation.key")
			data, err := os.ReadFile(filepath.Join(dir, "installation.key"))
			require.NoError(t, err)
			require.Equal(t, "another", string(data))
		})
	}
}

func TestRestoreRefusesADataFileThatTheEngineRefuses(t *testing.T) {
	t.Parallel()
	file, _ := newBackup(t, newData(t))
	parent := t.TempDir()
	to := target(filepath.Join(parent, "d"))
	to.PutDataFile = func(ctx context.Context, src, dataDir string) error {
		return datafile.Restore(ctx, src, dataDir, schema("0.0")) // an older release
	}
	_, err := backup.Restore(t.Context(), file, to)
	requireClass(t, box.ClassFailedPrecondition, err, "newer")
	requireNames(t, parent)
}

func TestRestoreRefusesWhatIsNoBackup(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(t *testing.T, file string){
		"nothing":     func(*testing.T, string) {},
		"a directory": func(t *testing.T, file string) { t.Helper(); require.NoError(t, os.Mkdir(file, 0o700)) },
		"empty":       func(t *testing.T, file string) { t.Helper(); write(t, file, "") },
		"text": func(t *testing.T, file string) {
			t.Helper()
			write(t, file, "not at all a backup of anything, whatever its name")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			file := filepath.Join(t.TempDir(), "x")
			make(t, file)
			_, err := backup.Restore(t.Context(), file, target(filepath.Join(parent, "d")))
			requireClass(t, box.ClassInvalid, err, "file: ", file)
			requireNames(t, parent)
		})
	}
}

// TestACutIsNoticed cuts a backup off at many lengths.
func TestACutIsNoticed(t *testing.T) {
	t.Parallel()
	file, _ := newBackup(t, newData(t))
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	parent := t.TempDir()
	cut := filepath.Join(t.TempDir(), "x")
	for n := 0; n < len(whole); n += 11 {
		require.NoError(t, os.WriteFile(cut, whole[:n], 0o600))
		_, err := backup.Restore(t.Context(), cut, target(filepath.Join(parent, "d")))
		requireClass(t, box.ClassInvalid, err, "cut off")
	}
	requireNames(t, parent)
	require.NoError(t, os.WriteFile(cut, append(whole, whole...), 0o600))
	_, err = backup.Restore(t.Context(), cut, target(filepath.Join(parent, "d")))
	requireClass(t, box.ClassInvalid, err, "damaged")
}

// TestAFlippedBitIsNoticed flips a bit in every third byte: the backup is refused,
// or, where the bit means nothing, all comes back as it was.
func TestAFlippedBitIsNoticed(t *testing.T) {
	t.Parallel()
	data := newData(t)
	want := comparable(t, data)
	file, _ := newBackup(t, data)
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	parent := t.TempDir()
	dir, flipped := filepath.Join(parent, "d"), filepath.Join(t.TempDir(), "x")
	refused := 0
	for n := 0; n < len(whole); n += 3 {
		whole[n] ^= 1 << (n % 8)
		require.NoError(t, os.WriteFile(flipped, whole, 0o600))
		whole[n] ^= 1 << (n % 8)
		_, err := backup.Restore(t.Context(), flipped, target(dir))
		if err != nil {
			if box.ClassOf(err) == box.ClassFailedPrecondition {
				require.ErrorContains(t, err, "newer release") // a bit of the version, which is read before the sum
			} else {
				requireClass(t, box.ClassInvalid, err, "file: ")
			}
			refused++
			continue
		}
		require.Equal(t, want, comparable(t, dir))
		require.NoError(t, os.RemoveAll(dir))
	}
	requireNames(t, parent)
	require.Greater(t, refused, len(whole)/3*95/100)
}
