package exports

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/openhands/boxkeeper/box"
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

// Events yields the events of the best copy of a conversation, in order; see
// [Conversation.Events].
func (s *Store) Events(ctx context.Context, workspace, conversation string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		c, err := s.OpenConversation(ctx, workspace, conversation)
		if err != nil {
			yield(Event{}, err)
			return
		}
		defer c.Close() //nolint:errcheck // nothing is written
		for e, err := range c.Events(ctx, 0, 0) {
			if !yield(e, err) {
				return
			}
		}
	}
}

// eventPlace is where an event's record is in the directory of the zip.
type eventPlace struct {
	index  int
	number int64
	at     int64
}

// manyEvents is from when on events that lie scattered in a large zip are not
// worth a request each.
const manyEvents = 64

// Events yields events in order, from a position on, at most count of them; a
// count of 0 means all. The first position is 0 and there are [History].Events;
// positions stay the same in later exports, so that they serve as the places of
// pages. It needs memory for one event.
//
// An event that is damaged is taken from another copy that has it; where none
// has, and after any other error, the sequence ends. Of a zip that was not
// packed in order more than a few events are read from a copy in the spool
// directory.
func (c *Conversation) Events(ctx context.Context, from, count int) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if from < 0 || count < 0 {
			yield(Event{}, box.Invalidf("from", "%d events from %d on cannot be counted; use numbers from 0 on", count, from))
			return
		}
		places := c.places[min(from, len(c.places)):]
		if count > 0 {
			places = places[:min(count, len(places))]
		}
		if c.scattered && c.proven == nil && len(places) > manyEvents && c.Bytes > maxBlocks*blockSize {
			f, _, err := c.store.proveCopy(ctx, c.ConversationEntry)
			if err != nil && !damaged(err) {
				yield(Event{}, err)
				return
			}
			c.proven = f // nil when it is damaged: what is whole of it can still be read
		}
		u := c.unpacker(ctx)
		for _, p := range places {
			if err := ctx.Err(); err != nil {
				yield(Event{}, fault(ctx, "read conversation "+c.ID, err))
				return
			}
			e, name, err := c.event(ctx, u, p)
			if damaged(err) && name != "" {
				c.damage = firstError(c.damage, err)
				e, err = c.elsewhere(ctx, p.index, name, err)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// event reads one event. The name of its entry is known also when it is
// damaged.
func (c *Conversation) event(ctx context.Context, u *unpacker, p eventPlace) (e Event, name string, err error) {
	entry, err := u.zip.entryAt(p.at, p.number)
	if err == nil {
		name = entry.name
		e, err = u.event(entry, p.index, c.ID)
	}
	if err != nil {
		return Event{}, name, c.fault(ctx, "read conversation "+c.ID, err)
	}
	return e, name, nil
}

func (u *unpacker) event(entry zipEntry, index int, conversation string) (Event, error) {
	_, id, _ := eventIndex(entry.name, conversation)
	e := Event{Index: index, ID: id, SizeBytes: entry.size}
	if entry.size > maxEventBytes {
		return e, nil
	}
	r, _, err := u.open(entry)
	if err != nil {
		return Event{}, err
	}
	e.Raw = make([]byte, entry.size)
	if err := readFull(r, e.Raw); err != nil {
		return Event{}, err
	}
	if n, err := r.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return Event{}, cmp.Or(err, badZipf("entry %d of the zip is damaged", entry.number))
	}
	e.read()
	return e, nil
}

// elsewhere looks for an event in the copies that are not read, by the name of
// its file: another box may have had another event of that number.
func (c *Conversation) elsewhere(ctx context.Context, index int, name string, damage error) (Event, error) {
	for _, h := range c.others {
		e, found, err := c.store.eventIn(ctx, h, index, name)
		if found || err != nil && !damaged(err) {
			return e, err
		}
	}
	return Event{}, damage
}

func (s *Store) eventIn(ctx context.Context, h History, index int, name string) (e Event, found bool, err error) {
	c, err := s.openCopy(ctx, h)
	if err != nil {
		return Event{}, false, err
	}
	u := c.unpacker(ctx)
	at, _ := slices.BinarySearchFunc(c.places, index, func(p eventPlace, index int) int { return cmp.Compare(p.index, index) })
	for _, p := range c.places[at:] {
		if p.index != index {
			break
		}
		e, is, err := c.event(ctx, u, p)
		if err != nil || is == name {
			return e, err == nil, err
		}
	}
	return Event{}, false, nil
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
