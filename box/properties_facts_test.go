package box_test

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

// states are all there are.
func states() []box.State {
	return []box.State{
		box.StateUnknown, box.StateCreating, box.StateCreateFailed, box.StateStarting, box.StateRunning, box.StateDraining, box.StateSuspending,
		box.StateSuspended, box.StateResuming, box.StateMaintenanceWake, box.StateAwaitingConfirm, box.StateUndoWindow, box.StateExporting,
		box.StateDeleting, box.StateDeleteBlocked, box.StateBoxArchived, box.StateLost,
	}
}

// anyFacts draws facts that fit together, whether or not some life leads to
// them, and the time at which they are looked at.
func anyFacts(t *rapid.T) (*box.Facts, time.Time) {
	now := noon().Add(120 * day)
	yes := func(label string) bool { return rapid.Bool().Draw(t, label) }
	one := func(label string, of int) bool { return rapid.IntRange(0, of-1).Draw(t, label) == 0 }
	ago := func(label string, most time.Duration) time.Time {
		return now.Add(-time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, label)))
	}
	s, c := spec(), row()
	if yes("deletes") {
		s.Policy.OnExpiry = box.OnExpiryDelete
	}
	if one("idle never", 6) {
		s.Policy.Idle = box.Never
	}
	if one("run never", 6) {
		s.Policy.MaxRun = box.Never
	}
	if one("ttl never", 6) {
		s.Policy.PausedTTL = box.Never
	}
	if one("wall", 3) {
		c.MaxRun = box.Span(3 * time.Hour)
	}
	if one("looking", 3) {
		c.LookingIsUse = box.Yes
	}
	if one("memory", 2) {
		c.MemoryKept, c.Deepen = box.Yes, box.Yes
	}
	f := box.NewFacts(s, c, ago("created", 100*day))
	f.Ref = box.Ref{Provider: "test", ID: "id-1", Name: "n", Epoch: 1, Fingerprint: "here"}
	f.State, f.StateSince = rapid.SampledFrom(states()).Draw(t, "state"), ago("since", 40*day)
	f.Kept, f.Frozen, f.Look, f.UndrainOwed = one("kept", 5), one("frozen", 5), one("look", 8), one("undrain", 8)
	digest := func(label string) string { return rapid.SampledFrom([]string{"a", "b"}).Draw(t, label) }
	if !one("unread", 4) {
		f.Scan = &box.Scan{At: ago("scanned", 40*day), Digest: digest("scan"), Stale: one("stale", 4)}
	}
	if !one("no export", 4) {
		f.Receipt = box.Receipt{Workspace: "demo", Epoch: 1, Key: "k", SHA256: "s", Digest: digest("receipt")}
	}
	switch f.State {
	case box.StateSuspended, box.StateAwaitingConfirm, box.StateUndoWindow, box.StateDeleteBlocked:
		f.SuspendedSince = ago("suspended", 60*day)
		f.PausedClock, f.SuspendedAt = f.SuspendedSince, f.SuspendedSince
		if one("memory kept", 2) {
			f.Observed = box.Observation{Ref: f.Ref, Phase: box.PhaseSuspended, MemoryKept: c.MemoryKept}
		}
		if one("noticed", 2) {
			f.NoticedFor = f.PausedClock.Add(f.Policy.PausedTTL.Std())
		}
		f.Reminders, f.RemindedAt = rapid.IntRange(0, 9).Draw(t, "reminders"), f.SuspendedSince
	case box.StateRunning, box.StateDraining, box.StateSuspending, box.StateMaintenanceWake:
		f.AwakeSince = ago("awake", 20*time.Hour)
		f.LastUse = ago("used", 20*time.Hour)
	default:
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "holders") {
		f.Holders = append(f.Holders, box.Holder{
			ID: fmt.Sprint("h", i), Kind: box.HolderConnection, Origin: "tab", Epoch: 1, Since: ago("held", time.Hour), Renewed: ago("renewed", time.Hour),
			Until: now.Add(time.Duration(rapid.Int64Range(-int64(time.Hour), int64(2*time.Hour)).Draw(t, "until"))),
		})
	}
	if one("wants suspend", 6) {
		f.SuspendWanted = &box.Wish{RequestID: "s", At: now}
	}
	if one("wants resume", 6) {
		f.ResumeWanted = &box.Wish{RequestID: "r", At: now}
	}
	if one("asks", 5) {
		f.Asks = []box.Ask{{Kind: rapid.SampledFrom([]box.AskKind{box.AskReclaim, box.AskExport, box.AskScan}).Draw(t, "ask"), ID: "q"}}
	}
	drawSequence(t, &f, ago)
	drawDeletion(t, &f, ago, digest)
	if one("failed", 4) {
		f.Failure = &box.Failure{
			Step: rapid.SampledFrom(kinds()).Draw(t, "failed step"), Class: box.ClassUnavailable, Message: "as told",
			Count: rapid.IntRange(1, 9).Draw(t, "count"), At: now.Add(-time.Minute),
			RetryAt: now.Add(time.Duration(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t, "retry"))),
		}
	}
	return &f, now
}

func drawSequence(t *rapid.T, f *box.Facts, ago func(string, time.Duration) time.Time) {
	switch f.State {
	case box.StateDraining, box.StateSuspending, box.StateMaintenanceWake:
	default:
		return
	}
	f.Sequence = &box.Sequence{
		Purpose: rapid.SampledFrom([]box.Purpose{box.PurposeIdle, box.PurposeExplicit, box.PurposeWall, box.PurposeDelete, box.PurposeMaintenance}).Draw(t, "purpose"),
		Since:   ago("sequence", time.Hour), DrainedAt: ago("drained", 5*time.Minute),
	}
	s := f.Sequence
	s.Quiet = rapid.Bool().Draw(t, "quiet")
	s.Reclaimed = s.Quiet && rapid.Bool().Draw(t, "reclaimed")
	s.Exported = s.Reclaimed && rapid.Bool().Draw(t, "exported")
}

func drawDeletion(t *rapid.T, f *box.Facts, ago func(string, time.Duration) time.Time, digest func(string) string) {
	must := false
	switch f.State {
	case box.StateUndoWindow, box.StateExporting, box.StateDeleting, box.StateDeleteBlocked:
		must = true
	case box.StateSuspended, box.StateAwaitingConfirm, box.StateBoxArchived, box.StateCreateFailed, box.StateLost:
		return
	default:
	}
	if !must && rapid.IntRange(0, 3).Draw(t, "deletion") > 0 {
		return
	}
	f.Deletion = &box.Deletion{
		Token: "t", Shown: digest("shown"), Epoch: 1, By: "ana", RequestedAt: ago("requested", day), Expires: ago("expires", day).Add(day),
		Undo: box.Duration(rapid.Int64Range(0, int64(2*day)).Draw(t, "undo")), Confirmed: must || rapid.Bool().Draw(t, "confirmed"),
		ConfirmedAt: ago("confirmed at", 3*day), ConfirmedBy: "ana", WithoutHistory: rapid.IntRange(0, 5).Draw(t, "waived") == 0,
		Verified: rapid.Bool().Draw(t, "verified"), Committed: f.State == box.StateDeleting,
	}
}

// kinds are all the kinds of step.
func kinds() []box.StepKind {
	return []box.StepKind{
		box.StepWait, box.StepFinish, box.StepCreate, box.StepAwaitReady, box.StepObserve, box.StepScan, box.StepQuiesce, box.StepUndrain,
		box.StepReclaim, box.StepExport, box.StepSuspend, box.StepResume, box.StepNotify, box.StepVerifyExport, box.StepDelete, box.StepRecord, box.StepDeepen,
	}
}
