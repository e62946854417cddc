package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// TestABoxAtAnInstanceThatNobodyServes says so, and its workspace ends when a person
// wants it to, by a worker of another instance; no provider is asked anything.
func TestABoxAtAnInstanceThatNobodyServes(t *testing.T) {
	t.Parallel()
	l, cloud, _ := inMemory(t, "never-made", fakebox.DefaultRow())
	_, errs, code := l.run("box", "create", l.ws, "--provider", "away", "--owner", "ann")
	require.NotZero(t, code)
	require.Contains(t, errs, "away")
	l.do("box", "create", l.ws, "--provider", "away", "--owner", "ann", "--unserved") // the id is still free

	// Two minutes of real time: the engine skips none while a step waits for a worker.
	var why box.Why
	eventually(t, 4*time.Minute, func() error {
		if why = l.why(); why.Failure == nil || !why.Failure.Unserved || why.NextReason.Code == "" {
			return fmt.Errorf("%+v", why.Failure)
		}
		return nil
	})
	require.Equal(t, box.StateCreating, why.State)
	require.Contains(t, why.NextReason.Text, box.ActivityQueue("away"))

	loss := replyOf[box.Loss](l, "box", "delete", l.ws)
	l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann")
	l.await(box.StateBoxArchived)
	require.Empty(t, cloud.Calls())
	_, errs, code = l.run("box", "create", l.ws, "--provider", l.provider.Name(), "--owner", "ann")
	require.NotZero(t, code)
	require.Contains(t, errs, "closed")
	golden(t, l.node.engine.Address(), l.ws, "never-made")
}
