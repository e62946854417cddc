package box_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// What a ledger refuses because it looks like a secret is a person's or a
// provider's words; a rebuild needs none of them.
func TestBareMarksKeepNoWords(t *testing.T) {
	t.Parallel()
	f := at(box.StateSuspended)
	words := box.Reason{Code: box.ReasonRequested, Text: "hush"}
	alone := f.Marks(noon())
	alone.Because = words
	require.NotContains(t, wire(t, alone.Bare()), "hush", "with nothing else to leave out")
	f.Sequence = &box.Sequence{Purpose: box.PurposeWall, Since: noon(), Skips: []string{"hush"}}
	f.Deletion = &box.Deletion{By: "hush", ConfirmedBy: "hush", Epoch: 1}
	f.Hold = &box.Hold{By: "hush", Reason: "hush", Since: noon()}
	f.Adopt = &box.Adoption{ID: "id-2", Epoch: 2, From: box.StateLost, By: "hush"}
	f.Restoring = &box.Restoration{At: noon(), By: "hush"}
	full := f.Marks(noon())
	full.Because = words
	require.Equal(t, 8, strings.Count(wire(t, full), "hush"))
	bare := full.Bare()
	require.NotContains(t, wire(t, bare), "hush")
	require.Equal(t, noon(), bare.Hold.Since)
	require.Equal(t, "id-2", bare.Adopt.ID)
	require.Equal(t, noon(), bare.Restoring.At)
	require.Equal(t, 8, strings.Count(wire(t, full), "hush"), "the original stays")
}

func wire(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

// A provider that can be as quick, or as slow, as the policy wants may lead.
func TestAProviderLeadsUpToItsOwnBounds(t *testing.T) {
	t.Parallel()
	const idle = 15 * time.Minute
	for name, row := range map[string]struct {
		least, most time.Duration
		says        string // of a refusal
	}{
		"just quick enough":     {idle, 0, ""},
		"a second too slow":     {idle + time.Second, 0, "(least 15m1s)"},
		"just slow enough":      {0, idle, ""},
		"a second too quick":    {0, idle - time.Second, "(least 0s, most 14m59s)"},
		"nothing but that":      {idle, idle, ""},
		"it has no bound above": {time.Second, 0, ""},
	} {
		c := netted()
		c.NativeIdleLeast, c.NativeIdleMost = box.Span(row.least), box.Span(row.most)
		plan, err := box.Plan(box.Policy{Lead: box.LeadProvider}, c)
		if row.says != "" {
			require.ErrorContains(t, err, row.says, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, box.Duration(idle), plan.Native.Idle, name)
	}
}

func TestWhatInterruptsAStepThatWasAskedFor(t *testing.T) {
	t.Parallel()
	hold, suspend := &box.Hold{By: "ops", Since: noon()}, &box.Wish{}
	asked := func(kind box.StepKind, dry bool) box.Step {
		return box.Step{Kind: kind, Ask: &box.Ask{ID: "a", Reclaim: box.ReclaimRequest{DryRun: dry}}}
	}
	for name, row := range map[string]struct {
		step    box.Step
		hold    *box.Hold
		suspend *box.Wish
		frozen  bool
		want    bool
	}{
		"nothing ends a reclaim":                   {step: asked(box.StepReclaim, false)},
		"a hold ends a reclaim":                    {step: asked(box.StepReclaim, false), hold: hold, want: true},
		"a hold ends no dry run":                   {step: asked(box.StepReclaim, true), hold: hold},
		"a hold ends no export":                    {step: asked(box.StepExport, false), hold: hold},
		"a suspend ends an export":                 {step: asked(box.StepExport, false), suspend: suspend, want: true},
		"a suspend of a frozen box ends nothing":   {step: asked(box.StepExport, false), suspend: suspend, frozen: true},
		"nothing ends an export after a turn":      {step: box.Step{Kind: box.StepExport, Purpose: box.PurposeTurn}},
		"a suspend ends an export after a turn":    {step: box.Step{Kind: box.StepExport, Purpose: box.PurposeTurn}, suspend: suspend, want: true},
		"a suspend of a frozen box, after a turn":  {step: box.Step{Kind: box.StepExport, Purpose: box.PurposeTurn}, suspend: suspend, frozen: true},
		"a hold ends no export after a turn":       {step: box.Step{Kind: box.StepExport, Purpose: box.PurposeTurn}, hold: hold},
		"a hold ends a reclaim of our own accord":  {step: box.Step{Kind: box.StepReclaim, Purpose: box.PurposeTurn}, hold: hold, want: true},
		"nothing ends a reclaim of our own accord": {step: box.Step{Kind: box.StepReclaim, Purpose: box.PurposeTurn}},
	} {
		f := at(box.StateRunning)
		f.Hold, f.SuspendWanted, f.Frozen = row.hold, row.suspend, row.frozen
		require.Equal(t, row.want, box.Interrupts(f, row.step), name)
	}
}

// What a person changed is recorded before a wait, but never instead of a step's
// next try.
func TestARecordWaitsForTheNextTryOfAStep(t *testing.T) {
	t.Parallel()
	f := at(box.StateRunning)
	f.Observed = box.Observation{Phase: box.PhaseRunning}
	f.SuspendWanted = &box.Wish{}
	f.Durable++
	retry := noon().Add(time.Minute)
	f.Failure = &box.Failure{Step: box.StepQuiesce, RetryAt: retry, Message: "no", Count: 1}
	step := box.Next(f, noon())
	require.Equal(t, box.StepWait, step.Kind)
	require.Equal(t, box.StepQuiesce, step.Then, step.Reason)
	require.Equal(t, retry, step.At)
	f.Failure = &box.Failure{Step: box.StepRecord, RetryAt: retry, Message: "no", Count: 1}
	f.SuspendWanted = nil
	step = box.Next(f, noon())
	require.Equal(t, box.StepWait, step.Kind)
	require.Equal(t, box.StepRecord, step.Then, step.Reason)
}

// The outbox holds 32 events, and a posting 16.
func TestTheOutboxUpToItsBounds(t *testing.T) {
	t.Parallel()
	for kept := 31; kept <= 33; kept++ {
		f := at(box.StateRunning)
		f.Outbox.Receivers = []box.Receiver{{Listener: box.Listener{Name: "a"}}}
		for range kept {
			f.Tell(box.Event{Kind: box.EventSuspended})
		}
		require.Len(t, f.Outbox.Events, min(kept, 32))
		require.Equal(t, max(0, kept-32), f.Outbox.Dropped)
		p, _ := f.Post(noon())
		require.Len(t, p.Events, 16)
	}
}

// Who waits for its next try keeps an event for itself: the others get theirs
// alone.
func TestAPostingBeginsWithWhatSomebodyWaitsFor(t *testing.T) {
	t.Parallel()
	f := at(box.StateRunning)
	f.Outbox.Receivers = []box.Receiver{{Listener: box.Listener{Name: "down"}, RetryAt: noon().Add(time.Hour)}, {Listener: box.Listener{Name: "up"}}}
	f.Tell(box.Event{Kind: box.EventCreated})
	f.Outbox.Receivers[1].Taken = 1
	f.Tell(box.Event{Kind: box.EventSuspended})
	p, _ := f.Post(noon())
	require.Len(t, p.Events, 1)
	require.Equal(t, box.EventSuspended, p.Events[0].Kind)
}

// A posting that never left is no failure of who was to get it.
func TestAPostingThatWasNotSentIsNoFailure(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		why    box.StepFailure
		failed int
	}{
		"no worker took it":  {box.StepFailure{Class: box.ClassUnavailable, NotBegun: true}, 0},
		"it was called off":  {box.StepFailure{Class: box.ClassCanceled}, 0},
		"it was sent, maybe": {box.StepFailure{Class: box.ClassUnavailable}, 1},
	} {
		f := at(box.StateRunning)
		f.Outbox.Receivers = []box.Receiver{{Listener: box.Listener{Name: "a"}}}
		f.Tell(box.Event{Kind: box.EventSuspended})
		p, _ := f.Post(noon())
		row.why.Message = strings.Repeat("é", 200)
		f.Delivered(p, box.Outcome{Failed: &row.why}, noon())
		require.Equal(t, row.failed, f.Outbox.Receivers[0].Failed, name)
		require.Equal(t, row.why.Message, f.Outbox.Receivers[0].Problem, "it is as long as it may be")
		row.why.Message += "!"
		f.Delivered(p, box.Outcome{Failed: &row.why}, noon())
		require.Equal(t, strings.Repeat("é", 199)+"…", f.Outbox.Receivers[0].Problem, name)
	}
}

// A timer that does not exist can't be one that can't be set again.
func TestAProviderWithoutATimerHasOneRisk(t *testing.T) {
	t.Parallel()
	c := row()
	c.NativeIdle, c.NativeAdjust = box.No, box.No
	plan, err := box.Plan(box.DefaultPolicy(), c)
	require.NoError(t, err)
	require.Len(t, plan.Risks, 1)
}

// Only what makes a box, or ends the workspace for ever, can be the first entry of
// a ledger.
func TestWhatALedgerBeginsWith(t *testing.T) {
	t.Parallel()
	opening := []box.LedgerKind{box.LedgerCreateIntent, box.LedgerCreated, box.LedgerAdoptIntent, box.LedgerAdopted, box.LedgerDeleted, box.LedgerAbandoned}
	others := []box.LedgerKind{
		box.LedgerSuspendIntent, box.LedgerSuspended, box.LedgerResumeIntent, box.LedgerResumed, box.LedgerExported, box.LedgerNoticed,
		box.LedgerMarks, box.LedgerDeleteIntent, box.LedgerRestored,
	}
	for _, kind := range slices.Concat(opening, others) {
		w := newWorld(t, spec())
		w.append(kind, box.LedgerCreate{Spec: spec(), BoxID: "id-1", Observation: box.Observation{Phase: box.PhaseRunning, Ref: box.Ref{Provider: "test", ID: "id-1", Epoch: 1}}})
		_, _, err := box.Rebuild("demo", w.ledger)
		if slices.Contains(opening, kind) {
			require.NoError(t, err, kind)
		} else {
			require.ErrorContains(t, err, "none before it says", kind)
		}
	}
}

// An earlier release wrote no marks: the entries themselves say where it is.
func TestEntriesWithoutMarksSayWhereTheBoxIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec())
	seen := box.Observation{Phase: box.PhaseRunning, Ref: box.Ref{Provider: "test", ID: "id-1", Epoch: 1}}
	state := func(want box.State) box.Facts {
		t.Helper()
		f, _, err := box.Rebuild("demo", w.ledger)
		require.NoError(t, err)
		require.Equal(t, want, f.State)
		return f
	}
	w.append(box.LedgerCreateIntent, box.LedgerCreate{Spec: spec()})
	state(box.StateCreating)
	caps := row()
	w.append(box.LedgerCreated, box.LedgerCreate{Spec: spec(), Observation: seen, Capabilities: &caps})
	began := state(box.StateStarting)
	w.append(box.LedgerSuspendIntent, box.LedgerIntent{Ref: seen.Ref})
	state(box.StateSuspending)
	w.append(box.LedgerSuspended, box.Observation{Phase: box.PhaseSuspended, Ref: seen.Ref})
	state(box.StateSuspended)
	w.append(box.LedgerResumeIntent, box.LedgerIntent{Ref: seen.Ref})
	state(box.StateResuming)
	w.now = w.now.Add(time.Hour)
	w.appendAt(2, box.LedgerCreateIntent, box.LedgerCreate{Spec: spec()})
	next := state(box.StateCreating)
	require.Equal(t, 2, next.Epoch)
	require.True(t, next.Ref.IsZero(), "the next box is not the one before")
	seen.Ref.ID, seen.Ref.Epoch = "id-2", 2
	w.appendAt(2, box.LedgerCreated, box.LedgerCreate{Spec: spec(), Observation: seen})
	made := state(box.StateStarting)
	require.Equal(t, "id-2", made.Ref.ID)
	require.Equal(t, next.StateSince, made.Transitions[len(made.Transitions)-1].At, "one box is begun once")
	require.Greater(t, len(made.Transitions), len(began.Transitions))
	w.appendAt(2, box.LedgerDeleteIntent, box.LedgerDeletion{Ref: seen.Ref, By: "ana"})
	deleting := state(box.StateDeleting)
	require.True(t, deleting.Deletion.Committed)
	require.Equal(t, "ana", deleting.Deletion.ConfirmedBy)
	w.appendAt(2, box.LedgerDeleted, box.LedgerDeletion{Ref: seen.Ref})
	require.Equal(t, "ana", state(box.StateBoxArchived).Deletion.ConfirmedBy)
}

// Facts that cannot be those of a workspace that was lost rebuild nothing.
func TestWhatCanBeRebuilt(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*box.Facts)
		class  box.Class
		says   string
	}{
		"a box":                     {func(*box.Facts) {}, "", ""},
		"one that was never made":   {func(f *box.Facts) { f.Ref = box.Ref{} }, "", ""},
		"a spec of another release": {func(f *box.Facts) { f.Spec.Version++ }, box.ClassInvalid, "version"},
		"another workspace":         {func(f *box.Facts) { f.Spec.Workspace = "other" }, box.ClassInvalid, "rebuilt.spec.workspace"},
		"no epoch":                  {func(f *box.Facts) { f.Epoch, f.Ref.Epoch = 0, 0 }, box.ClassInvalid, "rebuilt.epoch"},
		"a box of another epoch":    {func(f *box.Facts) { f.Ref.Epoch = 2 }, box.ClassInvalid, "rebuilt.epoch"},
		"one that is archived":      {func(f *box.Facts) { f.State = box.StateBoxArchived }, box.ClassFailedPrecondition, "stays closed"},
		"one that is abandoned":     {func(f *box.Facts) { f.State = box.StateAbandoned }, box.ClassFailedPrecondition, "stays closed"},
		"a policy that is none":     {func(f *box.Facts) { f.Policy.OnExpiry = "burn" }, box.ClassInvalid, "on_expiry"},
	} {
		f := at(box.StateSuspended)
		row.change(f)
		err := box.CheckRebuilt(f, "demo")
		if row.class == "" {
			require.NoError(t, err, name)
			continue
		}
		require.Equal(t, row.class, box.ClassOf(err), name)
		require.ErrorContains(t, err, row.says, name)
	}
}

// A rebuild gives the whole notice to a box that would expire within it, and no
// token from before is good after it, however many there were.
func TestWhatARebuildPutsOff(t *testing.T) {
	t.Parallel()
	for days, near := range map[int]bool{26: false, 28: true} { // of 30, with a notice of 3
		f := at(box.StateSuspended)
		f.SuspendedSince, f.SuspendedAt, f.PausedClock = noon(), noon(), noon()
		f.Observed = box.Observation{Phase: box.PhaseSuspended}
		now := noon().Add(time.Duration(days) * day)
		f.DeletionCount = int(now.Unix()) + 5
		f.Revive(now)
		require.Equal(t, near, f.ExpiryFloor.Equal(now.Add(3*day)), days)
		require.Equal(t, int(now.Unix())+6, f.DeletionCount)
	}
}

func TestASpecUpToItsBounds(t *testing.T) {
	t.Parallel()
	s := spec()
	s.Adopt = "vm-17"
	require.NoError(t, s.Validate())
	s.Adopt = "two words"
	require.ErrorContains(t, s.Validate(), "adopt: ")
	s.Adopt = ""
	s.Env = map[string]string{"last": ""}
	for i := range 15 { // six characters each as it is written
		s.Env[fmt.Sprint("V", i)] = strings.Repeat("\x01", 4<<10)
	}
	for i := 15; 384<<10-len(wire(t, s)) > 4<<10; i++ {
		s.Env[fmt.Sprint("V", i)] = strings.Repeat("y", 4<<10-64)
	}
	s.Env["last"] = strings.Repeat("y", 384<<10-len(wire(t, s)))
	require.Len(t, wire(t, s), 384<<10)
	require.NoError(t, s.Validate())
	s.Env["last"] += "y"
	require.ErrorContains(t, s.Validate(), "spec: is larger than")
}
