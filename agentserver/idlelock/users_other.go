//go:build !linux

package idlelock

import (
	"context"

	"github.com/openhands/boxkeeper/box"
)

// Users needs /proc, so that elsewhere it answers ClassUnsupported.
func Users(context.Context, []string) (who string, err error) {
	return "", box.Errorf(box.ClassUnsupported, "looking for users of a directory needs Linux")
}
