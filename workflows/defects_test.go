package workflows_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// Ten defects of workflows that own a sandbox, each as one scene that is played
// to the baseline and to ours: the baseline must show the defect, ours must not.

const (
	defectsInstallation = "0a1b2c3d"
	defectsIdle         = 15 * time.Minute
)

// scene is what callers do and what goes wrong, in words that fit both.
type scene struct {
	commands []timed[baselineCommand]
	suspend  []time.Duration
	resume   []time.Duration
	remove   time.Duration
	reports  []time.Duration
	faults   []fakebox.Fault
	// suggest is when the engine begins to suggest a continue-as-new.
	suggest time.Duration
	// end is when the scene is over; the workflow is terminated then.
	end time.Duration
	// after is how long the provider lives on without the workflow.
	after time.Duration
	// again starts the workflow once more at the end.
	again bool
}

type timed[T any] struct {
	at   time.Duration
	what T
}

// outcome is what can be seen from outside.
type outcome struct {
	start   time.Time
	err     error
	cloud   *fakebox.Cloud
	boxes   []driver.Listed
	runs    int
	notices int
	beats   map[string]time.Duration // heartbeat time-out of each activity that ran
	t       *testing.T
}

// suspends returns when the provider was told to suspend, since the start.
func (o outcome) suspends() []time.Duration {
	var out []time.Duration
	for _, c := range o.cloud.Calls() {
		if c.Op == fakebox.OpSuspend && c.Class == "" {
			out = append(out, c.At.Sub(o.start))
		}
	}
	return out
}

// only is the bill of the one box there is.
func (o outcome) only() fakebox.Statement {
	o.t.Helper()
	require.NotEmpty(o.t, o.boxes)
	s, ok := o.cloud.Statement(o.boxes[0].Identity.Name())
	require.True(o.t, ok)
	return s
}

func (o outcome) runsOn() bool { return o.only().Phase == box.PhaseRunning }

// claims is the row of a provider with a dead-man's switch.
func claims() box.Capabilities {
	row := fakebox.DefaultRow()
	row.NativeIdle = box.Yes
	return row
}

// cloudBoxes are the fake activities of ours with the provider's part done by
// the portable type over the fake cloud.
type cloudBoxes struct {
	*fakeBoxes
	provider *providers.Provider
}

func (b *cloudBoxes) call(ctx context.Context, kind box.StepKind, act func() (box.Observation, error)) (box.Outcome, error) {
	if err := b.step(ctx, kind, false); err != nil {
		return box.Outcome{}, err
	}
	seen, err := act()
	if err != nil { // as package activities says it
		return box.Outcome{}, temporal.NewNonRetryableApplicationError(err.Error(), string(box.ClassOf(err)), nil)
	}
	b.phase = seen.Phase
	return box.Outcome{Observation: seen, Ready: seen.Phase == box.PhaseRunning}, nil
}

func (b *cloudBoxes) Create(ctx context.Context, in activities.CreateInput) (box.Outcome, error) {
	b.lastUse = b.now()
	return b.call(ctx, box.StepCreate, func() (box.Observation, error) {
		return b.provider.Create(ctx, in.Spec, in.Epoch, driver.Start{})
	})
}

func (b *cloudBoxes) Observe(ctx context.Context, in activities.Target) (box.Outcome, error) {
	return b.call(ctx, box.StepObserve, func() (box.Observation, error) { return b.provider.Observe(ctx, in.Ref) })
}

func (b *cloudBoxes) Suspend(ctx context.Context, in activities.Target) (box.Outcome, error) {
	return b.call(ctx, box.StepSuspend, func() (box.Observation, error) { return b.provider.Suspend(ctx, in.Ref) })
}

func (b *cloudBoxes) Resume(ctx context.Context, in activities.ResumeInput) (box.Outcome, error) {
	b.lastUse = b.now()
	return b.call(ctx, box.StepResume, func() (box.Observation, error) { return b.provider.Resume(ctx, in.Ref, driver.Start{}) })
}

func (b *cloudBoxes) Delete(ctx context.Context, in activities.DeleteInput) (box.Outcome, error) {
	return b.call(ctx, box.StepDelete, func() (box.Observation, error) { return b.provider.Delete(ctx, in.Ref) })
}

// playOurs plays a scene to the workflow Box.
func playOurs(t *testing.T, s scene) outcome {
	t.Helper()
	p := newPlay(t)
	now := p.start
	clock := func() time.Time { return now }
	cloud := fakebox.New(&fakebox.Options{Row: claims(), Now: func() time.Time { return clock() }})
	for _, f := range s.faults {
		cloud.Inject(f)
	}
	keys, err := providers.NewKeySource("0123456789abcdef0123456789abcdef")
	require.NoError(t, err)
	provider, err := providers.New(p.spec.Provider, cloud.Driver(defectsInstallation), &providers.Options{Installation: defectsInstallation, Keys: keys})
	require.NoError(t, err)
	acts := &cloudBoxes{fakeBoxes: p.box, provider: provider}
	p.acts = acts
	p.each = func(env *testsuite.TestWorkflowEnvironment) {
		clock = env.Now
		if s.suggest > 0 && p.runs == 1 {
			env.RegisterDelayedCallback(func() { env.SetContinueAsNewSuggested(true) }, s.suggest)
		}
	}
	for _, c := range s.commands {
		hold := box.ConnectRequest{Request: id("begin-" + c.what.ID), HolderID: c.what.ID, Kind: box.HolderOperation}
		p.update(c.at, box.UpdateConnect, hold, nil)
		for renew := time.Minute; renew < c.what.Takes; renew += time.Minute {
			p.signal(c.at+renew, box.SignalRenew, box.RenewRequest{HolderID: c.what.ID})
		}
		p.signal(c.at+c.what.Takes, box.SignalRelease, box.ReleaseRequest{HolderID: c.what.ID})
	}
	for i, at := range s.suspend {
		p.update(at, box.UpdateSuspend, id(fmt.Sprint("s", i)), nil)
	}
	for i, at := range s.resume {
		p.update(at, box.UpdateResume, id(fmt.Sprint("r", i)), nil)
	}
	for _, at := range s.reports {
		p.signal(at, box.SignalActivity, box.ActivitySignal{Origin: "agent"})
	}
	if s.remove > 0 {
		deleteAt(p, s.remove)
	}
	p.stop(s.end)
	out := outcome{t: t, start: p.start, cloud: cloud, beats: acts.beats}
	out.err = p.run()
	if s.again {
		next := newPlay(t)
		next.start = p.now
		next.acts = &cloudBoxes{fakeBoxes: next.box, provider: provider}
		next.each = func(env *testsuite.TestWorkflowEnvironment) { clock = env.Now }
		next.stop(s.end)
		_ = next.run()
		p = next
	}
	now = p.now.Add(s.after)
	clock = func() time.Time { return now }
	out.runs, out.notices = p.runs, len(p.box.notices)
	out.boxes, err = cloud.Driver(defectsInstallation).List(t.Context(), defectsInstallation)
	require.NoError(t, err)
	return out
}

// deleteAt asks for the deletion of the box, and confirms what is shown a
// second later.
func deleteAt(p *play, at time.Duration) {
	var token string
	p.update(at, box.UpdateRequestDelete, box.RequestDeleteAsk{Request: id(fmt.Sprint("delete-", at))}, func(answer any, err error) {
		if err != nil {
			p.t.Errorf("request-delete: %v", err)
			return
		}
		loss, _ := answer.(box.Loss)
		token = loss.Token
	})
	p.at(at+time.Second, func(env *testsuite.TestWorkflowEnvironment) {
		env.SignalWorkflow(box.SignalConfirmDelete, box.ConfirmDelete{Token: token, By: "ana"})
	})
}

// playBaseline plays a scene to the baseline.
func playBaseline(t *testing.T, s scene) outcome {
	t.Helper()
	return playWorkflow(t, s, baseline)
}

func playWorkflow(t *testing.T, s scene, wf func(workflow.Context, time.Duration) error) outcome {
	t.Helper()
	start := newPlay(t).start
	now := start
	clock := func() time.Time { return now }
	cloud := fakebox.New(&fakebox.Options{Row: claims(), Now: func() time.Time { return clock() }})
	for _, f := range s.faults {
		cloud.Inject(f)
	}
	acts := &baselineBoxes{driver: cloud.Driver(defectsInstallation), beats: map[string]time.Duration{}}
	out := outcome{t: t, start: start, cloud: cloud, beats: acts.beats, runs: 1}
	for range 1 + map[bool]int{true: 1}[s.again] {
		env := newEnvironment()
		env.SetStartTime(now)
		env.RegisterWorkflow(wf)
		env.RegisterActivity(acts)
		env.SetWorkflowRunTimeout(s.end)
		clock = env.Now
		signal := func(at time.Duration, name string, arg any) {
			env.RegisterDelayedCallback(func() { env.SignalWorkflow(name, arg) }, at)
		}
		for _, c := range s.commands {
			matches := mock.MatchedBy(func(x baselineCommand) bool { return x.ID == c.what.ID })
			env.OnActivity(acts.Run, mock.Anything, matches).After(c.what.Takes).Return(acts.Run)
			signal(c.at, baselineRun, c.what)
		}
		for _, at := range s.suspend {
			signal(at, baselineSuspend, nil)
		}
		for _, at := range s.resume {
			signal(at, baselineResume, nil)
		}
		for _, at := range s.reports {
			signal(at, baselineReport, nil)
		}
		if s.remove > 0 {
			signal(s.remove, baselineDelete, nil)
		}
		if s.suggest > 0 {
			env.RegisterDelayedCallback(func() { env.SetContinueAsNewSuggested(true) }, s.suggest)
		}
		env.ExecuteWorkflow(wf, defectsIdle)
		out.err = env.GetWorkflowError()
		now = env.Now()
	}
	now = now.Add(s.after)
	clock = func() time.Time { return now }
	var err error
	out.boxes, err = cloud.Driver(defectsInstallation).List(t.Context(), defectsInstallation)
	require.NoError(t, err)
	return out
}

func run(at time.Duration, id string, takes time.Duration) timed[baselineCommand] {
	return timed[baselineCommand]{at, baselineCommand{ID: id, Takes: takes}}
}

// defect is one scene and what can be seen in it when the defect is there.
type defect struct {
	name  string
	scene scene
	shows func(o outcome) bool
}

func defects() []defect {
	failing := run(10*minute, "a", minute)
	failing.what.Fails = true
	return []defect{
		{"Defect a: no idle timer after a creation", scene{end: 2 * time.Hour}, outcome.runsOn},
		{"Defect a: no idle timer after a command that failed", scene{commands: []timed[baselineCommand]{failing}, end: 2 * time.Hour}, outcome.runsOn},
		{
			"Defect a: no idle timer after an explicit resume",
			scene{suspend: []time.Duration{2 * minute}, resume: []time.Duration{10 * minute}, end: 2 * time.Hour},
			outcome.runsOn,
		},
		{
			"Defect b: the shorter of two commands suspends under the longer one",
			scene{commands: []timed[baselineCommand]{run(minute, "long", time.Hour), run(2*minute, "short", minute)}, end: 3 * time.Hour},
			func(o outcome) bool { return slices.ContainsFunc(o.suspends(), within(minute, 61*minute)) },
		},
		{
			"Defect c: of two timers only the last one is cancelled by the next command",
			scene{
				commands: []timed[baselineCommand]{run(minute, "one", 2*minute), run(minute+time.Second, "two", 2*minute), run(10*minute, "three", 2*minute)},
				end:      3 * time.Hour,
			},
			func(o outcome) bool { return slices.ContainsFunc(o.suspends(), within(minute, 27*minute-time.Second)) },
		},
		{
			"Defect d: an automatic suspend that failed is not tried again",
			scene{
				commands: []timed[baselineCommand]{run(minute, "one", minute)}, end: 3 * time.Hour,
				faults: []fakebox.Fault{{Op: fakebox.OpSuspend, Class: box.ClassUnavailable, Times: 5}},
			},
			func(o outcome) bool { return o.only().Phase == box.PhaseRunning },
		},
		{
			"Defect e: a create whose answer was lost makes a second box",
			scene{end: 20 * minute, faults: []fakebox.Fault{{Op: fakebox.OpCreate, Lost: true}}},
			func(o outcome) bool { return len(o.boxes) != 1 },
		},
		{
			"Defect f: the history grows until the engine ends the workflow",
			scene{suggest: 5 * minute, reports: every(minute, 30*minute), end: time.Hour},
			func(o outcome) bool { return o.runs == 1 },
		},
		{
			"Defect g: a worker that dies is noticed when the whole time of its activity is over",
			scene{commands: []timed[baselineCommand]{run(minute, "one", minute)}, end: 3 * time.Hour},
			func(o outcome) bool {
				require.NotEmpty(o.t, o.beats)
				return slices.ContainsFunc(slices.Collect(maps.Values(o.beats)), func(d time.Duration) bool { return d == 0 || d > minute })
			},
		},
		{
			"Defect h: a suspended box is paid for and nobody hears of it",
			scene{suspend: []time.Duration{2 * minute}, end: 60 * day},
			func(o outcome) bool { return o.only().Suspended > 59*day && o.notices == 0 },
		},
		{
			"Defect i: the box of a terminated workflow runs on",
			scene{end: 10 * minute, after: 10 * day},
			func(o outcome) bool { return o.only().Phase == box.PhaseRunning || o.only().Awake > day },
		},
		{
			"Defect i: a workflow that takes the place of a terminated one makes another box",
			scene{end: 10 * minute, again: true},
			func(o outcome) bool { return len(o.boxes) != 1 },
		},
	}
}

func within(from, to time.Duration) func(time.Duration) bool {
	return func(d time.Duration) bool { return d > from && d < to }
}

func every(d, until time.Duration) []time.Duration {
	var out []time.Duration
	for at := d; at <= until; at += d {
		out = append(out, at)
	}
	return out
}

// TestDefects plays each scene to both.
func TestDefects(t *testing.T) {
	t.Parallel()
	for _, d := range defects() {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			o := playBaseline(t, d.scene)
			require.True(t, temporal.IsTimeoutError(o.err), "it must not end by itself: %v", o.err)
			require.True(t, d.shows(o), "the baseline does not show it: %+v, suspends at %v, %d boxes, %v", o.only(), o.suspends(), len(o.boxes), o.err)
			o = playOurs(t, d.scene)
			require.True(t, temporal.IsTimeoutError(o.err), "it must not end by itself: %v", o.err)
			if d.scene.end >= time.Hour {
				require.Equal(t, box.PhaseSuspended, o.only().Phase, "a box that is never suspended shows less")
			}
			require.False(t, d.shows(o), "ours shows it: %+v, suspends at %v, %d boxes, %v", o.only(), o.suspends(), len(o.boxes), o.err)
		})
	}
}

// happyPath is what the baseline's own test would be: a command, idle, another
// command, a deletion.
func happyPath() scene {
	return scene{
		commands: []timed[baselineCommand]{run(minute, "one", 2*minute), run(30*minute, "two", minute)},
		remove:   2 * time.Hour, end: 3 * time.Hour,
	}
}

// checkHappyPath holds for the baseline, for its change, and for ours.
func checkHappyPath(t *testing.T, o outcome) {
	t.Helper()
	require.NoError(t, o.err)
	var name string
	for _, c := range o.cloud.Calls() {
		if c.Op == fakebox.OpCreate {
			name = c.Box
		}
	}
	s, ok := o.cloud.Statement(name)
	require.True(t, ok)
	require.Equal(t, box.PhaseGone, s.Phase)
	require.Equal(t, 1, s.Wakes)
	require.Empty(t, o.boxes)
	require.Len(t, o.suspends(), 2)
	require.InDelta(t, 34*time.Minute, s.Awake, float64(minute), "18 minutes, then 16")
}

func TestTheBaselinePassesItsOwnHappyPath(t *testing.T) {
	t.Parallel()
	checkHappyPath(t, playBaseline(t, happyPath()))
	checkHappyPath(t, playOurs(t, happyPath()))
}
