package box

import "time"

// State is what a workspace is doing, as callers see it: the search attribute
// BoxState and status.state. Persisted: values never change meaning.
type State string

// The states.
const (
	StateUnknown         State = "unknown"               // last reading failed or made no sense: look again
	StateCreating        State = "creating"              // the provider was asked, or is about to be
	StateCreateFailed    State = "create-failed"         // refused for good; nothing is billed
	StateStarting        State = "starting"              // there, but its agent-server does not answer yet
	StateRunning         State = "running"               // its agent-server answers
	StateDraining        State = "draining"              // new work is refused, last use is read once more
	StateSuspending      State = "suspending"            // reclaim, export, then the provider's call
	StateSuspended       State = "suspended"             // proven; files are kept
	StateResuming        State = "resuming"              // on its way back
	StateMaintenanceWake State = "maintenance-wake"      // awake for an export only; the paused clock goes on
	StateAwaitingConfirm State = "awaiting-confirmation" // paused TTL is over; a person must decide
	StateUndoWindow      State = "undo-window"           // confirmed; can still be cancelled
	StateExporting       State = "exporting"             // the export is taken or checked before a deletion
	StateDeleting        State = "deleting"              // the provider was told to destroy it: no way back; or is told as soon as a worker takes the step
	StateDeleteBlocked   State = "delete-blocked"        // a deletion was agreed, but its export cannot be had
	StateBoxArchived     State = "box-archived"          // destroyed; the history stays readable; final
	StateLost            State = "lost"                  // gone without us; a person must decide
	StateAbandoned       State = "abandoned"             // nobody watches it; the box may still exist and cost money; final
)

// ReasonCode is the fixed vocabulary of why something happened. Persisted.
type ReasonCode string

// The reasons.
const (
	ReasonRequested        ReasonCode = "requested"         // a person or the backend asked
	ReasonCreated          ReasonCode = "created"           // the provider made it
	ReasonReady            ReasonCode = "ready"             // its agent-server answers
	ReasonIdle             ReasonCode = "idle"              // last use is longer ago than the policy allows
	ReasonWall             ReasonCode = "wall"              // the hard maximum awake time is reached
	ReasonUserArrived      ReasonCode = "user-arrived"      // someone connected
	ReasonStillInUse       ReasonCode = "still-in-use"      // the last look found use
	ReasonHeld             ReasonCode = "held"              // a holder is alive
	ReasonQuiet            ReasonCode = "quiet"             // drained; nothing runs
	ReasonPausedTTL        ReasonCode = "paused-ttl"        // suspended longer than the policy allows
	ReasonNoticeDue        ReasonCode = "notice-due"        // people are told before it happens
	ReasonDeepenDue        ReasonCode = "deepen-due"        // its memory was kept for as long as the policy allows
	ReasonConfirmed        ReasonCode = "confirmed"         // a person confirmed what was shown
	ReasonPolicy           ReasonCode = "policy"            // the policy said so at creation
	ReasonCancelled        ReasonCode = "cancelled"         // a person took it back
	ReasonUndoOver         ReasonCode = "undo-over"         // the undo window is over
	ReasonStaleExport      ReasonCode = "stale-export"      // the newest export does not cover the last use
	ReasonExported         ReasonCode = "exported"          // a receipt covers the last use
	ReasonDeleted          ReasonCode = "deleted"           // the provider's proof is in
	ReasonEndedByItself    ReasonCode = "ended-by-itself"   // the box ended without us
	ReasonSeenAtProvider   ReasonCode = "seen-at-provider"  // an observation says so
	ReasonGoneAtProvider   ReasonCode = "gone-at-provider"  // proven absent
	ReasonFailed           ReasonCode = "failed"            // the last try failed; it is tried again
	ReasonRefused          ReasonCode = "refused"           // the provider will not do it as asked
	ReasonKept             ReasonCode = "kept"              // a person keeps it
	ReasonFrozen           ReasonCode = "frozen"            // a person froze it
	ReasonNothingDue       ReasonCode = "nothing-due"       // no timer is armed
	ReasonHistoryChanged   ReasonCode = "history-changed"   // it was used after what the person saw
	ReasonWithoutHistory   ReasonCode = "without-history"   // a person accepted the loss
	ReasonUnreachable      ReasonCode = "unreachable"       // its agent-server does not answer
	ReasonPolicyChanged    ReasonCode = "policy-changed"    // the policy was changed
	ReasonAwaitingAnswer   ReasonCode = "awaiting-answer"   // waits for a person
	ReasonExportImpossible ReasonCode = "export-impossible" // no export can be had; the box is kept
	ReasonAdopted          ReasonCode = "adopted"           // a box that was there was taken over
	ReasonReplaced         ReasonCode = "replaced"          // a person wants a new, empty box
	ReasonRestored         ReasonCode = "restored"          // a new box has the exported history, read back
	ReasonSeenAgain        ReasonCode = "seen-again"        // a former box was seen at the provider
	ReasonAbandoned        ReasonCode = "abandoned"         // an operator ended the watch
	ReasonOnHold           ReasonCode = "on-hold"           // a hold stops what destroys
	ReasonQuotaBlocked     ReasonCode = "quota-blocked"     // the account at the provider has as many boxes as it may have
	ReasonBalanceBlocked   ReasonCode = "balance-blocked"   // the account at the provider has no money left
	ReasonRebuilt          ReasonCode = "rebuilt"           // the workflow was lost; what the ledger holds goes on
)

// Reason is why, for machines and for people. Text is one sentence without a
// secret.
type Reason struct {
	Code ReasonCode `json:"code"`
	Text string     `json:"text"`
}

// Transition is one line of a workspace's readable history.
type Transition struct {
	At     time.Time `json:"at"`
	From   State     `json:"from,omitzero"`
	To     State     `json:"to"`
	Reason Reason    `json:"reason"`
	Epoch  int       `json:"epoch"`
}
