package box

import "time"

func (f *Facts) nextRunning(now time.Time) Step {
	if len(f.Asks) > 0 && !f.urgent(now) {
		return f.nextAsk()
	}
	if f.UndrainOwed {
		return Step{Kind: StepUndrain, Reason: Reason{ReasonUserArrived, "let work in again"}}
	}
	if f.Frozen {
		return f.orAside(Step{Kind: StepWait, Reason: Reason{ReasonFrozen, "frozen: no timer acts"}, StoppedBy: "owner: freeze off"}, now)
	}
	if f.deletionDue() {
		return Step{Kind: StepQuiesce, Purpose: PurposeDelete, Reason: Reason{ReasonConfirmed, "deletion confirmed by " + orElse(f.Deletion.ConfirmedBy, unnamed)}, StoppedBy: "owner: cancel-delete"}
	}
	wall, walled := f.wallAt()
	if walled && !now.Before(wall) {
		return Step{Kind: StepQuiesce, Purpose: PurposeWall, Reason: Reason{ReasonWall, "awake for " + Duration(now.Sub(f.AwakeSince).Round(time.Second)).String() + ", the most that is allowed"}, StoppedBy: "nobody: it is a hard maximum"}
	}
	if w := f.SuspendWanted; w != nil {
		return Step{Kind: StepQuiesce, Purpose: PurposeExplicit, Reason: Reason{ReasonRequested, "suspend asked for by " + orElse(w.By, unnamed)}, StoppedBy: "nobody: a person asked"}
	}
	return f.orAside(f.nextUnasked(now, wall, walled), now)
}

// nextUnasked is what a running box waits for when nobody wants anything of it.
func (f *Facts) nextUnasked(now, wall time.Time, walled bool) Step {
	if f.holdersAlive() > 0 {
		at := f.Holders[0].Until
		for _, h := range f.Holders[1:] {
			at = earliest(at, h.Until)
		}
		if walled {
			at = earliest(at, wall)
		}
		return Step{Kind: StepWait, At: at, Reason: Reason{ReasonHeld, f.holderText()}, StoppedBy: "holders: release"}
	}
	share := f.idleShare()
	idle, idles := f.idleAt()
	if idles && !now.Before(idle) {
		if share.lead == LeadProvider && f.ObservedAt.Before(idle) {
			// A call into a box that its provider suspended could wake it.
			return Step{Kind: StepObserve, Reason: Reason{ReasonIdle, "the provider should have suspended it after " + share.native.String() + "; look whether it did"}}
		}
		return Step{Kind: StepQuiesce, Purpose: PurposeIdle, Reason: Reason{ReasonIdle, "last use is " + Duration(now.Sub(f.LastUse).Round(time.Second)).String() + " ago, the policy allows " + share.ours.String()}, StoppedBy: "anyone who connects, until the provider's call"}
	}
	switch {
	case idles && (!walled || idle.Before(wall)) && share.lead == LeadProvider:
		return Step{Kind: StepWait, Then: StepObserve, At: idle, Reason: Reason{ReasonIdle, "the provider suspends it when idle for " + share.native.String() + "; look then"}, StoppedBy: "anyone who uses it"}
	case idles && (!walled || idle.Before(wall)):
		return Step{Kind: StepWait, Then: StepQuiesce, Purpose: PurposeIdle, At: idle, Reason: Reason{ReasonIdle, "suspend when idle for " + share.ours.String()}, StoppedBy: "anyone who uses it"}
	case walled:
		return Step{Kind: StepWait, Then: StepQuiesce, Purpose: PurposeWall, At: wall, Reason: Reason{ReasonWall, "suspend at the hard maximum awake time"}, StoppedBy: "owner: set-policy"}
	}
	return Step{Kind: StepWait, Reason: Reason{ReasonNothingDue, "the policy keeps it awake"}, StoppedBy: "owner: suspend, set-policy"}
}

// orAside puts before a wait of a running box what is done beside its life: the
// provider's timer set again, an export after a turn. Freeze stops neither.
func (f *Facts) orAside(wait Step, now time.Time) Step {
	if wait.Kind != StepWait {
		return wait
	}
	first := func(aside Step, at time.Time) {
		switch {
		case wait.Kind != StepWait:
		case !now.Before(at):
			wait = aside
		case wait.At.IsZero() || at.Before(wait.At):
			wait = Step{Kind: StepWait, Then: aside.Kind, Purpose: aside.Purpose, At: at, Reason: aside.Reason, StoppedBy: wait.StoppedBy}
		}
	}
	if at, why, ok := f.adjustAt(); ok {
		first(Step{Kind: StepAdjust, Reason: why}, at)
	}
	if at, ok := f.turnExportAt(); ok {
		first(Step{Kind: StepExport, Purpose: PurposeTurn, Reason: Reason{ReasonStaleExport, "a turn has ended, and the provider could suspend or destroy the box without us"}}, at)
	}
	return wait
}

// urgent reports whether something is due in a running box that comes before
// what was asked of it.
func (f *Facts) urgent(now time.Time) bool {
	wall, walled := f.wallAt()
	return !f.Frozen && (f.deletionDue() || f.SuspendWanted != nil || walled && !now.Before(wall))
}

func (f *Facts) nextAsk() Step {
	ask := f.Asks[0]
	who := "asked for by " + orElse(ask.By, unnamed)
	switch ask.Kind {
	case AskReclaim:
		return Step{Kind: StepReclaim, Ask: &ask, Reason: Reason{ReasonRequested, "reclaim " + who}}
	case AskExport:
		return Step{Kind: StepExport, Ask: &ask, Reason: Reason{ReasonRequested, "export " + who}}
	case AskScan:
	}
	return Step{Kind: StepScan, Ask: &ask, Reason: Reason{ReasonRequested, "look " + who}}
}
