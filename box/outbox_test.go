package box_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// listening makes the workers of a world say who listens.
func (w *world) listening(who ...box.Listener) *world {
	w.listeners = who
	return w
}

func all(names ...string) []box.Listener {
	var out []box.Listener
	for _, name := range names {
		out = append(out, box.Listener{Name: name})
	}
	return out
}

// postman delivers what a world posts, and keeps it.
type postman struct {
	w    *world
	got  map[string][]box.EventKind
	sent []box.Event // in order, each try
	// answer says what a receiver does with an event; nil takes everything.
	answer func(name string, e box.Event) box.Delivery
}

func newPostman(w *world) *postman { return &postman{w: w, got: map[string][]box.EventKind{}} }

// once makes one posting, if one is due, and reports when to come again.
func (m *postman) once() (sent bool, at time.Time) {
	m.w.t.Helper()
	p, at := m.w.facts.Post(m.w.now)
	if len(p.Events) == 0 {
		if !at.IsZero() && !at.After(m.w.now) {
			m.w.t.Fatalf("nothing is sent and it is to be asked again at %s, now is %s", at, m.w.now)
		}
		return false, at
	}
	out := box.Outcome{Listeners: m.w.listeners}
	for _, to := range p.To {
		d := box.Delivery{Receiver: to.Name, Taken: to.Taken}
		for _, e := range p.Events {
			who := box.Listener{Name: to.Name}
			for _, l := range m.w.listeners {
				if l.Name == to.Name {
					who = l
				}
			}
			if e.Number <= to.Taken || d.Failed {
				continue
			}
			if !who.Takes(e.Kind) || slices.Contains(e.Took, to.Name) {
				d.Taken = e.Number
				continue
			}
			m.sent = append(m.sent, e)
			one := box.Delivery{}
			if m.answer != nil {
				one = m.answer(to.Name, e)
			}
			if one.Failed {
				d.Failed, d.Gone, d.RetryAfter, d.Problem = true, one.Gone, one.RetryAfter, one.Problem
				continue
			}
			d.Taken = e.Number
			d.Refused += one.Refused
			if one.Refused == 0 {
				m.got[to.Name] = append(m.got[to.Name], e.Kind)
			}
		}
		out.Deliveries = append(out.Deliveries, d)
	}
	m.w.facts.Delivered(p, out, m.w.now)
	return true, time.Time{}
}

// deliver sends until nothing is due now.
func (m *postman) deliver() time.Time {
	m.w.t.Helper()
	for range 200 {
		if sent, at := m.once(); !sent {
			return at
		}
	}
	m.w.t.Fatalf("200 postings at one time")
	return time.Time{}
}

// rounds delivers for as long as something waits, and counts the rounds.
func (m *postman) rounds() int {
	n := 0
	for at := m.deliver(); !at.IsZero(); at = m.deliver() {
		n++
		m.w.now = at
	}
	return n
}

func TestDeadReceivers(t *testing.T) {
	t.Parallel()
	t.Run("one that fails holds up no other, and gets everything in order when it is back", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(all("good", "bad")...)
		m := newPostman(w)
		down := true
		m.answer = func(name string, _ box.Event) box.Delivery {
			return box.Delivery{Failed: name == "bad" && down, Problem: "it answered 500"}
		}
		w.until(w.settle(), 0)
		m.deliver()
		w.settle()
		at := m.deliver()
		require.Equal(t, []box.EventKind{box.EventCreated, box.EventSuspended}, m.got["good"])
		require.Equal(t, 10*time.Second, at.Sub(w.now)-at.Sub(w.now)%time.Second)
		status := w.facts.StatusAt(w.now).Webhooks
		require.Equal(t, box.WebhookView{Name: "bad", Waiting: 2, Failed: status[1].Failed, RetryAt: status[1].RetryAt, Problem: "it answered 500"}, status[1])
		require.Equal(t, box.WebhookView{Name: "good"}, status[0])
		down = false
		m.rounds()
		require.Equal(t, m.got["good"], m.got["bad"])
		require.Zero(t, w.facts.Outbox.Dropped)
	})
	t.Run("tries are bounded, then it is dropped and counted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(all("dead")...)
		m := newPostman(w)
		m.answer = func(string, box.Event) box.Delivery { return box.Delivery{Failed: true} }
		w.settle()
		began := w.now
		m.rounds()
		require.Len(t, m.sent, 8)
		require.InDelta(t, 15*time.Hour, w.now.Sub(began), float64(2*time.Hour))
		require.Equal(t, 1, w.facts.Outbox.Dropped)
		require.Equal(t, 1, w.facts.StatusAt(w.now).Webhooks[0].Dropped)
		for _, e := range m.sent[1:] {
			require.Equal(t, m.sent[0], e, "a repeated event is the same")
		}
		w.until(w.settle(), 0)
		w.settle()
		m.rounds()
		require.Len(t, m.sent, 9, "what happens from then on is tried once")
		m.answer = nil
		w.connect("x")
		w.settle()
		m.rounds()
		require.Equal(t, []box.EventKind{box.EventResumed}, m.got["dead"], "until it takes something")
	})
	t.Run("what it asks for is honoured, within a bound", func(t *testing.T) {
		t.Parallel()
		for asked, want := range map[time.Duration]time.Duration{0: 10 * time.Second, time.Hour: time.Hour, 90 * day: 12 * time.Hour} {
			w := newWorld(t, spec()).listening(all("busy")...)
			m := newPostman(w)
			m.answer = func(string, box.Event) box.Delivery {
				return box.Delivery{Failed: true, RetryAfter: box.Duration(asked)}
			}
			w.settle()
			require.Equal(t, want, m.deliver().Sub(w.now))
		}
	})
	t.Run("one that is gone is not tried again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(all("gone")...)
		m := newPostman(w)
		m.answer = func(string, box.Event) box.Delivery { return box.Delivery{Failed: true, Gone: true} }
		w.settle()
		require.Zero(t, m.deliver())
		require.Len(t, m.sent, 1)
		require.Equal(t, 1, w.facts.Outbox.Dropped)
	})
	t.Run("an event that it refuses does not hold up the next", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(all("picky")...)
		m := newPostman(w)
		m.answer = func(_ string, e box.Event) box.Delivery {
			if e.Kind == box.EventCreated {
				return box.Delivery{Refused: 1}
			}
			return box.Delivery{}
		}
		w.until(w.settle(), 0)
		w.settle()
		require.Zero(t, m.deliver())
		require.Equal(t, []box.EventKind{box.EventSuspended}, m.got["picky"])
		require.Equal(t, 1, w.facts.Outbox.Dropped)
	})
	t.Run("a worker that is not there is no fault of the receiver", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(all("ops")...)
		w.settle()
		for range 30 {
			p, _ := w.facts.Post(w.now)
			require.NotEmpty(t, p.Events)
			w.facts.Delivered(p, box.Outcome{Failed: &box.StepFailure{Class: box.ClassUnavailable, NotBegun: true, Message: "no worker"}}, w.now)
			again, at := w.facts.Post(w.now)
			require.Empty(t, again.Events)
			w.now = at
		}
		m := newPostman(w)
		m.deliver()
		require.Equal(t, []box.EventKind{box.EventCreated}, m.got["ops"])
	})
	t.Run("an answer that settles nothing is not asked for again at once", func(t *testing.T) {
		t.Parallel()
		for name, out := range map[string]box.Outcome{
			"it says nothing of the receiver": {Listeners: all("ops")},
			"it came no further":              {Listeners: all("ops"), Deliveries: []box.Delivery{{Receiver: "ops"}}},
			"it claims the future":            {Listeners: all("ops"), Deliveries: []box.Delivery{{Receiver: "ops", Taken: 99, Failed: true}}},
			"it timed out":                    {Failed: &box.StepFailure{Class: box.ClassDeadlineExceeded}},
		} {
			w := newWorld(t, spec()).listening(all("ops")...)
			w.settle()
			p, _ := w.facts.Post(w.now)
			w.facts.Delivered(p, out, w.now)
			if again, _ := w.facts.Post(w.now); len(again.Events) > 0 {
				t.Errorf("%s: it is sent again at once", name)
			}
			if taken := w.facts.Outbox.Receivers[0].Taken; taken > p.Events[0].Number {
				t.Errorf("%s: it took %d of %d", name, taken, p.Events[0].Number)
			}
		}
	})
	t.Run("the workflow of a destroyed box ends within an hour", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec()).listening(all("dead")...)
		m := newPostman(w)
		m.answer = func(string, box.Event) box.Delivery { return box.Delivery{Failed: true} }
		w.settle()
		loss := w.requestDelete()
		w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
		require.Equal(t, box.StepFinish, w.settle().Kind)
		ended := w.now
		m.rounds()
		require.Equal(t, time.Hour, w.now.Sub(ended))
		require.Greater(t, len(m.sent), 3)
		require.NotZero(t, w.facts.Outbox.Dropped)
		require.Empty(t, w.facts.Outbox.Events)
	})
}
