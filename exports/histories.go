package exports

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// History is the copy of a conversation that is read, and where it is from.
type History struct {
	ConversationEntry
	Epoch    int       `json:"epoch"`
	Manifest string    `json:"manifest"` // key
	At       time.Time `json:"at"`       // when the manifest was written
}

// Conversations lists the conversations of a workspace by what the manifests
// say, sorted by id: of each the copy with the most events, across all epochs
// and attempts, and of equal ones the newest. Objects are not read. A manifest
// that is damaged is reported as Unknown beside what the others say.
func (s *Store) Conversations(ctx context.Context, workspace string) ([]ConversationEntry, error) {
	all, err := s.copies(ctx, workspace)
	if err != nil && !damaged(err) {
		return nil, err
	}
	var out []ConversationEntry
	for _, c := range all {
		if n := len(out); n == 0 || out[n-1].ID != c.ID {
			out = append(out, c.ConversationEntry)
		}
	}
	return out, err
}

// Histories returns the best copy of each conversation that can be read now,
// sorted by id: every object is read and proven, and a lost or altered one
// falls back to the next best. Such damage is reported as Unknown beside what
// was found, also when another copy took the place.
func (s *Store) Histories(ctx context.Context, workspace string) ([]History, error) {
	all, damage := s.copies(ctx, workspace)
	if damage != nil && !damaged(damage) {
		return nil, damage
	}
	var out []History
	for _, c := range all {
		if n := len(out); n > 0 && out[n-1].ID == c.ID {
			continue
		}
		f, _, err := s.proveCopy(ctx, c.ConversationEntry)
		if err == nil {
			_ = f.Close()
			out = append(out, c)
			continue
		}
		if !damaged(err) {
			return nil, err
		}
		damage = firstError(damage, err)
	}
	return out, damage
}

// copies returns every copy that a manifest names, grouped by conversation, the
// best of each first.
func (s *Store) copies(ctx context.Context, workspace string) ([]History, error) {
	if err := box.ValidateWorkspace(workspace); err != nil {
		return nil, err
	}
	var keys []string
	err := s.list(ctx, exportsPrefix(workspace), func(key string) {
		if strings.HasSuffix(key, "/manifest.json") {
			keys = append(keys, key)
		}
	})
	if err != nil {
		return nil, err
	}
	var damage error
	best := map[string]History{} // by object: later manifests name it again
	for _, key := range keys {
		m, _, err := s.manifest(ctx, key)
		if damaged(err) || box.ClassOf(err) == box.ClassInvalid || box.ClassOf(err) == box.ClassNotFound {
			damage = firstError(damage, box.Errorf(box.ClassUnknown, "read an export of workspace %s: %w", workspace, err))
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, c := range m.Conversations {
			h := History{ConversationEntry: c, Epoch: m.Epoch, Manifest: key, At: m.CreatedAt}
			id := c.Key + " " + c.SHA256
			if old, ok := best[id]; !ok || better(h, old) < 0 {
				best[id] = h
			}
		}
	}
	all := make([]History, 0, len(best))
	for _, h := range best {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b History) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), better(a, b))
	})
	return all, damage
}

// better orders copies of one conversation, the one to read first.
func better(a, b History) int {
	return cmp.Or(
		cmp.Compare(b.Events, a.Events),
		cmp.Compare(b.Epoch, a.Epoch),
		b.At.Compare(a.At),
		cmp.Compare(b.Manifest, a.Manifest),
		cmp.Compare(b.Key, a.Key),
	)
}

func firstError(first, err error) error {
	if first != nil {
		return first
	}
	return err
}
