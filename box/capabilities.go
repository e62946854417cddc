package box

// Tri is an answer about a provider whose zero value says that nobody has
// looked. A driver's row is complete when nothing in it is Unknown.
type Tri uint8

// The three answers.
const (
	Unknown Tri = iota
	Yes
	No
)

// String returns "unknown", "yes" or "no".
func (t Tri) String() string {
	switch t {
	case Unknown:
		return "unknown"
	case Yes:
		return "yes"
	case No:
		return "no"
	}
	return "unknown"
}

// MarshalText writes the word, so that histories and tables are readable.
func (t Tri) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads the word; anything else is Unknown, never an answer.
func (t *Tri) UnmarshalText(text []byte) error {
	switch string(text) {
	case "yes":
		*t = Yes
	case "no":
		*t = No
	default:
		*t = Unknown
	}
	return nil
}

// Lead says who acts first on an idle box.
type Lead string

// Who leads. The zero value means unknown.
const (
	LeadOurs     Lead = "ours"     // our timer acts, the provider's is a longer safety net or absent
	LeadProvider Lead = "provider" // the provider suspends by itself; we notice
)

// Capabilities is one provider's row: what its driver claims, and so what the
// conformance suite checks in both directions. It generates docs/providers.md.
type Capabilities struct {
	Driver string `json:"driver"`
	// Suspend says whether an idle box can be suspended at all.
	Suspend Tri `json:"suspend"`
	// MemoryKept says whether processes go on where they were after a resume.
	MemoryKept Tri `json:"memory_kept"`
	// SameIdentity says whether the provider's id survives a resume.
	SameIdentity Tri `json:"same_identity"`
	// URLStable and KeyStable say whether the address and the credential do.
	URLStable Tri `json:"url_stable"`
	KeyStable Tri `json:"key_stable"`
	// LookingIsUse says whether reading the box over the network keeps it awake
	// at the provider.
	LookingIsUse Tri `json:"looking_is_use"`
	// List says whether all our boxes can be listed, suspended ones included.
	List Tri `json:"list"`
	// Watch says whether the provider tells us when a box ends by itself.
	Watch Tri `json:"watch"`
	// ExportNeedsRunning says whether history can be read only while it runs.
	ExportNeedsRunning Tri `json:"export_needs_running"`
	// Fence says whether a step that a newer one overtook is refused where the
	// box is, also after its deletion. Without it only the worker's own clock
	// keeps one that was cut off from doing what is not wanted any more.
	Fence Tri `json:"fence"`
	// NativeIdle says whether the provider has an idle timer of its own that
	// suspends a box and keeps its files, and that we set at creation. A timer that
	// can only destroy is none.
	NativeIdle Tri `json:"native_idle"`
	// Adopt says whether a box that we did not make can be taken over by its id.
	Adopt Tri `json:"adopt"`
	// NativeAdjust says whether that timer can be set again while the box runs,
	// which also starts it anew.
	NativeAdjust Tri `json:"native_adjust"`
	// Deepen says whether a suspended box whose memory is kept can be suspended
	// deeper, so that it holds no memory. Rows of before there was this claim say
	// nothing, and their boxes are left as they are.
	Deepen Tri `json:"deepen"`
	// NativeIdleLeast and NativeIdleMost bound that timer; equal where it is fixed,
	// zero where there is no bound.
	NativeIdleLeast Span `json:"native_idle_least,omitzero"`
	NativeIdleMost  Span `json:"native_idle_most,omitzero"`
	// Lead says who suspends an idle box first, where the policy does not say it
	// and the provider's timer can be what the policy says.
	Lead Lead `json:"lead"`
	// MaxRun is the provider's longest awake time, zero when there is none.
	MaxRun Span `json:"max_run,omitzero"`
	// PausedLife is how long the provider keeps a suspended box, zero for ever.
	PausedLife Span `json:"paused_life,omitzero"`
	// ResumeWait bounds a resume until the agent-server answers.
	ResumeWait Span `json:"resume_wait,omitzero"`
	// SuspendProof and DeleteProof name what counts as proof, in one line each.
	SuspendProof string `json:"suspend_proof"`
	DeleteProof  string `json:"delete_proof"`
	// Untested says what was never run against the live service; empty when
	// nothing is missing.
	Untested string `json:"untested,omitzero"`
}

// Missing returns the names of the claims that nobody has made: a driver's row
// must have none.
func (c Capabilities) Missing() []string {
	var out []string
	for _, claim := range []struct {
		name string
		is   Tri
	}{
		{"suspend", c.Suspend},
		{"memory_kept", c.MemoryKept},
		{"same_identity", c.SameIdentity},
		{"url_stable", c.URLStable},
		{"key_stable", c.KeyStable},
		{"looking_is_use", c.LookingIsUse},
		{"list", c.List},
		{"watch", c.Watch},
		{"export_needs_running", c.ExportNeedsRunning},
		{"fence", c.Fence},
		{"native_idle", c.NativeIdle},
		{"adopt", c.Adopt},
		{"native_adjust", c.NativeAdjust},
		{"deepen", c.Deepen},
	} {
		if claim.is == Unknown {
			out = append(out, claim.name)
		}
	}
	if c.Driver == "" {
		out = append(out, "driver")
	}
	if c.Lead == "" {
		out = append(out, "lead")
	}
	if c.SuspendProof == "" && c.Suspend == Yes {
		out = append(out, "suspend_proof")
	}
	if c.DeleteProof == "" {
		out = append(out, "delete_proof")
	}
	return out
}
