package box_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

// chaos draws what people, time, the provider and failures do to a box.
type chaos struct {
	*rapid.T
	w      *world
	tokens []string // every one that was given out, and one that was not
}

// TestAnyLife lets people, time, the provider and failures do what they like,
// and checks in every turn what must always hold; see world.check.
func TestAnyLife(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s, c := spec(), row()
		if rapid.Bool().Draw(rt, "deletes at expiry") {
			s.Policy.OnExpiry = box.OnExpiryDelete
		}
		if rapid.Bool().Draw(rt, "provider has a wall") {
			c.MaxRun = box.Span(2 * time.Hour)
		}
		if rapid.Bool().Draw(rt, "provider has an idle timer") {
			c.NativeIdle, c.NativeAdjust = box.Yes, rapid.SampledFrom([]box.Tri{box.Yes, box.No}).Draw(rt, "to be set again")
			if rapid.Bool().Draw(rt, "provider leads") {
				s.Policy.Lead = box.LeadProvider
			}
		}
		if rapid.Bool().Draw(rt, "provider forgets") {
			c.PausedLife = box.Span(20 * day)
		}
		if rapid.Bool().Draw(rt, "memory is kept") {
			c.MemoryKept, c.Deepen = box.Yes, box.Yes
		}
		x := &chaos{T: rt, w: newWorldAt(rt, s, c), tokens: []string{"bogus"}}
		x.w.archive = rapid.SampledFrom([]box.ArchiveReceipt{{}, held, missing(2), unable}).Draw(rt, "files")
		turn := 0
		x.w.between = func(box.Step) {
			if turn++; rapid.IntRange(0, 7).Draw(rt, "meanwhile") == 0 {
				x.meanwhile(box.Request{ID: fmt.Sprintf("m%d", turn), By: "eve"})
			}
		}
		wait := x.w.settle()
		for i := range rapid.IntRange(1, 60).Draw(rt, "events") {
			x.event(box.Request{ID: fmt.Sprintf("r%d", i), By: "ana"}, wait)
			wait = x.w.settle()
			if wait.Kind == box.StepFinish {
				break
			}
			if f := x.w.facts; f.State == box.StateRunning && !x.w.exists && !f.Look && f.Failure == nil {
				rt.Fatalf("the box is gone and the state says %s", f.State)
			}
		}
		x.w.between = nil // from here on nobody does anything
		x.rest(wait)
	})
}

// meanwhile is one thing that a person does while a step runs.
func (x *chaos) meanwhile(req box.Request) {
	f, now := x.w.facts, x.w.now
	switch what := rapid.SampledFrom([]string{"connect", "release", "suspend", "resume", "keep", "freeze", "request", "confirm", "cancel", "replace", "restore", "adopt", "abandon", "hold", "unhold"}).Draw(x.T, "meanwhile what"); what {
	case "connect":
		if r := (box.ConnectRequest{Request: req, HolderID: "h1"}); f.CheckConnect(r) == nil {
			f.Connect(r, now)
		}
	case "release":
		f.Release("h1", now)
	case "suspend":
		if f.CheckSuspend(req) == nil {
			f.Suspend(req, now)
		}
	case "resume":
		if f.CheckResume(req) == nil {
			f.Resume(req, now)
		}
	case "keep":
		if r := (box.SwitchAsk{Request: req, On: true}); f.CheckSwitch(r) == nil {
			f.Keep(r, now)
		}
	case "freeze":
		if r := (box.SwitchAsk{Request: req, On: !f.Frozen}); f.CheckSwitch(r) == nil {
			f.Freeze(r, now)
		}
	case "request":
		if r := (box.RequestDeleteAsk{Request: req}); f.CheckRequestDelete(r) == nil {
			x.tokens = append(x.tokens, f.RequestDelete(r, now).Token)
		}
	case "confirm":
		f.ConfirmDelete(box.ConfirmDelete{Token: x.tokens[len(x.tokens)-1]}, now)
	case "cancel":
		f.CancelDelete(box.CancelDelete{}, now)
	default:
		x.successor(what, req)
	}
}

// successor is what a person decides about a box that is lost or not to be had.
func (x *chaos) successor(what string, req box.Request) {
	f, now := x.w.facts, x.w.now
	switch what {
	case "replace":
		if f.CheckReplace(req) == nil {
			f.Replace(req, now)
		}
	case "restore":
		r := box.RestoreAsk{Request: req, AcceptIncomplete: rapid.Bool().Draw(x.T, "accept incomplete")}
		if f.CheckRestore(r) == nil {
			f.Restore(r, now)
		}
	case "adopt":
		r := box.AdoptAsk{Request: req, BoxID: rapid.SampledFrom([]string{"stray", "foreign", "id-1", "absent"}).Draw(x.T, "box")}
		if f.CheckAdopt(r) == nil {
			if rapid.Bool().Draw(x.T, "stray there") {
				x.w.stray = rapid.SampledFrom([]box.Phase{box.PhaseRunning, box.PhaseSuspended, box.PhaseFailed}).Draw(x.T, "stray phase")
				x.w.strayAge = time.Duration(rapid.Int64Range(0, int64(60*24*time.Hour)).Draw(x.T, "age"))
			}
			f.TakeOver(r, now)
		}
	case "abandon":
		r := box.AbandonAsk{Request: req, Reason: "no account any more", Force: rapid.IntRange(0, 19).Draw(x.T, "force") == 0}
		if f.CheckAbandon(r) == nil {
			f.Abandon(r, now)
		}
	case "hold", "unhold":
		f.SetHold(box.HoldSignal{On: what == "hold", By: "ops", Reason: "an incident"}, now)
	case "ghost":
		for _, one := range f.Former {
			phase := rapid.SampledFrom([]box.Phase{box.PhaseRunning, box.PhaseGone, box.PhaseUnknown}).Draw(x.T, "ghost")
			if !f.ObserveFormer(box.ObservedSignal{Observation: box.Observation{Ref: one.Ref, Phase: phase}}, now) {
				x.Fatalf("nobody knows the former box %+v", one)
			}
		}
	}
}

// event is one thing that happens.
func (x *chaos) event(req box.Request, wait box.Step) {
	w := x.w
	switch event := rapid.SampledFrom([]string{
		"time", "time", "time", "time", "connect", "release", "work", "work", "suspend", "resume", "keep", "freeze", "policy",
		"request", "confirm", "confirm", "waive", "late confirm", "cancel", "export", "reclaim", "fail", "heal", "gone", "killed", "native", "deaf", "store",
		"replace", "restore", "adopt", "abandon", "hold", "unhold", "ghost",
	}).Draw(x.T, "event"); event {
	case "time":
		w.until(wait, time.Duration(rapid.Int64Range(1, int64(40*24*time.Hour)).Draw(x.T, "d")))
		if rapid.Bool().Draw(x.T, "late") {
			w.now = w.now.Add(time.Duration(rapid.Int64Range(0, int64(5*24*time.Hour)).Draw(x.T, "late by")))
		}
	case "work":
		w.work(rapid.Bool().Draw(x.T, "told"))
	case "fail":
		kind := rapid.SampledFrom([]box.StepKind{
			box.StepQuiesce, box.StepReclaim, box.StepExport, box.StepSuspend, box.StepResume, box.StepDelete, box.StepObserve,
			box.StepDeepen, box.StepUndrain, box.StepNotify, box.StepVerifyExport, box.StepCreate, box.StepAdopt, box.StepRestore, box.StepAbandon,
		}).Draw(x.T, "kind")
		w.fail[kind] = rapid.SampledFrom([]box.Class{
			box.ClassUnavailable, box.ClassUnknown, box.ClassUnauthorized, box.ClassExhausted, box.ClassDeadlineExceeded, box.ClassFailedPrecondition,
		}).Draw(x.T, "class")
	case "heal":
		w.fail, w.deaf, w.badStore = map[box.StepKind]box.Class{}, false, false
	case "gone":
		if rapid.IntRange(0, 2).Draw(x.T, "really") == 0 && !w.facts.Ref.IsZero() {
			w.exists = false
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
		}
	case "killed", "native":
		if w.exists && w.phase == box.PhaseRunning {
			w.phase = map[string]box.Phase{"killed": box.PhaseFailed, "native": box.PhaseSuspended}[event]
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
		}
	case "deaf":
		w.deaf = true
	case "store":
		w.badStore = true
	case "replace", "restore", "adopt", "abandon", "hold", "unhold", "ghost":
		x.successor(event, req)
	default:
		x.ask(event, req)
	}
}

// ask is what a person or the backend asks for.
func (x *chaos) ask(event string, req box.Request) {
	f, now := x.w.facts, x.w.now
	committed := f.Deletion != nil && f.Deletion.Committed
	switch event {
	case "connect":
		r := box.ConnectRequest{Request: req, HolderID: "h" + rapid.SampledFrom([]string{"1", "2"}).Draw(x.T, "h")}
		if f.CheckConnect(r) == nil {
			if committed {
				x.Fatal("connect was accepted after the provider was told to delete")
			}
			f.Connect(r, now)
		}
	case "release":
		f.Release("h1", now)
	case "suspend":
		if f.CheckSuspend(req) == nil {
			f.Suspend(req, now)
		}
	case "resume":
		if f.CheckResume(req) == nil {
			f.Resume(req, now)
		}
	case "keep", "freeze":
		r := box.SwitchAsk{Request: req, On: rapid.Bool().Draw(x.T, "on")}
		if f.CheckSwitch(r) == nil {
			map[string]func(box.SwitchAsk, time.Time) box.ActionAnswer{"keep": f.Keep, "freeze": f.Freeze}[event](r, now)
		}
	case "policy":
		r := box.SetPolicyAsk{Request: req, Policy: box.Policy{PausedTTL: box.Duration(rapid.Int64Range(int64(time.Hour), int64(90*24*time.Hour)).Draw(x.T, "ttl"))}}
		if f.CheckSetPolicy(r) == nil {
			f.SetPolicy(r, now)
		}
	case "request":
		if r := (box.RequestDeleteAsk{Request: req}); f.CheckRequestDelete(r) == nil {
			x.tokens = append(x.tokens, f.RequestDelete(r, now).Token)
		}
	case "confirm", "waive", "late confirm":
		token := x.tokens[len(x.tokens)-1]
		if event == "late confirm" {
			token = rapid.SampledFrom(x.tokens).Draw(x.T, "token")
		}
		was := f.Deletion
		f.ConfirmDelete(box.ConfirmDelete{Token: token, WithoutHistory: rapid.IntRange(0, 9).Draw(x.T, "waive") == 0}, now)
		if c := f.Confirmation; c != nil && c.Accepted && c.At.Equal(now) && (was == nil || c.Token != was.Token) {
			x.Fatalf("token %s was accepted and the newest request has %+v", token, was)
		}
	case "cancel":
		f.CancelDelete(box.CancelDelete{}, now)
	case "export", "reclaim":
		if ask := (box.Ask{Kind: box.AskKind(event), ID: req.ID}); f.CheckAsk(ask) == nil {
			f.Queue(ask)
		}
	}
}

// rest checks that, once all is well again and nobody uses it, the box comes to
// rest: it is never left running for ever.
func (x *chaos) rest(wait box.Step) {
	w := x.w
	w.fail, w.deaf, w.badStore, w.running = map[box.StepKind]box.Class{}, false, false, 0
	w.facts.SetHold(box.HoldSignal{}, w.now)
	if w.facts.Frozen {
		w.facts.Freeze(box.SwitchAsk{Request: box.Request{ID: "thaw"}}, w.now)
	}
	for range 40 {
		wait = w.settle()
		rests := w.facts.State == box.StateAwaitingConfirm || w.facts.State == box.StateLost || w.facts.State == box.StateDeleteBlocked ||
			w.facts.State == box.StateCreateFailed ||
			(w.facts.State == box.StateSuspended && w.facts.Kept)
		if wait.Kind == box.StepFinish || (rests && !w.facts.Look && wait.Reason.Code != box.ReasonFailed) {
			break
		}
		w.until(wait, 24*time.Hour)
	}
	if w.exists && w.phase == box.PhaseRunning && w.facts.State != box.StateAbandoned {
		x.Fatalf("the box runs for ever in state %s, next %+v%s", w.facts.State, wait, w.told())
	}
}
