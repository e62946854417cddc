package exports

import (
	"context"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

const probePrefix = "probe/"

// remove deletes one object; one that is not there is done. It is the only place
// of this package that deletes, and it never touches a ledger.
func (s *Store) remove(ctx context.Context, key string) error {
	if !strings.HasPrefix(key, probePrefix) && !strings.HasPrefix(key, "exports/") && !strings.HasPrefix(key, "chunks/") {
		return box.Errorf(box.ClassInternal, "%s is not for deleting", printable(key))
	}
	err := s.bucket.Delete(ctx, key)
	if err == nil {
		return nil
	}
	if err = fault(ctx, "delete "+key, err); box.ClassOf(err) == box.ClassNotFound {
		return nil
	}
	return err
}
