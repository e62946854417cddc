package box_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

const (
	idle = 15 * time.Minute
	day  = 24 * time.Hour
)

// awake returns a world whose box runs and which nobody uses.
func awake(t *testing.T, change ...func(*box.Spec)) *world {
	t.Helper()
	s := spec()
	for _, c := range change {
		c(&s)
	}
	w := newWorld(t, s)
	w.settle()
	w.state(box.StateRunning)
	return w
}

// after lets d pass at once, as a loop does that slept through it.
func (w *world) after(d time.Duration) box.Step {
	w.t.Helper()
	w.now = w.now.Add(d)
	return w.settle()
}

// pass lets d pass the way a loop sees it: it stops at every deadline.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	end := w.now.Add(d)
	for step := w.settle(); !step.At.IsZero() && !step.At.After(end); step = w.settle() {
		w.now = step.At
	}
	w.now = end
	w.settle()
}

func (w *world) begun(ids ...string) {
	w.facts.ReportActivity(box.ActivitySignal{Origin: "agent", Begun: ids}, w.now)
}

func (w *world) did(kind box.StepKind) int {
	n := 0
	for _, k := range w.log {
		if k == kind {
			n++
		}
	}
	return n
}

func TestUseKeepsABoxAwake(t *testing.T) {
	t.Parallel()
	t.Run("Scenario 1: one quiet operation keeps it awake, is shown, and the idle time counts from its end", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.begun("sleep-900")
		for range 60 { // its owner renews, nothing else happens
			w.pass(time.Minute)
			w.begun("sleep-900")
		}
		w.state(box.StateRunning)
		if why := w.facts.WhyAt(w.now); len(why.Holders) != 1 || why.Holders[0].Kind != box.HolderOperation || why.Holders[0].Age != box.Duration(time.Hour) {
			t.Errorf("why names %+v", why.Holders)
		}
		w.facts.ReportActivity(box.ActivitySignal{Ended: []string{"sleep-900"}}, w.now)
		w.pass(idle - time.Second)
		w.state(box.StateRunning)
		w.pass(time.Second)
		w.state(box.StateSuspended)
	})
	t.Run("Scenario 2: step events without a completion keep it awake", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		for range 80 {
			w.facts.ReportActivity(box.ActivitySignal{}, w.now)
			w.pass(30 * time.Second)
		}
		w.state(box.StateRunning)
		if w.did(box.StepQuiesce) != 0 {
			t.Errorf("it was drained in between: %v", w.log)
		}
	})
	t.Run("Scenario 5 and 6: looking at it and watching it is no use", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		before := w.settle().At
		for range 59 {
			w.now = w.now.Add(15 * time.Second)
			w.facts.StatusAt(w.now)
			w.facts.WhyAt(w.now)
			w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
			w.facts.Queue(box.Ask{Kind: box.AskReclaim, ID: fmt.Sprint("look", w.now.Unix())})
			if at := w.settle().At; !at.Equal(before) {
				t.Fatalf("the deadline moved from %s to %s", before, at)
			}
		}
		w.pass(15 * time.Second)
		w.state(box.StateSuspended)
	})
	t.Run("Scenario 7: a conversation that runs without events is use at the deadline", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.running = 1
		w.pass(3*idle + time.Minute)
		w.state(box.StateRunning)
		if busy := w.did(box.StepQuiesce); busy != 3 {
			t.Errorf("it was looked into %d times, want 3", busy)
		}
		w.running, w.lastUse = 0, w.now
		w.pass(2 * idle)
		w.state(box.StateSuspended)
	})
	t.Run("Scenario 12: work at the deadline is waited for, up to the hard maximum", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		start := w.now
		w.running = 1
		w.pass(11 * time.Hour)
		w.state(box.StateRunning)
		w.pass(time.Hour)
		w.state(box.StateSuspended)
		if reason := w.facts.Transitions[len(w.facts.Transitions)-1].Reason; reason.Code != box.ReasonWall {
			t.Errorf("after %s because of %+v", w.now.Sub(start), reason)
		}
	})
}

func TestTheIdleDeadlineFollowsTheFacts(t *testing.T) {
	t.Parallel()
	t.Run("Scenario 10: switching freeze off arms the timer from then", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.facts.Freeze(box.SwitchAsk{Request: box.Request{ID: "f1"}, On: true}, w.now)
		w.pass(20 * time.Hour) // beyond the hard maximum, too
		w.state(box.StateRunning)
		w.facts.Freeze(box.SwitchAsk{Request: box.Request{ID: "f2"}}, w.now)
		if got := w.settle(); !got.At.Equal(w.now.Add(idle)) || got.Then != box.StepQuiesce {
			t.Fatalf("armed is %+v", got)
		}
		w.pass(idle)
		w.state(box.StateSuspended)
	})
	t.Run("Scenario 11: a shorter idle time counts at once", func(t *testing.T) {
		t.Parallel()
		w := awake(t, func(s *box.Spec) { s.Policy.Idle = box.Duration(time.Hour) })
		w.pass(2 * time.Minute)
		answer := w.facts.SetPolicy(box.SetPolicyAsk{Request: box.Request{ID: "p"}, Policy: box.Policy{Idle: box.Duration(5 * time.Minute)}}, w.now)
		if got, before := answer.NextAfter.Sub(w.now), answer.NextBefore.Sub(w.now); !armedFor(got, 5*time.Minute) || !armedFor(before, 58*time.Minute) {
			t.Fatalf("deadlines %s and %s", answer.NextBefore, answer.NextAfter)
		}
		w.pass(5 * time.Minute)
		w.state(box.StateSuspended)
	})
	t.Run("Scenario 22: the time that is shown moves with each use at once", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		for range 3 {
			w.pass(10 * time.Minute)
			w.facts.ReportActivity(box.ActivitySignal{}, w.now)
			if left := w.facts.StatusAt(w.now).NextAt.Sub(w.now); !armedFor(left, idle) {
				t.Errorf("shown are %s, want %s", left, idle)
			}
		}
	})
	t.Run("Scenario 32: connecting never shortens", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		long := box.ConnectRequest{Request: box.Request{ID: "c1"}, HolderID: "tab", Lease: box.Duration(25 * time.Minute)}
		want := w.facts.Connect(long, w.now).LeaseUntil
		again := box.ConnectRequest{Request: box.Request{ID: "c2"}, HolderID: "tab", Lease: box.Duration(5 * time.Minute)}
		if got := w.facts.Connect(again, w.now).LeaseUntil; !got.Equal(want) {
			t.Errorf("connect moved the lease from %s to %s", want, got)
		}
		if got := w.facts.Renew(box.RenewRequest{HolderID: "tab"}, w.now).LeaseUntil; !got.Equal(want) {
			t.Errorf("renew moved the lease from %s to %s", want, got)
		}
		w.facts.ReportActivity(box.ActivitySignal{IdleFor: box.Duration(14 * time.Minute)}, w.now)
		w.facts.Release("tab", w.now)
		if got := w.settle().At; !got.Equal(w.now.Add(idle)) {
			t.Errorf("a report of old use moved the deadline to %s", got)
		}
	})
	t.Run("Scenario 52: of two reasons to stay awake the later one counts", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.connect("tab") // leaves without a word: its lease ends in two minutes
		w.begun("op")
		w.facts.ReportActivity(box.ActivitySignal{Ended: []string{"op"}}, w.now.Add(time.Minute))
		w.now = w.now.Add(time.Minute)
		w.pass(idle - time.Second)
		w.state(box.StateRunning)
		w.pass(time.Minute)
		w.state(box.StateSuspended)
	})
	t.Run("use that never was is not use now", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		before := w.settle().At
		w.now = w.now.Add(time.Minute)
		w.facts.ReportActivity(box.ActivitySignal{IdleFor: box.Never}, w.now)
		if got := w.settle().At; !got.Equal(before) {
			t.Errorf("the deadline moved from %s to %s", before, got)
		}
	})
}

func TestRule8ATimerThatFiresLateGivesAFreshWindow(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		late  time.Duration
		hold  bool
		fresh bool
	}{
		{"in time", 0, false, false},
		{"a minute late is no outage", time.Minute, false, false},
		{"longer is one", time.Minute + time.Nanosecond, false, true},
		{"a lease that ended unseen is one, too", 3 * time.Hour, true, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			if row.hold {
				w.connect("tab")
			}
			step := w.after(idle + row.late)
			if !row.fresh {
				w.state(box.StateSuspended)
				return
			}
			w.state(box.StateRunning)
			if !step.At.Equal(w.now.Add(idle)) {
				t.Errorf("the fresh window ends at %s, now is %s", step.At, w.now)
			}
			w.pass(idle)
			w.state(box.StateSuspended)
		})
	}
	t.Run("walls are excepted", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.after(12*time.Hour + 10*time.Minute)
		w.state(box.StateSuspended)
	})
}

func TestHoldersAreBounded(t *testing.T) {
	t.Parallel()
	t.Run("Scenario 23: why lists each with age and origin", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		for _, id := range []string{"a", "b"} {
			r := box.ConnectRequest{Request: box.Request{ID: id, By: "ana"}, HolderID: id, Kind: box.HolderOperation, Origin: "job " + id, Lease: box.Duration(time.Hour)}
			w.facts.Connect(r, w.now)
			w.now = w.now.Add(10 * time.Minute)
		}
		why := w.facts.WhyAt(w.now)
		want := []box.HolderView{
			{ID: "a", Kind: box.HolderOperation, Origin: "job a", Age: box.Duration(20 * time.Minute), EndsIn: box.Duration(40 * time.Minute)},
			{ID: "b", Kind: box.HolderOperation, Origin: "job b", Age: box.Duration(10 * time.Minute), EndsIn: box.Duration(50 * time.Minute)},
		}
		if !slices.Equal(why.Holders, want) || why.NextReason.Code != box.ReasonHeld {
			t.Errorf("why says %+v because %+v", why.Holders, why.NextReason)
		}
	})
	t.Run("one that is not renewed ends with its lease, and the idle time counts from its last renewal", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.connect("tab")
		last := w.now
		w.pass(2 * time.Minute)
		if n := len(w.facts.Holders); n != 0 {
			t.Fatalf("%d holders live", n)
		}
		if got := w.settle().At; !got.Equal(last.Add(idle)) {
			t.Errorf("deadline %s, want %s", got, last.Add(idle))
		}
	})
	t.Run("one that renews for ever ends at the hard maximum", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		start := w.now
		for w.facts.State == box.StateRunning && w.now.Sub(start) < day {
			w.connect("tab")
			w.pass(time.Minute)
		}
		if got := w.now.Sub(start); got != 12*time.Hour {
			t.Errorf("it was awake for %s", got)
		}
	})
	t.Run("there are at most 256, renewing is still possible, and operations count as well", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		for i := range 300 {
			w.begun(fmt.Sprint("op", i))
		}
		r := box.ConnectRequest{Request: box.Request{ID: "r"}, HolderID: "new"}
		if err := w.facts.CheckConnect(r); len(w.facts.Holders) != 256 || box.ClassOf(err) != box.ClassExhausted {
			t.Errorf("%d holders, then %v", len(w.facts.Holders), err)
		}
		r.HolderID = "op7"
		if err := w.facts.CheckConnect(r); err != nil {
			t.Error(err)
		}
	})
	t.Run("no lease is longer than the hard maximum", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		for _, most := range []box.Duration{box.Duration(time.Hour), box.Never} {
			w.facts.Policy.MaxRun = most
			r := box.ConnectRequest{Request: box.Request{ID: "r"}, HolderID: "h", Lease: box.Duration(13 * time.Hour)}
			if err := w.facts.CheckConnect(r); !strings.HasPrefix(fmt.Sprint(err), "lease: ") {
				t.Errorf("connect with max_run %s: %v", most, err)
			}
			if err := w.facts.CheckRenew(box.RenewRequest{HolderID: "h", Lease: r.Lease}); !strings.HasPrefix(fmt.Sprint(err), "lease: ") {
				t.Errorf("renew with max_run %s: %v", most, err)
			}
		}
	})
}

// No session pays for more than the idle limit after its last use.
func TestScenario15IdleTailOfTwoHundredSessions(t *testing.T) {
	t.Parallel()
	w := awake(t)
	dice := rand.New(rand.NewPCG(15, 15))
	for session := range 200 {
		w.connect("tab")
		w.settle()
		w.state(box.StateRunning)
		for range 1 + dice.IntN(3) {
			w.pass(time.Duration(dice.Int64N(int64(2 * time.Minute))))
			w.connect("tab")
			w.events++
		}
		w.facts.Release("tab", w.now)
		w.lastUse = w.now
		last := w.now
		w.pass(idle)
		w.state(box.StateSuspended)
		if tail := w.facts.SuspendedSince.Sub(last); tail > idle {
			t.Fatalf("session %d was awake for %s after its last use", session, tail)
		}
		w.pass(time.Duration(dice.Int64N(int64(day))))
	}
}
