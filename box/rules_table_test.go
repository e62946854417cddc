package box_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// reach brings a new world to each state. Where the state is one of a step, the
// step is returned begun.
func reach() map[box.State]func(*world) *box.Step {
	begun := func(w *world, kind box.StepKind) *box.Step {
		step := w.step(kind)
		return &step
	}
	at := func(do func(*world)) func(*world) *box.Step {
		return func(w *world) *box.Step { do(w); return nil }
	}
	deleting := func(w *world) { w.toSuspended(); w.confirm(w.requestDelete().Token) }
	return map[box.State]func(*world) *box.Step{
		box.StateCreating:     func(w *world) *box.Step { return begun(w, box.StepCreate) },
		box.StateCreateFailed: at(func(w *world) { w.failed(w.step(box.StepCreate), box.ClassInvalid) }),
		box.StateStarting:     func(w *world) *box.Step { w.deaf = true; return begun(w, box.StepAwaitReady) },
		box.StateRunning:      at(func(w *world) { w.settle() }),
		box.StateDraining:     func(w *world) *box.Step { w.settle(); w.now = w.now.Add(idle); return begun(w, box.StepQuiesce) },
		box.StateSuspending:   func(w *world) *box.Step { w.settle(); w.now = w.now.Add(idle); return begun(w, box.StepSuspend) },
		box.StateSuspended:    at(func(w *world) { w.toSuspended() }),
		box.StateResuming:     func(w *world) *box.Step { w.toSuspended(); w.connect("tab"); return begun(w, box.StepResume) },
		box.StateMaintenanceWake: func(w *world) *box.Step {
			w.blind()
			w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "x"})
			return begun(w, box.StepExport)
		},
		box.StateAwaitingConfirm: at(func(w *world) { w.toAwaiting() }),
		box.StateUndoWindow:      at(func(w *world) { w.toSuspended(); w.requestUndo(box.Duration(day)); w.settle() }),
		box.StateExporting:       func(w *world) *box.Step { deleting(w); return begun(w, box.StepVerifyExport) },
		box.StateDeleting:        func(w *world) *box.Step { deleting(w); return begun(w, box.StepDelete) },
		box.StateDeleteBlocked:   at(func(w *world) { w.badStore = true; deleting(w); w.settle() }),
		box.StateBoxArchived:     at(func(w *world) { deleting(w); w.settle() }),
		box.StateLost:            at(func(w *world) { w.toSuspended(); w.vanish() }),
		box.StateAbandoned:       at(func(w *world) { w.toSuspended(); w.facts.Abandon(abandonAsk(true), w.now); w.settle() }),
		box.StateUnknown: func(w *world) *box.Step {
			w.settle()
			w.confirm(w.requestDelete().Token)
			w.step(box.StepVerifyExport)
			w.cancel()
			return begun(w, box.StepObserve)
		},
	}
}

// request is one kind of update: how it is checked and carried out, and one
// field that is wrong.
type request struct {
	check func(*box.Facts) error
	serve func(*box.Facts, time.Time)
	bad   func(*box.Facts) error
	field string
}

func requests() map[string]request {
	r := box.Request{ID: "once", By: "ana"}
	none := box.Request{}
	long := strings.Repeat("x", 300)
	hold := box.ConnectRequest{Request: r, HolderID: "tab"}
	asks := func(a box.Ask) request {
		return request{
			check: func(f *box.Facts) error { return f.CheckAsk(a) },
			serve: func(f *box.Facts, _ time.Time) { f.Queue(a) },
			bad: func(f *box.Facts) error {
				b := a
				b.Reclaim.Tiers = []box.Tier{"all"}
				return f.CheckAsk(b)
			},
			field: "tiers",
		}
	}
	return map[string]request{
		box.UpdateConnect: {
			func(f *box.Facts) error { return f.CheckConnect(hold) }, func(f *box.Facts, now time.Time) { f.Connect(hold, now) },
			func(f *box.Facts) error { return f.CheckConnect(box.ConnectRequest{Request: r, HolderID: "a\nb"}) }, "holder_id",
		},
		box.UpdateRenew: {
			func(f *box.Facts) error { return f.CheckRenew(box.RenewRequest{Request: r, HolderID: "tab"}) },
			func(f *box.Facts, now time.Time) { f.Renew(box.RenewRequest{Request: r, HolderID: "tab"}, now) },
			func(f *box.Facts) error {
				return f.CheckRenew(box.RenewRequest{Request: r, HolderID: "tab", Lease: box.Never})
			}, "lease",
		},
		box.UpdateRelease: {
			func(*box.Facts) error { return box.CheckRequest(r) }, func(f *box.Facts, now time.Time) { f.Release("tab", now) },
			func(*box.Facts) error { return box.CheckRequest(none) }, "request_id",
		},
		box.UpdateSuspend: {
			func(f *box.Facts) error { return f.CheckSuspend(r) }, func(f *box.Facts, now time.Time) { f.Suspend(r, now) },
			func(f *box.Facts) error { return f.CheckSuspend(none) }, "request_id",
		},
		box.UpdateResume: {
			func(f *box.Facts) error { return f.CheckResume(r) }, func(f *box.Facts, now time.Time) { f.Resume(r, now) },
			func(f *box.Facts) error { return f.CheckResume(none) }, "request_id",
		},
		box.UpdateReclaim: asks(box.Ask{Kind: box.AskReclaim, ID: r.ID}),
		box.UpdateExport:  asks(box.Ask{Kind: box.AskExport, ID: r.ID}),
		box.UpdateRequestDelete: {
			func(f *box.Facts) error { return f.CheckRequestDelete(box.RequestDeleteAsk{Request: r}) },
			func(f *box.Facts, now time.Time) { f.RequestDelete(box.RequestDeleteAsk{Request: r}, now) },
			func(f *box.Facts) error {
				return f.CheckRequestDelete(box.RequestDeleteAsk{Request: r, Undo: box.Never})
			}, "undo",
		},
		box.UpdateSetPolicy: {
			func(f *box.Facts) error {
				return f.CheckSetPolicy(box.SetPolicyAsk{Request: r, Policy: box.Policy{Idle: box.Duration(time.Hour)}})
			},
			func(f *box.Facts, now time.Time) {
				f.SetPolicy(box.SetPolicyAsk{Request: r, Policy: box.Policy{Idle: box.Duration(time.Hour)}}, now)
			},
			func(f *box.Facts) error {
				return f.CheckSetPolicy(box.SetPolicyAsk{Request: r, Policy: box.Policy{Undo: box.Never}})
			}, "policy.undo",
		},
		box.UpdateKeep: {
			func(f *box.Facts) error { return f.CheckSwitch(box.SwitchAsk{Request: r, On: true}) },
			func(f *box.Facts, now time.Time) { f.Keep(box.SwitchAsk{Request: r, On: true}, now) },
			func(f *box.Facts) error { return f.CheckSwitch(box.SwitchAsk{On: true}) }, "request_id",
		},
		box.UpdateFreeze: {
			func(f *box.Facts) error { return f.CheckSwitch(box.SwitchAsk{Request: r, On: true}) },
			func(f *box.Facts, now time.Time) { f.Freeze(box.SwitchAsk{Request: r, On: true}, now) },
			func(f *box.Facts) error { return f.CheckSwitch(box.SwitchAsk{On: true}) }, "request_id",
		},
		box.UpdateAdopt: {
			func(f *box.Facts) error { return f.CheckAdopt(box.AdoptAsk{Request: r, BoxID: "stray"}) },
			func(f *box.Facts, now time.Time) { f.TakeOver(box.AdoptAsk{Request: r, BoxID: "stray"}, now) },
			func(f *box.Facts) error { return f.CheckAdopt(box.AdoptAsk{Request: r, BoxID: long}) }, "box_id",
		},
		box.UpdateReplace: {
			func(f *box.Facts) error { return f.CheckReplace(r) }, func(f *box.Facts, now time.Time) { f.Replace(r, now) },
			func(f *box.Facts) error { return f.CheckReplace(none) }, "request_id",
		},
		box.UpdateRestore: {
			func(f *box.Facts) error { return f.CheckRestore(box.RestoreAsk{Request: r}) },
			func(f *box.Facts, now time.Time) { f.Restore(box.RestoreAsk{Request: r}, now) },
			func(f *box.Facts) error { return f.CheckRestore(box.RestoreAsk{Request: box.Request{ID: "a b"}}) }, "request_id",
		},
		box.UpdateAbandon: {
			func(f *box.Facts) error {
				return f.CheckAbandon(box.AbandonAsk{Request: r, Reason: "gone", Force: true})
			},
			func(f *box.Facts, now time.Time) {
				f.Abandon(box.AbandonAsk{Request: r, Reason: "gone", Force: true}, now)
			},
			func(f *box.Facts) error { return f.CheckAbandon(box.AbandonAsk{Request: r, Force: true}) }, "reason",
		},
	}
}

func signals() map[string]func(*world) {
	return map[string]func(*world){
		box.SignalConfirmDelete: func(w *world) { w.confirm("a token of nothing") },
		box.SignalCancelDelete:  func(w *world) { w.cancel() },
		box.SignalRelease:       func(w *world) { w.facts.Release("tab", w.now) },
		box.SignalRenew: func(w *world) {
			if r := (box.RenewRequest{HolderID: "tab"}); w.facts.CheckRenew(r) == nil {
				w.facts.Renew(r, w.now)
			}
		},
		box.SignalActivity: func(w *world) {
			w.facts.ReportActivity(box.ActivitySignal{Begun: []string{"op", "b\nad"}, Ended: []string{"op"}}, w.now)
		},
		box.SignalObserved: func(w *world) { w.facts.Observe(box.ObservedSignal{Observation: w.seen()}) },
		box.SignalHold:     func(w *world) { w.hold(true) },
	}
}

func factsOf(t *testing.T, w *world) string {
	t.Helper()
	data, err := json.Marshal(w.facts)
	require.NoError(t, err)
	return string(data)
}

// settled finishes a step that was under way and lets the box come to rest; the
// checks of every turn are in world.check.
func (w *world) settled(step *box.Step) {
	w.t.Helper()
	if step != nil && !box.Interrupts(w.facts, *step) {
		w.finish(*step)
	}
	w.settle()
	w.pass(2 * day)
}

// TestEveryUpdateInEveryState sends each update, once and again, and one with a
// bad field, in each state.
func TestEveryUpdateInEveryState(t *testing.T) {
	t.Parallel()
	states := reach()
	for name, value := range contractConstants(t, "State") {
		require.Contains(t, states, box.State(value), name)
	}
	updates := requests()
	for name, value := range contractConstants(t, "Update") {
		require.Contains(t, updates, value, name)
	}
	accepted := map[string]int{}
	for _, state := range slices.Sorted(maps.Keys(states)) {
		for _, name := range slices.Sorted(maps.Keys(updates)) {
			update := updates[name]
			w := newWorld(t, spec())
			w.stray = box.PhaseRunning
			step := states[state](w)
			w.state(state)
			what := fmt.Sprintf("%s in %s", name, state)

			before := factsOf(t, w)
			err := update.bad(w.facts)
			wrong, ok := errors.AsType[*box.Error](err)
			require.True(t, ok && wrong.Class == box.ClassInvalid && wrong.Field == update.field, "%s with a bad %s: %v", what, update.field, err)
			require.Equal(t, before, factsOf(t, w), "%s: a refusal left a trace", what)

			if err := update.check(w.facts); err != nil {
				class := box.ClassOf(err)
				require.Contains(t, []box.Class{box.ClassFailedPrecondition, box.ClassConflict, box.ClassNotFound, box.ClassUnsupported}, class, what)
				require.Contains(t, err.Error(), ";", "%s: the refusal names no next step: %v", what, err)
				require.Equal(t, before, factsOf(t, w), "%s: a refusal left a trace", what)
				w.settled(step)
				continue
			}
			accepted[name]++
			update.serve(w.facts, w.now)
			once := factsOf(t, w)
			if err := update.check(w.facts); err == nil { // what was done may forbid more of it
				update.serve(w.facts, w.now)
				require.Equal(t, once, factsOf(t, w), "%s: a repeat did something", what)
			}
			w.settled(step)
			if err := update.check(w.facts); err == nil && name != box.UpdateRelease && name != box.UpdateRenew {
				epoch, log := w.facts.Epoch, len(w.log)
				update.serve(w.facts, w.now)
				w.settle()
				require.Equal(t, epoch, w.facts.Epoch, "%s: a late repeat began something", what)
				require.LessOrEqual(t, len(w.log), log, "%s: a late repeat began %v", what, w.log[min(log, len(w.log)):])
			}
		}
	}
	for name := range updates {
		require.Positive(t, accepted[name], "%s is accepted nowhere, so this test sees nothing", name)
	}
	require.Equal(t, 2, accepted[box.UpdateReplace], "in lost and create-failed only")
	require.Equal(t, 1, accepted[box.UpdateRestore], "in lost only: nothing was exported of a box that could not be created")
	require.Equal(t, 2, accepted[box.UpdateAdopt])
	require.Equal(t, len(states)-2, accepted[box.UpdateAbandon], "everywhere but at the two ends")
}

// TestEverySignalInEveryState sends each signal twice in each state; after each
// the box comes to rest, and nothing is destroyed that was not confirmed.
func TestEverySignalInEveryState(t *testing.T) {
	t.Parallel()
	sent := signals()
	for name, value := range contractConstants(t, "Signal") {
		require.Contains(t, sent, value, name)
	}
	states := reach()
	for _, state := range slices.Sorted(maps.Keys(states)) {
		for _, name := range slices.Sorted(maps.Keys(sent)) {
			w := newWorld(t, spec())
			step := states[state](w)
			w.state(state)
			sent[name](w)
			once := factsOf(t, w)
			sent[name](w)
			if name != box.SignalActivity && name != box.SignalCancelDelete { // whose repeat is a later use, and another answer
				require.Equal(t, once, factsOf(t, w), "%s in %s: a repeat did something", name, state)
			}
			w.settled(step)
		}
	}
}
