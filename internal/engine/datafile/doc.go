// Package datafile keeps the engine's SQLite file: where it is, who may serve
// it, which schema it has, and how it is copied and put back.
//
// What it is for: the engine's server neither records which version made a
// file nor migrates it, and works on an older one only in part, without an
// error at the start. This package records the version inside the file, takes
// a checked backup, and applies all missing steps in one transaction.
//
// What it must never do: overwrite or drop a file that holds data; open the
// file by other means than SQLite while an engine may run in this process
// (closing any descriptor of it would drop SQLite's locks); link the server.
//
// Who calls it: package engine. All of it lives in the data directory:
//
//	engine/temporal.db    the file, with -wal and -shm beside it while in use
//	engine/lock           held by the one process that serves the directory
//	engine/restoring      there only while a restore is under way
//	backups/              copies made before a migration, files a restore replaced
package datafile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

const (
	engineDir  = "engine"
	backupsDir = "backups"
	fileName   = "temporal.db"
	// walSuffix and shmSuffix are what SQLite puts beside a file in use.
	walSuffix = "-wal"
	shmSuffix = "-shm"
)

// Path returns the data file of dataDir.
func Path(dataDir string) string { return filepath.Join(dataDir, engineDir, fileName) }

// URIPath returns path as it must be written in SQLite's URI form: a "?" or
// "#" in a directory's name would end the path.
func URIPath(path string) string { return (&url.URL{Path: path}).EscapedPath() }

// open opens an existing file. It waits for writers instead of failing.
func open(ctx context.Context, path string) (*sql.DB, error) {
	hookDriver()
	db, err := sql.Open("sqlite",
		"file:"+URIPath(path)+"?mode=rw&_pragma=busy_timeout(15000)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "open %s: %w", path, err)
	}
	// One connection: pragmas and transactions below count on it.
	db.SetMaxOpenConns(1)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(classed(ctx, err, "open %s", path), db.Close())
	}
	return db, nil
}

// existing returns nil when path is a regular file with content.
func existing(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return box.Errorf(box.ClassNotFound, "there is no data file %s: the engine makes it at its first start", path)
	case err != nil:
		return box.Errorf(box.ClassUnavailable, "look at the data file: %w", err)
	case !info.Mode().IsRegular():
		return box.Errorf(box.ClassFailedPrecondition,
			"the data file %s is a link or no regular file: put the file itself there", path)
	case info.Size() == 0:
		return box.Errorf(box.ClassFailedPrecondition,
			"the data file %s is empty, so its content was lost: restore a backup", path)
	}
	return nil
}

// IntegrityCheck reads the whole file and returns nil when SQLite finds no
// fault. A file that kill -9 left is recovered first, as at a start.
func IntegrityCheck(ctx context.Context, dataDir string) (err error) {
	path := Path(dataDir)
	if err := existing(path); err != nil {
		return err
	}
	db, err := open(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return check(ctx, db, path)
}

// check runs SQLite's full check over an open file.
func check(ctx context.Context, db *sql.DB, path string) (err error) {
	rows, err := db.QueryContext(ctx, "PRAGMA integrity_check(10)")
	if err != nil {
		return classed(ctx, err, "check %s", path)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var faults []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return classed(ctx, err, "check %s", path)
		}
		if line != "ok" {
			faults = append(faults, line)
		}
	}
	if err := rows.Err(); err != nil {
		return classed(ctx, err, "check %s", path)
	}
	if len(faults) > 0 {
		return box.Errorf(box.ClassFailedPrecondition, "the data file %s is damaged, so restore a backup: %s",
			path, strings.Join(faults, "; "))
	}
	return nil
}

// stamp names a copy made now; names sort by age.
func stamp() string { return time.Now().UTC().Format("20060102T150405.000Z") }

// classed wraps err in the class that tells the caller what to do.
func classed(ctx context.Context, err error, format string, args ...any) error {
	class := box.ClassUnavailable
	text := err.Error()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		class = box.ClassDeadlineExceeded
	case ctx.Err() != nil:
		class = box.ClassCanceled
	case strings.Contains(text, "malformed"), strings.Contains(text, "not a database"):
		return box.Errorf(box.ClassFailedPrecondition, "%s: the data file is damaged, so restore a backup: %w", fmt.Sprintf(format, args...), err)
	case strings.Contains(text, "disk is full"), strings.Contains(text, "no space left"):
		class = box.ClassExhausted
	}
	return box.Errorf(class, "%s: %w", fmt.Sprintf(format, args...), err)
}

// syncDir makes the names in dir survive a power loss.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return box.Errorf(box.ClassUnavailable, "open %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return box.Errorf(box.ClassUnavailable, "sync %s: %w", dir, err)
	}
	return nil
}
