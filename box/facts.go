package box

import (
	"slices"
	"time"
)

// Bounds of what a workflow carries along, so that its state stays small.
const (
	maxTransitions = 40
	maxSeen        = 64
	maxHolders     = 256
	maxResults     = 8
	// maxAsks is how many requests may wait at once. With the one adoption and the
	// one abandonment that may, their results fit into what is kept.
	maxAsks = maxResults - 2
	// maxSaid is how much is kept of what a box or a provider says, in characters.
	maxSaid = 1000
)

// lateBy is how late a deadline may be noticed before an outage is assumed and
// one fresh window is given first.
const lateBy = time.Minute

// Facts is all that is known about one workspace. It is the state of the
// workflow: it survives continue-as-new as JSON, and [Next] needs nothing
// else. All times are the engine's; nothing here comes from a box's clock.
type Facts struct {
	Spec         Spec         `json:"spec"`
	Policy       Policy       `json:"policy"` // effective
	Capabilities Capabilities `json:"capabilities"`
	Epoch        int          `json:"epoch"`
	// Epochs is the highest epoch that was ever given out: a box of it may exist
	// although it never became the current one.
	Epochs     int       `json:"epochs,omitzero"`
	State      State     `json:"state"`
	StateSince time.Time `json:"state_since"`
	Ref        Ref       `json:"ref,omitzero"`

	LastUse    time.Time `json:"last_use,omitzero"`
	AwakeSince time.Time `json:"awake_since,omitzero"`
	// IdleFloor is the earliest start of the idle clock: a changed policy, an
	// unfreeze or an outage gives a fresh window.
	IdleFloor time.Time `json:"idle_floor,omitzero"`
	// WallFloor is the earliest hard end after the maximum was shortened.
	WallFloor time.Time `json:"wall_floor,omitzero"`
	Holders   []Holder  `json:"holders,omitzero"`

	// Native is what the provider was told, as it was read back, and NativeAt when
	// its timer began anew.
	Native   Native    `json:"native,omitzero"`
	NativeAt time.Time `json:"native_at,omitzero"`
	// NativeStuck is what the provider was told and did not take: it is not told
	// the same again.
	NativeStuck Native `json:"native_stuck,omitzero"`
	// TurnEnded is when the newest operation ended whose history no export was
	// taken for.
	TurnEnded time.Time `json:"turn_ended,omitzero"`

	// SuspendedAt is when the provider's clock of this suspend began; a wake of
	// ours moves it, and not SuspendedSince.
	SuspendedAt    time.Time `json:"suspended_at,omitzero"`
	SuspendedSince time.Time `json:"suspended_since,omitzero"`
	// DeepenFloor is the earliest time at which the memory of this suspend is given
	// up: a changed policy, a lifted freeze or hold, an outage and a failed try move
	// it. DeepenTries counts the tries that failed.
	DeepenFloor time.Time `json:"deepen_floor,omitzero"`
	DeepenTries int       `json:"deepen_tries,omitzero"`
	// PausedClock is where the paused TTL counts from; later than
	// SuspendedSince after an unfreeze or when keep was turned off.
	PausedClock time.Time `json:"paused_clock,omitzero"`
	// ExpiryFloor is the earliest expiry, set when a deadline came closer.
	ExpiryFloor time.Time `json:"expiry_floor,omitzero"`
	NoticedFor  time.Time `json:"noticed_for,omitzero"` // the deadline of the last notice
	Reminders   int       `json:"reminders,omitzero"`
	RemindedAt  time.Time `json:"reminded_at,omitzero"`

	Scan      *Scan     `json:"scan,omitzero"`
	Receipt   Receipt   `json:"receipt,omitzero"`
	ReceiptAt time.Time `json:"receipt_at,omitzero"`
	Reclaimed int64     `json:"reclaimed_bytes,omitzero"` // sum over all passes
	Passes    []Pass    `json:"passes,omitzero"`          // the newest of them

	Sequence      *Sequence     `json:"sequence,omitzero"`
	SuspendWanted *Wish         `json:"suspend_wanted,omitzero"`
	ResumeWanted  *Wish         `json:"resume_wanted,omitzero"`
	Asks          []Ask         `json:"asks,omitzero"`    // reclaim, export and scan requests not yet done
	Results       []Result      `json:"results,omitzero"` // answers of the last ones
	Deletion      *Deletion     `json:"deletion,omitzero"`
	DeletionCount int           `json:"deletion_count,omitzero"`
	Confirmation  *Confirmation `json:"confirmation,omitzero"`

	// Adopt is the box that is to be taken over, Restoring the export that a new
	// box gets before anyone gets in, Abandonment what an operator asked for.
	Adopt       *Adoption    `json:"adopt,omitzero"`
	Restoring   *Restoration `json:"restoring,omitzero"`
	Abandonment *Abandonment `json:"abandonment,omitzero"`
	// Former are the boxes of earlier epochs, which are never touched.
	Former []Former `json:"former,omitzero"`
	Hold   *Hold    `json:"hold,omitzero"`

	// Adopted says that the box was there before this workflow: somebody may
	// have worked in it. CreateUnclear says that a create ended without an answer.
	Adopted       bool `json:"adopted,omitzero"`
	CreateUnclear bool `json:"create_unclear,omitzero"`
	// WakeOwed says that a wake of ours may have left it awake.
	WakeOwed bool `json:"wake_owed,omitzero"`
	// Rebuilt says that the facts came out of the ledger and the box was not read
	// since: nothing is done before it is.
	Rebuilt bool `json:"rebuilt,omitzero"`
	// Durable counts the changes that a rebuild must not lose. The ledger holds
	// the first Recorded of them, and the step under way brings it to Recording.
	Durable   int `json:"durable,omitzero"`
	Recording int `json:"recording,omitzero"`
	Recorded  int `json:"recorded,omitzero"`

	Kept      bool `json:"kept,omitzero"`
	Frozen    bool `json:"frozen,omitzero"`
	Unhealthy bool `json:"unhealthy,omitzero"`

	// Steps counts the steps begun; it names attempts and ledger entries.
	Steps int `json:"steps,omitzero"`
	// Unserved counts those of them that no worker of the instance took. While all
	// are among them nothing was done for this workspace.
	Unserved int `json:"unserved,omitzero"`
	// Began is when this count began. What takes a workspace over must carry both,
	// or begin later: see [Fence].
	Began   time.Time `json:"began,omitzero"`
	Failure *Failure  `json:"failure,omitzero"`
	// BlockTold is the block that people were told of and that is not known to be
	// over.
	BlockTold Block `json:"block_told,omitzero"`
	// Repairs counts restarts of a box that ended by itself, since RepairedAt.
	Repairs    int       `json:"repairs,omitzero"`
	RepairedAt time.Time `json:"repaired_at,omitzero"`

	// Outbox is what is told to those who listen, beside the life of the box.
	Outbox Outbox `json:"outbox,omitzero"`

	Observed    Observation  `json:"observed,omitzero"`
	ObservedAt  time.Time    `json:"observed_at,omitzero"`
	ToldBy      string       `json:"told_by,omitzero"`      // the last signal that made us look
	Look        bool         `json:"look,omitzero"`         // the state must be read again
	UndrainOwed bool         `json:"undrain_owed,omitzero"` // a drain of ours may still be on
	Seen        []string     `json:"seen,omitzero"`
	Transitions []Transition `json:"transitions,omitzero"`
	Decided     *Decision    `json:"decided,omitzero"` // the step that began last
}

// Holder is a bounded reason why a box may not be suspended now.
type Holder struct {
	ID      string     `json:"id"`
	Kind    HolderKind `json:"kind"`
	Origin  string     `json:"origin,omitzero"`
	Epoch   int        `json:"epoch"`
	Since   time.Time  `json:"since"`
	Renewed time.Time  `json:"renewed"`
	Until   time.Time  `json:"until"` // lease end; never after the hard maximum
}

// Scan is the last look into the box.
type Scan struct {
	At            time.Time `json:"at"`
	Digest        string    `json:"digest"`
	Conversations int       `json:"conversations"`
	Events        int       `json:"events"`
	// Stale says that the box may have been used after it was read: the numbers
	// are for people, and no export is known to cover what came since.
	Stale bool `json:"stale,omitzero"`
}

// Wish is an explicit request to suspend or resume.
type Wish struct {
	RequestID string    `json:"request_id"`
	By        string    `json:"by,omitzero"`
	At        time.Time `json:"at"`
}

// AskKind says what an [Ask] wants.
type AskKind string

// The kinds of ask.
const (
	AskReclaim AskKind = "reclaim"
	AskExport  AskKind = "export"
	AskScan    AskKind = "scan"
)

// Ask is an update whose answer needs a step in the box.
type Ask struct {
	Kind    AskKind        `json:"kind"`
	ID      string         `json:"request_id"`
	By      string         `json:"by,omitzero"`
	Reclaim ReclaimRequest `json:"reclaim,omitzero"`
}

// Result is the outcome of an [Ask], kept so that a repeated request id gets
// the same answer.
type Result struct {
	ID      string         `json:"request_id"`
	Reclaim *ReclaimReport `json:"reclaim,omitzero"`
	Receipt *Receipt       `json:"receipt,omitzero"`
	// Error is a refusal, with its class.
	Error string `json:"error,omitzero"`
	Class Class  `json:"class,omitzero"`
}

// Purpose says why the suspend steps run.
type Purpose string

// The purposes.
const (
	PurposeIdle        Purpose = "idle"        // an arriving user cancels it until the provider's call
	PurposeExplicit    Purpose = "explicit"    // a person's suspend: the user waits, then wakes it
	PurposeWall        Purpose = "wall"        // no holder stops it
	PurposeDelete      Purpose = "delete"      // the box is deleted afterwards
	PurposeMaintenance Purpose = "maintenance" // awake for an export only
	PurposeTurn        Purpose = "turn"        // not a suspend: an export of an awake box
)

// Sequence is how far the steps between awake and suspended have come.
type Sequence struct {
	Purpose Purpose   `json:"purpose"`
	Since   time.Time `json:"since"`
	Quiet   bool      `json:"quiet,omitzero"`
	// Looked says that the last look was had behind a closed door. Without it
	// nothing is known of what was said since the newest export.
	Looked bool `json:"looked,omitzero"`
	// DrainedAt is when the door was last known to be closed; its lease ends by
	// itself.
	DrainedAt time.Time `json:"drained_at,omitzero"`
	// Ended says that the box ended by itself: there is no way back to awake but
	// a resume.
	Ended     bool     `json:"ended,omitzero"`
	Reclaimed bool     `json:"reclaimed,omitzero"`
	Exported  bool     `json:"exported,omitzero"` // taken, or skipped with a reason
	Committed bool     `json:"committed,omitzero"`
	Skips     []string `json:"skips,omitzero"`
}

// Deletion is a request to delete and how far it has come.
type Deletion struct {
	Token       string    `json:"token"`
	Shown       string    `json:"shown"`           // history digest the person saw
	Unheld      string    `json:"unheld,omitzero"` // what they saw that no export holds of the workspace: "none", or "missing" and a count
	Epoch       int       `json:"epoch"`
	By          string    `json:"by,omitzero"`
	RequestedAt time.Time `json:"requested_at"`
	Expires     time.Time `json:"expires"`
	Undo        Duration  `json:"undo,omitzero"`
	ByPolicy    bool      `json:"by_policy,omitzero"`

	Confirmed      bool      `json:"confirmed,omitzero"`
	ConfirmedAt    time.Time `json:"confirmed_at,omitzero"`
	ConfirmedBy    string    `json:"confirmed_by,omitzero"`
	WithoutHistory bool      `json:"without_history,omitzero"`
	// Verified says that the export store was read back for this deletion.
	Verified  bool `json:"verified,omitzero"`
	Tried     bool `json:"tried,omitzero"`     // the destroying step was begun, so the ledger may hold the intent
	Rejected  int  `json:"rejected,omitzero"`  // exports that did not verify
	Blocked   int  `json:"blocked,omitzero"`   // times that it was tried again after no export could be had
	Committed bool `json:"committed,omitzero"` // the provider is being told
	// Unclear says that an attempt ended without an answer: the provider may have
	// destroyed the box, so nothing takes the deletion back any more.
	Unclear bool `json:"unclear,omitzero"`
}

// Failure is the last step that failed, and when it is tried again.
type Failure struct {
	Step    StepKind  `json:"step"`
	Class   Class     `json:"class"`
	Message string    `json:"message"`
	Count   int       `json:"count"`
	Since   time.Time `json:"since,omitzero"` // of the first of these failures
	At      time.Time `json:"at"`
	RetryAt time.Time `json:"retry_at,omitzero"`
	// Unserved says that no worker took the step: nothing was done.
	Unserved bool `json:"unserved,omitzero"`
	// Block says what the account at the provider lacks, so that no further try
	// gets past it before a person did something.
	Block Block `json:"block,omitzero"`
}

// NewFacts returns the facts of a workspace at its first start. The spec must
// be valid.
func NewFacts(spec Spec, capabilities Capabilities, now time.Time) Facts {
	f := Facts{Spec: spec, Policy: spec.Policy.Effective(), Capabilities: capabilities, Epoch: 1, Began: now, Adopt: adoptionOf(spec)}
	f.move(now, StateCreating, Reason{ReasonRequested, "asked for by " + orElse(spec.Owner, "its creator")})
	return f
}

// move changes the state and records why. Moving to the present state records
// nothing.
func (f *Facts) move(now time.Time, to State, why Reason) {
	if f.State == to {
		return
	}
	f.Transitions = append(f.Transitions, Transition{At: now, From: f.State, To: to, Reason: why, Epoch: f.Epoch})
	if extra := len(f.Transitions) - maxTransitions; extra > 0 {
		f.Transitions = slices.Delete(f.Transitions, 0, extra)
	}
	from := f.State
	f.State, f.StateSince = to, now
	f.recordMove(from, why, now)
	switch to {
	case StateRunning:
		f.Failure, f.BlockTold = nil, "" // what failed on the way is over
		f.doubtScan()
	case StateSuspended, StateAwaitingConfirm, StateUndoWindow, StateBoxArchived, StateAbandoned:
		f.Failure, f.BlockTold = nil, ""
	case StateUnknown, StateCreating, StateCreateFailed, StateStarting, StateDraining, StateSuspending, StateResuming,
		StateMaintenanceWake, StateExporting, StateDeleting, StateDeleteBlocked, StateLost:
	}
}

// awake reports whether the box costs compute and a user can reach it.
func (f *Facts) awake() bool {
	switch f.State {
	case StateRunning, StateDraining, StateStarting, StateMaintenanceWake:
		return true
	case StateUnknown, StateCreating, StateCreateFailed, StateSuspending, StateSuspended, StateResuming,
		StateAwaitingConfirm, StateUndoWindow, StateExporting, StateDeleting, StateDeleteBlocked,
		StateBoxArchived, StateLost, StateAbandoned:
		return false
	}
	return false
}

// covered reports whether the newest export holds all of the box's history. A
// box that nobody ever looked into is not covered, nor is one that may have been
// used after the last look.
func (f *Facts) covered() bool {
	return f.Scan != nil && !f.Scan.Stale && f.Receipt.Covers(f.Epoch, f.Scan.Digest)
}

// doubtScan notes that the box may be used, or may have been, after the last
// look into it.
func (f *Facts) doubtScan() {
	if f.Scan != nil && !f.Scan.Stale {
		doubted := *f.Scan
		doubted.Stale = true
		f.Scan = &doubted
	}
}

// NeverReady reports whether no agent-server of this box ever answered, so
// that nobody can have worked in it.
func (f *Facts) NeverReady() bool {
	return f.AwakeSince.IsZero() && f.Scan == nil && !f.Adopted && !f.adopting()
}

// AwakeAtExport reports whether the box was not suspended after its newest
// export: what is found suspended or ended now may have been used in between.
func (f *Facts) AwakeAtExport() bool { return f.SuspendedSince.IsZero() }

// shown is the history digest that a person is shown; "unread" when nothing
// was ever read.
func (f *Facts) shown() string {
	if f.Scan == nil {
		return "unread"
	}
	return f.Scan.Digest
}

func (f *Facts) holdersAlive() int { return len(f.Holders) }

func latest(times ...time.Time) time.Time {
	var out time.Time
	for _, t := range times {
		if t.After(out) {
			out = t
		}
	}
	return out
}

// unnamed is who did something and gave no name.
const unnamed = "someone who gave no name"

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
