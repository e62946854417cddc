package box_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// mostJitter is the most that an idle timer is armed late on purpose.
const mostJitter = 20 * time.Second

// armedFor reports whether a timer that has got to go is one for a deadline in
// due, which may be armed a little late and never early.
func armedFor(got, due time.Duration) bool { return got >= due && got < due+mostJitter }

func TestDeadlinesThatFallTogetherAreSpread(t *testing.T) {
	t.Parallel()
	// armed returns the wait of a box that is idle from now on, as people see it.
	armed := func(t *testing.T, workspace string, p box.Policy) (*world, time.Duration) {
		t.Helper()
		w := awake(t, func(s *box.Spec) { s.Workspace, s.Policy = workspace, p })
		return w, w.facts.WhyAt(w.now).NextAt.Sub(w.now)
	}
	many := func(t *testing.T, p box.Policy) (perSecond map[time.Duration]int, first, last time.Duration) {
		t.Helper()
		perSecond, first = map[time.Duration]int{}, time.Hour
		for n := range 2000 {
			_, left := armed(t, fmt.Sprintf("created-together-%d", n), p)
			first, last = min(first, left-p.Idle.Std()), max(last, left-p.Idle.Std())
			perSecond[left.Truncate(time.Second)]++
		}
		return perSecond, first, last
	}

	t.Run("2,000 boxes that were created together fall due over 18 s, none early", func(t *testing.T) {
		t.Parallel()
		perSecond, first, last := many(t, box.Policy{Idle: box.Duration(idle)})
		require.GreaterOrEqual(t, first, time.Duration(0))
		require.Less(t, last, idle/50)
		for second, n := range perSecond {
			require.Less(t, n, 2*2000/18, "%s", second)
		}
	})
	t.Run("a long idle time is moved by 20 s at most, a short one by a fiftieth", func(t *testing.T) {
		t.Parallel()
		_, _, last := many(t, box.Policy{Idle: box.Duration(10 * time.Hour)})
		require.Less(t, last, mostJitter)
		require.Greater(t, last, mostJitter-time.Second)
		_, _, last = many(t, box.Policy{Idle: box.Duration(4 * time.Second)})
		require.Less(t, last, 80*time.Millisecond)
		require.Positive(t, last)
	})
	t.Run("why, status and the answer to set-policy tell the time that is armed, the same each time", func(t *testing.T) {
		t.Parallel()
		w, left := armed(t, "spread", box.Policy{Idle: box.Duration(time.Hour)})
		require.Greater(t, left, time.Hour, "this name is moved")
		step := box.Next(w.facts, w.now)
		require.Equal(t, w.now.Add(time.Hour), step.At, "the deadline itself stays")
		set := w.facts.Armed(step)
		require.Equal(t, w.now.Add(left), set.At)
		set.At = step.At
		require.Equal(t, step, set, "nothing else is changed")
		w.now = w.now.Add(10 * time.Minute)
		require.Equal(t, left-10*time.Minute, w.facts.StatusAt(w.now).NextAt.Sub(w.now))
		answer := w.facts.SetPolicy(box.SetPolicyAsk{Request: box.Request{ID: "p"}, Policy: box.Policy{Idle: box.Duration(2 * time.Hour)}}, w.now)
		require.Equal(t, left-10*time.Minute, answer.NextBefore.Sub(w.now))
		w.facts.SkipRecord()
		require.Equal(t, w.facts.WhyAt(w.now).NextAt, answer.NextAfter)
	})
	t.Run("an event between the deadline and the armed time is not waited out", func(t *testing.T) {
		t.Parallel()
		w, _ := armed(t, "spread", box.Policy{Idle: box.Duration(time.Hour)})
		w.now = w.now.Add(time.Hour)
		require.Equal(t, box.StepQuiesce, box.Next(w.facts, w.now).Kind)
	})
	t.Run("the hard maximum is not moved, and comes first where jitter would pass it", func(t *testing.T) {
		t.Parallel()
		w, left := armed(t, "spread", box.Policy{Idle: box.Duration(time.Hour), MaxRun: box.Duration(time.Hour + time.Millisecond)})
		require.Equal(t, time.Hour, left)
		require.Equal(t, box.PurposeIdle, box.Next(w.facts, w.now).Purpose)
		_, left = armed(t, "spread", box.Policy{Idle: box.Never, MaxRun: box.Duration(time.Hour)})
		require.Equal(t, time.Hour, left)
	})
	t.Run("notice, expiry, reminder and undo window are kept to the moment, and the notice names the armed time", func(t *testing.T) {
		t.Parallel()
		w, _ := armed(t, "spread", box.Policy{MaxRun: box.Never}) // no wall that hides a move
		exact := func(due time.Time, then box.StepKind) {
			t.Helper()
			step := w.settle()
			require.Equal(t, then, step.Then)
			require.Equal(t, due, step.At)
			require.Equal(t, due, w.facts.WhyAt(w.now).NextAt)
			w.now = step.At
		}
		w.toSuspended()
		since := w.facts.SuspendedSince
		exact(since.Add(27*day), box.StepNotify)
		notice := box.Next(w.facts, w.now)
		require.Equal(t, since.Add(30*day), notice.At)
		require.Contains(t, notice.Reason.Text, "it expires at "+since.Add(30*day).Format("2006-01-02 15:04 MST"))
		exact(since.Add(30*day), box.StepNotify)
		exact(since.Add(31*day), box.StepNotify)
		w.confirm(w.requestUndo(box.Duration(day)).Token)
		exact(w.now.Add(day), box.StepDelete)
	})
}
