package workflows

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
)

// mail is what is told beside the life of the box: nothing of it is waited for,
// and no deadline depends on it.
type mail struct {
	posting box.Posting
	sent    workflow.Future // its activity; nil while none runs
	retry   workflow.Future // the timer of the next try; nil while none waits
	retryAt time.Time
	stop    workflow.CancelFunc
	dropped int // deliveries given up that were reported
}

// dropsMetric counts deliveries that were given up.
const dropsMetric = "boxkeeper_deliveries_dropped"

func (w *loop) startMail() {
	w.mail.dropped = w.facts.Outbox.Dropped
	if past := w.facts.Transitions; w.in.Carried != nil && len(past) > 0 {
		w.logged = past[len(past)-1]
	}
}

// post logs what happened, takes in what was delivered, and sends what is to be
// sent now. While nobody listens it makes no command.
func (w *loop) post() {
	w.logTransitions()
	m := &w.mail
	if m.sent != nil && m.sent.IsReady() {
		var out box.Outcome
		if err := m.sent.Get(w.ctx, &out); err != nil {
			failure := w.failureOf(err)
			out = box.Outcome{Failed: &failure}
		}
		m.sent = nil
		w.facts.Delivered(m.posting, out, w.now())
	}
	if m.retry != nil && m.retry.IsReady() {
		m.retry, m.stop = nil, nil
	}
	if m.sent != nil {
		return // one at a time, so that each receiver gets them in order
	}
	posting, at := w.facts.Post(w.now())
	w.reportDropped()
	if m.retry != nil && !m.retryAt.Equal(at) {
		m.stop()
		m.retry, m.stop = nil, nil
	}
	switch {
	case len(posting.Events) > 0:
		w.send(posting)
	case !at.IsZero() && m.retry == nil:
		ctx, cancel := workflow.WithCancel(w.ctx)
		m.retryAt, m.stop = at, cancel
		m.retry = workflow.NewTimerWithOptions(ctx, max(at.Sub(w.now()), time.Millisecond), workflow.TimerOptions{Summary: "tell a webhook again that did not answer"})
	}
}

func (w *loop) send(p box.Posting) {
	run := workflow.GetInfo(w.ctx).FirstRunID
	p.Events = slices.Clone(p.Events)
	told := []string{"tell"}
	for i := range p.Events {
		e := &p.Events[i]
		if e.ID == "" { // numbers begin anew when a workflow of the same id does
			e.ID = fmt.Sprintf("%s-e%d-%d-%s", p.Workspace, e.Epoch, e.Number, run[:min(len(run), 8)])
		}
		told = append(told, string(e.Kind))
	}
	b := boundsOf(box.StepNotify)
	ctx := workflow.WithActivityOptions(w.ctx, workflow.ActivityOptions{
		TaskQueue:              box.ActivityQueue(w.facts.Spec.Provider),
		ScheduleToStartTimeout: noWorker,
		StartToCloseTimeout:    b.start,
		HeartbeatTimeout:       b.beat,
		RetryPolicy:            &temporal.RetryPolicy{MaximumAttempts: 1}, // the rules try again, per receiver
		Summary:                clip(strings.Join(told, " ")),
	})
	var a *activities.Boxes
	w.mail.posting, w.mail.sent = p, call(ctx, a.SendNotice, activities.NoticeInput{Posting: p})
}

// mailMoved reports whether a delivery ended or is to be tried again.
func (w *loop) mailMoved() bool {
	return w.mail.sent != nil && w.mail.sent.IsReady() || w.mail.retry != nil && w.mail.retry.IsReady()
}

// farewell tells the last events before the workflow ends. The rules bound it.
func (w *loop) farewell() error {
	for {
		w.post()
		if w.mail.sent == nil && w.mail.retry == nil {
			return workflow.Await(w.ctx, func() bool { return workflow.AllHandlersFinished(w.ctx) })
		}
		if err := workflow.Await(w.ctx, w.mailMoved); err != nil {
			return err
		}
	}
}

// reportDropped tells, once, that receivers will not get what they should have.
func (w *loop) reportDropped() {
	now := w.facts.Outbox.Dropped
	if more := now - w.mail.dropped; more > 0 {
		w.log.Warn("events were given up that a webhook did not take", "workspace", w.facts.Spec.Workspace, "events", more, "in_all", now)
		workflow.GetMetricsHandler(w.ctx).Counter(dropsMetric).Inc(int64(more))
	}
	w.mail.dropped = now
}

// logTransitions writes what happened to the worker's log, once and not again at
// a replay. What a person should look at is a warning.
func (w *loop) logTransitions() {
	all := w.facts.Transitions
	from := len(all)
	for from > 0 && all[from-1] != w.logged {
		from--
	}
	for _, t := range all[from:] {
		say := w.log.Info
		switch t.To { //nolint:exhaustive // the others are the usual course
		case box.StateLost, box.StateDeleteBlocked, box.StateCreateFailed:
			say = w.log.Warn
		}
		say("box "+string(t.To), "workspace", w.facts.Spec.Workspace, "from", t.From, "reason", t.Reason.Code, "text", t.Reason.Text, "epoch", t.Epoch)
		w.logged = t
	}
}
