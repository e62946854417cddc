package fault_test

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine/fault"
)

func TestAFatalEntryEndsTheStepAndNotTheProcess(t *testing.T) {
	t.Parallel()
	f := fault.New()
	core, entries := observer.New(zapcore.DebugLevel)
	logger := f.Logger(zap.New(core), zap.NewAtomicLevelAt(zapcore.WarnLevel))
	taken := errors.New("address already in use")
	var wentOn atomic.Bool
	err := f.Guard(func() error {
		logger.With(zap.String("service", "frontend")).Fatal("cannot listen", zap.Int("port", 1), zap.Error(taken))
		wentOn.Store(true)
		return nil
	})
	require.False(t, wentOn.Load(), "the server must not go on without its listener")
	require.ErrorIs(t, err, taken, "the cause stays reachable, for a retry with another port")
	require.Equal(t, box.ClassInternal, box.ClassOf(err))
	require.ErrorContains(t, err, "cannot listen")
	require.Equal(t, err, f.Err())
	<-f.Done()
	require.Equal(t, 1, entries.Len(), "it is logged too")
}

func TestAFatalEntryPassesEveryLevel(t *testing.T) {
	t.Parallel()
	for name, base := range map[string]*zap.Logger{
		"a silenced logger": zap.NewNop(),
		"a logger for panics": zap.New(func() zapcore.Core {
			core, _ := observer.New(zapcore.PanicLevel)
			return core
		}()),
	} {
		f := fault.New()
		logger := f.Logger(base, zap.NewAtomicLevelAt(zapcore.FatalLevel))
		// The server asks the core first and skips the entry, and so the hook,
		// when that says no.
		require.True(t, logger.Core().Enabled(zapcore.FatalLevel), name)
		require.True(t, logger.With(zap.Int("a", 1)).Core().Enabled(zapcore.FatalLevel), name)
		require.Error(t, f.Guard(func() error { logger.Fatal("no way on"); return nil }), name)
		require.ErrorContains(t, f.Err(), "no way on", name)
	}
}

func TestTheLevelCanBeRaisedWhileInUse(t *testing.T) {
	t.Parallel()
	core, entries := observer.New(zapcore.DebugLevel)
	level := zap.NewAtomicLevelAt(zapcore.WarnLevel)
	logger := fault.New().Logger(zap.New(core), level).With(zap.String("service", "history"))
	logger.Info("left out")
	logger.Warn("said")
	level.SetLevel(zapcore.FatalLevel)
	logger.Error("noise of a stop")
	require.Equal(t, 1, entries.Len())
	require.Equal(t, "said", entries.All()[0].Message)
}

func TestGuard(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	require.NoError(t, fault.New().Guard(func() error { return nil }))
	require.ErrorIs(t, fault.New().Guard(func() error { return refused }), refused)
	require.ErrorContains(t, fault.New().Guard(func() error { runtime.Goexit(); return nil }), "cut off")

	// A fault of another goroutine tells more than what the step returns.
	f := fault.New()
	first := errors.New("first")
	f.Set(first)
	f.Set(errors.New("second"))
	require.Equal(t, first, f.Guard(func() error { return refused }))
}

func TestRetiredFaultStaysSilent(t *testing.T) {
	t.Parallel()
	f := fault.New()
	f.Retire()
	f.Set(errors.New("met while stopping"))
	require.NoError(t, f.Err())
	select {
	case <-f.Done():
		t.Fatal("done without a fault")
	default:
	}
	f.Retire()
}
