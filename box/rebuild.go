package box

import (
	"encoding/json"
	"fmt"
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

// CheckRebuilt refuses facts that cannot be those of a workspace that was lost.
func CheckRebuilt(f *Facts, workspace string) error {
	if err := f.Spec.Validate(); err != nil {
		return err
	}
	switch {
	case f.Spec.Workspace != workspace:
		return Invalidf("rebuilt.spec.workspace", "%q is not the workspace %q that is rebuilt", f.Spec.Workspace, workspace)
	case f.Epoch < 1 || !f.Ref.IsZero() && f.Ref.Epoch != f.Epoch:
		return Invalidf("rebuilt.epoch", "%d is not the epoch of the box %q; rebuild it from the ledger again", f.Epoch, f.Ref.Name)
	case f.State == StateBoxArchived || f.State == StateAbandoned:
		return Errorf(ClassFailedPrecondition, "workspace %s is %s and its id stays closed; use a new workspace id", workspace, f.State)
	}
	return f.Policy.Validate()
}

// CheckCarried refuses facts of another workspace or of another version.
func CheckCarried(f *Facts, spec Spec) error {
	switch {
	case f.Spec.Version != WireVersion:
		return Invalidf("carried.spec.version", "%d is not known to this program, which speaks %d; upgrade the older side", f.Spec.Version, WireVersion)
	case f.Spec.Workspace != spec.Workspace:
		return Invalidf("carried.spec.workspace", "%q is not the workspace %q of the input", f.Spec.Workspace, spec.Workspace)
	}
	return nil
}

// Revive makes what the ledger says the facts of a new workflow. The box is
// read before anything is done. Holders and unanswered requests are gone, a
// confirmation must be given again unless the ledger says that the destroying
// call was next, and an expiry that is near gives the whole notice first.
func (f *Facts) Revive(now time.Time) {
	f.notAfter(now)
	f.Sequence, f.Failure, f.Holders = nil, nil, nil
	why := Reason{ReasonRebuilt, fmt.Sprintf("rebuilt from the ledger, which called it %s", f.State)}
	if d := f.Deletion; d != nil {
		if d.Committed { // the provider may have been told
			d.Committed, d.Verified, d.Unclear = false, false, true
		} else {
			f.Deletion = nil
		}
	}
	f.DeletionCount = max(f.DeletionCount+1, int(now.Unix()))             // no token from before is good any more
	f.Outbox = Outbox{Number: int(now.Unix()), Settled: f.Outbox.Settled} // nor is a number of an event used twice
	f.Reminders, f.RemindedAt = 0, time.Time{}
	f.Began = latest(now, f.Began.Add(time.Millisecond)) // later than every step of the lost workflow; see [Fence]
	f.IdleFloor = now
	if at, ok := f.expiryAt(); ok && !now.Before(at.Add(-f.noticeLead())) {
		f.ExpiryFloor = latest(f.ExpiryFloor, now.Add(f.noticeLead()))
	}
	f.Durable++                                                 // what the first reading shows goes into the ledger
	if f.Adopt != nil && !f.Adopt.Refused && !f.deletionDue() { // it may be marked as ours by now, so it is asked for again
		if !f.Ref.IsZero() {
			f.Adopt.From = StateUnknown // if it is not to be had, the box before is read
		}
		f.move(now, StateCreating, why)
		return
	}
	if !f.Ref.IsZero() {
		f.Adopted = f.Adopted || !f.deletionDue() // unless it was to be destroyed, nobody wrote whether it ever was ready
		f.Rebuilt = true
		f.UndrainOwed = f.SuspendedSince.IsZero()    // a drain may have been on
		if f.SuspendedSince.IsZero() || f.WakeOwed { // a user may have come to a wake of ours, and nobody wrote that
			f.doubtScan()     // it was awake
			f.TurnEnded = now // and worked in, perhaps, since its newest export
		}
		f.move(now, StateUnknown, why)
		return
	}
	// The create ended without an answer. The step that makes the box looks for it
	// first, and so does the one that destroys it.
	f.CreateUnclear = true
	if f.deletionDue() {
		f.move(now, StateExporting, why)
		return
	}
	f.move(now, StateCreating, why)
}

// notAfter takes times that lie ahead as now: the engine that counted them is
// gone, and the clock of the present one may be behind it.
func (f *Facts) notAfter(now time.Time) {
	for _, t := range []*time.Time{&f.StateSince, &f.LastUse, &f.AwakeSince, &f.IdleFloor, &f.SuspendedSince, &f.SuspendedAt, &f.PausedClock, &f.ReceiptAt} {
		if t.After(now) {
			*t = now
		}
	}
	if f.Deletion != nil && f.Deletion.ConfirmedAt.After(now) {
		f.Deletion.ConfirmedAt = now
	}
}

// applyRebuilt is the first reading of a box that the ledger called suspended.
// It reports false where nothing special is to be done.
func (f *Facts) applyRebuilt(seen Observation, now time.Time) bool {
	if !f.Rebuilt {
		return false
	}
	f.Rebuilt = false
	if f.deletionDue() {
		f.Deletion.Unclear = false // the reading ends the doubt
	}
	if f.SuspendedSince.IsZero() {
		return false
	}
	evidence := orElse(seen.Evidence, string(seen.Phase))
	switch seen.Phase {
	case PhaseSuspended: // as the ledger says: the paused clock goes on, and the export covers what it did
		f.rest(now, Reason{ReasonSeenAtProvider, "suspended at the provider: " + evidence})
		return true
	case PhaseRunning:
		if f.WakeOwed && f.ResumeWanted == nil && len(f.Holders) == 0 {
			f.settleAwake(now, evidence)
			return true
		}
		f.UndrainOwed = true
		f.wake(now, Reason{ReasonSeenAtProvider, "it runs at its provider: " + evidence})
		return true
	case PhaseUnknown, PhaseStarting, PhaseFailed, PhaseGone:
	}
	return false
}
