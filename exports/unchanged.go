package exports

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// mark is what a store tells of an object without giving its bytes.
type mark struct {
	size     int64
	modified time.Time
	etag     string
}

func (s *Store) mark(ctx context.Context, key string) (mark, error) {
	a, err := s.bucket.Attributes(ctx, key)
	if err != nil {
		return mark{}, fault(ctx, "look at "+key, err)
	}
	return mark{a.Size, a.ModTime, a.ETag}, nil
}

// Unchanged reports whether an export is as it was when [Store.Verify] proved
// it: the manifest byte for byte, every other object by its length, time and
// tag. It reads no history, so it does not find what decays in silence: use it
// soon after the proof and in the same process, or prove again.
//
// It is safe to repeat. Unknown: something is lost or was touched since, or the
// report is not one that Verify gave.
func (s *Store) Unchanged(ctx context.Context, proven Report) error {
	key := proven.Receipt.Key
	m, sum, err := s.manifest(ctx, key)
	switch {
	case box.ClassOf(err) == box.ClassNotFound:
		return box.Errorf(box.ClassUnknown, "the export store has lost manifest %s", key)
	case err != nil:
		return err
	case m.receipt(key, sum) != proven.Receipt:
		return box.Errorf(box.ClassUnknown, "manifest %s is not the one that was proven", key)
	}
	if err := s.proveSecrets(ctx, m); err != nil {
		return err
	}
	for _, c := range m.Conversations {
		now, err := s.mark(ctx, c.Key)
		switch {
		case box.ClassOf(err) == box.ClassNotFound:
			return lost(c)
		case err != nil:
			return err
		}
		before, ok := proven.marks[c.Key]
		if !ok || now.size != c.Bytes || now.size != before.size || now.etag != before.etag || !now.modified.Equal(before.modified) {
			return box.Errorf(box.ClassUnknown, "the copy of conversation %s was touched after it was proven", c.ID)
		}
	}
	if m.Archive == nil {
		return nil
	}
	fold := newMarkFold(s)
	switch err := s.eachObject(ctx, m.Workspace, *m.Archive, func(key string) error { return fold.add(ctx, key) }); {
	case box.ClassOf(err) == box.ClassNotFound:
		return box.Errorf(box.ClassUnknown, "the export store lost a part of the workspace: %w", err)
	case err != nil:
		return err
	case fold.sum() != proven.archive:
		return box.Errorf(box.ClassUnknown, "the copy of the workspace was touched after it was proven")
	}
	return nil
}

// markFold folds what the store tells of many objects into one sum.
type markFold struct {
	store *Store
	hash  hash.Hash
}

func newMarkFold(s *Store) *markFold { return &markFold{s, sha256.New()} }

func (f *markFold) add(ctx context.Context, key string) error {
	m, err := f.store.mark(ctx, key)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(f.hash, "%q %d %d %q\n", key, m.size, m.modified.UnixNano(), m.etag) // never fails; documented
	return nil
}

func (f *markFold) sum() string { return hex.EncodeToString(f.hash.Sum(nil)) }
