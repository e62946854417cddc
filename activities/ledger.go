package activities

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// record appends to the workspace's ledger. The id makes a retry one entry.
func (b *Boxes) record(ctx context.Context, t Target, kind exports.Kind, data any) error {
	return record(ctx, b.Store, t, kind, data)
}

func record(ctx context.Context, store *exports.Store, t Target, kind exports.Kind, data any) error {
	raw, err := json.Marshal(data)
	if err != nil {
		return box.Errorf(box.ClassInternal, "encode a ledger entry: %w", err)
	}
	_, err = store.AppendLedger(ctx, t.Workspace, exports.Entry{
		ID: t.Step + "-" + string(kind), Kind: kind, Epoch: max(t.Ref.Epoch, 1), Data: raw,
	})
	return err
}

// recordMarks is record for an entry that holds marks. Words in them that look
// like a secret are left out: they must not keep a box from being suspended.
func (b *Boxes) recordMarks(ctx context.Context, t Target, marks *box.Marks, kind exports.Kind, data func(*box.Marks) any) error {
	if marks != nil {
		t.Ref.Epoch = max(t.Ref.Epoch, marks.Epoch)
	}
	err := b.record(ctx, t, kind, data(marks))
	if marks != nil && box.ClassOf(err) == box.ClassInvalid {
		err = b.record(ctx, t, kind, data(marks.Bare()))
	}
	return err
}

// Record notes in the ledger what was changed since the last step that leaves
// marks. It touches neither the box nor its provider, and may be repeated.
// FailedPrecondition: the workspace is closed.
func (b *Boxes) Record(ctx context.Context, in Target) (box.Outcome, error) {
	return b.run(ctx, box.StepRecord, func(ctx context.Context) (box.Outcome, error) {
		if in.Marks == nil {
			return box.Outcome{}, box.Errorf(box.ClassInternal, "there is nothing to note")
		}
		// An execution that was given up would write what is not so any more.
		if err := fenced(ctx); err != nil {
			return box.Outcome{}, err
		}
		return box.Outcome{}, b.recordMarks(ctx, in, in.Marks, exports.KindMarks, func(m *box.Marks) any { return box.LedgerNote{Marks: m} })
	})
}

// checkLedger refuses a box that the ledger does not allow: the workspace is
// closed, has had a later box, or is somebody else's. An id that the engine has
// forgotten is free for the engine, and the ledger remembers whose it is.
func (b *Boxes) checkLedger(ctx context.Context, in CreateInput) error {
	return b.checkClaim(ctx, in, "")
}

// checkClaim is checkLedger; with the id of a box that is to be adopted it also
// refuses where another box has that epoch.
func (b *Boxes) checkClaim(ctx context.Context, in CreateInput, adopt string) error {
	entries, err := b.Store.Ledger(ctx, in.Spec.Workspace)
	for _, e := range entries {
		switch {
		case e.Kind.Closes():
			return box.Errorf(box.ClassFailedPrecondition, "workspace %s was closed (%s) and its id stays closed; use a new workspace id", in.Spec.Workspace, e.Kind)
		case e.Epoch > in.Epoch && e.Kind != exports.KindAdoptIntent: // what was only asked for is no box
			return box.Errorf(box.ClassFailedPrecondition, "workspace %s has had box %d already and this would be box %d; \"boxkeeper fleet rebuild\" brings it back", in.Spec.Workspace, e.Epoch, in.Epoch)
		case adopt != "" && e.Epoch == in.Epoch && (e.Kind == exports.KindCreated || e.Kind == exports.KindAdopted):
			var was box.LedgerCreate
			if json.Unmarshal(e.Data, &was) != nil || was.Observation.Ref.ID != adopt && was.BoxID != adopt {
				return box.Errorf(box.ClassFailedPrecondition, "workspace %s has box %d already by its ledger; \"boxkeeper fleet rebuild\" brings it back", in.Spec.Workspace, e.Epoch)
			}
		case e.Kind == exports.KindCreateIntent || e.Kind == exports.KindAdoptIntent:
			var was box.LedgerCreate
			if json.Unmarshal(e.Data, &was) != nil || was.Spec.Workspace == "" {
				continue // a damaged entry is told by its reader
			}
			if was.Spec.Owner != in.Spec.Owner || was.Spec.Provider != in.Spec.Provider {
				return box.Errorf(box.ClassFailedPrecondition, "workspace %s is another owner's, or lives at another provider, by its ledger; use a new workspace id", in.Spec.Workspace)
			}
		}
	}
	return err
}

// checkOnlyBox refuses to close a workspace over a box that the ledger knows and
// this workflow does not: one that was started anew after the loss of the engine
// would else take a box that people worked in for one that nobody ever saw.
func (b *Boxes) checkOnlyBox(ctx context.Context, in DeleteInput) error {
	entries, err := b.Store.Ledger(ctx, in.Workspace)
	if class := box.ClassOf(err); err != nil && class != box.ClassUnknown && class != box.ClassUnsupported {
		return err
	}
	unseen := in.NeverReady && !in.WithoutHistory
	for _, e := range entries {
		var made box.LedgerCreate
		if e.Kind == exports.KindCreated && json.Unmarshal(e.Data, &made) == nil && !in.Ref.IsZero() && made.Observation.Ref.ID == in.Ref.ID {
			continue // the very box, brought back by a rebuild
		}
		theirs := e.Kind == exports.KindCreated || e.Kind == exports.KindAdopted
		if e.Epoch > in.Epoch && e.Kind != exports.KindAdoptIntent || unseen && theirs && e.Epoch == in.Epoch && runOf(e.ID) != runOf(in.Step+"-"+string(e.Kind)) {
			return box.Errorf(box.ClassFailedPrecondition, "nothing was destroyed: the ledger of workspace %s knows box %d, which this workflow did not make; end the workflow out of order and run \"boxkeeper fleet rebuild %s\"", in.Workspace, e.Epoch, in.Workspace)
		}
	}
	return nil
}

// runOf is the part of an entry's id that names the workflow's first run:
// "e1-s2-RUN-created".
func runOf(id string) string {
	parts := strings.SplitN(id, "-", 3)
	return parts[len(parts)-1]
}
