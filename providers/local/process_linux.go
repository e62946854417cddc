package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	canFreeze = true
	canWatch  = true
)

// proc is one entry of the process table.
type proc struct {
	pid, ppid int
	group     int    // the session
	start     string // clock ticks since boot
	stopped   bool
	dead      bool // a zombie, or on its way out
	kernel    bool // has no program, so no environment
}

func currentBoot() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(raw)), nil
}

// processTable reads all processes. Those that end meanwhile are left out.
func processTable() ([]proc, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	out := make([]proc, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, err := processOf(pid)
		if errors.Is(err, os.ErrProcessDone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b proc) int { return a.pid - b.pid })
	return out, nil
}

// processOf reads one process, os.ErrProcessDone if there is none.
func processOf(pid int) (proc, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return proc{}, os.ErrProcessDone
	}
	if err != nil {
		return proc{}, err
	}
	return parseStat(pid, raw)
}

// parseStat reads /proc/PID/stat. The command, in parentheses, may hold
// anything, so the fields begin after the last one.
func parseStat(pid int, raw []byte) (proc, error) {
	const kthreadd = 2
	at := bytes.LastIndexByte(raw, ')')
	fields := strings.Fields(string(raw[at+1:]))
	const state, ppid, session, starttime = 0, 1, 3, 19 // field numbers of proc(5) minus 3
	if at < 0 || len(fields) <= starttime {
		return proc{}, fmt.Errorf("read /proc/%d/stat: %d fields", pid, len(fields))
	}
	parent, err1 := strconv.Atoi(fields[ppid])
	group, err2 := strconv.Atoi(fields[session])
	if err := errors.Join(err1, err2); err != nil {
		return proc{}, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
	}
	return proc{
		pid:     pid,
		ppid:    parent,
		group:   group,
		start:   fields[starttime],
		stopped: fields[state] == "T" || fields[state] == "t",
		dead:    fields[state] == "Z" || fields[state] == "X",
		kernel:  pid == kthreadd || parent == kthreadd,
	}, nil
}

// environOf returns our marks in the environment that a process was started
// with. One that we may not read is another user's and has none.
func environOf(pid int) map[string]string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil
	}
	var marks map[string]string
	for one := range bytes.SplitSeq(raw, []byte{0}) {
		if name, value, ok := strings.Cut(string(one), "="); ok && (name == markBox || name == markEngine) {
			if marks == nil {
				marks = map[string]string{}
			}
			marks[name] = value
		}
	}
	return marks
}

// within reports whether a process works in dir, or reads or writes there.
func within(pid int, dir string) bool {
	for _, link := range []string{"cwd", "fd/0", "fd/1", "fd/2"} {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, link))
		if err == nil && (to == dir || strings.HasPrefix(to, dir+"/")) {
			return true
		}
	}
	return false
}

// handle is one process that cannot be mistaken for a later one with its pid.
type handle struct{ file *os.File }

// openProcess returns os.ErrProcessDone when p has ended, also when its pid was
// used again.
func openProcess(p proc) (*handle, error) {
	fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d (needs Linux 5.10): %w", p.pid, err)
	}
	h := &handle{file: os.NewFile(uintptr(fd), "pidfd")}
	// Checked after the open: the handle is of this very process, or of a later
	// one, whose start differs.
	now, err := processOf(p.pid)
	if err == nil && (now.start != p.start || now.dead) {
		err = os.ErrProcessDone
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *handle) signal(sig syscall.Signal) error {
	err := h.control(func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, 0) })
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// wait returns nil when the process has ended. It holds no thread.
func (h *handle) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		_ = h.file.SetReadDeadline(time.Unix(1, 0)) // fails only when it is closed
	})
	defer stop()
	conn, err := h.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a file descriptor
		n, err := unix.Poll(poll, 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			failed = err
			return true
		}
		return n > 0
	})
	return errors.Join(failed, err)
}

func (h *handle) close() { _ = h.file.Close() }

func (h *handle) control(do func(fd int) error) error {
	conn, err := h.file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = conn.Control(func(fd uintptr) { inner = do(int(fd)) })
	return errors.Join(err, inner)
}
