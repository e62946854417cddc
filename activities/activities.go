package activities

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Bounds of what a step waits for.
const (
	readyWait   = 90 * time.Second // where the provider's row names none
	readyPause  = 250 * time.Millisecond
	whyWait     = 5 * time.Second
	drainLease  = 3 * time.Minute // ends by itself if this worker dies
	drainRenew  = time.Minute
	beatEvery   = 3 * time.Second
	leaveBehind = 15 * time.Second // to let work in again after a cancellation
)

// Boxes are the activities of one provider instance. The fields are required
// unless they say otherwise; set them before the first call.
type Boxes struct {
	Provider *providers.Provider
	Store    *exports.Store
	Notify   Notifier
	// Secret resolves a reference such as "env:NAME" right before it is used.
	Secret func(reference string) (box.Secret, error)
	// Steps counts what was done; nil counts nothing.
	Steps Recorder
	// Progress hears of transfers as they go; nil for nobody. It must return at
	// once and may be called from several goroutines.
	Progress func(workspace string, p exports.Progress)
	// Transfers is shared by all instances of a process; nil bounds nothing.
	Transfers Slots

	proofs proofs
}

// Recorder takes in one finished step for the metrics. Labels never hold a
// workspace or an owner.
type Recorder interface {
	Record(step box.StepKind, provider string, class box.Class, took time.Duration, bytes int64)
}

// Target names the box that a step is about.
type Target struct {
	Workspace string  `json:"workspace"`
	Ref       box.Ref `json:"ref"`
	// Step is the same at every retry: it names attempts and ledger entries.
	Step string `json:"step"`
	// Fence orders the steps that change the box at its provider.
	Fence box.Fence `json:"fence,omitzero"`
	// Marks goes into the ledger before the provider is called; set for the steps
	// that leave marks.
	Marks *box.Marks `json:"marks,omitzero"`
}

// CreateInput is what Create needs.
type CreateInput struct {
	Spec  box.Spec `json:"spec"`
	Epoch int      `json:"epoch"`
	Step  string   `json:"step"`
	// Fence is that of a [Target].
	Fence box.Fence `json:"fence,omitzero"`
	// WorkflowID is the id of the workflow that asks.
	WorkflowID string `json:"workflow_id"`
	// Restore is the export that the new box is made for: without a whole one
	// none is made.
	Restore box.Receipt `json:"restore,omitzero"`
	// Marks is that of a [Target].
	Marks *box.Marks `json:"marks,omitzero"`
}

// ResumeInput is what Resume needs: the references to what its processes need.
type ResumeInput struct {
	Target
	Env     map[string]string `json:"env,omitzero"`
	Secrets map[string]string `json:"secrets,omitzero"`
}

// QuiesceInput is what Quiesce needs.
type QuiesceInput struct {
	Target
	// IdleFor is how long the last use must be ago; zero asks for no agreement:
	// the box is drained whatever runs in it.
	IdleFor box.Duration `json:"idle_for,omitzero"`
}

// ReclaimInput is what Reclaim needs.
type ReclaimInput struct {
	Target
	Request box.ReclaimRequest `json:"request,omitzero"`
	// Drained keeps the drain of a suspend sequence up.
	Drained bool `json:"drained,omitzero"`
}

// ExportInput is what Export needs.
type ExportInput struct {
	Target
	Previous box.Receipt `json:"previous,omitzero"`
	Drained  bool        `json:"drained,omitzero"`
	// Secrets is what is done about secrets in the history; zero takes the
	// worker's setting.
	Secrets box.SecretsPolicy `json:"secrets,omitzero"`
}

// AdjustInput is what Adjust needs.
type AdjustInput struct {
	Target
	Native box.Native `json:"native"`
}

// DeleteInput is what Delete needs: the three facts that a destruction asks
// for are checked again right before it.
type DeleteInput struct {
	Target
	Spec    box.Spec    `json:"spec"`
	Epoch   int         `json:"epoch"`
	Receipt box.Receipt `json:"receipt,omitzero"`
	// WithoutHistory says that a person accepted the loss.
	WithoutHistory bool `json:"without_history,omitzero"`
	// NeverReady says that nobody can have worked in the box.
	NeverReady bool `json:"never_ready,omitzero"`
	// Awake says that the box was not suspended after the export was taken.
	Awake bool   `json:"awake,omitzero"`
	By    string `json:"by"`
}

// start resolves what a box's processes need. The answer holds secrets.
func (b *Boxes) start(env, references map[string]string) (driver.Start, error) {
	out := driver.Start{Env: env, SecretEnv: map[string]box.Secret{}}
	for _, name := range slices.Sorted(maps.Keys(references)) {
		value, err := b.Secret(references[name])
		if err != nil {
			return driver.Start{}, box.Invalidf("secrets."+name, "%s cannot be resolved by this worker: %s", references[name], err)
		}
		out.SecretEnv[name] = value
	}
	return out, nil
}

// dial returns a client of the agent-server in the box. Close it.
func (b *Boxes) dial(ctx context.Context, ref box.Ref) (*agentserver.Client, error) {
	at, err := b.Provider.Endpoint(ctx, ref)
	if err != nil {
		return nil, err
	}
	return agentserver.New(agentserver.Options{URL: at.URL, SessionKey: at.SessionKey, Header: at.Header})
}

// awaitReady waits until the agent-server answers, for as long as the
// provider's row allows. It reports false, without an error, when it does not.
// Why it did not yet is told meanwhile, as a text: nothing else says so before the
// end of the step.
func (b *Boxes) awaitReady(ctx context.Context, ref box.Ref) (bool, error) {
	bound := b.Provider.Capabilities().ResumeWait.Std()
	if bound == 0 {
		bound = readyWait
	}
	within, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	tick := time.NewTicker(readyPause)
	defer tick.Stop()
	for {
		err := b.ready(within, ref)
		if err == nil {
			tell(ctx)
			return true, nil
		}
		if within.Err() == nil {
			tell(ctx, "its agent-server does not answer yet: "+err.Error())
		}
		select {
		case <-within.Done():
			return false, ctx.Err()
		case <-tick.C:
		}
	}
}

func (b *Boxes) ready(ctx context.Context, ref box.Ref) error {
	client, err := b.dial(ctx, ref)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Ready(ctx)
}

// notReady says of a box that is up why its agent-server does not answer, as far
// as its boxd knows: the cause stands otherwise only in a log inside the box.
func (b *Boxes) notReady(ctx context.Context, what string, seen box.Observation) error {
	why := ""
	ctx, cancel := context.WithTimeout(ctx, whyWait)
	defer cancel()
	if client, err := b.dial(ctx, seen.Ref); err == nil {
		server, err := client.Process(ctx)
		client.Close()
		if err == nil && server.LastExit != "" {
			why = fmt.Sprintf(": it ended and was started again %d times, last: %s", server.Restarts, server.LastExit)
		}
	}
	at := ""
	if seen.Evidence != "" {
		at = " (" + seen.Evidence + ")"
	}
	return box.Errorf(box.ClassUnavailable, "%s is up%s and its agent-server does not answer%s", what, at, why)
}

// run wraps a step: heartbeats, the count, and the one mapping of errors.
func (b *Boxes) run(ctx context.Context, kind box.StepKind, act func(context.Context) (box.Outcome, error)) (box.Outcome, error) {
	ctx, stop := beat(ctx)
	defer stop()
	began := time.Now()
	out, err := act(ctx)
	if cause := context.Cause(ctx); err != nil && box.ClassOf(cause) == box.ClassUnavailable {
		err = cause // the standstill, not what it broke
	}
	err = ofStore(err)
	if b.Steps != nil {
		b.Steps.Record(kind, b.Provider.Name(), box.ClassOf(err), time.Since(began), out.Reclaim.FreedBytes+out.Receipt.Bytes+out.Receipt.Archive.Bytes)
	}
	if err != nil {
		return box.Outcome{}, translate(ctx, fmt.Errorf("%s: %w", kind, err), b.Notify.Listeners())
	}
	out.Listeners = b.Notify.Listeners()
	return out, nil
}
