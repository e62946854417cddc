package datafile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// Lock is the right to serve one data directory. It ends with the process, a
// killed one included.
type Lock struct{ file *os.File }

// Acquire takes the lock of dataDir, which it makes when it is missing.
// FailedPrecondition names the process that holds it.
func Acquire(dataDir string) (*Lock, error) {
	dir := filepath.Join(dataDir, engineDir)
	// Histories name workspaces and owners: others on this machine stay out.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, box.Errorf(box.ClassInvalid, "make the data directory: %w; name another one with --data", err)
	}
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, box.Errorf(box.ClassUnavailable, "open the lock of the data directory: %w", err)
	}
	if err := flock(file); err != nil {
		holder := holderOf(file)
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, box.Errorf(box.ClassFailedPrecondition,
				"the data directory %s is in use by %s: stop that one first, or name another directory with --data", dataDir, holder)
		}
		return nil, box.Errorf(box.ClassUnavailable, "lock the data directory %s: %w", dataDir, err)
	}
	// The number is only for people; the lock itself does not depend on it.
	if err := errors.Join(file.Truncate(0), writeAt(file, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		_ = file.Close()
		return nil, box.Errorf(box.ClassUnavailable, "write to the lock of the data directory %s: %w", dataDir, err)
	}
	return &Lock{file: file}, nil
}

// Release gives the directory free. The lock file stays: removing it would let
// two processes each hold a lock, one of them on a removed file.
func (l *Lock) Release() {
	_ = l.file.Truncate(0)
	// Closing alone is not enough: a child that is being started holds a copy of
	// the descriptor until its program runs.
	_ = unix.Flock(int(l.file.Fd()), unix.LOCK_UN)
	_ = l.file.Close()
}

// flock asks for the lock at once, again when a signal came in between.
func flock(file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

func holderOf(file *os.File) string {
	text, err := io.ReadAll(io.LimitReader(file, 32))
	if err != nil {
		return "another process"
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return "another process"
	}
	if pid == os.Getpid() {
		return "another engine in this process"
	}
	return "process " + strconv.Itoa(pid)
}
