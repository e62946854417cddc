package exports

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// proof remembers whether a store was seen to keep its promises. It is due for
// those that others wrote.
type proof struct {
	mu  sync.Mutex
	due bool
}

// Check writes an object, reads it back, tries to overwrite it (which must be
// refused, also when it comes in parts) and deletes it, and makes a spool file:
// what an export needs, with the keys that are configured. It is safe to repeat.
//
// Unsupported: the store does not honour conditional writes, so that two writers
// would overwrite each other; use another one. Unauthorized: its credentials are
// refused, or the identities do not open what was written.
func (s *Store) Check(ctx context.Context) error {
	key, err := s.tryOut(ctx)
	if key != "" {
		// The probe goes even when ctx ended meanwhile.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if gone := s.remove(clean, key); gone != nil && err == nil {
			err = gone
		}
	}
	if err != nil {
		return err
	}
	f, err := s.newSpool()
	if err != nil {
		return err
	}
	return f.Close()
}

// proveOnce refuses to write to a store that overwrites, before the first write
// of a process.
func (s *Store) proveOnce(ctx context.Context) error {
	s.proof.mu.Lock()
	defer s.proof.mu.Unlock()
	if !s.proof.due {
		return nil
	}
	key, err := s.tryOut(ctx)
	if key != "" {
		_ = s.remove(ctx, key) // who may only add leaves it: it is small
	}
	s.proof.due = err != nil
	return err
}

// tryOut writes a probe and tries to overwrite it. It returns the key of what it
// left.
func (s *Store) tryOut(ctx context.Context) (left string, err error) {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails; documented
	name := hex.EncodeToString(nonce)
	key, body := probePrefix+name+".json", []byte(`{"probe":"`+name+`"}`)
	if err := s.write(ctx, key, "application/json", bytes.NewReader(body), nil); err != nil {
		return "", err
	}
	got, err := s.small(ctx, key, 1<<10)
	if err != nil {
		return key, err
	}
	if !bytes.Equal(got, body) {
		return key, box.Errorf(box.ClassUnknown, "the export store returned other bytes than were written; use another store")
	}
	again := s.write(ctx, key, "application/json", bytes.NewReader(body), nil)
	var parts *s3Bucket
	if box.ClassOf(again) == box.ClassAlreadyExists && s.bucket.As(&parts) {
		if again = parts.overwriteInParts(ctx, key); again != nil {
			again = fault(ctx, "write "+key+" in parts", again)
		}
	}
	switch box.ClassOf(again) { //nolint:exhaustive // any other class is an error like the rest
	case box.ClassAlreadyExists:
		return key, nil // as it must be
	case "":
		return key, box.Errorf(box.ClassUnsupported, "the export store overwrites objects that exist; use one that honours conditional writes (If-None-Match)")
	}
	return key, again
}
