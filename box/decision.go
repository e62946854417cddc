package box

import "time"

// Decision is a step that was begun, and the facts that led to it. It is how
// "why was it suspended?" is answered after the facts have moved on.
type Decision struct {
	At     time.Time `json:"at"`
	Step   StepKind  `json:"step"`
	State  State     `json:"state"` // before the step
	Reason Reason    `json:"reason"`
	Facts  Grounds   `json:"facts,omitzero"`
}

// Grounds are the facts that [Next] weighs, as they were; what was not so is
// left out. Times are the engine's.
type Grounds struct {
	LastUse    time.Time `json:"last_use,omitzero"`
	AwakeSince time.Time `json:"awake_since,omitzero"`
	IdleAfter  Duration  `json:"idle_after,omitzero"` // the policy's, while it runs
	WallAt     time.Time `json:"wall_at,omitzero"`    // the hard end of this awake time
	Holders    int       `json:"holders,omitzero"`
	Wanted     string    `json:"wanted,omitzero"` // "suspend" or "resume", as a person asked

	SuspendedSince time.Time `json:"suspended_since,omitzero"`
	ExpiresAt      time.Time `json:"expires_at,omitzero"`
	NoticedFor     time.Time `json:"noticed_for,omitzero"` // the expiry that people were told
	MemoryKept     Tri       `json:"memory_kept,omitzero"` // of a suspended box, as it was last seen

	ExportCovers   bool   `json:"export_covers_last_use,omitzero"`
	ExportSHA256   string `json:"export_sha256,omitzero"`
	ExportVerified bool   `json:"export_verified,omitzero"` // read back for this deletion
	ConfirmedBy    string `json:"confirmed_by,omitzero"`
	WithoutHistory bool   `json:"without_history,omitzero"`

	LastSeen   Phase     `json:"last_seen,omitzero"` // at the provider
	LastSeenAt time.Time `json:"last_seen_at,omitzero"`
	Failures   int       `json:"failures,omitzero"` // of this step before
}

// decide records that a step is begun, before it changes anything.
func (f *Facts) decide(step Step, now time.Time) {
	g := Grounds{
		Holders: len(f.Holders), ExportCovers: f.covered(), ExportSHA256: f.Receipt.SHA256,
		LastSeen: f.Observed.Phase, LastSeenAt: f.ObservedAt,
	}
	if f.awake() {
		g.LastUse, g.AwakeSince, g.IdleAfter = f.LastUse, f.AwakeSince, f.IdleAfter()
		g.WallAt, _ = f.wallAt()
	} else {
		g.SuspendedSince, g.NoticedFor = f.SuspendedSince, f.NoticedFor
		g.ExpiresAt, _ = f.expiryAt()
		g.MemoryKept = f.Observed.MemoryKept
	}
	switch {
	case f.SuspendWanted != nil:
		g.Wanted = UpdateSuspend
	case f.ResumeWanted != nil:
		g.Wanted = UpdateResume
	}
	if f.deletionDue() {
		g.ConfirmedBy, g.ExportVerified, g.WithoutHistory = f.Deletion.confirmer(), f.Deletion.Verified, f.Deletion.WithoutHistory
	}
	if f.Failure != nil && f.Failure.Step == step.Kind {
		g.Failures = f.Failure.Count
	}
	f.Decided = &Decision{At: now, Step: step.Kind, State: f.State, Reason: step.Reason, Facts: g}
}
