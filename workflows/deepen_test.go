package workflows_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// ladderBoxes are those of a cloud that suspends with memory, and deeper.
type ladderBoxes struct {
	*cloudBoxes
	aged bool // made by an earlier release, whose row did not say so
}

func (b *ladderBoxes) Create(ctx context.Context, in activities.CreateInput) (box.Outcome, error) {
	out, err := b.cloudBoxes.Create(ctx, in)
	row := b.provider.Capabilities()
	if b.aged {
		row.Deepen = box.Unknown
	}
	out.Capabilities = &row
	return out, err
}

func (b *ladderBoxes) Suspend(ctx context.Context, in activities.Target) (box.Outcome, error) {
	out, err := b.cloudBoxes.Suspend(ctx, in)
	row := b.provider.Capabilities()
	out.Capabilities = &row
	return out, err
}

func (b *ladderBoxes) Deepen(ctx context.Context, in activities.Target) (box.Outcome, error) {
	return b.call(ctx, box.StepDeepen, func() (box.Observation, error) {
		return b.provider.Deepen(driver.WithFence(ctx, in.Fence), in.Ref)
	})
}

// climb plays a scenario to a cloud of that kind, and returns it and what it
// knows of the box at the end.
func climb(t *testing.T, cadence int, tell func(p *play, cloud *fakebox.Cloud)) (*play, fakebox.Statement) {
	t.Helper()
	p := newPlay(t)
	p.cadence = cadence
	row := fakebox.DefaultRow()
	row.MemoryKept, row.Deepen = box.Yes, box.Yes
	now := func() time.Time { return p.start }
	cloud := fakebox.New(&fakebox.Options{Row: row, Now: func() time.Time { return now() }})
	keys, err := providers.NewKeySource("0123456789abcdef0123456789abcdef")
	require.NoError(t, err)
	provider, err := providers.New(p.spec.Provider, cloud.Driver(defectsInstallation), &providers.Options{Installation: defectsInstallation, Keys: keys})
	require.NoError(t, err)
	p.acts = &ladderBoxes{cloudBoxes: &cloudBoxes{fakeBoxes: p.box, provider: provider}}
	p.each = func(env *testsuite.TestWorkflowEnvironment) {
		now = env.Now
		oneTimer(t, env)
	}
	tell(p, cloud)
	_ = p.run()
	end := p.now
	now = func() time.Time { return end }
	said, _ := cloud.Statement(fmt.Sprintf("bk-%s-demo-1", defectsInstallation))
	return p, said
}

func (p *play) did(kind box.StepKind) int {
	return len(slices.DeleteFunc(slices.Clone(p.box.log), func(k box.StepKind) bool { return k != kind }))
}

// lasts lets the activity take so long.
func (p *play) lasts(name string, d time.Duration) {
	p.prepare = func(env *testsuite.TestWorkflowEnvironment) {
		boxes, _ := p.acts.(*ladderBoxes)
		env.OnActivity(name, mock.Anything, mock.Anything).After(d).Return(boxes.Deepen)
	}
}

func TestASuspendedBoxGivesItsMemoryUp(t *testing.T) {
	t.Parallel()
	near := func(t *testing.T, want, got time.Duration) {
		t.Helper()
		require.InDelta(t, want.Seconds(), got.Seconds(), 5)
	}
	frozen := func(p *play, at time.Duration, on bool) {
		p.update(at, box.UpdateFreeze, box.SwitchAsk{Request: id(fmt.Sprint("f-", at)), On: on}, nil)
	}
	held := func(p *play, at time.Duration, on bool) {
		p.signal(at, box.SignalHold, box.HoldSignal{On: on, By: "ops"})
	}
	connect := func(p *play, at time.Duration) {
		p.update(at, box.UpdateConnect, box.ConnectRequest{Request: id(fmt.Sprint("c-", at)), HolderID: "tab"}, nil)
	}
	for name, row := range map[string]struct {
		tell   func(p *play, cloud *fakebox.Cloud)
		deepen int           // times that it was tried
		memory time.Duration // for which it was held
		starts int
		phase  box.Phase
	}{
		"after the time that the policy says": {func(p *play, _ *fakebox.Cloud) {
			statusOf(p, 30*minute, func(s box.Status) {
				require.Equal(p.t, box.StepDeepen, s.Next)
				require.Equal(p.t, box.Yes, s.Seen.MemoryKept)
			})
			statusOf(p, 5*time.Hour, func(s box.Status) {
				require.Equal(p.t, box.StateSuspended, s.State)
				require.Equal(p.t, box.StepNotify, s.Next)
				require.Equal(p.t, box.No, s.Seen.MemoryKept)
				require.WithinDuration(p.t, p.start.Add(15*minute), s.SuspendedSince, 20*time.Second)
				require.True(p.t, s.ExportCovers)
			})
			p.stop(6 * time.Hour)
		}, 1, time.Hour, 1, box.PhaseSuspended},
		"and begins anew for who comes later": {func(p *play, _ *fakebox.Cloud) {
			connect(p, 2*time.Hour)
			p.stop(2*time.Hour + minute)
		}, 1, time.Hour, 2, box.PhaseRunning},
		"not for who comes before": {func(p *play, _ *fakebox.Cloud) {
			connect(p, 70*minute)
			p.stop(71 * minute)
		}, 0, 55 * minute, 1, box.PhaseRunning},
		"who comes meanwhile waits for the end of it": {func(p *play, _ *fakebox.Cloud) {
			p.lasts("Deepen", minute)
			connect(p, 76*minute)
			p.stop(78 * minute)
		}, 1, 61 * minute, 2, box.PhaseRunning},
		"a deletion that is confirmed meanwhile goes on": {func(p *play, _ *fakebox.Cloud) {
			p.lasts("Deepen", minute)
			deleteAt(p, 75*minute+40*time.Second)
			p.stop(day)
		}, 1, 61 * minute, 1, box.PhaseGone},
		"a failing one is tried again": {func(p *play, cloud *fakebox.Cloud) {
			cloud.Inject(fakebox.Fault{Op: fakebox.OpDeepen, Class: box.ClassUnavailable, Times: 3})
			statusOf(p, 80*minute, func(s box.Status) {
				require.NotNil(p.t, s.Failure)
				require.Equal(p.t, 3, s.Failure.Count)
			})
			statusOf(p, 2*time.Hour, func(s box.Status) { require.Nil(p.t, s.Failure) })
			p.stop(3 * time.Hour)
		}, 4, 67 * minute, 1, box.PhaseSuspended},
		"a lost answer is found out by looking": {func(p *play, cloud *fakebox.Cloud) {
			cloud.Inject(fakebox.Fault{Op: fakebox.OpDeepen, Lost: true})
			p.stop(3 * time.Hour)
		}, 1, time.Hour, 1, box.PhaseSuspended},
		"freeze stops it, and a thaw gives the whole time": {func(p *play, _ *fakebox.Cloud) {
			frozen(p, 30*minute, true)
			frozen(p, 10*time.Hour, false)
			p.stop(12 * time.Hour)
		}, 1, 10*time.Hour + 45*minute, 1, box.PhaseSuspended},
		"a hold stops it, and its end gives the whole time": {func(p *play, _ *fakebox.Cloud) {
			held(p, 30*minute, true)
			held(p, 10*time.Hour, false)
			p.stop(12 * time.Hour)
		}, 1, 10*time.Hour + 45*minute, 1, box.PhaseSuspended},
		"never": {func(p *play, _ *fakebox.Cloud) {
			p.spec.Policy.DeepenAfter = box.Never
			p.stop(day)
		}, 0, 23*time.Hour + 45*minute, 1, box.PhaseSuspended},
		"a provider that did it by itself is not asked": {func(p *play, cloud *fakebox.Cloud) {
			p.at(45*minute, func(env *testsuite.TestWorkflowEnvironment) {
				name := fmt.Sprintf("bk-%s-demo-1", defectsInstallation)
				cloud.LoseMemory(name)
				listed, err := cloud.Driver(defectsInstallation).List(p.t.Context(), defectsInstallation)
				require.NoError(p.t, err)
				env.SignalWorkflow(box.SignalObserved, box.ObservedSignal{ID: "w", Observation: listed[0].Observation})
			})
			p.stop(3 * time.Hour)
		}, 0, 30 * minute, 1, box.PhaseSuspended},
		"also of a box that an earlier release made": {func(p *play, _ *fakebox.Cloud) {
			boxes, _ := p.acts.(*ladderBoxes)
			boxes.aged = true
			p.stop(3 * time.Hour)
		}, 1, time.Hour, 1, box.PhaseSuspended},
		"not in a run of an earlier release whose worker was newer": {func(p *play, _ *fakebox.Cloud) {
			p.prepare = func(env *testsuite.TestWorkflowEnvironment) {
				env.OnGetVersion("deepens", workflow.DefaultVersion, workflow.Version(1)).Return(workflow.DefaultVersion)
			}
			p.stop(3 * time.Hour)
		}, 0, 2*time.Hour + 45*minute, 1, box.PhaseSuspended},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, cadence := range []int{0, 1, 3} {
				p, said := climb(t, cadence, row.tell)
				require.Equal(t, row.deepen, p.did(box.StepDeepen), "%d turns in a run: %v", cadence, p.box.log)
				require.Equal(t, row.phase, said.Phase)
				require.Equal(t, row.starts, said.Starts)
				off := time.Duration(0) // the idle timer is armed up to 18 s late
				if said.Memory < row.memory {
					off = row.memory - said.Memory
				}
				require.LessOrEqual(t, off, 20*time.Second, "held for %s", said.Memory)
				near(t, row.memory, said.Memory+off)
			}
		})
	}
}
