package box

import "time"

// idleAt returns when the box is idle for as long as the policy allows, and
// false when it never is. Holders are a separate matter.
func (f *Facts) idleAt() (time.Time, bool) {
	after := f.IdleAfter()
	if after.IsNever() {
		return time.Time{}, false
	}
	return latest(f.LastUse, f.AwakeSince, f.IdleFloor).Add(after.Std()), true
}

// wallAt returns the hard end of this awake time, a margin before the
// provider's own where that is shorter.
func (f *Facts) wallAt() (time.Time, bool) {
	limit := f.Policy.MaxRun.Std()
	if own := f.nativeRun(); own > 0 && (limit == 0 || own < limit) {
		limit = own
	}
	if limit == 0 || f.AwakeSince.IsZero() {
		return time.Time{}, false
	}
	return latest(f.AwakeSince.Add(limit), f.WallFloor), true
}

// nativeRun is how long the box may be awake because its provider ends it by
// itself; zero where it does not.
func (f *Facts) nativeRun() time.Duration {
	native := f.Capabilities.MaxRun.Std()
	return max(native-f.Policy.DeadMan.Std(), native/2)
}

// expiryAt returns when the paused TTL is over, and false when it never is.
func (f *Facts) expiryAt() (time.Time, bool) {
	if f.Policy.PausedTTL.IsNever() || f.Kept || f.SuspendedSince.IsZero() {
		return time.Time{}, false
	}
	return latest(f.PausedClock.Add(f.Policy.PausedTTL.Std()), f.ExpiryFloor), true
}

// noticeLead is how long before the expiry people are told. Where the policy
// deletes, at least the grace period lies between the notice and the destroying
// call, of which the undo window is a part.
func (f *Facts) noticeLead() time.Duration {
	lead := f.Policy.Notice.Std()
	if f.Policy.OnExpiry == OnExpiryDelete {
		lead = max(lead, f.Policy.Grace.Std()-f.Policy.Undo.Std())
	}
	return lead
}

// reminderAt returns when people are reminded next that a decision waits.
// Reminders back off: a day after the first, then two, four, up to fourteen.
func (f *Facts) reminderAt() time.Time {
	if f.Reminders == 0 {
		return f.StateSince
	}
	return f.RemindedAt.Add(min(day<<min(f.Reminders-1, 8), 14*day))
}
