package workers

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestAWatchThatBreaksDoesNotFillTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		ctx, cancel := context.WithCancel(t.Context())
		var tries atomic.Int64
		up := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			keepOn(ctx, zap.New(core), func(ctx context.Context) error {
				tries.Add(1)
				select {
				case <-up:
					<-ctx.Done()
					return ctx.Err()
				case <-time.After(time.Millisecond): // it tells something, and ends
					return errors.New("connection refused")
				}
			})
		}()
		time.Sleep(time.Second)
		require.Equal(t, 1, logs.Len(), "it is said at once")
		time.Sleep(24 * time.Hour)
		require.Less(t, logs.FilterLevelExact(zap.WarnLevel).Len(), 15, "a day of it is a page")
		require.Greater(t, logs.FilterLevelExact(zap.WarnLevel).Len(), 5, "and not forgotten")
		require.InDelta(t, 24*60, tries.Load(), 60, "it is tried each minute")
		close(up)
		time.Sleep(5 * time.Minute)
		again := logs.FilterMessage("watching a provider works again").All()
		require.Len(t, again, 1)
		cancel()
		<-done
		require.Equal(t, again[0].Entry, logs.All()[logs.Len()-1].Entry, "an orderly end is no outage")
	})
}

func TestAWatchThatBreaksAnewIsSaidAnew(t *testing.T) {
	t.Parallel()
	var o outage
	at := time.Date(2026, 3, 1, 18, 0, 0, 0, time.UTC)
	pause, say := o.broke(at)
	require.True(t, say)
	require.Equal(t, watchAgain, pause)
	pause, say = o.broke(at.Add(5 * time.Second))
	require.False(t, say)
	require.Equal(t, 2*watchAgain, pause)
	lasted, ended := o.over(at.Add(time.Hour))
	require.True(t, ended)
	require.Equal(t, time.Hour, lasted)
	_, ended = o.over(at.Add(2 * time.Hour))
	require.False(t, ended)
	pause, say = o.broke(at.Add(3 * time.Hour))
	require.True(t, say)
	require.Equal(t, watchAgain, pause)
}
