//go:build !linux

package putback

import (
	"context"
	"io"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
)

func unsupported() error {
	return box.Errorf(box.ClassUnsupported, "putting a workspace back needs Linux: this system cannot rule out links and mounts inside it")
}

// Restore is not offered here.
func (*Box) Restore(context.Context, string, int64, io.Reader) (agentserver.Restored, bool, error) {
	return agentserver.Restored{}, false, unsupported()
}

// Restored is not offered here.
func (*Box) Restored(context.Context, string, int64) (agentserver.Restored, bool, error) {
	return agentserver.Restored{}, false, unsupported()
}

// Continue has nothing to go on with here.
func (*Box) Continue() error { return nil }
