package reclaim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// occupant finds a process that works in one of the directories: its working
// directory is there, or its command line or environment names something inside.
// Processes of other users that may not be inspected cannot enter the private
// root.
func occupant(dirs ...string) (string, error) {
	if len(dirs) == 0 {
		return "", nil
	}
	// See users: no child of ours is on its way while we look.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	processes, err := os.ReadDir("/proc")
	switch {
	case err != nil:
		return "", fmt.Errorf("read the list of processes: %w", err)
	case len(processes) == 0:
		return "", errors.New("the list of processes is empty")
	}
	own := strconv.Itoa(os.Getpid())
	for _, process := range processes {
		pid := process.Name()
		if pid == own || strings.Trim(pid, "0123456789") != "" {
			continue
		}
		for _, dir := range dirs {
			if worksIn(pid, dir) {
				return "process " + pid + commandOf(pid) + ", which works in " + dir, nil
			}
		}
	}
	return "", nil
}

func worksIn(pid, dir string) bool {
	base := "/proc/" + pid + "/"
	if at, err := os.Readlink(base + "cwd"); err == nil && (at == dir || strings.HasPrefix(at, dir+"/")) {
		return true
	}
	for _, file := range []string{"cmdline", "environ"} {
		if text, err := os.ReadFile(base + file); err == nil && bytes.Contains(text, []byte(dir+"/")) {
			return true
		}
	}
	return false
}
