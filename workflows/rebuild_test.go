package workflows_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/box"
)

// suspendedFacts are what a ledger says of a box that was suspended two days ago.
func suspendedFacts(p *play) box.Facts {
	since := p.start.Add(-2 * day)
	f := box.NewFacts(p.spec, box.Capabilities{}, since.Add(-time.Hour))
	p.box.now, p.box.phase = func() time.Time { return p.start }, box.PhaseSuspended
	f.Ref, f.Epoch = p.box.seen().Ref, 1
	f.State, f.SuspendedSince, f.PausedClock, f.AwakeSince, f.LastUse = box.StateSuspended, since, since, since.Add(-time.Hour), since
	f.Scan = &box.Scan{At: since, Digest: p.box.digest(), Conversations: 1}
	f.Receipt = box.Receipt{Workspace: "demo", Epoch: 1, Key: "k", SHA256: "s", Conversations: 1, Digest: p.box.digest()}
	return f
}

func TestARebuiltWorkspaceIsReadFirstAndGoesOn(t *testing.T) {
	t.Parallel()
	for _, cadence := range []int{0, 1, 3} {
		p := newPlay(t)
		p.cadence = cadence
		f := suspendedFacts(p)
		p.rebuilt = &f
		since := f.SuspendedSince
		statusOf(p, minute, func(s box.Status) {
			require.Equal(t, box.StateSuspended, s.State)
			require.True(t, s.SuspendedSince.Equal(since), s.SuspendedSince)
			require.True(t, s.NextAt.Equal(since.Add(27*day)), s.NextAt)
			require.True(t, s.ExportCovers)
		})
		p.stop(time.Hour)
		_ = p.run()
		require.Equal(t, []box.StepKind{box.StepObserve, box.StepRecord}, p.box.log)
		require.Equal(t, box.StateSuspended, p.box.marks[0].State)
	}
}

func TestFactsThatCannotBeTheseAreRefused(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*box.Facts){
		"another workspace":  func(f *box.Facts) { f.Spec.Workspace = "other" },
		"another version":    func(f *box.Facts) { f.Spec.Version = 9 },
		"a box of no epoch":  func(f *box.Facts) { f.Epoch = 0 },
		"a box of another":   func(f *box.Facts) { f.Epoch = 2 },
		"a closed workspace": func(f *box.Facts) { f.State = box.StateBoxArchived },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t)
			f := suspendedFacts(p)
			spoil(&f)
			p.rebuilt = &f
			err := p.run()
			var refused *temporal.ApplicationError
			require.ErrorAs(t, err, &refused)
			require.True(t, refused.NonRetryable())
			require.Empty(t, p.box.log)
		})
	}
}

// What a person changes is in the ledger soon; a life without a change pays
// nothing for it, and a run from before there was such a step goes on without.
func TestAChangeIsRecorded(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]bool{"a new run": false, "a run of an earlier release": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t)
			p.prepare = func(env *testsuite.TestWorkflowEnvironment) {
				if old {
					env.OnGetVersion(mock.Anything, workflow.DefaultVersion, workflow.Version(1)).Return(workflow.DefaultVersion)
				}
			}
			p.update(minute, box.UpdateKeep, box.SwitchAsk{Request: id("k"), On: true}, nil)
			p.update(2*minute, box.UpdateKeep, box.SwitchAsk{Request: id("k2"), On: true}, nil) // changes nothing
			p.stop(20 * minute)
			_ = p.run()
			n := len(slices.DeleteFunc(slices.Clone(p.box.log), func(k box.StepKind) bool { return k != box.StepRecord }))
			require.Equal(t, map[bool]int{false: 1, true: 0}[old], n, p.box.log)
			if !old {
				require.True(t, p.box.marks[0].Kept)
			}
		})
	}
}

// A box that its provider woke is running when its agent-server answers; a run
// from before that was waited for takes it as running at once, as it did.
func TestABoxThatCameUpWithoutUsIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]bool{"a new run": false, "a run of an earlier release": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t)
			p.prepare = func(env *testsuite.TestWorkflowEnvironment) {
				if old {
					env.OnGetVersion(mock.Anything, workflow.DefaultVersion, workflow.Version(1)).Return(workflow.DefaultVersion)
				}
			}
			p.at(day, func(env *testsuite.TestWorkflowEnvironment) {
				p.box.phase = box.PhaseRunning
				env.SignalWorkflow(box.SignalObserved, box.ObservedSignal{ID: "w", Observation: p.box.seen()})
			})
			statusOf(p, day+minute, func(s box.Status) {
				require.Equal(t, box.StateRunning, s.State)
				require.Zero(t, s.SuspendedSince)
			})
			p.stop(day + 2*minute)
			_ = p.run()
			require.Equal(t, !old, slices.Contains(p.box.log, box.StepAwaitReady), "%v", p.box.log)
		})
	}
}

// What an export holds of the files decides from the first export on. A run of an
// earlier release whose export a newer activity took never saw that part, and
// goes on without: it must replay as it went.
func TestOnlyANewRunGoesByWhatAnExportHoldsOfTheFiles(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]bool{"a new run": false, "a run of an earlier release": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t)
			p.spec.Policy.OnExpiry = box.OnExpiryDelete
			p.box.archive = box.ArchiveReceipt{Bytes: 1024, SHA256: "t", Missing: 2}
			p.prepare = func(env *testsuite.TestWorkflowEnvironment) {
				if old {
					env.OnGetVersion(mock.Anything, workflow.DefaultVersion, workflow.Version(1)).Return(workflow.DefaultVersion)
				}
			}
			statusOf(p, day, func(s box.Status) {
				require.Equal(t, box.StateSuspended, s.State)
				require.Equal(t, map[bool]int64{false: 2, true: 0}[old], s.Export.Archive.Missing)
			})
			p.stop(40 * day)
			_ = p.run()
			require.Equal(t, old, slices.Contains(p.box.log, box.StepDelete), "%v", p.box.log)
		})
	}
}
