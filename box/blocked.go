package box

import (
	"errors"
	"fmt"
)

// Block says what an account at a provider lacks, so that nothing goes on before
// a person does something about it. A rate that is used up is none: it passes by
// itself. Persisted: values never change meaning.
type Block string

// The blocks.
const (
	BlockQuota   Block = "quota"   // the account has as many boxes as it may have: free room, or ask for more
	BlockBalance Block = "balance" // the account has no money left: pay
)

// Flag is the flag that stands beside the state while the block does; empty for
// what is no block.
func (b Block) Flag() string {
	switch b {
	case BlockQuota:
		return "quota-blocked"
	case BlockBalance:
		return "balance-blocked"
	}
	return ""
}

// code is the reason with which people are told of a block.
func (b Block) code() ReasonCode {
	if b == BlockBalance {
		return ReasonBalanceBlocked
	}
	return ReasonQuotaBlocked
}

// BlockOf returns what an account lacks, as a driver said it anywhere in the chain
// of an error of class Exhausted; empty for any other error.
func BlockOf(err error) Block {
	if ClassOf(err) != ClassExhausted {
		return ""
	}
	for e, ok := errors.AsType[*Error](err); ok; e, ok = errors.AsType[*Error](e.Err) {
		if e.Block != "" {
			return e.Block
		}
	}
	return ""
}

// Blocked returns what the account lacks for the step that is wanted; empty while
// nothing is known to be lacking. A failure outlives its step: a box that is not to
// be made any more needs no room.
func (f *Facts) Blocked() Block {
	if f.Failure == nil || f.Failure.Step == StepCreate && f.State != StateCreating {
		return ""
	}
	switch f.State {
	case StateDeleting, StateLost, StateCreateFailed, StateBoxArchived, StateAbandoned:
		return ""
	case StateCreating, StateStarting, StateRunning, StateDraining, StateSuspending, StateSuspended, StateResuming, StateMaintenanceWake,
		StateAwaitingConfirm, StateUndoWindow, StateExporting, StateDeleteBlocked, StateUnknown:
	}
	return f.Failure.Block
}

// toTell returns what a person is to know of the step that failed: of a block at
// once, since no further try gets past it, and else of what failed often in a row.
// Each is told once; a block again when a person was let through meanwhile.
func (f *Facts) toTell(step Step) (Reason, bool) {
	last := f.Failure
	switch {
	case step.Ask != nil:
		return Reason{}, false
	case last.Block == "":
		return f.retryReason(), last.Count == attentionTries
	case last.Block == f.BlockTold:
		return Reason{}, false
	}
	f.BlockTold = last.Block
	return Reason{last.Block.code(), fmt.Sprintf("%s cannot go on: %s", last.Step, last.Message)}, true
}
