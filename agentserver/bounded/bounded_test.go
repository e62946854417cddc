package bounded_test

import (
	"errors"
	"sync/atomic"
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

		answer := make(chan struct{})
		var undone, asked atomic.Int64
		look := func(place string) error {
			_, err := bounded.In(&l, nil, place, time.Second, func() (int, error) {
				asked.Add(1)
				if place == "stuck" {
					<-answer
				}
				return 7, nil
			}, func(n int) { undone.Add(int64(n)) })
			return err
		}
		began := time.Now()
		for range 3 {
			require.Equal(t, box.ClassDeadlineExceeded, box.ClassOf(look("stuck")))
		}
		require.Equal(t, time.Second, time.Since(began), "one waits for all")
		require.EqualValues(t, 1, asked.Load(), "and nobody else is sent there")
		require.NoError(t, look("another place"))
		close(answer)
		synctest.Wait()
		require.EqualValues(t, 7, undone.Load())
		require.NoError(t, look("stuck"), "it answers again")
	})
}

// Others are not kept away by somebody who gave up, unless it really is stuck.
func TestWhoGivesUpDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l bounded.Looks
		given, answer := make(chan struct{}), make(chan struct{})
		var undone atomic.Int64
		close(given)
		_, err := bounded.In(&l, given, "a", time.Second, func() (int, error) { <-answer; return 7, nil }, func(n int) { undone.Add(int64(n)) })
		require.Equal(t, box.ClassCanceled, box.ClassOf(err))
		look := func() error {
			_, err := bounded.In(&l, nil, "a", time.Second, func() (int, error) { return 0, nil }, nil)
			return err
		}
		require.NoError(t, look())
		time.Sleep(2 * time.Second)
		require.Equal(t, box.ClassDeadlineExceeded, box.ClassOf(look()))
		close(answer)
		synctest.Wait()
		require.EqualValues(t, 7, undone.Load())
		require.NoError(t, look())
	})
}
