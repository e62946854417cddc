package activities

import (
	"context"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers"
)

// AdoptInput is what Adopt needs.
type AdoptInput struct {
	Spec box.Spec `json:"spec"`
	// BoxID is the provider's own id of the box.
	BoxID string `json:"box_id"`
	// Epoch is what a box gets that carries no mark; Least is the lowest that one
	// of ours may have.
	Epoch int    `json:"epoch"`
	Least int    `json:"least"`
	Step  string `json:"step"`
	// WorkflowID is the id of the workflow that asks.
	WorkflowID string `json:"workflow_id"`
	// Marks is that of a [Target].
	Marks *box.Marks `json:"marks,omitzero"`
}

// Adopt takes over a box that is there, and waits until it answers when it is
// awake. It is recorded before the provider is asked, wakes nothing, creates
// nothing, and may be repeated. FailedPrecondition: the box is another's, or the
// workspace is closed; it was left alone.
func (b *Boxes) Adopt(ctx context.Context, in AdoptInput) (box.Outcome, error) {
	return b.run(ctx, box.StepAdopt, func(ctx context.Context) (box.Outcome, error) {
		row, err := b.rowFor(in.Spec, in.WorkflowID)
		if err != nil {
			return box.Outcome{}, err
		}
		t := Target{Workspace: in.Spec.Workspace, Ref: box.Ref{Epoch: in.Epoch}, Step: in.Step}
		if err := b.checkClaim(ctx, CreateInput{Spec: in.Spec, Epoch: in.Epoch}, in.BoxID); err != nil {
			return box.Outcome{}, unlessDefinite(err)
		}
		intent := func(m *box.Marks) any { return box.LedgerCreate{Spec: in.Spec, BoxID: in.BoxID, Marks: m} }
		if err := b.recordMarks(ctx, t, in.Marks, exports.KindAdoptIntent, intent); err != nil {
			return box.Outcome{}, unlessDefinite(err)
		}
		if err := fenced(ctx); err != nil {
			return box.Outcome{}, notBegun{err}
		}
		seen, err := b.Provider.Adopt(fence(ctx, ctx), providers.Claim{ID: in.BoxID, Workspace: in.Spec.Workspace, Epoch: in.Epoch, Least: in.Least})
		if err != nil {
			return box.Outcome{}, err
		}
		t.Ref = seen.Ref
		if err := b.record(ctx, t, exports.KindAdopted, box.LedgerCreate{Spec: in.Spec, BoxID: in.BoxID, Observation: seen, Capabilities: &row}); err != nil {
			return box.Outcome{}, err
		}
		out := box.Outcome{Observation: seen, Capabilities: &row}
		if awake(seen.Phase) {
			out.Ready, err = b.awaitReady(ctx, seen.Ref)
		}
		return out, err
	})
}

// unlessDefinite marks an error from before the provider was asked, except one
// that the same call cannot get past.
func unlessDefinite(err error) error {
	if box.ClassOf(err).Retryable() {
		return notBegun{err}
	}
	return err
}
