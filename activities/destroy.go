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
