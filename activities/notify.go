package activities

import (
	"context"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// NoticeInput is what SendNotice needs: what people are told, and what the ledger
// is told then.
type NoticeInput struct {
	box.Posting
	// Due is the expiry that the notice announces.
	Due time.Time `json:"due,omitzero"`
	// Ledger is where it is noted that people were told; nil for a reminder and for
	// events. It is no part of what they are told.
	Ledger *Target `json:"ledger,omitzero"`
}

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
func (b *Boxes) SendNotice(ctx context.Context, in NoticeInput) (box.Outcome, error) {
	return b.run(ctx, box.StepNotify, func(ctx context.Context) (box.Outcome, error) {
		deliveries, err := b.Notify.Deliver(ctx, in.Posting)
		if note := in.Ledger; err == nil && note != nil && note.Marks != nil {
			err = b.recordMarks(ctx, *note, note.Marks, exports.KindNoticed, func(m *box.Marks) any { return box.LedgerNote{Due: in.Due, Marks: m} })
		}
		return box.Outcome{Deliveries: deliveries}, err
	})
}
