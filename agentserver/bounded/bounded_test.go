package bounded_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/bounded"
	"github.com/openhands/boxkeeper/box"
)

func TestWhatDoesNotComeBackIsLeftToItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l bounded.Looks
		fault := errors.New("no such file")
		_, err := bounded.In(&l, nil, "a", time.Second, func() (int, error) { return 0, fault }, nil)
		require.ErrorIs(t, err, fault)

		answer, undone, asked := make(chan struct{}), 0, 0
		look := func(place string) error {
			_, err := bounded.In(&l, nil, place, time.Second, func() (int, error) {
				asked++
				if place == "stuck" {
					<-answer
				}
				return 7, nil
			}, func(n int) { undone += n })
			return err
		}
		began := time.Now()
		for range 3 {
			require.Equal(t, box.ClassDeadlineExceeded, box.ClassOf(look("stuck")))
		}
		require.Equal(t, time.Second, time.Since(began), "one waits for all")
		require.Equal(t, 1, asked, "and nobody else is sent there")
		require.NoError(t, look("another place"))
		close(answer)
		synctest.Wait()
		require.Equal(t, 7, undone)
		require.NoError(t, look("stuck"), "it answers again")
	})
}

func TestWhoGivesUpDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l bounded.Looks
		given, answer := make(chan struct{}), make(chan struct{})
		close(given)
		_, err := bounded.In(&l, given, "a", time.Hour, func() (int, error) { <-answer; return 0, nil }, nil)
		require.Equal(t, box.ClassCanceled, box.ClassOf(err))
		close(answer)
	})
}
