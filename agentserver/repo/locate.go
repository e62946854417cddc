package repo

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// place is where a repository keeps what.
type place struct {
	workTree string // empty for a bare repository
	gitDir   string // of this working tree
	common   string // shared by all working trees of the repository
	linked   bool   // a worktree that was added to a repository
}

// locate finds the git directory of a working tree, by the files alone. An error
// of class FailedPrecondition says why it cannot be trusted; NotFound that there
// is none.
func locate(dir string) (place, error) {
	at := filepath.Join(dir, ".git")
	info, err := os.Lstat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist) && isGitDir(dir):
		p := place{gitDir: dir, common: dir}
		return p, p.owned()
	case errors.Is(err, fs.ErrNotExist):
		return place{}, box.Errorf(box.ClassNotFound, "there is no repository")
	case err != nil:
		return place{}, fmt.Errorf("look at .git: %w", err)
	}
	p := place{workTree: dir, gitDir: at, common: at}
	switch {
	case info.IsDir():
	case info.Mode().IsRegular():
		if p.gitDir, err = pointer(at, "gitdir: ", dir); err != nil {
			return place{}, err
		}
		p.common = p.gitDir
	default:
		return place{}, refused("its .git is neither a directory nor a file")
	}
	if _, err := os.Lstat(filepath.Join(p.gitDir, "commondir")); err == nil {
		if p.common, err = pointer(filepath.Join(p.gitDir, "commondir"), "", p.gitDir); err != nil {
			return place{}, err
		}
		// The record must be this directory's, or we would judge by another's.
		back, err := pointer(filepath.Join(p.gitDir, "gitdir"), "", p.gitDir)
		if err != nil {
			return place{}, err
		}
		if !sameFile(back, at) {
			return place{}, refused("its .git names the record of another worktree")
		}
		p.linked = true
	}
	if !isGitDir(p.common) {
		return place{}, refused("its .git names no repository")
	}
	return p, p.owned()
}

// owned fails when a part of the repository belongs to somebody else, as git
// itself does.
func (p place) owned() error {
	for _, at := range []string{p.workTree, p.gitDir, p.common, filepath.Join(p.common, "config")} {
		if at == "" {
			continue
		}
		info, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at the repository: %w", err)
		}
		if owner, ok := ownerOf(info); !ok || owner != os.Geteuid() {
			return refused("dubious ownership: a part of it belongs to another user")
		}
	}
	return nil
}

func refused(text string) error {
	return box.Errorf(box.ClassFailedPrecondition, "%s", text)
}

// pointer reads a file that holds a path, relative to base.
func pointer(file, prefix, base string) (string, error) {
	text, err := small(file)
	if err != nil {
		return "", err
	}
	to, ok := strings.CutPrefix(strings.TrimRight(text, "\r\n"), prefix)
	if !ok || to == "" || strings.ContainsAny(to, "\n\x00") {
		return "", refused(filepath.Base(file) + " of the repository is not understood")
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(base, to)
	}
	return filepath.Clean(to), nil
}

const maxSmall = 64 << 10

// small reads a small regular file; nothing that could block is opened.
func small(file string) (string, error) {
	in, err := openRegular(file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxSmall+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read %s of the repository: %w", filepath.Base(file), err)
	case len(text) > maxSmall:
		return "", refused(filepath.Base(file) + " of the repository is too long")
	}
	return string(text), nil
}

// openRegular opens a regular file that is no link.
func openRegular(file string) (*os.File, error) {
	in, err := os.OpenFile(file, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return nil, fmt.Errorf("read %s of the repository: %w", filepath.Base(file), err)
	}
	info, err := in.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = refused(filepath.Base(file) + " of the repository is no regular file")
	}
	if err != nil {
		in.Close()
		return nil, err
	}
	return in, nil
}

// isGitDir reports whether dir looks like a git directory, the way git decides.
func isGitDir(dir string) bool {
	for _, name := range []string{"objects", "refs"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.IsDir() {
			return false
		}
	}
	info, err := os.Lstat(filepath.Join(dir, "HEAD"))
	return err == nil && (info.Mode().IsRegular() || info.Mode()&fs.ModeSymlink != 0)
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
