package datafile_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine/datafile"
)

func TestBackupWhileOthersWrite(t *testing.T) {
	t.Parallel()
	dataDir := prepared(t, 3)
	db := openFile(t, datafile.Path(dataDir))
	db.SetMaxOpenConns(1)
	ctx, cancel := context.WithCancel(t.Context())
	wrote := make(chan struct{}, 1)
	finished := make(chan error, 1)
	go func() {
		for {
			// Two tables in one transaction: a copy must hold both or none.
			_, err := db.ExecContext(context.WithoutCancel(ctx), "BEGIN; INSERT INTO base VALUES (1); INSERT INTO t2 VALUES ('x'); COMMIT")
			if err != nil || ctx.Err() != nil {
				finished <- err
				return
			}
			select {
			case wrote <- struct{}{}:
			default:
			}
		}
	}()
	for i := range 5 {
		<-wrote
		dest := filepath.Join(t.TempDir(), "backup.db")
		require.NoError(t, datafile.Backup(t.Context(), dataDir, dest), "backup %d", i)
		copied := openFile(t, dest)
		var base, t2 int
		require.NoError(t, copied.QueryRowContext(t.Context(), "SELECT count(*) FROM base").Scan(&base))
		require.NoError(t, copied.QueryRowContext(t.Context(), "SELECT count(*) FROM t2 WHERE text = 'x'").Scan(&t2))
		require.Positive(t, base)
		require.Equal(t, base, t2)
		requireNothingElseIn(t, filepath.Dir(dest), "backup.db", "backup.db-shm", "backup.db-wal")
	}
	cancel()
	require.NoError(t, <-finished)
}

func requireNothingElseIn(t *testing.T, dir string, allowed ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		require.Contains(t, allowed, entry.Name(), "left behind in %s", dir)
	}
}

func TestBackupNeverOverwritesAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dataDir := prepared(t, 2)
	dir := t.TempDir()
	dest := filepath.Join(dir, "mine")
	require.NoError(t, os.WriteFile(dest, []byte("precious"), 0o600))
	requireClass(t, box.ClassAlreadyExists, datafile.Backup(t.Context(), dataDir, dest), dest)
	text, err := os.ReadFile(dest)
	require.NoError(t, err)
	require.Equal(t, "precious", string(text))

	link := filepath.Join(dir, "dangling")
	require.NoError(t, os.Symlink(filepath.Join(dir, "nowhere"), link))
	requireClass(t, box.ClassAlreadyExists, datafile.Backup(t.Context(), dataDir, link))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	requireClass(t, box.ClassCanceled, datafile.Backup(ended, dataDir, filepath.Join(dir, "late")))
	require.Error(t, datafile.Backup(t.Context(), dataDir, filepath.Join(dir, "no such directory", "b")))
	requireClass(t, box.ClassNotFound, datafile.Backup(t.Context(), t.TempDir(), filepath.Join(dir, "none")), "no data file")
	requireNothingElseIn(t, dir, "mine", "dangling")
}

// backupOf returns a backup whose base table holds the number.
func backupOf(t *testing.T, newest int, number string) string {
	t.Helper()
	dataDir := prepared(t, newest)
	edit(t, datafile.Path(dataDir), "INSERT INTO base VALUES ("+number+")")
	dest := filepath.Join(t.TempDir(), "backup.db")
	require.NoError(t, datafile.Backup(t.Context(), dataDir, dest))
	return dest
}

func number(t *testing.T, path string) int {
	t.Helper()
	db := openFile(t, path)
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT id FROM base").Scan(&n))
	require.NoError(t, db.Close())
	return n
}

func TestRestoreKeepsWhatItReplaces(t *testing.T) {
	t.Parallel()
	backup := backupOf(t, 3, "1")
	dataDir := prepared(t, 3)
	// What a killed engine leaves: part of the data is only in the log.
	writer := openFile(t, datafile.Path(dataDir))
	_, err := writer.ExecContext(t.Context(), "INSERT INTO base VALUES (2)")
	require.NoError(t, err)
	crashed := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(crashed, "engine"), 0o700))
	for _, suffix := range []string{"", "-wal"} {
		text, err := os.ReadFile(datafile.Path(dataDir) + suffix)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(datafile.Path(crashed)+suffix, text, 0o600))
	}
	require.NoError(t, writer.Close())

	require.NoError(t, datafile.Restore(t.Context(), backup, crashed, schemaAt(3)))
	require.Equal(t, 1, number(t, datafile.Path(crashed)))
	require.NoError(t, datafile.IntegrityCheck(t.Context(), crashed))
	replaced, err := filepath.Glob(filepath.Join(crashed, "backups", "replaced-*", "temporal.db"))
	require.NoError(t, err)
	require.Len(t, replaced, 1)
	require.Equal(t, 2, number(t, replaced[0]), "its log is kept with it")
	_, err = datafile.Prepare(t.Context(), crashed, schemaAt(3))
	require.NoError(t, err)
}

func TestRestoreIntoAnEmptyDirectoryAndOfAnOlderSchema(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	require.NoError(t, datafile.Restore(t.Context(), backupOf(t, 2, "5"), dataDir, schemaAt(3)))
	p, err := datafile.Prepare(t.Context(), dataDir, schemaAt(3))
	require.NoError(t, err)
	require.Equal(t, "0.2+0.1", p.From)
	require.Equal(t, 5, number(t, datafile.Path(dataDir)))
}

func TestRestoreRefusesBadBackups(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(backupOf(t, 3, "1"))
	require.NoError(t, err)
	tests := []struct {
		name  string
		make  func(t *testing.T, path string)
		class box.Class
	}{
		{"missing", func(*testing.T, string) {}, box.ClassInvalid},
		{"empty", func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.WriteFile(path, nil, 0o600))
		}, box.ClassInvalid},
		{"a directory", func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.Mkdir(path, 0o700))
		}, box.ClassInvalid},
		{"no database", func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.WriteFile(path, make([]byte, 8192), 0o600))
		}, box.ClassInvalid},
		{"cut off", func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.WriteFile(path, text[:len(text)/2/4096*4096], 0o600))
		}, box.ClassInvalid},
		{"another program's", func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.WriteFile(path, text, 0o600))
			edit(t, path, "PRAGMA application_id = 1")
		}, box.ClassInvalid},
		{"a newer release's", func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.WriteFile(path, text, 0o600))
			edit(t, path, "PRAGMA user_version = 990001")
		}, box.ClassFailedPrecondition},
		{"still in use", func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.WriteFile(path, text, 0o600))
			require.NoError(t, os.WriteFile(path+"-wal", []byte("log"), 0o600))
		}, box.ClassInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dataDir := prepared(t, 3)
			edit(t, datafile.Path(dataDir), "INSERT INTO base VALUES (9)")
			src := filepath.Join(t.TempDir(), "src.db")
			tt.make(t, src)
			requireClass(t, tt.class, datafile.Restore(t.Context(), src, dataDir, schemaAt(3)), src)
			require.Equal(t, 9, number(t, datafile.Path(dataDir)), "the data file is untouched")
			requireNothingElseIn(t, filepath.Dir(datafile.Path(dataDir)), "temporal.db", "temporal.db-wal", "temporal.db-shm", "lock")
		})
	}
}

func TestRestoreNeedsTheLock(t *testing.T) {
	t.Parallel()
	backup := backupOf(t, 2, "1")
	dataDir := prepared(t, 2)
	lock, err := datafile.Acquire(dataDir)
	require.NoError(t, err)
	requireClass(t, box.ClassFailedPrecondition, datafile.Restore(t.Context(), backup, dataDir, schemaAt(2)), "in use")
	lock.Release()
	require.NoError(t, datafile.Restore(t.Context(), backup, dataDir, schemaAt(2)))
}

// A restore has two renames; these are the states that a crash can leave.
func TestInterruptedRestoreIsSaidAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]func(t *testing.T, dataDir string){
		"before the old file was moved": func(*testing.T, string) {},
		"between the two renames": func(t *testing.T, dataDir string) {
			t.Helper()
			require.NoError(t, os.MkdirAll(filepath.Join(dataDir, "backups", "replaced-x"), 0o700))
			require.NoError(t, os.Rename(datafile.Path(dataDir), filepath.Join(dataDir, "backups", "replaced-x", "temporal.db")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backup := backupOf(t, 2, "1")
			dataDir := prepared(t, 2)
			engineDir := filepath.Dir(datafile.Path(dataDir))
			require.NoError(t, os.WriteFile(filepath.Join(engineDir, "restoring"), []byte(backup+"\n"), 0o600))
			require.NoError(t, os.WriteFile(datafile.Path(dataDir)+".restore", []byte("half a copy"), 0o600))
			crash(t, dataDir)

			_, err := datafile.Prepare(t.Context(), dataDir, schemaAt(2))
			requireClass(t, box.ClassFailedPrecondition, err, "a restore of "+backup+" was interrupted")
			require.NoError(t, datafile.Restore(t.Context(), backup, dataDir, schemaAt(2)))
			_, err = datafile.Prepare(t.Context(), dataDir, schemaAt(2))
			require.NoError(t, err)
			require.Equal(t, 1, number(t, datafile.Path(dataDir)))
			kept, err := filepath.Glob(filepath.Join(dataDir, "backups", "replaced-*", "temporal.db"))
			require.NoError(t, err)
			require.Len(t, kept, 1, "the old file is kept in any case")
		})
	}
}
