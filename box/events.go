package box

import (
	"fmt"
	"time"
)

// EventKind says what an [Event] tells. It is a part of the type that goes out,
// so values are stable. New ones may come.
type EventKind string

// The kinds. The first two are notices: a deletion by policy waits until
// somebody took them. The others are told at least once to each receiver that
// can be reached within a bounded time, and never waited for.
const (
	EventExpiryNotice      EventKind = "expiry-notice"         // the paused TTL ends soon
	EventReminder          EventKind = "reminder"              // a person must decide, and has not
	EventCreated           EventKind = "created"               // its agent-server answered for the first time
	EventCreateFailed      EventKind = "create-failed"         // the provider refused for good
	EventSuspended         EventKind = "suspended"             // proven; files are kept
	EventResumed           EventKind = "resumed"               // its agent-server answers again
	EventAwaitingConfirm   EventKind = "awaiting-confirmation" // the paused TTL is over; a person must decide
	EventDeletionRequested EventKind = "deletion-requested"    // somebody was shown what would be lost
	EventDeletionConfirmed EventKind = "deletion-confirmed"    // agreed, by a person or by the policy
	EventDeletionCancelled EventKind = "deletion-cancelled"    // taken back, or void
	EventUndoWindow        EventKind = "undo-window"           // agreed, and can still be taken back
	EventDeleteBlocked     EventKind = "delete-blocked"        // agreed, and its export cannot be had
	EventBoxArchived       EventKind = "box-archived"          // destroyed; the last event of a workspace
	EventLost              EventKind = "lost"                  // gone at its provider without us
	EventUnhealthy         EventKind = "unhealthy"             // its agent-server did not answer, or it ended by itself
	EventNeedsAttention    EventKind = "needs-attention"       // a step failed five times in a row, or an account lacks room or money
)

// EventKinds returns every kind, in the order of the documentation.
func EventKinds() []EventKind {
	return []EventKind{
		EventExpiryNotice, EventReminder, EventCreated, EventCreateFailed, EventSuspended, EventResumed, EventAwaitingConfirm,
		EventDeletionRequested, EventDeletionConfirmed, EventDeletionCancelled, EventUndoWindow, EventDeleteBlocked,
		EventBoxArchived, EventLost, EventUnhealthy, EventNeedsAttention,
	}
}

const (
	// noticeTries is how often a notice is tried before the life of a box from
	// which nothing is deleted by itself goes on without it.
	noticeTries = 8
	// attentionTries is how often a step fails in a row before a person should
	// look.
	attentionTries = 5
)

// Event is one thing that happened to a workspace, for programs and people
// outside. It carries no secret.
type Event struct {
	// Number counts the events of the outbox; zero for a notice that was not in
	// it.
	Number int `json:"number,omitzero"`
	// ID is the same each time that the event is sent. That of a lifecycle event
	// is given when it is posted.
	ID     string    `json:"id,omitzero"`
	Kind   EventKind `json:"kind"`
	At     time.Time `json:"at"` // on the engine's clock
	Epoch  int       `json:"epoch"`
	State  State     `json:"state"`
	Reason Reason    `json:"reason"`
	// Due is the deadline that the event is about, and Then what happens at it.
	Due  time.Time `json:"due,omitzero"`
	Then string    `json:"then,omitzero"`
	// Took names the receivers that have it already.
	Took []string `json:"took,omitzero"`
}

// record notes something that happened. What it is due for comes from the facts
// as they are.
func (f *Facts) record(kind EventKind, why Reason, now time.Time) {
	e := Event{Kind: kind, At: now, Epoch: f.Epoch, State: f.State, Reason: why}
	switch kind {
	case EventSuspended:
		e.Due, _ = f.expiryAt()
		if !e.Due.IsZero() {
			e.Then = f.expiryText()
		}
	case EventUndoWindow:
		e.Due, e.Then = f.undoAt(), "it is destroyed"
	case EventDeletionRequested:
		e.Due, e.Then = f.Deletion.Expires, "the token is not valid any more"
	case EventExpiryNotice, EventReminder, EventCreated, EventCreateFailed, EventResumed, EventAwaitingConfirm,
		EventDeletionConfirmed, EventDeletionCancelled, EventDeleteBlocked, EventBoxArchived, EventLost, EventUnhealthy,
		EventNeedsAttention:
	}
	f.add(e)
}

// settle notes a move that came to rest: states on the way are not told.
func (o *Outbox) settle(from, to State) (EventKind, bool) {
	kind := map[State]EventKind{ //nolint:exhaustive // the others are on the way
		StateRunning: EventResumed, StateSuspended: EventSuspended, StateAwaitingConfirm: EventAwaitingConfirm,
		StateUndoWindow: EventUndoWindow, StateDeleteBlocked: EventDeleteBlocked, StateLost: EventLost,
		StateCreateFailed: EventCreateFailed, StateBoxArchived: EventBoxArchived,
	}[to]
	if kind == "" || o.Settled == to {
		return "", false
	}
	if to == StateRunning && (from == StateCreating || from == StateStarting) && (o.Settled == "" || o.Settled == StateCreateFailed || o.Settled == StateLost) {
		kind = EventCreated
	}
	o.Settled = to
	return kind, true
}

func (f *Facts) recordMove(from State, why Reason, now time.Time) {
	if kind, ok := f.Outbox.settle(from, f.State); ok {
		f.record(kind, why, now)
	}
}

// recordUnhealthy notes that the box became unhealthy.
func (f *Facts) recordUnhealthy(was bool, now time.Time) {
	if f.Unhealthy && !was {
		f.record(EventUnhealthy, f.because(), now)
	}
}

// NoticeEvent is what people are told by a step that notifies: the armed
// deadline. Its id and its content are the same at every try for one deadline,
// and others when the deadline moves.
func (f *Facts) NoticeEvent(step Step) Event {
	e := Event{
		ID:   fmt.Sprintf("%s-e%d-%d-%d", f.Spec.Workspace, f.Epoch, f.SuspendedSince.Unix(), f.Reminders),
		Kind: EventReminder, At: f.reminderAt(), Epoch: f.Epoch, State: f.State, Reason: step.Reason,
	}
	if !step.At.IsZero() {
		e.ID += fmt.Sprintf("-due-%d", step.At.Unix())
		e.Kind, e.Due, e.Then, e.At = EventExpiryNotice, step.At, f.expiryText(), step.At.Add(-f.noticeLead())
	}
	return e
}

// oweNotice keeps a notice that somebody took for those who did not.
func (f *Facts) oweNotice(step Step, took []Delivery) {
	e := f.NoticeEvent(step)
	owed := false
	for _, d := range took {
		if d.Failed {
			owed = true
			continue
		}
		e.Took = append(e.Took, d.Receiver)
	}
	if owed {
		f.add(e)
	}
}

// failNotify goes on without a notice that nobody takes, where nothing is
// deleted by itself. A deletion by policy waits until somebody was told.
func (f *Facts) failNotify(step Step, count int, now time.Time) {
	if count < noticeTries || f.Policy.OnExpiry == OnExpiryDelete && f.State == StateSuspended {
		return
	}
	f.Outbox.Untold++
	f.add(f.NoticeEvent(step)) // it may still arrive, for as long as an event is tried
	f.applyNotified(step, now)
}
