package box

import "time"

// Native is what a provider is told to do by itself: at creation, and again
// when it should change. Zero fields are not set there.
type Native struct {
	// Idle is the provider's idle timer: it suspends the box and keeps its files.
	Idle Duration `json:"idle,omitzero"`
}

// IsZero reports whether the provider is told nothing.
func (n Native) IsZero() bool { return n == Native{} }

// idlePlan is how the idle time is shared between us and the provider.
type idlePlan struct {
	lead   Lead
	ours   Duration // our timer; Never when there is none
	native Duration // the provider's; zero when there is none
}

// shareIdle says who suspends an idle box first, and how long after that the
// other one does. It refuses a provider in the lead where its timer cannot be
// what the policy says.
//
// Ours acts first wherever a reclaim or an export must come before the suspend;
// the provider's timer is longer by the margin, and a net. Where it cannot be
// that long, our time gets shorter instead.
func shareIdle(p Policy, c Capabilities) (idlePlan, error) {
	least, most := Duration(c.NativeIdleLeast), Duration(c.NativeIdleMost)
	fits := func(d Duration) bool { return d >= least && (most == 0 || d <= most) }
	lead := p.Lead
	switch {
	case p.Idle.IsNever():
		if lead == LeadProvider {
			return idlePlan{}, Invalidf("policy.lead", "the provider cannot lead an idle time of \"never\"; set policy.idle or leave lead out")
		}
		return idlePlan{lead: LeadOurs, ours: Never}, nil
	case c.NativeIdle != Yes:
		if lead == LeadProvider {
			return idlePlan{}, Invalidf("policy.lead", "provider %s has no idle timer; leave lead out, then boxkeeper leads", orElse(c.Driver, "(unknown)"))
		}
		return idlePlan{lead: LeadOurs, ours: p.Idle}, nil
	case lead == LeadProvider && !fits(p.Idle):
		return idlePlan{}, Invalidf("policy.lead", "the provider's idle timer cannot be %s (least %s%s); change policy.idle or leave lead out", p.Idle, least, mostText(most))
	case lead == LeadProvider, lead == "" && c.Lead == LeadProvider && fits(p.Idle):
		return idlePlan{lead: LeadProvider, ours: p.Idle + p.DeadMan, native: p.Idle}, nil
	}
	out := idlePlan{lead: LeadOurs, ours: p.Idle, native: max(p.Idle+p.DeadMan, least)}
	if most > 0 && out.native > most {
		out.native = most
		out.ours = min(out.ours, max(most-p.DeadMan, most/2))
	}
	return out, nil
}

func mostText(most Duration) string {
	if most == 0 {
		return ""
	}
	return ", most " + most.String()
}

// idleShare is shareIdle for a policy that was accepted. A capability row that
// came later than the policy cannot stop a box: then boxkeeper leads.
func (f *Facts) idleShare() idlePlan {
	share, err := shareIdle(f.Policy, f.Capabilities)
	if err != nil {
		share, _ = shareIdle(f.Policy, Capabilities{})
	}
	if share.ours == 0 { // a policy that asks for the impossible
		share = idlePlan{lead: LeadOurs, ours: f.Policy.Idle}
	}
	return share
}

// IdleAfter is how long after the last use boxkeeper suspends the box; Never
// when it does not.
func (f *Facts) IdleAfter() Duration { return f.idleShare().ours }

// NativeWanted is what the provider should be told now.
func (f *Facts) NativeWanted() Native { return Native{Idle: f.idleShare().native} }

// adjustAt returns when the provider's idle timer is set (again): at once when
// it is not as it should be, and at half of its length while someone holds the
// box, since quiet work is no use at a provider. False where it can't be.
func (f *Facts) adjustAt() (time.Time, Reason, bool) {
	want := f.NativeWanted()
	if f.Capabilities.NativeIdle != Yes || f.Capabilities.NativeAdjust != Yes || want.IsZero() {
		return time.Time{}, Reason{}, false
	}
	at, why := f.NativeAt, Reason{ReasonPolicyChanged, "the provider's idle timer is " + orElse(shownIdle(f.Native.Idle), "not set") + " and should be " + want.Idle.String()}
	switch {
	case f.Native != want && f.NativeStuck != want:
	case len(f.Holders) > 0 && f.Native.Idle > 0:
		at = f.NativeAt.Add(f.Native.Idle.Std() / 2)
		why = Reason{ReasonHeld, f.holderText() + ", so the provider's idle timer of " + want.Idle.String() + " is set again"}
	default:
		return time.Time{}, Reason{}, false
	}
	if f.Failure != nil && f.Failure.Step == StepAdjust {
		at = latest(at, f.Failure.RetryAt)
	}
	return at, why, true
}

// adjusted takes in what became of setting the provider's timers.
func (f *Facts) adjusted(seen Observation, now time.Time) {
	want := f.NativeWanted()
	f.NativeAt, f.NativeStuck = now, Native{}
	if seen.Native == nil { // it does not tell, so its answer is believed
		f.Native = want
	}
	if f.Native != want {
		f.NativeStuck = want
	}
}

// nativeRisk says what the provider was told in vain; empty when all is well.
func (f *Facts) nativeRisk() string {
	want := f.NativeWanted()
	if f.Capabilities.NativeIdle != Yes || f.NativeAt.IsZero() || f.Native == want {
		return ""
	}
	return "the provider's idle timer is " + orElse(shownIdle(f.Native.Idle), "not set") + ", though it should be " + orElse(shownIdle(want.Idle), "off")
}

func shownIdle(d Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// turnExportEvery is how often at most an awake box is exported between two
// suspends.
const turnExportEvery = 10 * time.Minute

// turnExportAt returns when the history is exported because a turn has ended:
// only where the provider can suspend or destroy the box without us, so that
// never more than a turn is lost.
func (f *Facts) turnExportAt() (time.Time, bool) {
	c := f.Capabilities
	if f.TurnEnded.IsZero() || c.NativeIdle != Yes && c.MaxRun == 0 && c.PausedLife == 0 {
		return time.Time{}, false
	}
	at := f.TurnEnded
	if !f.ReceiptAt.IsZero() {
		at = latest(at, f.ReceiptAt.Add(turnExportEvery))
	}
	return at, true
}

// renewMargin is how long before the provider destroys a suspended box ours
// acts: people are away for a weekend, and a short life leaves less.
func renewMargin(life time.Duration) time.Duration { return min(leastMargin.Std(), life/4) }

// renewAt returns when a suspended box is woken and suspended again because the
// provider would destroy it; false where it keeps it for ever.
func (f *Facts) renewAt() (time.Time, bool) {
	life := f.Capabilities.PausedLife.Std()
	if life == 0 || f.SuspendedAt.IsZero() || f.Capabilities.Suspend != Yes || f.Observed.Phase == PhaseGone {
		return time.Time{}, false
	}
	return f.SuspendedAt.Add(life - renewMargin(life)), true
}

// orRenew puts the renewal of what the provider would destroy before a wait,
// also before one that nothing but an event ends: keep and freeze included.
func (f *Facts) orRenew(wait Step, now time.Time) Step {
	at, ok := f.renewAt()
	why := Reason{ReasonWall, "the provider destroys a suspended box after " + Duration(f.Capabilities.PausedLife).String() + ", so it is woken and suspended again; the paused TTL goes on"}
	if f.tooEarly(StepResume, now) && f.Failure.RetryAt.After(at) { // its next try must hide no earlier deadline
		at, why = f.Failure.RetryAt, f.retryReason()
	}
	if wait.Kind == StepNotify { // a notice that nobody takes must not keep the box from being kept
		switch {
		case ok && !now.Before(at):
			wait = Step{Kind: StepWait}
		case f.tooEarly(StepNotify, now):
			wait = Step{Kind: StepWait, Then: StepNotify, At: f.Failure.RetryAt, Reason: f.retryReason(), StoppedBy: wait.StoppedBy}
		}
	}
	if !ok || wait.Kind != StepWait || !wait.At.IsZero() && !at.Before(wait.At) {
		return wait
	}
	if !now.Before(at) {
		return Step{Kind: StepResume, Purpose: PurposeMaintenance, Reason: why, StoppedBy: "anyone who connects"}
	}
	return Step{Kind: StepWait, Then: StepResume, Purpose: PurposeMaintenance, At: at, Reason: why, StoppedBy: "anyone who connects; owner: delete"}
}
