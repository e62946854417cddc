package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func TestAnInstanceThatIsOffHereUsesUpNoID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		fake.unserved = map[string]bool{"boxkeeper-prod": true, "boxkeeper-none": true}
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "boxkeeper.toml"), []byte("[providers.prod]\ndriver = \"digitalocean\"\n[providers.local]\n"), 0o600))
		for _, args := range [][]string{{"create", "mine", "--provider", "prod"}, {"create", "mine", "--provider", "prod", "--wait"}, {"adopt", "prod", "id-1", "--workspace", "mine"}} {
			got := runIn(t, fake, dir, "", append([]string{"box"}, args...)...)
			assert.Equal(t, 5, got.code, got.stderr)
			assert.Contains(t, got.stderr, `"prod" (task queue boxkeeper-prod)`)
			assert.Contains(t, got.stderr, "it is off here: it has no credentials: nothing is at env:DIGITALOCEAN_TOKEN")
			assert.Contains(t, got.stderr, "the id mine is still free")
		}
		got := runIn(t, fake, dir, "", "box", "adopt", "none", "id-1", "--workspace", "mine")
		assert.Equal(t, 5, got.code, "a misspelt name uses up no id either: %s", got.stderr)
		require.Empty(t, fake.started)

		got = runIn(t, fake, dir, "", "box", "create", "mine", "--provider", "prod", "--unserved")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Contains(t, got.stderr, "no worker serves the task queue boxkeeper-prod now")
		delete(fake.unserved, "boxkeeper-prod")
		got = runIn(t, fake, dir, "", "box", "create", "other", "--provider", "prod")
		assert.Equal(t, 0, got.code, "another machine serves it: %s", got.stderr)
	})
}

func TestAMissingWorkerIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("mine", box.StateCreating)
	fake.unserved = map[string]bool{"boxkeeper-local": true}
	for _, command := range []string{"show", "why"} {
		got := runWith(t, fake, "box", command, "mine")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Contains(t, got.stderr, "no worker serves the task queue boxkeeper-local now, so create waits; start one with", command)
	}
	fake.unserved = nil
	assert.Empty(t, runWith(t, fake, "box", "why", "mine").stderr)
	fake.unserved = map[string]bool{"boxkeeper-local": true}
	fake.add("resting", box.StateRunning)
	assert.Empty(t, runWith(t, fake, "box", "why", "resting").stderr, "nothing waits for a worker")
}

func TestAWaitSaysWhyItStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		f := fake.add("mine", box.StateCreating)
		looks := 0
		fake.after = func(f *box.Facts) {
			if looks++; looks%4 == 0 { // each try of these fails anew
				text := "the account has no more room"
				if looks >= 20 {
					text = "the image is not there"
				}
				f.Failure = &box.Failure{Step: box.StepCreate, Class: box.ClassUnavailable, Count: looks / 4, Message: text}
			}
		}
		got := runWith(t, fake, "box", "resume", "mine", "--wait", "--timeout", "2m")
		assert.Equal(t, 6, got.code)
		assert.Equal(t, 1, strings.Count(got.stderr, "no more room"), "once, and not at each try: %s", got.stderr)
		assert.Contains(t, got.stderr, "the image is not there")
		assert.Contains(t, got.stderr, "not running after 2m: it is creating: ")
		last := got.stderr[strings.LastIndex(got.stderr, "not running after"):]
		assert.Contains(t, last, "the image is not there", "the end says it too")
		require.NotNil(t, f)
	})
}

func TestConnectSaysHowOldItsWordIs(t *testing.T) {
	t.Parallel()
	seen := func(fake *fakeTemporal, ago time.Duration) *box.Facts {
		f := fake.add("mine", box.StateRunning)
		f.Observed, f.ObservedAt = box.Observation{Phase: box.PhaseRunning, Evidence: "up"}, now.Add(-ago)
		return f
	}
	t.Run("without a wait", func(t *testing.T) {
		t.Parallel()
		fake := newFake()
		f := seen(fake, 3*time.Hour)
		got := runWith(t, fake, "box", "connect", "mine")
		require.Equal(t, 0, got.code, got.stderr)
		assert.Contains(t, got.stdout, "Last seen at the provider: running, 3h ago")
		assert.False(t, f.Look, "nothing is read for that")
	})
	t.Run("a wait goes by a new look", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			fake := newFake()
			f := seen(fake, 3*time.Hour)
			fake.after = func(f *box.Facts) {
				if f.Look {
					f.Look, f.ObservedAt = false, now.Add(time.Second)
				}
			}
			got := runWith(t, fake, "box", "connect", "mine", "--wait")
			require.Equal(t, 0, got.code, got.stderr)
			assert.False(t, f.Look)
			assert.Contains(t, got.stderr, "last seen at its provider 3h ago, so it is read again")
		})
	})
	t.Run("a provider that does not answer is no success", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			fake := newFake()
			f := seen(fake, 3*time.Hour)
			fake.after = func(f *box.Facts) {
				f.Failure = &box.Failure{Step: box.StepObserve, Class: box.ClassUnavailable, Count: 2, Message: "the engine does not answer"}
			}
			got := runWith(t, fake, "box", "connect", "mine", "--wait", "--timeout", "1m")
			assert.Equal(t, 6, got.code)
			assert.Contains(t, got.stderr, "the engine does not answer")
			assert.True(t, f.Look)
		})
	})
	t.Run("a look of a moment ago is good enough", func(t *testing.T) {
		t.Parallel()
		fake := newFake()
		f := seen(fake, 30*time.Second)
		got := runWith(t, fake, "box", "connect", "mine", "--wait")
		require.Equal(t, 0, got.code, got.stderr)
		assert.False(t, f.Look)
	})
}
