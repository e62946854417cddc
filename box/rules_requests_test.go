package box_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

func TestRepeatedRequests(t *testing.T) {
	t.Parallel()
	t.Run("a late repeat of a connect takes no hold that was released, and wakes nothing", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		r := box.ConnectRequest{Request: box.Request{ID: "c", By: "ana"}, HolderID: "tab"}
		first := w.facts.Connect(r, w.now)
		again := w.facts.Connect(r, w.now.Add(time.Second))
		if again.Seen.Age-first.Seen.Age != box.Duration(time.Second) {
			t.Errorf("the look is %s old, and was %s", again.Seen.Age, first.Seen.Age)
		}
		again.Seen = first.Seen
		if again != first {
			t.Errorf("the repeat answers %+v, the first one %+v", again, first)
		}
		w.facts.Release("tab", w.now)
		w.pass(idle)
		w.state(box.StateSuspended)
		if late := w.facts.Connect(r, w.now); late.State != box.StateSuspended || !late.LeaseUntil.IsZero() || late.RetryAfter == 0 {
			t.Errorf("the late repeat answers %+v", late)
		}
		w.pass(time.Hour)
		w.state(box.StateSuspended)
	})
	t.Run("it voids no deletion either", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.connect("tab")
		r := box.ConnectRequest{Request: box.Request{ID: fmt.Sprintf("c-%d-tab", w.now.UnixNano())}, HolderID: "tab"}
		w.facts.Release("tab", w.now)
		w.toSuspended()
		w.requestUndo(box.Duration(day))
		w.facts.Connect(r, w.now)
		w.pass(time.Hour)
		w.state(box.StateUndoWindow)
	})
	t.Run("a repeated suspend, resume, keep or freeze acts once", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.facts.Suspend(box.Request{ID: "s"}, w.now)
		w.settle()
		w.state(box.StateSuspended)
		w.facts.Resume(box.Request{ID: "r"}, w.now)
		w.settle()
		w.facts.Suspend(box.Request{ID: "s"}, w.now)
		w.settle()
		w.state(box.StateRunning)
		w.keep("k", true)
		w.keep("k2", false)
		w.keep("k", true)
		w.freeze("f", true)
		w.freeze("f2", false)
		w.freeze("f", true)
		if w.facts.Kept || w.facts.Frozen {
			t.Errorf("kept %v, frozen %v", w.facts.Kept, w.facts.Frozen)
		}
	})
	t.Run("of a resume and a suspend the later one counts", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		w.facts.Resume(box.Request{ID: "r"}, w.now)
		w.facts.Suspend(box.Request{ID: "s"}, w.now)
		w.pass(time.Minute)
		w.state(box.StateSuspended)
		if w.did(box.StepResume) != 0 {
			t.Errorf("steps %v", w.log)
		}
	})
	t.Run("an ask is answered once, and a forgotten answer is said to be forgotten", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		ask := func(id string) box.Result {
			w.facts.Queue(box.Ask{Kind: box.AskReclaim, ID: id})
			w.settle()
			result, ok := w.facts.ResultFor(id)
			if !ok {
				t.Fatalf("%s has no answer", id)
			}
			return result
		}
		first := ask("a")
		if again := ask("a"); first.Reclaim == nil || again.Reclaim != first.Reclaim || w.did(box.StepReclaim) != 1 {
			t.Errorf("answers %+v and %+v", first, again)
		}
		for i := range 8 {
			ask(fmt.Sprint("other", i))
		}
		if late := ask("a"); late.Class != box.ClassFailedPrecondition || !strings.Contains(late.Error, "new request id") {
			t.Errorf("the late repeat answers %+v", late)
		}
		if w.did(box.StepReclaim) != 9 {
			t.Errorf("%d passes", w.did(box.StepReclaim))
		}
	})
	t.Run("a policy is changed once", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.policy("p", box.Policy{Idle: box.Duration(time.Minute)})
		w.policy("q", box.Policy{Idle: box.Duration(time.Hour)})
		w.policy("p", box.Policy{Idle: box.Duration(time.Minute)})
		if w.facts.Policy.Idle != box.Duration(time.Hour) {
			t.Errorf("idle is %s", w.facts.Policy.Idle)
		}
	})
	t.Run("an ended and a begun operation in either order end alike", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.facts.ReportActivity(box.ActivitySignal{Ended: []string{"op"}}, w.now)
		w.begun("op", "op")
		w.facts.ReportActivity(box.ActivitySignal{Ended: []string{"op", "op"}}, w.now)
		if len(w.facts.Holders) != 0 {
			t.Errorf("holders %+v", w.facts.Holders)
		}
	})
}

func TestScenario56ASlowResumeIsOneResume(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.toSuspended()
	w.connect("tab")
	step := w.step(box.StepResume)
	for range 8 { // 80 s
		w.now = w.now.Add(10 * time.Second)
		answer := w.facts.Connect(box.ConnectRequest{Request: box.Request{ID: fmt.Sprint(w.now)}, HolderID: "tab"}, w.now)
		if answer.State != box.StateResuming || answer.RetryAfter == 0 || box.Interrupts(w.facts, step) {
			t.Fatalf("after %s: %+v", w.now, answer)
		}
	}
	w.finish(step)
	w.settle()
	w.state(box.StateRunning)
	if w.did(box.StepResume) != 1 {
		t.Errorf("steps %v", w.log)
	}
}

// A refusal names what is wrong and changes nothing.
func TestRequestsAreRefused(t *testing.T) {
	t.Parallel()
	ok := box.Request{ID: "r", By: "ana"}
	long := strings.Repeat("x", 129)
	connect := func(change func(*box.ConnectRequest)) func(*box.Facts) error {
		r := box.ConnectRequest{Request: ok, HolderID: "tab"}
		change(&r)
		return func(f *box.Facts) error { return f.CheckConnect(r) }
	}
	for name, row := range map[string]struct {
		check func(*box.Facts) error
		field string
		class box.Class
	}{
		"a connect that is fine":        {connect(func(*box.ConnectRequest) {}), "", ""},
		"no request id":                 {connect(func(r *box.ConnectRequest) { r.ID = "" }), "request_id", box.ClassInvalid},
		"a request id with a space":     {connect(func(r *box.ConnectRequest) { r.ID = "a b" }), "request_id", box.ClassInvalid},
		"a request id with an accent":   {connect(func(r *box.ConnectRequest) { r.ID = "é" }), "request_id", box.ClassInvalid},
		"a request id that is too long": {connect(func(r *box.ConnectRequest) { r.ID = long }), "request_id", box.ClassInvalid},
		"a by that is too long":         {connect(func(r *box.ConnectRequest) { r.By = long }), "by", box.ClassInvalid},
		"no holder":                     {connect(func(r *box.ConnectRequest) { r.HolderID = "" }), "holder_id", box.ClassInvalid},
		"a holder with a line break":    {connect(func(r *box.ConnectRequest) { r.HolderID = "a\nb" }), "holder_id", box.ClassInvalid},
		"an origin that is too long":    {connect(func(r *box.ConnectRequest) { r.Origin = long }), "origin", box.ClassInvalid},
		"a hold without an end":         {connect(func(r *box.ConnectRequest) { r.Lease = box.Never }), "lease", box.ClassInvalid},
		"a hold of an unknown kind":     {connect(func(r *box.ConnectRequest) { r.Kind = "cat" }), "kind", box.ClassInvalid},
		"a renewal without an end":      {func(f *box.Facts) error { return f.CheckRenew(box.RenewRequest{HolderID: "h", Lease: box.Never}) }, "lease", box.ClassInvalid},
		"a renewal of what is gone":     {func(f *box.Facts) error { return f.CheckRenew(box.RenewRequest{HolderID: "h"}) }, "", box.ClassNotFound},
		"a deletion with undo for ever": {func(f *box.Facts) error {
			return f.CheckRequestDelete(box.RequestDeleteAsk{Request: ok, Undo: box.Never})
		}, "undo", box.ClassInvalid},
		"an unknown tier": {func(f *box.Facts) error {
			return f.CheckAsk(box.Ask{Kind: box.AskReclaim, ID: "a", Reclaim: box.ReclaimRequest{Tiers: []box.Tier{"all"}}})
		}, "tiers", box.ClassInvalid},
		"a conversation that is none": {func(f *box.Facts) error {
			return f.CheckAsk(box.Ask{Kind: box.AskReclaim, ID: "a", Reclaim: box.ReclaimRequest{ConversationIDs: []string{strings.Repeat("a", 32), "../x"}}})
		}, "conversation_ids[1]", box.ClassInvalid},
		"work of nobody in particular given up": {func(f *box.Facts) error {
			return f.CheckAsk(box.Ask{Kind: box.AskReclaim, ID: "a", Reclaim: box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}, AcceptUnsaved: true}})
		}, "accept_unsaved", box.ClassInvalid},
		"work given up in another tier": {func(f *box.Facts) error {
			ask := box.ReclaimRequest{ConversationIDs: []string{strings.Repeat("a", 32)}, AcceptUnsaved: true}
			return f.CheckAsk(box.Ask{Kind: box.AskReclaim, ID: "a", Reclaim: ask})
		}, "accept_unsaved", box.ClassInvalid},
		"more conversations than fit": {func(f *box.Facts) error {
			ids := slices.Repeat([]string{"11111111-2222-3333-4444-555555555555"}, box.MaxReclaimConversations+1)
			return f.CheckAsk(box.Ask{Kind: box.AskReclaim, ID: "a", Reclaim: box.ReclaimRequest{ConversationIDs: ids}})
		}, "conversation_ids", box.ClassInvalid},
		"a late choice of delete at expiry": {func(f *box.Facts) error {
			return f.CheckSetPolicy(box.SetPolicyAsk{Request: ok, Policy: box.Policy{OnExpiry: box.OnExpiryDelete}})
		}, "policy.on_expiry", box.ClassInvalid},
		"a notice that comes after what it announces": {func(f *box.Facts) error {
			return f.CheckSetPolicy(box.SetPolicyAsk{Request: ok, Policy: box.Policy{Notice: box.Duration(31 * day)}})
		}, "policy.notice", box.ClassInvalid},
		"a policy that the provider cannot meet": {func(f *box.Facts) error {
			f.Capabilities.Suspend = box.No
			return f.CheckSetPolicy(box.SetPolicyAsk{Request: ok, Policy: box.Policy{Idle: box.Duration(time.Hour)}})
		}, "policy.idle", box.ClassInvalid},
		"a suspend that the provider cannot do": {func(f *box.Facts) error {
			f.Capabilities.Suspend = box.No
			return f.CheckSuspend(ok)
		}, "", box.ClassUnsupported},
		"a suspend of a frozen box": {func(f *box.Facts) error {
			f.Frozen = true
			return f.CheckSuspend(ok)
		}, "", box.ClassFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			err := row.check(w.facts)
			if got := box.ClassOf(err); got != row.class {
				t.Fatalf("class %q, want %q: %v", got, row.class, err)
			}
			if row.field != "" && !strings.HasPrefix(err.Error(), row.field+": ") {
				t.Errorf("the field is not named: %v", err)
			}
			if len(w.facts.Seen) != 0 || len(w.facts.Holders) != 0 {
				t.Errorf("the refusal left %v, %v", w.facts.Seen, w.facts.Holders)
			}
		})
	}
}

// Asks need a running box; an export is the exception, and every ask that
// cannot be served any more is answered.
func TestAsks(t *testing.T) {
	t.Parallel()
	t.Run("a reclaim wakes nothing, an export that is covered neither", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		if err := w.facts.CheckAsk(box.Ask{Kind: box.AskReclaim, ID: "a"}); box.ClassOf(err) != box.ClassFailedPrecondition || !strings.Contains(err.Error(), "connect first") {
			t.Errorf("reclaim: %v", err)
		}
		w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "x"})
		if result, ok := w.facts.ResultFor("x"); !ok || result.Receipt == nil || *result.Receipt != w.facts.Receipt {
			t.Errorf("export: %+v", result)
		}
		w.settle()
		if w.did(box.StepResume) != 0 {
			t.Errorf("steps %v", w.log)
		}
	})
	t.Run("one that is cut off by a suspend, a loss or a deletion is answered", func(t *testing.T) {
		t.Parallel()
		for name, end := range map[string]func(*world){
			"the provider suspends": func(w *world) { w.phase = box.PhaseSuspended },
			"the box is gone":       func(w *world) { w.exists = false },
			"the box ends":          func(w *world) { w.phase = box.PhaseFailed },
		} {
			w := awake(t)
			w.facts.Queue(box.Ask{Kind: box.AskReclaim, ID: "a"})
			end(w)
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
			w.settle()
			if result, ok := w.facts.ResultFor("a"); !ok || result.Error == "" {
				t.Errorf("%s: the ask got %+v, %v", name, result, ok)
			}
		}
	})
	t.Run("one that fails answers its class and fails nothing else", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.fail[box.StepReclaim] = box.ClassUnsupported
		w.facts.Queue(box.Ask{Kind: box.AskReclaim, ID: "a"})
		w.settle()
		if result, _ := w.facts.ResultFor("a"); result.Class != box.ClassUnsupported || w.facts.Failure != nil {
			t.Errorf("%+v, failure %+v", result, w.facts.Failure)
		}
	})
	t.Run("a frozen box is not woken for an export", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.blind()
		w.freeze("f", true)
		if err := w.facts.CheckAsk(box.Ask{Kind: box.AskExport, ID: "x"}); box.ClassOf(err) != box.ClassFailedPrecondition {
			t.Error(err)
		}
	})
}

// A workspace's memory of itself stays small, whatever happens.
func TestFactsStaySmall(t *testing.T) {
	t.Parallel()
	w := awake(t)
	for i := range 70 {
		w.facts.Suspend(box.Request{ID: fmt.Sprint("s", i)}, w.now)
		w.settle()
		w.facts.Resume(box.Request{ID: fmt.Sprint("r", i)}, w.now)
		w.settle()
	}
	f := w.facts
	if len(f.Seen) != 64 || len(f.Transitions) != 40 || len(f.Results) > 8 || !slices.Contains(f.Seen, "r69") {
		t.Errorf("%d ids, %d transitions, %d results", len(f.Seen), len(f.Transitions), len(f.Results))
	}
}

func BenchmarkNext(b *testing.B) {
	w := newWorld(b, spec())
	w.settle()
	for i := range 50 {
		w.facts.ReportActivity(box.ActivitySignal{Begun: []string{fmt.Sprint("op", i)}}, w.now)
	}
	b.ReportAllocs()
	for b.Loop() {
		if step := box.Next(w.facts, w.now); step.Kind != box.StepWait {
			b.Fatal(step.Kind)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	policy, c := box.DefaultPolicy(), row()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := box.Plan(policy, c); err != nil {
			b.Fatal(err)
		}
	}
}
