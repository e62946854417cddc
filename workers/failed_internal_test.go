package workers

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// The SDK calls fail from each of its workers, after two minutes of refusals.
func TestTheFirstWorkerThatStopsByItselfIsTold(t *testing.T) {
	t.Parallel()
	s := &Set{failed: make(chan error, 1)}
	first := errors.New("the namespace is gone")
	s.fail(first)
	s.fail(errors.New("so says the next one")) // must not block
	err := <-s.Failed()
	require.ErrorIs(t, err, first)
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err))
	require.Empty(t, s.Failed())
}
