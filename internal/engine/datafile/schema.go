package datafile

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// applicationID marks a file as ours ("bxkp"), so that another program's
// SQLite file is not taken for it.
const applicationID = 0x62786b70

// Schema is what the linked server wants its file to be.
type Schema struct {
	// Files holds, for each part, <part>/schema.sql with the newest state and
	// <part>/versioned/v<version>/ with the steps, a manifest.json in each.
	Files fs.FS
	// Temporal and Visibility are the newest versions of the two parts.
	Temporal   string
	Visibility string
}

// Prepared says what Prepare did. The zero value means that the file was as
// wanted.
type Prepared struct {
	Created bool
	// From, To and Backup are set after a migration.
	From, To string
	Backup   string
}

// Prepare makes the data file, or brings it to the schema, so that a server
// can open it. The caller holds the lock. A crash at any point leaves no file,
// or the old one, or the finished one.
//
// FailedPrecondition says that the file must not be opened: it is newer, not
// ours, damaged, or half restored; the message says what to do.
func Prepare(ctx context.Context, dataDir string, want Schema) (Prepared, error) {
	target, err := want.version()
	if err != nil {
		return Prepared{}, err
	}
	if source, err := os.ReadFile(markerPath(dataDir)); err == nil {
		return Prepared{}, box.Errorf(box.ClassFailedPrecondition,
			"a restore of %s was interrupted: repeat it before the engine is started", strings.TrimSpace(string(source)))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Prepared{}, box.Errorf(box.ClassUnavailable, "look for an interrupted restore: %w", err)
	}
	file := Path(dataDir)
	if err := existing(file); err != nil {
		if box.ClassOf(err) != box.ClassNotFound {
			return Prepared{}, err
		}
		if _, err := os.Lstat(file + walSuffix); err == nil {
			return Prepared{}, box.Errorf(box.ClassFailedPrecondition,
				"the data file %s is missing while its log %s is there: put it back, or restore a backup", file, fileName+walSuffix)
		}
		return Prepared{Created: true}, create(ctx, file, want, target)
	}
	return migrate(ctx, dataDir, want, target)
}

// create builds the file under another name, so that a crash leaves none.
func create(ctx context.Context, file string, want Schema, target version) (err error) {
	building := file + ".new"
	for _, leftover := range []string{building, building + "-journal"} {
		if err := os.Remove(leftover); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return box.Errorf(box.ClassUnavailable, "remove an unfinished data file: %w", err)
		}
	}
	empty, err := os.OpenFile(building, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return classed(ctx, err, "make the data file")
	}
	if err := empty.Close(); err != nil {
		return classed(ctx, err, "make the data file")
	}
	db, err := open(ctx, building)
	if err != nil {
		return err
	}
	var scripts []script
	for _, part := range parts {
		text, err := fs.ReadFile(want.Files, path.Join(part, "schema.sql"))
		if err != nil {
			return errors.Join(box.Errorf(box.ClassInternal, "read the schema: %w", err), db.Close())
		}
		scripts = append(scripts, script{name: part + "/schema.sql", text: string(text)})
	}
	if err := errors.Join(apply(ctx, db, scripts, target), db.Close()); err != nil {
		return err
	}
	if err := os.Rename(building, file); err != nil {
		return classed(ctx, err, "finish the data file")
	}
	return syncDir(filepath.Dir(file))
}

// migrate applies the missing steps to an existing file.
func migrate(ctx context.Context, dataDir string, want Schema, target version) (_ Prepared, err error) {
	file := Path(dataDir)
	db, err := open(ctx, file)
	if err != nil {
		return Prepared{}, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	have, err := versionOf(ctx, db, file)
	if err != nil {
		return Prepared{}, err
	}
	if err := have.notNewerThan(target, file); err != nil {
		return Prepared{}, err
	}
	if have == target {
		return Prepared{}, nil
	}
	steps, err := want.stepsFrom(have)
	if err != nil {
		return Prepared{}, err
	}
	backup := filepath.Join(dataDir, backupsDir, fmt.Sprintf("before-migration-%s-%s.db", have, stamp()))
	if err := os.MkdirAll(filepath.Dir(backup), 0o700); err != nil {
		return Prepared{}, box.Errorf(box.ClassUnavailable, "make the directory of backups: %w", err)
	}
	if err := copyTo(ctx, db, file, backup); err != nil {
		return Prepared{}, err
	}
	if err := apply(ctx, db, steps, target); err != nil {
		return Prepared{}, fmt.Errorf("bring %s from schema %s to %s; it is unchanged, and a copy is %s: %w",
			file, have, target, backup, err)
	}
	return Prepared{From: have.String(), To: target.String(), Backup: backup}, nil
}

// script is one piece of SQL, of any number of statements.
type script struct{ name, text string }

// apply runs the scripts and records the version, all or nothing.
func apply(ctx context.Context, db *sql.DB, scripts []script, v version) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return classed(ctx, err, "begin a change of schema")
	}
	for _, s := range scripts {
		if _, err := tx.ExecContext(ctx, s.text); err != nil {
			return errors.Join(classed(ctx, err, "apply %s", s.name), tx.Rollback())
		}
	}
	mark := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, v.pack())
	if _, err := tx.ExecContext(ctx, mark); err != nil {
		return errors.Join(classed(ctx, err, "record the version of the schema"), tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return classed(ctx, err, "commit a change of schema")
	}
	return nil
}

// versionOf reads what the file records about itself.
func versionOf(ctx context.Context, db *sql.DB, file string) (version, error) {
	var app, packed int64
	if err := db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&app); err != nil {
		return version{}, classed(ctx, err, "read %s", file)
	}
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&packed); err != nil {
		return version{}, classed(ctx, err, "read the version of %s", file)
	}
	if app != applicationID || packed <= 0 {
		return version{}, box.Errorf(box.ClassFailedPrecondition,
			"%s was not made by this product, so its schema is not known: name another data directory, or restore a backup", file)
	}
	return unpack(packed), nil
}

// The two parts of the schema, in the order they are applied.
const (
	partTemporal   = "temporal"
	partVisibility = "visibility"
)

var parts = [...]string{partTemporal, partVisibility} //nolint:gochecknoglobals // a constant list

// number is a version of one part, such as 0.11.
type number struct{ major, minor int }

func (n number) compare(o number) int {
	if n.major != o.major {
		return n.major - o.major
	}
	return n.minor - o.minor
}

func (n number) String() string { return fmt.Sprintf("%d.%d", n.major, n.minor) }

func parseNumber(text string) (number, error) {
	major, minor, ok := strings.Cut(strings.TrimPrefix(text, "v"), ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	// The bounds keep pack within SQLite's 32 bits.
	if !ok || errA != nil || errB != nil || a < 0 || a > 99 || b < 0 || b > 99 {
		return number{}, box.Errorf(box.ClassInternal, "read the schema: %q is no version", text)
	}
	return number{a, b}, nil
}

// version is the version of both parts. It is kept in the file's user_version
// as four decimal pairs: temporal major, minor, visibility major, minor.
type version struct{ temporal, visibility number }

func (v version) pack() int64 {
	return int64(((v.temporal.major*100+v.temporal.minor)*100+v.visibility.major)*100 + v.visibility.minor)
}

func unpack(p int64) version {
	n := int(p)
	return version{
		temporal:   number{n / 1000000, n / 10000 % 100},
		visibility: number{n / 100 % 100, n % 100},
	}
}

func (v version) String() string { return v.temporal.String() + "+" + v.visibility.String() }

func (v version) notNewerThan(target version, file string) error {
	if v.temporal.compare(target.temporal) > 0 || v.visibility.compare(target.visibility) > 0 {
		return box.Errorf(box.ClassFailedPrecondition,
			"%s was made by a newer release (schema %s, this one knows %s): use that release, or restore an older backup",
			file, v, target)
	}
	return nil
}

func (s Schema) version() (version, error) {
	temporal, err := parseNumber(s.Temporal)
	if err != nil {
		return version{}, err
	}
	visibility, err := parseNumber(s.Visibility)
	return version{temporal, visibility}, err
}

// stepsFrom lists the scripts that lead from have to the newest version.
func (s Schema) stepsFrom(have version) ([]script, error) {
	target, err := s.version()
	if err != nil {
		return nil, err
	}
	temporal, err := s.partSteps(partTemporal, have.temporal, target.temporal)
	if err != nil {
		return nil, err
	}
	visibility, err := s.partSteps(partVisibility, have.visibility, target.visibility)
	return append(temporal, visibility...), err
}

func (s Schema) partSteps(part string, have, target number) ([]script, error) {
	if have == target {
		return nil, nil
	}
	entries, err := fs.ReadDir(s.Files, path.Join(part, "versioned"))
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "read the steps of the schema: %w", err)
	}
	var due []number
	for _, entry := range entries {
		n, err := parseNumber(entry.Name())
		if err != nil {
			return nil, err
		}
		if n.compare(have) > 0 && n.compare(target) <= 0 {
			due = append(due, n)
		}
	}
	// By number: as text, 0.10 sorts before 0.2.
	slices.SortFunc(due, number.compare)
	if len(due) == 0 || due[len(due)-1] != target {
		return nil, box.Errorf(box.ClassInternal, "the steps of the %s schema do not lead from %s to %s", part, have, target)
	}
	var scripts []script
	for _, n := range due {
		step, err := s.readStep(path.Join(part, "versioned", "v"+n.String()))
		if err != nil {
			return nil, err
		}
		scripts = append(scripts, step...)
	}
	return scripts, nil
}

// readStep reads the scripts of one step in the order of its manifest.
func (s Schema) readStep(dir string) ([]script, error) {
	text, err := fs.ReadFile(s.Files, path.Join(dir, "manifest.json"))
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "read a step of the schema: %w", err)
	}
	var manifest struct {
		Files []string `json:"SchemaUpdateCqlFiles"`
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		return nil, box.Errorf(box.ClassInternal, "read %s/manifest.json: %w", dir, err)
	}
	scripts := make([]script, 0, len(manifest.Files))
	for _, name := range manifest.Files {
		text, err := fs.ReadFile(s.Files, path.Join(dir, name))
		if err != nil {
			return nil, box.Errorf(box.ClassInternal, "read a step of the schema: %w", err)
		}
		scripts = append(scripts, script{name: path.Join(dir, name), text: string(text)})
	}
	if len(scripts) == 0 {
		return nil, box.Errorf(box.ClassInternal, "step %s of the schema is empty", dir)
	}
	return scripts, nil
}
