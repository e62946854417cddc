package notices

import (
	"encoding/json"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/openhands/boxkeeper/box"
)

const (
	typePrefix = "dev.boxkeeper.box."
	typeSuffix = ".v1"
	// TypePing is the type of the event that a check sends: it is about no box.
	TypePing = "dev.boxkeeper.ping.v1"
	// ContentType is that of every request: a CloudEvent in structured mode.
	ContentType = event.ApplicationCloudEventsJSON
)

// TypeOf returns the type of the CloudEvent that tells a kind. Types are stable:
// a change that is more than a new field of the data gets another number.
func TypeOf(kind box.EventKind) string { return typePrefix + string(kind) + typeSuffix }

// Data is what a CloudEvent about a box carries. Fields are added, never renamed.
type Data struct {
	Workspace string        `json:"workspace"`
	Owner     string        `json:"owner,omitzero"`
	Provider  string        `json:"provider"`
	Epoch     int           `json:"epoch"`
	Kind      box.EventKind `json:"kind"`
	State     box.State     `json:"state"`
	Reason    box.Reason    `json:"reason"`
	// Number orders the lifecycle events of a workspace. Notices have none.
	Number int `json:"number,omitzero"`
	// Due is the deadline, DueIn how far away it was when the event happened, and
	// Then what happens at it.
	Due   time.Time    `json:"due,omitzero"`
	DueIn box.Duration `json:"due_in,omitzero"`
	Then  string       `json:"then,omitzero"`
	// NextSteps are what the person can do, the gentlest first.
	NextSteps []NextStep `json:"next_steps,omitempty"`
}

// NextStep is one thing that a person can do.
type NextStep struct {
	// Request is the update or signal of the contract; empty for a command only.
	Request string `json:"request,omitzero"`
	Text    string `json:"text"`
	Command string `json:"command"`
}

// encode writes an event as a CloudEvent in structured mode. The same event gives
// the same bytes.
func encode(installation string, p box.Posting, e box.Event) ([]byte, error) {
	data := Data{
		Workspace: p.Workspace, Owner: p.Owner, Provider: p.Provider, Epoch: e.Epoch, Kind: e.Kind, State: e.State, Reason: e.Reason,
		Number: e.Number, Due: e.Due, Then: e.Then, NextSteps: nextSteps(e.Kind, p.Workspace),
	}
	if !e.Due.IsZero() {
		data.DueIn = box.Duration(max(e.Due.Sub(e.At), 0).Round(time.Second))
	}
	if e.Kind == box.EventExpiryNotice || e.Kind == box.EventReminder {
		data.Number = 0 // one that waited in an outbox is still the same notice
	}
	return cloudEvent(e.ID, TypeOf(e.Kind), source(installation, p.Workspace), p.Workspace, e.At, data)
}

func source(installation, workspace string) string {
	return "/boxkeeper/" + installation + "/" + workspace
}

func cloudEvent(id, kind, source, subject string, at time.Time, data any) ([]byte, error) {
	out := event.New(event.CloudEventsVersionV1)
	out.SetID(id)
	out.SetType(kind)
	out.SetSource(source)
	if subject != "" {
		out.SetSubject(subject)
	}
	out.SetTime(at.UTC())
	if err := out.SetData(event.ApplicationJSON, data); err != nil {
		return nil, box.Errorf(box.ClassInternal, "encode the data of event %s: %w", id, err)
	}
	if err := out.Validate(); err != nil {
		return nil, box.Errorf(box.ClassInternal, "event %s is not a valid CloudEvent: %w", id, err)
	}
	body, err := json.Marshal(out)
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "encode event %s: %w", id, err)
	}
	return body, nil
}

// nextSteps says what the person can do about an event.
func nextSteps(kind box.EventKind, workspace string) []NextStep {
	on := func(request, command, text string) NextStep {
		return NextStep{Request: request, Text: text, Command: "boxkeeper box " + command}
	}
	connect := on(box.UpdateConnect, "connect "+workspace+" --holder NAME", "connect: it wakes, and its clocks start again")
	keep := on(box.UpdateKeep, "keep "+workspace, "keep it: it stays suspended and does not expire any more")
	remove := on(box.UpdateRequestDelete, "delete "+workspace, "delete it: you are shown what would be lost before you confirm")
	confirm := on(box.SignalConfirmDelete, "confirm "+workspace+" --token TOKEN", "confirm, with the token that was shown with what would be lost")
	cancel := on(box.SignalCancelDelete, "cancel "+workspace, "take the deletion back")
	resume := on(box.UpdateResume, "resume "+workspace, "try again")
	waive := on(box.SignalConfirmDelete, "confirm "+workspace+" --token TOKEN --without-history", "accept that history which no export holds is lost")
	why := on(box.QueryWhy, "why "+workspace, "see what failed, and when it is tried again")
	history := on("", "history "+workspace, "read the history")
	switch kind {
	case box.EventExpiryNotice, box.EventReminder, box.EventAwaitingConfirm:
		return []NextStep{keep, connect, remove}
	case box.EventSuspended:
		return []NextStep{connect, keep}
	case box.EventDeletionRequested:
		return []NextStep{cancel, confirm}
	case box.EventDeletionConfirmed, box.EventUndoWindow:
		return []NextStep{cancel, connect}
	case box.EventDeleteBlocked:
		return []NextStep{cancel, resume, waive}
	case box.EventCreateFailed:
		return []NextStep{resume, remove}
	case box.EventLost:
		return []NextStep{history, remove}
	case box.EventUnhealthy, box.EventNeedsAttention:
		return []NextStep{why}
	case box.EventBoxArchived:
		return []NextStep{history}
	case box.EventCreated, box.EventResumed, box.EventDeletionCancelled:
	}
	return nil
}
