package box_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// What is empty and says nothing is left out of an answer, also where it was
// there before: a list whose last entry went is as empty as one that never was.
func TestAnswersHoldNothingEmpty(t *testing.T) {
	t.Parallel()
	w := awake(t)
	r := box.ConnectRequest{Request: box.Request{ID: "c"}, HolderID: "tab"}
	answers := []any{w.facts.StatusAt(w.now), w.facts.Connect(r, w.now), w.facts.StatusAt(w.now), w.facts.WhyAt(w.now)}
	w.facts.Release("tab", w.now)
	answers = append(answers, w.facts.StatusAt(w.now), w.facts.WhyAt(w.now), w.facts.Connect(r, w.now))
	w.pass(time.Hour)
	w.state(box.StateSuspended)
	answers = append(answers, w.facts.StatusAt(w.now), w.facts.WhyAt(w.now))
	for _, answer := range answers {
		text, err := json.Marshal(answer)
		require.NoError(t, err)
		for _, noise := range []string{`:null`, `:[]`, `:{}`, `"0001-01-01`} {
			require.NotContains(t, string(text), noise, "%T", answer)
		}
	}
}
