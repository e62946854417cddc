package box

import "time"

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
	MoreNotes    int           `json:"more_notes,omitzero"`   // restore: how many there are beside them
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
	// Unserved says why it was not begun: no worker took the step.
	Unserved bool `json:"unserved,omitzero"`
	// Block says what the account at the provider lacks.
	Block Block `json:"block,omitzero"`
	// Listeners are those of the outcome, where it is known who listens.
	Listeners []Listener `json:"listeners,omitzero"`
}

// shorten cuts what a box, a provider or a receiver said: the facts are the input
// of the next run, and none of them may make that too large.
func (o *Outcome) shorten() {
	for _, said := range []*string{&o.Observation.Evidence, &o.Busy, &o.Problem} {
		*said = cutTo(*said, maxSaid)
	}
	o.Notes, o.MoreNotes = ToldNotes(o.Notes, o.MoreNotes)
	if o.Failed != nil {
		short := *o.Failed
		short.Message = cutTo(short.Message, maxSaid)
		o.Failed = &short
	}
}

// maxTold bounds the notes of a restore that are repeated.
const maxTold = 5

// ToldNotes returns the notes of a restore that people are told, and how many
// there are beside them: of those that are given, and more that are not. What it
// returns it leaves as it is.
func ToldNotes(notes []string, more int) (told []string, left int) {
	for _, note := range notes[:min(len(notes), maxTold)] {
		told = append(told, cutTo(note, maxSaid))
	}
	return told, len(notes) - len(told) + max(0, more)
}

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
		f.applyRestored(out.Use, out.Notes, out.MoreNotes, now)
	case StepAbandon:
		f.applyAbandoned(now)
	case StepAdjust:
		f.adjusted(out.Observation, now)
	case StepDeepen:
		f.gaveUpMemory(kept, ReasonDeepenDue, now)
	case StepWait, StepFinish, StepRecord:
	}
}
