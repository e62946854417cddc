package datafile_test

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine/datafile"
)

// schemaAt is a small schema whose step n adds the table tn and one row to it.
// A step named in broken fails in its second half.
func schemaAt(newest int, broken ...int) datafile.Schema {
	files := fstest.MapFS{
		"visibility/schema.sql": {Data: []byte("CREATE TABLE visible (id INT);")},
	}
	var all strings.Builder
	all.WriteString("CREATE TABLE base (id INT);\n")
	for n := 2; n <= newest; n++ {
		step := fmt.Sprintf("-- step %d; with a semicolon\nCREATE TABLE t%d (text TEXT);\nINSERT INTO t%d VALUES ('a;b');\n", n, n, n)
		all.WriteString(step)
		dir := fmt.Sprintf("temporal/versioned/v0.%d/", n)
		files[dir+"manifest.json"] = &fstest.MapFile{Data: []byte(`{"SchemaUpdateCqlFiles": ["one.sql", "two.sql"]}`)}
		files[dir+"one.sql"] = &fstest.MapFile{Data: []byte(step)}
		// A later step needs the one before it, so the order matters.
		second := fmt.Sprintf("INSERT INTO t%d SELECT count(*) FROM t%d;", n, max(2, n-1))
		for _, b := range broken {
			if b == n {
				second = "INSERT INTO missing VALUES (1);"
			}
		}
		files[dir+"two.sql"] = &fstest.MapFile{Data: []byte(second)}
	}
	files["temporal/schema.sql"] = &fstest.MapFile{Data: []byte(all.String())}
	return datafile.Schema{Files: files, Temporal: fmt.Sprintf("0.%d", newest), Visibility: "0.1"}
}

// prepared returns a data directory whose file has the schema of a release.
func prepared(t *testing.T, newest int) string {
	t.Helper()
	dataDir := t.TempDir()
	lock, err := datafile.Acquire(dataDir)
	require.NoError(t, err)
	defer lock.Release()
	p, err := datafile.Prepare(t.Context(), dataDir, schemaAt(newest))
	require.NoError(t, err)
	require.Equal(t, datafile.Prepared{Created: true}, p)
	return dataDir
}

func openFile(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+datafile.URIPath(path)+"?mode=rw&_pragma=journal_mode(wal)&_pragma=busy_timeout(15000)")
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func edit(t *testing.T, path, script string) {
	t.Helper()
	db := openFile(t, path)
	_, err := db.ExecContext(t.Context(), script)
	require.NoError(t, err)
	require.NoError(t, db.Close())
}

func tables(t *testing.T, path string) (names []string) {
	t.Helper()
	db := openFile(t, path)
	rows, err := db.QueryContext(t.Context(), "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		names = append(names, name)
	}
	require.NoError(t, rows.Err())
	require.NoError(t, rows.Close())
	require.NoError(t, db.Close())
	return names
}

func requireClass(t *testing.T, want box.Class, err error, texts ...string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want, box.ClassOf(err), "%v", err)
	for _, text := range texts {
		require.ErrorContains(t, err, text)
	}
}

func TestPrepareMakesAPrivateFileOnce(t *testing.T) {
	t.Parallel()
	dataDir := prepared(t, 3)
	info, err := os.Stat(datafile.Path(dataDir))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	edit(t, datafile.Path(dataDir), "INSERT INTO base VALUES (7)")
	p, err := datafile.Prepare(t.Context(), dataDir, schemaAt(3))
	require.NoError(t, err)
	require.Equal(t, datafile.Prepared{}, p)
	require.Equal(t, []string{"base", "t2", "t3", "visible"}, tables(t, datafile.Path(dataDir)))
	require.NoError(t, datafile.IntegrityCheck(t.Context(), dataDir))
}

func TestPrepareClearsAnUnfinishedFile(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	lock, err := datafile.Acquire(dataDir)
	require.NoError(t, err)
	defer lock.Release()
	require.NoError(t, os.WriteFile(datafile.Path(dataDir)+".new", []byte("half"), 0o600))
	require.NoError(t, os.WriteFile(datafile.Path(dataDir)+".new-journal", []byte("half"), 0o600))
	p, err := datafile.Prepare(t.Context(), dataDir, schemaAt(2))
	require.NoError(t, err)
	require.True(t, p.Created)
	require.NoError(t, datafile.IntegrityCheck(t.Context(), dataDir))
}

func TestPrepareMigratesInOrderAfterABackup(t *testing.T) {
	t.Parallel()
	dataDir := prepared(t, 8)
	edit(t, datafile.Path(dataDir), "INSERT INTO base VALUES (42)")
	// 0.9, 0.10 and 0.11: as text, the last two would come first.
	p, err := datafile.Prepare(t.Context(), dataDir, schemaAt(11))
	require.NoError(t, err)
	require.Equal(t, "0.8+0.1", p.From)
	require.Equal(t, "0.11+0.1", p.To)
	require.Contains(t, tables(t, datafile.Path(dataDir)), "t11")
	require.NotContains(t, tables(t, p.Backup), "t9")
	require.FileExists(t, p.Backup)
	info, err := os.Stat(p.Backup)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())

	p, err = datafile.Prepare(t.Context(), dataDir, schemaAt(11))
	require.NoError(t, err)
	require.Empty(t, p.Backup, "nothing is left to do")

	db := openFile(t, datafile.Path(dataDir))
	var kept int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT id FROM base").Scan(&kept))
	require.Equal(t, 42, kept)
}

func TestPrepareLeavesTheFileAloneWhenAStepFails(t *testing.T) {
	t.Parallel()
	dataDir := prepared(t, 2)
	before := tables(t, datafile.Path(dataDir))
	_, err := datafile.Prepare(t.Context(), dataDir, schemaAt(4, 4))
	require.Error(t, err)
	require.ErrorContains(t, err, "it is unchanged, and a copy is")
	require.ErrorContains(t, err, "v0.4/two.sql")
	require.Equal(t, before, tables(t, datafile.Path(dataDir)), "the steps before it are undone too")
	p, err := datafile.Prepare(t.Context(), dataDir, schemaAt(4))
	require.NoError(t, err, "a release with the step repaired goes on from there")
	require.Equal(t, "0.2+0.1", p.From)
}

func TestPrepareRefusesStepsWithAGap(t *testing.T) {
	t.Parallel()
	dataDir := prepared(t, 2)
	schema := schemaAt(4)
	schema.Temporal = "0.5"
	_, err := datafile.Prepare(t.Context(), dataDir, schema)
	requireClass(t, box.ClassInternal, err, "do not lead from 0.2 to 0.5")
}

func TestPrepareRefusesWhatItMustNotOpen(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(t *testing.T, file string)
		text  string
	}{
		{"a file of a newer release", func(t *testing.T, file string) {
			t.Helper()
			edit(t, file, "PRAGMA user_version = 40001")
		}, "newer release"},
		{"a file whose visibility part is newer", func(t *testing.T, file string) {
			t.Helper()
			edit(t, file, "PRAGMA user_version = 30002")
		}, "newer release"},
		{"another program's file", func(t *testing.T, file string) {
			t.Helper()
			edit(t, file, "PRAGMA application_id = 0")
		}, "not made by this product"},
		{"a file with no version", func(t *testing.T, file string) {
			t.Helper()
			edit(t, file, "PRAGMA user_version = 0")
		}, "not made by this product"},
		{"something that is no database", func(t *testing.T, file string) {
			t.Helper()
			require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("no database ", 1000)), 0o600))
		}, "the data file is damaged, so restore a backup: file is not a database"},
		{"a file that lost its content", func(t *testing.T, file string) {
			t.Helper()
			require.NoError(t, os.Truncate(file, 0))
		}, "restore a backup"},
		{"a log whose file is gone", func(t *testing.T, file string) {
			t.Helper()
			require.NoError(t, os.Remove(file))
			require.NoError(t, os.WriteFile(file+"-wal", []byte("log"), 0o600))
		}, "missing while its log"},
		{"a link", func(t *testing.T, file string) {
			t.Helper()
			require.NoError(t, os.Rename(file, file+".elsewhere"))
			require.NoError(t, os.Symlink(file+".elsewhere", file))
		}, "link"},
		{"a link to nothing", func(t *testing.T, file string) {
			t.Helper()
			require.NoError(t, os.Remove(file))
			require.NoError(t, os.Symlink(file+".elsewhere", file))
		}, "link"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dataDir := prepared(t, 3)
			tt.spoil(t, datafile.Path(dataDir))
			_, err := datafile.Prepare(t.Context(), dataDir, schemaAt(3))
			requireClass(t, box.ClassFailedPrecondition, err, tt.text)
		})
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	dataDir := filepath.Join(t.TempDir(), "new", "dir")
	first, err := datafile.Acquire(dataDir)
	require.NoError(t, err)
	_, err = datafile.Acquire(dataDir)
	requireClass(t, box.ClassFailedPrecondition, err, "in use by another engine in this process", "--data")
	first.Release()
	// What a killed process left in the file does not matter.
	require.NoError(t, os.WriteFile(filepath.Join(dataDir, "engine", "lock"), []byte("999999999\n"), 0o600))
	second, err := datafile.Acquire(dataDir)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dataDir, "engine", "lock"))
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%d\n", os.Getpid()), string(text))
	second.Release()
}

func TestIntegrityCheckFindsDamage(t *testing.T) {
	t.Parallel()
	dataDir := prepared(t, 2)
	edit(t, datafile.Path(dataDir), "CREATE TABLE filler (x BLOB); "+
		"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 200) INSERT INTO filler SELECT randomblob(500) FROM n; "+
		"CREATE INDEX filler_x ON filler(x); PRAGMA journal_mode=delete")
	require.NoError(t, datafile.IntegrityCheck(t.Context(), dataDir))
	file, err := os.OpenFile(datafile.Path(dataDir), os.O_RDWR, 0)
	require.NoError(t, err)
	info, err := file.Stat()
	require.NoError(t, err)
	_, err = file.WriteAt(make([]byte, 3*4096), info.Size()/4096/2*4096)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	requireClass(t, box.ClassFailedPrecondition, datafile.IntegrityCheck(t.Context(), dataDir), "restore a backup")

	requireClass(t, box.ClassNotFound, datafile.IntegrityCheck(t.Context(), t.TempDir()))
}

func TestConnsCloseTheServersConnection(t *testing.T) {
	t.Parallel()
	dataDir := prepared(t, 2)
	file := datafile.Path(dataDir)
	conns := datafile.TrackConns()
	dsn := "file:" + datafile.URIPath(file) + "?setup=" + conns.Attributes()["setup"] + "&_pragma=journal_mode(wal)"
	pool, err := sql.Open("sqlite", dsn)
	require.NoError(t, err)
	pool.SetMaxOpenConns(1)
	_, err = pool.ExecContext(t.Context(), "INSERT INTO base VALUES (1)")
	require.NoError(t, err)
	require.FileExists(t, file+"-wal")
	// Another engine's connections are not touched.
	other := datafile.TrackConns()
	require.NoError(t, other.Close())
	_, err = pool.ExecContext(t.Context(), "INSERT INTO base VALUES (2)")
	require.NoError(t, err)

	_, err = pool.BeginTx(context.Background(), nil) //nolint:forbidigo // the end of the test's would use a closed connection
	require.NoError(t, err)
	require.NoError(t, conns.Close())
	require.NoError(t, conns.Close(), "twice is fine")
	require.NoFileExists(t, file+"-wal", "the log is in the file")
	late, err := sql.Open("sqlite", dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, late.Close()) }()
	require.ErrorContains(t, late.PingContext(t.Context()), "the engine has stopped")
}
