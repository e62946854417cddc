package box

import (
	"slices"
	"time"
)

// Status is the answer of the status query: what a person needs to know now.
type Status struct {
	Workspace string `json:"workspace"`
	Owner     string `json:"owner,omitzero"`
	Provider  string `json:"provider"`
	Epoch     int    `json:"epoch"`
	// AsOf is the time of the answer on the engine's clock: ages count up to
	// it, and it stands where the workflow last ran.
	AsOf time.Time `json:"as_of"`
	// Source is "ledger" when the workflow was not asked, but the ledger read.
	Source string   `json:"source,omitzero"`
	State  State    `json:"state"`
	Since  Duration `json:"state_age"`
	Flags  []string `json:"flags,omitzero"`
	Reason Reason   `json:"reason"`

	Next   StepKind  `json:"next_action,omitzero"`
	NextAt time.Time `json:"next_action_at,omitzero"`

	IdleFor        Duration      `json:"idle_for,omitzero"`
	Holders        []Holder      `json:"holders,omitzero"`
	SuspendedSince time.Time     `json:"suspended_since,omitzero"`
	Export         Receipt       `json:"export,omitzero"`
	ExportAge      Duration      `json:"export_age,omitzero"`
	ExportCovers   bool          `json:"export_covers_last_use"`
	Reclaimed      int64         `json:"reclaimed_bytes"`
	Conversations  int           `json:"conversations"`
	Events         int           `json:"events"`
	Deletion       *Deletion     `json:"deletion,omitzero"`
	Confirmation   *Confirmation `json:"last_confirmation,omitzero"`
	Failure        *Failure      `json:"failure,omitzero"`
	Ref            Ref           `json:"ref,omitzero"`
	Policy         Policy        `json:"policy"`
	Watches        []Watch       `json:"watches"`
	Risks          []string      `json:"risks,omitzero"`
}

// Why is the answer of the why query: why it is as it is, what comes next and
// when, and who can stop it.
type Why struct {
	AsOf       time.Time    `json:"as_of"`
	Source     string       `json:"source,omitzero"` // as in a status
	State      State        `json:"state"`
	Because    Reason       `json:"because"`
	Next       StepKind     `json:"next_action"`
	NextAt     time.Time    `json:"next_action_at,omitzero"`
	NextReason Reason       `json:"next_reason"`
	StoppedBy  string       `json:"who_can_stop_it,omitzero"`
	Holders    []HolderView `json:"holders,omitzero"`
	Failure    *Failure     `json:"failure,omitzero"`
	// Decided is the step that began last, with the facts that led to it.
	Decided     *Decision    `json:"last_decision,omitzero"`
	Transitions []Transition `json:"transitions"`
}

// HolderView is a holder with its age, for people.
type HolderView struct {
	ID     string     `json:"id"`
	Kind   HolderKind `json:"kind"`
	Origin string     `json:"origin,omitzero"`
	Age    Duration   `json:"age"`
	EndsIn Duration   `json:"lease_ends_in"`
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
	next := Next(f, now)
	s := Status{
		Workspace: f.Spec.Workspace, Owner: f.Spec.Owner, Provider: f.Spec.Provider, Epoch: f.Epoch,
		AsOf: now, State: f.State, Since: age(now, f.StateSince), Flags: f.Flags(), Reason: f.because(),
		Next: next.Upcoming(), NextAt: next.At,
		Holders: slices.Clone(f.Holders), SuspendedSince: f.SuspendedSince,
		Export: f.Receipt, ExportCovers: f.covered(), Reclaimed: f.Reclaimed,
		Deletion: f.Deletion, Confirmation: f.Confirmation, Failure: f.Failure, Ref: f.Ref, Policy: f.Policy,
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
	if plan, err := Plan(f.Policy, f.Capabilities); err == nil {
		s.Watches, s.Risks = plan.Watches, plan.Risks
	}
	if risk := f.nativeRisk(); risk != "" {
		s.Risks = append(s.Risks, risk)
	}
	return s
}

// WhyAt returns the answer to "why" at a time. It changes nothing.
func (f *Facts) WhyAt(now time.Time) Why {
	next := Next(f, now)
	w := Why{
		AsOf: now, State: f.State, Because: f.because(), Next: next.Upcoming(), NextAt: next.At, NextReason: next.Reason,
		StoppedBy: next.StoppedBy, Failure: f.Failure, Decided: f.Decided, Transitions: slices.Clone(f.Transitions),
	}
	for _, h := range f.Holders {
		w.Holders = append(w.Holders, HolderView{ID: h.ID, Kind: h.Kind, Origin: h.Origin, Age: age(now, h.Since), EndsIn: age(h.Until, now)})
	}
	return w
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
		{"unhealthy", f.Unhealthy},
		{"needs-attention", f.NeedsAttention()},
	} {
		if flag.on {
			out = append(out, flag.name)
		}
	}
	return out
}

// NeedsAttention reports whether a person should look: something keeps failing,
// or a decision waits that no timer makes.
func (f *Facts) NeedsAttention() bool {
	switch f.State {
	case StateLost, StateDeleteBlocked, StateCreateFailed, StateUnknown:
		return true
	case StateCreating, StateStarting, StateRunning, StateDraining, StateSuspending, StateSuspended, StateResuming,
		StateMaintenanceWake, StateAwaitingConfirm, StateUndoWindow, StateExporting, StateDeleting, StateBoxArchived:
	}
	return f.Failure != nil && f.Failure.Count >= 5
}
