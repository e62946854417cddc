package worktree

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

// Options says where things are. All but Archived and Recreatable are required.
type Options struct {
	Box           string // the box's directory; items below it are named relative to it
	Root          string // where the agent-server makes worktrees
	Conversations string // where it keeps conversations, 32 digits each
	Trash         string // emptied by others, on the filesystem of Root
	Rescue        string // where the archives of confirmed removals go
	Git           *repo.Git
	// Hold keeps the conversation in a directory still, see [reclaim.Layout].
	Hold func(conversationDir string) (release func(), busy string, err error)
	// Archive marks a conversation as conversation-archived, see [reclaim.Layout].
	Archive func(ctx context.Context, conversation string) error
	// Archived reports whether it is, and since when; nil means that none is.
	Archived func(conversation string) (archived bool, since time.Time)
	// Recreatable lists what can be made again in a directory: paths relative to
	// it, with the rule for each. Nil means nothing can.
	Recreatable func(ctx context.Context, dir string) (map[string]string, error)
}

// Layout is the worktrees below one root. It is safe for concurrent use.
type Layout struct {
	opts Options
	root root
}

var _ reclaim.Remover = (*Layout)(nil)

// New returns a Layout. The root may be missing: then there are no worktrees.
func New(opts Options) (*Layout, error) {
	for _, dir := range []*string{&opts.Box, &opts.Root, &opts.Conversations, &opts.Trash, &opts.Rescue} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", *dir, err)
		}
		*dir = abs
	}
	l := &Layout{opts: opts}
	return l, l.root.note(opts.Root)
}

// Places lists the conversations that have worktrees, and what of these may go
// without the worktree itself. Runtime is never set: see [Layout.Remove].
func (l *Layout) Places(ctx context.Context) ([]reclaim.Place, error) {
	if err := l.root.same(l.opts.Root); err != nil {
		return nil, err
	}
	owners, err := os.ReadDir(l.opts.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the worktrees: %w", err)
	}
	below, err := os.OpenRoot(l.opts.Box)
	if err != nil {
		return nil, fmt.Errorf("open the box: %w", err)
	}
	defer below.Close()
	var out []reclaim.Place
	for _, owner := range owners {
		if err := ctx.Err(); err != nil {
			return nil, box.Errorf(box.ClassCanceled, "list the worktrees: %w", err)
		}
		id, ok := fromDashed(owner.Name())
		if !ok || !owner.IsDir() {
			continue
		}
		place := reclaim.Place{Conversation: id}
		names, err := os.ReadDir(filepath.Join(l.opts.Root, owner.Name()))
		if err != nil {
			place.Busy = "cannot be read: " + err.Error()
		}
		for _, name := range names {
			if name.IsDir() && !strings.HasPrefix(name.Name(), asidePrefix) {
				place.Workspaces = append(place.Workspaces, l.named(filepath.Join(l.opts.Root, owner.Name(), name.Name())))
			}
		}
		// As everybody reads it: whoever compares two readings sees a use otherwise.
		if place.LastActive, place.LastActiveFrom, err = storage.LastActive(below, id); err != nil {
			place.Busy = "its history cannot be read: " + err.Error()
		}
		if l.opts.Archived != nil {
			place.Archived, place.ArchivedAt = l.opts.Archived(id)
		}
		out = append(out, place)
	}
	storage.SortPlaces(out)
	return out, nil
}

// Hold keeps a conversation still. One whose directory is gone has nobody who
// could move.
func (l *Layout) Hold(_ context.Context, conversation string) (release func(), busy string, err error) {
	dir := filepath.Join(l.opts.Conversations, conversation)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return func() {}, "", nil
	}
	return l.opts.Hold(dir)
}

// Archive records that a conversation is conversation-archived.
func (l *Layout) Archive(ctx context.Context, conversation string) error {
	return l.opts.Archive(ctx, conversation)
}

// fromDashed returns the 32 digits of an id that is written with dashes.
func fromDashed(name string) (string, bool) {
	id := strings.ReplaceAll(name, "-", "")
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != 16 || storage.Dashed(id) != name {
		return "", false
	}
	return id, true
}

// item names a worktree in an answer.
func (l *Layout) item(conversation, path string) box.ReclaimItem {
	return box.ReclaimItem{Path: l.named(path), Rule: "worktree", Tier: box.TierRuntime, ConversationID: conversation}
}

// named is a path relative to the box, as far as it lies below it.
func (l *Layout) named(path string) string {
	if rel, err := filepath.Rel(l.opts.Box, path); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}
