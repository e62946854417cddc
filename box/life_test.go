package box_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

// noon is a fixed time in a zone whose date differs from UTC's for half the day.
func noon() time.Time {
	return time.Date(2026, 3, 1, 23, 30, 0, 0, time.FixedZone("east", 5*3600+1800)).UTC()
}

func row() box.Capabilities {
	return box.Capabilities{
		Driver: "test", Suspend: box.Yes, MemoryKept: box.No, SameIdentity: box.Yes, URLStable: box.Yes, KeyStable: box.Yes,
		LookingIsUse: box.No, List: box.Yes, Watch: box.Yes, ExportNeedsRunning: box.Yes, NativeIdle: box.No,
		Lead: box.LeadOurs, SuspendProof: "seen", DeleteProof: "seen",
	}
}

func spec() box.Spec {
	return box.Spec{Version: box.WireVersion, Workspace: "demo", Owner: "ana", Provider: "test"}
}

// world plays the provider and the agent-server for the rules: it answers each
// step as a box would, and can be told to fail.
type world struct {
	t     testing.TB
	now   time.Time
	facts *box.Facts
	log   []box.StepKind

	phase    box.Phase
	exists   bool
	events   int
	lastUse  time.Time
	running  int
	deaf     bool // the agent-server never answers
	badStore bool // exports do not verify
	fail     map[box.StepKind]box.Class
	stored   map[string]bool // digests the store holds
}

func newWorld(t testing.TB, s box.Spec) *world {
	t.Helper()
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, now: noon(), fail: map[box.StepKind]box.Class{}, stored: map[string]bool{}}
	f := box.NewFacts(s, row(), w.now)
	w.facts = &f
	return w
}

func (w *world) digest() string {
	return box.HistoryDigest([]box.ConversationMark{{ID: "c", Events: w.events}})
}

func (w *world) use() *box.Use {
	return &box.Use{IdleFor: w.now.Sub(w.lastUse), Running: w.running, Digest: w.digest(), Conversations: 1, Events: w.events}
}

func (w *world) seen() box.Observation {
	ref := box.Ref{Provider: "test", ID: "id-1", Name: "n", Epoch: 1, Fingerprint: "here"}
	if !w.exists {
		return box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: "absent twice"}
	}
	return box.Observation{Ref: ref, Phase: w.phase, Evidence: "the provider says " + string(w.phase)}
}

// outcome is what the activity of a step would answer.
func (w *world) outcome(step box.Step) box.Outcome {
	if class, bad := w.fail[step.Kind]; bad {
		return box.Outcome{Failed: &box.StepFailure{Class: class, Message: "as told"}}
	}
	failed := func(class box.Class, text string) box.Outcome {
		return box.Outcome{Failed: &box.StepFailure{Class: class, Message: text}}
	}
	inside := func() bool { return w.exists && w.phase == box.PhaseRunning && !w.deaf }
	switch step.Kind {
	case box.StepCreate:
		w.exists, w.phase, w.lastUse = true, box.PhaseRunning, w.now
		return box.Outcome{Observation: w.seen(), Ready: !w.deaf}
	case box.StepObserve:
		return box.Outcome{Observation: w.seen()}
	case box.StepAwaitReady:
		if !inside() {
			return failed(box.ClassUnavailable, "does not answer")
		}
		return box.Outcome{Observation: w.seen(), Ready: true}
	case box.StepResume:
		if !w.exists {
			return failed(box.ClassNotFound, "gone")
		}
		w.phase = box.PhaseRunning
		if w.deaf {
			return failed(box.ClassUnavailable, "does not answer")
		}
		return box.Outcome{Observation: w.seen(), Ready: true}
	case box.StepSuspend:
		if !w.exists {
			return failed(box.ClassNotFound, "gone")
		}
		w.phase = box.PhaseSuspended
		return box.Outcome{Observation: w.seen()}
	case box.StepDelete:
		w.exists = false
		return box.Outcome{Observation: w.seen()}
	case box.StepVerifyExport:
		if w.badStore {
			return box.Outcome{Problem: "an object is missing"}
		}
		return box.Outcome{}
	case box.StepNotify:
		return box.Outcome{}
	case box.StepQuiesce, box.StepScan, box.StepUndrain, box.StepReclaim, box.StepExport:
	case box.StepWait, box.StepFinish:
		w.t.Fatalf("%s has no activity", step.Kind)
	}
	if !inside() {
		return failed(box.ClassUnavailable, "does not answer")
	}
	switch step.Kind { //nolint:exhaustive // the others are above
	case box.StepQuiesce:
		if step.Purpose == box.PurposeIdle && (w.running > 0 || w.now.Sub(w.lastUse) < w.facts.Policy.Idle.Std()) {
			return box.Outcome{Use: w.use(), Busy: "in use"}
		}
		w.running = 0
		return box.Outcome{Use: w.use()}
	case box.StepScan:
		return box.Outcome{Use: w.use()}
	case box.StepReclaim:
		return box.Outcome{Reclaim: box.ReclaimReport{PlanID: "p", FreedBytes: 1 << 20}}
	case box.StepExport:
		w.stored[w.digest()] = true
		return box.Outcome{Receipt: box.Receipt{Workspace: "demo", Epoch: 1, Key: "k", SHA256: "s", Conversations: 1, Events: w.events, Digest: w.digest()}}
	}
	return box.Outcome{}
}

// settle runs steps until the box waits, and returns the wait.
func (w *world) settle() box.Step {
	w.t.Helper()
	for range 200 {
		step := w.turn()
		if step.Kind == box.StepWait || step.Kind == box.StepFinish {
			return step
		}
	}
	w.t.Fatalf("no rest after 200 steps in state %s: %v", w.facts.State, w.log[len(w.log)-20:])
	return box.Step{}
}

// turn makes one turn of the loop and checks what must hold in every turn.
func (w *world) turn() box.Step {
	w.t.Helper()
	w.facts.Advance(w.now)
	step := box.Next(w.facts, w.now)
	w.check(step)
	if step.Kind == box.StepWait || step.Kind == box.StepFinish {
		return step
	}
	w.log = append(w.log, step.Kind)
	w.facts.Begin(step, w.now)
	w.facts.Apply(step, w.outcome(step), w.now)
	return step
}

func (w *world) check(step box.Step) {
	w.t.Helper()
	f := w.facts
	switch {
	case step.Kind == box.StepWait && !step.At.IsZero() && !step.At.After(w.now):
		w.t.Fatalf("in %s: a wait until %s is over at %s (%s)", f.State, step.At, w.now, step.Reason.Text)
	case step.Reason.Code == "" || step.Reason.Text == "":
		w.t.Fatalf("in %s: step %s has no reason", f.State, step.Kind)
	case step.Kind == box.StepWait && step.StoppedBy == "" && step.Reason.Code != box.ReasonFailed:
		w.t.Fatalf("in %s: nobody is named who can stop the wait %q", f.State, step.Reason.Text)
	}
	if step.Kind == box.StepDelete && f.State != box.StateDeleting {
		d := f.Deletion
		covered := f.Scan != nil && f.Receipt.Covers(f.Epoch, f.Scan.Digest) && d.Verified
		if d == nil || !d.Confirmed || (!covered && !d.WithoutHistory && !f.NeverReady()) {
			w.t.Fatalf("a deletion without consent or without a verified export: %+v", d)
		}
	}
	if w.exists && w.phase == box.PhaseSuspended {
		switch step.Kind { //nolint:exhaustive // only these look into a box
		case box.StepScan, box.StepQuiesce, box.StepReclaim, box.StepExport, box.StepAwaitReady:
			if f.State == box.StateSuspended || f.State == box.StateAwaitingConfirm || f.State == box.StateUndoWindow {
				w.t.Fatalf("%s would look into a suspended box", step.Kind)
			}
		}
	}
	data, err := json.Marshal(f)
	if err != nil {
		w.t.Fatal(err)
	}
	var back box.Facts
	if err := json.Unmarshal(data, &back); err != nil {
		w.t.Fatalf("facts do not survive JSON: %v in %s", err, data)
	}
	if again := box.Next(&back, w.now); !reflect.DeepEqual(again, step) {
		w.t.Fatalf("the next step changes across JSON:\n%+v\n%+v", step, again)
	}
}

// until lets time pass to the end of the wait, or for d when nothing is armed.
func (w *world) until(step box.Step, d time.Duration) {
	if step.At.IsZero() {
		w.now = w.now.Add(d)
		return
	}
	w.now = step.At
}

func (w *world) state(want box.State) {
	w.t.Helper()
	if w.facts.State != want {
		w.t.Fatalf("state is %s, want %s; transitions: %s", w.facts.State, want, w.told())
	}
}

func (w *world) told() string {
	text := ""
	for _, t := range w.facts.Transitions {
		text += fmt.Sprintf("\n  %s %s: %s (%s)", t.At.Format(time.RFC3339), t.To, t.Reason.Text, t.Reason.Code)
	}
	return text
}

func (w *world) connect(holder string) {
	w.t.Helper()
	r := box.ConnectRequest{Request: box.Request{ID: fmt.Sprintf("c-%d-%s", w.now.UnixNano(), holder), By: "ana"}, HolderID: holder}
	if err := w.facts.CheckConnect(r); err != nil {
		w.t.Fatal(err)
	}
	w.facts.Connect(r, w.now)
}

// toSuspended brings a new box to suspended by its idle timer.
func (w *world) toSuspended() box.Step {
	w.t.Helper()
	w.until(w.settle(), 0)
	step := w.settle()
	w.state(box.StateSuspended)
	return step
}

// toAwaiting brings a new box to the end of its paused TTL.
func (w *world) toAwaiting() box.Step {
	w.t.Helper()
	w.until(w.toSuspended(), 0) // notice
	w.until(w.settle(), 0)      // expiry
	step := w.settle()
	w.state(box.StateAwaitingConfirm)
	return step
}

func (w *world) requestDelete() box.Loss {
	w.t.Helper()
	r := box.RequestDeleteAsk{Request: box.Request{ID: fmt.Sprintf("d-%d", w.now.UnixNano()), By: "ana"}}
	if err := w.facts.CheckRequestDelete(r); err != nil {
		w.t.Fatal(err)
	}
	if w.facts.ScanBeforeDelete() {
		w.facts.Queue(box.Ask{Kind: box.AskScan, ID: "scan:" + r.ID})
		w.settle()
	}
	return w.facts.RequestDelete(r, w.now)
}

func TestWholeLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec())
	w.settle()
	w.state(box.StateRunning)
	w.connect("tab")
	w.events, w.lastUse = 3, w.now
	w.now = w.now.Add(time.Minute)
	w.facts.Release("tab", w.now)
	idle := w.settle()
	if got := idle.At.Sub(w.now); got != 15*time.Minute {
		t.Fatalf("idle deadline is %s after the release, want 15m", got)
	}
	w.until(idle, 0)
	notice := w.settle()
	w.state(box.StateSuspended)
	if got := notice.At.Sub(w.now); got != 27*24*time.Hour {
		t.Fatalf("notice is %s after the suspend, want 27 days", got)
	}
	w.connect("tab") // wakes
	w.settle()
	w.state(box.StateRunning)
	w.facts.Release("tab", w.now)
	w.until(w.settle(), 0)
	notice = w.settle()
	w.state(box.StateSuspended)
	w.until(notice, 0)
	expiry := w.settle()
	w.until(expiry, 0)
	w.settle()
	w.state(box.StateAwaitingConfirm)
	loss := w.requestDelete()
	if !loss.Covered || loss.Conversations != 1 || loss.Events != 3 || loss.Undo != box.Duration(24*time.Hour) {
		t.Fatalf("loss %+v", loss)
	}
	w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
	undo := w.settle()
	w.state(box.StateUndoWindow)
	w.until(undo, 0)
	if end := w.settle(); end.Kind != box.StepFinish || w.exists {
		t.Fatalf("end %+v, box exists %v", end, w.exists)
	}
	w.state(box.StateBoxArchived)
	want := []box.StepKind{
		box.StepCreate, box.StepQuiesce, box.StepReclaim, box.StepExport, box.StepSuspend, box.StepResume,
		box.StepQuiesce, box.StepReclaim, box.StepSuspend, box.StepNotify, box.StepNotify, box.StepVerifyExport, box.StepDelete,
	}
	if !reflect.DeepEqual(w.log, want) {
		t.Fatalf("steps %v\nwant %v", w.log, want)
	}
}

// TestAnyLife lets people, time, the provider and failures do what they like,
// and checks in every turn what must always hold.
func TestAnyLife(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s := spec()
		if rapid.Bool().Draw(rt, "deletes at expiry") {
			s.Policy.OnExpiry = box.OnExpiryDelete
		}
		w := newWorld(t, s)
		tokens := []string{"bogus"}
		wait := w.settle()
		for i := range rapid.IntRange(1, 60).Draw(rt, "events") {
			id := fmt.Sprintf("r%d", i)
			req := box.Request{ID: id, By: "ana"}
			committed := w.facts.Deletion != nil && w.facts.Deletion.Committed
			switch rapid.SampledFrom([]string{
				"time", "time", "time", "time", "connect", "release", "use", "suspend", "resume", "keep", "freeze", "policy",
				"request", "confirm", "confirm", "waive", "cancel", "export", "reclaim", "fail", "heal", "gone", "killed", "native", "deaf", "store",
			}).Draw(rt, "event") {
			case "time":
				w.until(wait, time.Duration(rapid.Int64Range(1, int64(40*24*time.Hour)).Draw(rt, "d")))
				if rapid.Bool().Draw(rt, "late") {
					w.now = w.now.Add(time.Duration(rapid.Int64Range(0, int64(5*24*time.Hour)).Draw(rt, "late by")))
				}
			case "connect":
				r := box.ConnectRequest{Request: req, HolderID: "h" + rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "h")}
				if err := w.facts.CheckConnect(r); err == nil {
					if committed {
						rt.Fatal("connect was accepted after the provider was told to delete")
					}
					w.facts.Connect(r, w.now)
				}
			case "release":
				w.facts.Release("h1", w.now)
			case "use":
				if w.exists && w.phase == box.PhaseRunning && !w.deaf {
					w.events++
					w.lastUse = w.now
					w.facts.ReportActivity(box.ActivitySignal{Begun: []string{"op"}}, w.now)
				}
			case "suspend":
				if w.facts.CheckSuspend(req) == nil {
					w.facts.Suspend(req, w.now)
				}
			case "resume":
				if w.facts.CheckResume(req) == nil {
					w.facts.Resume(req, w.now)
				}
			case "keep":
				w.facts.Keep(box.SwitchAsk{Request: req, On: rapid.Bool().Draw(rt, "on")}, w.now)
			case "freeze":
				w.facts.Freeze(box.SwitchAsk{Request: req, On: rapid.Bool().Draw(rt, "on")}, w.now)
			case "policy":
				r := box.SetPolicyAsk{Request: req, Policy: box.Policy{PausedTTL: box.Duration(rapid.Int64Range(int64(time.Hour), int64(90*24*time.Hour)).Draw(rt, "ttl"))}}
				if w.facts.CheckSetPolicy(r) == nil {
					w.facts.SetPolicy(r, w.now)
				}
			case "request":
				r := box.RequestDeleteAsk{Request: req}
				if w.facts.CheckRequestDelete(r) == nil {
					tokens = append(tokens, w.facts.RequestDelete(r, w.now).Token)
				}
			case "confirm", "waive":
				w.facts.ConfirmDelete(box.ConfirmDelete{Token: tokens[len(tokens)-1], WithoutHistory: rapid.IntRange(0, 9).Draw(rt, "waive") == 0}, w.now)
			case "cancel":
				w.facts.CancelDelete(box.CancelDelete{}, w.now)
			case "export", "reclaim":
				ask := box.Ask{Kind: box.AskExport, ID: id}
				if w.facts.CheckAsk(ask) == nil {
					w.facts.Queue(ask)
				}
			case "fail":
				kind := rapid.SampledFrom([]box.StepKind{box.StepQuiesce, box.StepReclaim, box.StepExport, box.StepSuspend, box.StepResume, box.StepDelete, box.StepObserve, box.StepUndrain, box.StepNotify, box.StepVerifyExport}).Draw(rt, "kind")
				w.fail[kind] = rapid.SampledFrom([]box.Class{box.ClassUnavailable, box.ClassUnknown, box.ClassUnauthorized, box.ClassExhausted, box.ClassDeadlineExceeded, box.ClassFailedPrecondition}).Draw(rt, "class")
			case "heal":
				w.fail, w.deaf, w.badStore = map[box.StepKind]box.Class{}, false, false
			case "gone":
				if rapid.IntRange(0, 5).Draw(rt, "really") == 0 {
					w.exists = false
					w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
				}
			case "killed":
				if w.exists && w.phase == box.PhaseRunning {
					w.phase = box.PhaseFailed
					w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
				}
			case "native":
				if w.exists && w.phase == box.PhaseRunning {
					w.phase = box.PhaseSuspended
					w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
				}
			case "deaf":
				w.deaf = true
			case "store":
				w.badStore = true
			}
			wait = w.settle()
			if wait.Kind == box.StepFinish {
				break
			}
			if !w.exists && w.facts.State != box.StateLost && w.facts.State != box.StateBoxArchived && !w.facts.Look && w.facts.Failure == nil &&
				(w.facts.State == box.StateRunning) {
				rt.Fatalf("the box is gone and the state says %s", w.facts.State)
			}
		}
		// Whatever happened, once all is well again and nobody uses it, the box
		// comes to rest: it is never left running for ever.
		w.fail, w.deaf, w.badStore, w.running = map[box.StepKind]box.Class{}, false, false, 0
		if w.facts.Frozen {
			w.facts.Freeze(box.SwitchAsk{Request: box.Request{ID: "thaw"}}, w.now)
		}
		for range 40 {
			wait = w.settle()
			rests := w.facts.State == box.StateAwaitingConfirm || w.facts.State == box.StateLost || w.facts.State == box.StateDeleteBlocked ||
				(w.facts.State == box.StateSuspended && w.facts.Kept)
			if wait.Kind == box.StepFinish || (rests && !w.facts.Look && wait.Reason.Code != box.ReasonFailed) {
				break
			}
			w.until(wait, 24*time.Hour)
		}
		if w.exists && w.phase == box.PhaseRunning {
			rt.Fatalf("the box runs for ever in state %s, next %+v%s", w.facts.State, wait, w.told())
		}
	})
}
