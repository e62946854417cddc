package box_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// at returns facts in a state, with what belongs to it.
func at(state box.State) *box.Facts {
	f := box.NewFacts(spec(), row(), noon())
	f.State, f.StateSince = state, noon()
	f.Ref = box.Ref{Provider: "test", ID: "id-1", Name: "n", Epoch: 1, Fingerprint: "here"}
	f.AwakeSince, f.LastUse = noon(), noon()
	return &f
}

func agreed(f *box.Facts) *box.Facts {
	f.Deletion = &box.Deletion{Token: "t", Shown: "unread", Epoch: 1, Confirmed: true, ConfirmedAt: noon(), Expires: noon().Add(day)}
	return f
}

// TestWhatIsReportedIsReadAgainWhereItDoesNotFit goes through all states and all
// phases.
func TestWhatIsReportedIsReadAgainWhereItDoesNotFit(t *testing.T) {
	t.Parallel()
	phases := []box.Phase{box.PhaseUnknown, box.PhaseStarting, box.PhaseRunning, box.PhaseSuspended, box.PhaseFailed, box.PhaseGone}
	all := func(but ...box.Phase) []box.Phase {
		return slices.DeleteFunc(slices.Clone(phases), func(p box.Phase) bool { return slices.Contains(but, p) })
	}
	ended := []box.Phase{box.PhaseFailed, box.PhaseGone}
	surprises := map[box.State][]box.Phase{
		box.StateCreating: nil, box.StateCreateFailed: nil, box.StateDeleting: nil, box.StateBoxArchived: nil,
		box.StateRunning: all(box.PhaseRunning), box.StateDraining: all(box.PhaseRunning),
		box.StateSuspended: all(box.PhaseSuspended), box.StateAwaitingConfirm: all(box.PhaseSuspended),
		box.StateUndoWindow: all(box.PhaseSuspended), box.StateDeleteBlocked: all(box.PhaseSuspended),
		box.StateLost: all(box.PhaseGone), box.StateUnknown: all(),
		box.StateStarting: ended, box.StateSuspending: ended, box.StateResuming: ended, box.StateMaintenanceWake: ended, box.StateExporting: ended,
	}
	for _, state := range states() {
		want, known := surprises[state]
		require.True(t, known, "%s is not in the table", state)
		for _, phase := range phases {
			f := at(state)
			f.Observe(box.ObservedSignal{Observation: box.Observation{Ref: f.Ref, Phase: phase}})
			require.Equal(t, slices.Contains(want, phase), f.Look, "%s is reported in %s", phase, state)
		}
	}
}

func TestWhatASteppedFailureMeans(t *testing.T) {
	t.Parallel()
	fail := func(f *box.Facts, step box.Step, class box.Class) {
		f.Apply(step, box.Outcome{Failed: &box.StepFailure{Class: class, Message: "as told"}}, noon())
	}
	t.Run("what speaks to the agent-server and meets another state makes us look", func(t *testing.T) {
		t.Parallel()
		for _, kind := range kinds() {
			if kind == box.StepWait || kind == box.StepFinish || kind == box.StepDelete || kind == box.StepCreate {
				continue
			}
			for class, look := range map[box.Class]bool{box.ClassFailedPrecondition: true, box.ClassNotFound: true, box.ClassUnavailable: false} {
				f := at(box.StateRunning)
				f.Sequence = &box.Sequence{Purpose: box.PurposeExplicit}
				step := box.Step{Kind: kind, Purpose: box.PurposeExplicit}
				switch kind {
				case box.StepScan:
					step.Ask = &box.Ask{Kind: box.AskScan, ID: "q"}
				case box.StepSuspend, box.StepDeepen:
					look = true // whatever it was: nobody knows how far it came
				case box.StepResume:
					look = class == box.ClassNotFound
				case box.StepQuiesce, box.StepReclaim, box.StepExport:
				default:
					look = false
				}
				fail(f, step, class)
				require.Equal(t, look, f.Look, "%s of a %s", class, kind)
			}
		}
	})
	t.Run("the fifth time that it does not become ready it is unhealthy and read again", func(t *testing.T) {
		t.Parallel()
		f := at(box.StateStarting)
		for try := 1; try <= 5; try++ {
			require.False(t, f.Look || f.Unhealthy, "before try %d", try)
			fail(f, box.Step{Kind: box.StepAwaitReady}, box.ClassUnavailable)
		}
		require.True(t, f.Look && f.Unhealthy)
	})
	t.Run("a step that is not needed for safety is skipped after its tries", func(t *testing.T) {
		t.Parallel()
		for kind, tries := range map[box.StepKind]int{box.StepQuiesce: 3, box.StepReclaim: 2, box.StepExport: 3} {
			f := at(box.StateDraining)
			f.Sequence = &box.Sequence{Purpose: box.PurposeIdle}
			for try := 1; try <= tries; try++ {
				require.Empty(t, f.Sequence.Skips, "%s before try %d", kind, try)
				fail(f, box.Step{Kind: kind, Purpose: box.PurposeIdle}, box.ClassUnavailable)
			}
			require.Len(t, f.Sequence.Skips, 1, kind)
			require.Nil(t, f.Failure, kind)
			require.False(t, f.Sequence.Looked, kind)
		}
	})
	t.Run("work is let in by the lease of the drain when the third try to let it in fails", func(t *testing.T) {
		t.Parallel()
		f := at(box.StateDraining)
		f.Sequence = &box.Sequence{Purpose: box.PurposeIdle}
		f.ResumeWanted = &box.Wish{RequestID: "r"}
		for try := 1; try <= 3; try++ {
			require.Equal(t, box.StateDraining, f.State, "before try %d", try)
			fail(f, box.Step{Kind: box.StepUndrain, Purpose: box.PurposeIdle}, box.ClassUnavailable)
		}
		require.Equal(t, box.StateRunning, f.State)
		require.True(t, f.Look, "it may not be awake at all")
		require.NotNil(t, f.ResumeWanted, "the wish stands")
		require.Nil(t, f.Failure)
	})
	t.Run("a wake for an export gives up after three tries, or at once where no try helps", func(t *testing.T) {
		t.Parallel()
		wake := box.Step{Kind: box.StepResume, Purpose: box.PurposeMaintenance}
		for class, tries := range map[box.Class]int{
			box.ClassUnavailable: 3, box.ClassExhausted: 3, box.ClassNotFound: 1, box.ClassUnauthorized: 1, box.ClassFailedPrecondition: 1,
		} {
			f := agreed(at(box.StateExporting))
			for try := 1; try <= tries; try++ {
				require.Equal(t, box.StateExporting, f.State, "%s before try %d", class, try)
				fail(f, wake, class)
			}
			require.Equal(t, box.StateDeleteBlocked, f.State, class)
			require.True(t, f.Look && f.WakeOwed, "%s: it may be half awake", class)
		}
		f := at(box.StateSuspended) // for an export that was asked for
		f.Asks = []box.Ask{{Kind: box.AskExport, ID: "q"}}
		fail(f, wake, box.ClassUnauthorized)
		require.Equal(t, box.StateSuspended, f.State)
		result, done := f.ResultFor("q")
		require.True(t, done)
		require.Equal(t, box.ClassUnauthorized, result.Class)
	})
}

func TestWhatAReadingMeans(t *testing.T) {
	t.Parallel()
	read := func(f *box.Facts, phase box.Phase) {
		f.Apply(box.Step{Kind: box.StepObserve}, box.Outcome{Observation: box.Observation{Ref: f.Ref, Phase: phase, Evidence: "seen"}}, noon().Add(time.Hour))
	}
	t.Run("an unknown box that runs is running if it ever was ready", func(t *testing.T) {
		t.Parallel()
		f := at(box.StateUnknown)
		read(f, box.PhaseRunning)
		require.Equal(t, box.StateRunning, f.State)
		f = at(box.StateUnknown)
		f.AwakeSince = time.Time{}
		read(f, box.PhaseRunning)
		require.Equal(t, box.StateStarting, f.State)
		f = at(box.StateStarting)
		read(f, box.PhaseRunning)
		require.Equal(t, box.StateStarting, f.State)
	})
	t.Run("a box that is gone is lost, unless its deletion was agreed", func(t *testing.T) {
		t.Parallel()
		f := at(box.StateSuspended)
		read(f, box.PhaseGone)
		require.Equal(t, box.StateLost, f.State)
		f = agreed(at(box.StateUndoWindow))
		read(f, box.PhaseGone)
		require.Equal(t, box.StateExporting, f.State)
		f = agreed(at(box.StateDeleteBlocked))
		read(f, box.PhaseGone)
		require.Equal(t, box.StateDeleteBlocked, f.State, "a person accepts the loss, or nobody does")
	})
	t.Run("why it could not be suspended or woken is known then, and other failures stand", func(t *testing.T) {
		t.Parallel()
		for _, kind := range []box.StepKind{box.StepSuspend, box.StepResume, box.StepExport} {
			f := at(box.StateRunning)
			f.Failure = &box.Failure{Step: kind, Class: box.ClassNotFound, Message: "no such box", Count: 1}
			read(f, box.PhaseGone)
			require.Equal(t, kind == box.StepExport, f.Failure != nil, kind)
		}
	})
}

func TestWhatIsSaidOfASequence(t *testing.T) {
	t.Parallel()
	t.Run("why it is undone", func(t *testing.T) {
		t.Parallel()
		draining := func(purpose box.Purpose) *box.Facts {
			f := at(box.StateDraining)
			f.Sequence = &box.Sequence{Purpose: purpose, Quiet: true, DrainedAt: noon()}
			return f
		}
		arrived := draining(box.PurposeIdle)
		arrived.ResumeWanted = &box.Wish{RequestID: "r"}
		icy := draining(box.PurposeWall)
		icy.Frozen = true
		for want, f := range map[box.ReasonCode]*box.Facts{
			box.ReasonUserArrived: arrived, box.ReasonFrozen: icy, box.ReasonCancelled: draining(box.PurposeDelete),
		} {
			step := box.Next(f, noon())
			require.Equal(t, box.StepUndrain, step.Kind)
			require.Equal(t, want, step.Reason.Code)
		}
	})
	t.Run("the door is shut again when it may have opened by itself", func(t *testing.T) {
		t.Parallel()
		f := at(box.StateSuspending)
		f.Sequence = &box.Sequence{Purpose: box.PurposeWall, Quiet: true, Reclaimed: true, DrainedAt: noon()}
		require.Equal(t, box.StepExport, box.Next(f, noon().Add(2*time.Minute)).Kind)
		require.Equal(t, box.StepQuiesce, box.Next(f, noon().Add(2*time.Minute+1)).Kind)
	})
	t.Run("what was asked for is broken off for a suspend and a deletion, not on a frozen box", func(t *testing.T) {
		t.Parallel()
		step := box.Step{Kind: box.StepReclaim, Ask: &box.Ask{Kind: box.AskReclaim, ID: "q"}}
		wished := at(box.StateRunning)
		wished.SuspendWanted = &box.Wish{RequestID: "s"}
		due := agreed(at(box.StateRunning))
		icy := agreed(at(box.StateRunning))
		icy.Frozen = true
		require.False(t, box.Interrupts(at(box.StateRunning), step))
		require.True(t, box.Interrupts(wished, step))
		require.True(t, box.Interrupts(due, step))
		require.False(t, box.Interrupts(icy, step))
	})
	t.Run("what comes at the expiry", func(t *testing.T) {
		t.Parallel()
		for policy, want := range map[box.OnExpiry]string{box.OnExpiryAsk: "nothing is deleted by itself", box.OnExpiryDelete: "deleted after a verified export"} {
			w := awake(t, func(s *box.Spec) { s.Policy.OnExpiry = policy })
			w.now = w.toSuspended().At
			require.Contains(t, w.settle().Reason.Text, want)
		}
	})
}

func TestWhatABegunStepShows(t *testing.T) {
	t.Parallel()
	t.Run("the way from draining to suspending, with the reason", func(t *testing.T) {
		t.Parallel()
		for _, kind := range []box.StepKind{box.StepReclaim, box.StepExport, box.StepSuspend} {
			for _, looked := range []bool{true, false} {
				f := at(box.StateDraining)
				f.Sequence = &box.Sequence{Purpose: box.PurposeIdle, Quiet: true, Looked: looked}
				f.Begin(box.Step{Kind: kind, Purpose: box.PurposeIdle, Reason: box.Reason{Code: box.ReasonRequested}}, noon())
				require.Equal(t, box.StateSuspending, f.State, kind)
				want := map[bool]box.ReasonCode{true: box.ReasonQuiet, false: box.ReasonUnreachable}[looked]
				if kind == box.StepSuspend {
					want = box.ReasonRequested
				}
				require.Equal(t, want, f.Transitions[len(f.Transitions)-1].Reason.Code, kind)
				require.Equal(t, kind == box.StepSuspend, f.Sequence.Committed)
			}
		}
	})
	t.Run("what was asked for moves nothing, and neither does a wake for an export", func(t *testing.T) {
		t.Parallel()
		for state, ask := range map[box.State]*box.Ask{box.StateDraining: {Kind: box.AskExport, ID: "q"}, box.StateMaintenanceWake: nil} {
			for _, kind := range []box.StepKind{box.StepReclaim, box.StepExport} {
				f := at(state)
				f.Sequence = &box.Sequence{Purpose: box.PurposeMaintenance}
				f.Begin(box.Step{Kind: kind, Ask: ask}, noon())
				require.Equal(t, state, f.State)
			}
		}
		f := at(box.StateMaintenanceWake)
		f.Sequence = &box.Sequence{Purpose: box.PurposeMaintenance}
		f.Begin(box.Step{Kind: box.StepSuspend}, noon())
		require.Equal(t, box.StateMaintenanceWake, f.State)
	})
	t.Run("what was seen last, and when, is kept until something else is seen", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		seen, when := w.facts.Observed, w.facts.ObservedAt
		require.Equal(t, box.PhaseRunning, seen.Phase)
		w.facts.Queue(box.Ask{Kind: box.AskReclaim, ID: "q"})
		w.after(time.Minute)
		require.Equal(t, seen, w.facts.Observed)
		require.Equal(t, when, w.facts.ObservedAt)
	})
	t.Run("a box is created at once, or ready later", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		require.Equal(t, box.ReasonCreated, w.facts.WhyAt(w.now).Because.Code)
		w = newWorld(t, spec())
		w.deaf = true
		w.settle()
		w.deaf = false
		w.pass(time.Minute)
		require.Equal(t, box.ReasonReady, w.facts.WhyAt(w.now).Because.Code)
	})
}

func TestWhatALastLookFinds(t *testing.T) {
	t.Parallel()
	later := noon().Add(time.Hour)
	look := func(f *box.Facts, out box.Outcome) {
		f.State, f.Sequence = box.StateDraining, &box.Sequence{Purpose: f.Sequence.Purpose}
		f.Apply(box.Step{Kind: box.StepQuiesce, Purpose: f.Sequence.Purpose}, out, later)
	}
	t.Run("use, of now or of some minutes ago", func(t *testing.T) {
		t.Parallel()
		for name, row := range map[string]struct {
			use  box.Use
			want time.Time
		}{
			"ten minutes ago": {box.Use{IdleFor: box.Span(10 * time.Minute)}, later.Add(-10 * time.Minute)},
			"before we knew":  {box.Use{IdleFor: box.Span(3 * time.Hour)}, noon()},
			"a run":           {box.Use{IdleFor: box.Span(10 * time.Minute), Running: 1}, later},
			"a request":       {box.Use{IdleFor: box.Span(10 * time.Minute), InFlight: 1}, later},
		} {
			f := at(box.StateRunning)
			f.Sequence = &box.Sequence{Purpose: box.PurposeIdle}
			look(f, box.Outcome{Busy: "in use", Use: &row.use})
			require.Equal(t, row.want, f.LastUse, name)
			require.Equal(t, box.StateRunning, f.State, name)
		}
	})
	t.Run("that a deletion need not suspend first", func(t *testing.T) {
		t.Parallel()
		for name, row := range map[string]struct {
			change func(*box.Facts)
			goesOn bool
		}{
			"covered, at once":         {func(*box.Facts) {}, true},
			"with an undo window":      {func(f *box.Facts) { f.Deletion.Undo = box.Duration(time.Hour) }, false},
			"not agreed any more":      {func(f *box.Facts) { f.Deletion.Confirmed = false }, false},
			"on the way to a suspend":  {func(f *box.Facts) { f.Sequence.Purpose = box.PurposeExplicit }, false},
			"not covered by an export": {func(f *box.Facts) { f.Receipt = box.Receipt{} }, false},
		} {
			f := agreed(at(box.StateRunning))
			f.Sequence = &box.Sequence{Purpose: box.PurposeDelete}
			f.Receipt = box.Receipt{Epoch: 1, Digest: "d", Key: "k"}
			row.change(f)
			look(f, box.Outcome{Use: &box.Use{Digest: "d"}})
			if row.goesOn {
				require.Equal(t, box.StateExporting, f.State, name)
				require.Nil(t, f.Sequence, name)
				continue
			}
			require.Equal(t, box.StateDraining, f.State, name)
			require.True(t, f.Sequence.Quiet && f.Sequence.Looked, name)
			require.Equal(t, name != "not covered by an export", f.Sequence.Exported, name)
		}
	})
	t.Run("nothing, where the server does not tell what its history is: an export is in doubt then", func(t *testing.T) {
		t.Parallel()
		f := at(box.StateRunning)
		f.Sequence = &box.Sequence{Purpose: box.PurposeIdle}
		f.Scan, f.Receipt = &box.Scan{Digest: "d"}, box.Receipt{Epoch: 1, Digest: "d", Key: "k"}
		look(f, box.Outcome{Use: &box.Use{}})
		require.True(t, f.Scan.Stale)
		require.False(t, f.Sequence.Exported)
	})
}
