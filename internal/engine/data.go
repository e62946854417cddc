package engine

import (
	"context"
	"io/fs"

	"go.temporal.io/server/schema"
	sqliteschema "go.temporal.io/server/schema/sqlite"

	"github.com/openhands/boxkeeper/internal/engine/datafile"
)

// schemaOf returns the schema that the linked server wants.
func schemaOf() datafile.Schema {
	files, err := fs.Sub(schema.Assets(), "sqlite/v3")
	if err != nil {
		panic(err) // the path is a valid constant
	}
	return datafile.Schema{
		Files:      files,
		Temporal:   sqliteschema.Version,
		Visibility: sqliteschema.VisibilityVersion,
	}
}

// Backup writes a whole, checked copy of the engine's data file to dest, also
// while the engine runs. It never overwrites: AlreadyExists says that dest is
// there. NotFound says that dataDir has no data file.
func Backup(ctx context.Context, dataDir, dest string) error {
	return datafile.Backup(ctx, dataDir, dest)
}

// Restore puts the backup src in the place of the engine's data file. The old
// file, if any, is moved into a directory below backups first. Invalid says
// that src is no sound backup; FailedPrecondition that an engine is running on
// dataDir, or that a newer engine made src. After a crash it may be repeated,
// and the engine refuses to start until it was.
func Restore(ctx context.Context, src, dataDir string) error {
	return datafile.Restore(ctx, src, dataDir, schemaOf())
}

// IntegrityCheck reads the whole data file and returns nil when SQLite finds
// no fault in it, also on a file that kill -9 left, and while the engine runs.
// NotFound says that dataDir has no data file.
func IntegrityCheck(ctx context.Context, dataDir string) error {
	return datafile.IntegrityCheck(ctx, dataDir)
}
