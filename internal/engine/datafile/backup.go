package datafile

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	// The driver of all SQLite access in this module.
	_ "modernc.org/sqlite"

	"github.com/openhands/boxkeeper/box"
)

// Backup writes a whole, checked copy of the data file to dest, also while an
// engine writes to it. It refuses to overwrite.
func Backup(ctx context.Context, dataDir, dest string) (err error) {
	file := Path(dataDir)
	if err := existing(file); err != nil {
		return err
	}
	db, err := open(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return copyTo(ctx, db, file, dest)
}

// copyTo copies an open file to dest: under a temporary name, checked and
// synced, then published in one step, so that dest is whole or not there.
func copyTo(ctx context.Context, db *sql.DB, file, dest string) (err error) {
	if _, err := os.Lstat(dest); err == nil {
		return taken(dest)
	}
	dir := filepath.Dir(dest)
	// CreateTemp makes the file private; SQLite fills an empty file.
	temp, err := os.CreateTemp(dir, "."+filepath.Base(dest)+".*")
	if err != nil {
		return classed(ctx, err, "make the copy")
	}
	defer func() { _ = os.Remove(temp.Name()) }()
	defer func() { _ = temp.Close() }()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", temp.Name()); err != nil {
		return classed(ctx, err, "copy %s to %s", file, dir)
	}
	if err := checkCopy(ctx, temp.Name()); err != nil {
		return err
	}
	// VACUUM INTO leaves its output to the page cache.
	if err := temp.Sync(); err != nil {
		return classed(ctx, err, "sync the copy in %s", dir)
	}
	return publish(temp.Name(), dest)
}

// checkCopy proves that a copy is sound and says which schema it has.
func checkCopy(ctx context.Context, path string) (err error) {
	db, err := open(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := check(ctx, db, path); err != nil {
		return err
	}
	_, err = versionOf(ctx, db, path)
	return err
}

// publish gives a finished file its name without ever replacing another one.
func publish(temp, dest string) error {
	switch err := os.Link(temp, dest); {
	case errors.Is(err, fs.ErrExist):
		return taken(dest)
	case err != nil:
		// A file system without hard links: a name taken in between is lost to
		// the check, but never to a second backup of ours.
		if _, err := os.Lstat(dest); err == nil {
			return taken(dest)
		}
		if err := os.Rename(temp, dest); err != nil {
			return box.Errorf(box.ClassUnavailable, "name the copy %s: %w", dest, err)
		}
	}
	return syncDir(filepath.Dir(dest))
}

func taken(dest string) error {
	return &box.Error{
		Class: box.ClassAlreadyExists, Field: "file",
		Message: dest + " is there already: name another file, or move that one away",
	}
}

// copyFile copies a file that no SQLite connection has open.
func copyFile(ctx context.Context, src, dest string) (err error) {
	in, err := os.Open(src)
	if err != nil {
		return box.Errorf(box.ClassInvalid, "open the backup: %w", err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(dest, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return classed(ctx, err, "copy the backup")
	}
	_, err = io.Copy(out, &ctxReader{ctx, in})
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		return classed(ctx, err, "copy the backup")
	}
	return nil
}

// ctxReader ends a long copy with its context.
type ctxReader struct {
	ctx context.Context //nolint:containedctx // it lives as long as one copy
	io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
