// Package workers puts workflows and activities onto their task queues: one
// queue for the workflows, and one per provider instance for its activities, so
// that a provider's credentials live only in the workers that serve its queue.
// It also carries what providers say by themselves to the workflows.
//
// The mains start it. It never decides anything about a box.
package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/serviceerror"
	workflowservicepb "go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/notices"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/workflows"
)

// Options is what the workers of one process need.
type Options struct {
	// Installation is whose boxes these workers keep; Temporal shows it with each
	// worker. Empty tells nobody.
	Installation string
	// Namespace is the client's; empty means Temporal's "default".
	Namespace string
	// Providers are the instances whose queues this process serves.
	Providers []*providers.Provider
	// Store holds exports and ledgers. Close it after Stop.
	Store *exports.Store
	// Notify carries notices and events; nil writes notices to the log.
	Notify activities.Notifier
	// Secret resolves a reference of a spec.
	Secret func(reference string) (box.Secret, error)
	Steps  activities.Recorder // nil counts nothing
	Logger *zap.Logger
	// Progress hears of transfers; nil for nobody.
	Progress func(workspace string, p exports.Progress)
	// Transfers is how many histories this process moves at a time, over all of its
	// providers: each may spool a conversation. Zero means 8.
	Transfers int
	// NoWorkflows serves the activities only.
	NoWorkflows bool
}

// Bounds of a process's work.
const (
	stopWait    = 30 * time.Second
	transfers   = 8   // unless [Options] say otherwise
	running     = 200 // activities at a time per instance: most of them wait for a provider or a box
	throttle    = 3 * time.Second
	signalBound = 30 * time.Second
	// stickyBound is how long a task waits for the worker that ran the workflow
	// last. A shorter one sends the tasks of a herd to the back of the other queue,
	// where they wait for several times as long (docs/benchmarks.md); after a crash
	// tell does not wait for it.
	stickyBound   = 10 * time.Second
	deadlockBound = 10 * time.Second // a busy machine must not look like a stuck workflow
	sweeps        = 1                // passes over the export store at a time
)

// Set is the running workers of one process. The zero value is not usable.
type Set struct {
	client  client.Client
	opts    Options
	workers []worker.Worker
	started []worker.Worker
	stop    context.CancelFunc
	failed  chan error
	watches sync.WaitGroup
}

// New makes the workers. It contacts nobody. An unusable option is Invalid.
func New(c client.Client, opts Options) (*Set, error) {
	switch {
	case opts.Store == nil:
		return nil, box.Invalidf("exports", "the workers need an export store")
	case opts.Secret == nil:
		return nil, box.Invalidf("secrets", "the workers need a way to resolve references")
	case opts.Transfers < 0:
		return nil, box.Invalidf("transfers", "must not be negative")
	case len(opts.Providers) == 0 && opts.NoWorkflows:
		return nil, box.Invalidf("providers", "there is nothing to serve: name a provider instance")
	}
	if opts.Logger == nil {
		opts.Logger = zap.NewNop()
	}
	if opts.Namespace == "" {
		opts.Namespace = client.DefaultNamespace
	}
	if opts.Notify == nil {
		opts.Notify = notices.New(notices.Options{Logger: opts.Logger})
	}
	identity := "" // the SDK's own
	if opts.Installation != "" {
		identity = Identity(opts.Installation)
	}
	s := &Set{client: c, opts: opts, failed: make(chan error, 1)}
	if !opts.NoWorkflows {
		w := worker.New(c, box.TaskQueue, worker.Options{
			Identity:          identity,
			WorkerStopTimeout: stopWait, DeadlockDetectionTimeout: deadlockBound, DisableRegistrationAliasing: true,
			LocalActivityWorkerOnly: true, StickyScheduleToStartTimeout: stickyBound, OnFatalError: s.fail,
		})
		Register(w)
		s.workers = append(s.workers, w)
		store := worker.New(c, box.StoreQueue, worker.Options{
			Identity:          identity,
			WorkerStopTimeout: stopWait, DisableWorkflowWorker: true, DisableRegistrationAliasing: true, OnFatalError: s.fail,
			MaxConcurrentActivityExecutionSize: sweeps, MaxConcurrentActivityTaskPollers: sweeps,
		})
		store.RegisterActivity(&activities.Exports{Store: opts.Store, Notify: opts.Notify})
		s.workers = append(s.workers, store)
	}
	seen, slots := map[string]bool{}, make(activities.Slots, cmp.Or(opts.Transfers, transfers))
	for _, p := range opts.Providers {
		if seen[p.Name()] {
			return nil, box.Invalidf("providers."+p.Name(), "is configured twice")
		}
		seen[p.Name()] = true
		w := worker.New(c, box.ActivityQueue(p.Name()), worker.Options{
			Identity:          identity,
			WorkerStopTimeout: stopWait, DisableWorkflowWorker: true, DisableRegistrationAliasing: true,
			OnFatalError: s.fail, MaxConcurrentActivityExecutionSize: running, MaxHeartbeatThrottleInterval: throttle, DefaultHeartbeatThrottleInterval: throttle,
		})
		w.RegisterActivity(&activities.Boxes{
			Provider: p, Store: opts.Store, Notify: opts.Notify, Secret: opts.Secret, Steps: opts.Steps, Progress: opts.Progress,
			Transfers: slots,
		})
		s.workers = append(s.workers, w)
	}
	return s, nil
}

// Register puts the workflows into a registry: a worker's or a replayer's.
func Register(r worker.WorkflowRegistry) {
	r.RegisterWorkflowWithOptions(workflows.Box, workflow.RegisterOptions{Name: box.WorkflowType})
	r.RegisterWorkflowWithOptions(workflows.SweepExports, workflow.RegisterOptions{Name: box.WorkflowSweepExports})
}

// Failed tells once when a worker stopped by itself: its credentials were
// refused, or its namespace is gone. The process should end, so that whoever
// watches it sees that nobody serves.
func (s *Set) Failed() <-chan error { return s.failed }

func (s *Set) fail(err error) {
	select {
	case s.failed <- box.Errorf(box.ClassUnavailable, "a worker stopped by itself: %w", err):
	default: // the first one is told
	}
}

// Start begins to serve. On an error nothing is left running.
func (s *Set) Start() error {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // lives until Stop, not as long as one call
	s.stop = cancel
	for _, w := range s.workers {
		if err := w.Start(); err != nil {
			s.Stop()
			return box.Errorf(box.ClassUnavailable, "start a worker: %w", err)
		}
		s.started = append(s.started, w)
	}
	if !s.opts.NoWorkflows {
		s.watches.Go(func() { s.schedule(ctx) })
	}
	for _, p := range s.opts.Providers {
		if p.Capabilities().Watch == box.Yes {
			s.watches.Go(func() { s.watch(ctx, p) })
		}
	}
	return nil
}

// Stop ends gracefully: running activities get half a minute. Safe to repeat.
func (s *Set) Stop() {
	if s.stop != nil {
		s.stop()
	}
	s.watches.Wait()
	var wait sync.WaitGroup
	for _, w := range s.started {
		wait.Go(w.Stop)
	}
	wait.Wait()
	s.started = nil
}

// watch carries what a provider says by itself to the workflows, for as long as
// ctx lives. A watch that breaks is begun again; it first tells what changed
// meanwhile.
func (s *Set) watch(ctx context.Context, p *providers.Provider) {
	keepOn(ctx, s.opts.Logger.With(zap.String("provider", p.Name())), func(ctx context.Context) error {
		return p.Watch(ctx, func(seen driver.Listed) { s.tell(ctx, seen) })
	})
}

// tell signals what was seen. Only a workflow that exists is told: a box that
// nobody owns is a matter of a reconcile pass.
func (s *Set) tell(ctx context.Context, seen driver.Listed) {
	ctx, cancel := context.WithTimeout(ctx, signalBound)
	defer cancel()
	signal := box.ObservedSignal{
		ID:          fmt.Sprintf("%s%s-%s", box.WatchedID, seen.Observation.Ref.ID, seen.Observation.Phase),
		Observation: seen.Observation,
	}
	id := box.WorkflowID(seen.Identity.Workspace)
	// The worker that ran the workflow last may be the one that died with the box:
	// whichever is free takes the task. When that is refused, the signal only
	// takes longer.
	_, err := s.client.WorkflowService().ResetStickyTaskQueue(ctx, &workflowservicepb.ResetStickyTaskQueueRequest{
		Namespace: s.opts.Namespace, Execution: &commonpb.WorkflowExecution{WorkflowId: id},
	})
	if err != nil {
		s.opts.Logger.Debug("a workflow stays with its worker", zap.String("workspace", seen.Identity.Workspace), zap.Error(err))
	}
	err = s.client.SignalWorkflow(ctx, id, "", box.SignalObserved, signal)
	if _, none := errors.AsType[*serviceerror.NotFound](err); err != nil && !none {
		s.opts.Logger.Warn("an observation was not delivered", zap.String("workspace", seen.Identity.Workspace), zap.Error(err))
	}
}
