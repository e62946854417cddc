//go:build !linux

package worktree

import (
	"context"

	"github.com/openhands/boxkeeper/box"
)

const asidePrefix = ".boxd-removing-"

// root stands in where a directory cannot be told from another in its place.
type root struct{}

func (*root) note(string) error { return nil }

func (*root) same(string) error { return nil }

// Recover has nothing to do: nothing is removed here.
func (*Layout) Recover(context.Context) error { return nil }

// Judge is not offered here.
func (*Layout) Judge(context.Context, string, bool) ([]box.ReclaimItem, error) {
	return nil, box.Errorf(box.ClassUnsupported, "judging a worktree needs Linux: this system cannot rule out links and mounts inside it")
}

// Remove is not offered here.
func (*Layout) Remove(context.Context, string, bool) ([]box.ReclaimItem, error) {
	return nil, box.Errorf(box.ClassUnsupported, "removing a worktree needs Linux: this system cannot rule out links and mounts inside it")
}
