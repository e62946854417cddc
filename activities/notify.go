package activities

import (
	"context"

	"github.com/openhands/boxkeeper/box"
)

// Notifier carries notices and lifecycle events to people and programs.
type Notifier interface {
	// Listeners are who is told of events. None costs nothing: no activity runs
	// for an event.
	Listeners() []box.Listener
	// Deliver sends a posting and may be repeated: ids stay the same. For a
	// posting with receivers it answers how far each came, and fails only when it
	// is cut off. One without goes to everyone who takes it, and fails when
	// nobody took it.
	Deliver(ctx context.Context, p box.Posting) ([]box.Delivery, error)
}

// SendNotice sends a notice or a batch of lifecycle events. It may be repeated:
// ids stay the same. Unavailable: nobody took the notice, try again.
func (b *Boxes) SendNotice(ctx context.Context, in box.Posting) (box.Outcome, error) {
	return b.run(ctx, box.StepNotify, func(ctx context.Context) (box.Outcome, error) {
		deliveries, err := b.Notify.Deliver(ctx, in)
		return box.Outcome{Deliveries: deliveries}, err
	})
}
