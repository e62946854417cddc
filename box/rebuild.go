package box

import (
	"encoding/json"
	"time"
)

// SourceLedger marks an answer that was read from the ledger, not asked of the
// workflow.
const SourceLedger = "ledger"

// Rebuild returns what the ledger of a workspace says of it, and as of when on
// the engine's clock. It decides nothing and reads no clock: see
// [Facts.Revive] for a workflow that goes on from there. NotFound: the ledger
// is empty. Unknown: it is damaged or does not make sense; nothing is guessed.
func Rebuild(workspace string, entries []LedgerEntry) (f Facts, asOf time.Time, err error) {
	if len(entries) == 0 {
		return f, asOf, Errorf(ClassNotFound, "the ledger of workspace %s is empty", workspace)
	}
	r := &ledgerReader{}
	for i, e := range entries {
		if e.Seq != i+1 {
			return Facts{}, asOf, Errorf(ClassUnknown, "ledger entry %d of workspace %s is missing; restore it from a backup", i+1, workspace)
		}
		if err := r.take(e); err != nil {
			return Facts{}, asOf, Errorf(ClassUnknown, "ledger entry %d of workspace %s: %w", e.Seq, workspace, err)
		}
	}
	if r.closed() && !r.opened {
		r.facts.Spec.Workspace = workspace // closed, whatever it was
	}
	if r.facts.Spec.Workspace != workspace {
		return Facts{}, asOf, Errorf(ClassUnknown, "the ledger of workspace %s is that of workspace %q", workspace, r.facts.Spec.Workspace)
	}
	return r.facts, r.at, nil
}

// ledgerReader plays the entries of one ledger, in order: marks say how it was,
// and outcomes are applied by the rules that applied them first.
type ledgerReader struct {
	facts  Facts
	opened bool
	// ahead is how far the engine's clock was ahead of the writer's. It is only
	// ever added to a time of the writer, so no two clocks are compared.
	ahead time.Duration
	at    time.Time
}

func (r *ledgerReader) take(e LedgerEntry) error {
	if e.Kind.Aside() {
		return nil
	}
	if !r.opened && !e.Kind.opens() && !e.Kind.Closes() {
		return Errorf(ClassUnknown, "it is of kind %q, and none before it says what the workspace is", e.Kind)
	}
	if r.opened && (r.closed() || e.Epoch < r.facts.Epoch && !e.Kind.Closes()) {
		return nil // nothing comes after the end, and no late word of an earlier box counts
	}
	defer func() { r.facts.Epochs = max(r.facts.Epochs, e.Epoch) }() // none is given out twice
	switch e.Kind {
	case LedgerAdoptIntent, LedgerAdopted:
		return r.adopted(e)
	case LedgerRestored:
		return r.restored(e)
	case LedgerAbandoned:
		return r.abandoned(e)
	case LedgerCreateIntent, LedgerCreated:
		return r.created(e)
	case LedgerSuspendIntent, LedgerResumeIntent:
		return r.intended(e)
	case LedgerSuspended, LedgerResumed:
		return r.observed(e)
	case LedgerExported:
		return r.exported(e)
	case LedgerNoticed, LedgerMarks:
		return r.noted(e)
	case LedgerDeleteIntent, LedgerDeleted:
		return r.deleted(e)
	case LedgerExportsDeleting, LedgerExportsDeleted: // said above
	}
	return Errorf(ClassUnknown, "kind %.40q is not known to this program; use a newer one", e.Kind)
}

// opens reports whether an entry can be the first of a ledger.
func (k LedgerKind) opens() bool {
	return k == LedgerCreateIntent || k == LedgerCreated || k == LedgerAdoptIntent || k == LedgerAdopted
}

// Closes reports whether nothing comes after an entry: the workspace is closed
// for ever.
func (k LedgerKind) Closes() bool { return k == LedgerDeleted || k == LedgerAbandoned }

// Aside reports whether an entry says nothing of the box: what became of its
// exports. Such an entry may come after the end.
func (k LedgerKind) Aside() bool { return k == LedgerExportsDeleting || k == LedgerExportsDeleted }

func (r *ledgerReader) closed() bool {
	return r.facts.State == StateBoxArchived || r.facts.State == StateAbandoned
}

// adopted takes in an adoption. What is only about to be taken over is no box of
// the workspace yet: its epoch begins with the outcome.
func (r *ledgerReader) adopted(e LedgerEntry) error {
	d, err := dataOf[LedgerCreate](e)
	if err != nil {
		return err
	}
	if !r.opened {
		err = r.open(e, d)
	} else {
		r.mark(e, d.Marks)
	}
	if err != nil || e.Kind == LedgerAdoptIntent {
		return err
	}
	f := &r.facts
	if f.Adopt == nil {
		f.Adopt = &Adoption{ID: d.BoxID, Epoch: e.Epoch, From: f.State}
	}
	f.applyAdopted(Outcome{Observation: d.Observation, Capabilities: d.Capabilities}, r.at)
	return nil
}

func (r *ledgerReader) restored(e LedgerEntry) error {
	d, err := dataOf[LedgerRestore](e)
	if err != nil {
		return err
	}
	r.clock(e, nil)
	f := &r.facts
	f.Scan = &Scan{At: r.at, Digest: d.Receipt.Digest, Conversations: d.Receipt.Conversations, Events: d.Receipt.Events}
	f.Restoring = nil
	f.wake(r.at, Reason{ReasonRestored, "its history was put back and read back"})
	return nil
}

func (r *ledgerReader) abandoned(e LedgerEntry) error {
	d, err := dataOf[LedgerAbandonment](e)
	if err != nil {
		return err
	}
	r.clock(e, nil)
	f := &r.facts
	if !d.Ref.IsZero() {
		f.Ref = d.Ref
	}
	f.Abandonment = &d.Abandonment
	f.applyAbandoned(r.at)
	return nil
}

func (r *ledgerReader) created(e LedgerEntry) error {
	d, err := dataOf[LedgerCreate](e)
	if err == nil {
		err = r.open(e, d)
	}
	if err == nil && e.Kind == LedgerCreated {
		r.facts.applyCreated(Step{Kind: StepCreate}, Outcome{Observation: d.Observation, Capabilities: d.Capabilities}, r.at)
	}
	return err
}

func (r *ledgerReader) intended(e LedgerEntry) error {
	d, err := dataOf[LedgerIntent](e)
	if err != nil || r.mark(e, d.Marks) {
		return err
	}
	to := StateResuming // of a release that wrote no marks
	if e.Kind == LedgerSuspendIntent {
		to = StateSuspending
	}
	r.facts.move(r.at, to, Reason{ReasonRequested, "the provider is being told"})
	return nil
}

func (r *ledgerReader) observed(e LedgerEntry) error {
	seen, err := dataOf[Observation](e)
	if err != nil {
		return err
	}
	r.clock(e, nil)
	if e.Kind == LedgerSuspended {
		r.facts.applySuspended(seen, r.at)
		return nil
	}
	r.resumed(seen)
	return nil
}

func (r *ledgerReader) exported(e LedgerEntry) error {
	receipt, err := dataOf[Receipt](e)
	if err != nil {
		return err
	}
	r.clock(e, nil)
	f := &r.facts
	f.Receipt, f.ReceiptAt = receipt, r.at
	f.Scan = &Scan{At: r.at, Digest: receipt.Digest, Conversations: receipt.Conversations, Events: receipt.Events}
	return nil
}

func (r *ledgerReader) noted(e LedgerEntry) error {
	d, err := dataOf[LedgerNote](e)
	if err != nil {
		return err
	}
	if !r.mark(e, d.Marks) {
		return Errorf(ClassUnknown, "it holds no marks")
	}
	if e.Kind == LedgerNoticed {
		r.facts.applyNotified(Step{Kind: StepNotify, At: d.Due}, r.at)
	}
	return nil
}

// open begins the workspace, or its next box.
func (r *ledgerReader) open(e LedgerEntry, d LedgerCreate) error {
	f := &r.facts
	if err := d.Spec.Validate(); err != nil {
		return Errorf(ClassUnknown, "its spec is not valid: %w", err)
	}
	if r.opened && f.Spec.Workspace != d.Spec.Workspace {
		return Errorf(ClassUnknown, "it is of workspace %q", d.Spec.Workspace)
	}
	if r.opened && e.Epoch == f.Epoch {
		r.mark(e, d.Marks)
		return nil
	}
	before := *f
	r.clock(e, d.Marks)
	*f = NewFacts(d.Spec, Capabilities{}, r.at)
	f.Epoch = max(e.Epoch, 1)
	if r.opened { // the workspace goes on with another box
		f.Policy, f.Kept, f.Frozen, f.Capabilities, f.Transitions = before.Policy, before.Kept, before.Frozen, before.Capabilities, before.Transitions
		f.Steps, f.DeletionCount, f.Began, f.Epochs = before.Steps, before.DeletionCount, before.Began, before.Epochs
		f.Receipt, f.ReceiptAt, f.Former, f.Hold = before.Receipt, before.ReceiptAt, before.Former, before.Hold
	}
	r.opened = true
	r.mark(e, d.Marks)
	return nil
}

// clock reads the writer's time as the engine's.
func (r *ledgerReader) clock(e LedgerEntry, m *Marks) {
	if m != nil {
		r.ahead = m.At.Sub(e.At)
	}
	r.at = e.At.Add(r.ahead)
}

// mark takes the time of an entry, and its marks where it has some.
func (r *ledgerReader) mark(e LedgerEntry, m *Marks) bool {
	r.clock(e, m)
	if m == nil {
		return false
	}
	r.facts.restore(m)
	return true
}

// resumed is applyResumed for what the ledger knows: the box is up, and whether
// its agent-server answers was not written.
func (r *ledgerReader) resumed(seen Observation) {
	f := &r.facts
	if !seen.Ref.IsZero() {
		f.Ref = seen.Ref
	}
	if s := f.Sequence; s != nil && s.Purpose == PurposeMaintenance {
		f.WakeOwed = true // nobody is in it, so it must not stay awake
		f.move(r.at, StateMaintenanceWake, Reason{ReasonStaleExport, "woken for an export: " + orElse(seen.Evidence, "it is up")})
		return
	}
	f.wake(r.at, Reason{ReasonUserArrived, "woken: " + orElse(seen.Evidence, "it is up")})
}

func (r *ledgerReader) deleted(e LedgerEntry) error {
	d, err := dataOf[LedgerDeletion](e)
	if err != nil {
		return err
	}
	f := &r.facts
	if !r.mark(e, d.Marks) && e.Kind == LedgerDeleteIntent {
		f.Deletion = &Deletion{
			Epoch: f.Epoch, Shown: f.shown(), Confirmed: true, ConfirmedBy: d.By, RequestedAt: r.at, ConfirmedAt: r.at, Expires: r.at,
			WithoutHistory: d.WithoutHistory, Committed: true, Tried: true,
		}
		f.Adopted = true // whether it ever was ready, nobody wrote
		f.move(r.at, StateDeleting, Reason{ReasonConfirmed, "confirmed by " + f.Deletion.confirmer()})
	}
	if !d.Ref.IsZero() {
		f.Ref = d.Ref
	}
	if e.Kind != LedgerDeleted {
		return nil
	}
	if !d.Receipt.IsZero() {
		f.Receipt = d.Receipt
	}
	f.Sequence, f.SuspendedSince, f.SuspendedAt = nil, time.Time{}, time.Time{}
	f.move(r.at, StateBoxArchived, Reason{ReasonDeleted, "destroyed: " + orElse(d.Evidence, "proven gone")})
	return nil
}

func dataOf[D any](e LedgerEntry) (D, error) {
	var d D
	if len(e.Data) == 0 {
		return d, nil
	}
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return d, Errorf(ClassUnknown, "the data of its %s does not have the form that it should: %w", e.Kind, err)
	}
	return d, nil
}
