package local

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// place is the directory of an instance, as a path without links.
type place struct{ dir string }

func (p place) boxes() string             { return filepath.Join(p.dir, "boxes") }
func (p place) control() string           { return filepath.Join(p.dir, "control") }
func (p place) trash() string             { return filepath.Join(p.dir, "trash") }
func (p place) fences() string            { return filepath.Join(p.dir, "fences") }
func (p place) box(name string) string    { return filepath.Join(p.boxes(), name) }
func (p place) record(name string) string { return filepath.Join(p.control(), name+recordSuffix) }
func (p place) lockOf(name string) string { return filepath.Join(p.control(), name+".lock") }
func (p place) engineID() string          { return filepath.Join(p.dir, "engine-id") }
func (p place) boxesID() string           { return filepath.Join(p.boxes(), ".engine-id") }

const recordSuffix = ".json"

var engineForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// openPlace makes the directory or accepts one that is whole.
func openPlace(dir string) (place, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return place{}, ioError("make the directory of the boxes", err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return place{}, ioError("find the directory of the boxes", err)
	}
	p := place{dir: real}
	for _, sub := range []string{p.boxes(), p.control(), p.trash(), p.fences()} {
		if err := os.Mkdir(sub, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return place{}, ioError("make "+sub, err)
		}
		if info, err := os.Lstat(sub); err != nil || !info.IsDir() {
			return place{}, box.Errorf(box.ClassFailedPrecondition, "%s is not a directory; move it away", sub)
		}
	}
	id, err := readID(p.engineID())
	if errors.Is(err, fs.ErrNotExist) {
		id, err = p.newID()
	}
	if err != nil {
		return place{}, err
	}
	marked, err := readID(p.boxesID())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// A first start that was cut short, or boxes/ is not the one of the
		// records: then every box in it would seem to be gone.
		names, err := p.records()
		if err != nil {
			return place{}, err
		}
		if len(names) > 0 {
			return place{}, box.Errorf(box.ClassFailedPrecondition, "%s is not the directory that the records in %s are about; mount or restore it", p.boxes(), p.control())
		}
		if err := createID(p.boxesID(), id); err != nil {
			return place{}, err
		}
	case err != nil:
		return place{}, err
	case marked != id:
		return place{}, p.mixed()
	}
	_, err = p.fingerprint()
	return p, err
}

// newID names a fresh place. A place that holds boxes already has lost its id,
// and a new one would disown them.
func (p place) newID() (string, error) {
	if _, err := os.Lstat(p.boxesID()); !errors.Is(err, fs.ErrNotExist) {
		return "", box.Errorf(box.ClassFailedPrecondition, "%s is missing but %s is there; restore it from there, or move the whole directory away", p.engineID(), p.boxesID())
	}
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		return "", box.Errorf(box.ClassInternal, "make an id: %w", err)
	}
	if err := createID(p.engineID(), hex.EncodeToString(raw)); err != nil {
		return "", err
	}
	return readID(p.engineID())
}

func (p place) mixed() error {
	return box.Errorf(box.ClassFailedPrecondition, "%s and %s disagree: the boxes are of another engine; put back the directory that belongs here", p.engineID(), p.boxesID())
}

// id returns the engine id when the place is whole now.
func (p place) id() (string, error) {
	id, err := readID(p.engineID())
	if err != nil {
		return "", ioError("read the engine id; is the directory mounted and where it was?", err)
	}
	marked, err := readID(p.boxesID())
	if err != nil {
		return "", ioError("read the id of boxes/; is it mounted?", err)
	}
	if marked != id {
		return "", p.mixed()
	}
	return id, nil
}

// fingerprint tells this directory on this machine from every other.
func (p place) fingerprint() (string, error) {
	id, err := p.id()
	if err != nil {
		return "", err
	}
	machine := "any"
	// The id of the machine must not be shown, so it is hashed. Where there is
	// none, as in some containers, the engine id alone counts.
	if raw, err := os.ReadFile("/etc/machine-id"); err == nil && strings.TrimSpace(string(raw)) != "" {
		sum := sha256.Sum256([]byte("boxkeeper local " + strings.TrimSpace(string(raw))))
		machine = hex.EncodeToString(sum[:6])
	}
	return "local/" + id + "@" + machine, nil
}

func readID(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(raw))
	if !engineForm.MatchString(id) {
		return "", box.Errorf(box.ClassFailedPrecondition, "%s does not hold an id; restore it", path)
	}
	return id, nil
}

// createID writes an id that appears whole or not at all. One that is there
// already wins.
func createID(path, id string) error {
	temp, err := writeTemp(path, []byte(id+"\n"))
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	if err := os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return ioError("write "+path, err)
	}
	return syncDir(filepath.Dir(path))
}

// writeTemp writes a durable file beside path.
func writeTemp(path string, data []byte) (string, error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*") // 0600
	if err != nil {
		return "", ioError("write "+path, err)
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync())
	err = errors.Join(err, file.Close())
	if err != nil {
		err = errors.Join(err, os.Remove(file.Name()))
		return "", ioError("write "+path, err)
	}
	return file.Name(), nil
}

func syncDir(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return ioError("sync "+dir, err)
	}
	err = errors.Join(file.Sync(), file.Close())
	if err != nil {
		return ioError("sync "+dir, err)
	}
	return nil
}

// records returns the names of all boxes that have one, in order.
func (p place) records() ([]string, error) {
	entries, err := os.ReadDir(p.control())
	if err != nil {
		return nil, ioError("list the records", err)
	}
	var out []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), recordSuffix); ok && !strings.HasPrefix(name, ".") {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// lock keeps every other worker and goroutine from changing the box, until the
// returned function is called or the process ends.
func (p place) lock(ctx context.Context, name string) (func(), error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		file, err := p.tryLock(name)
		if err != nil {
			return nil, err
		}
		if file != nil && ctx.Err() != nil { // while it waited somebody else may have gone on
			_ = file.Close()
			return nil, driver.Ended(ctx)
		}
		if file != nil {
			return func() {
				// The lock's file is only kept for a box that is there.
				if _, err := os.Lstat(p.record(name)); errors.Is(err, fs.ErrNotExist) {
					_ = os.Remove(p.lockOf(name))
				}
				_ = file.Close()
			}, nil
		}
		select {
		case <-ctx.Done():
			return nil, driver.Ended(ctx)
		case <-tick.C:
		}
	}
}

// tryLock returns nil when somebody else holds the lock.
func (p place) tryLock(name string) (*os.File, error) {
	file, err := os.OpenFile(p.lockOf(name), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, ioError("lock box "+name, err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		// A lock on a file that was removed meanwhile locks nothing.
		mine, err1 := file.Stat()
		current, err2 := os.Lstat(p.lockOf(name))
		if err1 == nil && err2 == nil && os.SameFile(mine, current) {
			return file, nil
		}
		_ = file.Close()
		return nil, nil //nolint:nilnil // "not now"
	}
	_ = file.Close()
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, nil //nolint:nilnil // "not now"
	}
	return nil, ioError("lock box "+name, err)
}

// busy reports whether somebody is changing the box now.
func (p place) busy(name string) bool {
	file, err := os.OpenFile(p.lockOf(name), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	return errors.Is(unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.EAGAIN)
}
