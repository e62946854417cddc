package exports

import (
	"context"
	"io"

	"github.com/openhands/boxkeeper/box"
)

// Sink is where a history goes back to: a box's agent-server.
type Sink interface {
	// Upload takes the zip of one conversation of the given size, as a whole or
	// not at all.
	Upload(ctx context.Context, id string, body io.Reader, size int64) error
}

// Restore hands the conversations of an export to a sink, one at a time, each
// proven right before: what is lost or altered is Unknown, and is never handed
// out. Conversations of there with as many events are left out, so that it may
// be repeated; one with another number is FailedPrecondition, since a box that
// was used is not written over. Those that the box had stopped listing before
// the export ended stay in the store only.
func (s *Store) Restore(ctx context.Context, workspace string, receipt box.Receipt, there []box.ConversationMark, sink Sink, progress func(Progress)) error {
	m, now, err := s.receipted(ctx, workspace, receipt.Key)
	switch {
	case err != nil:
		return err
	case !sameReceipt(receipt, now):
		return box.Errorf(box.ClassUnknown, "manifest %s is not the one that the receipt was given for", receipt.Key)
	}
	have := make(map[string]int, len(there))
	for _, mark := range there {
		have[mark.ID] = mark.Events
	}
	for i, c := range m.Conversations {
		events, in := have[c.ID]
		switch {
		case c.Gone:
			continue
		case in && events == c.Events:
			continue
		case in:
			return box.Errorf(box.ClassFailedPrecondition, "conversation %s is in the box with %d events and in the export with %d; restore into a new box", c.ID, events, c.Events)
		}
		if err := s.handOut(ctx, c, sink); err != nil {
			return err
		}
		if progress != nil {
			progress(Progress{Stage: StageRestore, Conversation: c.ID, Done: i + 1, Total: len(m.Conversations), Bytes: c.Bytes, Size: c.Bytes})
		}
	}
	return nil
}

func (s *Store) handOut(ctx context.Context, c ConversationEntry, sink Sink) error {
	f, _, err := s.proveCopy(ctx, c)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // nothing is written
	return sink.Upload(ctx, c.ID, io.NewSectionReader(f.file, 0, f.size), f.size)
}
