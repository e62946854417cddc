package activities

import (
	"context"
	"fmt"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
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

// VerifyExport reads an export back from the store, every byte, and looks once
// more into a box that is awake. What does not match is an answer, not an error:
// only a store or a box that cannot be read is one.
func (b *Boxes) VerifyExport(ctx context.Context, in DeleteInput) (box.Outcome, error) {
	return b.run(ctx, box.StepVerifyExport, func(ctx context.Context) (box.Outcome, error) {
		problem, err := b.verify(ctx, in)
		return box.Outcome{Problem: problem}, err
	})
}

// verifyAgain is verify right before the destruction: what this process read
// back a moment ago is looked at, and read again only if it was touched.
func (b *Boxes) verifyAgain(ctx context.Context, in DeleteInput) (problem string, err error) {
	if report, ok := b.proofs.find(in.Receipt, time.Now()); ok && in.Receipt.Workspace == in.Workspace && b.Store.Unchanged(ctx, report) == nil {
		return b.changed(ctx, in)
	}
	return b.verify(ctx, in)
}

func (b *Boxes) verify(ctx context.Context, in DeleteInput) (problem string, err error) {
	leave, err := b.Transfers.take(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	began := time.Now() // the proof is as old as its first byte
	report, err := b.Store.Verify(ctx, in.Workspace, in.Receipt)
	if err == nil {
		b.proofs.keep(report, began)
	}
	switch box.ClassOf(err) { //nolint:exhaustive // the rest is for trying again
	case "":
		return b.changed(ctx, in)
	case box.ClassNotFound, box.ClassUnknown, box.ClassFailedPrecondition, box.ClassInvalid:
		return err.Error(), nil
	}
	return "", err
}

// changed says that a box which is awake holds other history than its export:
// the drain that came before the export ends by itself, and reading the export
// back may take longer than that. It closes the door again, so that nothing
// gets in before the destruction.
func (b *Boxes) changed(ctx context.Context, in DeleteInput) (problem string, err error) {
	if in.Ref.IsZero() {
		return "", nil
	}
	seen, err := b.Provider.Observe(ctx, in.Ref)
	switch {
	case err != nil:
		return "", err
	case seen.Phase == box.PhaseGone:
		return "", nil
	case in.Awake && (seen.Phase == box.PhaseSuspended || seen.Phase == box.PhaseFailed):
		return "the box is " + string(seen.Phase) + " now and was awake when its export was taken, so it may have been used in between", nil
	case seen.Phase == box.PhaseSuspended, seen.Phase == box.PhaseFailed:
		return "", nil // nobody can be in it
	case seen.Phase != box.PhaseRunning:
		return "", box.Errorf(box.ClassUnavailable, "the box is %s, so nobody can say what is said in it: %s", seen.Phase, seen.Evidence)
	}
	client, err := b.dial(ctx, in.Ref)
	if err != nil {
		return "", err
	}
	defer client.Close()
	if err := drain(ctx, client); err != nil {
		return "", err
	}
	use, err := client.Use(ctx)
	if err != nil {
		return "", err
	}
	digest := use.Digest
	if digest == "" { // a server without boxd tells it only conversation by conversation
		marks, err := agentserver.History{Client: client}.Conversations(ctx)
		if err != nil {
			return "", err
		}
		digest = box.HistoryDigest(marks)
	}
	if !in.Receipt.Covers(in.Ref.Epoch, digest) {
		return "the box was used after the export was taken", nil
	}
	return "", nil
}

// Delete destroys the box, after it has read again that the export is whole and
// that the box is ours. It returns with the provider's proof. Being gone
// already is success.
func (b *Boxes) Delete(ctx context.Context, in DeleteInput) (box.Outcome, error) {
	return b.run(ctx, box.StepDelete, func(ctx context.Context) (box.Outcome, error) {
		if gone, done, err := goneBefore(ctx, b.Store, in); done || err != nil {
			return box.Outcome{Observation: gone}, err
		}
		ref, last, err := b.beforeDelete(ctx, &in)
		if err != nil {
			return box.Outcome{}, notBegun{err}
		}
		gone := box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: "no box of this name exists"}
		if !ref.IsZero() {
			seen, err := b.Provider.Delete(driver.WithFence(fence(ctx, ctx), in.Fence), ref)
			if err != nil {
				return box.Outcome{}, err
			}
			if seen.Phase != box.PhaseGone {
				return box.Outcome{}, box.Errorf(box.ClassUnknown, "the provider calls it %s after the deletion: %s", seen.Phase, seen.Evidence)
			}
			gone = seen
		}
		last.Evidence = gone.Evidence
		in.Step = fmt.Sprintf("e%d", in.Epoch) // one tombstone, whichever attempt writes it
		return box.Outcome{Observation: gone}, b.record(ctx, in.Target, exports.KindDeleted, last)
	})
}

// beforeDelete reads once more what a destruction needs, and records that it is
// next. As long as it fails, the provider was not told anything.
func (b *Boxes) beforeDelete(ctx context.Context, in *DeleteInput) (ref box.Ref, last box.LedgerDeletion, err error) {
	if err := b.checkOnlyBox(ctx, *in); err != nil {
		return ref, last, err
	}
	if !in.WithoutHistory && !in.NeverReady {
		problem, err := b.verifyAgain(ctx, *in)
		if err == nil && problem != "" {
			err = box.Errorf(box.ClassFailedPrecondition, "nothing was destroyed: the export does not verify: %s", problem)
		}
		if err != nil {
			return ref, last, err
		}
	}
	ref = in.Ref
	if ref.IsZero() {
		if ref, err = b.find(ctx, *in); err != nil {
			return ref, last, err
		}
	}
	in.Ref = ref
	if in.Ref.Epoch == 0 {
		in.Ref.Epoch = in.Epoch
	}
	last = box.LedgerDeletion{Ref: ref, Receipt: in.Receipt, WithoutHistory: in.WithoutHistory, By: in.By}
	intent := func(m *box.Marks) any { out := last; out.Marks = m; return out }
	if err := b.recordMarks(ctx, in.Target, in.Marks, exports.KindDeleteIntent, intent); err != nil {
		return ref, last, err
	}
	return ref, last, fenced(ctx)
}

// lookAgain is how long after a first list a second one must agree that there
// is no box: lists lag behind creates.
const lookAgain = 10 * time.Second

// find looks up a box whose create never answered: it may exist all the same.
func (b *Boxes) find(ctx context.Context, in DeleteInput) (box.Ref, error) {
	if b.Provider.Capabilities().List != box.Yes {
		return box.Ref{}, box.Errorf(box.ClassUnsupported, "the provider cannot list, so nothing shows whether a box of workspace %s exists; look there and adopt or delete it by hand", in.Workspace)
	}
	for look := range 2 {
		if look > 0 {
			select {
			case <-ctx.Done():
				return box.Ref{}, box.Errorf(box.ClassCanceled, "look for a box that was never confirmed: %w", ctx.Err())
			case <-time.After(lookAgain):
			}
		}
		listed, err := b.Provider.List(ctx)
		if err != nil {
			return box.Ref{}, fmt.Errorf("look for a box that was never confirmed: %w", err)
		}
		for _, one := range listed {
			if one.Identity.Workspace == in.Workspace && one.Identity.Epoch == in.Epoch {
				return one.Observation.Ref, nil
			}
		}
	}
	return box.Ref{}, nil
}
