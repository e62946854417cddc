package activities

import (
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// Notice is what people are told. It is sent at least once; ID is the same at
// every repeat.
type Notice struct {
	ID        string    `json:"id"`
	Workspace string    `json:"workspace"`
	Owner     string    `json:"owner,omitzero"`
	State     box.State `json:"state"`
	Text      string    `json:"text"`
	// Due is the armed deadline that the notice is about; zero for a reminder.
	Due time.Time `json:"due,omitzero"`
	// Ledger is where it is noted that people were told; nil for a reminder. It is
	// not part of what they are told.
	Ledger *Target `json:"ledger,omitzero"`
}

// Notifier carries notices to people. A returned error means that it is tried
// again.
type Notifier interface {
	Notify(ctx context.Context, n Notice) error
}

// SendNotice tells people what is armed.
func (b *Boxes) SendNotice(ctx context.Context, in Notice) (box.Outcome, error) {
	return b.run(ctx, box.StepNotify, func(ctx context.Context) (box.Outcome, error) {
		note := in.Ledger
		in.Ledger = nil
		if err := b.Notify.Notify(ctx, in); err != nil || note == nil || note.Marks == nil {
			return box.Outcome{}, err
		}
		return box.Outcome{}, b.recordMarks(ctx, *note, note.Marks, exports.KindNoticed, func(m *box.Marks) any { return box.LedgerNote{Due: in.Due, Marks: m} })
	})
}

// LogNotifier writes notices to the worker's log, which is the sink of an
// installation that configured no other.
type LogNotifier struct{}

// Notify writes one line.
func (LogNotifier) Notify(ctx context.Context, n Notice) error {
	activity.GetLogger(ctx).Info("notice", "notice_id", n.ID, "workspace", n.Workspace, "owner", n.Owner, "state", n.State, "text", n.Text, "due", n.Due)
	return nil
}
