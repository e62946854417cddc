package exports

import (
	"context"
	"io"

	"github.com/openhands/boxkeeper/box"
)

// readBack reads objects from the store to the end and compares their sums.
func (e *exporter) readBack(ctx context.Context, entries []ConversationEntry) error {
	e.at.Total = len(entries)
	for i, c := range entries {
		e.at.Done = i
		e.stage(StageReadBack, c.ID, c.Bytes)
		if err := e.store.proveSum(ctx, c, e.tick); err != nil {
			return err
		}
	}
	e.at.Done = len(entries)
	return nil
}

// proveSum reads one object and compares it with its entry; Unknown means that
// the store lost or altered it.
func (s *Store) proveSum(ctx context.Context, c ConversationEntry, tick func(int)) error {
	sum, size, err := s.sum(ctx, c.Key, tick)
	if box.ClassOf(err) == box.ClassNotFound {
		return lost(c)
	}
	if err != nil {
		return err
	}
	if sum != c.SHA256 || size != c.Bytes {
		return lost(c)
	}
	return nil
}

func lost(c ConversationEntry) error {
	return box.Errorf(box.ClassUnknown, "the export store lost or altered %s of conversation %s; check the store, then export again", c.Key, c.ID)
}

func lostObject(key string) error {
	return box.Errorf(box.ClassUnknown, "the export store lost or altered %s; check the store, then export again", key)
}

// putFirst stores an object of the attempt under the first of its names that is
// free or holds it already, reads it back, and returns the name.
func (e *exporter) putFirst(ctx context.Context, contentType string, content io.ReadSeeker, sum string, name func(prefix string, n int) string) (string, error) {
	for n := 1; n <= maxAlternates; n++ {
		key := name(e.prefix, n)
		if _, err := content.Seek(0, io.SeekStart); err != nil {
			return "", fault(ctx, "read the spool file", bare(err))
		}
		err := e.store.put(ctx, key, contentType, content, nil)
		taken := box.ClassOf(err) == box.ClassAlreadyExists
		if err != nil && !taken {
			return "", err
		}
		there, _, err := e.store.sum(ctx, key, nil)
		gone := box.ClassOf(err) == box.ClassNotFound
		switch {
		case err == nil && there == sum:
			return key, nil
		case err != nil && !gone:
			return "", err
		case !taken: // ours, and not what we wrote
			return "", lostObject(key)
		}
	}
	return "", box.Errorf(box.ClassConflict, "attempt %s has too many objects like %s that differ; use another attempt", e.req.Attempt, name(e.prefix, 1))
}
