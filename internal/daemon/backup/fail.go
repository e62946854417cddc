package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/openhands/boxkeeper/box"
)

// failed wraps an error of the file system in the class that tells the caller
// what to do. The format is a verb phrase.
func failed(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if _, done := errors.AsType[*box.Error](err); done {
		return err
	}
	class, next := box.ClassUnavailable, ""
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		class = box.ClassDeadlineExceeded
	case errors.Is(err, context.Canceled):
		class, next = box.ClassCanceled, "; nothing was left behind, start it again"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		class, next = box.ClassExhausted, "; free some room, or name a place that has more"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		class, next = box.ClassExhausted, "; raise the limit of open files"
	case errors.Is(err, fs.ErrPermission):
		class, next = box.ClassFailedPrecondition, "; run this as the user who owns the data directory"
	}
	return box.Errorf(class, "%s%s: %w", fmt.Sprintf(format, args...), next, bare(err))
}

// bare takes the path out of an error whose message names it already.
func bare(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// ended returns why a context ended, nil while it has not.
func ended(ctx context.Context, doing string) error {
	if ctx.Err() == nil {
		return nil
	}
	return failed(ctx.Err(), "%s", doing)
}

// reader ends a long read with its context.
type reader struct {
	ctx context.Context //nolint:containedctx // it lives as long as one call
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// fault is an error of the disk that a backup file is read from, to tell it
// from damage in what was read.
type fault struct{ err error }

func (f fault) Error() string { return f.err.Error() }
func (f fault) Unwrap() error { return f.err }

// faults marks the errors of a reader as such.
type faults struct{ io.Reader }

func (r faults) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fault{err}
	}
	return n, err
}

// sizeText writes bytes for people.
func sizeText(n int64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	value, units, i := float64(n)/step, "KMGTPE", 0
	for value >= step && i < len(units)-1 {
		value /= step
		i++
	}
	return fmt.Sprintf("%.1f %ciB", value, units[i])
}
