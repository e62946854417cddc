package idlelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Users finds a process that has its working directory, its program, an open or
// a mapped file, a word of its command or its environment of packages in one of
// the directories; empty means none. Our own process does not count, nor do
// those of other users whom we may not inspect: they can't enter a box. It sees
// the path that a process has in its own mounts: whoever runs containers asks
// their engine too. It may be repeated.
func Users(ctx context.Context, dirs []string) (who string, err error) {
	places := make([]string, 0, len(dirs))
	for _, dir := range dirs {
		real, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("find %s: %w", filepath.Base(dir), err)
		}
		places = append(places, real)
	}
	if len(places) == 0 {
		return "", nil
	}
	// A child of ours has all of our descriptors until it runs its program, and
	// would be seen with files that we read.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return "", fmt.Errorf("read the list of processes: %w", err)
	}
	own, any := strconv.Itoa(os.Getpid()), false
	for _, process := range processes {
		pid := process.Name()
		if strings.Trim(pid, "0123456789") != "" {
			continue
		}
		any = true
		if pid != own && uses("/proc/"+pid+"/", places) {
			name, _ := os.ReadFile("/proc/" + pid + "/comm") // it may have ended meanwhile
			return strings.TrimSpace("process " + pid + " " + strings.TrimSpace(string(name))), nil
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
	}
	if !any {
		return "", errors.New("the list of processes is empty")
	}
	return "", nil
}

// uses reports whether the process at base has something in one of the places.
func uses(base string, places []string) bool {
	inside := func(path string) bool {
		for _, place := range places {
			if path == place || strings.HasPrefix(path, place+"/") {
				return true
			}
		}
		return false
	}
	link := func(name string) bool {
		to, err := os.Readlink(base + name)
		return err == nil && inside(strings.TrimSuffix(to, " (deleted)"))
	}
	if link("cwd") || link("root") || link("exe") {
		return true
	}
	if files, err := os.ReadDir(base + "fd"); err == nil {
		for _, file := range files {
			if link("fd/" + file.Name()) {
				return true
			}
		}
	}
	return said(base, inside) || mapped(base, inside)
}

// said reports whether a process was started with something inside. A Python of
// an environment shows the interpreter that it was made from, and has no file of
// the environment open: only its command names it.
func said(base string, inside func(string) bool) bool {
	words, _ := os.ReadFile(base + "cmdline") // it may have ended meanwhile
	for word := range strings.SplitSeq(string(words), "\x00") {
		if filepath.IsAbs(word) && inside(filepath.Clean(word)) {
			return true
		}
	}
	settings, _ := os.ReadFile(base + "environ")
	for setting := range strings.SplitSeq(string(settings), "\x00") {
		name, value, _ := strings.Cut(setting, "=")
		if (name == "VIRTUAL_ENV" || name == "NODE_PATH") && inside(value) {
			return true
		}
	}
	return false
}

// mapped reports whether a process has a file inside in its memory.
func mapped(base string, inside func(string) bool) bool {
	maps, _ := os.ReadFile(base + "maps")
	for line := range strings.Lines(string(maps)) {
		if at := strings.IndexByte(line, '/'); at >= 0 && inside(strings.TrimSuffix(strings.TrimSpace(line[at:]), " (deleted)")) {
			return true
		}
	}
	return false
}
