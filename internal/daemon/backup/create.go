package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine/datafile"
)

// Options say what is backed up. Only DataDir is required.
type Options struct {
	DataDir string
	// Instances are the directories of the local instances; what is not below
	// DataDir is not taken.
	Instances []string
	// Exports is the directory of the export store, empty when it is none.
	Exports string
	// NoBoxes leaves the directories of boxes out, not the records about them.
	NoBoxes bool
	// Installation is the public id, Outside what is said to be missing; both
	// are only written down.
	Installation string
	Outside      []string
	// Progress is called for every entry; nil for no one.
	Progress func(Progress)
	// Now is the clock; nil means the wall clock.
	Now func() time.Time
}

// Create writes a backup of a data directory to file, also while an engine,
// workers and boxes use it, reads it back, and only then gives it its name. It
// is readable by its owner only: it holds the installation key.
//
// AlreadyExists: file is there; it is never overwritten. Invalid names the
// field at fault. NotFound: there is no data file of an engine. Conflict: a file
// kept changing. Exhausted: no room. After any error nothing is left behind.
func Create(ctx context.Context, file string, o Options) (_ Summary, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	data, err := source(o.DataDir)
	if err != nil {
		return Summary{}, err
	}
	dest, err := destination(file, data)
	if err != nil {
		return Summary{}, err
	}
	work, err := os.MkdirTemp(filepath.Dir(dest), ".boxkeeper-backup-*") // for its owner only
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return Summary{}, box.Invalidf("file", "nothing may be written in %s: name a file elsewhere, or change its permissions", filepath.Dir(dest))
	}
	if err != nil {
		return Summary{}, failed(err, "make a directory for the unfinished backup in %s", filepath.Dir(dest))
	}
	defer func() { err = errors.Join(err, failed(os.RemoveAll(work), "remove what the backup left in %s", work)) }()

	o.Progress(Progress{Stage: "copying the engine's data file"})
	engineCopy := filepath.Join(work, "temporal.db")
	if err := datafile.Backup(ctx, data, engineCopy); err != nil {
		return Summary{}, err
	}
	summary := Summary{File: dest, Data: data, CreatedAt: o.Now().UTC(), Installation: o.Installation, Boxes: !o.NoBoxes, Outside: o.Outside}
	unfinished := filepath.Join(work, "archive")
	if err := fill(ctx, unfinished, engineCopy, o, &summary); err != nil {
		return Summary{}, err
	}
	if err := prove(ctx, unfinished, o.Progress, summary); err != nil {
		return Summary{}, err
	}
	if err := publish(unfinished, dest); err != nil {
		return Summary{}, err
	}
	return summary, nil
}

// source returns the data directory without links.
func source(dir string) (string, error) {
	if dir == "" {
		return "", box.Invalidf("data", "name the data directory with --data")
	}
	data, err := filepath.Abs(dir)
	if err == nil {
		data, err = filepath.EvalSymlinks(data)
	}
	if err != nil {
		return "", box.Invalidf("data", "there is no data directory %s to back up: %v; name it with --data", dir, bare(err))
	}
	if _, err := os.Lstat(filepath.Join(data, restoringFile)); err == nil {
		return "", box.Errorf(box.ClassFailedPrecondition, "a restore of the data directory %s was interrupted or is under way; finish it first", data)
	}
	return data, nil
}

// destination checks where the backup is to be.
func destination(file, data string) (string, error) {
	if file == "" || file == "-" {
		return "", box.Invalidf("file", "name a file: a backup is not written to standard output")
	}
	dest, err := filepath.Abs(file)
	if err != nil {
		return "", box.Invalidf("file", "resolve %s: %v", file, err)
	}
	if _, err := os.Lstat(dest); err == nil {
		return "", taken(dest)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(dest))
	if info, at := os.Stat(filepath.Dir(dest)); err != nil || at != nil || !info.IsDir() {
		return "", box.Invalidf("file", "there is no directory %s: make it first, or name another file", filepath.Dir(dest))
	}
	if strings.HasSuffix(file, string(filepath.Separator)) {
		return "", box.Invalidf("file", "%s is the name of a directory: name a file in it", file)
	}
	if rel, in := below(data, filepath.Join(dir, filepath.Base(dest))); in && !strings.HasPrefix(rel, "backups/") {
		return "", box.Invalidf("file", "%s is in the data directory itself and would be lost with it: name a file elsewhere, on another disk if there is one", dest)
	}
	return filepath.Join(dir, filepath.Base(dest)), nil
}

func taken(dest string) error {
	return &box.Error{Class: box.ClassAlreadyExists, Field: "file", Message: dest + " is there already: name another file, or move that one away"}
}

// fill writes the archive.
func fill(ctx context.Context, to, engineCopy string, o Options, s *Summary) (err error) {
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return failed(err, "make the unfinished backup")
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	spool, err := os.OpenFile(to+".manifest", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return failed(err, "make the manifest of the backup")
	}
	defer spool.Close()

	sum := &counter{hash: sha256.New()}
	h := head{
		Format: formatName, Version: formatVersion, CreatedAt: s.CreatedAt,
		Installation: s.Installation, Boxes: s.Boxes, Outside: s.Outside,
	}
	a, err := newArchive(ctx, io.MultiWriter(out, sum), spool, h, o.Progress)
	if err != nil {
		return err
	}
	defer a.close()
	w := &walker{
		ctx: ctx, rules: o.rules(s.Data), archive: a, engine: engineCopy,
		linked: map[inode]first{}, left: map[string]int{},
	}
	if err := w.whole(s.Data); err != nil {
		return err
	}
	if err := a.end(); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return failed(err, "sync the backup")
	}
	s.Entries, s.Bytes, s.FileBytes, s.SHA256 = a.total.Entries, a.total.Bytes, sum.bytes, hex.EncodeToString(sum.hash.Sum(nil))
	s.Changed, s.ChangedFirst = w.changes, w.changed
	for _, what := range slices.Sorted(maps.Keys(w.left)) {
		s.LeftOut = append(s.LeftOut, LeftOut{What: what, Count: w.left[what]})
	}
	return nil
}

// counter counts and sums what is written, and tells how much that is so far.
type counter struct {
	bytes int64
	hash  hash.Hash
	tell  func(bytes int64) // may be nil
}

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	if c.tell != nil {
		c.tell(c.bytes)
	}
	return c.hash.Write(p)
}

// rules returns what is left out of the data directory.
func (o Options) rules(data string) rules {
	r := rules{noBoxes: o.NoBoxes}
	for _, dir := range o.Instances {
		if rel, ok := below(data, resolve(dir)); ok {
			r.instances = append(r.instances, rel)
		}
	}
	// Instances that are configured no more may have boxes too.
	found, _ := os.ReadDir(filepath.Join(data, instancesDir)) // unreadable: the walk says so
	for _, d := range found {
		rel := instancesDir + "/" + d.Name()
		if _, err := os.Lstat(filepath.Join(data, rel, "control")); err == nil && d.IsDir() && !slices.Contains(r.instances, rel) {
			r.instances = append(r.instances, rel)
		}
	}
	if o.Exports != "" {
		r.exports, _ = below(data, resolve(o.Exports))
	}
	return r
}

// prove reads a backup back and holds it against what was written.
func prove(ctx context.Context, file string, tell func(Progress), s Summary) error {
	read, err := verify(ctx, file, file+".verify", tell)
	switch {
	case box.ClassOf(err) == box.ClassInvalid:
		return box.Errorf(box.ClassInternal, "the backup was read back and is not what was written, so it was removed; look at the disk it is on: %w", err)
	case err != nil:
		return err
	}
	if read.total.Entries != s.Entries || read.total.Bytes != s.Bytes || read.sum != s.SHA256 {
		return box.Errorf(box.ClassInternal, "the backup was read back and is not what was written, so it was removed; look at the disk it is on")
	}
	return nil
}

// publish gives a finished backup its name and never replaces another file.
func publish(from, dest string) error {
	if err := renameNew(from, dest); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return taken(dest)
		}
		return failed(err, "name the backup %s", dest)
	}
	return syncDir(filepath.Dir(dest))
}

// renameNew renames and never replaces, as far as the file system can tell.
func renameNew(from, to string) error {
	err := renameOnly(from, to)
	if err == nil || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, there := os.Lstat(to); there == nil {
		return fs.ErrExist
	}
	return os.Rename(from, to)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return failed(err, "open %s", dir)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return failed(err, "sync %s", dir)
	}
	return nil
}
