package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Signals here can be sent to a pid only, so between the check of the start
// time and the signal a pid could be used again; freezing and watching, which
// would depend on more, are left to Linux.
const (
	canFreeze = false
	canWatch  = false
)

// proc is one entry of the process table.
type proc struct {
	pid, ppid int
	group     int    // the process group
	start     string // seconds and microseconds
	stopped   bool
	dead      bool
	kernel    bool
}

func currentBoot() (string, error) { return unix.Sysctl("kern.bootsessionuuid") }

func processTable() ([]proc, error) {
	all, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, err
	}
	out := make([]proc, 0, len(all))
	for i := range all {
		out = append(out, fromKernel(&all[i]))
	}
	return out, nil
}

func processOf(pid int) (proc, error) {
	one, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(one.Proc.P_pid) != pid {
		return proc{}, os.ErrProcessDone
	}
	return fromKernel(one), nil
}

func fromKernel(k *unix.KinfoProc) proc {
	const stopped, zombie = 4, 5 // SSTOP and SZOMB of sys/proc.h
	return proc{
		pid:     int(k.Proc.P_pid),
		ppid:    int(k.Eproc.Ppid),
		group:   int(k.Eproc.Pgid),
		start:   fmt.Sprintf("%d.%06d", k.Proc.P_starttime.Sec, k.Proc.P_starttime.Usec),
		stopped: k.Proc.P_stat == stopped,
		dead:    k.Proc.P_stat == zombie,
		kernel:  k.Proc.P_pid == 0,
	}
}

// environOf finds nothing: the environment of a process is not readable here,
// and processes are found by record, process group and descent.
func environOf(int) map[string]string { return nil }

// within cannot be told here.
func within(int, string) bool { return false }

type handle struct{ is proc }

func openProcess(p proc) (*handle, error) {
	h := &handle{is: p}
	return h, h.check()
}

// check returns os.ErrProcessDone when the process has ended.
func (h *handle) check() error {
	now, err := processOf(h.is.pid)
	if err != nil || now.start != h.is.start || now.dead {
		return os.ErrProcessDone
	}
	return nil
}

func (h *handle) signal(sig syscall.Signal) error {
	if err := h.check(); err != nil {
		return err
	}
	err := syscall.Kill(h.is.pid, sig)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

func (h *handle) wait(ctx context.Context) error {
	for h.check() == nil {
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func (h *handle) close() {}
