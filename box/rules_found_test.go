package box_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// What the properties found, each as the shortest life that shows it.
func TestWhatThePropertiesFound(t *testing.T) {
	t.Parallel()
	t.Run("a resume takes an agreed deletion back also while the box still runs", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		loss := w.requestDelete()
		w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
		r := box.Request{ID: "r", By: "ben"}
		require.NoError(t, w.facts.CheckResume(r))
		require.Contains(t, w.facts.Resume(r, w.now).Text, "taken back")
		w.pass(day)
		w.state(box.StateSuspended)
		require.Nil(t, w.facts.Deletion)
		require.Nil(t, w.facts.ResumeWanted, "the wish is fulfilled, and does not undo the next suspend")
	})
	for _, kind := range []box.StepKind{box.StepSuspend, box.StepResume} {
		t.Run("a provider that shows the box and does not find it for a "+string(kind)+" is asked ever more seldom", func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			if kind == box.StepResume {
				w.toSuspended()
				w.connect("tab")
			}
			w.fail[kind] = box.ClassNotFound
			w.pass(day)
			require.Less(t, w.did(kind), 300)
			require.Greater(t, w.did(kind), 2)
			delete(w.fail, kind)
			w.pass(day)
			w.state(box.StateSuspended)
			require.Nil(t, w.facts.Failure)
		})
	}
	t.Run("a box that is gone at last has no failure any more", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.fail[box.StepSuspend] = box.ClassNotFound
		w.pass(20 * time.Minute)
		w.exists = false
		w.pass(time.Hour)
		w.state(box.StateLost)
		require.Nil(t, w.facts.Failure)
	})
	t.Run("what a policy becomes is a policy that is accepted", func(t *testing.T) {
		t.Parallel()
		err := box.Policy{PausedTTL: box.Duration(time.Second)}.Validate()
		require.Equal(t, box.ClassInvalid, box.ClassOf(err))
		require.ErrorContains(t, err, "policy.paused_ttl")
		require.NoError(t, box.Policy{PausedTTL: box.Duration(2 * time.Second)}.Effective().Validate())
	})
}
