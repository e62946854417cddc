package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/openhands/boxkeeper/box"
)

// TestAFailureIsToldOnce: a state that a failure led to has its message for a
// reason, and a person who waits reads it once.
func TestAFailureIsToldOnce(t *testing.T) {
	t.Parallel()
	failure := func(count int) *box.Failure {
		return &box.Failure{Step: box.StepCreate, Message: "no such key", Count: count}
	}
	for _, row := range []struct {
		name, reason   string
		failure        *box.Failure
		cause, because string
	}{
		{"none", "asked for", nil, "creating: asked for", "asked for"},
		{"beside the reason", "asked for", failure(2), "creating: asked for; create failed: no such key", "asked for; create failed 2 times: no such key"},
		{"that is the reason", "create: no such key", failure(1), "creating: create: no such key", "create: no such key"},
		{"that is the reason, again", "create: no such key", failure(3), "creating: create: no such key", "create: no such key; create failed 3 times"},
	} {
		s := box.Status{State: box.StateCreating, Reason: box.Reason{Text: row.reason}, Failure: row.failure}
		assert.Equal(t, row.cause, goal{}.cause(s), row.name)
		assert.Equal(t, row.because, because(s), row.name)
	}
}
