package cli_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"

	"github.com/openhands/boxkeeper/box"
)

// slowly lets a box take a while to run; leases end meanwhile as in a workflow.
func slowly(fake *fakeTemporal, workspace string, takes time.Duration) (began time.Time) {
	began = time.Now()
	fake.clock = func() time.Time { return now.Add(time.Since(began)) }
	fake.add(workspace, box.StateResuming)
	fake.after = func(f *box.Facts) {
		f.Advance(fake.clock())
		if time.Since(began) >= takes {
			f.State = box.StateRunning
		}
	}
	return began
}

func TestAHoldLastsWhileItsBoxIsOnItsWay(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"by the policy": {},
		"as asked for":  {"--lease", "3m"},
		"a short one":   {"--lease", "2s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				fake := newFake()
				slowly(fake, "mine", 10*time.Minute)
				got := runWith(t, fake, append([]string{"box", "connect", "mine", "--holder", "h", "--wait", "--timeout", "15m", "-o", "json"}, args...)...)
				require.Equal(t, 0, got.code, got.stderr)
				var answer box.ConnectAnswer
				require.NoError(t, json.Unmarshal([]byte(got.stdout), &answer))
				lease := 2 * time.Minute
				if len(args) > 0 {
					lease, _ = time.ParseDuration(args[1])
				}
				require.Len(t, fake.facts["mine"].Holders, 1)
				assert.False(t, answer.LeaseUntil.Before(fake.clock().Add(lease)), "all of the lease is left when the box is there")
				assert.Equal(t, answer.LeaseUntil, fake.facts["mine"].Holders[0].Until)
			})
		})
	}
}

func TestAHoldLastsWhileNoWorkerAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		began := slowly(fake, "mine", 8*time.Minute)
		after := fake.after
		fake.after = func(f *box.Facts) {
			after(f)
			if since := time.Since(began); since > time.Minute && since < 2*time.Minute {
				fake.fail["query"], fake.fail["update"] = serviceerror.NewUnavailable("restarting"), serviceerror.NewUnavailable("restarting")
				time.AfterFunc(5*time.Minute, func() {
					fake.mu.Lock()
					defer fake.mu.Unlock()
					delete(fake.fail, "query")
					delete(fake.fail, "update")
				})
			}
		}
		got := runWith(t, fake, "box", "connect", "mine", "--holder", "h", "--wait", "--timeout", "15m")
		require.Equal(t, 0, got.code, got.stderr)
		require.Len(t, fake.facts["mine"].Holders, 1)
	})
}

func TestAHoldThatIsTakenAwayEndsTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		began := slowly(fake, "mine", time.Hour)
		after := fake.after
		fake.after = func(f *box.Facts) {
			after(f)
			if time.Since(began) > time.Minute {
				f.Holders, f.State = nil, box.StateSuspending
				f.Transitions = append(f.Transitions, box.Transition{To: f.State, Reason: box.Reason{Code: box.ReasonRequested, Text: "suspend asked for by ann"}})
			}
		}
		got := runWith(t, fake, "box", "connect", "mine", "--holder", "h", "--wait", "--timeout", "30m")
		assert.Equal(t, 7, got.code)
		assert.Contains(t, got.stderr, "waited for running, and it is suspending: the hold h was ended meanwhile: suspend asked for by ann; connect again if it is still needed")
		assert.Less(t, time.Since(began), 2*time.Minute)
		assert.Empty(t, fake.facts["mine"].Holders, "a hold that somebody ended is not taken again")
	})
}

// A lease runs from when a hold was taken, however late its answer is read.
func TestAHoldWhoseLeaseIsHalfOverIsRenewedInTime(t *testing.T) {
	t.Parallel()
	connect := func(more ...string) []string {
		return append([]string{"box", "connect", "mine", "--holder", "h", "--timeout", "15m", "-o", "json"}, more...)
	}
	for name, taken := range map[string]func(*testing.T, *fakeTemporal) []string{
		"its answer is late": func(_ *testing.T, fake *fakeTemporal) []string {
			fake.late = 100 * time.Second
			return connect("--wait")
		},
		"its answer was lost, and the request is repeated": func(t *testing.T, fake *fakeTemporal) []string {
			t.Helper()
			got := runWith(t, fake, connect("--request-id", "r")...)
			require.Equal(t, 0, got.code, got.stderr)
			time.Sleep(100 * time.Second)
			return connect("--request-id", "r", "--wait")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				fake := newFake()
				slowly(fake, "mine", 10*time.Minute)
				got := runWith(t, fake, taken(t, fake)...)
				require.Equal(t, 0, got.code, got.stderr)
				require.Len(t, fake.facts["mine"].Holders, 1)
			})
		})
	}
}

// A box that runs and is no more held than anybody can say is not said to be held.
func TestAHoldThatNobodySawIsNotToldOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		began := slowly(fake, "mine", time.Minute)
		after := fake.after
		fake.after = func(f *box.Facts) {
			after(f)
			if time.Since(began) >= 50*time.Second {
				f.Holders = nil
				f.State = box.StateRunning
				fake.fail["update"] = serviceerror.NewUnavailable("restarting")
			}
		}
		got := runWith(t, fake, "box", "connect", "mine", "--holder", "h", "--wait", "--timeout", "15m")
		assert.NotEqual(t, 0, got.code, got.stdout)
	})
}
