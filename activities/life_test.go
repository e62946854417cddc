package activities_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

func TestCreateIsRecordedBeforeAndAfter(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := creating("e1-s1")
	in.Spec.Secrets = map[string]string{"TOKEN": "env:TOKEN"}
	r.cloud.Inject(fakebox.Fault{Op: fakebox.OpCreate, Class: box.ClassUnavailable})
	fails(r, box.ClassUnavailable, r.boxes.Create, in)
	if got := r.ledger(); !slices.Equal(got, []string{"create-intent/e1-s1-create-intent"}) {
		t.Fatalf("before the outcome the ledger holds %v", got)
	}
	out := do(r, r.boxes.Create, in)
	if !out.Ready || out.Observation.Ref.Name != name || out.Capabilities == nil || out.Capabilities.Driver != "fakebox" {
		t.Errorf("the answer is %+v", out)
	}
	if got := r.ledger(); !slices.Equal(got, []string{"create-intent/e1-s1-create-intent", "created/e1-s1-created"}) {
		t.Errorf("the ledger holds %v", got)
	}
	if data, err := json.Marshal(out); err != nil || strings.Contains(string(data), secretValue) {
		t.Errorf("the answer tells a secret: %s, %v", data, err)
	}
	if got := r.steps.last(); got != "create fake " {
		t.Errorf("recorded is %q", got)
	}
}

// Scenario 62: a create whose answer was lost and that is tried again is one box.
func TestScenario62ALostAnswerMakesNoSecondBox(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.cloud.Inject(fakebox.Fault{Op: fakebox.OpCreate, Lost: true})
	fails(r, box.ClassUnavailable, r.boxes.Create, creating("e1-s1"))
	first := do(r, r.boxes.Create, creating("e1-s1"))
	again := do(r, r.boxes.Create, creating("e1-s2"))
	if first.Observation.Ref != again.Observation.Ref {
		t.Errorf("refs %+v and %+v", first.Observation.Ref, again.Observation.Ref)
	}
	if found, err := r.boxes.Provider.List(t.Context()); err != nil || len(found) != 1 {
		t.Errorf("%d boxes, %v", len(found), err)
	}
}

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		class  box.Class
		says   string
		change func(*activities.CreateInput)
	}{
		"a secret that this worker does not have": {box.ClassInvalid, "secrets.KEY: env:MISSING cannot be resolved", func(in *activities.CreateInput) {
			in.Spec.Secrets = map[string]string{"A": "env:TOKEN", "KEY": "env:MISSING"}
		}},
		"a policy that the provider cannot meet": {box.ClassInvalid, "policy.undo", func(in *activities.CreateInput) { in.Spec.Policy.Undo = box.Never }},
		"another workflow's workspace":           {box.ClassInvalid, "workflow id", func(in *activities.CreateInput) { in.WorkflowID = "box/other" }},
		"another provider's spec":                {box.ClassInvalid, "provider", func(in *activities.CreateInput) { in.Spec.Provider = "other" }},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			in := creating("e1-s1")
			row.change(&in)
			if failure := fails(r, row.class, r.boxes.Create, in); !strings.Contains(failure.Message, row.says) {
				t.Errorf("it says %q, want %q", failure.Message, row.says)
			}
			if n := r.calls(fakebox.OpCreate); n != 0 {
				t.Errorf("the provider was asked %d times", n)
			}
		})
	}
	t.Run("Scenario 76: a workspace that was deleted", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		if _, err := r.store.AppendLedger(t.Context(), workspace, exports.Entry{ID: "x", Kind: exports.KindDeleted, Epoch: 1}); err != nil {
			t.Fatal(err)
		}
		fails(r, box.ClassFailedPrecondition, r.boxes.Create, creating("e1-s1"))
		if n := r.calls(fakebox.OpCreate); n != 0 {
			t.Errorf("the provider was asked %d times", n)
		}
	})
	t.Run("a box of that name that is somebody else's", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		r.cloud.Plant(name)
		fails(r, box.ClassAlreadyExists, r.boxes.Create, creating("e1-s1"))
	})
}

func TestReadinessIsWaitedForAndBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.server.Break(agentservertest.Faults{Page: true})
	began := time.Now()
	out := do(r, r.boxes.Create, creating("e1-s1"))
	if took := time.Since(began); out.Ready || took < 600*time.Millisecond || took > 20*time.Second {
		t.Errorf("ready %v after %s, want not ready after 600ms", out.Ready, took)
	}
	target := activities.Target{Workspace: workspace, Ref: out.Observation.Ref, Step: "e1-s2"}
	fails(r, box.ClassUnavailable, r.boxes.AwaitReady, target)
	if told := r.beats.said(); !strings.HasPrefix(told, "its agent-server does not answer yet: ") {
		t.Errorf("while it waited it told %q", told)
	}
	r.server.Break(agentservertest.Faults{Ends: "start agent-server: no such file or directory"})
	failure := fails(r, box.ClassUnavailable, r.boxes.AwaitReady, target)
	if !strings.Contains(failure.Message, "started again 3 times, last: start agent-server: no such file") || !strings.Contains(failure.Message, out.Observation.Evidence) {
		t.Errorf("it does not say why, or what the provider knows (%q): %s", out.Observation.Evidence, failure.Message)
	}
	r.server.Break(agentservertest.Faults{})
	if out := do(r, r.boxes.AwaitReady, target); !out.Ready || out.Observation.Phase != box.PhaseRunning {
		t.Errorf("the answer is %+v", out)
	}
	r.cloud.Kill(name, "out of memory")
	fails(r, box.ClassFailedPrecondition, r.boxes.AwaitReady, target)
}

// A worker that was cut off, and not stopped, may come back at any time: the
// provider's side refuses what another one went past.
func TestAStepThatANewerOneOvertookIsRefused(t *testing.T) {
	t.Parallel()
	fence := func(step int) box.Fence { return box.Fence{Began: 1, Step: step} }
	r := newRig(t, nil)
	in := creating("e1-s1")
	in.Fence = fence(1)
	target := activities.Target{Workspace: workspace, Ref: do(r, r.boxes.Create, in).Observation.Ref, Step: "e1-s3", Fence: fence(3)}
	do(r, r.boxes.Suspend, target)
	late := target
	late.Step, late.Fence = "e1-s2", fence(2)
	fails(r, box.ClassConflict, r.boxes.Resume, activities.ResumeInput{Target: late})
	fails(r, box.ClassConflict, r.boxes.Delete, activities.DeleteInput{Target: late, Epoch: 1, WithoutHistory: true, By: "ana"})
	fails(r, box.ClassConflict, r.boxes.Create, in)
	if got := r.phase(); got != box.PhaseSuspended {
		t.Errorf("the box is %q", got)
	}
	target.Step, target.Fence = "e1-s4", fence(4)
	do(r, r.boxes.Resume, activities.ResumeInput{Target: target})
	fails(r, box.ClassConflict, r.boxes.Suspend, late)
	if got := r.phase(); got != box.PhaseRunning {
		t.Errorf("the box is %q", got)
	}
}

func TestSuspendAndResumeAreProofs(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	target := r.made("e1-s2")
	for range 2 { // already so is success
		if out := do(r, r.boxes.Suspend, target); out.Observation.Phase != box.PhaseSuspended {
			t.Fatalf("the answer is %+v", out)
		}
	}
	fails(r, box.ClassFailedPrecondition, r.boxes.Scan, target) // looking wakes nothing
	in := activities.ResumeInput{Target: target, Secrets: map[string]string{"TOKEN": "env:TOKEN"}}
	in.Step = "e1-s3"
	for range 2 {
		if out := do(r, r.boxes.Resume, in); !out.Ready || out.Observation.Ref.Name != name {
			t.Fatalf("the answer is %+v", out)
		}
	}
	if s, _ := r.cloud.Statement(name); s.Wakes != 1 {
		t.Errorf("it was woken %d times", s.Wakes)
	}
	want := []string{
		"create-intent/e1-s1-create-intent", "created/e1-s1-created", "suspend-intent/e1-s2-suspend-intent", "suspended/e1-s2-suspended",
		"resume-intent/e1-s3-resume-intent", "resumed/e1-s3-resumed",
	}
	if got := r.ledger(); !slices.Equal(got, want) {
		t.Errorf("the ledger holds %v", got)
	}
	in.Secrets["KEY"] = "env:MISSING"
	if failure := fails(r, box.ClassInvalid, r.boxes.Resume, in); !strings.Contains(failure.Message, "secrets.KEY: env:MISSING") {
		t.Errorf("it says %q", failure.Message)
	}
	r.cloud.Vanish(name)
	fails(r, box.ClassNotFound, r.boxes.Suspend, target)
	delete(in.Secrets, "KEY")
	fails(r, box.ClassNotFound, r.boxes.Resume, in)
	if out := do(r, r.boxes.Observe, target); out.Observation.Phase != box.PhaseGone {
		t.Errorf("observed is %+v", out.Observation)
	}
}

// A box that kept its memory wakes with the drain that came before its suspend,
// which would keep work out for minutes: whoever woke it gets in at once.
func TestAResumedBoxThatKeptItsMemoryLetsWorkIn(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} { // one without boxd knows no drain
		r := newRig(t, &agentservertest.Options{Plain: plain}, func(row *box.Capabilities) { row.MemoryKept = box.Yes })
		target := r.made("e1-s2")
		do(r, r.boxes.Quiesce, activities.QuiesceInput{Target: target})
		do(r, r.boxes.Suspend, target)
		target.Step = "e1-s3"
		if out := do(r, r.boxes.Resume, activities.ResumeInput{Target: target}); !out.Ready {
			t.Fatalf("the answer is %+v", out)
		}
		if !r.open() {
			t.Errorf("plain %t: the resumed box refuses work", plain)
		}
	}
}

// The provider's call is not cut by a cancellation: its outcome is recorded.
func TestASuspendThatWasBegunIsFinished(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	target := r.made("e1-s2")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out, err := run(ctx, r, r.boxes.Suspend, target)
	if err != nil || out.Observation.Phase != box.PhaseSuspended || r.phase() != box.PhaseSuspended {
		t.Errorf("%+v, %v; the provider says %s", out, err, r.phase())
	}
	if got := r.ledger(); got[len(got)-1] != "suspended/e1-s2-suspended" {
		t.Errorf("the ledger holds %v", got)
	}
}

// A lost answer of any call is found out by the next one.
func TestLostAnswersAreSafeToRepeat(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	target := r.made("e1-s2")
	r.cloud.Inject(fakebox.Fault{Op: fakebox.OpSuspend, Lost: true})
	fails(r, box.ClassUnavailable, r.boxes.Suspend, target)
	do(r, r.boxes.Suspend, target)
	r.cloud.Inject(fakebox.Fault{Op: fakebox.OpResume, Lost: true})
	fails(r, box.ClassUnavailable, r.boxes.Resume, activities.ResumeInput{Target: target})
	do(r, r.boxes.Resume, activities.ResumeInput{Target: target})
	r.cloud.Inject(fakebox.Fault{Op: fakebox.OpDelete, Lost: true})
	in := activities.DeleteInput{Target: target, Spec: spec(), Epoch: 1, WithoutHistory: true, By: "ana"}
	fails(r, box.ClassUnavailable, r.boxes.Delete, in)
	if closed, _, err := r.store.Closed(t.Context(), workspace); closed || err != nil {
		t.Fatalf("a deletion without proof closed the workspace: %v", err)
	}
	if out := do(r, r.boxes.Delete, in); out.Observation.Phase != box.PhaseGone {
		t.Errorf("the answer is %+v", out.Observation)
	}
	if s, _ := r.cloud.Statement(name); s.Wakes != 1 {
		t.Errorf("it was woken %d times", s.Wakes)
	}
}

// Heartbeats go on as long as a step lasts, and end with it: synctest fails the
// test when a goroutine is left behind.
func TestHeartbeatsEndWithTheirStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRigAt(t, "http://127.0.0.1:1")
		target := activities.Target{Workspace: workspace, Ref: box.Ref{Provider: "fake", ID: "fb-1", Name: name, Epoch: 1, Fingerprint: "fakebox"}, Step: "s"}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r.cloud.Inject(fakebox.Fault{Op: fakebox.OpObserve, Hang: true})
		_, err := run(ctx, r, r.boxes.Observe, target)
		if failure := activities.FailureOf(err); failure.Class != box.ClassDeadlineExceeded {
			t.Errorf("class %s: %v", failure.Class, err)
		}
		beats := r.beats.count()
		if beats < 1 {
			t.Error("a step of a minute sent no heartbeat")
		}
		time.Sleep(time.Hour)
		if r.beats.count() != beats {
			t.Error("a step that is over still sends heartbeats")
		}
	})
}
