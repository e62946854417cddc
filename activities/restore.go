package activities

import (
	"context"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// RestoreInput is what Restore needs.
type RestoreInput struct {
	Target
	// Receipt is of the export whose history goes into the box.
	Receipt box.Receipt `json:"receipt"`
}

// Restore puts an exported history into a new box, and returns only after the
// box was asked what it holds and the answer is the export's digest. It may be
// repeated: what is in the box already is left. Unsupported: the box keeps its
// own history; nothing was written. Unknown: the export is damaged, or the box
// holds something else than it was given.
func (b *Boxes) Restore(ctx context.Context, in RestoreInput) (box.Outcome, error) {
	return b.run(ctx, box.StepRestore, func(ctx context.Context) (box.Outcome, error) {
		leave, err := b.Transfers.take(ctx)
		if err != nil {
			return box.Outcome{}, err
		}
		defer leave()
		ready, err := b.awaitReady(ctx, in.Ref)
		if err == nil && !ready {
			err = box.Errorf(box.ClassUnavailable, "the new box is up and its agent-server does not answer")
		}
		if err != nil {
			return box.Outcome{}, err
		}
		client, err := b.dial(ctx, in.Ref)
		if err != nil {
			return box.Outcome{}, err
		}
		defer client.Close()
		info, err := client.Info(ctx)
		if err != nil {
			return box.Outcome{}, err
		}
		if !info.Has(agentserver.CapabilityHistoryImport) {
			return box.Outcome{}, box.Errorf(box.ClassUnsupported, "the agent-server of the new box cannot take a history in; replace takes the box as it is, and the history stays readable in the export store")
		}
		there, err := agentserver.History{Client: client}.Conversations(ctx)
		if err != nil {
			return box.Outcome{}, err
		}
		err = b.Store.Restore(ctx, in.Workspace, in.Receipt, there, agentserver.History{Client: client}, func(p exports.Progress) {
			tell(ctx, p.Done, p.Total)
			if b.Progress != nil {
				b.Progress(in.Workspace, p)
			}
		})
		if err != nil {
			return box.Outcome{}, err
		}
		use, err := client.Use(ctx)
		if err != nil {
			return box.Outcome{}, err
		}
		if use.Digest != in.Receipt.Digest {
			return box.Outcome{}, box.Errorf(box.ClassUnknown, "the new box holds %d conversations with %d events after the restore, which is not what the export holds", use.Conversations, use.Events)
		}
		return box.Outcome{Use: &use}, b.record(ctx, in.Target, exports.KindRestored, box.LedgerRestore{Ref: in.Ref, Receipt: in.Receipt})
	})
}
