//go:build linux

package storagetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/agentserver/idlelock"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/sharedworkspace"
	"github.com/openhands/boxkeeper/box"
)

// mutants are layouts that break the clause of their name, each in one way.
func mutants() map[string]map[string]mutant {
	return map[string]map[string]mutant{
		"places come longest unused first": {
			"the last one used comes first": &broken{places: func(_ *broken, places []reclaim.Place) ([]reclaim.Place, error) {
				slices.Reverse(places)
				return places, nil
			}},
			"a use that is not known is an old one": each(func(_ *broken, place *reclaim.Place) {
				if place.LastActive.IsZero() {
					place.LastActive = time.Unix(0, 0)
				}
			}),
			"nothing says what showed it": each(func(_ *broken, place *reclaim.Place) { place.LastActiveFrom = "" }),
			"all are busy":                each(func(_ *broken, place *reclaim.Place) { place.Busy = "it may be" }),
			"none has a runtime":          each(func(_ *broken, place *reclaim.Place) { place.Runtime = "" }),
		},
		"the last use is the one that the whole history shows": {
			"of the state alone": each(func(b *broken, place *reclaim.Place) {
				info, err := os.Stat(filepath.Join(b.root, storage.ConversationsDir, place.Conversation, "base_state.json"))
				if err == nil {
					place.LastActive = info.ModTime()
				}
			}),
			"with the lease, which is no use": each(func(_ *broken, place *reclaim.Place) { place.LastActive = time.Now() }),
		},
		"Scenario 100: a link in place of a directory is never a place": {
			"a link is listed like a directory": each(func(b *broken, place *reclaim.Place) {
				name := filepath.Join(storage.WorkspaceDir, "projects", place.Conversation[:4])
				if _, err := os.Lstat(filepath.Join(b.root, name)); err == nil {
					place.Workspaces = []string{name}
				}
			}),
			"what lies behind a link is listed": each(func(b *broken, place *reclaim.Place) {
				name := filepath.Join(storage.WorkspaceDir, "projects", place.Conversation[:4])
				if info, err := os.Lstat(filepath.Join(b.root, name)); err == nil && info.IsDir() {
					place.Runtime = name
				}
			}),
		},
		"what cannot be read is listed as busy": {
			"it is left out": &broken{places: func(_ *broken, places []reclaim.Place) ([]reclaim.Place, error) {
				return slices.DeleteFunc(places, func(place reclaim.Place) bool { return place.Busy != "" }), nil
			}},
			"it is free": each(func(_ *broken, place *reclaim.Place) { place.Busy = "" }),
		},
		"a hold is exclusive, and over when it is released": {
			"it holds nothing": &broken{hold: func(context.Context, *broken, string) (func(), string, error) {
				return func() {}, "", nil
			}},
			"it is never over": &broken{hold: func(ctx context.Context, b *broken, id string) (func(), string, error) {
				release, busy, err := b.Layout.Hold(ctx, id)
				if release != nil {
					release = func() {}
				}
				return release, busy, err
			}},
			"it can be released once only": &broken{hold: func(ctx context.Context, b *broken, id string) (func(), string, error) {
				release, busy, err := b.Layout.Hold(ctx, id)
				if release == nil {
					return nil, busy, err
				}
				times := 0
				return func() {
					if times++; times > 1 {
						panic("released twice")
					}
					release()
				}, busy, err
			}},
			"it holds the others too": &broken{hold: func(ctx context.Context, b *broken, id string) (func(), string, error) {
				first, busy, err := b.Layout.Hold(ctx, ids[0])
				if busy != "" || err != nil || id == ids[0] {
					return first, busy, err
				}
				release, busy, err := b.Layout.Hold(ctx, id)
				return func() { first(); release() }, busy, err
			}},
			"it goes on when its caller gave up": &broken{hold: func(ctx context.Context, b *broken, id string) (func(), string, error) {
				return b.Layout.Hold(context.WithoutCancel(ctx), id)
			}},
		},
		"a conversation that is loaded, running or locked is busy": {
			"a lease is not looked at":   without("owner_lease.json"),
			"a lock is taken away":       without(".owner_lease.lock"),
			"a run is not looked at":     &broken{hold: idle},
			"a plan does not say so":     each(func(_ *broken, place *reclaim.Place) { place.Busy = "" }),
			"nothing is ever free again": &broken{hold: once()},
		},
		"Scenario 87: a process that works inside keeps a conversation": {
			"nobody looks for processes": remade(func(root string, write storage.Writer) reclaim.Layout {
				return sharedworkspace.New(root, write, sharedworkspace.Options{Lock: idlelock.New(idlelock.Options{Users: nobody})})
			}),
			"only its history is looked at": &broken{hold: func(ctx context.Context, b *broken, id string) (func(), string, error) {
				return idlelock.New(idlelock.Options{}).Hold(ctx, filepath.Join(b.root, storage.ConversationsDir, id))
			}},
		},
		"an archived conversation is marked first, once, and stays a place": {
			"nothing is marked": &broken{archive: func(context.Context, *broken, string) error { return nil }},
			"it is marked anew each time": &broken{archive: func(_ context.Context, b *broken, id string) error {
				below, err := os.OpenRoot(b.root)
				if err != nil {
					return err
				}
				defer below.Close()
				return errors.Join(storage.Unarchive(below, id), storage.Archive(below, id, Writer(b.root)))
			}},
			"its runtime goes at once": &broken{archive: func(ctx context.Context, b *broken, id string) error {
				return errors.Join(os.RemoveAll(filepath.Join(b.root, storage.WorkspaceDir, "projects", id[:4])), b.Layout.Archive(ctx, id))
			}},
			"it is refused when the runtime has gone": &broken{archive: func(ctx context.Context, b *broken, id string) error {
				_, err := os.Lstat(filepath.Join(b.root, storage.WorkspaceDir, "projects", id[:4]))
				return errors.Join(err, b.Layout.Archive(ctx, id))
			}},
			"it is no place any more": &broken{places: func(_ *broken, places []reclaim.Place) ([]reclaim.Place, error) {
				return slices.DeleteFunc(places, func(place reclaim.Place) bool { return place.Archived }), nil
			}},
			"its place has no runtime": each(func(_ *broken, place *reclaim.Place) {
				if place.Archived {
					place.Runtime = ""
				}
			}),
			"nothing says since when": each(func(_ *broken, place *reclaim.Place) { place.ArchivedAt = time.Time{} }),
		},
		"a marker is whole or not there, whenever its writer was killed": {
			"it is written in place": remade(func(root string, write storage.Writer) reclaim.Layout {
				if err := os.WriteFile(filepath.Join(filepath.Dir(root), inPlace), nil, 0o600); err != nil {
					panic(err)
				}
				return sharedworkspace.New(root, write, sharedworkspace.Options{})
			}),
		},
		"an id that is unknown, or none, is not found": {
			"it can be held": &broken{hold: func(ctx context.Context, b *broken, id string) (func(), string, error) {
				release, busy, err := b.Layout.Hold(ctx, id)
				if box.ClassOf(err) == box.ClassNotFound {
					return func() {}, "", nil
				}
				return release, busy, err
			}},
			"it is busy": &broken{hold: func(ctx context.Context, b *broken, id string) (func(), string, error) {
				release, busy, err := b.Layout.Hold(ctx, id)
				if box.ClassOf(err) == box.ClassNotFound {
					return nil, "is not known", nil
				}
				return release, busy, err
			}},
			"it can be archived": &broken{archive: func(_ context.Context, b *broken, id string) error {
				below, err := os.OpenRoot(b.root)
				if err != nil {
					return err
				}
				defer below.Close()
				return storage.Archive(below, id, Writer(b.root))
			}},
		},
		"names that are no ids are left alone, and listed where there is one": {
			"every name is a place": &broken{places: func(b *broken, _ []reclaim.Place) (out []reclaim.Place, err error) {
				entries, err := os.ReadDir(filepath.Join(b.root, storage.ConversationsDir))
				for _, entry := range entries {
					out = append(out, reclaim.Place{Conversation: entry.Name()})
				}
				return out, err
			}},
			"what lies beside goes as well": &broken{archive: func(ctx context.Context, b *broken, id string) error {
				return errors.Join(os.RemoveAll(filepath.Join(b.root, storage.WorkspaceDir, "projects", "notes")), b.Layout.Archive(ctx, id))
			}},
			"one is not listed": relisted(func(all []storage.Orphan) []storage.Orphan { return all[1:] }),
			"one counts as forgotten": relisted(func(all []storage.Orphan) []storage.Orphan {
				all[0].Forgotten = true
				return all
			}),
			"nothing says why": relisted(func(all []storage.Orphan) []storage.Orphan {
				all[0].Reason = ""
				return all
			}),
		},
		"an empty box has no places": {
			"the workspace is one": &broken{places: func(_ *broken, places []reclaim.Place) ([]reclaim.Place, error) {
				return append(places, reclaim.Place{Runtime: storage.WorkspaceDir}), nil
			}},
			"it is an error without its directories": &broken{places: func(b *broken, places []reclaim.Place) ([]reclaim.Place, error) {
				_, err := os.ReadDir(filepath.Join(b.root, storage.ConversationsDir))
				return places, err
			}},
		},
		"a runtime goes into the trash, and nothing else does": {
			"a look takes it": &brokenRule{judge: func(b *brokenRule, items []box.ReclaimItem) {
				for _, item := range items {
					_ = os.RemoveAll(filepath.Join(b.root, item.Path))
				}
			}},
			"it is deleted at once": after(func(_ *brokenRule, removed string) { _ = os.RemoveAll(removed) }),
			"nothing tells whose it is in the trash": after(func(_ *brokenRule, removed string) {
				_ = os.Rename(removed, filepath.Join(filepath.Dir(removed), "work"))
			}),
			"another one goes with it": after(func(b *brokenRule, _ string) {
				_ = os.RemoveAll(filepath.Join(b.root, storage.WorktreesDir, storage.Dashed(ids[1])))
			}),
			"it stays where it was, too": after(func(b *brokenRule, removed string) {
				_ = os.CopyFS(filepath.Join(b.root, storage.WorktreesDir, storage.Dashed(ids[0]), "project"), os.DirFS(removed))
			}),
			"it is not named": &brokenRule{remove: func(ctx context.Context, b *brokenRule, id string, accept bool) ([]box.ReclaimItem, error) {
				_, err := b.Layout.Remove(ctx, id, accept)
				return nil, err
			}},
			"a second time is an error": &brokenRule{remove: func(ctx context.Context, b *brokenRule, id string, accept bool) ([]box.ReclaimItem, error) {
				items, err := b.Layout.Remove(ctx, id, accept)
				if err == nil && len(items) == 0 {
					err = fmt.Errorf("no worktree of %s", id)
				}
				return items, err
			}},
		},
		"a runtime that is used, or holds work of its own, stays": {
			"whatever holds it":          rash(func(item box.ReclaimItem, _ bool) bool { return strings.Contains(item.Skipped, "is held by") }),
			"whoever works in it":        rash(func(item box.ReclaimItem, _ bool) bool { return strings.Contains(item.Skipped, "in use by process") }),
			"what is given up goes":      rash(func(_ box.ReclaimItem, accept bool) bool { return accept }),
			"work of its own is nothing": rash(func(item box.ReclaimItem, _ bool) bool { return strings.Contains(item.Skipped, "untracked") }),
			"a link is moved":            rash(func(item box.ReclaimItem, _ bool) bool { return strings.Contains(item.Skipped, "link") }),
			"a look does not say so":     &brokenRule{judge: func(_ *brokenRule, items []box.ReclaimItem) { items[0].Skipped = "" }},
		},
	}
}

// each breaks every place.
func each(change func(b *broken, place *reclaim.Place)) *broken {
	return &broken{places: func(b *broken, places []reclaim.Place) ([]reclaim.Place, error) {
		for i := range places {
			change(b, &places[i])
		}
		return places, nil
	}}
}

// without holds while a file of the history is hidden.
func without(name string) *broken {
	return &broken{hold: func(ctx context.Context, b *broken, id string) (func(), string, error) {
		at := filepath.Join(b.root, storage.ConversationsDir, id, name)
		if os.Rename(at, at+".hidden") == nil {
			defer os.Rename(at+".hidden", at) //nolint:errcheck // of a mutant
		}
		return b.Layout.Hold(ctx, id)
	}}
}

// idle holds as if nothing ran.
func idle(ctx context.Context, b *broken, id string) (func(), string, error) {
	at := filepath.Join(b.root, storage.ConversationsDir, id, "base_state.json")
	before, err := os.ReadFile(at)
	if err != nil {
		return nil, "", err
	}
	if err := os.WriteFile(at, []byte(`{"execution_status":"idle"}`), 0o600); err != nil {
		return nil, "", err
	}
	defer os.WriteFile(at, before, 0o600) //nolint:errcheck // of a mutant
	return b.Layout.Hold(ctx, id)
}

// once holds one time, and says afterwards that somebody does.
func once() func(ctx context.Context, b *broken, id string) (func(), string, error) {
	var first sync.Once
	return func(ctx context.Context, b *broken, id string) (release func(), busy string, err error) {
		busy = "its lock is held"
		first.Do(func() { release, busy, err = b.Layout.Hold(ctx, id) })
		return release, busy, err
	}
}

// rash removes without a look, when that is wanted.
func rash(when func(item box.ReclaimItem, accept bool) bool) *brokenRule {
	return &brokenRule{remove: func(ctx context.Context, b *brokenRule, id string, accept bool) ([]box.ReclaimItem, error) {
		items, err := b.Layout.Remove(ctx, id, accept)
		for i := range items {
			if items[i].Skipped != "" && when(items[i], accept) {
				at := filepath.Join(b.root, items[i].Path)
				if err := os.Rename(at, filepath.Join(b.root, reclaim.TrashDir, reclaim.RemovedPrefix+"rash")); err != nil {
					return nil, err
				}
				items[i].Skipped, items[i].Evidence = "", "rash"
			}
		}
		return items, err
	}}
}

// after does something once a removal is done.
func after(do func(b *brokenRule, removed string)) *brokenRule {
	return &brokenRule{remove: func(ctx context.Context, b *brokenRule, id string, accept bool) ([]box.ReclaimItem, error) {
		items, err := b.Layout.Remove(ctx, id, accept)
		found, _ := filepath.Glob(filepath.Join(b.root, reclaim.TrashDir, reclaim.RemovedPrefix+"*"))
		if len(items) > 0 && items[0].Skipped == "" {
			do(b, found[0])
		}
		return items, err
	}}
}

func nobody(context.Context, []string) (string, error) { return "", nil }
