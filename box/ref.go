package box

import "fmt"

// Ref names one box at one provider. Callers outside hold the workspace id
// only: a ref may change when a box resumes.
type Ref struct {
	Provider string `json:"provider"` // instance name
	ID       string `json:"id"`       // the provider's own id
	Name     string `json:"name"`     // the deterministic name we gave it
	Epoch    int    `json:"epoch"`
	// Fingerprint is the account, region or engine that the box was created in.
	// An absence seen under any other fingerprint proves nothing.
	Fingerprint string `json:"fingerprint"`
}

// IsZero reports whether no box is named.
func (r Ref) IsZero() bool { return r == Ref{} }

// Identity is what marks a box as ours, written as labels where the provider
// has labels, and always part of the name.
type Identity struct {
	Installation string `json:"installation"` // 8 lower-case hex digits, one per installation
	Workspace    string `json:"workspace"`
	Epoch        int    `json:"epoch"`
}

// Name returns the deterministic name of the box: creating twice under one
// name can be noticed and adopted. At most 63 characters.
func (i Identity) Name() string {
	return fmt.Sprintf("bk-%s-%s-%d", i.Installation, i.Workspace, i.Epoch)
}

// Phase is what a provider says a box is doing, in our words. Persisted.
type Phase string

// The phases. An unknown or missing answer is PhaseUnknown, never PhaseGone.
const (
	PhaseUnknown   Phase = "unknown"
	PhaseStarting  Phase = "starting"
	PhaseRunning   Phase = "running"
	PhaseSuspended Phase = "suspended"
	PhaseFailed    Phase = "failed" // there, broken, not running; files may be intact
	PhaseGone      Phase = "gone"   // proven absent under the ref's fingerprint
)

// known reports whether the phase says anything.
func (p Phase) known() bool {
	switch p {
	case PhaseStarting, PhaseRunning, PhaseSuspended, PhaseFailed, PhaseGone:
		return true
	case PhaseUnknown:
		return false
	}
	return false
}

// Observation is one reading of a box at its provider.
type Observation struct {
	Ref   Ref   `json:"ref"`
	Phase Phase `json:"phase"`
	// MemoryKept says, of a suspended box, whether processes are frozen.
	MemoryKept Tri `json:"memory_kept,omitzero"`
	// Evidence is what the provider said, in its own words, for the history.
	Evidence string `json:"evidence,omitzero"`
	// Age is how long ago this phase began by the provider's own clock; zero
	// when it does not say.
	Age Span `json:"age,omitzero"`
	// StoredBytes is what the provider keeps for a suspended box, as much of it as
	// the provider itself counts: its disk, copies of it, or its checkpoints alone; the
	// driver's page says which. Zero when it does not say or nobody asked. A driver
	// reads it in Suspend and Deepen only, where a slow count is no harm, and never
	// fails for it.
	StoredBytes int64 `json:"stored_bytes,omitzero"`
	// Native is what the provider says that it was told to do by itself; nil when
	// it does not say.
	Native *Native `json:"native,omitzero"`
}

// Secret is a value that never leaves the process: it prints and marshals as
// a mask. Reveal it only where it is used.
type Secret string

// String returns a mask.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[redacted]"
}

// GoString returns a mask.
func (s Secret) GoString() string { return s.String() }

// MarshalText returns a mask, so that no encoder can leak the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalBinary returns a mask, for the encoders that ask for this form.
func (s Secret) MarshalBinary() ([]byte, error) { return s.MarshalText() }

// Reveal returns the value.
func (s Secret) Reveal() string { return string(s) }
