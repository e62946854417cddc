package worktree

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/openhands/boxkeeper/agentserver/idlelock"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

// Options is what a Layout may be told. Git and Rescue are required.
type Options struct {
	Git    *repo.Git
	Rescue string // where the archives of confirmed removals go, absolute
	// Lock looks for leases and processes; nil means one with its defaults.
	Lock *idlelock.Locker
	// Recreatable lists what can be made again in a directory: paths relative to
	// it, with the rule for each. Nil means nothing can.
	Recreatable func(ctx context.Context, dir string) (map[string]string, error)
	// Needs says what in the box cannot do without what is in a worktree.
	Needs reclaim.Needs
}

// Layout is the worktrees of one box. It is safe for concurrent use.
type Layout struct {
	box   string
	dir   string // where the agent-server makes worktrees
	write storage.Writer
	opts  Options
	root  root
}

var _ reclaim.Remover = (*Layout)(nil)

// New returns the layout of the box at root, which is absolute and leads over no
// link; write puts markers there. The directory of the worktrees may be missing:
// then there are none. ClassFailedPrecondition says that a link or a file is in
// its place.
func New(root string, write storage.Writer, opts Options) (*Layout, error) {
	if opts.Lock == nil {
		opts.Lock = idlelock.New(idlelock.Options{})
	}
	l := &Layout{box: root, dir: filepath.Join(root, storage.WorktreesDir), write: write, opts: opts}
	return l, l.root.note(l.dir)
}

// Places lists the conversations that have worktrees, the longest unused first,
// and what of these may go without the worktree itself. Runtime is never set: see
// [Layout.Remove]. An error means that the list can't be made at all.
func (l *Layout) Places(ctx context.Context) ([]reclaim.Place, error) {
	if err := l.root.same(l.dir); err != nil {
		return nil, err
	}
	below, err := os.OpenRoot(l.box)
	if err != nil {
		return nil, fmt.Errorf("open the box: %w", err)
	}
	defer below.Close()
	owners, err := storage.List(below, storage.WorktreesDir)
	if err != nil {
		return nil, fmt.Errorf("list the worktrees: %w", err)
	}
	var out []reclaim.Place
	for _, owner := range owners {
		if err := ctx.Err(); err != nil {
			return nil, box.Errorf(box.ClassCanceled, "list the worktrees: %w", err)
		}
		if id, ok := fromDashed(owner.Name()); ok && owner.IsDir() {
			out = append(out, l.place(below, id))
		}
	}
	storage.SortPlaces(out)
	return out, nil
}

func (l *Layout) place(below *os.Root, id string) reclaim.Place {
	out := reclaim.Place{Conversation: id}
	unsure := func(what string, err error) {
		if err != nil && out.Busy == "" {
			out.Busy = what + " cannot be read: " + err.Error()
		}
	}
	var err error
	// As everybody reads it: whoever compares two readings sees a use otherwise.
	out.LastActive, out.LastActiveFrom, err = storage.LastActive(below, id)
	unsure("its history", err)
	out.Archived, out.ArchivedAt, err = storage.Archived(below, id)
	unsure("its marker", err)
	names, err := storage.List(below, dirOf(id))
	unsure("its directory", err)
	for _, name := range names {
		if name.IsDir() && !strings.HasPrefix(name.Name(), asidePrefix) {
			out.Workspaces = append(out.Workspaces, path.Join(dirOf(id), name.Name()))
		}
	}
	if out.Busy == "" {
		out.Busy = l.opts.Lock.Peek(l.history(id))
	}
	return out
}

// dirOf is where the worktrees of a conversation lie, below the box's root.
func dirOf(id string) string { return path.Join(storage.WorktreesDir, storage.Dashed(id)) }

func (l *Layout) history(id string) string {
	return filepath.Join(l.box, storage.ConversationsDir, id)
}

// Hold keeps a conversation still: no server has its history loaded and no
// process is in its worktrees. One whose history is gone can be loaded by nobody.
// An id without worktrees is ClassNotFound.
func (l *Layout) Hold(ctx context.Context, conversation string) (release func(), busy string, err error) {
	below, err := os.OpenRoot(l.box)
	if err != nil {
		return nil, "", fmt.Errorf("open the box: %w", err)
	}
	defer below.Close()
	if ok, err := known(below, conversation); err != nil || !ok {
		return nil, "", unknown(err)
	}
	trees := filepath.Join(l.box, dirOf(conversation))
	release, busy, err = l.opts.Lock.Hold(ctx, l.history(conversation), trees)
	if box.ClassOf(err) != box.ClassNotFound {
		return release, busy, err
	}
	who, err := idlelock.Users(ctx, []string{trees})
	switch {
	case err != nil:
		return nil, "cannot tell whether a process uses it: " + err.Error(), nil
	case who != "":
		return nil, "in use by " + who, nil
	}
	return func() {}, "", nil
}

func known(below *os.Root, conversation string) (bool, error) {
	if !storage.IsID(conversation) {
		return false, nil
	}
	return storage.IsDir(below, dirOf(conversation))
}

func unknown(err error) error {
	if err != nil {
		return err
	}
	return &box.Error{Class: box.ClassNotFound, Field: "conversation", Message: "no worktree is of a conversation with this id"}
}

// Archive writes the marker of a conversation. It may be repeated, also when the
// worktrees have gone. ClassNotFound says that there never were any.
func (l *Layout) Archive(_ context.Context, conversation string) error {
	below, err := os.OpenRoot(l.box)
	if err != nil {
		return fmt.Errorf("open the box: %w", err)
	}
	defer below.Close()
	was, _, err := storage.Archived(below, conversation)
	if err != nil || was {
		return err
	}
	if ok, err := known(below, conversation); err != nil || !ok {
		return unknown(err)
	}
	return storage.Archive(below, conversation, l.write)
}

// fromDashed returns the 32 digits of an id that is written with dashes.
func fromDashed(name string) (string, bool) {
	id := strings.ReplaceAll(name, "-", "")
	return id, storage.IsID(id) && storage.Dashed(id) == name
}
