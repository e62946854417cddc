package activities

import (
	"context"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers/driver"
)

// longestInlineWait is how long a retry may wait inside the engine's own retry;
// longer waits go back to the workflow.
const longestInlineWait = 10 * time.Second

// rowFor returns the provider's row for a box of a spec. It refuses a policy that
// the row cannot meet, and a workflow that is not the workspace's own: a
// workspace has one owner, the workflow of its id.
func (b *Boxes) rowFor(spec box.Spec, workflowID string) (box.Capabilities, error) {
	if workflowID != box.WorkflowID(spec.Workspace) {
		return box.Capabilities{}, box.Invalidf("workspace", "the workflow id must be %q, it is %q", box.WorkflowID(spec.Workspace), workflowID)
	}
	row := b.Provider.Capabilities()
	_, err := box.Plan(spec.Policy, row)
	return row, err
}

// Create makes the box and waits until it answers. It is recorded before it is
// called, and idempotent by the box's name.
func (b *Boxes) Create(ctx context.Context, in CreateInput) (box.Outcome, error) {
	return b.run(ctx, box.StepCreate, func(ctx context.Context) (box.Outcome, error) {
		row, err := b.rowFor(in.Spec, in.WorkflowID)
		if err != nil {
			return box.Outcome{}, err
		}
		start, err := b.start(in.Spec.Env, in.Spec.Secrets)
		if err != nil {
			return box.Outcome{}, err
		}
		t := Target{Workspace: in.Spec.Workspace, Ref: box.Ref{Epoch: in.Epoch}, Step: in.Step}
		if !in.Restore.IsZero() {
			if _, err := b.Store.Verify(ctx, in.Spec.Workspace, in.Restore); err != nil {
				return box.Outcome{}, unlessDefinite(unrestorable(err))
			}
		}
		adopted, err := b.madeBefore(ctx, in)
		if err != nil {
			return box.Outcome{}, notBegun{err}
		}
		// Before the intent, which would stand in a ledger that is not ours, and
		// again: another workflow may close the workspace while it is written.
		if err := b.checkLedger(ctx, in); err != nil {
			return box.Outcome{}, unlessDefinite(err)
		}
		intent := func(m *box.Marks) any { return box.LedgerCreate{Spec: in.Spec, Marks: m} }
		if err := b.recordMarks(ctx, t, in.Marks, exports.KindCreateIntent, intent); err != nil {
			return box.Outcome{}, err
		}
		if err := b.checkLedger(ctx, in); err != nil {
			return box.Outcome{}, unlessDefinite(err)
		}
		if err := fenced(ctx); err != nil {
			return box.Outcome{}, err
		}
		seen, err := b.Provider.Create(driver.WithFence(fence(ctx, ctx), in.Fence), in.Spec, in.Epoch, start)
		if err != nil {
			return box.Outcome{}, err
		}
		t.Ref = seen.Ref
		if err := b.record(ctx, t, exports.KindCreated, box.LedgerCreate{Spec: in.Spec, Observation: seen, Capabilities: &row}); err != nil {
			return box.Outcome{}, err
		}
		ready, err := b.awaitReady(ctx, seen.Ref)
		return box.Outcome{Observation: seen, Ready: ready, Adopted: adopted || !awake(seen.Phase), Capabilities: &row}, err
	})
}

// unrestorable says that an export is not whole, which trying again does not
// mend, and leaves a store that cannot be read as it is.
func unrestorable(err error) error {
	if class := box.ClassOf(err); class != box.ClassUnknown && class != box.ClassNotFound {
		return err
	}
	return box.Errorf(box.ClassFailedPrecondition, "no box was made: the export does not verify, so it cannot be restored: %w", err)
}

func awake(p box.Phase) bool { return p == box.PhaseStarting || p == box.PhaseRunning }

// madeBefore reports whether the ledger knows a box of this epoch that another
// step made: somebody may have worked in it.
func (b *Boxes) madeBefore(ctx context.Context, in CreateInput) (bool, error) {
	entries, err := b.Store.Ledger(ctx, in.Spec.Workspace)
	if err != nil && box.ClassOf(err) != box.ClassUnknown {
		return false, err
	}
	for _, e := range entries {
		if e.Kind == exports.KindCreated && e.Epoch == in.Epoch && e.ID != in.Step+"-"+string(exports.KindCreated) {
			return true, nil
		}
	}
	return err != nil, nil // a damaged ledger may hide one
}

// AwaitReady waits until the agent-server of a box that is up answers.
func (b *Boxes) AwaitReady(ctx context.Context, in Target) (box.Outcome, error) {
	return b.run(ctx, box.StepAwaitReady, func(ctx context.Context) (box.Outcome, error) {
		seen, err := b.Provider.Observe(ctx, in.Ref)
		if err != nil {
			return box.Outcome{}, err
		}
		if !awake(seen.Phase) {
			return box.Outcome{}, box.Errorf(box.ClassFailedPrecondition, "the box is %s: %s", seen.Phase, seen.Evidence)
		}
		ready, err := b.awaitReady(ctx, in.Ref)
		if err == nil && !ready {
			err = b.notReady(ctx, "the box", seen)
		}
		return box.Outcome{Observation: seen, Ready: ready}, err
	})
}

// Observe reads the box at its provider. It wakes nothing.
func (b *Boxes) Observe(ctx context.Context, in Target) (box.Outcome, error) {
	return b.run(ctx, box.StepObserve, func(ctx context.Context) (box.Outcome, error) {
		seen, err := b.Provider.Observe(ctx, in.Ref)
		return box.Outcome{Observation: seen}, err
	})
}

// Adjust sets the provider's own timers of a running box again, which also
// starts them anew. It may be repeated.
func (b *Boxes) Adjust(ctx context.Context, in AdjustInput) (box.Outcome, error) {
	return b.run(ctx, box.StepAdjust, func(ctx context.Context) (box.Outcome, error) {
		seen, err := b.Provider.Adjust(ctx, in.Ref, in.Native)
		return box.Outcome{Observation: seen}, err
	})
}

// Suspend tells the provider and returns with its proof, and with its row: what
// becomes of the box's memory is for how the provider is set up now. The
// provider's call is detached from a cancellation: one that was begun is waited
// for.
func (b *Boxes) Suspend(ctx context.Context, in Target) (box.Outcome, error) {
	return b.run(ctx, box.StepSuspend, func(ctx context.Context) (box.Outcome, error) {
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), suspendBound)
		defer cancel()
		intent := func(m *box.Marks) any { return box.LedgerIntent{Ref: in.Ref, Marks: m} }
		if err := b.recordMarks(detached, in, in.Marks, exports.KindSuspendIntent, intent); err != nil {
			return box.Outcome{}, err
		}
		if err := fenced(ctx); err != nil {
			return box.Outcome{}, err
		}
		seen, err := b.Provider.Suspend(driver.WithFence(fence(ctx, detached), in.Fence), in.Ref)
		if err != nil {
			return box.Outcome{}, err
		}
		if seen.Phase != box.PhaseSuspended {
			return box.Outcome{}, box.Errorf(box.ClassUnknown, "the provider calls it %s: %s", seen.Phase, seen.Evidence)
		}
		row := b.Provider.Capabilities()
		return box.Outcome{Observation: seen, Capabilities: &row}, b.record(detached, in, exports.KindSuspended, seen)
	})
}

const suspendBound = 10 * time.Minute

// Deepen has the provider give up the memory of a suspended box, and returns with
// its proof. The call is detached from a cancellation like that of Suspend: one
// that is cut off may leave the box awake. FailedPrecondition: the box is not
// suspended, and was left alone.
func (b *Boxes) Deepen(ctx context.Context, in Target) (box.Outcome, error) {
	return b.run(ctx, box.StepDeepen, func(ctx context.Context) (box.Outcome, error) {
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), suspendBound)
		defer cancel()
		if err := fenced(ctx); err != nil {
			return box.Outcome{}, err
		}
		seen, err := b.Provider.Deepen(driver.WithFence(fence(ctx, detached), in.Fence), in.Ref)
		return box.Outcome{Observation: seen}, err
	})
}

// Resume wakes the box and waits until its agent-server answers. Its ref may
// change.
func (b *Boxes) Resume(ctx context.Context, in ResumeInput) (box.Outcome, error) {
	return b.run(ctx, box.StepResume, func(ctx context.Context) (box.Outcome, error) {
		start, err := b.start(in.Env, in.Secrets)
		if err != nil {
			return box.Outcome{}, err
		}
		intent := func(m *box.Marks) any { return box.LedgerIntent{Ref: in.Ref, Marks: m} }
		if err := b.recordMarks(ctx, in.Target, in.Marks, exports.KindResumeIntent, intent); err != nil {
			return box.Outcome{}, err
		}
		if err := fenced(ctx); err != nil {
			return box.Outcome{}, err
		}
		seen, err := b.Provider.Resume(driver.WithFence(fence(ctx, ctx), in.Fence), in.Ref, start)
		if err != nil {
			return box.Outcome{}, err
		}
		if err := b.record(ctx, in.Target, exports.KindResumed, seen); err != nil {
			return box.Outcome{}, err
		}
		ready, err := b.awaitReady(ctx, seen.Ref)
		if err == nil && !ready {
			err = b.notReady(ctx, "the box", seen)
		}
		if ready && b.Provider.Capabilities().MemoryKept == box.Yes {
			b.letIn(ctx, seen.Ref)
		}
		return box.Outcome{Observation: seen, Ready: ready}, err
	})
}

// letIn opens a box that was suspended as it was: drained. A box that started anew
// is open. When it fails, the lease of the drain ends by itself.
func (b *Boxes) letIn(ctx context.Context, ref box.Ref) {
	client, err := b.dial(ctx, ref)
	if err != nil {
		return
	}
	defer client.Close()
	_ = client.Undrain(ctx) // see above
}
