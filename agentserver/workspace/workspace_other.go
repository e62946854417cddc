//go:build !linux

package workspace

import (
	"context"
	"io"

	"github.com/openhands/boxkeeper/box"
)

func unsupported() error {
	return box.Errorf(box.ClassUnsupported, "looking at a workspace needs Linux: this system cannot rule out links and mounts inside it")
}

// Unsaved is not offered here.
func (*Workspace) Unsaved(context.Context) (box.Unsaved, error) { return box.Unsaved{}, unsupported() }

// Needs is not offered here.
func (*Workspace) Needs(context.Context) (func(dir string) string, error) { return nil, unsupported() }

// Export is not offered here.
func (*Workspace) Export(context.Context, io.Writer) error { return unsupported() }
