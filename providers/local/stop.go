package local

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// settle is how long a signal is given before the process table is read again.
const settle = 5 * time.Millisecond

// stop ends every process of a box: boxd in order within grace, then all that
// is left by force. It returns nil only when a reading after the last kill
// finds none.
func (d *Driver) stop(ctx context.Context, rec *record, grace time.Duration) error {
	name := rec.Identity.Name()
	// What boxd's own end orphans is known from before.
	known, boxd, err := d.members(name, rec, nil)
	if err != nil {
		return err
	}
	// A stopped process takes no notice of SIGTERM.
	if boxd != nil && !boxd.stopped && grace > 0 {
		if err := end(ctx, *boxd, syscall.SIGTERM, grace); err != nil && !errors.Is(err, errLate) {
			return err
		}
	}
	limit := time.Now().Add(forced)
	for {
		alive, _, err := d.members(name, rec, known)
		if err != nil {
			return err
		}
		if len(alive) == 0 {
			return nil
		}
		if time.Now().After(limit) {
			return box.Errorf(box.ClassUnavailable, "processes %s of box %s do not end; the kernel holds them in a call, look again later", pids(alive), name)
		}
		known = append(known, alive...)
		for _, p := range alive {
			if err := end(ctx, p, syscall.SIGKILL, 0); err != nil && !errors.Is(err, errLate) {
				return err
			}
		}
		for _, p := range alive {
			if err := end(ctx, p, 0, time.Until(limit)); err != nil && !errors.Is(err, errLate) {
				return err
			}
		}
	}
}

// errLate says that a process did not end in the time it was given.
var errLate = errors.New("it still runs")

// end sends sig, if there is one, to exactly the process p, and waits for its
// end at most for wait.
func end(ctx context.Context, p proc, sig syscall.Signal, wait time.Duration) error {
	h, err := openProcess(p)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return ioError("open a process", err)
	}
	defer h.close()
	if sig != 0 {
		if err := h.signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return ioError("signal a process", err)
		}
	}
	if wait <= 0 {
		return errLate
	}
	bound, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := h.wait(bound); err != nil {
		if bound.Err() == nil {
			return ioError("wait for a process", err)
		}
		if err := driver.Ended(ctx); err != nil {
			return err
		}
		return errLate
	}
	return nil
}

// freeze stops every process of a box where it is. It returns nil only when
// two readings in a row find the same processes and all of them stopped: one
// that runs between two readings may have made another.
func (d *Driver) freeze(ctx context.Context, rec *record) error {
	name := rec.Identity.Name()
	limit := time.Now().Add(d.opts.StopTimeout)
	var last []proc
	for {
		alive, boxd, err := d.members(name, rec, nil)
		switch {
		case err != nil:
			return err
		case boxd == nil:
			return box.Errorf(box.ClassFailedPrecondition, "box %s ended while it was being frozen", name)
		case allStopped(alive) && equal(alive, last):
			return nil
		case time.Now().After(limit):
			return box.Errorf(box.ClassUnavailable, "processes of box %s do not stand still within %s", name, d.opts.StopTimeout)
		}
		for _, p := range alive {
			if p.stopped {
				continue
			}
			if err := end(ctx, p, syscall.SIGSTOP, 0); err != nil && !errors.Is(err, errLate) {
				return err
			}
		}
		last = alive
		if err := pause(ctx, settle); err != nil {
			return err
		}
	}
}

// thaw lets every process of a box go on, until none is stopped.
func (d *Driver) thaw(ctx context.Context, rec *record) error {
	name := rec.Identity.Name()
	limit := time.Now().Add(forced)
	for {
		alive, _, err := d.members(name, rec, nil)
		if err != nil {
			return err
		}
		still := false
		for _, p := range alive {
			if !p.stopped {
				continue
			}
			still = true
			if err := end(ctx, p, syscall.SIGCONT, 0); err != nil && !errors.Is(err, errLate) {
				return err
			}
		}
		switch {
		case !still:
			return nil
		case time.Now().After(limit):
			return box.Errorf(box.ClassUnavailable, "processes of box %s do not go on", name)
		}
		if err := pause(ctx, settle); err != nil {
			return err
		}
	}
}

func equal(a, b []proc) bool {
	if len(a) != len(b) {
		return false
	}
	for _, p := range a {
		if !listed(b, p) {
			return false
		}
	}
	return true
}

func pause(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return driver.Ended(ctx)
	case <-timer.C:
		return nil
	}
}
