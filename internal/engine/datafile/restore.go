package datafile

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/openhands/boxkeeper/box"
)

// markerPath names the file that says which restore is under way.
func markerPath(dataDir string) string { return filepath.Join(dataDir, engineDir, "restoring") }

// Restore puts src in the place of the data file, which is moved into a
// directory below backups first, together with its log. It takes the lock of
// dataDir. The backup itself is only read.
//
// While the marker is there no engine starts, so a crash between the two
// renames can't be taken for a new, empty installation: repeat the restore.
func Restore(ctx context.Context, src, dataDir string, want Schema) error {
	target, err := want.version()
	if err != nil {
		return err
	}
	if err := restorable(src); err != nil {
		return err
	}
	lock, err := Acquire(dataDir)
	if err != nil {
		return err
	}
	defer lock.Release()

	file := Path(dataDir)
	incoming := file + ".restore"
	for _, suffix := range []string{"", walSuffix, shmSuffix, "-journal"} {
		if err := os.Remove(incoming + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return box.Errorf(box.ClassUnavailable, "remove an unfinished restore: %w", err)
		}
	}
	defer func() { _ = os.Remove(incoming) }()
	if err := copyFile(ctx, src, incoming); err != nil {
		return err
	}
	if err := admissible(ctx, incoming, src, target); err != nil {
		return err
	}
	// From here on nothing heeds ctx: half a restore helps nobody.
	if err := writeMarker(dataDir, src); err != nil {
		return err
	}
	if err := moveAside(dataDir); err != nil {
		return err
	}
	if err := os.Rename(incoming, file); err != nil {
		return box.Errorf(box.ClassUnavailable, "put the backup in place: %w", err)
	}
	if err := syncDir(filepath.Dir(file)); err != nil {
		return err
	}
	if err := os.Remove(markerPath(dataDir)); err != nil {
		return box.Errorf(box.ClassUnavailable, "end the restore: %w", err)
	}
	return syncDir(filepath.Dir(file))
}

// restorable refuses a source that can't be a finished backup.
func restorable(src string) error {
	info, err := os.Stat(src)
	switch {
	case err != nil:
		return box.Invalidf("file", "there is no backup %s to read: %v", src, err)
	case !info.Mode().IsRegular() || info.Size() == 0:
		return box.Invalidf("file", "%s is no backup: name the file that a backup wrote", src)
	}
	if wal, err := os.Stat(src + walSuffix); err == nil && wal.Size() > 0 {
		return box.Invalidf("file", "%s is a data file in use, or one that was not closed: make a backup of it, and restore that", src)
	}
	return nil
}

// admissible checks the copied backup before anything else is touched.
func admissible(ctx context.Context, incoming, src string, target version) (err error) {
	db, err := open(ctx, incoming)
	if err != nil {
		return notABackup(src, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	have, err := versionOf(ctx, db, src)
	if err != nil {
		return notABackup(src, err)
	}
	if err := have.notNewerThan(target, src); err != nil {
		return err
	}
	if err := check(ctx, db, src); err != nil {
		return notABackup(src, err)
	}
	return nil
}

func notABackup(src string, err error) error {
	switch class := box.ClassOf(err); class { //nolint:exhaustive // all other classes say nothing about the file
	case box.ClassCanceled, box.ClassDeadlineExceeded, box.ClassExhausted:
		return err
	default:
		return &box.Error{Class: box.ClassInvalid, Field: "file", Message: src + " is no sound backup", Err: err}
	}
}

func writeMarker(dataDir, src string) error {
	if abs, err := filepath.Abs(src); err == nil {
		src = abs
	}
	marker, err := os.OpenFile(markerPath(dataDir), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return box.Errorf(box.ClassUnavailable, "begin the restore: %w", err)
	}
	_, err = marker.WriteString(src + "\n")
	if err := errors.Join(err, marker.Sync(), marker.Close()); err != nil {
		return box.Errorf(box.ClassUnavailable, "begin the restore: %w", err)
	}
	return syncDir(filepath.Dir(markerPath(dataDir)))
}

// moveAside keeps the replaced file exactly as it is, its log included: it may
// be damaged, and opening it could change it.
func moveAside(dataDir string) error {
	file := Path(dataDir)
	var present []string
	for _, suffix := range []string{"", walSuffix, shmSuffix} {
		if _, err := os.Lstat(file + suffix); err == nil {
			present = append(present, fileName+suffix)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return box.Errorf(box.ClassUnavailable, "look at the data file: %w", err)
		}
	}
	if len(present) == 0 {
		return nil
	}
	aside := filepath.Join(dataDir, backupsDir, "replaced-"+stamp())
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return box.Errorf(box.ClassUnavailable, "make a place for the replaced data file: %w", err)
	}
	for _, name := range present {
		if err := os.Rename(filepath.Join(filepath.Dir(file), name), filepath.Join(aside, name)); err != nil {
			return box.Errorf(box.ClassUnavailable, "move the replaced data file to %s: %w", aside, err)
		}
	}
	if err := syncDir(aside); err != nil {
		return err
	}
	return syncDir(filepath.Dir(aside))
}
