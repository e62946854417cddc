package reclaim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// users finds, for each trash entry, a process that has its working directory,
// its program, an open file or a mapped file inside. Our own process is left
// out, since it measures there; so are those of other users that we may not
// inspect, who cannot enter the private root.
func (r *Reclaimer) users() (map[string]string, error) {
	// A child of ours holds all of our descriptors until it runs its program. So
	// none is on its way while we look: those before have run theirs, and later
	// ones wait, for the milliseconds that it takes.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("read the list of processes: %w", err)
	}
	prefix := filepath.Join(r.tree.path, trashName) + "/"
	out := map[string]string{}
	own := strconv.Itoa(os.Getpid())
	for _, process := range processes {
		pid := process.Name()
		if pid == own || strings.Trim(pid, "0123456789") != "" {
			continue
		}
		for _, place := range placesOf(pid, prefix) {
			name, _, _ := strings.Cut(strings.TrimPrefix(place, prefix), "/")
			if out[name] == "" {
				out[name] = "process " + pid + commandOf(pid)
			}
		}
	}
	if len(processes) == 0 {
		return nil, errors.New("the list of processes is empty")
	}
	return out, nil
}

// placesOf returns what a process uses below prefix.
func placesOf(pid, prefix string) []string {
	base := "/proc/" + pid + "/"
	var out []string
	look := func(link string) {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, prefix) {
			out = append(out, strings.TrimSuffix(to, " (deleted)"))
		}
	}
	look(base + "cwd")
	look(base + "root")
	look(base + "exe")
	if files, err := os.ReadDir(base + "fd"); err == nil {
		for _, file := range files {
			look(base + "fd/" + file.Name())
		}
	}
	maps, err := os.ReadFile(base + "maps")
	if err != nil || !bytes.Contains(maps, []byte(prefix)) {
		return out
	}
	for line := range strings.Lines(string(maps)) {
		if at := strings.Index(line, prefix); at >= 0 {
			out = append(out, strings.TrimSpace(line[at:]))
		}
	}
	return out
}

func commandOf(pid string) string {
	name, err := os.ReadFile("/proc/" + pid + "/comm")
	if err != nil {
		return ""
	}
	return " (" + strings.TrimSpace(string(name)) + ")"
}
