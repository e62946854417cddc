package activities

import (
	"context"

	"github.com/openhands/boxkeeper/box"
)

// Slots bounds how many activities of a process move histories at a time: each
// spools a conversation and fills the network. All others run beside them, so
// that nobody waits for a resume behind somebody else's export. The zero value
// bounds nothing.
type Slots chan struct{}

// take waits for a slot, however long that takes; the step's heartbeats go on.
// leave gives it back.
func (s Slots) take(ctx context.Context) (leave func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, box.Errorf(box.ClassCanceled, "wait until fewer histories are on their way: %w", context.Cause(ctx))
	}
}
