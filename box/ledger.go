package box

import (
	"encoding/json"
	"slices"
	"time"
)

// LedgerKind says what a [LedgerEntry] records. Persisted: values never change
// meaning.
type LedgerKind string

// The kinds. An intent is written before the provider is called, the others
// after the outcome is known.
const (
	LedgerCreateIntent    LedgerKind = "create-intent"    // a box of this epoch is about to be made
	LedgerCreated         LedgerKind = "created"          // it exists, with ref and fingerprint
	LedgerSuspendIntent   LedgerKind = "suspend-intent"   // the provider is about to be told
	LedgerSuspended       LedgerKind = "suspended"        // with the provider's proof
	LedgerResumeIntent    LedgerKind = "resume-intent"    // the provider is about to be told
	LedgerResumed         LedgerKind = "resumed"          // the ref may have changed
	LedgerExported        LedgerKind = "exported"         // with the receipt
	LedgerNoticed         LedgerKind = "noticed"          // people were told of the expiry
	LedgerMarks           LedgerKind = "marks"            // a person changed what a rebuild must know
	LedgerDeleteIntent    LedgerKind = "delete-intent"    // the point of no return is next
	LedgerDeleted         LedgerKind = "deleted"          // the tombstone: the workspace is closed for ever
	LedgerAdoptIntent     LedgerKind = "adopt-intent"     // a box that is there is about to be taken over
	LedgerAdopted         LedgerKind = "adopted"          // it is ours, with ref and fingerprint
	LedgerRestored        LedgerKind = "restored"         // an exported history is in a new box, read back
	LedgerAbandoned       LedgerKind = "abandoned"        // closed for ever by an operator; the box may still exist
	LedgerExportsDeleting LedgerKind = "exports-deleting" // these exports are about to be deleted; may come after the end
	LedgerExportsDeleted  LedgerKind = "exports-deleted"  // they are gone; may come after the end
)

// LedgerEntry is one line of a workspace's ledger.
type LedgerEntry struct {
	// Seq is the place in the ledger, from 1; set by the store.
	Seq int `json:"seq"`
	// ID makes a repeated append one entry; the caller chooses it per step.
	ID    string     `json:"id"`
	Kind  LedgerKind `json:"kind"`
	Epoch int        `json:"epoch"`
	// At is by the clock of the worker that wrote it, which need not agree with
	// the engine's. UTC; zero on append means now.
	At time.Time `json:"at"`
	// Data is a JSON object of the form that the kind has, never a secret. At most
	// 1 MiB.
	Data json.RawMessage `json:"data,omitempty"`
}

// LedgerCreate is the data of create-intent and created, adopt-intent and
// adopted. The spec holds references, no secrets.
type LedgerCreate struct {
	Spec         Spec          `json:"spec"`
	BoxID        string        `json:"box_id,omitzero"`       // adopt-intent, adopted: the provider's own id
	Observation  Observation   `json:"observation,omitzero"`  // created, adopted
	Capabilities *Capabilities `json:"capabilities,omitzero"` // created, adopted: the driver's row
	Marks        *Marks        `json:"marks,omitzero"`
}

// LedgerIntent is the data of suspend-intent and resume-intent.
type LedgerIntent struct {
	Ref
	Marks *Marks `json:"marks,omitzero"`
}

// LedgerNote is the data of noticed and marks.
type LedgerNote struct {
	Due   time.Time `json:"due,omitzero"` // noticed: the expiry that people were told of
	Marks *Marks    `json:"marks"`
}

// LedgerDeletion is the data of delete-intent and of the tombstone.
type LedgerDeletion struct {
	Ref            Ref     `json:"ref"`
	Receipt        Receipt `json:"receipt,omitzero"`
	WithoutHistory bool    `json:"without_history,omitzero"`
	By             string  `json:"by"`
	Evidence       string  `json:"evidence,omitzero"`
	Marks          *Marks  `json:"marks,omitzero"`
}

// LedgerRestore is the data of restored.
type LedgerRestore struct {
	Ref     Ref     `json:"ref"`
	Receipt Receipt `json:"receipt"`
}

// LedgerAbandonment is the data of abandoned.
type LedgerAbandonment struct {
	Ref         Ref         `json:"ref,omitzero"`
	Abandonment Abandonment `json:"abandonment"`
}

// LedgerExportDeletion is the data of exports-deleting and exports-deleted.
type LedgerExportDeletion struct {
	By      string `json:"by"`               // who, or "policy"
	Because string `json:"because,omitzero"` // a sentence
	// Exports are the manifests, by key and sum.
	Exports []DeletedExport `json:"exports,omitempty"`
	// Objects is how many went beside the manifests; exports-deleted only.
	Objects int `json:"objects,omitzero"`
}

// DeletedExport names an export that was deleted.
type DeletedExport struct {
	Key    string `json:"key"`             // of its manifest
	SHA256 string `json:"sha256,omitzero"` // of its manifest, if that could be read
}

// Marks is what a rebuild must know of a workspace beside its spec and the
// outcomes of its steps. It is taken when a step begins and written by the
// step's activity. The times are the engine's.
type Marks struct {
	At         time.Time `json:"at"` // when it was taken
	Epoch      int       `json:"epoch"`
	Epochs     int       `json:"epochs,omitzero"` // given out so far
	Ref        Ref       `json:"ref,omitzero"`
	State      State     `json:"state"`
	StateSince time.Time `json:"state_since"`
	Because    Reason    `json:"because"`
	Steps      int       `json:"steps,omitzero"`
	Began      time.Time `json:"began,omitzero"` // since when steps are counted

	Policy  Policy `json:"policy"`
	Kept    bool   `json:"kept,omitzero"`
	Frozen  bool   `json:"frozen,omitzero"`
	Adopted bool   `json:"adopted,omitzero"`

	Adopt     *Adoption    `json:"adopt,omitzero"`
	Restoring *Restoration `json:"restoring,omitzero"`
	Former    []Former     `json:"former,omitzero"`
	Hold      *Hold        `json:"hold,omitzero"`

	LastUse    time.Time `json:"last_use,omitzero"`
	AwakeSince time.Time `json:"awake_since,omitzero"`
	IdleFloor  time.Time `json:"idle_floor,omitzero"`
	WallFloor  time.Time `json:"wall_floor,omitzero"`

	SuspendedSince time.Time `json:"suspended_since,omitzero"`
	SuspendedAt    time.Time `json:"suspended_at,omitzero"`
	PausedClock    time.Time `json:"paused_clock,omitzero"`
	ExpiryFloor    time.Time `json:"expiry_floor,omitzero"`
	NoticedFor     time.Time `json:"noticed_for,omitzero"`

	Scan      *Scan     `json:"scan,omitzero"`
	Receipt   Receipt   `json:"receipt,omitzero"`
	ReceiptAt time.Time `json:"receipt_at,omitzero"`
	Reclaimed int64     `json:"reclaimed_bytes,omitzero"`

	Sequence      *Sequence `json:"sequence,omitzero"`
	Deletion      *Deletion `json:"deletion,omitzero"`
	DeletionCount int       `json:"deletion_count,omitzero"`
	CreateUnclear bool      `json:"create_unclear,omitzero"`
	WakeOwed      bool      `json:"wake_owed,omitzero"`
	Unhealthy     bool      `json:"unhealthy,omitzero"`
}

// Marks returns what a rebuild must know now. It shares nothing with the facts.
func (f *Facts) Marks(now time.Time) *Marks {
	m := &Marks{
		At: now, Epoch: f.Epoch, Epochs: f.Epochs, Ref: f.Ref, State: f.State, StateSince: f.StateSince, Because: f.because(), Steps: f.Steps, Began: f.Began,
		Policy: f.Policy, Kept: f.Kept, Frozen: f.Frozen, Adopted: f.Adopted, Former: slices.Clone(f.Former),
		LastUse: f.LastUse, AwakeSince: f.AwakeSince, IdleFloor: f.IdleFloor, WallFloor: f.WallFloor,
		SuspendedSince: f.SuspendedSince, SuspendedAt: f.SuspendedAt, PausedClock: f.PausedClock, ExpiryFloor: f.ExpiryFloor, NoticedFor: f.NoticedFor,
		Receipt: f.Receipt, ReceiptAt: f.ReceiptAt, Reclaimed: f.Reclaimed,
		DeletionCount: f.DeletionCount, CreateUnclear: f.CreateUnclear, WakeOwed: f.WakeOwed, Unhealthy: f.Unhealthy,
	}
	m.Scan, m.Sequence, m.Deletion = copied(f.Scan), copied(f.Sequence), copied(f.Deletion)
	m.Adopt, m.Restoring, m.Hold = copied(f.Adopt), copied(f.Restoring), copied(f.Hold)
	return m
}

// restore brings the facts to where the marks were taken.
func (f *Facts) restore(m *Marks) {
	f.Epoch, f.Epochs, f.Ref, f.Steps, f.Began = m.Epoch, max(f.Epochs, m.Epochs), m.Ref, m.Steps, m.Began
	f.Policy, f.Kept, f.Frozen, f.Adopted = m.Policy, m.Kept, m.Frozen, m.Adopted
	f.LastUse, f.AwakeSince, f.IdleFloor, f.WallFloor = m.LastUse, m.AwakeSince, m.IdleFloor, m.WallFloor
	f.SuspendedSince, f.SuspendedAt = m.SuspendedSince, m.SuspendedAt
	f.PausedClock, f.ExpiryFloor, f.NoticedFor = m.PausedClock, m.ExpiryFloor, m.NoticedFor
	f.Receipt, f.ReceiptAt, f.Reclaimed = m.Receipt, m.ReceiptAt, m.Reclaimed
	f.DeletionCount, f.CreateUnclear, f.WakeOwed, f.Unhealthy = m.DeletionCount, m.CreateUnclear, m.WakeOwed, m.Unhealthy
	f.Sequence, f.Deletion = copied(m.Sequence), copied(m.Deletion)
	f.Adopt, f.Restoring, f.Hold, f.Former = copied(m.Adopt), copied(m.Restoring), copied(m.Hold), slices.Clone(m.Former)
	f.move(m.StateSince, m.State, m.Because)
	f.StateSince, f.Scan = m.StateSince, copied(m.Scan) // after the move, which doubts a scan
}

// Bare returns the marks without the words of people and providers, for a
// ledger that refuses one of them because it looks like a secret: a rebuild
// needs none of them.
func (m Marks) Bare() *Marks {
	m.Because.Text = "(left out: the words looked like a secret)"
	m.Sequence, m.Deletion = copied(m.Sequence), copied(m.Deletion)
	if m.Sequence != nil {
		m.Sequence.Skips = nil
	}
	if m.Deletion != nil {
		m.Deletion.By, m.Deletion.ConfirmedBy = "", ""
	}
	if m.Hold != nil {
		m.Hold = &Hold{Since: m.Hold.Since}
	}
	if m.Adopt != nil {
		m.Adopt = &Adoption{ID: m.Adopt.ID, Epoch: m.Adopt.Epoch, From: m.Adopt.From, Refused: m.Adopt.Refused}
	}
	if m.Restoring != nil {
		m.Restoring = &Restoration{At: m.Restoring.At, Receipt: m.Restoring.Receipt}
	}
	return &m
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// LeavesMarks reports whether the activity of a step writes the marks that were
// taken at its beginning into the ledger.
func (s Step) LeavesMarks() bool {
	switch s.Kind {
	case StepCreate, StepAdopt, StepSuspend, StepResume, StepDelete, StepRecord:
		return true
	case StepNotify:
		return !s.At.IsZero() // a reminder changes nothing that a rebuild must know
	case StepWait, StepFinish, StepAwaitReady, StepObserve, StepScan, StepQuiesce, StepUndrain, StepReclaim, StepExport, StepVerifyExport, StepAdjust,
		StepDeepen, StepRestore, StepAbandon:
	}
	return false
}

// recordFirst puts the record of what a person changed before a wait, but not
// before one for the next try of a step: there is one place for what failed, and
// two steps that fail in turn would never wait.
func (f *Facts) recordFirst(wait Step, now time.Time) Step {
	if f.Recorded == f.Durable || f.Failure != nil && f.Failure.Step != StepRecord && wait.Reason.Code == ReasonFailed {
		return wait
	}
	if f.tooEarly(StepRecord, now) {
		if wait.At.IsZero() || f.Failure.RetryAt.Before(wait.At) {
			wait.At, wait.Then = f.Failure.RetryAt, StepRecord
			wait.Reason = Reason{ReasonFailed, "the ledger does not hold yet what was changed: " + f.Failure.Message}
		}
		return wait
	}
	return Step{Kind: StepRecord, Reason: Reason{ReasonRequested, "note in the ledger what was changed"}, StoppedBy: "nobody: it changes nothing"}
}

// SkipRecord gives up the record that is owed: the next step that leaves marks
// brings it. It is for runs that began before there was such a step.
func (f *Facts) SkipRecord() { f.Recorded = f.Durable }
