package activities

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// AbandonInput is what Abandon needs.
type AbandonInput struct {
	Target
	Epoch       int             `json:"epoch"`
	Abandonment box.Abandonment `json:"abandonment"`
}

// Abandon records for ever that nobody watches the box any more. It asks
// nothing of the provider, and may be repeated.
func (b *Boxes) Abandon(ctx context.Context, in AbandonInput) (box.Outcome, error) {
	return b.run(ctx, box.StepAbandon, func(ctx context.Context) (box.Outcome, error) {
		return box.Outcome{}, abandon(ctx, b.Store, in)
	})
}

// CloseAbandoned is Abandon on a worker of any instance, for a box whose own
// instance nobody serves.
func (e *Exports) CloseAbandoned(ctx context.Context, in AbandonInput) (box.Outcome, error) {
	return e.run(ctx, box.StepAbandon, func(ctx context.Context) (box.Outcome, error) {
		return box.Outcome{}, abandon(ctx, e.Store, in)
	})
}

func abandon(ctx context.Context, store *exports.Store, in AbandonInput) error {
	last := box.LedgerAbandonment{Ref: in.Ref, Abandonment: in.Abandonment}
	in.Ref.Epoch = max(in.Epoch, 1)
	err := record(ctx, store, in.Target, exports.KindAbandoned, last)
	if box.ClassOf(err) == box.ClassFailedPrecondition {
		// A workflow that was started anew on an abandoned id never gets a box
		// and must end too: what it asks for has been recorded before.
		if closed, by, _ := store.Closed(ctx, in.Workspace); closed && by.Kind == exports.KindAbandoned {
			return nil
		}
	}
	return err
}

// CloseUnmade closes a workspace for ever none of whose steps a worker ever took,
// so that there is no box. It needs no provider, and may be repeated.
// FailedPrecondition: the ledger knows more than the workflow, which was started
// anew after the loss of an engine; nothing was closed.
func (e *Exports) CloseUnmade(ctx context.Context, in DeleteInput) (box.Outcome, error) {
	return e.run(ctx, box.StepDelete, func(ctx context.Context) (box.Outcome, error) {
		gone, done, err := goneBefore(ctx, e.Store, in)
		if done || err != nil {
			return box.Outcome{Observation: gone}, err
		}
		known := box.Errorf(box.ClassFailedPrecondition, "nothing was closed: there is a ledger of workspace %s, so an earlier workflow may have made a box; end this workflow out of order and run \"boxkeeper fleet rebuild %s\"", in.Workspace, in.Workspace)
		entries, err := e.Store.Ledger(ctx, in.Workspace)
		if class := box.ClassOf(err); len(entries) > 0 || class == box.ClassUnknown || class == box.ClassUnsupported {
			return box.Outcome{}, known
		}
		if err != nil {
			return box.Outcome{}, err
		}
		gone = box.Observation{Phase: box.PhaseGone, Evidence: "no worker ever took a step of it, and there is no ledger of it: no box was made"}
		last, err := json.Marshal(box.LedgerDeletion{By: in.By, Evidence: gone.Evidence})
		if err != nil {
			return box.Outcome{}, box.Errorf(box.ClassInternal, "encode a ledger entry: %w", err)
		}
		// As the first entry or not at all: a create that an earlier engine began may
		// still run, and writes its intent before it makes a box.
		err = e.Store.BeginLedger(ctx, in.Workspace, exports.Entry{
			ID: fmt.Sprintf("e%d-%s", in.Epoch, exports.KindDeleted), Kind: exports.KindDeleted, Epoch: max(in.Epoch, 1), Data: last,
		})
		if box.ClassOf(err) == box.ClassFailedPrecondition {
			err = known
		}
		return box.Outcome{Observation: gone}, err
	})
}

// run wraps a step that needs no provider. Whatever fails in it, the provider
// was told nothing.
func (e *Exports) run(ctx context.Context, kind box.StepKind, act func(context.Context) (box.Outcome, error)) (box.Outcome, error) {
	ctx, stop := beat(ctx)
	defer stop()
	var listeners []box.Listener
	if e.Notify != nil {
		listeners = e.Notify.Listeners()
	}
	out, err := act(ctx)
	if err != nil {
		return box.Outcome{}, translate(ctx, fmt.Errorf("%s: %w", kind, unlessDefinite(ofStore(err))), listeners)
	}
	out.Listeners = listeners
	return out, nil
}

// ofStore makes a refusal of the export store one that is tried again.
// Credentials that ran out, say, are no answer of the provider's, which may have
// been told already: a class that says "refused" would be taken for one.
func ofStore(err error) error {
	if class := box.ClassOf(err); err != nil && exports.FromStore(err) && !class.Retryable() && class != box.ClassCanceled {
		return box.Errorf(box.ClassUnavailable, "%w", err)
	}
	return err
}

// goneBefore reads the tombstone that an earlier attempt left: it was written
// with the provider's proof, and its answer was lost.
func goneBefore(ctx context.Context, store *exports.Store, in DeleteInput) (box.Observation, bool, error) {
	closed, entry, err := store.Closed(ctx, in.Workspace)
	if !closed {
		if class := box.ClassOf(err); class == box.ClassUnknown || class == box.ClassUnsupported {
			err = nil // a damaged ledger does not keep a box that must go
		}
		return box.Observation{}, false, err
	}
	if entry.Kind != exports.KindDeleted {
		return box.Observation{}, false, box.Errorf(box.ClassFailedPrecondition, "workspace %s was abandoned, so nothing is destroyed for it any more; look for its box at the provider", in.Workspace)
	}
	var last box.LedgerDeletion
	if err := json.Unmarshal(entry.Data, &last); err != nil || last.Evidence == "" {
		last.Evidence = "destroyed before: the ledger holds the tombstone"
	}
	return box.Observation{Ref: last.Ref, Phase: box.PhaseGone, Evidence: last.Evidence}, true, nil
}
