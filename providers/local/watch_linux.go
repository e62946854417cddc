package local

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// watch is one running Watch. Each box that has a process is waited for by its
// own goroutine, asleep on a descriptor of that process; records are followed
// by inotify, so boxes that other workers make are seen too.
type watch struct {
	d    *Driver
	emit func(driver.Listed)

	waiters sync.WaitGroup
	mu      sync.Mutex
	waited  map[string]waiter  // by box name
	told    map[string]process // ends that were emitted
}

type waiter struct {
	process process
	cancel  context.CancelFunc
}

// Watch tells of boxes whose process ended or whose directory was removed by
// somebody else, first of those that ended earlier, until ctx ends.
func (d *Driver) Watch(ctx context.Context, emit func(driver.Listed)) error {
	if _, err := d.place.fingerprint(); err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return box.Errorf(box.ClassExhausted, "watch the records; is fs.inotify.max_user_instances reached? %w", err)
	}
	notes := os.NewFile(uintptr(fd), "inotify")
	defer notes.Close()
	const moved = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	control, err := unix.InotifyAddWatch(fd, d.place.control(), moved|unix.IN_MOVED_TO)
	if err != nil {
		return ioError("watch the records", err)
	}
	if _, err := unix.InotifyAddWatch(fd, d.place.boxes(), moved|unix.IN_DELETE|unix.IN_MOVED_FROM); err != nil {
		return ioError("watch the boxes", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{d: d, emit: emit, waited: map[string]waiter{}, told: map[string]process{}}
	defer w.waiters.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = notes.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	// After the watches are set: what changes from here on is noted.
	if err := w.all(ctx); err != nil {
		return err
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := notes.Read(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return ioError("watch the records", err)
		}
		if err := w.read(ctx, buffer[:n], control); err != nil {
			return err
		}
	}
}

// read handles a batch of notes.
func (w *watch) read(ctx context.Context, notes []byte, control int) error {
	for len(notes) >= unix.SizeofInotifyEvent {
		which := int(int32(binary.NativeEndian.Uint32(notes[0:]))) //nolint:gosec // as the kernel counts
		mask := binary.NativeEndian.Uint32(notes[4:])
		length := int(binary.NativeEndian.Uint32(notes[12:]))
		if len(notes) < unix.SizeofInotifyEvent+length {
			break
		}
		name := string(bytes.TrimRight(notes[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+length], "\x00"))
		notes = notes[unix.SizeofInotifyEvent+length:]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			if err := w.all(ctx); err != nil {
				return err
			}
		case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
			return box.Errorf(box.ClassUnknown, "the directory of the boxes was moved or unmounted; put it back")
		case which == control:
			if name, ok := strings.CutSuffix(name, recordSuffix); ok {
				w.follow(ctx, name)
			}
		default:
			w.check(name, nil)
		}
	}
	return nil
}

// all follows every record that is there.
func (w *watch) all(ctx context.Context) error {
	names, err := w.d.place.records()
	if err != nil {
		return err
	}
	for _, name := range names {
		w.follow(ctx, name)
	}
	return nil
}

// follow waits for the process that the record of name tells of.
func (w *watch) follow(ctx context.Context, name string) {
	if !w.ours(name) {
		return
	}
	rec, err := w.d.place.read(name)
	if err != nil {
		w.tell(name, nil, box.Observation{Phase: box.PhaseUnknown, Evidence: err.Error()})
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now, waits := w.waited[name]
	wanted := rec != nil && rec.Process != nil && rec.Intent != intentDelete &&
		(rec.Intent == intentRun || rec.Kind == SuspendFreeze)
	if waits && wanted && now.process == *rec.Process {
		return
	}
	if waits {
		now.cancel()
		delete(w.waited, name)
	}
	switch {
	case wanted:
		mine, cancel := context.WithCancel(ctx)
		w.waited[name] = waiter{*rec.Process, cancel}
		w.waiters.Go(func() {
			defer cancel()
			w.wait(mine, name, *rec.Process)
		})
	case rec != nil && rec.Process == nil && rec.Intent == intentRun && !w.d.place.busy(name):
		// A worker ended between its intent and the start.
		w.waiters.Go(func() { w.check(name, nil) })
	}
}

func (w *watch) ours(name string) bool {
	return strings.HasPrefix(name, "bk-"+w.d.installation+"-")
}

// wait returns when the process has ended, and tells of it.
func (w *watch) wait(ctx context.Context, name string, p process) {
	err := waitFor(ctx, p)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		w.tell(name, &p, box.Observation{Phase: box.PhaseUnknown, Evidence: err.Error()})
		return
	}
	w.check(name, &p)
}

// waitFor returns nil when p has ended, also when that was long ago.
func waitFor(ctx context.Context, p process) error {
	boot, err := currentBoot()
	if err != nil {
		return ioError("read the boot id", err)
	}
	if boot != p.Boot {
		return nil
	}
	h, err := openProcess(proc{pid: p.PID, start: p.Start})
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.close()
	return h.wait(ctx)
}

// check looks at a box of which something ended, and tells if it was not us.
func (w *watch) check(name string, p *process) {
	if !w.ours(name) {
		return
	}
	seen, rec, err := w.d.look(name)
	if err != nil {
		w.tell(name, p, box.Observation{Phase: box.PhaseUnknown, Evidence: err.Error()})
		return
	}
	if rec == nil || rec.Intent == intentDelete {
		return
	}
	lost := seen.phase == box.PhaseSuspended && rec.Kind == SuspendFreeze && !seen.frozen
	if seen.phase == box.PhaseFailed || seen.phase == box.PhaseGone || lost {
		w.tell(name, p, w.d.observation(box.Ref{}, seen))
	}
}

// tell emits what was seen, once for the end of one process.
func (w *watch) tell(name string, p *process, seen box.Observation) {
	if p != nil {
		w.mu.Lock()
		before, told := w.told[name]
		w.told[name] = *p
		w.mu.Unlock()
		if told && before == *p {
			return
		}
	}
	print, err := w.d.place.fingerprint()
	if err != nil {
		w.d.opts.Logger.Error("box changed in a place that cannot be read", "box", name, "error", err)
		return
	}
	rec, err := w.d.place.read(name)
	if err != nil || rec == nil {
		w.d.opts.Logger.Error("box changed and its record cannot be read", "box", name, "error", err)
		return
	}
	seen.Ref = rec.ref(print)
	w.emit(driver.Listed{Identity: rec.Identity, Observation: seen})
}
