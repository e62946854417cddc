package box

import (
	"slices"
	"time"
)

// Bounds of what waits for receivers that do not answer, and of how long.
const (
	maxWaiting   = 32 // events; the oldest are dropped first, and counted
	maxListeners = 8
	maxBatch     = 16
	maxProblem   = 200
	deliverTries = 8 // in a row, over some 15 hours: the outage of a night is survived
	deliverFirst = 10 * time.Second
	deliverMost  = 12 * time.Hour
	// noWorkerWait is when a delivery is tried again that no worker began.
	noWorkerWait = 10 * time.Minute
	// farewell is how long the workflow of a destroyed box stays open for its
	// last events.
	farewell = time.Hour
)

// Listener is a receiver of events, as the workers' configuration has it.
type Listener struct {
	Name string `json:"name"`
	// Only are the kinds that it takes; all when empty.
	Only []EventKind `json:"only,omitzero"`
}

// Takes reports whether the listener is told of a kind.
func (l Listener) Takes(kind EventKind) bool {
	return len(l.Only) == 0 || slices.Contains(l.Only, kind)
}

// Receiver is a listener and how far it has come. Receivers are independent: one
// that does not answer holds up no other.
type Receiver struct {
	Listener
	// Taken is the number of the newest event that it took, or will not get.
	Taken   int       `json:"taken,omitzero"`
	Failed  int       `json:"failed,omitzero"` // tries in a row
	RetryAt time.Time `json:"retry_at,omitzero"`
	Dropped int       `json:"dropped,omitzero"` // events that it never got
	Problem string    `json:"problem,omitzero"` // of the last try
}

// Outbox is what waits to be told. It is empty for as long as nobody listens.
type Outbox struct {
	Number    int        `json:"number,omitzero"` // of the newest event
	Events    []Event    `json:"events,omitzero"` // oldest first
	Receivers []Receiver `json:"receivers,omitzero"`
	Dropped   int        `json:"dropped,omitzero"` // deliveries given up, over all receivers
	Untold    int        `json:"untold,omitzero"`  // notices that nobody took in time
	// Settled is the last state at rest, so that a suspend that was called off
	// is not told as one.
	Settled State `json:"settled,omitzero"`
}

// Cursor says from where on a receiver is told.
type Cursor struct {
	Name  string `json:"name"`
	Taken int    `json:"taken,omitzero"`
}

// Posting is what one activity sends.
type Posting struct {
	Workspace string  `json:"workspace"`
	Owner     string  `json:"owner,omitzero"`
	Provider  string  `json:"provider"`
	Events    []Event `json:"events"`
	// To are the receivers of lifecycle events. A notice has none: it goes to all
	// who take it, and one of them must.
	To []Cursor `json:"to,omitzero"`
}

// Delivery is what became of a posting at one receiver.
type Delivery struct {
	Receiver string `json:"receiver"`
	// Taken is the number of the newest event that is settled there.
	Taken int `json:"taken,omitzero"`
	// Refused counts those of them that it refused for good.
	Refused int `json:"refused,omitzero"`
	// Failed says that the event after Taken must be tried again; with Gone, that
	// the receiver is not there any more.
	Failed     bool     `json:"failed,omitzero"`
	Gone       bool     `json:"gone,omitzero"`
	RetryAfter Duration `json:"retry_after,omitzero"`
	Problem    string   `json:"problem,omitzero"`
}

// listen takes in who listens by now. An activity that failed says it in its
// failure, where it came so far.
func (f *Facts) listen(out Outcome) {
	who := out.Listeners
	if out.Failed != nil {
		if who = out.Failed.Listeners; len(who) == 0 {
			return // it does not say
		}
	}
	o := &f.Outbox
	var now []Receiver
	for _, l := range who[:min(len(who), maxListeners)] {
		r := Receiver{Listener: l, Taken: o.Number} // a new one is not told of the past
		if have := o.receiver(l.Name); have != nil {
			r = *have
			r.Listener = l
		}
		now = append(now, r)
	}
	o.Receivers = now
	o.trim()
}

func (o *Outbox) receiver(name string) *Receiver {
	for i := range o.Receivers {
		if o.Receivers[i].Name == name {
			return &o.Receivers[i]
		}
	}
	return nil
}

// waiting returns the events that a receiver is still to be told of.
func (o *Outbox) waiting(r *Receiver) []Event {
	var out []Event
	for _, e := range o.Events {
		if e.Number > r.Taken && r.Takes(e.Kind) && !slices.Contains(e.Took, r.Name) {
			out = append(out, e)
		}
	}
	return out
}

// drop gives up what a receiver was to be told, up to a number.
func (o *Outbox) drop(r *Receiver, upTo int) {
	for _, e := range o.waiting(r) {
		if e.Number <= upTo {
			r.Dropped++
			o.Dropped++
		}
	}
	r.Taken = max(r.Taken, upTo)
}

// trim forgets events that nobody waits for.
func (o *Outbox) trim() {
	wanted := map[int]bool{}
	for i := range o.Receivers {
		for _, e := range o.waiting(&o.Receivers[i]) {
			wanted[e.Number] = true
		}
	}
	o.Events = slices.DeleteFunc(o.Events, func(e Event) bool { return !wanted[e.Number] })
	if len(o.Events) == 0 {
		o.Events = nil
	}
}

// add puts an event into the outbox, if anybody wants it.
func (f *Facts) add(e Event) {
	o := &f.Outbox
	if len(o.Receivers) == 0 {
		return
	}
	o.Number++
	e.Number = o.Number
	o.Events = append(o.Events, e)
	if extra := len(o.Events) - maxWaiting; extra > 0 {
		last := o.Events[extra-1].Number
		for i := range o.Receivers {
			o.drop(&o.Receivers[i], last)
		}
	}
	o.trim()
}

// Post answers what is to be sent now and to whom, or when to ask again where
// nothing is; a zero time means that nothing waits. It gives up what a destroyed
// box could not tell within an hour.
func (f *Facts) Post(now time.Time) (Posting, time.Time) {
	o := &f.Outbox
	var end, at time.Time
	if f.State == StateBoxArchived || f.State == StateAbandoned {
		if end = f.StateSince.Add(farewell); !now.Before(end) {
			for i := range o.Receivers {
				o.drop(&o.Receivers[i], o.Number)
			}
			o.trim()
		}
	}
	p := Posting{Workspace: f.Spec.Workspace, Owner: f.Spec.Owner, Provider: f.Spec.Provider}
	from := o.Number
	for i := range o.Receivers {
		r := &o.Receivers[i]
		switch waiting := o.waiting(r); {
		case len(waiting) == 0:
		case now.Before(r.RetryAt):
			if at.IsZero() || r.RetryAt.Before(at) {
				at = r.RetryAt
			}
		default:
			p.To = append(p.To, Cursor{Name: r.Name, Taken: r.Taken})
			from = min(from, waiting[0].Number-1)
		}
	}
	if len(p.To) > 0 {
		for _, e := range o.Events {
			if e.Number > from && len(p.Events) < maxBatch {
				p.Events = append(p.Events, e)
			}
		}
		// Who is ahead of this batch has its turn with a later one.
		last := p.Events[len(p.Events)-1].Number
		p.To = slices.DeleteFunc(p.To, func(c Cursor) bool { return o.waiting(o.receiver(c.Name))[0].Number > last })
		return p, time.Time{}
	}
	if !at.IsZero() && !end.IsZero() && end.Before(at) {
		at = end
	}
	return Posting{}, at
}

// Delivered takes in what became of a posting of [Facts.Post].
func (f *Facts) Delivered(p Posting, out Outcome, now time.Time) {
	f.listen(out)
	o := &f.Outbox
	last := p.Events[len(p.Events)-1].Number
	for _, to := range p.To {
		r := o.receiver(to.Name)
		if r == nil {
			continue // not configured any more
		}
		if why := out.Failed; why != nil && (why.NotBegun || why.Class == ClassCanceled) {
			r.RetryAt, r.Problem = now.Add(noWorkerWait), cut(why.Message) // it was not asked
			continue
		}
		d := deliveryOf(to, out)
		r.Taken = max(r.Taken, min(d.Taken, last))
		r.Dropped += d.Refused
		o.Dropped += d.Refused
		r.Problem = cut(d.Problem)
		if d.Taken > to.Taken || !d.Failed {
			r.Failed, r.RetryAt = 0, time.Time{}
		}
		if d.Failed {
			r.fail(o, d, last, now)
		}
	}
	o.trim()
}

// fail says when a receiver is tried again. One that does not answer for long
// gets what happens from then on with one try each, until it takes something.
func (r *Receiver) fail(o *Outbox, d Delivery, last int, now time.Time) {
	r.Failed++
	if r.Failed >= deliverTries || d.Gone {
		r.RetryAt = time.Time{}
		o.drop(r, last)
		return
	}
	wait := min(deliverFirst<<(2*(r.Failed-1)), deliverMost)
	r.RetryAt = now.Add(min(max(wait, d.RetryAfter.Std()), deliverMost))
}

// deliveryOf is what became of a posting at one receiver. An answer that neither
// settles anything nor fails would be asked for again at once, for ever: it
// counts as failed.
func deliveryOf(to Cursor, out Outcome) Delivery {
	d := Delivery{Receiver: to.Name, Failed: true, Problem: "the worker says nothing of it"}
	if out.Failed != nil {
		d.Problem, d.RetryAfter = out.Failed.Message, out.Failed.RetryAfter
		return d
	}
	for _, one := range out.Deliveries {
		if one.Receiver == to.Name {
			d = one
		}
	}
	d.Failed = d.Failed || d.Taken <= to.Taken
	return d
}

func cut(text string) string { return cutTo(text, maxProblem) }

func cutTo(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// WebhookView is how far one receiver of events has come, for people.
type WebhookView struct {
	Name    string    `json:"name"`                  // as the workers' configuration has it
	Waiting int       `json:"waiting"`               // events it is still to be told
	Failed  int       `json:"failed_tries,omitzero"` // in a row
	RetryAt time.Time `json:"retry_at,omitzero"`     // of the next try
	Dropped int       `json:"dropped,omitzero"`      // events it never got
	Problem string    `json:"problem,omitzero"`      // of the last try
}

// webhooks returns the receivers for people.
func (o *Outbox) webhooks() []WebhookView {
	var out []WebhookView
	for i := range o.Receivers {
		r := &o.Receivers[i]
		out = append(out, WebhookView{
			Name: r.Name, Waiting: len(o.waiting(r)), Failed: r.Failed, RetryAt: r.RetryAt, Dropped: r.Dropped, Problem: r.Problem,
		})
	}
	return out
}
