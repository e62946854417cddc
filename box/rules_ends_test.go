package box_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// TestWhereASuspendEnds goes through what may hold of an agreed deletion when
// the proof of a suspend is in.
func TestWhereASuspendEnds(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*box.Facts)
		want   box.State
		text   string
	}{
		"nothing was agreed":              {func(f *box.Facts) { f.Deletion.Confirmed = false }, box.StateSuspended, "seen"},
		"covered":                         {func(*box.Facts) {}, box.StateExporting, "seen"},
		"covered, with an undo window":    {func(f *box.Facts) { f.Deletion.Undo = box.Duration(time.Hour) }, box.StateUndoWindow, "seen"},
		"covered, and the window is over": {func(f *box.Facts) { f.Deletion.Undo = box.Duration(30 * time.Minute) }, box.StateExporting, "seen"},
		"not covered":                     {func(f *box.Facts) { f.Receipt = box.Receipt{} }, box.StateDeleteBlocked, "no export covers the last use"},
		"not covered, and why": {func(f *box.Facts) {
			f.Receipt, f.Sequence.Skips = box.Receipt{}, []string{"the door", "the store is full"}
		}, box.StateDeleteBlocked, "the store is full"},
		"not covered, the loss is accepted":          {func(f *box.Facts) { f.Receipt, f.Deletion.WithoutHistory = box.Receipt{}, true }, box.StateExporting, "seen"},
		"not covered, it ended by itself":            {func(f *box.Facts) { f.Receipt, f.Sequence.Ended = box.Receipt{}, true }, box.StateExporting, "seen"},
		"covered, it ended by itself, with a window": {func(f *box.Facts) { f.Sequence.Ended, f.Deletion.Undo = true, box.Duration(time.Hour) }, box.StateUndoWindow, "seen"},
		"nobody could look once more":                {func(f *box.Facts) { f.Sequence.Looked = false }, box.StateDeleteBlocked, "no export covers the last use"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agreed(at(box.StateSuspending))
			f.Sequence = &box.Sequence{Purpose: box.PurposeDelete, Quiet: true, Looked: true, Exported: true, Committed: true}
			f.Scan, f.Receipt = &box.Scan{Digest: "d"}, box.Receipt{Epoch: 1, Digest: "d", Key: "k"}
			row.change(f)
			f.Apply(box.Step{Kind: box.StepSuspend, Purpose: box.PurposeDelete}, box.Outcome{Observation: box.Observation{Ref: f.Ref, Phase: box.PhaseSuspended, Evidence: "seen"}}, noon().Add(30*time.Minute))
			require.Equal(t, row.want, f.State)
			require.Contains(t, f.Transitions[len(f.Transitions)-1].Reason.Text, row.text)
			require.Nil(t, f.Sequence)
			require.Equal(t, noon().Add(30*time.Minute), f.SuspendedSince)
		})
	}
}

func TestAnExportThatTheStoreDoesNotGiveBack(t *testing.T) {
	t.Parallel()
	f := agreed(at(box.StateExporting))
	f.Scan, f.Receipt = &box.Scan{Digest: "d"}, box.Receipt{Epoch: 1, Digest: "d", Key: "k"}
	reject := func() {
		f.Apply(box.Step{Kind: box.StepVerifyExport}, box.Outcome{Problem: "an object is missing"}, noon())
	}
	reject()
	require.Equal(t, box.StateExporting, f.State, "once: another export is taken")
	require.True(t, f.Receipt.IsZero())
	require.Equal(t, box.StepResume, box.Next(f, noon()).Kind)
	reject()
	require.Equal(t, box.StateDeleteBlocked, f.State, "twice: a person must know")
	require.False(t, f.Deletion.Verified)
}

func TestWhyAWakeForAnExportBecomesAResume(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*box.Facts){
		"held by connection tab": func(f *box.Facts) {
			f.Holders = []box.Holder{{ID: "tab", Kind: box.HolderConnection, Until: noon().Add(time.Hour)}}
		},
		"resume asked for by ana": func(f *box.Facts) { f.ResumeWanted = &box.Wish{RequestID: "r", By: "ana"} },
		"someone needs it":        func(*box.Facts) {},
	} {
		f := at(box.StateMaintenanceWake)
		f.Sequence = &box.Sequence{Purpose: box.PurposeMaintenance}
		change(f)
		f.Apply(box.Step{Kind: box.StepUndrain, Purpose: box.PurposeMaintenance}, box.Outcome{}, noon())
		require.Equal(t, box.StateRunning, f.State)
		require.Equal(t, want, f.Transitions[len(f.Transitions)-1].Reason.Text)
	}
}

func TestPlanToTheMoment(t *testing.T) {
	t.Parallel()
	t.Run("a hard maximum that is what the provider leaves is no risk", func(t *testing.T) {
		t.Parallel()
		own := box.Duration(105 * time.Minute)
		for maxRun, warned := range map[box.Duration]bool{own: false, own + 1: true, box.Never: true} {
			plan, err := box.Plan(box.Policy{MaxRun: maxRun}, row1(2*time.Hour))
			require.NoError(t, err)
			require.Equal(t, own, plan.Policy.MaxRun)
			found := false
			for _, risk := range plan.Risks {
				found = found || risk == "the provider ends a box after 2h, so max_run is 1h45m"
			}
			require.Equal(t, warned, found, maxRun.String())
		}
	})
	t.Run("an undo window after an expiry that deletes ends a margin before the provider's own end", func(t *testing.T) {
		t.Parallel()
		c := row()
		c.PausedLife = box.Span(10 * day)
		for ttl, refused := range map[time.Duration]bool{
			9*day - 15*time.Minute - 1: false, 9*day - 15*time.Minute: true, 10*day - 1: true, 10 * day: false, 11 * day: false,
		} {
			_, err := box.Plan(box.Policy{PausedTTL: box.Duration(ttl), OnExpiry: box.OnExpiryDelete}, c)
			require.Equal(t, refused, err != nil, "%s: %v", ttl, err)
			_, err = box.Plan(box.Policy{PausedTTL: box.Duration(ttl)}, c)
			require.NoError(t, err, "nothing is deleted")
		}
		for ttl, warned := range map[time.Duration]bool{7 * day: false, 7*day + 1: true} { // people are away for a weekend
			plan, err := box.Plan(box.Policy{PausedTTL: box.Duration(ttl)}, c)
			require.NoError(t, err)
			found := false
			for _, risk := range plan.Risks {
				found = found || risk == "the provider destroys a suspended box after 10d, so it is woken and suspended again before"
			}
			require.Equal(t, warned, found, ttl)
		}
	})
}

func TestWhatPeopleRead(t *testing.T) {
	t.Parallel()
	t.Run("of a hold that was not there, nothing changes", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.connect("tab")
		before := w.facts.LastUse
		w.now = w.now.Add(time.Minute)
		require.Contains(t, w.facts.Release("other", w.now).Text, "no such hold")
		require.Equal(t, before, w.facts.LastUse)
		require.Contains(t, w.facts.Release("tab", w.now).Text, "released")
		require.Equal(t, w.now, w.facts.LastUse)
	})
	t.Run("a person's wish makes an automatic suspend one that nobody cancels, and no other", func(t *testing.T) {
		t.Parallel()
		for purpose, want := range map[box.Purpose]box.Purpose{box.PurposeIdle: box.PurposeExplicit, box.PurposeWall: box.PurposeWall, box.PurposeDelete: box.PurposeDelete} {
			f := at(box.StateDraining)
			f.Sequence = &box.Sequence{Purpose: purpose}
			f.Suspend(box.Request{ID: "s", By: "ana"}, noon())
			require.Equal(t, want, f.Sequence.Purpose)
		}
	})
	t.Run("the idle time of a box that is awake and was used, and of no other", func(t *testing.T) {
		t.Parallel()
		now := noon().Add(time.Minute)
		require.Equal(t, box.Duration(time.Minute), at(box.StateRunning).StatusAt(now).IdleFor)
		require.Zero(t, at(box.StateSuspended).StatusAt(now).IdleFor)
		unused := at(box.StateStarting)
		unused.LastUse = time.Time{}
		require.Zero(t, unused.StatusAt(now).IdleFor)
	})
	t.Run("the age of an export, where there is one", func(t *testing.T) {
		t.Parallel()
		f := at(box.StateRunning)
		require.Zero(t, f.StatusAt(noon().Add(time.Minute)).ExportAge)
		f.ReceiptAt = noon()
		require.Equal(t, box.Duration(time.Minute), f.StatusAt(noon().Add(time.Minute)).ExportAge)
	})
	t.Run("what an action leads to: a wait shows what it waits for, a step itself", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, box.StepNotify, box.Step{Kind: box.StepWait, Then: box.StepNotify}.Upcoming())
		require.Equal(t, box.StepWait, box.Step{Kind: box.StepWait}.Upcoming())
		require.Equal(t, box.StepDelete, box.Step{Kind: box.StepDelete, Then: box.StepNotify}.Upcoming())
	})
	t.Run("what watches a box, and what nobody does", func(t *testing.T) {
		t.Parallel()
		status := at(box.StateRunning).StatusAt(noon())
		require.NotEmpty(t, status.Watches)
		require.NotEmpty(t, status.Risks)
	})
	t.Run("the fifth failure in a row needs a person", func(t *testing.T) {
		t.Parallel()
		f := at(box.StateSuspending)
		f.Failure = &box.Failure{Step: box.StepSuspend, Count: 4}
		require.False(t, f.NeedsAttention())
		f.Failure.Count = 5
		require.True(t, f.NeedsAttention())
	})
}
