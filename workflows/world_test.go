package workflows_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workflows"
)

// fakeBoxes stands in for activities.Boxes under the same method names: a box
// and its store in memory, on the test environment's clock.
type fakeBoxes struct {
	mu       sync.Mutex
	now      func() time.Time
	log      []box.StepKind
	marks    []*box.Marks // of record steps
	notices  []box.Posting
	phase    box.Phase
	creates  int
	events   int
	lastUse  time.Time
	running  int
	deaf     bool
	fail     map[box.StepKind]error
	hang     map[box.StepKind]bool // until cancelled
	badStore bool
	archive  box.ArchiveReceipt // what an export holds of the files
	drained  bool
	newest   box.Fence // of the steps that changed the box
	epoch    int       // of the box that is there

	beats map[string]time.Duration // heartbeat time-out of each activity that ran

	cancelled int
	released  chan struct{}

	listeners []box.Listener
	posts     []box.Posting // of lifecycle events

	secrets []box.SecretsPolicy // of the exports
	refuse  func(receiver string, e box.Event) bool
}

func newFakeBoxes() *fakeBoxes {
	return &fakeBoxes{phase: box.PhaseGone, fail: map[box.StepKind]error{}, beats: map[string]time.Duration{}, hang: map[box.StepKind]bool{}, released: make(chan struct{})}
}

func (b *fakeBoxes) step(ctx context.Context, kind box.StepKind, inside bool) error {
	b.mu.Lock()
	b.beats[string(kind)] = activity.GetInfo(ctx).HeartbeatTimeout
	b.log = append(b.log, kind)
	err, hang := b.fail[kind], b.hang[kind]
	if err == nil && inside && (b.deaf || b.phase != box.PhaseRunning) {
		err = temporal.NewNonRetryableApplicationError("its agent-server does not answer", string(box.ClassUnavailable), nil)
	}
	b.mu.Unlock()
	if !hang {
		return err
	}
	// The test environment does not cancel an activity's context; it tells its
	// listener, which ends the wait.
	select {
	case <-b.released:
		return temporal.NewCanceledError()
	case <-time.After(20 * time.Second):
	}
	return errors.New("nobody cancelled the step")
}

// admit is what a provider does that keeps fences.
func (b *fakeBoxes) admit(fence box.Fence) error {
	if fence.IsZero() || fence.Before(b.newest) {
		return temporal.NewNonRetryableApplicationError("the fence of the steps went back: "+fence.String(), string(box.ClassConflict), nil)
	}
	b.newest = fence
	return nil
}

func (b *fakeBoxes) seen() box.Observation {
	n := max(b.epoch, 1)
	ref := box.Ref{Provider: "local", ID: fmt.Sprint("id-", n), Name: fmt.Sprint("bk-0-demo-", n), Epoch: n, Fingerprint: "here"}
	return box.Observation{Ref: ref, Phase: b.phase, Evidence: "the provider says " + string(b.phase)}
}

func (b *fakeBoxes) digest() string {
	return box.HistoryDigest([]box.ConversationMark{{ID: "c", Events: b.events}})
}

func (b *fakeBoxes) use() *box.Use {
	return &box.Use{IdleFor: box.Span(b.now().Sub(b.lastUse)), Running: b.running, Digest: b.digest(), Conversations: 1, Events: b.events}
}

func (b *fakeBoxes) Create(ctx context.Context, in activities.CreateInput) (box.Outcome, error) {
	if err := b.admit(in.Fence); err != nil {
		return box.Outcome{}, err
	}
	if err := b.step(ctx, box.StepCreate, false); err != nil {
		return box.Outcome{}, err
	}
	if b.creates++; in.Epoch > 1 {
		b.events = 0
	}
	b.epoch = in.Epoch
	b.phase, b.lastUse = box.PhaseRunning, b.now()
	return box.Outcome{Observation: b.seen(), Ready: true}, nil
}

func (b *fakeBoxes) Adopt(ctx context.Context, in activities.AdoptInput) (box.Outcome, error) {
	if err := b.step(ctx, box.StepAdopt, false); err != nil {
		return box.Outcome{}, err
	}
	if in.BoxID == "foreign" {
		return box.Outcome{}, temporal.NewNonRetryableApplicationError("it is marked as another workspace's; adopt it there", string(box.ClassFailedPrecondition), nil)
	}
	b.epoch, b.phase, b.lastUse = in.Epoch, box.PhaseRunning, b.now()
	return box.Outcome{Observation: b.seen(), Ready: true}, nil
}

func (b *fakeBoxes) Restore(ctx context.Context, in activities.RestoreInput) (box.Outcome, error) {
	if err := b.step(ctx, box.StepRestore, true); err != nil {
		return box.Outcome{}, err
	}
	b.events = in.Receipt.Events
	return box.Outcome{Use: b.use()}, nil
}

func (b *fakeBoxes) Abandon(ctx context.Context, _ activities.AbandonInput) (box.Outcome, error) {
	return box.Outcome{}, b.step(ctx, box.StepAbandon, false)
}

func (b *fakeBoxes) Observe(ctx context.Context, _ activities.Target) (box.Outcome, error) {
	return box.Outcome{Observation: b.seen()}, b.step(ctx, box.StepObserve, false)
}

func (b *fakeBoxes) AwaitReady(ctx context.Context, _ activities.Target) (box.Outcome, error) {
	return box.Outcome{Observation: b.seen(), Ready: true}, b.step(ctx, box.StepAwaitReady, true)
}

func (b *fakeBoxes) Scan(ctx context.Context, _ activities.Target) (box.Outcome, error) {
	return box.Outcome{Use: b.use()}, b.step(ctx, box.StepScan, true)
}

func (b *fakeBoxes) Quiesce(ctx context.Context, in activities.QuiesceInput) (box.Outcome, error) {
	if err := b.step(ctx, box.StepQuiesce, true); err != nil {
		return box.Outcome{}, err
	}
	if in.IdleFor > 0 && (b.running > 0 || b.now().Sub(b.lastUse) < in.IdleFor.Std()) {
		return box.Outcome{Use: b.use(), Busy: "a conversation is running in it"}, nil
	}
	b.drained = true
	return box.Outcome{Use: b.use()}, nil
}

func (b *fakeBoxes) Undrain(ctx context.Context, _ activities.Target) (box.Outcome, error) {
	b.drained = false
	return box.Outcome{}, b.step(ctx, box.StepUndrain, true)
}

func (b *fakeBoxes) Reclaim(ctx context.Context, in activities.ReclaimInput) (box.Outcome, error) {
	return box.Outcome{Reclaim: box.ReclaimReport{PlanID: "p", DryRun: in.Request.DryRun, FreedBytes: 1 << 20, RemovedBytes: 1 << 20}}, b.step(ctx, box.StepReclaim, true)
}

func (b *fakeBoxes) Export(ctx context.Context, in activities.ExportInput) (box.Outcome, error) {
	b.secrets = append(b.secrets, in.Secrets)
	if err := b.step(ctx, box.StepExport, true); err != nil {
		return box.Outcome{}, err
	}
	return box.Outcome{Receipt: box.Receipt{
		Workspace: in.Workspace, Epoch: max(b.epoch, 1), Key: "k-" + in.Step, SHA256: "s", Conversations: 1, Events: b.events, Digest: b.digest(),
		Archive: b.archive,
	}}, nil
}

func (b *fakeBoxes) Suspend(ctx context.Context, in activities.Target) (box.Outcome, error) {
	if err := b.admit(in.Fence); err != nil {
		return box.Outcome{}, err
	}
	if err := b.step(ctx, box.StepSuspend, false); err != nil {
		return box.Outcome{}, err
	}
	b.phase, b.drained = box.PhaseSuspended, false
	return box.Outcome{Observation: b.seen()}, nil
}

func (b *fakeBoxes) Resume(ctx context.Context, in activities.ResumeInput) (box.Outcome, error) {
	if err := b.admit(in.Fence); err != nil {
		return box.Outcome{}, err
	}
	if err := b.step(ctx, box.StepResume, false); err != nil {
		return box.Outcome{}, err
	}
	b.phase, b.lastUse = box.PhaseRunning, b.now()
	return box.Outcome{Observation: b.seen(), Ready: true}, nil
}

func (b *fakeBoxes) SendNotice(ctx context.Context, in activities.NoticeInput) (box.Outcome, error) {
	if len(in.To) > 0 {
		return b.post(in.Posting), nil
	}
	b.notices = append(b.notices, in.Posting)
	return box.Outcome{}, b.step(ctx, box.StepNotify, false)
}

func (b *fakeBoxes) Record(ctx context.Context, in activities.Target) (box.Outcome, error) {
	b.marks = append(b.marks, in.Marks)
	return box.Outcome{}, b.step(ctx, box.StepRecord, false)
}

func (b *fakeBoxes) VerifyExport(ctx context.Context, _ activities.DeleteInput) (box.Outcome, error) {
	problem := ""
	if b.badStore {
		problem = "an object is missing"
	}
	return box.Outcome{Problem: problem}, b.step(ctx, box.StepVerifyExport, false)
}

func (b *fakeBoxes) Delete(ctx context.Context, in activities.DeleteInput) (box.Outcome, error) {
	if err := b.admit(in.Fence); err != nil {
		return box.Outcome{}, err
	}
	if err := b.step(ctx, box.StepDelete, false); err != nil {
		return box.Outcome{}, err
	}
	b.phase = box.PhaseGone
	return box.Outcome{Observation: b.seen()}, nil
}

// play is one scenario: what callers do, and when, after the start.
type play struct {
	t       *testing.T
	box     *fakeBoxes
	spec    box.Spec
	cadence int // turns per run; zero for the engine's own suggestion
	rebuilt *box.Facts
	moves   []move
	prepare func(*testsuite.TestWorkflowEnvironment) // of each run
	runs    int
	start   time.Time
	err     error
	now     time.Time // end of the last run
	end     time.Duration
	epochs  []int64 // of the search attribute, as it was written

	carried []box.Input                                  // what each run handed to the next
	acts    any                                          // the activities, if not box
	each    func(env *testsuite.TestWorkflowEnvironment) // called before each run
	env     *testsuite.TestWorkflowEnvironment           // of the present run
}

type move struct {
	at   time.Duration
	make func(*testsuite.TestWorkflowEnvironment)
	done *bool
}

func newPlay(t *testing.T) *play {
	t.Helper()
	return &play{
		t: t, box: newFakeBoxes(), start: time.Date(2026, 3, 1, 18, 0, 0, 0, time.UTC),
		spec: box.Spec{Version: box.WireVersion, Workspace: "demo", Owner: "ana", Provider: "local"},
	}
}

func (p *play) at(after time.Duration, do func(*testsuite.TestWorkflowEnvironment)) {
	p.moves = append(p.moves, move{at: after, make: do, done: new(bool)})
}

// stop ends the scenario at a time, without telling the workflow.
func (p *play) stop(after time.Duration) { p.end = after }

func (p *play) update(after time.Duration, name string, r any, accepted func(any, error)) {
	p.at(after, func(env *testsuite.TestWorkflowEnvironment) {
		env.UpdateWorkflow(name, "", &testsuite.TestUpdateCallback{
			OnAccept: func() {},
			OnReject: func(err error) {
				if accepted == nil {
					p.t.Errorf("%s was refused: %v", name, err)
					return
				}
				accepted(nil, err)
			},
			OnComplete: func(answer any, err error) {
				if accepted != nil {
					accepted(answer, err)
				} else if err != nil {
					p.t.Errorf("%s failed: %v", name, err)
				}
			},
		}, r)
	})
}

func (p *play) signal(after time.Duration, name string, s any) {
	p.at(after, func(env *testsuite.TestWorkflowEnvironment) { env.SignalWorkflow(name, s) })
}

// run plays the scenario to its end, over as many runs as it takes, and returns
// what the workflow ended with.
func (p *play) run() error {
	p.t.Helper()
	in := box.Input{Spec: p.spec, TurnsPerRun: p.cadence, Rebuilt: p.rebuilt}
	now := p.start
	for p.runs = 1; ; p.runs++ {
		if p.runs > 2000 {
			p.t.Fatal("the workflow continues as new for ever")
		}
		env := newEnvironment(&tellsWhoListens{who: p.box.listeners})
		env.SetStartTime(now)
		env.SetStartWorkflowOptions(startOptions(p.spec.Workspace))
		env.RegisterWorkflowWithOptions(workflows.Box, workflow.RegisterOptions{Name: box.WorkflowType})
		if p.acts == nil {
			p.acts = p.box
		}
		env.RegisterActivity(p.acts)
		if p.prepare != nil {
			p.prepare(env)
		}
		env.SetOnActivityCanceledListener(func(*activity.Info) {
			p.box.cancelled++
			close(p.box.released)
		})
		env.OnUpsertTypedSearchAttributes(mock.MatchedBy(func(written temporal.SearchAttributes) bool {
			epoch, ok := written.GetInt64(temporal.NewSearchAttributeKeyInt64(box.SearchEpoch))
			if n := len(p.epochs); ok && (n == 0 || p.epochs[n-1] != epoch) { // a matcher is asked more than once
				p.epochs = append(p.epochs, epoch)
			}
			return true
		})).Return(nil)
		p.box.now, p.env = env.Now, env
		if p.each != nil {
			p.each(env)
		}
		if p.end > 0 {
			env.SetWorkflowRunTimeout(max(p.start.Add(p.end).Sub(now), time.Millisecond))
		}
		for _, m := range p.moves {
			if *m.done {
				continue
			}
			env.RegisterDelayedCallback(func() {
				*m.done = true
				m.make(env)
			}, max(p.start.Add(m.at).Sub(now), 0))
		}
		env.ExecuteWorkflow(box.WorkflowType, in)
		now = env.Now()
		p.now = now
		err := env.GetWorkflowError()
		again, ok := errors.AsType[*workflow.ContinueAsNewError](err)
		if !ok {
			p.err = err
			return err
		}
		in = box.Input{}
		if err := converter.GetDefaultDataConverter().FromPayloads(again.Input, &in); err != nil {
			p.t.Fatal(err)
		}
		p.carried = append(p.carried, in)
	}
}

// newEnvironment is a workflow environment that a busy machine does not fail:
// the default bounds are a second for a task and three for a test.
func newEnvironment(interceptors ...interceptor.WorkerInterceptor) *testsuite.TestWorkflowEnvironment {
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(time.Minute)
	env.SetWorkerOptions(worker.Options{DeadlockDetectionTimeout: 30 * time.Second, Interceptors: interceptors})
	return env
}
