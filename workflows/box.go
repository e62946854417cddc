package workflows

import (
	"encoding/json"
	"fmt"
	"time"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
)

// Box owns the life of one workspace. It ends when the box is destroyed, and
// never by a time-out: leave the execution time-out unset.
//
// A request to cancel it changes nothing: the box would be left with no owner.
// Delete the box instead.
//
// The input is a [box.Input]. It is read here, not by the engine's converter, so
// that one that does not fit fails with its class and the field at fault.
func Box(ctx workflow.Context, input json.RawMessage) error {
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	var in box.Input
	if err := box.Decode(input, &in); err != nil {
		return unreadable(input, err)
	}
	w, err := newLoop(ctx, in)
	if err != nil {
		return err
	}
	return w.run()
}

// unreadable refuses an input. A run that continues another one must not end
// over it, or its box would have no owner: its task fails instead, and is tried
// again until a worker comes that can read it.
func unreadable(input json.RawMessage, err error) error {
	var first struct {
		Carried json.RawMessage `json:"carried"`
	}
	if input == nil || box.Decode(input, &first) == nil && len(first.Carried) > 0 && string(first.Carried) != "null" {
		panic(fmt.Sprintf("what the run before carried cannot be read by this worker; go back to a newer one: %s", err))
	}
	return refusal(err)
}

// loop is one run. Its fields are rebuilt from the facts in each run.
type loop struct {
	ctx     workflow.Context
	in      box.Input
	facts   *box.Facts
	log     log.Logger
	signals []signal
	keys    searchKeys

	dirty     bool // a handler changed the facts
	turns     int
	timer     workflow.Future
	timerAt   time.Time
	stopTimer workflow.CancelFunc
	shown     published
	mail      mail
	logged    box.Transition // the newest one that the log has
}

func newLoop(ctx workflow.Context, in box.Input) (*loop, error) {
	w := &loop{ctx: ctx, in: in, log: workflow.GetLogger(ctx), keys: newSearchKeys()}
	switch {
	case in.Carried != nil:
		if err := box.CheckCarried(in.Carried, in.Spec); err != nil {
			return nil, unreadable(nil, err)
		}
		w.facts = in.Carried
	case in.Rebuilt != nil:
		if err := box.CheckRebuilt(in.Rebuilt, in.Spec.Workspace); err != nil {
			return nil, refusal(err)
		}
		w.facts = in.Rebuilt
		if w.facts.Capabilities.Deepen == box.Yes && !w.deepens() {
			w.facts.Capabilities.Deepen = box.Unknown
		}
		w.facts.Revive(workflow.Now(ctx))
	default:
		if err := in.Spec.Validate(); err != nil {
			return nil, refusal(err)
		}
		facts := box.NewFacts(in.Spec, in.Capabilities, workflow.Now(ctx))
		w.facts = &facts
	}
	w.shown = w.startPublished()
	w.startMail()
	w.signals = w.listen()
	if err := w.serveQueries(); err != nil {
		return nil, err
	}
	return w, w.serveUpdates()
}

// run is the loop: take what arrived, let time pass, ask what is next, do it.
func (w *loop) run() error {
	for {
		w.takeSignals()
		now := workflow.Now(w.ctx)
		w.facts.Advance(now)
		w.post()
		step := w.facts.Armed(box.Next(w.facts, now))
		if step.Kind == box.StepRecord && !w.records() {
			w.facts.SkipRecord()
			step = w.facts.Armed(box.Next(w.facts, now))
		}
		switch step.Kind {
		case box.StepFinish:
			w.publish(step)
			return w.farewell()
		case box.StepWait:
			w.publish(step)
			if w.mayContinueAsNew() {
				return w.continueAsNew()
			}
			if err := w.sleep(step); err != nil {
				return err
			}
		case box.StepCreate, box.StepAwaitReady, box.StepObserve, box.StepScan, box.StepQuiesce, box.StepUndrain,
			box.StepReclaim, box.StepExport, box.StepSuspend, box.StepResume, box.StepNotify, box.StepVerifyExport,
			box.StepAdjust, box.StepDeepen, box.StepDelete, box.StepAdopt, box.StepRestore, box.StepAbandon, box.StepRecord:
			if err := w.act(step, now); err != nil {
				return err
			}
		}
		w.turns++
	}
}

// act runs the activity of a step. A user who arrives meanwhile cancels an
// automatic suspend; the activity is waited for all the same.
func (w *loop) act(step box.Step, now time.Time) error {
	w.facts.Begin(step, now)
	w.publish(step)
	ctx, cancel := workflow.WithCancel(w.ctx)
	defer cancel()
	future := w.start(ctx, step)
	cancelled := false
	for !future.IsReady() {
		w.dirty = false
		if err := workflow.Await(w.ctx, func() bool { return future.IsReady() || w.dirty || w.signalled() || w.mailMoved() }); err != nil {
			return err
		}
		w.takeSignals()
		w.post()
		if !cancelled && box.Interrupts(w.facts, step) {
			cancelled = true
			cancel()
		}
	}
	var out box.Outcome
	if err := future.Get(w.ctx, &out); err != nil {
		if cancelled && temporal.IsCanceledError(err) {
			return nil // the facts say why, and what comes next
		}
		failure := w.failureOf(err)
		switch {
		case !failure.Unserved:
		case !w.knowsUnserved():
			failure.Unserved = false
		case triedBefore(err):
			failure = activities.FailureOf(err)
		case step.AnyWorker:
			failure = w.unserved("the export store", box.StoreQueue)
		}
		out = box.Outcome{Failed: &failure}
		w.log.Info("step failed", "step", step.Kind, "class", failure.Class, "error", failure.Message)
	}
	if out.Receipt.Archive != (box.ArchiveReceipt{}) && !w.knowsArchives() {
		out.Receipt.Archive = box.ArchiveReceipt{}
	}
	if c := out.Capabilities; c != nil && c.Deepen == box.Yes && !w.deepens() {
		c.Deepen = box.Unknown
	}
	rested, at := w.facts.AtRest(), workflow.Now(w.ctx)
	w.facts.Apply(step, out, at)
	if step.Kind == box.StepObserve && rested && w.facts.State == box.StateStarting && w.facts.Observed.Phase == box.PhaseRunning && !w.awaitsReady() {
		w.facts.TakeAsReady(at)
	}
	return nil
}

// sleep waits until the step's time or until something arrives.
func (w *loop) sleep(step box.Step) error {
	w.arm(step)
	w.dirty = false
	err := workflow.Await(w.ctx, func() bool {
		return w.dirty || w.signalled() || w.mailMoved() || (w.timer != nil && w.timer.IsReady())
	})
	if w.timer != nil && w.timer.IsReady() {
		w.timer, w.stopTimer = nil, nil
	}
	return err
}

// arm sets the timer. In a running box, whose deadline moves with each use, a
// timer that is armed already and not later is left alone: it fires early once,
// instead of being set again at every use.
func (w *loop) arm(step box.Step) {
	switch {
	case step.At.IsZero():
		w.disarm()
		return
	case w.timer == nil:
	case w.timerAt.Equal(step.At), w.facts.State == box.StateRunning && w.timerAt.Before(step.At):
		return
	}
	w.disarm()
	ctx, cancel := workflow.WithCancel(w.ctx)
	after := max(step.At.Sub(workflow.Now(w.ctx)), time.Millisecond)
	w.timer = workflow.NewTimerWithOptions(ctx, after, workflow.TimerOptions{Summary: clip(step.Reason.Text)})
	w.timerAt, w.stopTimer = step.At, cancel
}

func (w *loop) disarm() {
	if w.stopTimer != nil {
		w.stopTimer()
	}
	w.timer, w.stopTimer = nil, nil
}

// mayContinueAsNew reports whether this run should end and nothing would be
// lost: no handler runs, no signal waits and nothing is being told.
func (w *loop) mayContinueAsNew() bool {
	due := workflow.GetInfo(w.ctx).GetContinueAsNewSuggested() || (w.in.TurnsPerRun > 0 && w.turns >= w.in.TurnsPerRun)
	return due && !w.signalled() && w.mail.sent == nil && workflow.AllHandlersFinished(w.ctx)
}

func (w *loop) continueAsNew() error {
	next := w.in
	next.Carried, next.Rebuilt = w.facts, nil
	return workflow.NewContinueAsNewError(w.ctx, box.WorkflowType, next)
}

// Changes of the order of commands, by name. Lives that never come to one of
// them pay nothing for it.
const (
	changeRecords  = "records"
	recordsVersion = 1 // what a person changes is noted in the ledger

	changeCameUp  = "came-up"
	cameUpVersion = 1 // a box that came up without us is running when its agent-server answers

	changeAside  = "request-delete-aside"
	asideVersion = 1 // a deletion is shown at once while something else that was asked for is done in the box

	changeArchives  = "archives"
	archivesVersion = 1 // an export holds the workspace's files, and decisions go by what it lacks of them

	changeDeepens  = "deepens"
	deepensVersion = 1 // a suspended box whose memory is kept is suspended deeper after a while

	changeUnserved  = "unserved"
	unservedVersion = 1 // a step that no worker took is told from one that failed: the state stays, and what was never made needs no provider to end
)

// records reports whether this run may have the record step: one whose history
// went past such a place without it may not.
func (w *loop) records() bool {
	//nolint:forbidigo // runs of an earlier release went past changes of a policy, of keep and of freeze without the step
	return workflow.GetVersion(w.ctx, changeRecords, workflow.DefaultVersion, recordsVersion) >= recordsVersion
}

// looksAside reports whether this run may leave out the look that a request to
// delete would have to wait for.
func (w *loop) looksAside() bool {
	//nolint:forbidigo // runs of an earlier release waited, and looked then
	return workflow.GetVersion(w.ctx, changeAside, workflow.DefaultVersion, asideVersion) >= asideVersion
}

// knowsArchives reports whether this run goes by what an export holds of the
// workspace. The activity that took it may be of a newer release than the code
// that wrote this history.
func (w *loop) knowsArchives() bool {
	//nolint:forbidigo // runs of an earlier release did not see it, and went on
	return workflow.GetVersion(w.ctx, changeArchives, workflow.DefaultVersion, archivesVersion) >= archivesVersion
}

// deepens reports whether this run suspends a box deeper whose memory is kept.
// The row that claims so may have come from an activity of a newer release than
// the code that wrote this history.
func (w *loop) deepens() bool {
	//nolint:forbidigo // runs of an earlier release left such a box as it was
	return workflow.GetVersion(w.ctx, changeDeepens, workflow.DefaultVersion, deepensVersion) >= deepensVersion
}

// knowsUnserved reports whether this run tells a step that no worker took from
// one that failed.
func (w *loop) knowsUnserved() bool {
	//nolint:forbidigo // runs of an earlier release took both alike
	return workflow.GetVersion(w.ctx, changeUnserved, workflow.DefaultVersion, unservedVersion) >= unservedVersion
}

// awaitsReady reports whether this run waits for the agent-server of a box that
// was found running.
func (w *loop) awaitsReady() bool {
	//nolint:forbidigo // runs of an earlier release took it as running at once
	return workflow.GetVersion(w.ctx, changeCameUp, workflow.DefaultVersion, cameUpVersion) >= cameUpVersion
}

// clip cuts a text to what the engine takes as a summary.
func clip(text string) string {
	const most = 200
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-1]) + "…"
}
