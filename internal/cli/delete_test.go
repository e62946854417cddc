package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"

	"github.com/openhands/boxkeeper/box"
)

func TestDeleteShowsTheLossAndTheCommandThatConfirms(t *testing.T) {
	t.Parallel()
	fake := newFake()
	f := fake.add("mine", box.StateSuspended)
	got := runWith(t, fake, "box", "delete", "mine", "--namespace", "my ns")
	require.Equal(t, 0, got.code, got.stderr)
	token := f.Deletion.Token
	golden(t, "delete", strings.ReplaceAll(got.stdout, token, "TOKEN"))
	assert.Contains(t, got.stdout, "boxkeeper box confirm mine --token "+token+" --namespace 'my ns'")
	assert.False(t, f.Deletion.Confirmed, "asking confirms nothing")
	asJSON := runWith(t, fake, "box", "delete", "mine", "-o", "json")
	var loss box.Loss
	require.NoError(t, json.Unmarshal([]byte(asJSON.stdout), &loss))
	assert.Equal(t, token, loss.Token, "nothing changed, so the token is the same")
	assert.Equal(t, 2, runWith(t, fake, "box", "delete", "mine", "--undo", "never").code)
}

func TestConfirmSaysWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		f := fake.add("mine", box.StateSuspended)
		none := runWith(t, fake, "box", "confirm", "mine", "--token", "beef")
		assert.Equal(t, 4, none.code)
		assert.Contains(t, none.stderr, "no deletion was requested")

		require.Equal(t, 0, runWith(t, fake, "box", "delete", "mine", "--undo", "1h").code)
		wrong := runWith(t, fake, "box", "confirm", "mine", "--token", "beef")
		assert.Equal(t, 4, wrong.code, wrong.stdout)
		assert.Contains(t, wrong.stderr, "not of the newest request")
		assert.False(t, f.Deletion.Confirmed)

		got := runWith(t, fake, "box", "confirm", "mine", "--token", f.Deletion.Token, "--by", "ann")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Contains(t, got.stdout, "accepted")
		assert.Contains(t, got.stdout, "until 2026-05-01 13:00:00Z it can be taken back")
		assert.Equal(t, "ann", f.Deletion.ConfirmedBy)
		again := runWith(t, fake, "box", "confirm", "mine", "--token", f.Deletion.Token)
		assert.Equal(t, 0, again.code, "a repeat is the same confirmation")

		back := runWith(t, fake, "box", "cancel", "mine", "-o", "json")
		require.Equal(t, 0, back.code, back.stderr)
		assert.Contains(t, back.stdout, `"verdict": "accepted"`)
		assert.Nil(t, f.Deletion)
		late := runWith(t, fake, "box", "confirm", "mine", "--token", got.stdout[:4])
		assert.Equal(t, 4, late.code)
		assert.Equal(t, 2, runWith(t, fake, "box", "confirm", "mine").code)
	})
}

func TestAnOldRefusalIsNotTheAnswerToANewConfirmation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		fake.slow = time.Second
		f := fake.add("mine", box.StateSuspended)
		require.Equal(t, 0, runWith(t, fake, "box", "delete", "mine").code)
		f.Frozen = true
		refused := runWith(t, fake, "box", "confirm", "mine", "--token", f.Deletion.Token)
		assert.Equal(t, 4, refused.code, refused.stdout)
		assert.Contains(t, refused.stderr, "frozen")
		f.Frozen = false
		got := runWith(t, fake, "box", "confirm", "mine", "--token", f.Deletion.Token)
		require.Equal(t, 0, got.code, got.stderr)
		assert.Contains(t, got.stdout, "accepted")
	})
}

func TestConfirmWaitsForTheArchive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		f := fake.add("mine", box.StateSuspended)
		require.Equal(t, 0, runWith(t, fake, "box", "delete", "mine").code)
		states := []box.State{box.StateExporting, box.StateDeleting, box.StateBoxArchived}
		fake.after = func(f *box.Facts) {
			if f.Deletion.Confirmed && len(states) > 0 {
				f.State, states = states[0], states[1:]
			}
		}
		got := runWith(t, fake, "box", "confirm", "mine", "--token", f.Deletion.Token, "--wait", "-o", "json")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Contains(t, got.stdout, `"state": "box-archived"`)
		again := runWith(t, fake, "box", "confirm", "mine", "--token", f.Deletion.Token, "--wait")
		require.Equal(t, 0, again.code, again.stderr)
		assert.Contains(t, again.stdout, "gone already")

		f = fake.add("mine", box.StateSuspended)
		fake.after = nil
		require.Equal(t, 0, runWith(t, fake, "box", "delete", "mine").code)
		fake.after = func(f *box.Facts) {
			if f.Deletion != nil && f.Deletion.Confirmed {
				f.State = box.StateDeleteBlocked
			}
		}
		blocked := runWith(t, fake, "box", "confirm", "mine", "--token", f.Deletion.Token, "--wait")
		assert.Equal(t, 7, blocked.code)
		assert.Contains(t, blocked.stderr, "delete-blocked")

		f = fake.add("mine", box.StateSuspended)
		fake.after = nil
		require.Equal(t, 0, runWith(t, fake, "box", "delete", "mine").code)
		looks := 0
		fake.after = func(f *box.Facts) {
			if looks++; looks == 4 {
				f.CancelDelete(box.CancelDelete{By: "bob"}, now.Add(time.Second))
			}
		}
		off := runWith(t, fake, "box", "confirm", "mine", "--token", f.Deletion.Token, "--wait")
		assert.Equal(t, 7, off.code, off.stdout)
		assert.Contains(t, off.stderr, "taken back by bob")
	})
}

func TestConfirmIsKeptWithNoWorkerUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		f := fake.add("mine", box.StateSuspended)
		require.Equal(t, 0, runWith(t, fake, "box", "delete", "mine").code)
		fake.noWorker = true
		got := runWith(t, fake, "box", "confirm", "mine", "--token", f.Deletion.Token)
		require.Equal(t, 0, got.code, got.stderr)
		assert.Contains(t, got.stdout, "mine: sent: it is recorded")
		assert.True(t, f.Deletion.Confirmed)
		waited := runWith(t, fake, "box", "confirm", "mine", "--token", f.Deletion.Token, "--wait")
		assert.Equal(t, 5, waited.code, "there is nothing to wait for, and it says so before it sends")
		fake.fail["signal"] = serviceerror.NewUnavailable("gone")
		lost := runWith(t, fake, "box", "cancel", "mine", "--by", "ann")
		assert.Equal(t, 6, lost.code)
		assert.Contains(t, lost.stderr, "boxkeeper box cancel mine --by ann")
	})
}

func TestTooLateToCancelIsSaid(t *testing.T) {
	t.Parallel()
	fake := newFake()
	f := fake.add("mine", box.StateDeleting)
	f.Deletion = &box.Deletion{Token: "t", Epoch: 1, Confirmed: true, Committed: true, Expires: now.Add(time.Hour)}
	got := runWith(t, fake, "box", "cancel", "mine")
	assert.Equal(t, 4, got.code)
	assert.Contains(t, got.stderr, "too late to take back")
}

func TestHoldsPoliciesAndSwitches(t *testing.T) {
	t.Parallel()
	fake := newFake()
	f := fake.add("mine", box.StateRunning)
	got := runWith(t, fake, "box", "connect", "mine", "--holder", "h", "--kind", "operation", "--lease", "10m")
	require.Equal(t, 0, got.code, got.stderr)
	require.Len(t, f.Holders, 1)
	assert.Equal(t, box.HolderOperation, f.Holders[0].Kind)
	assert.Contains(t, got.stdout, "until 2026-05-01 12:10:00Z (in 10m)")
	renewed := runWith(t, fake, "box", "renew", "mine", "--holder", "h", "--lease", "20m")
	assert.Contains(t, renewed.stdout, "until 2026-05-01 12:20:00Z")
	assert.Equal(t, 0, runWith(t, fake, "box", "release", "mine", "--holder", "h").code)
	assert.Empty(t, f.Holders)
	for _, bad := range [][]string{
		{"connect", "mine", "--lease", "never"},
		{"connect", "mine", "--kind", "love"},
		{"renew", "mine"},
		{"renew", "mine", "--holder", "h", "--lease", "never"},
		{"release", "mine"},
		{"reclaim", "mine", "--tier", "all"},
		{"watch", "mine", "--every", "1ms"},
	} {
		assert.Equal(t, 2, runWith(t, fake, append([]string{"box"}, bad...)...).code, bad)
	}

	got = runWith(t, fake, "box", "policy", "mine", "--idle", "2h")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Equal(t, box.Duration(2*time.Hour), f.Policy.Idle)
	assert.Regexp(t, `idle: +2h`, got.stdout)
	shown := runWith(t, fake, "box", "policy", "mine", "-o", "json")
	assert.Contains(t, shown.stdout, `"idle": "2h"`)
	bad := runWith(t, fake, "box", "policy", "mine", "--holder-lease", "never")
	assert.Equal(t, 2, bad.code)
	assert.Contains(t, bad.stderr, "policy.holder_lease")

	assert.Equal(t, 0, runWith(t, fake, "box", "keep", "mine").code)
	assert.True(t, f.Kept)
	assert.Equal(t, 0, runWith(t, fake, "box", "keep", "mine", "--off").code)
	assert.False(t, f.Kept)
	assert.Equal(t, 0, runWith(t, fake, "box", "freeze", "mine").code)
	assert.True(t, f.Frozen)
}

func TestReclaimPlansThenTakesThePlan(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("mine", box.StateRunning)
	got := runWith(t, fake, "box", "reclaim", "mine", "--dry-run", "--tier", "caches")
	require.Equal(t, 0, got.code, got.stderr)
	golden(t, "reclaim", got.stdout)
	taken := runWith(t, fake, "box", "reclaim", "mine", "--plan", "plan-1")
	assert.Contains(t, taken.stdout, "3.0 MiB were deleted; the disk has 2.0 MiB more free.")
	fake.add("mine", box.StateSuspended)
	assert.Equal(t, 4, runWith(t, fake, "box", "reclaim", "mine").code)
}

func TestWhatIsWrongWithAReclaimIsNamedByItsFlag(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("mine", box.StateRunning)
	const whose = "0f0e0d0c0b0a09080706050403020100"
	for want, args := range map[string][]string{
		`--tier: "all" is not known`:                                      {"--tier", "all"},
		`--conversation: "../x" is not the id of a conversation`:          {"--conversation", whose, "--conversation", "../x"},
		"--accept-unsaved: is for tier runtime of conversations that are": {"--accept-unsaved"},
	} {
		got := runWith(t, fake, append([]string{"box", "reclaim", "mine"}, args...)...)
		assert.Equal(t, 2, got.code, got.stderr)
		assert.Contains(t, got.stderr, "Error: "+want)
	}
}

func TestExportAnswersItsReceipt(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("mine", box.StateRunning).Receipt = box.Receipt{Workspace: "mine", Epoch: 1, Key: "exports/mine/k", SHA256: "abc", Bytes: 5, Conversations: 1, Events: 3, Digest: "d"}
	got := runWith(t, fake, "box", "export", "mine")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, "Exported and read back: 1 conversation, 3 events, 5 B.")
	assert.Contains(t, got.stdout, "abc")
}

func TestWatchFollowsUntilTheArchive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		fake.add("mine", box.StateRunning)
		step := 0
		fake.after = func(f *box.Facts) {
			switch step++; step {
			case 2:
				fake.noWorker = true
				fake.fail["query"] = serviceerror.NewUnavailable("away")
				go func() {
					time.Sleep(20 * time.Second)
					fake.mu.Lock()
					defer fake.mu.Unlock()
					fake.noWorker, fake.fail["query"] = false, nil
				}()
			case 1, 3, 4:
				f.Transitions = append(f.Transitions, box.Transition{
					At: now.Add(time.Duration(step) * time.Minute), From: f.State, To: box.State(fmt.Sprintf("s%d", step)), Reason: box.Reason{Text: "because\x1b"},
				})
			case 5:
				f.State = box.StateBoxArchived
			}
		}
		got := runWith(t, fake, "box", "watch", "mine")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Equal(t, `2026-05-01 11:00:00Z  - -> creating: asked for by ann
2026-05-01 12:01:00Z  running -> s1: because\x1b
2026-05-01 12:03:00Z  running -> s3: because\x1b
2026-05-01 12:04:00Z  running -> s4: because\x1b
`, got.stdout)
		assert.Equal(t, 1, strings.Count(got.stderr, "still watching"), got.stderr)
		assert.Contains(t, got.stderr, "answers again")
	})
}

func TestWatchEndsWhenInterruptedAndWritesJSONLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		fake.add("mine", box.StateRunning)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got := runContext(ctx, t, fake, t.TempDir(), "", "box", "watch", "mine", "-o", "json")
		assert.Equal(t, 0, got.code, got.stderr)
		require.Equal(t, 1, strings.Count(got.stdout, "\n"))
		var line box.Transition
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &line))
		assert.Equal(t, box.StateCreating, line.To)
	})
}

func TestNothingRawReachesATerminal(t *testing.T) {
	t.Parallel()
	fake := newFake()
	f := fake.add("mine", box.StateRunning)
	const evil = "\x1b]0;owned\x07\u009b2J\u202e\r\n"
	f.Spec.Owner, f.Spec.Provider, f.Ref.Name = evil, evil, evil
	f.Holders = []box.Holder{{ID: evil, Kind: box.HolderKind(evil), Origin: evil, Until: now.Add(time.Minute)}}
	f.Transitions[0].Reason.Text, f.Transitions[0].To = evil, box.State(evil)
	f.Failure = &box.Failure{Step: box.StepKind(evil), Message: evil, Count: 1}
	raw := regexp.MustCompile("[\x00-\x09\x0b-\x1f\x7f\u0080-\u009f\u202e]")
	for _, args := range [][]string{
		{"show", "mine"},
		{"why", "mine"},
		{"list"},
		{"watch", "mine"},
		{"connect", "mine", "--holder", "h"},
		{"delete", "mine"},
		{"policy", "mine"},
		{"show", "mine", "-o", "json"},
		{"why", "mine", "-o", "json"},
		{"list", "-o", "json"},
		{"watch", "mine", "-o", "json"},
		{"show", evil},
		{evil},
		{"create", evil},
		{"show", "mine", "--" + evil},
		{"connect", "mine", "--holder", "h", "--kind", evil},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if args[0] == "watch" {
			fake.after = func(*box.Facts) { cancel() }
		}
		fake.add("a", box.StateRunning)
		fake.add("b", box.StateRunning)
		got := runContext(ctx, t, fake, t.TempDir(), "", append([]string{"box"}, args...)...)
		cancel()
		assert.NotRegexp(t, raw, got.stdout, args)
		assert.NotRegexp(t, raw, got.stderr, args)
		assert.NotEmpty(t, got.stdout+got.stderr, args)
	}
}
