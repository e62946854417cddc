package dockerruntime

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/openhands/boxkeeper/agentserver/idlelock"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

// settled is how long a forgotten runtime must be as it is before it may go: one
// that is being made has neither manifest nor history for a moment.
const settled = 24 * time.Hour

// Forgotten returns the layout of what deletions left: runtimes of conversations
// that have neither manifest nor history any more. They go as a whole, when no
// container, no process and nobody who makes a manifest is at them.
func (l *Layout) Forgotten() reclaim.Layout { return forgottenRuntimes{l} }

type forgottenRuntimes struct{ of *Layout }

// Places lists the forgotten runtimes, the longest unchanged first.
func (f forgottenRuntimes) Places(ctx context.Context) ([]reclaim.Place, error) {
	orphans, err := f.of.Orphans(ctx)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(f.of.root)
	if err != nil {
		return nil, fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	var out []reclaim.Place
	for _, orphan := range orphans {
		if !orphan.Forgotten {
			continue
		}
		place := reclaim.Place{Conversation: orphan.Conversation, Runtime: orphan.Path}
		if info, err := root.Lstat(orphan.Path); err != nil {
			place.Busy = "cannot be read: " + err.Error()
		} else {
			place.LastActive, place.LastActiveFrom = info.ModTime().UTC(), "runtime directory"
		}
		// Work in it may be somebody's, deleted or not.
		workspace := path.Join(orphan.Path, "workspace")
		if ok, err := storage.IsDir(root, workspace); err != nil {
			place.Busy = "its workspace cannot be read: " + err.Error()
		} else if ok {
			place.Workspaces = []string{workspace}
		}
		if place.Busy == "" && time.Since(place.LastActive) < settled {
			place.Busy = "was changed less than a day ago"
		}
		out = append(out, place)
	}
	f.of.contained(ctx, out)
	storage.SortPlaces(out)
	return out, nil
}

// Hold keeps a forgotten runtime still.
func (f forgottenRuntimes) Hold(ctx context.Context, conversation string) (release func(), busy string, err error) {
	root, err := os.OpenRoot(f.of.root)
	if err != nil {
		return nil, "", fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	if ok, err := f.of.known(root, conversation); err != nil || !ok || !forgotten(root, conversation) {
		return nil, "", unknown(err)
	}
	if busy := f.of.container(ctx, conversation); busy != "" {
		return nil, busy, nil
	}
	who, err := idlelock.Users(ctx, []string{filepath.Join(f.of.root, runtimeOf(conversation))})
	switch {
	case err != nil:
		return nil, "cannot tell whether a process uses it: " + err.Error(), nil
	case who != "":
		return nil, "in use by " + who, nil
	}
	control, err := root.Open(storage.ControlDir)
	if err != nil {
		return nil, "its manifest cannot be locked: " + err.Error(), nil
	}
	defer control.Close()
	release, busy = idlelock.Flock(int(control.Fd()), conversation+".json.lock")
	// Made in the moment before the lock, it is forgotten no more.
	if busy == "" && !forgotten(root, conversation) {
		release()
		return nil, "is being made", nil
	}
	return release, busy, nil
}

// Archive marks nothing, since there is nothing that could be prompted.
func (f forgottenRuntimes) Archive(_ context.Context, conversation string) error {
	root, err := os.OpenRoot(f.of.root)
	if err != nil {
		return fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	if !storage.IsID(conversation) {
		return unknown(nil)
	}
	if !forgotten(root, conversation) {
		return box.Errorf(box.ClassConflict, "conversation %s has a manifest or a history again", conversation)
	}
	return nil
}

// Left reports whether a deleted conversation of this id left files in its
// runtime, which a new one of the same id would find in its home or workspace.
func Left(root *os.Root, id string) (bool, error) {
	if !storage.IsID(id) || !forgotten(root, id) {
		return false, nil
	}
	entries, err := storage.List(root, runtimeOf(id))
	for _, entry := range entries {
		if err != nil || !entry.IsDir() {
			return true, err
		}
		var below []fs.DirEntry
		if below, err = storage.List(root, path.Join(runtimeOf(id), entry.Name())); len(below) > 0 {
			return true, nil
		}
	}
	return false, err
}
