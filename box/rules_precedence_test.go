package box_test

import (
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// TestPrecedence sets two reasons at once and asks which one wins:
// freeze > committed delete > wall > explicit suspend > holder > idle.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	const wallAt = 12 * time.Hour
	type reason struct {
		name string
		set  func(*world)
		wins func(box.Step) bool
	}
	quiesce := func(p box.Purpose) func(box.Step) bool {
		return func(s box.Step) bool { return s.Kind == box.StepQuiesce && s.Purpose == p }
	}
	waits := func(code box.ReasonCode) func(box.Step) bool {
		return func(s box.Step) bool { return s.Kind == box.StepWait && s.Reason.Code == code }
	}
	var token string
	order := []reason{ // strongest first
		{"freeze", func(w *world) { w.freeze("f", true) }, waits(box.ReasonFrozen)},
		{"a confirmed deletion", func(w *world) {
			token = w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d"}}, w.now).Token
			w.confirm(token)
		}, quiesce(box.PurposeDelete)},
		{"the wall", func(w *world) { w.facts.AwakeSince = w.now.Add(-wallAt) }, quiesce(box.PurposeWall)},
		{"an explicit suspend", func(w *world) { w.facts.Suspend(box.Request{ID: "s"}, w.now) }, quiesce(box.PurposeExplicit)},
		{"a holder", func(w *world) { w.begun("op") }, waits(box.ReasonHeld)},
		{"idle", func(w *world) { w.facts.LastUse, w.facts.IdleFloor = w.now.Add(-idle), time.Time{} }, quiesce(box.PurposeIdle)},
	}
	for i, strong := range order {
		for _, weak := range order[i+1:] {
			for _, first := range []bool{true, false} {
				w := awake(t)
				w.now = w.now.Add(time.Hour)
				w.facts.AwakeSince = w.now.Add(-time.Hour)
				w.facts.IdleFloor = w.now // not idle unless it is said
				set := []func(*world){weak.set, strong.set}
				if first {
					set[0], set[1] = set[1], set[0]
				}
				set[0](w)
				set[1](w)
				if weak.name == "idle" { // freezing and connecting are use
					weak.set(w)
				}
				w.facts.SkipRecord() // that the ledger is told of it is another matter
				w.facts.Advance(w.now)
				step := box.Next(w.facts, w.now)
				if first && strong.name == "freeze" && strings.Contains(weak.name, "deletion") {
					w.refusedWith(box.ReasonFrozen)
				}
				if !strong.wins(step) {
					t.Errorf("%s against %s (first: %v): next is %s %s because %s", strong.name, weak.name, first, step.Kind, step.Purpose, step.Reason.Text)
				}
			}
		}
	}
}

// The paused TTL is the weakest: whoever needs the box, and what a person
// confirmed, comes before it; a freeze stops it.
func TestPrecedenceOverThePausedTTL(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		set  func(*world)
		want box.State
	}{
		"nothing":              {func(*world) {}, box.StateAwaitingConfirm},
		"a holder":             {func(w *world) { w.connect("tab") }, box.StateRunning},
		"a resume":             {func(w *world) { w.facts.Resume(box.Request{ID: "r"}, w.now) }, box.StateRunning},
		"freeze":               {func(w *world) { w.freeze("f", true) }, box.StateSuspended},
		"keep":                 {func(w *world) { w.keep("k", true) }, box.StateSuspended},
		"a confirmed deletion": {func(w *world) { w.requestUndo(box.Duration(day)) }, box.StateUndoWindow},
	} {
		w := newWorld(t, spec())
		w.until(w.toSuspended(), 0)
		w.until(w.settle(), 0) // the very moment of the expiry
		row.set(w)
		w.settle()
		if w.facts.State != row.want {
			t.Errorf("the paused TTL against %s: %s, want %s", name, w.facts.State, row.want)
		}
	}
}

// Freeze wins over what has begun already, up to the provider's call.
func TestFreezeStopsWhatHasBegun(t *testing.T) {
	t.Parallel()
	for purpose, begin := range map[string]func(*world){
		"an idle suspend":     func(w *world) { w.now = w.now.Add(idle) },
		"an explicit suspend": func(w *world) { w.facts.Suspend(box.Request{ID: "s"}, w.now) },
		"a suspend at the wall": func(w *world) {
			w.facts.Policy.MaxRun = box.Duration(time.Minute)
			w.now = w.now.Add(time.Minute)
		},
		"a deletion": func(w *world) { w.confirm(w.requestDelete().Token) },
	} {
		for _, at := range []box.StepKind{box.StepQuiesce, box.StepExport} {
			w := awake(t)
			begin(w)
			step := w.step(at)
			w.freeze("f", true)
			if !box.Interrupts(w.facts, step) {
				t.Errorf("%s at %s is not interrupted", purpose, at)
			}
			w.settle()
			if w.facts.State != box.StateRunning || w.did(box.StepSuspend)+w.did(box.StepDelete) != 0 || w.did(box.StepUndrain) != 1 {
				t.Errorf("%s frozen at %s: %s, steps %v", purpose, at, w.facts.State, w.log)
			}
		}
	}
}

func TestScenario40WallsActAMarginBefore(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name                    string
		native, policy, deadMan time.Duration
		want                    time.Duration
	}{
		{"the provider's wall is nearer", 2 * time.Hour, 12 * time.Hour, 15 * time.Minute, 105 * time.Minute},
		{"ours is nearer", 12 * time.Hour, 2 * time.Hour, 15 * time.Minute, 2 * time.Hour},
		{"both are alike", time.Hour, time.Hour, 15 * time.Minute, 45 * time.Minute},
		{"a margin of more than half is cut to half", time.Hour, 12 * time.Hour, 50 * time.Minute, 30 * time.Minute},
		{"such a margin does not lengthen ours", time.Hour, 20 * time.Minute, 50 * time.Minute, 20 * time.Minute},
		{"ours is never", 2 * time.Hour, 0, 15 * time.Minute, 105 * time.Minute},
		{"the provider has none", 0, time.Hour, 15 * time.Minute, time.Hour},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s, c := spec(), row1(row.native)
			s.Policy.MaxRun, s.Policy.DeadMan = box.Duration(row.policy), box.Duration(row.deadMan)
			if row.policy == 0 {
				s.Policy.MaxRun = box.Never
			}
			plan, err := box.Plan(s.Policy, c)
			if err != nil || plan.Policy.MaxRun.Std() != row.want {
				t.Errorf("planned is %s, %v, want %s", plan.Policy.MaxRun, err, row.want)
			}
			w := newWorldAt(t, s, c)
			w.settle()
			start := w.now
			w.begun("op") // holds, and cannot extend it
			for w.facts.State == box.StateRunning && w.now.Sub(start) < 2*day {
				w.pass(time.Minute)
				w.begun("op")
			}
			w.state(box.StateSuspended)
			if got := w.now.Sub(start); got != row.want {
				t.Errorf("it was awake for %s, want %s", got, row.want)
			}
			if !w.stored[w.digest()] {
				t.Error("the wall came before the export")
			}
		})
	}
}

func row1(maxRun time.Duration) box.Capabilities {
	c := row()
	c.MaxRun = box.Span(maxRun)
	return c
}
