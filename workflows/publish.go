package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/box"
)

// searchKeys are the typed keys of the search attributes.
type searchKeys struct {
	provider, state, owner, blocked temporal.SearchAttributeKeyKeyword
	nextAt, suspended               temporal.SearchAttributeKeyTime
	epoch                           temporal.SearchAttributeKeyInt64
}

func newSearchKeys() searchKeys {
	return searchKeys{
		provider:  temporal.NewSearchAttributeKeyKeyword(box.SearchProvider),
		state:     temporal.NewSearchAttributeKeyKeyword(box.SearchState),
		owner:     temporal.NewSearchAttributeKeyKeyword(box.SearchOwner),
		nextAt:    temporal.NewSearchAttributeKeyTime(box.SearchNextActionAt),
		suspended: temporal.NewSearchAttributeKeyTime(box.SearchSuspendedSince),
		epoch:     temporal.NewSearchAttributeKeyInt64(box.SearchEpoch),
		blocked:   temporal.NewSearchAttributeKeyKeyword(box.SearchBlocked),
	}
}

// published is what the search attributes say now, so that they are written
// only when they change: each write is an event and an action that is paid for.
type published struct {
	state     box.State
	nextAt    time.Time
	suspended time.Time
	epoch     int
	blocked   box.Block
	set       bool // this workflow wrote them before
}

func (w *loop) startPublished() published {
	f := w.facts
	if w.in.Carried == nil {
		// A starter that set them saves the first write.
		state, _ := workflow.GetTypedSearchAttributes(w.ctx).GetKeyword(w.keys.state)
		provider, _ := workflow.GetTypedSearchAttributes(w.ctx).GetKeyword(w.keys.provider)
		return published{state: box.State(state), epoch: f.Epoch, set: provider == f.Spec.Provider && state != ""}
	}
	return published{state: f.State, suspended: f.SuspendedSince, epoch: f.Epoch, blocked: f.Blocked(), set: true}
}

// stale is how far a published time may be off before it is written again.
const stale = time.Minute

// publish shows the state: the current details always, the search attributes
// when a list would otherwise be wrong. Steps of a suspend share one state, so
// that a cycle costs few writes.
func (w *loop) publish(step box.Step) {
	f := w.facts
	workflow.SetCurrentDetails(w.ctx, details(f, step))
	if step.Kind == box.StepNotify || step.Kind == box.StepVerifyExport {
		return // the next rest, or the destruction, is written anyway
	}
	next := step.At
	if step.Kind != box.StepWait || f.State == box.StateRunning {
		next = time.Time{} // of a running box it moves with each use: "why" tells it
	}
	state, blocked := listed(f.State), f.Blocked()
	moved := step.Kind == box.StepWait && !near(next, w.shown.nextAt)
	if w.shown.set && state == w.shown.state && !moved && f.Epoch == w.shown.epoch && blocked == w.shown.blocked && w.shown.suspended.Equal(f.SuspendedSince) {
		return
	}
	updates := []temporal.SearchAttributeUpdate{w.keys.state.ValueSet(string(state))}
	if !w.shown.set {
		updates = append(updates, w.keys.provider.ValueSet(f.Spec.Provider))
		if f.Spec.Owner != "" {
			updates = append(updates, w.keys.owner.ValueSet(f.Spec.Owner))
		}
	}
	if !w.shown.set || f.Epoch != w.shown.epoch {
		updates = append(updates, w.keys.epoch.ValueSet(int64(f.Epoch)))
	}
	if blocked != w.shown.blocked { // a server without the attribute is fine for as long as nothing is blocked
		updates = append(updates, blockUpdate(w.keys.blocked, blocked))
	}
	updates = append(updates, timeUpdate(w.keys.nextAt, next), timeUpdate(w.keys.suspended, f.SuspendedSince))
	if err := workflow.UpsertTypedSearchAttributes(w.ctx, updates...); err != nil {
		w.log.Error("search attributes were not written", "error", err.Error())
		return
	}
	w.shown = published{state: state, nextAt: next, suspended: f.SuspendedSince, epoch: f.Epoch, blocked: blocked, set: true}
}

// listed folds the short steps on the way to suspended into one.
func listed(s box.State) box.State {
	if s == box.StateDraining {
		return box.StateSuspending
	}
	return s
}

func near(a, b time.Time) bool {
	if a.IsZero() || b.IsZero() {
		return a.IsZero() && b.IsZero()
	}
	return a.Sub(b).Abs() < stale
}

func blockUpdate(key temporal.SearchAttributeKeyKeyword, block box.Block) temporal.SearchAttributeUpdate {
	if block == "" {
		return key.ValueUnset()
	}
	return key.ValueSet(string(block))
}

func timeUpdate(key temporal.SearchAttributeKeyTime, at time.Time) temporal.SearchAttributeUpdate {
	if at.IsZero() {
		return key.ValueUnset()
	}
	return key.ValueSet(at)
}

// details is the page that a person reads in the Web UI. Markdown.
func details(f *box.Facts, step box.Step) string {
	var b strings.Builder
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", name, cell(text))
		}
	}
	b.WriteString("| | |\n| --- | --- |\n")
	line("state", string(f.State))
	line("flags", strings.Join(f.Flags(), ", "))
	if n := len(f.Transitions); n > 0 {
		line("because", f.Transitions[n-1].Reason.Text)
	}
	next := string(step.Upcoming())
	if !step.At.IsZero() {
		next += " at " + step.At.UTC().Format(time.RFC3339)
	}
	line("next", next)
	line("why", step.Reason.Text)
	line("who can stop it", step.StoppedBy)
	if !f.Receipt.IsZero() {
		line("export", fmt.Sprintf("%d conversations, %d events, sha256 %s", f.Receipt.Conversations, f.Receipt.Events, f.Receipt.SHA256))
	}
	if f.Failure != nil {
		line("last failure", fmt.Sprintf("%s, %d times: %s", f.Failure.Step, f.Failure.Count, f.Failure.Message))
	}
	if n := len(f.Transitions); n > 0 {
		b.WriteString("\n| when | state | why |\n| --- | --- | --- |\n")
		for _, t := range f.Transitions[max(0, n-15):] {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", t.At.UTC().Format(time.RFC3339), t.To, cell(t.Reason.Text))
		}
	}
	return b.String()
}

// cell is a text inside a table, on one line.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "\\|")
}
