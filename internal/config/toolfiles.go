package config

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/openhands/boxkeeper/box"
)

// maxToolFile bounds a file of another tool. What doctl writes is some 20 KB.
const maxToolFile = 1 << 20

// readToolFile reads a file that belongs to the tools of a provider. Another
// error than fs.ErrNotExist names no path: the caller does.
func readToolFile(path string) ([]byte, error) {
	data, err := readSmall(path, maxToolFile)
	if errors.Is(err, syscall.ENOTDIR) { // such as below the home directory /dev/null of a service
		return nil, fs.ErrNotExist
	}
	return data, err
}

// openToOthers is the warning about a secret's file that others may read; empty
// where they may not. Tools use such a file all the same, so we do.
func openToOthers(path string) string {
	if !isOpenToOthers(path) {
		return ""
	}
	return path + " holds a secret and is open to other users of this machine; run: chmod 600 " + shellWord(path)
}

// home is the home directory that the environment names; empty without one.
func (c Config) home() string {
	if home, ok := c.env("HOME"); ok && filepath.IsAbs(home) {
		return home
	}
	return ""
}

// unusable is the error about a file of another tool. It is NotFound, as if the
// file were not there: its instance is off and the others are served.
func unusable(path, field, problem, wayOut string) error {
	if field != "" {
		field = ", " + field
	}
	return box.Errorf(box.ClassNotFound, "%s%s: %s; mend it, or %s", path, field, problem, wayOut)
}
