package box

import (
	"fmt"
	"time"
)

// A suspended box whose memory is kept holds that memory for as long as it rests.
// After a while it is suspended deeper, where its provider can: its files are
// kept, its paused TTL goes on, and its processes begin anew when it is woken.
// That is a loss, if a small one, so a hold and a freeze stop it; keep is about
// the files and does not.

// keepsMemory reports whether the box was seen suspended with its memory.
func (f *Facts) keepsMemory() bool {
	return f.Observed.Phase == PhaseSuspended && f.Observed.MemoryKept == Yes
}

// deepenAfter is how long the memory of a suspended box is kept, Never for good.
func (f *Facts) deepenAfter() Duration {
	if f.Policy.DeepenAfter == 0 { // facts of a release that had no such time
		return DefaultPolicy().DeepenAfter
	}
	return f.Policy.DeepenAfter
}

// deepenAt returns when the memory of a suspended box is given up; false where
// it is not kept, can't be given up, or may not be now. A renewal begins another
// suspend, and with it another time.
func (f *Facts) deepenAt() (time.Time, bool) {
	after := f.deepenAfter()
	if f.Capabilities.Deepen != Yes || after.IsNever() || !f.keepsMemory() || f.Frozen || f.Hold != nil {
		return time.Time{}, false
	}
	return latest(f.SuspendedAt.Add(after.Std()), f.DeepenFloor), true
}

// orDeepen puts the end of its memory before the wait of a box at rest. Whoever
// needs the box comes first, and so does what else is to be done.
func (f *Facts) orDeepen(wait Step, now time.Time) Step {
	at, ok := f.deepenAt()
	if !ok || wait.Kind != StepWait || !wait.At.IsZero() && wait.At.Before(at) {
		return wait
	}
	why := Reason{ReasonDeepenDue, "its memory is kept for " + f.deepenAfter().String() + " after a suspend; then it is suspended deeper, and only its files are kept"}
	if f.DeepenTries > 0 {
		why.Text = fmt.Sprintf("its memory could not be given up, %d times so far, and that is tried again; its files are kept", f.DeepenTries)
	}
	if !now.Before(at) {
		return Step{Kind: StepDeepen, Reason: why, StoppedBy: "nobody: the provider is being told"}
	}
	return Step{Kind: StepWait, Then: StepDeepen, At: at, Reason: why, StoppedBy: "anyone who connects; owner: freeze"}
}

// freshMemory gives the memory of a suspended box its whole time again.
func (f *Facts) freshMemory(now time.Time) {
	if _, ok := f.deepenAt(); ok {
		f.DeepenFloor = latest(f.DeepenFloor, now.Add(f.deepenAfter().Std()))
	}
}

// memoryAfterOutage gives the memory its time again where it was not given up
// when it should have been: while nobody looked nobody could come back to it, and
// a box that was only now found suspended was never promised less.
func (f *Facts) memoryAfterOutage(now time.Time) {
	if at, ok := f.deepenAt(); ok && now.Sub(at) > lateBy {
		f.freshMemory(now)
	}
}

// wentDeeper reports whether an observation from outside shows that the provider
// gave the memory up by itself. Runs of an earlier release, which know no such
// claim, did not look then.
func (f *Facts) wentDeeper(seen Observation) bool {
	return f.Capabilities.Deepen == Yes && f.keepsMemory() && seen.Phase == PhaseSuspended && seen.MemoryKept == No
}

// gaveUpMemory takes in a reading of a suspended box: it says when the memory is
// not kept any more, whoever gave it up. The paused clock goes on.
func (f *Facts) gaveUpMemory(kept bool, code ReasonCode, now time.Time) {
	if f.keepsMemory() {
		return
	}
	f.DeepenFloor, f.DeepenTries = time.Time{}, 0
	if f.Failure != nil && f.Failure.Step == StepDeepen {
		f.Failure = nil // as it was wanted, or not a matter any more
	}
	if kept && f.Observed.Phase == PhaseSuspended {
		f.note(now, Reason{code, "suspended deeper, its memory is not kept any more: " + orElse(f.Observed.Evidence, "proven")})
	}
}

// failDeepen has the box read before anything else is done: a try that was cut
// off may have left it without its memory, or awake, and then it must not stay
// so. What failed before and waits for its own next try keeps its place.
func (f *Facts) failDeepen(why StepFailure, before *Failure, now time.Time) {
	f.DeepenTries++
	f.DeepenFloor = f.Failure.RetryAt
	if why.Class == ClassUnsupported { // its row says otherwise since, and trying again changes nothing
		f.Capabilities.Deepen = No
		f.Failure = nil
		f.note(now, Reason{ReasonRefused, "its memory stays, since the provider can't give it up: " + why.Message})
	}
	if before != nil && before.Step != StepDeepen && (now.Before(before.RetryAt) || f.State == StateDeleteBlocked) {
		f.Failure = before
	}
	if why.NotBegun || why.Class == ClassUnsupported {
		return
	}
	f.Look = true
	f.WakeOwed = f.WakeOwed || why.Class != ClassFailedPrecondition && why.Class != ClassNotFound && why.Class != ClassConflict
}
