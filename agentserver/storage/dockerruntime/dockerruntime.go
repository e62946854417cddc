// Package dockerruntime is the layout of an agent-server that runs each
// conversation in a container of its own: runtime-data/<id>/{persistence,workspace}
// below its persistence directory, with the container's home and, unless a
// caller named another, its workspace.
//
// It must never list a workspace that a caller chose, and takes a conversation
// for used when nothing tells whether a container runs for it. The server's own
// lock is inside its process: a container that it starts in the moment between
// our look and the move is seen only by the second look, so a box is reclaimed
// at best while that server is down.
//
// What the layout is like was seen with an agent-server of 1.58.2 in Docker mode
// and a real engine, and a test compares what its own code reads with what we do
// (scripts/docker.sh). In its containers ran a stand-in: the image of the
// agent-server is not to be had everywhere. Containers of that version have
// random names and say only whose they are by their mounts.
//
// Who calls it: agentserver/reclaim and agentserver/retention, through
// reclaim.Layout.
package dockerruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/openhands/boxkeeper/agentserver/idlelock"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

// Options is what a Layout may be told.
type Options struct {
	// Containers lists the containers that there are now. Nil means that nobody
	// can tell, and then every conversation counts as used.
	Containers func(ctx context.Context) (Listed, error)
	// Lock looks for leases and processes; nil means one with its defaults.
	Lock *idlelock.Locker
}

// Listed returns the container of a list that runs or starts for a conversation
// of 32 digits, in words, empty for none.
type Listed func(conversation string) (name string, err error)

// Layout lists the runtimes below one box's root. It is safe for concurrent use.
type Layout struct {
	root  string
	write storage.Writer
	opts  Options
}

var _ reclaim.Layout = (*Layout)(nil)

// New returns the layout of the box at root, which is absolute; write puts
// markers there.
func New(root string, write storage.Writer, opts Options) *Layout {
	if opts.Lock == nil {
		opts.Lock = idlelock.New(idlelock.Options{})
	}
	return &Layout{root: root, write: write, opts: opts}
}

// Places lists every runtime, the longest unused first. An error means that the
// list can't be made at all.
func (l *Layout) Places(ctx context.Context) ([]reclaim.Place, error) {
	places, _, err := l.look(ctx)
	return places, err
}

// Orphans lists what lies among the runtimes and is none: names that are no ids,
// links, and runtimes that have neither manifest nor history. None of it has a
// place, and nothing here takes it.
func (l *Layout) Orphans(ctx context.Context) ([]storage.Orphan, error) {
	_, orphans, err := l.look(ctx)
	return orphans, err
}

func (l *Layout) look(ctx context.Context) (places []reclaim.Place, orphans []storage.Orphan, err error) {
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return nil, nil, fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	entries, err := storage.List(root, storage.DataDir)
	if err != nil {
		return nil, nil, fmt.Errorf("list the runtimes: %w", err)
	}
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		name := entry.Name()
		at := path.Join(storage.DataDir, name)
		switch {
		case name == ".trash": // the agent-server's own; it empties it
		case !entry.IsDir() && entry.Type()&fs.ModeSymlink != 0:
			orphans = append(orphans, storage.Orphan{Path: at, Reason: "is a link where a runtime should be"})
		case !storage.IsID(name), !entry.IsDir():
			orphans = append(orphans, storage.Orphan{Path: at, Reason: "is no runtime: its name is no conversation id"})
		case forgotten(root, name):
			orphans = append(orphans, storage.Orphan{
				Path: at, Conversation: name, Forgotten: true,
				Reason: "is the runtime of a conversation that has neither manifest nor history",
			})
		default:
			places = append(places, l.place(root, name))
		}
	}
	l.contained(ctx, places)
	storage.SortPlaces(places)
	return places, orphans, nil
}

// contained makes the places busy that a container uses; all are asked about at
// once.
func (l *Layout) contained(ctx context.Context, places []reclaim.Place) {
	if len(places) == 0 {
		return
	}
	of := l.containers(ctx)
	for i := range places {
		if one := &places[i]; one.Busy == "" {
			one.Busy = of(one.Conversation)
		}
	}
}

// forgotten reports whether nothing speaks of a conversation any more. What
// can't be read is not forgotten.
func forgotten(root *os.Root, id string) bool {
	for _, name := range []string{manifestOf(id), path.Join(storage.ConversationsDir, id)} {
		if _, err := root.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

func manifestOf(id string) string { return path.Join(storage.ControlDir, id+".json") }

func runtimeOf(id string) string { return path.Join(storage.DataDir, id) }

func (l *Layout) place(root *os.Root, id string) reclaim.Place {
	out := reclaim.Place{Conversation: id, Runtime: runtimeOf(id)}
	unsure := func(what string, err error) {
		if err != nil && out.Busy == "" {
			out.Busy = what + " cannot be read: " + err.Error()
		}
	}
	var err error
	out.LastActive, out.LastActiveFrom, err = storage.LastActive(root, id)
	unsure("its history", err)
	out.Archived, out.ArchivedAt, err = storage.Archived(root, id)
	unsure("its marker", err)
	// Also shows whether the directory can be entered at all.
	entries, err := storage.List(root, runtimeOf(id))
	unsure("its directory", err)
	if out.Busy == "" {
		out.Busy = l.opts.Lock.Peek(filepath.Join(l.root, storage.ConversationsDir, id))
	}
	for _, entry := range entries {
		switch at := path.Join(runtimeOf(id), entry.Name()); {
		case !entry.IsDir():
		case entry.Name() == "persistence":
			out.Home = at
		case entry.Name() == "workspace":
			own, err := l.ownWorkspace(root, id)
			unsure("its manifest", err)
			if own {
				out.Workspaces = []string{at}
			} else {
				out.Runtime = "" // it would go with the rest, and nothing says whose it is
			}
		}
	}
	return out
}

// ownWorkspace reports whether the manifest names the directory in the runtime as
// the workspace, and not one that a caller chose.
func (l *Layout) ownWorkspace(root *os.Root, id string) (bool, error) {
	text, err := storage.ReadFile(root, manifestOf(id), 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // then nothing says whose it is
	}
	if err != nil {
		return false, err
	}
	var manifest struct {
		Workspace string `json:"workspace_path"`
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		return false, fmt.Errorf("decode it: %w", err)
	}
	real, err := filepath.EvalSymlinks(l.root)
	if err != nil {
		return false, err
	}
	own := filepath.Clean(manifest.Workspace)
	return own == filepath.Join(l.root, runtimeOf(id), "workspace") || own == filepath.Join(real, runtimeOf(id), "workspace"), nil
}

// Hold keeps a runtime still: no container runs for it, nobody writes its
// manifest, no server has its history loaded and no process is inside. An id
// without a runtime is ClassNotFound.
func (l *Layout) Hold(ctx context.Context, conversation string) (release func(), busy string, err error) {
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return nil, "", fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	if ok, err := l.known(root, conversation); err != nil || !ok {
		return nil, "", unknown(err)
	}
	if busy := l.container(ctx, conversation); busy != "" {
		return nil, busy, nil
	}
	leave := []func(){}
	undo := func() {
		for _, one := range leave {
			one()
		}
	}
	if ok, err := storage.IsDir(root, storage.ControlDir); err != nil || !ok {
		return nil, storage.ControlDir + " is no directory", nil
	}
	control, err := root.Open(storage.ControlDir)
	if err != nil {
		return nil, "its manifest cannot be locked: " + err.Error(), nil
	}
	defer control.Close()
	release, busy, err = l.opts.Lock.Hold(ctx, filepath.Join(l.root, storage.ConversationsDir, conversation), filepath.Join(l.root, runtimeOf(conversation)))
	switch {
	case box.ClassOf(err) == box.ClassNotFound:
		return nil, "has no history, so nothing tells when it was used", nil
	case err != nil || busy != "":
		return nil, busy, err
	}
	leave = append(leave, release)
	manifest, busy := idlelock.Flock(int(control.Fd()), conversation+".json.lock")
	if busy != "" {
		undo()
		return nil, busy, nil
	}
	leave = append(leave, manifest)
	return undo, "", nil
}

// container says in words why a container keeps a conversation in use.
func (l *Layout) container(ctx context.Context, conversation string) (busy string) {
	return l.containers(ctx)(conversation)
}

// containers lists them, and returns what says why one keeps a conversation in
// use.
func (l *Layout) containers(ctx context.Context) func(conversation string) (busy string) {
	const unsure = "cannot tell whether a container runs for it: "
	if l.opts.Containers == nil {
		return func(string) string { return "nothing tells whether a container runs for it" }
	}
	list, err := l.opts.Containers(ctx)
	return func(conversation string) string {
		if err != nil {
			return unsure + err.Error()
		}
		switch name, err := list(conversation); {
		case err != nil:
			return unsure + err.Error()
		case name != "":
			return "in use by container " + name
		}
		return ""
	}
}

func (l *Layout) known(root *os.Root, conversation string) (bool, error) {
	if !storage.IsID(conversation) {
		return false, nil
	}
	return storage.IsDir(root, runtimeOf(conversation))
}

func unknown(err error) error {
	if err != nil {
		return err
	}
	return &box.Error{Class: box.ClassNotFound, Field: "conversation", Message: "no runtime has this id"}
}

// Archive writes the marker that the agent-server looks for before it starts a
// container. A container that started in between keeps the conversation: then the
// marker goes again and the error is ClassConflict. It may be repeated.
func (l *Layout) Archive(ctx context.Context, conversation string) error {
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	if !storage.IsID(conversation) {
		return unknown(nil)
	}
	was, _, err := storage.Archived(root, conversation)
	if err != nil {
		return err
	}
	if ok, err := l.known(root, conversation); !was && (err != nil || !ok) {
		return unknown(err)
	}
	if err := storage.Archive(root, conversation, l.write); err != nil || was {
		return err
	}
	if busy := l.container(ctx, conversation); busy != "" {
		return errors.Join(
			box.Errorf(box.ClassConflict, "conversation %s is kept: %s", conversation, strings.TrimSpace(busy)),
			storage.Unarchive(root, conversation),
		)
	}
	return nil
}
