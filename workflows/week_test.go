package workflows_test

import (
	"fmt"
	"testing"
	"time"

	"go.temporal.io/sdk/testsuite"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/race"
)

// TestAWeekOfSuspendedBoxesIsSilent lets 1,000 boxes fall idle and then a week
// pass: no step runs, so neither provider nor box is asked anything, and no timer
// of the workflow fires. The notice after 27 days shows that the count counts.
func TestAWeekOfSuspendedBoxesIsSilent(t *testing.T) {
	t.Parallel()
	type count struct{ steps, fired int }
	for n := range 1000 / race.Slowness {
		p := newPlay(t)
		p.spec.Workspace = fmt.Sprint("asleep-", n)
		fired := 0
		p.at(0, func(env *testsuite.TestWorkflowEnvironment) {
			env.SetOnTimerFiredListener(func(string) { fired++ })
		})
		var asleep, weekLater, told count
		note := func(after time.Duration, into *count) {
			statusOf(p, after, func(s box.Status) {
				if s.State != box.StateSuspended {
					t.Errorf("state %s after %s", s.State, after)
				}
				*into = count{len(p.box.log), fired}
			})
		}
		note(time.Hour, &asleep)
		note(time.Hour+7*day, &weekLater)
		note(28*day, &told)
		p.stop(28*day + time.Hour)
		_ = p.run()
		if want := (count{5, 1}); asleep != want || weekLater != want {
			t.Fatalf("box %d: %+v before the week and %+v after it, want %+v: five steps after one timer", n, asleep, weekLater, want)
		}
		if want := (count{6, 2}); told != want || len(p.box.notices) != 1 {
			t.Fatalf("box %d: %+v and %d notices by the day of the notice, want %+v", n, told, len(p.box.notices), want)
		}
	}
}
