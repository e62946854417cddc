package box

import (
	"slices"
	"time"
)

// Status is the answer of the status query: what a person needs to know now.
type Status struct {
	Workspace string `json:"workspace"`
	Owner     string `json:"owner,omitzero"` // as given at the start
	Provider  string `json:"provider"`       // the instance that it lives at
	Epoch     int    `json:"epoch"`          // counts the boxes that the workspace has had
	// AsOf is the time of the answer on the engine's clock: ages count up to
	// it, and it stands where the workflow last ran.
	AsOf time.Time `json:"as_of"`
	// Source is "ledger" when the workflow was not asked, but the ledger read.
	Source string   `json:"source,omitzero"`
	State  State    `json:"state"`
	Since  Duration `json:"state_age"`      // how long it has been in this state
	Flags  []string `json:"flags,omitzero"` // what is true beside the state, such as kept or quota-blocked
	Reason Reason   `json:"reason"`         // why it is in this state

	Next   StepKind  `json:"next_action,omitzero"`    // armed if it has a time, else under way or waiting for an event
	NextAt time.Time `json:"next_action_at,omitzero"` // when the armed deadline is due

	IdleFor        Duration      `json:"idle_for,omitzero"`          // since the last use; only while it is awake
	Holders        []Holder      `json:"holders,omitzero"`           // who keeps it awake
	SuspendedSince time.Time     `json:"suspended_since,omitzero"`   // only while it is suspended
	Export         Receipt       `json:"export,omitzero"`            // the newest verified export
	ExportAge      Duration      `json:"export_age,omitzero"`        // how old that is
	ExportCovers   bool          `json:"export_covers_last_use"`     // nothing was said since
	Reclaimed      int64         `json:"reclaimed_bytes"`            // freed in the box so far, over all passes
	Conversations  int           `json:"conversations"`              // as of the last look
	Events         int           `json:"events"`                     // as of the last look
	Deletion       *Deletion     `json:"deletion,omitzero"`          // the request or confirmation that stands
	Confirmation   *Confirmation `json:"last_confirmation,omitzero"` // what became of the last confirm-delete or cancel-delete
	Failure        *Failure      `json:"failure,omitzero"`           // the step that failed last, and its next try
	Ref            Ref           `json:"ref,omitzero"`               // the box at its provider; may change at each resume
	Seen           *Sighting     `json:"last_seen,omitzero"`         // what the provider said last
	Hold           *Hold         `json:"hold,omitzero"`              // nothing is destroyed while it is on
	Former         []Former      `json:"former,omitzero"`            // boxes of earlier epochs, which nothing touches
	Policy         Policy        `json:"policy"`                     // in force, defaults filled in
	Watches        []Watch       `json:"watches,omitzero"`           // who keeps which deadline
	Risks          []string      `json:"risks,omitzero"`             // what nobody keeps
	Webhooks       []WebhookView `json:"webhooks,omitzero"`          // who is told, and whether that works
	NoticesUntold  int           `json:"notices_untold,omitzero"`    // notices that reached nobody
}

// Why is the answer of the why query: why it is as it is, what comes next and
// when, and who can stop it.
type Why struct {
	AsOf       time.Time    `json:"as_of"`           // the time of the answer on the engine's clock
	Source     string       `json:"source,omitzero"` // "ledger" when the workflow was not asked, but the ledger read
	State      State        `json:"state"`
	Flags      []string     `json:"flags,omitzero"`           // what is true beside the state, as in the status
	Because    Reason       `json:"because"`                  // why it is in this state
	Next       StepKind     `json:"next_action"`              // what comes next
	NextAt     time.Time    `json:"next_action_at,omitzero"`  // not set when only an event brings it
	NextReason Reason       `json:"next_reason"`              // why that comes next
	StoppedBy  string       `json:"who_can_stop_it,omitzero"` // and how
	Holders    []HolderView `json:"holders,omitzero"`         // who keeps it awake
	Failure    *Failure     `json:"failure,omitzero"`         // the step that failed last, and its next try
	Seen       *Sighting    `json:"last_seen,omitzero"`       // what the provider said last
	// Decided is the step that began last, with the facts that led to it.
	Decided     *Decision    `json:"last_decision,omitzero"`
	Transitions []Transition `json:"transitions"` // the last 40, oldest first
}

// Sighting is what was last seen of the box at its provider.
type Sighting struct {
	Phase Phase `json:"phase"`
	// MemoryKept says, of a suspended box, whether its processes are kept as they
	// were; not set where the provider does not say.
	MemoryKept Tri `json:"memory_kept,omitzero"`
	// StoredBytes is what the provider keeps for it while it is suspended, by its
	// own count when it was suspended, or suspended deeper; not set where the
	// provider does not say.
	StoredBytes int64     `json:"stored_bytes,omitzero"`
	At          time.Time `json:"at,omitzero"`
	Age         Duration  `json:"age,omitzero"`
	// Evidence is what the provider said, in its own words.
	Evidence string `json:"evidence,omitzero"`
	// ToldBy is the id of the last signal from outside that differed from what
	// should be, and so made us look.
	ToldBy string `json:"told_by,omitzero"`
}

// HolderView is a holder with its age, for people.
type HolderView struct {
	ID     string     `json:"id"`
	Kind   HolderKind `json:"kind"`
	Origin string     `json:"origin,omitzero"`
	Age    Duration   `json:"age"`           // since it was taken
	EndsIn Duration   `json:"lease_ends_in"` // unless it is renewed
}

// Upcoming returns what comes next as people read it: a wait shows what it
// waits for.
func (s Step) Upcoming() StepKind {
	if s.Kind == StepWait && s.Then != "" {
		return s.Then
	}
	return s.Kind
}

// StatusAt returns the status at a time. It changes nothing.
func (f *Facts) StatusAt(now time.Time) Status {
	next := f.Armed(Next(f, now))
	s := Status{
		Workspace: f.Spec.Workspace, Owner: f.Spec.Owner, Provider: f.Spec.Provider, Epoch: f.Epoch,
		AsOf: now, State: f.State, Since: age(now, f.StateSince), Flags: f.Flags(), Reason: f.because(),
		Next: next.Upcoming(), NextAt: next.At,
		Holders: append([]Holder(nil), f.Holders...), SuspendedSince: f.SuspendedSince,
		Export: f.Receipt, ExportCovers: f.covered(), Reclaimed: f.Reclaimed,
		Deletion: f.Deletion, Confirmation: f.Confirmation, Failure: f.Failure, Ref: f.Ref, Policy: f.Policy.Effective(),
		Hold: f.Hold, Former: slices.Clone(f.Former),
		Webhooks: f.Outbox.webhooks(), NoticesUntold: f.Outbox.Untold,
	}
	if f.awake() && !f.LastUse.IsZero() {
		s.IdleFor = age(now, f.LastUse)
	}
	if !f.ReceiptAt.IsZero() {
		s.ExportAge = age(now, f.ReceiptAt)
	}
	if f.Scan != nil {
		s.Conversations, s.Events = f.Scan.Conversations, f.Scan.Events
	}
	s.Seen = f.seen(now)
	s.Watches = []Watch{}
	if plan, err := Plan(f.Policy, f.Capabilities); err == nil && f.State != StateBoxArchived { // then nothing is left to watch
		s.Watches, s.Risks = plan.Watches, plan.Risks
	}
	if risk := f.nativeRisk(); risk != "" {
		s.Risks = append(s.Risks, risk)
	}
	return s
}

// WhyAt returns the answer to "why" at a time. It changes nothing.
func (f *Facts) WhyAt(now time.Time) Why {
	next := f.Armed(Next(f, now))
	w := Why{
		AsOf: now, State: f.State, Flags: f.Flags(), Because: f.because(), Next: next.Upcoming(), NextAt: next.At, NextReason: next.Reason,
		StoppedBy: next.StoppedBy, Failure: f.Failure, Decided: f.Decided, Transitions: slices.Clone(f.Transitions),
	}
	w.Seen = f.seen(now)
	for _, h := range f.Holders {
		w.Holders = append(w.Holders, HolderView{ID: h.ID, Kind: h.Kind, Origin: h.Origin, Age: age(now, h.Since), EndsIn: age(h.Until, now)})
	}
	return w
}

// observe keeps a reading at the provider. What the provider counted when the box
// was suspended stands until the box is seen as anything else: a mere look counts
// nothing, and what a box holds changes only while it runs.
func (f *Facts) observe(seen Observation, now time.Time) {
	switch before := f.Observed; {
	case seen.Phase != PhaseSuspended || seen.StoredBytes < 0:
		seen.StoredBytes = 0
	case seen.StoredBytes == 0 && before.Phase == PhaseSuspended && before.Ref.Name == seen.Ref.Name:
		seen.StoredBytes = before.StoredBytes
	}
	f.Observed, f.ObservedAt = seen, now
}

// seen returns the last reading at the provider, nil when there was none.
func (f *Facts) seen(now time.Time) *Sighting {
	if f.Observed.Phase == "" {
		return nil
	}
	return &Sighting{
		Phase: f.Observed.Phase, MemoryKept: f.Observed.MemoryKept, StoredBytes: f.Observed.StoredBytes,
		At: f.ObservedAt, Age: age(now, f.ObservedAt), Evidence: f.Observed.Evidence, ToldBy: f.ToldBy,
	}
}

func (f *Facts) because() Reason {
	if len(f.Transitions) == 0 {
		return Reason{}
	}
	return f.Transitions[len(f.Transitions)-1].Reason
}

// Flags returns what is true beside the state.
func (f *Facts) Flags() []string {
	var out []string
	for _, flag := range []struct {
		name string
		on   bool
	}{
		{"kept", f.Kept},
		{"frozen", f.Frozen},
		{"held", f.Hold != nil},
		{"unhealthy", f.Unhealthy},
		{f.Blocked().Flag(), f.Blocked() != ""},
		{"needs-attention", f.NeedsAttention()},
	} {
		if flag.on {
			out = append(out, flag.name)
		}
	}
	return out
}

// NeedsAttention reports whether a person should look: something keeps failing,
// an account lacks room or money, or a decision waits that no timer makes.
func (f *Facts) NeedsAttention() bool {
	switch f.State {
	case StateLost, StateDeleteBlocked, StateCreateFailed, StateUnknown:
		return true
	case StateCreating, StateStarting, StateRunning, StateDraining, StateSuspending, StateSuspended, StateResuming,
		StateMaintenanceWake, StateAwaitingConfirm, StateUndoWindow, StateExporting, StateDeleting, StateBoxArchived, StateAbandoned:
	}
	return f.haunted() || f.Blocked() != "" || f.Failure != nil && f.Failure.Count >= attentionTries
}
