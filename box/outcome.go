package box

import (
	"fmt"
	"slices"
	"time"
)

// Outcome is what an activity answered for a step. Exactly one of Failed and
// the field of the step is set.
type Outcome struct {
	Failed *StepFailure `json:"failed,omitzero"`

	Observation  Observation   `json:"observation,omitzero"`  // create, adopt, await-ready, observe, suspend, deepen, resume, delete
	Ready        bool          `json:"ready,omitzero"`        // its agent-server answers
	Adopted      bool          `json:"adopted,omitzero"`      // create: it was there before, and somebody may have worked in it
	Capabilities *Capabilities `json:"capabilities,omitzero"` // create, adopt, suspend
	Use          *Use          `json:"use,omitzero"`          // quiesce, scan, restore
	Notes        []string      `json:"notes,omitzero"`        // restore: what is not as it was
	Busy         string        `json:"busy,omitzero"`         // quiesce: why it is in use after all
	Reclaim      ReclaimReport `json:"reclaim,omitzero"`
	Receipt      Receipt       `json:"receipt,omitzero"`
	Problem      string        `json:"problem,omitzero"`    // verify-export: what does not match
	Deliveries   []Delivery    `json:"deliveries,omitzero"` // notify
	// Listeners are who is told of events, with every outcome; none costs nothing.
	Listeners []Listener `json:"listeners,omitzero"`
}

// StepFailure is an error of an activity, in the words that go into a history.
type StepFailure struct {
	Class      Class    `json:"class"`
	Message    string   `json:"message"`
	RetryAfter Duration `json:"retry_after,omitzero"`
	// NotBegun says that the box and its provider were not reached at all: no
	// worker, no credentials. It says nothing about the box.
	NotBegun bool `json:"not_begun,omitzero"`
	// Listeners are those of the outcome, where it is known who listens.
	Listeners []Listener `json:"listeners,omitzero"`
}

// shorten cuts what a box, a provider or a receiver said: the facts are the input
// of the next run, and none of them may make that too large.
func (o *Outcome) shorten() {
	for _, said := range []*string{&o.Observation.Evidence, &o.Busy, &o.Problem} {
		*said = cutTo(*said, maxSaid)
	}
	if more := len(o.Notes) - maxTold; more > 0 {
		o.Notes = append(slices.Clone(o.Notes[:maxTold]), fmt.Sprintf("and %d more", more))
	}
	for i, note := range o.Notes {
		o.Notes[i] = cutTo(note, maxSaid)
	}
	if o.Failed != nil {
		short := *o.Failed
		short.Message = cutTo(short.Message, maxSaid)
		o.Failed = &short
	}
}

// maxTold bounds the notes of a restore that are repeated.
const maxTold = 5

// How often a step may fail before it is skipped (where that is safe) or a
// deletion is blocked.
const (
	quiesceTries     = 3
	reclaimTries     = 2
	exportTries      = 3
	exportPatience   = 10 * time.Minute
	maintenanceTries = 3
	readyTries       = 5
	maxRepairs       = 3
	repairWindow     = time.Hour
	// drainHold is how long after it was last closed the door is counted on to be
	// closed: less than the lease of a drain.
	drainHold = 2 * time.Minute
)

// Apply stores the outcome of a step. It decides nothing that [Next] decides:
// it moves the state and remembers.
func (f *Facts) Apply(step Step, out Outcome, now time.Time) {
	out.shorten()
	f.listen(out)
	defer f.recordUnhealthy(f.Unhealthy, now)
	if out.Failed != nil {
		f.fail(step, *out.Failed, now)
		return
	}
	if step.Kind == StepObserve && !out.Observation.Phase.known() {
		f.fail(step, StepFailure{Class: ClassUnknown, Message: "the provider's answer is unclear: " + orElse(out.Observation.Evidence, "it names no state")}, now)
		return
	}
	if f.Failure != nil && f.Failure.Step == step.Kind {
		f.Failure = nil
	}
	kept := f.keepsMemory()
	if out.Observation.Phase != "" {
		f.observe(out.Observation, now)
	}
	if step.LeavesMarks() {
		f.Recorded = f.Recording
	}
	if n := out.Observation.Native; n != nil {
		f.Native = *n
	}
	switch step.Kind {
	case StepCreate, StepAwaitReady:
		f.applyCreated(step, out, now)
	case StepResume:
		f.applyResumed(step, out, now)
	case StepObserve:
		f.Look = false
		since := f.SuspendedSince
		f.applyObserved(out.Observation, now)
		f.WakeOwed = false
		f.gaveUpMemory(kept, ReasonSeenAtProvider, now)
		if !f.SuspendedSince.Equal(since) { // no step of ours did that, so none told the ledger
			f.Durable++
		}
	case StepScan:
		f.scanned(out.Use, now)
		f.finish(*step.Ask, Result{})
	case StepQuiesce:
		f.applyQuiet(out, now)
	case StepUndrain:
		f.applyUndrained(step, now)
	case StepReclaim:
		f.applyReclaimed(step, out, now)
	case StepExport:
		f.applyExported(step, out.Receipt, now)
	case StepSuspend:
		if c := out.Capabilities; c != nil { // it may be set up otherwise than when the box was made
			f.Capabilities.MemoryKept, f.Capabilities.Deepen = c.MemoryKept, c.Deepen
		}
		f.applySuspended(out.Observation, now)
	case StepNotify:
		f.oweNotice(step, out.Deliveries)
		f.applyNotified(step, now)
	case StepVerifyExport:
		f.applyVerified(out.Problem, now)
	case StepDelete:
		f.move(now, StateBoxArchived, Reason{ReasonDeleted, "destroyed: " + orElse(out.Observation.Evidence, "proven gone")})
		f.Holders, f.Sequence, f.ResumeWanted, f.SuspendWanted = nil, nil, nil, nil
		f.failAsks(ClassFailedPrecondition, "the box was deleted meanwhile; its history stays readable")
		f.dropAdopt("the workspace was deleted meanwhile; adopt the box under another workspace id")
		if f.Abandonment != nil {
			f.finish(Ask{ID: f.Abandonment.RequestID}, Result{Class: ClassFailedPrecondition, Error: "the box was destroyed meanwhile, so there is nothing to abandon"})
			f.Abandonment = nil
		}
	case StepAdopt:
		f.applyAdopted(out, now)
	case StepRestore:
		f.applyRestored(out.Use, out.Notes, now)
	case StepAbandon:
		f.applyAbandoned(now)
	case StepAdjust:
		f.adjusted(out.Observation, now)
	case StepDeepen:
		f.gaveUpMemory(kept, ReasonDeepenDue, now)
	case StepWait, StepFinish, StepRecord:
	}
}

func (f *Facts) applyCreated(step Step, out Outcome, now time.Time) {
	if !out.Observation.Ref.IsZero() {
		f.Ref = out.Observation.Ref
	}
	if out.Capabilities != nil {
		f.Capabilities = *out.Capabilities
	}
	f.Adopted = f.Adopted || out.Adopted
	if f.deletionDue() {
		f.move(now, StateExporting, Reason{ReasonConfirmed, "a deletion was confirmed before it was ready"})
		return
	}
	if !out.Ready {
		f.move(now, StateStarting, Reason{ReasonCreated, "the provider made it: " + out.Observation.Evidence})
		return
	}
	why := Reason{ReasonReady, "its agent-server answers"}
	if step.Kind == StepCreate {
		why = Reason{ReasonCreated, "created, and its agent-server answers"}
	}
	f.wake(now, why)
}

// wake makes the box running: the clocks of a running box start, those of a
// suspended one end.
func (f *Facts) wake(now time.Time, why Reason) {
	if f.Restoring != nil {
		f.awaitRestore(now)
		return
	}
	if !f.SuspendedSince.IsZero() {
		f.Durable++ // the ledger must not call it suspended any more
	}
	f.AwakeSince, f.WallFloor = now, time.Time{}
	f.LastUse = latest(f.LastUse, now)
	f.SuspendedSince, f.PausedClock, f.ExpiryFloor, f.NoticedFor = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	f.Reminders, f.RemindedAt = 0, time.Time{}
	f.SuspendedAt, f.NativeAt = time.Time{}, now
	f.DeepenFloor, f.DeepenTries = time.Time{}, 0
	f.Sequence, f.ResumeWanted = nil, nil
	f.Unhealthy = false
	f.move(now, StateRunning, why)
}

func (f *Facts) applyResumed(step Step, out Outcome, now time.Time) {
	if !out.Observation.Ref.IsZero() {
		f.Ref = out.Observation.Ref
	}
	switch {
	case !out.Ready:
		f.fail(step, StepFailure{Class: ClassUnavailable, Message: "it is up, but its agent-server does not answer yet"}, now)
	case step.Purpose == PurposeMaintenance && f.ResumeWanted == nil && len(f.Holders) == 0:
		f.move(now, StateMaintenanceWake, step.Reason)
	case step.Purpose == PurposeMaintenance:
		f.wake(now, step.Reason)
	default: // the entry of the resume itself tells it
		noted := f.Durable
		f.wake(now, step.Reason)
		f.Durable = noted
	}
}

func (f *Facts) applyQuiet(out Outcome, now time.Time) {
	f.scanned(out.Use, now)
	s := f.Sequence
	if out.Busy != "" { // whatever is wanted by now: the door is open again
		if out.Use != nil {
			f.LastUse = latest(f.LastUse, now.Add(-out.Use.IdleFor.Std()))
			if out.Use.Running > 0 || out.Use.InFlight > 0 {
				f.LastUse = now
			}
		}
		f.Sequence = nil
		f.UndrainOwed = false // the activity let work in again before it answered
		f.move(now, StateRunning, Reason{ReasonStillInUse, out.Busy})
		return
	}
	s.Quiet, s.Looked, s.DrainedAt = true, true, now
	if out.Use == nil || out.Use.Digest == "" {
		f.doubtScan() // this server does not tell what its history is
	}
	if a := f.Receipt.Archive; a.Held() || a.Withheld {
		// Files change without a word being said, and only another export shows it.
		f.doubtScan()
	}
	s.Exported = f.covered() // nothing was said since the newest export
	if s.Exported && s.Purpose == PurposeDelete && f.deletionDue() && f.Deletion.Undo == 0 && f.Hold == nil {
		f.Sequence = nil
		f.move(now, StateExporting, Reason{ReasonExported, "the newest export covers the last use"})
	}
}

// StepID names the step that began last, the same at every retry of its
// activity: "e<epoch>-s<number>".
func (f *Facts) StepID() string { return fmt.Sprintf("e%d-s%d", f.Epoch, f.Steps) }

func (f *Facts) scanned(use *Use, now time.Time) {
	if use == nil || use.Digest == "" {
		return
	}
	f.Scan = &Scan{At: now, Digest: use.Digest, Conversations: use.Conversations, Events: use.Events}
}

func (f *Facts) applyUndrained(step Step, now time.Time) {
	f.UndrainOwed = false
	if f.State == StateRunning {
		return
	}
	if f.State == StateMaintenanceWake {
		f.wake(now, Reason{ReasonUserArrived, f.arrivalOr("someone needs it")})
		return
	}
	f.Sequence, f.ResumeWanted = nil, nil
	f.LastUse = latest(f.LastUse, now)
	f.move(now, StateRunning, step.Reason)
}

func (f *Facts) applyExported(step Step, receipt Receipt, now time.Time) {
	f.Receipt, f.ReceiptAt = receipt, now
	f.Scan = &Scan{At: now, Digest: receipt.Digest, Conversations: receipt.Conversations, Events: receipt.Events}
	if f.Deletion != nil {
		f.Deletion.Verified = false
	}
	if step.Ask != nil {
		f.finish(*step.Ask, Result{Receipt: &receipt})
		return
	}
	if f.Sequence == nil { // after a turn
		return
	}
	f.TurnEnded = time.Time{}
	f.Sequence.Exported, f.Sequence.DrainedAt = true, now
	for _, ask := range slices.Clone(f.Asks) {
		if ask.Kind == AskExport {
			f.finish(ask, Result{Receipt: &receipt})
		}
	}
	if f.deletionDue() && !f.Deletion.ByPolicy && f.Deletion.Shown != receipt.Digest && !f.Deletion.WithoutHistory {
		f.voidDeletion(Reason{ReasonHistoryChanged, "the history is not what was shown any more; request the deletion again"}, now)
		return
	}
	if f.deletionDue() && f.newlyUnheld() && !f.Deletion.WithoutHistory {
		why := Reason{ReasonHistoryChanged, "the export lacks something of the workspace that was not shown; request the deletion again"}
		if f.Deletion.ByPolicy {
			why = Reason{ReasonAwaitingAnswer, "the policy deletes, but the export lacks " + f.lackText() + ", so a person must decide"}
		}
		f.voidDeletion(why, now)
		return
	}
	if f.Sequence.Purpose == PurposeDelete && f.deletionDue() && f.Deletion.Undo == 0 && f.Hold == nil {
		f.Sequence = nil
		f.move(now, StateExporting, Reason{ReasonExported, "an export covers the last use"})
	}
}

func (f *Facts) applySuspended(seen Observation, now time.Time) {
	s := f.Sequence
	f.Sequence, f.SuspendWanted = nil, nil
	f.SuspendedAt, f.TurnEnded = now, time.Time{}
	f.DeepenFloor, f.DeepenTries = time.Time{}, 0
	if !seen.Ref.IsZero() {
		f.Ref = seen.Ref
	}
	if s == nil || !s.Looked {
		f.doubtScan() // nobody saw what was said last
	}
	if f.SuspendedSince.IsZero() { // else no user was in it meanwhile: the paused clock goes on
		f.SuspendedSince, f.PausedClock = now, now
		f.ExpiryFloor, f.NoticedFor = time.Time{}, time.Time{}
	}
	f.failAsks(ClassFailedPrecondition, "the box was suspended meanwhile; connect first")
	text := "suspended: " + orElse(seen.Evidence, "proven")
	if s != nil && len(s.Skips) > 0 {
		text += fmt.Sprintf(" (%s)", s.Skips[0])
	}
	why := Reason{ReasonRequested, text}
	if s != nil {
		why.Code = map[Purpose]ReasonCode{
			PurposeIdle: ReasonIdle, PurposeExplicit: ReasonRequested, PurposeWall: ReasonWall,
			PurposeDelete: ReasonConfirmed, PurposeMaintenance: ReasonStaleExport,
			PurposeTurn: ReasonExported, // never a sequence
		}[s.Purpose]
	}
	if !f.deletionDue() {
		f.move(now, StateSuspended, why)
		return
	}
	switch {
	case !f.covered() && !f.Deletion.WithoutHistory && s != nil && s.Ended:
		f.move(now, StateExporting, why) // it was not asked yet whether it can be woken for an export
	case !f.covered() && !f.Deletion.WithoutHistory:
		f.move(now, StateDeleteBlocked, Reason{ReasonExportImpossible, "suspended and kept: " + f.skipText(s)})
	case now.Before(f.undoAt()):
		f.move(now, StateUndoWindow, why)
	default:
		f.move(now, StateExporting, why)
	}
}

func (f *Facts) skipText(s *Sequence) string {
	if s == nil || len(s.Skips) == 0 {
		return "no export covers the last use"
	}
	return s.Skips[len(s.Skips)-1]
}

func (f *Facts) applyNotified(step Step, now time.Time) {
	if f.State == StateAwaitingConfirm {
		f.Reminders++
		f.RemindedAt = now
		return
	}
	if f.State != StateSuspended {
		return
	}
	f.NoticedFor = step.At
	if due := now.Add(f.noticeLead()); due.After(step.At) { // people get the whole window
		f.NoticedFor, f.ExpiryFloor = due, latest(f.ExpiryFloor, due)
	}
}

func (f *Facts) applyVerified(problem string, now time.Time) {
	if !f.deletionDue() {
		return // taken back while the export was read
	}
	if problem == "" {
		f.Deletion.Verified = true
		return
	}
	f.Failure = &Failure{Step: StepVerifyExport, Class: ClassUnknown, Message: problem, Count: 1, Since: now, At: now}
	f.Receipt = Receipt{} // it proves nothing any more: another export is needed
	f.Deletion.Rejected++
	if f.Deletion.Rejected > 1 {
		f.move(now, StateDeleteBlocked, Reason{ReasonExportImpossible, "the export store does not give back what it took: " + problem})
	}
}

func (f *Facts) arrivalOr(text string) string {
	if f.ResumeWanted == nil && len(f.Holders) == 0 {
		return text
	}
	return f.arrivalText()
}
