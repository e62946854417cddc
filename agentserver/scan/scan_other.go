//go:build !linux

package scan

import (
	"context"

	"github.com/openhands/boxkeeper/box"
)

// Scanner stands in where the kernel cannot keep a look-up on one mount and off
// links.
type Scanner struct{}

// Open answers ClassUnsupported: nothing is measured on this system.
func Open(string, Options) (*Scanner, error) {
	return nil, box.Errorf(box.ClassUnsupported, "measuring needs Linux: this system cannot rule out links and mounts inside a tree")
}

// Close does nothing.
func (*Scanner) Close() {}

// Walk measures nothing.
func (*Scanner) Walk(context.Context, []Place) (Result, error) {
	return Result{}, box.Errorf(box.ClassUnsupported, "measuring needs Linux")
}
