package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/bounded"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

const (
	// maxPointer bounds the files by which a repository names another one, in bytes.
	maxPointer = 64 << 10
	// pointerBound is how long it may take to find where one of them leads.
	pointerBound = 5 * time.Second
	maxNeeds     = 100_000
)

// needing is one search for repositories that need what lies elsewhere.
type needing struct {
	tree  *reclaim.Beneath
	homes map[string]bool // git directories
	looks bounded.Looks
	found []need
}

// need is one thing that a repository cannot do without.
type need struct {
	owner string // below the root
	at    string // absolute, without links
	what  string
}

// Needs looks for the repositories in the directories of the options that cannot
// do without what lies outside of them: which borrow objects, as "git clone
// --shared" and "--reference" leave it, or keep their git directory elsewhere. of
// then says in words which one, outside of dir, an absolute path without links,
// needs what lies in dir, and what to do about it; empty means that none does.
// What this user may not read, and other filesystems, are not looked into. An
// error means that it can't be told. It reads names, and files of a few lines.
func (w *Workspace) Needs(ctx context.Context) (of func(dir string) string, err error) {
	tree, err := reclaim.OpenBeneath(w.opts.Root)
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	n := &needing{tree: tree, homes: map[string]bool{}}
	look := visitor{
		enter: n.enter,
		name:  func(int, string, reclaim.Name) error { return nil },
		unknown: func(place, why string) error {
			if why == whyForbidden || why == whyMounted {
				return nil
			}
			return fmt.Errorf("%s %s", place, why)
		},
	}
	for _, top := range w.opts.Dirs {
		if err := walk(ctx, tree, top, look); err != nil {
			return nil, err
		}
	}
	root := tree.Root()
	return func(dir string) string {
		for _, one := range n.found {
			if within(dir, one.at) && !within(dir, filepath.Join(root, one.owner)) {
				return fmt.Sprintf("the repository %s %s", one.owner, one.what)
			}
		}
		return ""
	}, nil
}

// enter looks at one directory and says whether to go on into it.
func (n *needing) enter(fd int, place string, names []reclaim.Name) (bool, error) {
	if n.homes[path.Dir(place)] && slices.Contains([]string{"objects", "refs", "logs"}, path.Base(place)) {
		return false, nil
	}
	kinds := map[string]byte{}
	for _, entry := range names {
		switch entry.Name {
		case ".git", "HEAD", "objects", "refs":
			kinds[entry.Name] = entry.Kind
		}
	}
	switch kinds[".git"] {
	case unix.DT_REG:
		if err := n.pointer(fd, place); err != nil {
			return false, err
		}
	case unix.DT_LNK:
		if err := n.leads(place, path.Join(place, ".git"), "keeps its git directory here; move it there first"); err != nil {
			return false, err
		}
	}
	if kinds["HEAD"] == 0 || kinds["refs"] == 0 || kinds["objects"] == 0 {
		return true, nil
	}
	n.homes[place] = true
	return true, n.borrows(fd, place, kinds["objects"])
}

// pointer follows a .git that is a file.
func (n *needing) pointer(fd int, place string) error {
	text, err := n.read(fd, ".git")
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EACCES):
		return nil
	case err != nil:
		return fmt.Errorf("the git directory of %s cannot be told: %w", place, err)
	}
	to, ok := strings.CutPrefix(strings.TrimRight(text, "\r\n"), "gitdir: ")
	if !ok {
		return nil // git does not take it for one either
	}
	return n.leads(place, from(place, to), "keeps its git directory here; move it there, or remove the worktree, first")
}

// borrows follows what a git directory says of other stores of objects.
func (n *needing) borrows(fd int, place string, objects byte) error {
	owner := place
	if path.Base(place) == ".git" {
		owner = path.Dir(place)
	}
	const next = "borrows objects from here; run \"git repack -a -d\" there and remove its objects/info/alternates first"
	if objects == unix.DT_LNK {
		return n.leads(owner, path.Join(place, "objects"), next)
	}
	text, err := n.read(fd, "objects/info/alternates")
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EACCES):
		return nil
	case err != nil:
		return fmt.Errorf("where %s borrows objects from cannot be told: %w", owner, err)
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if plain, err := strconv.Unquote(line); err == nil && line[0] == '"' {
			line = plain
		}
		if err := n.leads(owner, from(path.Join(place, "objects"), line), next); err != nil {
			return err
		}
	}
	return nil
}

// from returns where a path leads that is told in dir.
func from(dir, to string) string {
	if filepath.IsAbs(to) {
		return to
	}
	return path.Join(dir, to)
}

// leads notes where a path leads: one below the root, or an absolute one.
func (n *needing) leads(owner, to, what string) error {
	if !filepath.IsAbs(to) {
		to = filepath.Join(n.tree.Root(), to)
	}
	at, err := bounded.In(&n.looks, nil, to, pointerBound, func() (string, error) { return filepath.EvalSymlinks(to) }, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ELOOP):
		return nil // it is of no use to it now
	case err != nil:
		return fmt.Errorf("where %s leads cannot be told: %w", owner, err)
	case len(n.found) == maxNeeds:
		return box.Errorf(box.ClassExhausted, "the repositories of the box name more than %d places elsewhere", maxNeeds)
	}
	n.found = append(n.found, need{owner, at, what})
	return nil
}

// read returns a short plain file.
func (n *needing) read(fd int, name string) (string, error) {
	at, err := n.tree.Open(fd, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return "", err
	}
	file := os.NewFile(uintptr(at), name)
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > maxPointer {
		return "", errors.New("it is no short file")
	}
	text, err := io.ReadAll(io.LimitReader(file, maxPointer))
	return string(text), err
}
