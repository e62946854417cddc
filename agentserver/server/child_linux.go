package server

import (
	"bytes"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithUs makes the kernel end a process when we end, however that happens.
func dieWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// sweep ends every process that an agent-server of this box left behind: those
// carry its mark in their environment, also when they left its session. It
// runs while the box has none.
func sweep(root string, log *slog.Logger) {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	mark := []byte("\x00" + markName + "=" + root + "\x00")
	marked := func(pid string) bool {
		environment, err := os.ReadFile("/proc/" + pid + "/environ")
		return err == nil && bytes.Contains(append([]byte{0}, environment...), mark)
	}
	own := strconv.Itoa(os.Getpid())
	for _, process := range processes {
		name := process.Name()
		if name == own || strings.Trim(name, "0123456789") != "" || !marked(name) {
			continue
		}
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// By descriptor, and looked at again: the number may be another's by now.
		handle, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if marked(name) {
			log.Info("end a process that an agent-server of this box left behind", "pid", pid)
			_ = unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0)
		}
		unix.Close(handle)
	}
}
