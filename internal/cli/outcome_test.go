package cli_test

import (
	"context"
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

func TestNoTemporalAndNoWorkerAreSaid(t *testing.T) {
	t.Parallel()
	down := runWith(t, nil, "box", "show", "mine")
	assert.Equal(t, 5, down.code)
	assert.Contains(t, down.stderr, "temporal.test:7233")
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		fake.add("mine", box.StateRunning)
		fake.noWorker = true
		began := time.Now()
		for _, args := range [][]string{{"show"}, {"suspend"}, {"delete"}, {"connect", "--wait"}} {
			got := runWith(t, fake, append([]string{"box", args[0], "mine"}, args[1:]...)...)
			assert.Equal(t, 5, got.code, got.stderr)
			assert.Contains(t, got.stderr, "no worker serves the task queue boxkeeper")
			assert.Contains(t, got.stderr, "nothing was sent")
		}
		assert.Less(t, time.Since(began), 20*time.Second)
		assert.Empty(t, fake.updates)
		got := runWith(t, fake, "box", "create", "other")
		assert.Equal(t, 0, got.code)
		assert.Contains(t, got.stderr, "begins when a worker is up")
		require.NotNil(t, fake.facts["other"])
		waited := runWith(t, fake, "box", "create", "third", "--wait")
		assert.Equal(t, 5, waited.code)
		assert.Contains(t, waited.stderr, "workspace third is recorded")
		assert.NotContains(t, waited.stderr, "nothing was sent")
		require.NotNil(t, fake.facts["third"])
		fake.fail["describe-queue"] = context.DeadlineExceeded
		assert.Equal(t, 6, runWith(t, fake, "box", "show", "mine").code, "no answer is not the same as no worker")
	})
}

func TestAnUnknownOutcomeNamesTheSafeRepeat(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("mine", box.StateRunning)
	fake.lost["update"] = true
	got := runWith(t, fake, "box", "connect", "mine", "--origin", "my laptop")
	assert.Equal(t, 6, got.code)
	id := regexp.MustCompile(`--request-id=(cli-[0-9a-f]{16})`).FindStringSubmatch(got.stderr)
	require.NotNil(t, id, got.stderr)
	assert.Contains(t, got.stderr, "boxkeeper box connect mine --origin 'my laptop' --request-id=")
	fake.lost["update"] = false
	again := runWith(t, fake, "box", "connect", "mine", "--origin", "my laptop", "--request-id="+id[1])
	require.Equal(t, 0, again.code, again.stderr)
	assert.Equal(t, id[1], fake.updates[0].UpdateID)
	assert.Equal(t, id[1], fake.updates[1].UpdateID)
	assert.Len(t, fake.facts["mine"].Holders, 1, "asking again holds once")

	for _, err := range []error{serviceerror.NewUnavailable("gone"), serviceerror.NewCanceled("x"), context.DeadlineExceeded, serviceerror.NewInternal("boom")} {
		fake.fail["update"] = err
		got := runWith(t, fake, "box", "suspend", "mine", "--request-id", "mine-1", "-o", "json")
		assert.Equal(t, 6, got.code, "%T", err)
		assert.Contains(t, got.stderr, `"request_id": "mine-1"`)
		assert.Contains(t, got.stderr, `"repeat": "boxkeeper box suspend mine --request-id mine-1 -o json"`)
	}
	fake.fail["update"] = serviceerror.NewPermissionDenied("no", "")
	assert.Equal(t, 1, runWith(t, fake, "box", "suspend", "mine").code, "a refusal is no unknown outcome")
	assert.Equal(t, 2, runWith(t, fake, "box", "suspend", "mine", "--request-id", "with space").code)
}

func TestWaitEndsAtTheState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		f := fake.add("mine", box.StateSuspended)
		states := []box.State{box.StateResuming, box.StateStarting, box.StateRunning}
		fake.after = func(f *box.Facts) {
			if len(states) > 0 {
				f.State, states = states[0], states[1:]
			}
		}
		got := runWith(t, fake, "box", "connect", "mine", "--holder", "h", "--wait")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Contains(t, got.stdout, "mine is running.")
		assert.Contains(t, got.stdout, "boxkeeper box release mine --holder h")
		assert.Equal(t, 4, strings.Count(got.stderr, "\n"), "one note for each state:\n%s", got.stderr)

		f.State, fake.after = box.StateCreating, func(f *box.Facts) { f.State = box.StateCreateFailed }
		got = runWith(t, fake, "box", "connect", "mine", "--wait")
		assert.Equal(t, 7, got.code)
		assert.Contains(t, got.stderr, "waited for running, and it is create-failed")

		looks := 0
		f.State, fake.after = box.StateResuming, func(f *box.Facts) {
			if looks++; looks == 1 {
				fake.fail["query"] = serviceerror.NewUnavailable("restarting")
				go func() {
					time.Sleep(time.Minute)
					fake.mu.Lock()
					defer fake.mu.Unlock()
					fake.fail["query"], f.State = nil, box.StateRunning
				}()
			}
		}
		got = runWith(t, fake, "box", "resume", "mine", "--wait")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Equal(t, 1, strings.Count(got.stderr, "still waiting"), "a restart is waited for")

		// The request was taken: a first look that a busy worker does not answer
		// in time says nothing about it.
		f.State, fake.after = box.StateRunning, nil
		fake.fail["query"] = serviceerror.NewDeadlineExceeded("query timed out")
		go func() {
			time.Sleep(20 * time.Second)
			fake.mu.Lock()
			defer fake.mu.Unlock()
			fake.fail["query"] = nil
		}()
		got = runWith(t, fake, "box", "resume", "mine", "--wait")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Equal(t, 1, strings.Count(got.stderr, "still waiting"), got.stderr)

		f.State, fake.after = box.StateRunning, nil
		got = runWith(t, fake, "box", "suspend", "mine", "--wait", "--timeout", "10s")
		assert.Equal(t, 6, got.code)
		assert.Contains(t, got.stderr, "not suspended after 10s: it is running: asked for by ann; the request stands")
	})
}
