package workflows_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workflows"
)

const (
	minute = time.Minute
	day    = 24 * time.Hour
)

func startOptions(workspace string) client.StartWorkflowOptions {
	return client.StartWorkflowOptions{ID: box.WorkflowID(workspace), TaskQueue: box.TaskQueue}
}

func id(name string) box.Request { return box.Request{ID: name, By: "ana"} }

// statusOf asks the status query at a time.
func statusOf(p *play, after time.Duration, check func(box.Status)) {
	p.at(after, func(env *testsuite.TestWorkflowEnvironment) {
		value, err := env.QueryWorkflow(box.QueryStatus)
		if err != nil {
			p.t.Error(err)
			return
		}
		var s box.Status
		if err := value.Get(&s); err != nil {
			p.t.Error(err)
			return
		}
		check(s)
	})
}

// wholeLife is the scenario of the demo: work, idle, resume by connect, idle,
// paused TTL, notice, confirmation, deletion.
func wholeLife(t *testing.T, cadence int) *play {
	t.Helper()
	p := newPlay(t)
	p.cadence = cadence
	playWholeLife(p)
	if err := p.run(); err != nil {
		t.Fatalf("the workflow ended with %v", err)
	}
	return p
}

func playWholeLife(p *play) {
	t := p.t
	p.update(minute, box.UpdateConnect, box.ConnectRequest{Request: id("c1"), HolderID: "tab"}, nil)
	p.at(minute+time.Second, func(env *testsuite.TestWorkflowEnvironment) { p.box.events, p.box.lastUse = 3, env.Now() })
	p.signal(2*minute, box.SignalRelease, box.ReleaseRequest{HolderID: "tab"})
	p.update(time.Hour, box.UpdateConnect, box.ConnectRequest{Request: id("c2"), HolderID: "tab"}, nil)
	p.signal(time.Hour+minute, box.SignalRelease, box.ReleaseRequest{HolderID: "tab"})
	var token string
	p.update(35*day, box.UpdateRequestDelete, box.RequestDeleteAsk{Request: id("d1")}, func(answer any, err error) {
		if err != nil {
			t.Errorf("request-delete: %v", err)
			return
		}
		loss, ok := answer.(box.Loss)
		if !ok || !loss.Covered || loss.Events != 3 {
			t.Errorf("loss %+v", answer)
		}
		token = loss.Token
	})
	p.at(35*day+minute, func(env *testsuite.TestWorkflowEnvironment) {
		env.SignalWorkflow(box.SignalConfirmDelete, box.ConfirmDelete{Token: token, By: "ana"})
	})
}

func wantLife() []box.StepKind {
	return []box.StepKind{
		box.StepCreate, box.StepQuiesce, box.StepReclaim, box.StepExport, box.StepSuspend, box.StepResume,
		box.StepQuiesce, box.StepReclaim, box.StepSuspend, box.StepNotify,
	}
}

func TestWholeLifeEndsAlikeAtEveryCadence(t *testing.T) {
	t.Parallel()
	for _, cadence := range []int{0, 1, 2, 3, 5, 7, 1000} {
		p := wholeLife(t, cadence)
		got := p.box.log
		if !reflect.DeepEqual(got[:len(wantLife())], wantLife()) {
			t.Fatalf("cadence %d: steps %v\nwant first %v", cadence, got, wantLife())
		}
		if tail := got[len(got)-2:]; !reflect.DeepEqual(tail, []box.StepKind{box.StepVerifyExport, box.StepDelete}) {
			t.Fatalf("cadence %d: it ended with %v", cadence, tail)
		}
		for _, k := range got[len(wantLife()) : len(got)-2] {
			if k != box.StepNotify {
				t.Fatalf("cadence %d: %s between the notice and the deletion: %v", cadence, k, got)
			}
		}
		if p.box.phase != box.PhaseGone || p.box.creates != 1 {
			t.Fatalf("cadence %d: phase %s after %d creates", cadence, p.box.phase, p.box.creates)
		}
		if end := p.now.Sub(p.start); end < 36*day || end > 36*day+2*minute {
			t.Fatalf("cadence %d: it ended after %s, want a day of undo after the confirmation", cadence, end)
		}
		if cadence == 1 && p.runs < 10 {
			t.Fatalf("cadence 1 made only %d runs", p.runs)
		}
	}
}

func TestAnArrivingUserCancelsAnAutomaticSuspend(t *testing.T) {
	t.Parallel()
	for _, during := range []box.StepKind{box.StepReclaim, box.StepExport} {
		p := newPlay(t)
		p.box.hang[during] = true
		arrive := 15*minute + time.Second // the step is under way from 15 minutes on
		p.update(arrive, box.UpdateConnect, box.ConnectRequest{Request: id("c1"), HolderID: "tab", Lease: box.Duration(time.Hour)}, nil)
		statusOf(p, 30*minute, func(s box.Status) {
			if s.State != box.StateRunning || p.box.drained || p.box.phase != box.PhaseRunning {
				t.Errorf("during %s: state %s, drained %v, phase %s", during, s.State, p.box.drained, p.box.phase)
			}
			if s.Failure != nil {
				t.Errorf("a cancellation counts as a failure: %+v", s.Failure)
			}
		})
		p.stop(31 * minute)
		_ = p.run()
		if p.box.cancelled != 1 {
			t.Errorf("during %s: the step was cancelled %d times", during, p.box.cancelled)
		}
		for _, k := range p.box.log {
			if k == box.StepSuspend {
				t.Errorf("it was suspended under the user's hands: %v", p.box.log)
			}
		}
	}
}

func TestUpdatesAreRefusedWithTheNextStep(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	refused := func(name, want string, class box.Class) func(any, error) {
		return func(_ any, err error) {
			app, ok := err.(*temporal.ApplicationError) //nolint:errorlint // the SDK hands it over bare
			if !ok || box.Class(app.Type()) != class || !strings.Contains(app.Message(), want) {
				t.Errorf("%s: got %v, want %s with %q", name, err, class, want)
			}
		}
	}
	p.update(minute, box.UpdateConnect, box.ConnectRequest{HolderID: "x"}, refused("no id", "request_id", box.ClassInvalid))
	p.update(minute, box.UpdateRenew, box.RenewRequest{Request: id("r"), HolderID: "x"}, refused("gone hold", "connect again", box.ClassNotFound))
	p.update(minute, box.UpdateSetPolicy, box.SetPolicyAsk{Request: id("p"), Policy: box.Policy{OnExpiry: box.OnExpiryDelete}}, refused("late delete", "policy.on_expiry", box.ClassInvalid))
	p.update(20*minute, box.UpdateReclaim, box.ReclaimAsk{Request: id("q")}, refused("suspended", "connect first", box.ClassFailedPrecondition))
	p.stop(21 * minute)
	_ = p.run()
}

func TestARepeatedRequestGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	for _, cadence := range []int{0, 1} {
		p := newPlay(t)
		p.cadence = cadence
		var answers []any
		keep := func(answer any, err error) {
			if err != nil {
				t.Error(err)
			}
			answers = append(answers, answer)
		}
		for i := range 3 {
			at := minute + time.Duration(i)*10*time.Second
			p.update(at, box.UpdateReclaim, box.ReclaimAsk{Request: id("same")}, keep)
		}
		p.stop(2 * minute)
		_ = p.run()
		reclaims := 0
		for _, k := range p.box.log {
			if k == box.StepReclaim {
				reclaims++
			}
		}
		if reclaims != 1 || len(answers) != 3 || !reflect.DeepEqual(answers[0], answers[2]) {
			t.Errorf("cadence %d: %d passes, answers %v", cadence, reclaims, answers)
		}
	}
}

func TestConfirmationWithoutAWorkerIsNotLost(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	var token string
	p.update(minute, box.UpdateRequestDelete, box.RequestDeleteAsk{Request: id("d")}, func(answer any, err error) {
		if err != nil {
			t.Error(err)
			return
		}
		loss, _ := answer.(box.Loss)
		token = loss.Token
	})
	p.at(2*minute, func(env *testsuite.TestWorkflowEnvironment) {
		env.SignalWorkflow(box.SignalConfirmDelete, box.ConfirmDelete{Token: "another", By: "eve"})
		env.SignalWorkflow(box.SignalConfirmDelete, box.ConfirmDelete{Token: token, By: "ana"})
	})
	if err := p.run(); err != nil {
		t.Fatal(err)
	}
	want := []box.StepKind{box.StepCreate, box.StepScan, box.StepQuiesce, box.StepExport, box.StepVerifyExport, box.StepDelete}
	if !reflect.DeepEqual(p.box.log, want) {
		t.Fatalf("steps %v, want %v", p.box.log, want)
	}
}

func TestABadStoreBlocksTheDeletion(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	p.box.badStore = true
	var token string
	p.update(20*minute, box.UpdateRequestDelete, box.RequestDeleteAsk{Request: id("d")}, func(answer any, err error) {
		if err == nil {
			loss, _ := answer.(box.Loss)
			token = loss.Token
		}
	})
	p.at(21*minute, func(env *testsuite.TestWorkflowEnvironment) {
		env.SignalWorkflow(box.SignalConfirmDelete, box.ConfirmDelete{Token: token, By: "ana"})
	})
	statusOf(p, 2*time.Hour, func(s box.Status) {
		if s.State != box.StateDeleteBlocked || p.box.phase != box.PhaseSuspended {
			t.Errorf("state %s, phase %s, steps %v", s.State, p.box.phase, p.box.log)
		}
	})
	p.stop(3 * time.Hour)
	_ = p.run()
}

func TestAKilledBoxIsReadAgainAndSettled(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	p.at(minute, func(env *testsuite.TestWorkflowEnvironment) {
		p.box.phase = box.PhaseFailed
		env.SignalWorkflow(box.SignalObserved, box.ObservedSignal{ID: "w", Observation: p.box.seen()})
	})
	statusOf(p, 2*minute, func(s box.Status) {
		if s.State != box.StateSuspended || s.Reason.Code != box.ReasonWall && s.Reason.Code != box.ReasonEndedByItself {
			t.Errorf("state %s because %+v", s.State, s.Reason)
		}
	})
	p.stop(3 * minute)
	_ = p.run()
	want := []box.StepKind{box.StepCreate, box.StepObserve, box.StepSuspend}
	if !reflect.DeepEqual(p.box.log, want) {
		t.Errorf("steps %v, want %v", p.box.log, want)
	}
}

func TestACancelledWorkflowKeepsItsBox(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	p.at(minute, func(env *testsuite.TestWorkflowEnvironment) { env.CancelWorkflow() })
	statusOf(p, 30*minute, func(s box.Status) {
		if s.State != box.StateSuspended || p.box.phase != box.PhaseSuspended {
			t.Errorf("after a cancellation: state %s, phase %s", s.State, p.box.phase)
		}
	})
	p.stop(31 * minute)
	_ = p.run()
	if len(p.box.log) < 5 {
		t.Errorf("the life stopped at the cancellation: %v", p.box.log)
	}
}

func TestATakenBackDeletionWhileTheExportIsReadBack(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	var token string
	p.update(20*minute, box.UpdateRequestDelete, box.RequestDeleteAsk{Request: id("d")}, func(answer any, err error) {
		if err != nil {
			t.Error(err)
		}
		loss, _ := answer.(box.Loss)
		token = loss.Token
	})
	p.box.hang[box.StepVerifyExport] = true
	p.at(21*minute, func(env *testsuite.TestWorkflowEnvironment) {
		env.SignalWorkflow(box.SignalConfirmDelete, box.ConfirmDelete{Token: token, By: "ana"})
	})
	p.signal(21*minute+time.Second, box.SignalCancelDelete, box.CancelDelete{By: "ana"})
	statusOf(p, 30*minute, func(s box.Status) {
		if s.State != box.StateSuspended || s.Deletion != nil || p.box.phase != box.PhaseSuspended {
			t.Errorf("state %s, phase %s, deletion %+v", s.State, p.box.phase, s.Deletion)
		}
	})
	p.stop(31 * minute)
	_ = p.run()
}

func TestScenario8APinOutlivesItsWorkers(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	p.cadence = 1 // each turn in a run of its own, with nothing but what was carried
	p.update(minute, box.UpdateFreeze, box.SwitchAsk{Request: id("f"), On: true}, nil)
	for i := range 20 {
		p.signal(time.Duration(i+2)*time.Hour, box.SignalActivity, box.ActivitySignal{Origin: "noise"})
	}
	statusOf(p, 2*day, func(s box.Status) {
		if s.State != box.StateRunning || !slices.Contains(s.Flags, "frozen") || p.runs < 10 {
			t.Errorf("after %d runs: state %s, flags %v", p.runs, s.State, s.Flags)
		}
	})
	p.stop(2*day + minute)
	_ = p.run()
}

// The engine was restored from a backup and the boxes were not: they have seen
// steps that the engine forgot. Its workflow owns them all the same.
func TestARestoredEngineGetsItsBoxesBack(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	p.at(time.Second, func(_ *testsuite.TestWorkflowEnvironment) {
		p.box.newest = box.Fence{Began: p.box.newest.Began, Step: 1000}
	})
	p.update(minute, box.UpdateSuspend, id("s1"), nil)
	statusOf(p, 10*minute, func(s box.Status) {
		if s.State != box.StateSuspended {
			t.Errorf("it is %s: %+v", s.State, s.Failure)
		}
	})
	p.stop(11 * minute)
	_ = p.run()
	if p.box.phase != box.PhaseSuspended {
		t.Errorf("the box is %s", p.box.phase)
	}
}

// A worker that is older than what was carried, after a downgrade, must not end
// the workflow: its box would have no owner. The task fails and is tried again.
func TestWhatCannotBeReadEndsNoContinuedRun(t *testing.T) {
	t.Parallel()
	spec := map[string]any{"version": 1, "workspace": "demo", "provider": "local"}
	for name, input := range map[string]map[string]any{
		"of another form":    {"spec": spec, "carried": "a text"},
		"of another version": {"spec": spec, "carried": map[string]any{"spec": map[string]any{"version": 2, "workspace": "demo", "provider": "local"}}},
		"a first start":      {"spec": "a text"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnvironment()
			env.RegisterWorkflowWithOptions(workflows.Box, workflow.RegisterOptions{Name: box.WorkflowType})
			env.ExecuteWorkflow(box.WorkflowType, input)
			err := env.GetWorkflowError()
			panicked := (*temporal.PanicError)(nil)
			if got := errors.As(err, &panicked); err == nil || got != (name != "a first start") {
				t.Errorf("it ends with %v", err)
			}
		})
	}
}

// A person who wants to delete a box is answered while a long pass goes on in
// it, from the last look, and their confirmation ends the pass.
func TestADeletionIsShownWhileAPassGoesOn(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	p.box.hang[box.StepReclaim] = true
	ended := false
	p.update(minute, box.UpdateReclaim, box.ReclaimAsk{Request: id("long")}, func(any, error) { ended = true })
	p.update(minute+50*time.Millisecond, box.UpdateRequestDelete, box.RequestDeleteAsk{Request: id("d")}, func(answer any, err error) {
		if err != nil || ended {
			t.Errorf("%v; the pass had ended: %v", err, ended)
			return
		}
		loss, _ := answer.(box.Loss)
		if loss.Token == "" || loss.ScanAge != box.Never {
			t.Errorf("loss %+v", loss)
		}
		p.box.mu.Lock()
		p.box.hang[box.StepReclaim] = false
		p.box.mu.Unlock()
		p.env.SignalWorkflow(box.SignalConfirmDelete, box.ConfirmDelete{Token: loss.Token, By: "ana", WithoutHistory: true})
	})
	if err := p.run(); err != nil {
		t.Fatal(err)
	}
	if p.box.phase != box.PhaseGone || slices.Contains(p.box.log, box.StepScan) {
		t.Errorf("phase %s, steps %v", p.box.phase, p.box.log)
	}
}

// TestAnExportIsToldThePolicyForSecrets takes the one of the spec, and then the
// one that somebody set.
func TestAnExportIsToldThePolicyForSecrets(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	p.spec.Policy.ExportSecrets = box.SecretsRedact
	p.update(minute, box.UpdateExport, id("e1"), nil)
	p.update(2*minute, box.UpdateSetPolicy, box.SetPolicyAsk{Request: id("p1"), Policy: box.Policy{ExportSecrets: box.SecretsBlock}}, nil)
	p.at(2*minute+time.Second, func(*testsuite.TestWorkflowEnvironment) { p.box.events++ })
	p.update(3*minute, box.UpdateExport, id("e2"), nil)
	p.stop(4 * minute)
	_ = p.run()
	if want := []box.SecretsPolicy{box.SecretsRedact, box.SecretsBlock}; !slices.Equal(p.box.secrets, want) {
		t.Errorf("the exports were told %v, want %v", p.box.secrets, want)
	}
}
