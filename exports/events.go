package exports

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"iter"
	"slices"
	"time"
)

// maxEventBytes is the largest event that is read into memory.
const maxEventBytes = 8 << 20

// Event is one event of an exported conversation. All but Index, ID and
// SizeBytes are read leniently: what an event does not say stays zero.
type Event struct {
	Index     int       // from its file name
	ID        string    // the event's own, else from its file name
	Kind      string    // such as "MessageEvent"
	Source    string    // such as "user", "agent" or "environment"
	Timestamp time.Time // a time without a zone counts as UTC
	SizeBytes int64
	// Raw is the event as it was exported, normally a JSON object. It is nil for
	// an event of more than 8 MiB: that one is read from the zip.
	Raw json.RawMessage
}

// Events yields the events of the best whole copy of a conversation, in order.
// The sequence ends after the first error; NotFound means that no export has
// the conversation. It needs room in the spool directory for the zip, and
// memory for one event.
func (s *Store) Events(ctx context.Context, workspace, conversation string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		f, _, err := s.openHistory(ctx, workspace, conversation)
		if err != nil {
			yield(Event{}, err)
			return
		}
		defer f.Close() //nolint:errcheck // it has no name any more
		if err := eachEvent(ctx, f, conversation, func(e Event) bool { return yield(e, nil) }); err != nil {
			yield(Event{}, fault(ctx, "read conversation "+conversation, err))
		}
	}
}

// eventPlace is where an event's record is in the directory of the zip.
type eventPlace struct {
	index  int
	number int64
	at     int64
}

func eachEvent(ctx context.Context, f *spooled, conversation string, yield func(Event) bool) error {
	z, err := openZip(f.file, f.size)
	if err != nil {
		return err
	}
	var places []eventPlace
	err = z.walk(ctx, func(e zipEntry) error {
		if index, _, ok := eventIndex(e.name, conversation); ok {
			places = append(places, eventPlace{index: index, number: e.number, at: e.at})
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(places, func(a, b eventPlace) int { return cmp.Compare(a.index, b.index) })
	u := newUnpacker(z)
	for _, p := range places {
		if err := ctx.Err(); err != nil {
			return err
		}
		entry, err := z.entryAt(p.at, p.number)
		if err != nil {
			return err
		}
		_, id, _ := eventIndex(entry.name, conversation)
		event := Event{Index: p.index, ID: id, SizeBytes: entry.size}
		if entry.size <= maxEventBytes {
			r, _, err := u.open(entry)
			if err != nil {
				return err
			}
			event.Raw = make([]byte, entry.size)
			if _, err := io.ReadFull(r, event.Raw); err != nil {
				return err
			}
			event.read()
		}
		if !yield(event) {
			return nil
		}
	}
	return nil
}

// read fills in what the event says of itself. The other fields, which may be
// many and large, are skipped where they are.
func (e *Event) read() {
	var fields struct {
		ID        json.RawMessage `json:"id"`
		Kind      json.RawMessage `json:"kind"`
		Source    json.RawMessage `json:"source"`
		Timestamp json.RawMessage `json:"timestamp"`
	}
	if json.Unmarshal(e.Raw, &fields) != nil {
		return
	}
	e.ID = cmp.Or(shortText(fields.ID), e.ID)
	e.Kind = shortText(fields.Kind)
	e.Source = shortText(fields.Source)
	stamp := shortText(fields.Timestamp)
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999"} {
		if at, err := time.Parse(layout, stamp); err == nil {
			e.Timestamp = at.UTC()
			break
		}
	}
}

// shortText reads a string; another type, or a very long one, counts as not
// said.
func shortText(raw json.RawMessage) (value string) {
	if len(raw) > 1<<10 || json.Unmarshal(raw, &value) != nil {
		return ""
	}
	return value
}
