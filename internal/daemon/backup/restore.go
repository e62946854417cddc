package backup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine/datafile"
)

// Target says where a backup goes.
type Target struct {
	DataDir string
	// PutDataFile checks an engine's data file and puts it into a data directory
	// without one, as the engine does.
	PutDataFile func(ctx context.Context, src, dataDir string) error
	// Progress is called for every entry; nil for no one.
	Progress func(Progress)
}

const stagePattern = ".boxkeeper-restore-"

// Restore makes a data directory from a backup. The file is read as a whole and
// checked before anything is written, and again while it is. The data directory
// must not exist or be empty: nothing is overwritten.
//
// Invalid: file is no backup, or a damaged one. FailedPrecondition: there is
// something in the data directory, or a newer release made the backup.
// Exhausted: no room. After any error the data directory is as it was, and may
// be tried again. A crash leaves it empty but for a directory of ours, or so
// that no engine starts in it.
func Restore(ctx context.Context, file string, t Target) (_ Summary, err error) {
	if t.Progress == nil {
		t.Progress = func(Progress) {}
	}
	target, inside, err := vacant(t.DataDir)
	if err != nil {
		return Summary{}, err
	}
	if file, err = filepath.Abs(file); err != nil {
		return Summary{}, box.Invalidf("file", "resolve %s: %v", file, err)
	}
	checked, err := openBackup(file) // a wrong name makes no directories
	if err != nil {
		return Summary{}, err
	}
	checked.Close()
	stage, err := makeStage(target, inside)
	if err != nil {
		return Summary{}, err
	}
	defer func() { err = errors.Join(err, failed(removeTree(stage), "remove what the restore left in %s", stage)) }()

	read, err := unpack(ctx, file, stage, t)
	if err != nil {
		return Summary{}, err
	}
	if err := commit(stage, target, inside, file); err != nil {
		return Summary{}, err
	}
	return Summary{
		File: file, Data: target, CreatedAt: read.head.CreatedAt, Installation: read.head.Installation,
		Entries: read.total.Entries, Bytes: read.total.Bytes, FileBytes: read.bytes, SHA256: read.sum,
		Boxes: read.head.Boxes, Outside: read.head.Outside,
	}, nil
}

// vacant returns the data directory without links, and whether it is there.
func vacant(dir string) (target string, there bool, err error) {
	if dir == "" {
		return "", false, box.Invalidf("data", "name the data directory with --data")
	}
	if target, err = filepath.Abs(dir); err != nil {
		return "", false, box.Invalidf("data", "resolve %s: %v", dir, err)
	}
	if real, err := filepath.EvalSymlinks(target); err == nil {
		target = real
	}
	info, err := os.Lstat(target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return target, false, nil
	case err != nil:
		return "", false, failed(err, "look at the data directory %s", target)
	case !info.IsDir():
		return "", false, box.Invalidf("data", "%s is not a directory; move it aside, or name another one with --data", target)
	}
	entries, err := os.ReadDir(target)
	if err != nil {
		return "", false, failed(err, "look into the data directory %s", target)
	}
	// A fresh file system may have a directory of its own.
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "lost+found" })
	if len(entries) == 0 {
		return target, true, nil
	}
	return "", false, occupied(target, entries)
}

// occupied says what is in the way of a restore.
func occupied(target string, entries []fs.DirEntry) error {
	if _, err := os.Lstat(filepath.Join(target, engineDir, "lock")); err == nil {
		lock, err := datafile.Acquire(target)
		if err != nil {
			return err // it names the process
		}
		lock.Release()
	}
	refuse := func(text string) error {
		return &box.Error{Class: box.ClassFailedPrecondition, Field: "data", Message: text}
	}
	if _, err := os.Lstat(filepath.Join(target, restoringFile)); err == nil {
		return refuse("a restore of " + target + " was interrupted; move that directory aside and restore again")
	}
	if len(entries) == 1 && strings.HasPrefix(entries[0].Name(), stagePattern) {
		return refuse(filepath.Join(target, entries[0].Name()) + " is of a restore that is under way or was interrupted; if none is, remove it and restore again")
	}
	return refuse(target + " is not empty, and a restore overwrites nothing: move it aside, or name another directory with --data")
}

// makeStage makes the directory in which the new data directory grows: beside a
// target that is not there, so that one rename ends it; inside of one that is,
// since that may be a volume of its own, or in a directory that is not ours to
// write to.
func makeStage(target string, inside bool) (string, error) {
	at := target
	if !inside {
		at = filepath.Dir(target)
		if err := os.MkdirAll(at, 0o700); err != nil {
			return "", failed(err, "make the directory %s", at)
		}
	}
	stage, err := os.MkdirTemp(at, stagePattern+"*") // for its owner only
	if err != nil {
		return "", failed(err, "make a directory for the restore in %s", at)
	}
	return stage, nil
}

// unpack makes a whole data directory in stage.
func unpack(ctx context.Context, file, stage string, t Target) (contents, error) {
	lines := filepath.Join(stage, "manifest")
	read, err := verify(ctx, file, lines, t.Progress)
	if err != nil {
		return contents{}, err
	}
	if err := roomFor(filepath.Dir(stage), read.need); err != nil {
		return contents{}, err
	}
	data, engine := filepath.Join(stage, "data"), filepath.Join(stage, "temporal.db")
	if err := os.Mkdir(data, 0o700); err != nil {
		return contents{}, failed(err, "make the data directory")
	}
	x := &extract{top: data, engine: engine, owners: os.Geteuid() == 0, linked: map[string]bool{}}
	defer x.close()
	again, err := scan(ctx, file, lines, x, t.Progress, "restoring")
	if err != nil {
		return contents{}, err
	}
	if again.sum != read.sum {
		return contents{}, box.Errorf(box.ClassConflict, "%s was changed while it was read; restore again", file)
	}
	t.Progress(Progress{Stage: "checking the engine's data file", Entries: again.total.Entries, Bytes: again.total.Bytes})
	if err := t.PutDataFile(ctx, engine, data); err != nil {
		return contents{}, err
	}
	if err := x.handOver(); err != nil {
		return contents{}, err
	}
	dir, err := os.Open(stage)
	if err != nil {
		return contents{}, failed(err, "sync the restored files")
	}
	defer dir.Close()
	return again, failed(settle(dir), "sync the restored files")
}

// roomFor refuses what cannot fit before any of it is written.
func roomFor(dir string, need int64) error {
	var room unix.Statfs_t
	if err := unix.Statfs(dir, &room); err != nil {
		return failed(err, "look for room in %s", dir)
	}
	free := room.Bavail * uint64(room.Bsize) //nolint:gosec // a block has a size
	if uint64(need) > free {                 //nolint:gosec // a sum of sizes
		return &box.Error{
			Class: box.ClassExhausted, Field: "data",
			Message: "the backup needs " + sizeText(need) + " and " + dir + " has room for " + sizeText(int64(free)) + //nolint:gosec // smaller than need
				"; free some, or name a directory on another disk with --data",
		}
	}
	return nil
}

// commit puts the data directory in stage in its place.
func commit(stage, target string, inside bool, file string) error {
	data := filepath.Join(stage, "data")
	if inside {
		return moveInto(data, target, file)
	}
	if err := renameNew(data, target); err != nil {
		return failed(appeared(err, target), "put the data directory %s in place", target)
	}
	return syncDir(filepath.Dir(target))
}

func appeared(err error, target string) error {
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return &box.Error{
			Class: box.ClassConflict, Field: "data",
			Message: target + " was made by someone else meanwhile; look at it, and restore again",
		}
	}
	return err
}

// moveInto moves what is in a data directory into an empty one.
func moveInto(data, target, file string) error {
	return moveAll(data, target, file, func(string) {})
}

// moveAll is moveInto, and calls moved after each move. The engine goes first,
// with a mark that keeps it from starting until all is there, so that a crash
// in between cannot pass for a new installation.
func moveAll(data, target, file string, moved func(name string)) (err error) {
	mark := filepath.Join(data, restoringFile)
	if err := os.WriteFile(mark, []byte(file+"\n"), 0o600); err != nil {
		return failed(err, "mark the restore")
	}
	if err := syncDir(filepath.Dir(mark)); err != nil {
		return err
	}
	entries, err := os.ReadDir(data)
	if err != nil {
		return failed(err, "list the restored files")
	}
	slices.SortStableFunc(entries, func(a, b fs.DirEntry) int { return rankOf(a) - rankOf(b) })
	var there []string
	defer func() {
		if err != nil {
			for _, name := range slices.Backward(there) {
				err = errors.Join(err, failed(move(target, data, name), "take %q back", name))
			}
		}
	}()
	for _, e := range entries {
		if err := move(data, target, e.Name()); err != nil {
			return failed(appeared(err, filepath.Join(target, e.Name())), "put %q in place", e.Name())
		}
		there = append(there, e.Name())
		if err := syncDir(target); err != nil {
			return err
		}
		moved(e.Name())
	}
	if err := os.Remove(filepath.Join(target, restoringFile)); err != nil {
		return failed(err, "end the restore")
	}
	there = nil // it counts from here on
	return syncDir(filepath.Join(target, engineDir))
}

func rankOf(e fs.DirEntry) int {
	if e.Name() == engineDir {
		return 0
	}
	return 1
}

// move moves one entry. A directory that nobody may write to must be writable
// for that moment, since its ".." changes.
func move(from, to, name string) error {
	old, place := filepath.Join(from, name), filepath.Join(to, name)
	info, err := os.Lstat(old)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o200 != 0 {
		return renameNew(old, place)
	}
	if err := os.Chmod(old, info.Mode()|0o200); err != nil {
		return err
	}
	if err := renameNew(old, place); err != nil {
		return errors.Join(err, os.Chmod(old, info.Mode()))
	}
	return os.Chmod(place, info.Mode())
}

// removeTree removes a directory of ours, whatever the modes in it.
func removeTree(dir string) error {
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(name, 0o700) //nolint:gosec // its last mode
		}
		return nil
	})
	return os.RemoveAll(dir)
}
