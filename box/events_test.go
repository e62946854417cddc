package box_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func TestEventsOfALife(t *testing.T) {
	t.Parallel()
	t.Run("while nobody listens nothing is kept", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.toAwaiting()
		require.Empty(t, w.facts.Outbox.Events)
		p, at := w.facts.Post(w.now)
		require.Empty(t, p.Events)
		require.Zero(t, at)
	})
	t.Run("states at rest are told once, in order, and states on the way are not", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(all("ops")...)
		m := newPostman(w)
		w.until(w.settle(), 0)
		w.settle() // suspended
		m.deliver()
		w.connect("tab")
		w.settle()
		w.facts.Release("tab", w.now)
		w.until(w.settle(), 0)
		w.until(w.settle(), 0) // notice
		w.until(w.settle(), 0) // expiry
		w.settle()
		loss := w.requestDelete()
		w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
		w.until(w.settle(), 0)
		w.settle()
		w.state(box.StateBoxArchived)
		m.deliver()
		require.Equal(t, []box.EventKind{
			box.EventCreated, box.EventSuspended, box.EventResumed, box.EventSuspended, box.EventAwaitingConfirm,
			box.EventDeletionRequested, box.EventDeletionConfirmed, box.EventUndoWindow, box.EventBoxArchived,
		}, m.got["ops"])
		require.Empty(t, w.facts.Outbox.Events)
	})
	t.Run("a suspend that was called off is not told", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.listening(all("ops")...)
		w.facts.Queue(box.Ask{Kind: box.AskScan, ID: "s"})
		w.settle() // who listens is known from here on
		w.running = 1
		w.until(w.settle(), 0)
		w.settle()
		w.state(box.StateRunning)
		require.Empty(t, w.facts.Outbox.Events)
	})
	t.Run("a refused creation is told, though no outcome ever said who listens", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(all("ops")...)
		w.fail[box.StepCreate] = box.ClassInvalid
		w.settle()
		m := newPostman(w)
		m.deliver()
		require.Equal(t, []box.EventKind{box.EventCreateFailed}, m.got["ops"])
	})
	t.Run("a step that keeps failing and a box that does not answer are told", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.listening(all("ops")...)
		m := newPostman(w)
		w.deaf = true
		w.pass(time.Hour)
		w.state(box.StateSuspended)
		m.deliver()
		w.deaf = false
		w.fail[box.StepResume] = box.ClassUnavailable
		w.facts.Resume(box.Request{ID: "r"}, w.now)
		w.pass(2 * time.Hour)
		m.deliver()
		require.Equal(t, []box.EventKind{box.EventUnhealthy, box.EventSuspended, box.EventNeedsAttention}, m.got["ops"])
	})
	t.Run("what is due is the armed deadline", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(all("ops")...)
		step := w.toSuspended()
		e := w.facts.Outbox.Events[len(w.facts.Outbox.Events)-1]
		require.Equal(t, box.EventSuspended, e.Kind)
		require.Equal(t, w.facts.SuspendedSince.Add(30*day), e.Due)
		require.NotEmpty(t, e.Then)
		w.until(step, 0)
		w.facts.Advance(w.now)
		next := box.Next(w.facts, w.now)
		told := w.facts.NoticeEvent(next)
		require.Equal(t, e.Due, told.Due)
		require.Equal(t, next.At, told.Due)
		require.Equal(t, w.now, told.At)
	})
	t.Run("receivers get what they take, and a new one nothing of the past", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(box.Listener{Name: "end", Only: []box.EventKind{box.EventBoxArchived}})
		m := newPostman(w)
		w.settle()
		require.Empty(t, w.facts.Outbox.Events, "nobody wants it")
		w.listeners = append(w.listeners, all("late")...)
		w.connect("x")
		w.facts.Release("x", w.now)
		w.until(w.settle(), 0)
		w.settle()
		m.deliver()
		require.Empty(t, m.got["end"])
		require.Equal(t, []box.EventKind{box.EventSuspended}, m.got["late"])
	})
	t.Run("a receiver that is not configured any more is forgotten", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(all("ops")...)
		w.settle()
		require.NotEmpty(t, w.facts.Outbox.Events)
		w.listeners = nil
		w.until(w.settle(), 0)
		w.settle()
		require.Empty(t, w.facts.Outbox.Events)
		require.Empty(t, w.facts.Outbox.Receivers)
		require.Zero(t, w.facts.Outbox.Dropped)
	})
}

func TestNoticesReachSomebody(t *testing.T) {
	t.Parallel()
	t.Run("who did not take a notice gets it later, under the same id", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(all("a", "b")...)
		m := newPostman(w)
		w.until(w.toSuspended(), 0)
		m.deliver()
		step := w.step(box.StepNotify)
		want := w.facts.NoticeEvent(step)
		w.facts.Begin(step, w.now)
		w.facts.Apply(step, box.Outcome{Listeners: w.listeners, Deliveries: []box.Delivery{{Receiver: "a"}, {Receiver: "b", Failed: true}}}, w.now)
		m.sent = nil
		m.deliver()
		require.Len(t, m.sent, 1)
		want.Number, want.Took = m.sent[0].Number, []string{"a"}
		require.Equal(t, want, m.sent[0])
		require.NotContains(t, m.got["a"], box.EventExpiryNotice)
		require.Contains(t, m.got["b"], box.EventExpiryNotice)
	})
	t.Run("the id of a notice is that of its deadline", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.until(w.toSuspended(), 0)
		step := w.step(box.StepNotify)
		first := w.facts.NoticeEvent(step)
		w.facts.Begin(step, w.now)
		w.facts.Apply(step, box.Outcome{Failed: &box.StepFailure{Class: box.ClassUnavailable}}, w.now)
		w.now = w.now.Add(30 * time.Second)
		w.facts.Advance(w.now)
		again := box.Next(w.facts, w.now)
		require.Equal(t, box.StepNotify, again.Kind)
		require.Equal(t, first, w.facts.NoticeEvent(again), "the same deadline")
		w.policy("p", box.Policy{PausedTTL: box.Duration(60 * day)})
		w.until(w.settle(), 0)
		moved := w.facts.NoticeEvent(w.step(box.StepNotify))
		require.NotEqual(t, first.ID, moved.ID)
		require.NotEqual(t, first.Due, moved.Due)
	})
	t.Run("a box that nothing deletes by itself goes on when nobody can be told", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		w.fail[box.StepNotify] = box.ClassUnavailable
		w.pass(31 * day)
		w.state(box.StateAwaitingConfirm)
		require.NotZero(t, w.facts.StatusAt(w.now).NoticesUntold)
		before := w.did(box.StepNotify)
		w.pass(60 * day)
		if tries := w.did(box.StepNotify) - before; tries > 100 {
			t.Errorf("reminders that nobody takes were tried %d times in 60 days", tries)
		}
	})
	t.Run("a deletion by policy never begins while nobody was told", func(t *testing.T) {
		t.Parallel()
		w := awake(t, deletes)
		w.toSuspended()
		w.fail[box.StepNotify] = box.ClassUnavailable
		w.pass(400 * day)
		w.state(box.StateSuspended)
		require.Contains(t, w.facts.Flags(), "needs-attention")
		require.Zero(t, w.did(box.StepDelete))
	})
	t.Run("a user who arrives does not wait for a receiver that hangs", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.until(w.toSuspended(), 0)
		step := w.step(box.StepNotify)
		require.False(t, box.Interrupts(w.facts, step))
		w.connect("tab")
		require.True(t, box.Interrupts(w.facts, step))
	})
}

func TestEventIDsAreCountedPerWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec()).listening(all("ops")...)
	w.until(w.settle(), 0)
	w.settle()
	var numbers []int
	for _, e := range w.facts.Outbox.Events {
		numbers = append(numbers, e.Number)
	}
	if !reflect.DeepEqual(numbers, []int{1, 2}) {
		t.Errorf("numbers %v", numbers)
	}
}

func TestEveryKindIsListed(t *testing.T) {
	t.Parallel()
	found := contractConstants(t, "Event")
	listed := box.EventKinds()
	if len(found) != len(listed) || len(found) < 16 {
		t.Fatalf("%d constants Event*, %d kinds listed", len(found), len(listed))
	}
	page := readDoc(t, "../docs/events.md")
	for name, kind := range found {
		if !slices.Contains(listed, box.EventKind(kind)) {
			t.Errorf("%s is not listed", name)
		}
		if !strings.Contains(page, fmt.Sprintf("\n| `dev.boxkeeper.box.%s.v1` |", kind)) {
			t.Errorf("%s (%q) has no row in docs/events.md", name, kind)
		}
	}
}
