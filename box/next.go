package box

import (
	"fmt"
	"slices"
	"time"
)

// StepKind is one thing that the workflow does next. Persisted in failures.
type StepKind string

// The steps. All but wait and finish are one activity each.
const (
	StepWait         StepKind = "wait"
	StepFinish       StepKind = "finish"
	StepCreate       StepKind = "create"        // make it, and wait until it answers
	StepAwaitReady   StepKind = "await-ready"   // wait until its agent-server answers
	StepObserve      StepKind = "observe"       // read it at the provider
	StepScan         StepKind = "scan"          // read its use, for a person who asked
	StepQuiesce      StepKind = "quiesce"       // drain, read use once more, prepare for pause
	StepUndrain      StepKind = "undrain"       // let work in again
	StepReclaim      StepKind = "reclaim"       // free what can be made again
	StepExport       StepKind = "export"        // take the history into our store, verified
	StepSuspend      StepKind = "suspend"       // the provider's call, with proof
	StepDeepen       StepKind = "deepen"        // suspend it deeper: give its memory up, with proof
	StepResume       StepKind = "resume"        // wake it, and wait until it answers
	StepNotify       StepKind = "notify"        // tell people
	StepAdjust       StepKind = "adjust"        // set the provider's own timers
	StepVerifyExport StepKind = "verify-export" // read the export back before a deletion
	StepDelete       StepKind = "delete"        // destroy it, with proof
	StepAdopt        StepKind = "adopt"         // take over a box that is there
	StepRestore      StepKind = "restore"       // put an exported history into a new box, read back
	StepAbandon      StepKind = "abandon"       // record for ever that nobody watches the box
	StepRecord       StepKind = "record"        // note in the ledger what a person changed
)

// Step is what to do next and why. It is what is armed and what people read.
type Step struct {
	Kind   StepKind `json:"kind"`
	Reason Reason   `json:"reason"`
	// At is when a wait ends; zero means that only an event ends it.
	At time.Time `json:"at,omitzero"`
	// Then says what a wait is for, as a step.
	Then StepKind `json:"then,omitzero"`
	// Purpose is set for the steps of a suspend sequence and for resumes.
	Purpose Purpose `json:"purpose,omitzero"`
	// Ask is the request that the step answers, if any.
	Ask *Ask `json:"ask,omitzero"`
	// StoppedBy says who can stop it.
	StoppedBy string `json:"stopped_by,omitzero"`
	// AnyWorker says that the step needs the export store and no provider, so that
	// a worker of any instance can do it.
	AnyWorker bool `json:"any_worker,omitzero"`
}

// Next answers what to do at now, or how long to wait, and why. It changes
// nothing and reads no clock; call [Facts.Advance] with the same time first.
func Next(f *Facts, now time.Time) Step {
	step := f.due(now)
	if step.Kind == StepWait {
		return f.recordFirst(step, now)
	}
	return step
}

// due is what is next for the box itself.
func (f *Facts) due(now time.Time) Step {
	step := f.choose(now)
	if step.Kind == StepWait || !f.tooEarly(step.Kind, now) {
		return step
	}
	return Step{
		Kind: StepWait, Then: step.Kind, At: f.Failure.RetryAt, Purpose: step.Purpose,
		Reason: f.retryReason(), StoppedBy: f.unservedStop(step.Kind),
	}
}

// retryReason says what failed last and is tried again.
func (f *Facts) retryReason() Reason {
	return Reason{ReasonFailed, fmt.Sprintf("%s failed %d times, last: %s", f.Failure.Step, f.Failure.Count, f.Failure.Message)}
}

// tooEarly reports whether a step that failed is not to be tried again yet.
func (f *Facts) tooEarly(kind StepKind, now time.Time) bool {
	return f.Failure != nil && f.Failure.Step == kind && now.Before(f.Failure.RetryAt)
}

func (f *Facts) choose(now time.Time) Step {
	if f.Abandonment != nil && f.State != StateAbandoned && f.State != StateBoxArchived {
		return f.nextAbandon()
	}
	if f.Rebuilt {
		return Step{Kind: StepObserve, Reason: Reason{ReasonRebuilt, "rebuilt from the ledger, so the box is read before anything is done"}}
	}
	if f.Look {
		return Step{Kind: StepObserve, Reason: Reason{ReasonSeenAtProvider, "something was reported, so the box is read again before anything is done"}}
	}
	switch f.State {
	case StateCreating:
		if f.Adopt != nil {
			return Step{Kind: StepAdopt, Reason: Reason{ReasonRequested, "take over box " + f.Adopt.ID}}
		}
		return Step{Kind: StepCreate, Reason: Reason{ReasonRequested, "create box " + orElse(f.Ref.Name, f.Spec.Workspace)}}
	case StateStarting:
		if f.Restoring != nil {
			return Step{Kind: StepRestore, Reason: Reason{ReasonRequested, "put the exported history back before anyone gets in"}}
		}
		return Step{Kind: StepAwaitReady, Reason: Reason{ReasonCreated, "the box is up; its agent-server must answer"}}
	case StateResuming:
		return Step{Kind: StepResume, Reason: Reason{ReasonUserArrived, "wake the box"}}
	case StateRunning:
		return f.nextRunning(now)
	case StateDraining, StateSuspending, StateMaintenanceWake:
		return f.nextSequence(now)
	case StateSuspended, StateAwaitingConfirm:
		return f.orDeepen(f.orRenew(f.nextSuspended(now), now), now)
	case StateUndoWindow:
		return f.orDeepen(f.orRenew(f.nextUndo(), now), now)
	case StateExporting:
		return f.orRenew(f.nextDeletion(), now)
	case StateDeleting:
		if !f.toldToDestroy() {
			return f.orRenew(f.nextDeletion(), now)
		}
		if f.unmade() { // only the answer of the store was lost
			return f.closeUnmade()
		}
		return f.onHold(Step{Kind: StepDelete, Reason: Reason{ReasonConfirmed, "destroy the box; its export was read back"}, StoppedBy: "nobody: the provider was told"})
	case StateDeleteBlocked:
		at, _ := f.unblockAt()
		if f.Frozen {
			at = time.Time{}
		}
		wait := Step{Kind: StepWait, Then: StepResume, At: at, Reason: Reason{ReasonExportImpossible, "the deletion waits: " + f.failureText("no export covers the last use")}, StoppedBy: "owner: cancel-delete, resume, or a confirmation without history"}
		return f.orDeepen(f.orRenew(wait, now), now)
	case StateLost:
		return Step{Kind: StepWait, Reason: Reason{ReasonGoneAtProvider, "the box is gone without us; a person must decide"}, StoppedBy: "owner: restore, replace, or request-delete, which closes the workspace"}
	case StateCreateFailed:
		return Step{Kind: StepWait, Reason: Reason{ReasonRefused, "creation failed: " + f.failureText("refused")}, StoppedBy: "owner: resume tries again, request-delete closes the workspace"}
	case StateAbandoned:
		return Step{Kind: StepFinish, Reason: Reason{ReasonAbandoned, "abandoned; " + f.leavesBox()}}
	case StateBoxArchived:
		return Step{Kind: StepFinish, Reason: Reason{ReasonDeleted, "box-archived; the history stays readable"}}
	case StateUnknown:
	}
	return Step{Kind: StepObserve, Reason: Reason{ReasonFailed, "the state is not known: look again"}}
}

// nextSequence walks from awake to suspended: drain and last look, reclaim,
// export, the provider's call.
func (f *Facts) nextSequence(now time.Time) Step {
	s := f.Sequence
	if s == nil { // cannot happen; reading again is always safe
		return Step{Kind: StepObserve, Reason: Reason{ReasonFailed, "the state is not known: look again"}}
	}
	if s.Ended && f.Hold == nil && f.deletionDue() && f.Failure != nil && f.Failure.Step == StepSuspend {
		return f.nextDeletion() // a deletion beats the settling of what ended by itself
	}
	why := Reason{ReasonRequested, "on the way to suspended (" + string(s.Purpose) + ")"}
	if f.cancelsSequence() {
		why := Reason{ReasonUserArrived, "someone needs the box, so it stays awake"}
		switch {
		case f.Frozen:
			why = Reason{ReasonFrozen, "frozen, so it stays as it is"}
		case s.Purpose == PurposeDelete:
			why = Reason{ReasonCancelled, "the deletion is not agreed any more, so it stays awake"}
		}
		return Step{Kind: StepUndrain, Purpose: s.Purpose, Reason: why}
	}
	stop := map[Purpose]string{
		PurposeIdle: "anyone who connects, until the provider's call", PurposeExplicit: "nobody: a person asked",
		PurposeWall: "nobody: it is a hard maximum", PurposeDelete: "owner: cancel-delete", PurposeMaintenance: "anyone who connects",
		PurposeTurn: "", // never a sequence
	}[s.Purpose]
	step := Step{Purpose: s.Purpose, Reason: why, StoppedBy: stop}
	switch {
	case !s.Quiet:
		step.Kind = StepQuiesce
	case !s.Reclaimed && f.Hold == nil:
		step.Kind = StepReclaim
	case !s.Exported:
		step.Kind = StepExport
	default:
		step.Kind = StepSuspend
		step.StoppedBy = "nobody: the provider is being told"
	}
	if s.Quiet && !s.Ended && now.Sub(s.DrainedAt) > drainHold && !f.tooEarly(step.Kind, now) {
		step.Kind, step.StoppedBy = StepQuiesce, stop // the door may have opened by itself meanwhile
	}
	return step
}

// cancelsSequence reports whether the steps towards suspended must be undone.
// After the drain only a new admission cancels, not a clock that our own steps
// moved.
func (f *Facts) cancelsSequence() bool {
	s := f.Sequence
	if s == nil || s.Committed || s.Ended {
		return false
	}
	switch s.Purpose {
	case PurposeIdle:
		return f.holdersAlive() > 0 || f.ResumeWanted != nil || f.Frozen
	case PurposeMaintenance:
		return f.holdersAlive() > 0 || f.ResumeWanted != nil
	case PurposeDelete:
		return !f.deletionDue() || f.Frozen
	case PurposeExplicit:
		return f.Frozen || f.ResumeWanted != nil // the later of two wishes counts
	case PurposeWall:
		return f.Frozen
	case PurposeTurn:
	}
	return false
}

func (f *Facts) nextSuspended(now time.Time) Step {
	if f.ResumeWanted != nil || f.holdersAlive() > 0 {
		return Step{Kind: StepResume, Purpose: PurposeExplicit, Reason: Reason{ReasonUserArrived, f.arrivalText()}}
	}
	if f.exportAsked() {
		return Step{Kind: StepResume, Purpose: PurposeMaintenance, Reason: Reason{ReasonStaleExport, "an export was asked for and the newest one does not cover the last use"}}
	}
	if f.Frozen {
		return Step{Kind: StepWait, Reason: Reason{ReasonFrozen, "frozen: no timer acts"}, StoppedBy: "owner: freeze off"}
	}
	if f.State == StateAwaitingConfirm {
		at := f.reminderAt()
		if !now.Before(at) {
			return Step{Kind: StepNotify, Reason: Reason{ReasonAwaitingAnswer, "the paused TTL is over; the owner must keep, wake or delete the box"}}
		}
		return Step{Kind: StepWait, Then: StepNotify, At: at, Reason: Reason{ReasonAwaitingAnswer, "a person must decide; nothing is deleted before"}, StoppedBy: "owner: connect, keep or delete"}
	}
	expiry, expires := f.expiryAt()
	if !expires {
		why := Reason{ReasonNothingDue, "the policy keeps it suspended"}
		if f.Kept {
			why = Reason{ReasonKept, "kept: it does not expire"}
		}
		return Step{Kind: StepWait, Reason: why, StoppedBy: "anyone who connects"}
	}
	notice := expiry.Add(-f.noticeLead())
	if !f.NoticedFor.Equal(expiry) {
		if !now.Before(notice) {
			return Step{Kind: StepNotify, At: expiry, Reason: Reason{ReasonNoticeDue, "suspended since " + stamp(f.SuspendedSince) + "; it expires at " + stamp(expiry)}}
		}
		return Step{Kind: StepWait, Then: StepNotify, At: notice, Reason: Reason{ReasonNoticeDue, "tell people that it expires at " + stamp(expiry)}, StoppedBy: "anyone who connects; owner: keep"}
	}
	return Step{Kind: StepWait, Then: StepNotify, At: expiry, Reason: Reason{ReasonPausedTTL, "paused TTL " + f.Policy.PausedTTL.String() + "; then " + f.expiryText()}, StoppedBy: "anyone who connects; owner: keep"}
}

func (f *Facts) nextUndo() Step {
	if f.ResumeWanted != nil || f.holdersAlive() > 0 {
		return Step{Kind: StepResume, Purpose: PurposeExplicit, Reason: Reason{ReasonUserArrived, f.arrivalText()}}
	}
	if f.Frozen {
		return Step{Kind: StepWait, Reason: Reason{ReasonFrozen, "frozen: the undo window waits"}, StoppedBy: "owner: freeze off"}
	}
	text := "deletion confirmed by " + f.Deletion.confirmer() + "; it can be taken back for " + f.Deletion.Undo.String()
	if f.Hold != nil {
		text += "; " + f.holdReason("after that it waits").Text
	}
	return Step{
		Kind: StepWait, Then: StepDelete, At: f.undoAt(), StoppedBy: "owner: cancel-delete, or anyone who connects",
		Reason: Reason{ReasonConfirmed, text},
	}
}

// nextDeletion walks from a confirmed deletion to the provider's call: an
// export that covers the last use, read back, then the destruction.
func (f *Facts) nextDeletion() Step {
	d := f.Deletion
	switch {
	case d == nil || !d.Confirmed:
		return Step{Kind: StepObserve, Reason: Reason{ReasonCancelled, "no deletion is agreed: look again"}}
	case f.Frozen:
		return Step{Kind: StepWait, Reason: Reason{ReasonFrozen, "frozen: the confirmed deletion waits"}, StoppedBy: "owner: freeze off, or cancel-delete"}
	case f.adopting(): // whose it is, and where, must be known before anything is destroyed
		return Step{Kind: StepAdopt, Reason: Reason{ReasonRequested, "find out about box " + f.Adopt.ID + " before the deletion goes on"}, StoppedBy: "owner: cancel-delete"}
	case f.unmade():
		return f.closeUnmade()
	case f.NeverReady() && f.Ref.IsZero():
		return f.onHold(Step{Kind: StepDelete, Purpose: PurposeDelete, Reason: Reason{ReasonConfirmed, "nobody knows of a box: what there is of one is looked for and destroyed"}, StoppedBy: "nobody: the provider is being told"})
	case f.NeverReady():
		return f.onHold(Step{Kind: StepDelete, Purpose: PurposeDelete, Reason: Reason{ReasonConfirmed, "it never was ready, so nobody worked in it"}, StoppedBy: "nobody: the provider is being told"})
	case f.covered() && !d.Verified && !d.WithoutHistory:
		return Step{Kind: StepVerifyExport, Purpose: PurposeDelete, Reason: Reason{ReasonExported, "read the export back before anything is destroyed"}, StoppedBy: "owner: cancel-delete"}
	case f.covered(), d.WithoutHistory:
		return f.onHold(Step{Kind: StepDelete, Purpose: PurposeDelete, Reason: Reason{ReasonConfirmed, "confirmed by " + d.confirmer()}, StoppedBy: "nobody: the provider is being told"})
	}
	return Step{Kind: StepResume, Purpose: PurposeMaintenance, Reason: Reason{ReasonStaleExport, "the newest export does not cover the last use"}, StoppedBy: "owner: cancel-delete"}
}

// Interrupts reports whether a running step must be cancelled because of what
// arrived since: an automatic suspend gives way to a user until the provider's
// call, a deletion to its cancellation.
func Interrupts(f *Facts, running Step) bool {
	if running.Ask != nil {
		held := f.Hold != nil && running.Kind == StepReclaim && !running.Ask.Reclaim.DryRun
		return held || f.Abandonment != nil || !f.Frozen && (f.deletionDue() || f.SuspendWanted != nil)
	}
	switch running.Kind {
	case StepVerifyExport:
		return f.Abandonment != nil || !f.deletionDue()
	case StepNotify: // nobody waits for a receiver that does not answer
		return f.Abandonment != nil || f.ResumeWanted != nil || f.holdersAlive() > 0 || f.deletionDue()
	case StepQuiesce, StepReclaim, StepExport:
		if f.Abandonment != nil || f.Hold != nil && running.Kind == StepReclaim {
			return true
		}
		if running.Purpose == PurposeTurn {
			return !f.Frozen && (f.deletionDue() || f.SuspendWanted != nil)
		}
		return f.cancelsSequence()
	case StepWait, StepFinish, StepCreate, StepAwaitReady, StepObserve, StepScan, StepUndrain, StepSuspend, StepDeepen,
		StepResume, StepAdjust, StepDelete, StepAdopt, StepRestore, StepAbandon, StepRecord:
		return false
	}
	return false
}

func (f *Facts) exportAsked() bool {
	return slices.ContainsFunc(f.Asks, func(a Ask) bool { return a.Kind == AskExport })
}

// confirmer names who agreed to a deletion.
func (d *Deletion) confirmer() string {
	if d.ByPolicy {
		return "the policy, as chosen at creation"
	}
	return orElse(d.ConfirmedBy, unnamed)
}

// deletionDue reports whether a deletion of this very box is agreed.
func (f *Facts) deletionDue() bool {
	return f.Deletion != nil && f.Deletion.Confirmed && f.Deletion.Epoch == f.Epoch
}

func (f *Facts) undoAt() time.Time { return f.Deletion.ConfirmedAt.Add(f.Deletion.Undo.Std()) }

func (f *Facts) expiryText() string {
	if f.Policy.OnExpiry == OnExpiryDelete && f.unheld() == "" {
		return "it is deleted after a verified export, as chosen at creation"
	}
	return "a person is asked; nothing is deleted by itself"
}

func (f *Facts) holderText() string {
	h := f.Holders[0]
	text := fmt.Sprintf("%s %s", h.Kind, orElse(h.Origin, h.ID))
	if more := len(f.Holders) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return "held by " + text
}

func (f *Facts) arrivalText() string {
	if f.ResumeWanted != nil {
		return "resume asked for by " + orElse(f.ResumeWanted.By, unnamed)
	}
	return f.holderText()
}

func (f *Facts) failureText(other string) string {
	if f.Failure == nil || f.Failure.Step == StepDeepen { // that is beside the matter
		return other
	}
	return f.Failure.Message
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }
