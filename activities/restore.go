package activities

import (
	"context"
	"io"

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

// mustAnswer waits for the agent-server of a new box, and says why it does not.
func (b *Boxes) mustAnswer(ctx context.Context, ref box.Ref) error {
	ready, err := b.awaitReady(ctx, ref)
	if err != nil || ready {
		return err
	}
	seen, err := b.Provider.Observe(ctx, ref)
	if err != nil {
		seen = box.Observation{Ref: ref} // what it says would be a help, no more
	}
	return b.notReady(ctx, "the new box", seen)
}

// Restore puts an exported history and workspace into a new box, and returns only
// after the box was asked what it holds and the answer is the export's digest. It
// may be repeated: what is in the box already is left. Unsupported: the box takes
// none in; nothing was written. Unknown: the export is damaged, or the box holds
// something else than it was given.
func (b *Boxes) Restore(ctx context.Context, in RestoreInput) (box.Outcome, error) {
	return b.run(ctx, box.StepRestore, func(ctx context.Context) (box.Outcome, error) {
		leave, err := b.Transfers.take(ctx)
		if err != nil {
			return box.Outcome{}, err
		}
		defer leave()
		if err := b.mustAnswer(ctx, in.Ref); err != nil {
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
		if in.Receipt.Archive.Held() && !info.Has(agentserver.CapabilityWorkspaceRestore) {
			return box.Outcome{}, box.Errorf(box.ClassUnsupported, "the agent-server of the new box cannot take a workspace in (%s); replace takes the box as it is, and the export stays in the store", agentserver.CapabilityWorkspaceRestore)
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
		restored, err := b.restoreWorkspace(ctx, client, in)
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
		out := box.Outcome{Use: &use}
		out.Notes, out.MoreNotes = box.ToldNotes(restored.Notes, restored.MoreNotes)
		return out, b.record(ctx, in.Target, exports.KindRestored, box.LedgerRestore{Ref: in.Ref, Receipt: in.Receipt})
	})
}

// restoreWorkspace puts the workspace of an export into the box, where the export
// holds one. The box proves all of it before anything is in its place.
func (b *Boxes) restoreWorkspace(ctx context.Context, client *agentserver.Client, in RestoreInput) (agentserver.Restored, error) {
	archive := in.Receipt.Archive
	if !archive.Held() {
		return agentserver.Restored{}, nil
	}
	from, err := b.Store.Workspace(ctx, in.Workspace, in.Receipt)
	if err != nil {
		return agentserver.Restored{}, err
	}
	tar := from.Tar(ctx)
	defer tar.Close()
	told := &progress{from: tar, tell: func(done int64) {
		tell(ctx, done, archive.Bytes)
		if b.Progress != nil {
			b.Progress(in.Workspace, exports.Progress{Stage: exports.StageRestore, Bytes: done, Size: archive.Bytes})
		}
	}}
	restored, err := client.RestoreWorkspace(ctx, archive.SHA256, told, archive.Bytes)
	if err == nil && (restored.Files != archive.Files || restored.Repositories != archive.Repositories) {
		err = box.Errorf(box.ClassUnknown, "the new box holds %d files and %d repositories after the restore, and the export %d and %d", restored.Files, restored.Repositories, archive.Files, archive.Repositories)
	}
	return restored, err
}

// progress tells how much was read, now and then.
type progress struct {
	from io.Reader
	tell func(done int64)
	done int64
	last int64
}

func (p *progress) Read(to []byte) (int, error) {
	n, err := p.from.Read(to)
	if p.done += int64(n); p.done-p.last >= progressStep {
		p.last = p.done
		p.tell(p.done)
	}
	return n, err
}

const progressStep = 8 << 20
