package workflows_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/race"
)

// tale is one scenario, to be told with any number of turns in a run.
type tale struct {
	name string
	tell func(p *play)
	end  time.Duration
}

func tales() []tale {
	connect := func(p *play, at time.Duration, holder string) {
		p.update(at, box.UpdateConnect, box.ConnectRequest{Request: id(fmt.Sprint("c-", at)), HolderID: holder, Origin: "canvas"}, nil)
	}
	release := func(p *play, at time.Duration, holder string) {
		p.signal(at, box.SignalRelease, box.ReleaseRequest{HolderID: holder})
	}
	killed := func(p *play, at time.Duration) {
		p.at(at, func(env *testsuite.TestWorkflowEnvironment) {
			p.box.phase = box.PhaseFailed
			env.SignalWorkflow(box.SignalObserved, box.ObservedSignal{ID: fmt.Sprint("w-", at), Observation: p.box.seen()})
		})
	}
	return []tale{
		{"nobody ever comes, and it waits for a person", func(*play) {}, 40 * day},
		{"it is used, idle, woken, and deleted at its end by its owner", func(p *play) {
			connect(p, minute, "tab")
			p.at(minute+time.Second, func(env *testsuite.TestWorkflowEnvironment) { p.box.events, p.box.lastUse = 3, env.Now() })
			release(p, 2*minute, "tab")
			connect(p, time.Hour, "tab")
			release(p, time.Hour+minute, "tab")
			deleteAt(p, 35*day)
		}, 37 * day},
		{"the policy deletes it", func(p *play) { p.spec.Policy.OnExpiry = box.OnExpiryDelete }, 40 * day},
		{"a deletion at once, and one that is taken back", func(p *play) {
			p.box.hang[box.StepVerifyExport] = true
			deleteAt(p, 20*minute)
			p.signal(20*minute+time.Second+50*time.Millisecond, box.SignalCancelDelete, box.CancelDelete{By: "ana"})
			p.at(21*minute, func(*testsuite.TestWorkflowEnvironment) { p.box.hang[box.StepVerifyExport] = false })
			deleteAt(p, 30*minute)
		}, time.Hour},
		{"a person suspends it and wakes it again", func(p *play) {
			p.update(5*minute, box.UpdateSuspend, id("s"), nil)
			p.update(30*minute, box.UpdateResume, id("r"), nil)
		}, 2 * time.Hour},
		{"someone arrives while it is exported", func(p *play) {
			p.box.hang[box.StepExport] = true
			connect(p, 15*minute+50*time.Millisecond, "tab")
			p.at(16*minute, func(*testsuite.TestWorkflowEnvironment) { p.box.hang[box.StepExport] = false })
		}, 2 * time.Hour},
		{"it ends by itself, twice while it is held and once while it is not", func(p *play) {
			connect(p, minute, "tab")
			killed(p, minute+30*time.Second)
			killed(p, 2*minute)
			killed(p, 10*minute)
		}, time.Hour},
		{"the suspend fails for hours", func(p *play) {
			p.box.fail[box.StepSuspend] = box.Errorf(box.ClassUnavailable, "no answer")
			p.at(6*time.Hour, func(*testsuite.TestWorkflowEnvironment) { delete(p.box.fail, box.StepSuspend) })
		}, day},
		{"the export store gives nothing back, then it does", func(p *play) {
			p.box.badStore = true
			deleteAt(p, 20*minute)
			p.at(10*time.Hour, func(*testsuite.TestWorkflowEnvironment) { p.box.badStore = false })
		}, day},
		{"the delete fails for three days", func(p *play) {
			p.box.fail[box.StepDelete] = box.Errorf(box.ClassUnavailable, "no answer")
			deleteAt(p, 20*minute)
			p.at(3*day, func(*testsuite.TestWorkflowEnvironment) { delete(p.box.fail, box.StepDelete) })
		}, 6 * day},
		{"it is frozen, thawed, kept and let go", func(p *play) {
			p.update(minute, box.UpdateFreeze, box.SwitchAsk{Request: id("f1"), On: true}, nil)
			p.update(2*day, box.UpdateFreeze, box.SwitchAsk{Request: id("f0")}, nil)
			p.update(3*day, box.UpdateKeep, box.SwitchAsk{Request: id("k1"), On: true}, nil)
			p.update(50*day, box.UpdateKeep, box.SwitchAsk{Request: id("k0")}, nil)
		}, 90 * day},
		{"the policy changes on the way", func(p *play) {
			p.update(minute, box.UpdateSetPolicy, box.SetPolicyAsk{Request: id("p1"), Policy: box.Policy{Idle: box.Duration(2 * time.Hour)}}, nil)
			p.update(day, box.UpdateSetPolicy, box.SetPolicyAsk{Request: id("p2"), Policy: box.Policy{PausedTTL: box.Duration(5 * day)}}, nil)
		}, 20 * day},
		{"operations that overlap keep it awake up to the hard maximum", func(p *play) {
			p.spec.Policy.HolderLease = box.Duration(5 * minute)
			for i := range 13 * 60 {
				p.signal(time.Duration(i)*61*time.Second+time.Second, box.SignalActivity, box.ActivitySignal{Origin: "agent", Begun: []string{fmt.Sprint("op", i)}, Ended: []string{fmt.Sprint("op", i-2)}})
			}
		}, 14 * time.Hour},
		{"exports and passes are asked for, repeated, and refused", func(p *play) {
			for _, at := range []time.Duration{minute, minute, 2 * minute} {
				p.update(at, box.UpdateReclaim, box.ReclaimAsk{Request: id("same")}, nil)
			}
			p.update(3*minute, box.UpdateExport, id("e1"), nil)
			p.update(time.Hour, box.UpdateExport, id("e2"), nil)
			p.update(time.Hour+minute, box.UpdateReclaim, box.ReclaimAsk{Request: id("q")}, func(_ any, err error) { require.Error(p.t, err) })
		}, 2 * time.Hour},
	}
}

// In a tale no two things happen in one instant: the test environment drops a
// signal that waits when a run ends, and the engine does not.

// TestEveryTaleEndsAlikeAtEveryCadence tells each tale with continue-as-new as
// the engine suggests it, that is never here, and forced after so many turns.
func TestEveryTaleEndsAlikeAtEveryCadence(t *testing.T) {
	t.Parallel()
	for _, s := range tales() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want, _ := told(t, s, 0)
			for _, cadence := range []int{1, 2, 3, 5, 7, 1000} {
				got, runs := told(t, s, cadence)
				require.Equal(t, want, got, "%d turns in a run", cadence)
				if cadence == 1 {
					require.Greater(t, runs, 3, "a run for each turn")
				}
			}
		})
	}
}

// told plays a tale and returns what became of it, to the minute: the virtual
// clock moves a little while an activity runs.
func told(t *testing.T, s tale, cadence int) (record []string, runs int) {
	t.Helper()
	p := newPlay(t)
	p.cadence = cadence
	s.tell(p)
	add := func(format string, args ...any) { record = append(record, fmt.Sprintf(format, args...)) }
	at := func(when time.Time) string {
		if when.IsZero() {
			return "never"
		}
		return when.Sub(p.start).Round(minute).String()
	}
	probe := func(when time.Duration) {
		p.at(when, func(env *testsuite.TestWorkflowEnvironment) {
			var status box.Status
			var why box.Why
			for name, into := range map[string]any{box.QueryStatus: &status, box.QueryWhy: &why} {
				value, err := env.QueryWorkflow(name)
				require.NoError(t, err)
				require.NoError(t, value.Get(into))
			}
			add("after %s: %s %v, next %s at %s because of %s", when, status.State, status.Flags, status.Next, at(status.NextAt), why.NextReason.Code)
			add("holders %d, failure %v, deletion %v, covered %v", len(status.Holders), status.Failure != nil, status.Deletion != nil, status.ExportCovers)
			if c := status.Confirmation; c != nil {
				add("confirmation %v %s", c.Accepted, c.Reason.Code)
			}
			for _, tr := range why.Transitions {
				add("%s %s: %s", at(tr.At), tr.To, tr.Reason.Code)
			}
		})
	}
	p.each = func(env *testsuite.TestWorkflowEnvironment) { oneTimer(t, env) }
	probe(s.end / 3)
	probe(s.end / 2)
	probe(s.end - time.Second)
	p.stop(s.end)
	err := p.run()
	add("ended with an error: %v", err != nil)
	add("steps %v", p.box.log)
	for _, n := range p.box.notices {
		for _, e := range n.Events {
			add("%s in %s, due %s", e.Kind, e.State, at(e.Due))
		}
	}
	add("phase %s after %d creates, %d cancelled", p.box.phase, p.box.creates, p.box.cancelled)
	return record, p.runs
}

// oneTimer fails when a timer fires while another one is armed: a box has one
// deadline. In the moment of arming there are two, since the old one is
// cancelled in the same task.
func oneTimer(t *testing.T, env *testsuite.TestWorkflowEnvironment) {
	t.Helper()
	armed := 0
	env.SetOnTimerScheduledListener(func(string, time.Duration) { armed++ })
	env.SetOnTimerCanceledListener(func(string) { armed-- })
	env.SetOnTimerFiredListener(func(string) {
		if armed != 1 {
			t.Errorf("at %s a timer fires and %d are armed", env.Now(), armed)
		}
		armed--
	})
}

// TestScenario45SixtyThousandSignalsLoseNothing: each signal begins one
// operation and ends the one before. A signal that is lost leaves the operation
// before it standing, for its lease is longer than the whole.
func TestScenario45SixtyThousandSignalsLoseNothing(t *testing.T) {
	t.Parallel()
	const signals = 60_000 / race.Slowness
	p := newPlay(t)
	p.cadence = 5_000 / race.Slowness
	p.spec.Policy = box.Policy{HolderLease: box.Duration(12 * time.Hour), MaxRun: box.Never}
	name := func(i int) string { return fmt.Sprint("op-", i) }
	at := func(i int) time.Duration { return minute + time.Duration(i)*500*time.Millisecond }
	sent := 0
	p.each = func(env *testsuite.TestWorkflowEnvironment) { // one timer at a time: the test clock sorts all there are
		var next func()
		next = func() {
			s := box.ActivitySignal{Origin: "agent", Begun: []string{name(sent)}}
			if sent > 0 {
				s.Ended = []string{name(sent - 1)}
			}
			env.SignalWorkflow(box.SignalActivity, s)
			sent++
			if sent < signals {
				env.RegisterDelayedCallback(next, p.start.Add(at(sent)).Sub(env.Now()))
			}
		}
		if sent < signals {
			env.RegisterDelayedCallback(next, p.start.Add(at(sent)).Sub(env.Now()))
		}
	}
	last := at(signals - 1)
	statusOf(p, last+minute, func(s box.Status) {
		require.Len(t, s.Holders, 1)
		require.Equal(t, name(signals-1), s.Holders[0].ID)
		require.Equal(t, box.StateRunning, s.State)
	})
	p.signal(last+2*minute, box.SignalActivity, box.ActivitySignal{Ended: []string{name(signals - 1)}})
	statusOf(p, last+2*minute+14*minute, func(s box.Status) {
		require.Equal(t, box.StateRunning, s.State)
		require.WithinDuration(t, p.start.Add(last+17*minute), s.NextAt, time.Second, "the deadline is 15 minutes after the last use, however many runs it took")
	})
	statusOf(p, last+18*minute, func(s box.Status) { require.Equal(t, box.StateSuspended, s.State) })
	p.stop(last + 19*minute)
	_ = p.run()
	require.Greater(t, p.runs, 4)
	require.Equal(t, 1, slices.Index(p.box.log, box.StepQuiesce), "nothing but the creation came before the one suspend")
}

// TestTheStateOfEveryRunIsReadable makes sure that what one run hands to the
// next is whole: what the wire form does not hold is lost at each continue-as-new.
func TestTheStateOfEveryRunIsReadable(t *testing.T) {
	t.Parallel()
	p := wholeLife(t, 1)
	require.Greater(t, len(p.carried), 10)
	for _, in := range p.carried {
		data, err := json.Marshal(in)
		require.NoError(t, err)
		var back box.Input
		require.NoError(t, json.Unmarshal(data, &back))
		require.Equal(t, in, back)
	}
}
