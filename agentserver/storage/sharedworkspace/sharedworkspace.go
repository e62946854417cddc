// Package sharedworkspace is the layout of an agent-server that runs its
// conversations itself, in plain directories of the box: several may work in one
// directory, or in one above another's.
//
// A directory is free when none of the conversations that work in it is used,
// was last used when any of them was, and goes as a whole only when all of them
// are conversation-archived or are about to be. A directory outside of the box's
// workspace was chosen by a caller and is never listed, nor is the workspace
// itself ever taken as a whole. Conversations in worktrees or with a container are
// the other layouts'.
//
// Who calls it: agentserver/reclaim and agentserver/retention, through
// reclaim.Layout.
package sharedworkspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/agentserver/bounded"
	"github.com/openhands/boxkeeper/agentserver/idlelock"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

// Options is what a Layout may be told; the zero value works.
type Options struct {
	// Lock looks for leases and processes; nil means one with its defaults.
	Lock *idlelock.Locker
}

// Layout lists the conversations of one box. It is safe for concurrent use.
type Layout struct {
	root  string
	write storage.Writer
	lock  *idlelock.Locker
	looks bounded.Looks // at directories that callers chose
}

// resolveBound is how long a directory that a caller chose may take to be found.
const resolveBound = 5 * time.Second

var _ reclaim.Layout = (*Layout)(nil)

// New returns the layout of the box at root, which is absolute; write puts
// markers there.
func New(root string, write storage.Writer, opts Options) *Layout {
	if opts.Lock == nil {
		opts.Lock = idlelock.New(idlelock.Options{})
	}
	return &Layout{root: root, write: write, lock: opts.Lock}
}

// member is one conversation and where it works.
type member struct {
	place reclaim.Place
	// dir is its directory below the box's workspace, relative to the root; empty
	// when it works elsewhere.
	dir string
	// all says that it works in a directory above the box's workspace, and so
	// may use any directory in it.
	all bool
}

// Places lists every conversation, the longest unused first; an error means that
// the list can't be made at all. A directory is listed with one of its
// conversations, the one last used of those that are not conversation-archived.
func (l *Layout) Places(ctx context.Context) ([]reclaim.Place, error) {
	members, err := l.members(ctx)
	if err != nil {
		return nil, err
	}
	places := make([]reclaim.Place, 0, len(members))
	for i := range members {
		places = append(places, members[i].place)
	}
	for top, group := range groupsOf(members) {
		share(places, members, group)
		owner := ownerOf(members, group)
		places[owner].Workspaces = []string{top}
		others := slices.ContainsFunc(group, func(i int) bool { return i != owner && !members[i].place.Archived })
		if !others && top != storage.WorkspaceDir {
			places[owner].Runtime = top
		}
	}
	storage.SortPlaces(places)
	return places, nil
}

// share gives the places of one directory what they have in common: the newest
// use of all, or none that is known when one's is not, and why one is in use.
func share(places []reclaim.Place, members []member, group []int) {
	var newest reclaim.Place
	unknown := false
	for _, i := range group {
		place := &members[i].place
		unknown = unknown || place.LastActive.IsZero()
		if place.LastActive.After(newest.LastActive) {
			newest = *place
		}
	}
	for _, i := range group {
		place := &places[i]
		switch {
		case unknown:
			place.LastActive, place.LastActiveFrom = time.Time{}, ""
		case newest.LastActive.After(place.LastActive):
			place.LastActive, place.LastActiveFrom = newest.LastActive, newest.LastActiveFrom
		}
		for _, j := range group {
			if other := &members[j].place; other.Busy != "" && place.Busy == "" {
				place.Busy = "shares its directory with " + other.Conversation + ", which " + other.Busy
			}
		}
	}
}

// ownerOf returns the conversation that a directory is listed with.
func ownerOf(members []member, group []int) int {
	owner := -1
	for _, i := range group {
		if members[i].dir != "" && (owner < 0 || better(&members[i].place, &members[owner].place)) {
			owner = i
		}
	}
	return owner
}

// better reports whether a directory is rather listed with a than with b.
func better(a, b *reclaim.Place) bool {
	switch {
	case a.Archived != b.Archived:
		return !a.Archived
	case !a.LastActive.Equal(b.LastActive):
		return a.LastActive.After(b.LastActive)
	}
	return a.Conversation < b.Conversation
}

// groupsOf returns, for each topmost directory, the conversations that may use
// something in it.
func groupsOf(members []member) map[string][]int {
	var tops []string
	for _, m := range members {
		if m.dir != "" {
			tops = append(tops, m.dir)
		}
	}
	slices.Sort(tops)
	groups := map[string][]int{}
	for _, dir := range tops {
		top := dir
		for _, other := range tops {
			if within(top, other) {
				top = other
			}
		}
		groups[top] = nil
	}
	for i, m := range members {
		for top := range groups {
			if m.all || m.dir != "" && within(m.dir, top) {
				groups[top] = append(groups[top], i)
			}
		}
	}
	return groups
}

// within reports whether a is b or lies below it.
func within(a, b string) bool { return a == b || strings.HasPrefix(a, b+"/") }

func (l *Layout) members(ctx context.Context) ([]member, error) {
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return nil, fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	real, err := filepath.EvalSymlinks(l.root)
	if err != nil {
		return nil, fmt.Errorf("find the box: %w", err)
	}
	entries, err := storage.List(root, storage.ConversationsDir)
	if err != nil {
		return nil, fmt.Errorf("list the conversations: %w", err)
	}
	var out []member
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		id := entry.Name()
		if !storage.IsID(id) || !entry.IsDir() {
			continue
		}
		// One with a manifest runs in a container.
		if _, err := root.Lstat(path.Join(storage.ControlDir, id+".json")); err == nil {
			continue
		}
		if m, ours := l.member(root, real, id); ours {
			out = append(out, m)
		}
	}
	return out, nil
}

// member reads one conversation; ours is false when another layout lists it.
func (l *Layout) member(root *os.Root, real, id string) (out member, ours bool) {
	out.place = reclaim.Place{Conversation: id}
	unsure := func(what string, err error) {
		if err != nil && out.place.Busy == "" {
			out.place.Busy = what + " cannot be read: " + err.Error()
		}
	}
	var err error
	out.place.LastActive, out.place.LastActiveFrom, err = storage.LastActive(root, id)
	unsure("its history", err)
	out.place.Archived, out.place.ArchivedAt, err = storage.Archived(root, id)
	unsure("its marker", err)
	given, err := workingDir(root, id)
	if errors.Is(err, errNoFiles) {
		// No conversation, unless one is being made right now.
		_, err := root.Lstat(path.Join(storage.ConversationsDir, id, "owner_lease.json"))
		out.all, out.place.Busy = true, "is being made"
		return out, !errors.Is(err, fs.ErrNotExist)
	}
	if err != nil {
		unsure("where it works", err)
		// Then it may be anywhere.
		out.all = true
		return out, true
	}
	if out.place.Busy == "" {
		out.place.Busy = l.lock.Peek(filepath.Join(l.root, storage.ConversationsDir, id))
	}
	dir := given
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(l.root, dir) // the server's own directory
	}
	if below(real, filepath.Clean(dir), storage.WorktreesDir) || below(l.root, filepath.Clean(dir), storage.WorktreesDir) {
		return member{}, false
	}
	found, err := bounded.In(&l.looks, nil, dir, resolveBound, func() (string, error) { return filepath.EvalSymlinks(dir) }, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return out, true // nothing there to take
	case err != nil:
		unsure("where it works", err)
		out.all = true
		return out, true
	}
	workspace := filepath.Join(real, storage.WorkspaceDir)
	switch {
	case within(found, workspace):
		// Without links, since all of it was resolved; a plain file is none.
		name, err := filepath.Rel(real, found)
		if ok, errDir := storage.IsDir(root, filepath.ToSlash(name)); err == nil && errDir == nil && ok {
			out.dir = filepath.ToSlash(name)
		}
	case found == "/" || within(workspace, found):
		out.all = true
	case within(found, filepath.Join(real, storage.WorktreesDir)):
		return member{}, false
	}
	return out, true
}

func below(root, dir, name string) bool { return within(dir, filepath.Join(root, name)) }

var errNoFiles = errors.New("neither meta.json nor base_state.json is there")

// workingDir is where a conversation works, by its metadata or else its state;
// errNoFiles when it has neither.
func workingDir(root *os.Root, id string) (string, error) {
	missing := 0
	for _, name := range []string{"meta.json", "base_state.json"} {
		text, err := storage.ReadFile(root, path.Join(storage.ConversationsDir, id, name), 64<<20)
		if errors.Is(err, fs.ErrNotExist) {
			missing++
			continue
		}
		if err != nil {
			return "", err
		}
		var stored struct {
			Workspace struct {
				WorkingDir string `json:"working_dir"`
			} `json:"workspace"`
		}
		if err := json.Unmarshal(text, &stored); err != nil {
			return "", fmt.Errorf("decode %s: %w", name, err)
		}
		if stored.Workspace.WorkingDir != "" {
			return stored.Workspace.WorkingDir, nil
		}
	}
	if missing == 2 {
		return "", errNoFiles
	}
	return "", errors.New("nothing says where")
}

// Hold keeps a conversation still, and all that may use its directory with it.
// An id without a conversation is ClassNotFound.
func (l *Layout) Hold(ctx context.Context, conversation string) (release func(), busy string, err error) {
	members, err := l.members(ctx)
	if err != nil {
		return nil, "", err
	}
	self := slices.IndexFunc(members, func(m member) bool { return m.place.Conversation == conversation })
	if self < 0 {
		return nil, "", &box.Error{Class: box.ClassNotFound, Field: "conversation", Message: "no conversation of this layout has this id"}
	}
	held := map[int]bool{self: true}
	var dirs []string
	for top, group := range groupsOf(members) {
		if slices.Contains(group, self) && members[self].dir != "" {
			dirs = append(dirs, filepath.Join(l.root, top))
			for _, i := range group {
				held[i] = true
			}
		}
	}
	var leave []func()
	undo := func() {
		for _, one := range leave {
			one()
		}
	}
	// In the order of their ids, so that of two who try at once one succeeds.
	for i := range members {
		if !held[i] {
			continue
		}
		id := members[i].place.Conversation
		var release func()
		busy := members[i].place.Busy
		if busy == "" {
			release, busy, err = l.lock.Hold(ctx, filepath.Join(l.root, storage.ConversationsDir, id), dirs...)
		}
		if err != nil || busy != "" {
			undo()
			if busy != "" && i != self {
				busy = "shares its directory with " + id + ", which " + busy
			}
			return nil, busy, err
		}
		leave, dirs = append(leave, release), nil // once is enough for the directory
	}
	return undo, "", nil
}

// Archive writes the marker of one conversation; the others of its directory
// stay as they are. It may be repeated. An id without a conversation is
// ClassNotFound; one that can't be looked at is another error.
func (l *Layout) Archive(_ context.Context, conversation string) error {
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	was, _, err := storage.Archived(root, conversation)
	if err != nil || was {
		return err
	}
	there := false
	if storage.IsID(conversation) {
		if there, err = storage.Exists(root, conversation); err != nil {
			return fmt.Errorf("look for the conversation: %w", err)
		}
	}
	if !there {
		return &box.Error{Class: box.ClassNotFound, Field: "conversation", Message: "no conversation has this id"}
	}
	return storage.Archive(root, conversation, l.write)
}
