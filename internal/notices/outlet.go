package notices

import (
	"context"
	"crypto/x509"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/box"
)

// Options is what an [Outlet] needs. The zero value writes notices to no log and
// tells nobody else.
type Options struct {
	// Installation is the id that owns the boxes.
	Installation string
	Webhooks     []Webhook
	// Secret resolves the references of keys; required where there are webhooks.
	Secret func(reference string) (box.Secret, error)
	Logger *zap.Logger
	// Record takes in one request for the metrics; nil for nobody.
	Record func(webhook, outcome string, took time.Duration)
	// Roots are the authorities that certificates must come from; nil for the
	// system's.
	Roots *x509.CertPool
	// Within bounds each request; ten seconds when zero.
	Within time.Duration
}

// Outlet sends postings. It is safe for concurrent use.
type Outlet struct {
	installation string
	webhooks     []Webhook
	secret       func(string) (box.Secret, error)
	logger       *zap.Logger
	record       func(webhook, outcome string, took time.Duration)
	client       *http.Client
	within       time.Duration
}

// New returns an outlet. It contacts nobody.
func New(o Options) *Outlet {
	if o.Within == 0 {
		o.Within = requestWithin
	}
	out := &Outlet{
		installation: o.Installation, webhooks: o.Webhooks, secret: o.Secret, logger: o.Logger, record: o.Record,
		client: client(o.Roots, o.Within), within: o.Within,
	}
	if out.logger == nil {
		out.logger = zap.NewNop()
	}
	return out
}

// Listeners are the webhooks, by what they take.
func (o *Outlet) Listeners() []box.Listener {
	var out []box.Listener
	for _, w := range o.webhooks {
		out = append(out, w.listener())
	}
	return out
}

// Deliver sends a posting and may be repeated: each event keeps its id. With
// receivers it answers how far each came; an error then only means that ctx
// ended. Without, it is a notice to all who take it: Unavailable when there are
// such and none took it. Where no webhook takes notices the log is told, and
// counts.
func (o *Outlet) Deliver(ctx context.Context, p box.Posting) ([]box.Delivery, error) {
	to := p.To
	notice := len(to) == 0
	if notice {
		for _, e := range p.Events {
			o.logger.Info("notice", zap.String("notice_id", e.ID), zap.String("kind", string(e.Kind)), zap.String("workspace", p.Workspace),
				zap.String("owner", p.Owner), zap.String("state", string(e.State)), zap.String("text", e.Reason.Text), zap.Time("due", e.Due))
		}
		for _, w := range o.webhooks {
			if slices.ContainsFunc(p.Events, func(e box.Event) bool { return w.listener().Takes(e.Kind) }) {
				to = append(to, box.Cursor{Name: w.Name, Taken: -1}) // a notice has no number
			}
		}
	}
	out := make([]box.Delivery, len(to))
	var wait sync.WaitGroup
	for i, cursor := range to {
		wait.Go(func() { out[i] = o.tell(ctx, cursor, p) })
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return nil, box.Errorf(box.ClassCanceled, "cut off while webhooks were told: %w", err)
	}
	if notice {
		return out, o.toldNobody(out)
	}
	return out, nil
}

// toldNobody is an error where there is somebody to tell a notice and nobody
// took it.
func (o *Outlet) toldNobody(deliveries []box.Delivery) error {
	var why []string
	var after time.Duration
	for i, d := range deliveries {
		if !d.Failed && d.Refused == 0 {
			return nil
		}
		why = append(why, d.Receiver+": "+d.Problem)
		if wait := d.RetryAfter.Std(); i == 0 || wait < after {
			after = wait // the first that may take it
		}
	}
	if len(why) == 0 {
		return nil
	}
	return &box.Error{Class: box.ClassUnavailable, Message: "no webhook took the notice (" + strings.Join(why, "; ") + ")", RetryAfter: after}
}

// tell sends a receiver what it does not have yet, in order, and stops at the
// first event that must be tried again.
func (o *Outlet) tell(ctx context.Context, to box.Cursor, p box.Posting) box.Delivery {
	d := box.Delivery{Receiver: to.Name, Taken: max(to.Taken, 0)}
	at := slices.IndexFunc(o.webhooks, func(w Webhook) bool { return w.Name == to.Name })
	if at < 0 {
		d.Failed, d.Problem = true, "this worker does not know it; give every worker the same webhooks"
		return d
	}
	w := o.webhooks[at]
	began := time.Now()
	for i, e := range p.Events {
		if e.Number <= to.Taken {
			continue
		}
		if i > 0 && time.Since(began) > batchWithin {
			return d // the rest comes with the next one
		}
		if !w.listener().Takes(e.Kind) || slices.Contains(e.Took, w.Name) {
			d.Taken = e.Number
			continue
		}
		r := o.sendEvent(ctx, w, p, e)
		if r.ok() {
			d.Taken = e.Number
			continue
		}
		o.logger.Warn("a webhook did not take an event", zap.String("webhook", w.Name), zap.String("event_id", e.ID), zap.String("type", TypeOf(e.Kind)),
			zap.String("workspace", p.Workspace), zap.String("outcome", r.answer.String()), zap.String("problem", r.problem))
		d.Problem = r.problem
		if r.answer == refused {
			d.Taken, d.Refused = e.Number, d.Refused+1
			continue
		}
		d.Failed, d.Gone, d.RetryAfter = true, r.answer == gone, box.Duration(r.after)
		return d
	}
	return d
}

func (o *Outlet) sendEvent(ctx context.Context, w Webhook, p box.Posting, e box.Event) result {
	body, err := encode(o.installation, p, e)
	if err != nil {
		return result{answer: refused, problem: err.Error()}
	}
	return o.send(ctx, w, e.ID, body)
}

// Ping sends one event that is about no box, and says whether the webhook took
// it. FailedPrecondition: it did not; the message says why.
func (o *Outlet) Ping(ctx context.Context, w Webhook) error {
	now := time.Now().UTC()
	id := "ping-" + o.installation + "-" + now.Format("20060102T150405.000000000")
	id = strings.ReplaceAll(id, ".", "")
	body, err := cloudEvent(id, TypePing, "/boxkeeper/"+o.installation, "", now, map[string]string{"text": "boxkeeper check: nothing happened to any box"})
	if err != nil {
		return err
	}
	if r := o.send(ctx, w, id, body); !r.ok() {
		return box.Errorf(box.ClassFailedPrecondition, "webhook %s did not take the ping: %s", w.Name, r.problem)
	}
	return nil
}

// Close lets go of idle connections.
func (o *Outlet) Close() { o.client.CloseIdleConnections() }
