package box

import "time"

// Names of the contract with callers. They are stable: the Canvas backend, the
// command line and the web page speak them.
const (
	WorkflowType = "Box"
	TaskQueue    = "boxkeeper"
	// StoreQueue is for work on the export store; no instance can have its name.
	StoreQueue = "boxkeeper.exports"
	// WorkflowSweepExports is the type of a pass over exports whose life is over,
	// and ScheduleSweepExports what starts one a day.
	WorkflowSweepExports = "SweepExports"
	ScheduleSweepExports = "boxkeeper-sweep-exports"

	UpdateConnect       = "connect"
	UpdateRelease       = "release"
	UpdateRenew         = "renew"
	UpdateSuspend       = "suspend"
	UpdateResume        = "resume"
	UpdateReclaim       = "reclaim"
	UpdateExport        = "export"
	UpdateRequestDelete = "request-delete"
	UpdateSetPolicy     = "set-policy"
	UpdateKeep          = "keep"
	UpdateFreeze        = "freeze"
	UpdateAdopt         = "adopt"
	UpdateReplace       = "replace"
	UpdateRestore       = "restore"
	UpdateAbandon       = "abandon"

	SignalConfirmDelete = "confirm-delete"
	SignalCancelDelete  = "cancel-delete"
	SignalRelease       = "release"
	SignalRenew         = "renew"
	SignalActivity      = "activity"
	SignalObserved      = "observed"
	SignalHold          = "hold"

	QueryStatus = "status"
	QueryWhy    = "why"

	SearchProvider       = "BoxProvider"
	SearchState          = "BoxState"
	SearchOwner          = "BoxOwner"
	SearchNextActionAt   = "BoxNextActionAt"
	SearchSuspendedSince = "BoxSuspendedSince"
	SearchEpoch          = "BoxEpoch"
	SearchBlocked        = "BoxBlocked"
)

// WorkflowID returns the id of the workflow that owns a workspace.
func WorkflowID(workspace string) string { return "box/" + workspace }

// ActivityQueue returns the task queue of one provider instance's activities.
func ActivityQueue(instance string) string { return TaskQueue + "-" + instance }

// HolderKind says what keeps a box awake.
type HolderKind string

// The kinds of holder.
const (
	HolderConnection HolderKind = "connection"
	HolderOperation  HolderKind = "operation"
)

// Request is what every update carries.
type Request struct {
	// ID makes the update idempotent: a repeated id gets the first answer, also
	// after the workflow continued as new. 1 to 128 printable characters.
	ID string `json:"request_id"`
	// By is an opaque id of who asks.
	By string `json:"by,omitzero"`
}

// ConnectRequest takes or renews a hold, and wakes the box if needed.
type ConnectRequest struct {
	Request
	HolderID string     `json:"holder_id"`
	Kind     HolderKind `json:"kind,omitzero"`   // default connection
	Origin   string     `json:"origin,omitzero"` // where it comes from, for "why"; default By
	Lease    Duration   `json:"lease,omitzero"`  // default policy.holder_lease; at most policy.max_run
	// LookWithin has a running box read at its provider again when it was last
	// seen longer ago than this; zero takes the newest look, however old.
	LookWithin Duration `json:"look_within,omitzero"`
}

// ConnectAnswer says how far the box is; it never waits for the wake.
type ConnectAnswer struct {
	State    State  `json:"state"`
	HolderID string `json:"holder_id"`
	// LeaseUntil is when the hold ends unless it is renewed; not set when a
	// repeated request finds its hold released.
	LeaseUntil  time.Time `json:"lease_until,omitzero"`
	GatewayPath string    `json:"gateway_path"`
	// RetryAfter is when to ask again; zero when the box is ready.
	RetryAfter Duration `json:"retry_after,omitzero"`
	// Seen is what the provider said last, and how long ago: the state goes by it.
	Seen *Sighting `json:"last_seen,omitzero"`
}

// ReleaseRequest ends a hold. Ending one that is gone is success.
type ReleaseRequest struct {
	Request
	HolderID string `json:"holder_id"`
}

// RenewRequest extends a hold; it never shortens it.
type RenewRequest struct {
	Request
	HolderID string   `json:"holder_id"`
	Lease    Duration `json:"lease,omitzero"`
}

// ActionAnswer says where a suspend, resume, keep or freeze stands; follow it
// with the status query.
type ActionAnswer struct {
	State  State  `json:"state"`
	Kept   bool   `json:"kept,omitzero"`
	Frozen bool   `json:"frozen,omitzero"`
	Text   string `json:"text"` // what follows, for people
}

// ReclaimAsk asks for one pass now, or a dry run.
type ReclaimAsk struct {
	Request
	ReclaimRequest
}

// RequestDeleteAsk asks what a deletion would lose.
type RequestDeleteAsk struct {
	Request
	// Undo keeps the box for this long after the confirmation; the default is
	// none for a deletion that a person asks for, and policy.undo at expiry.
	Undo Duration `json:"undo,omitzero"`
}

// Loss is what a person is shown before they confirm: what there is, how old
// that knowledge is, and what an export holds of it.
type Loss struct {
	Workspace     string   `json:"workspace"`
	Epoch         int      `json:"epoch"`
	Conversations int      `json:"conversations"`
	Events        int      `json:"events"`
	LastUse       Duration `json:"last_use_age"` // "never" when it was not used
	// ScanAge is how old the numbers above are; "never" when nothing was read.
	ScanAge Duration `json:"scan_age"`
	// Covered says that a verified export holds all of the history above.
	Covered bool     `json:"covered"`
	Export  Receipt  `json:"export,omitzero"` // the newest verified export
	Undo    Duration `json:"undo,omitzero"`   // how long a confirmed deletion can be taken back
	// NotExported names what no export holds, in sentences.
	NotExported []string  `json:"not_exported"`
	Token       string    `json:"confirmation_token"` // what confirm-delete must repeat: a fingerprint, not a secret
	Expires     time.Time `json:"token_expires"`      // after this it confirms nothing
}

// ConfirmDelete is the signal of a person who saw a [Loss]. It is durable with
// no worker up; status.last_confirmation says what became of it.
type ConfirmDelete struct {
	Token string `json:"token"` // of the newest request
	By    string `json:"by,omitzero"`
	// WithoutHistory accepts that history which no export holds is lost.
	WithoutHistory bool `json:"without_history,omitzero"`
}

// CancelDelete takes a request or a confirmation back, until the provider was
// told to destroy the box.
type CancelDelete struct {
	By string `json:"by,omitzero"`
}

// Confirmation is what became of the last confirm-delete or cancel-delete
// signal, or why a confirmed deletion was given up since.
type Confirmation struct {
	Token string    `json:"token"`
	At    time.Time `json:"at"`
	By    string    `json:"by,omitzero"`
	// Cancel says that the signal was a cancel-delete.
	Cancel   bool   `json:"cancel,omitzero"`
	Accepted bool   `json:"accepted"` // of a confirmation: the deletion is agreed; of a cancellation: it is off
	Reason   Reason `json:"reason"`   // why it was accepted, refused or taken back
}

// SetPolicyAsk changes fields of the policy; zero fields keep their value.
type SetPolicyAsk struct {
	Request
	Policy Policy `json:"policy"`
}

// SetPolicyAnswer shows the deadlines before and after.
type SetPolicyAnswer struct {
	Policy     Policy    `json:"policy"`                      // in force, defaults filled in
	NextBefore time.Time `json:"next_action_before,omitzero"` // the armed deadline before the change
	NextAfter  time.Time `json:"next_action_after,omitzero"`  // and after it
	Risks      []string  `json:"risks,omitzero"`              // what nobody keeps
}

// SwitchAsk turns keep or freeze on or off.
type SwitchAsk struct {
	Request
	On bool `json:"on"`
}

// AdoptAsk takes over a box that is there.
type AdoptAsk struct {
	Request
	// BoxID is the provider's own id of the box.
	BoxID string `json:"box_id"`
}

// RestoreAsk puts the newest export into a new box.
type RestoreAsk struct {
	Request
	// AcceptIncomplete says that a person knows that the export lacks something of
	// the workspace.
	AcceptIncomplete bool `json:"accept_incomplete,omitzero"`
}

// AbandonAsk ends the watch over a box that cannot be had any more.
type AbandonAsk struct {
	Request
	// Reason is one sentence, kept for ever. Required.
	Reason string `json:"reason"`
	// Force abandons a box that is within reach: it goes on costing money.
	Force bool `json:"force,omitzero"`
}

// HoldSignal stops every destructive step of the box, or lets them go on.
type HoldSignal struct {
	On     bool   `json:"on"`
	By     string `json:"by,omitzero"`
	Reason string `json:"reason,omitzero"` // for people; at most 256 characters
}

// ActivitySignal reports use from outside, as an age, and operations by id.
type ActivitySignal struct {
	IdleFor Duration `json:"idle_for,omitzero"` // zero means now
	Origin  string   `json:"origin,omitzero"`
	Begun   []string `json:"begun,omitzero"` // operations that hold the box from now on
	Ended   []string `json:"ended,omitzero"` // operations that hold it no longer
	// Epoch says which box was used; of another one than the present it is
	// nothing. Zero means the present one.
	Epoch int `json:"epoch,omitzero"`
}

// WatchedID begins the ids of observations that a worker sends by itself, because
// the watch at a provider told it of a change.
const WatchedID = "watch-"

// ObservedSignal is what a watcher or a reconcile pass saw at the provider.
type ObservedSignal struct {
	ID          string      `json:"id,omitzero"`
	Observation Observation `json:"observation"`
}

// Input is the argument of the workflow: the spec at the first start, and the
// whole of the facts when it continues as new.
type Input struct {
	Spec Spec `json:"spec"`
	// Capabilities is the provider's row as the starter knows it.
	Capabilities Capabilities `json:"capabilities,omitzero"`
	// Carried is set by continue-as-new only.
	Carried *Facts `json:"carried,omitzero"`
	// Rebuilt is what the ledger says of a workspace whose workflow is gone; set
	// by a rebuild of the fleet only.
	Rebuilt *Facts `json:"rebuilt,omitzero"`
	// TurnsPerRun forces continue-as-new after so many turns; tests only.
	TurnsPerRun int `json:"turns_per_run,omitzero"`
}
