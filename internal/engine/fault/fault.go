// Package fault turns the ways in which the embedded server ends a process
// into an error that the process can act on.
//
// It exists because the server logs at fatal level when it meets a fault it
// cannot go on with, and the process that embeds it also runs boxes and a
// gateway. It must never let such an entry pass unseen, and links nothing of
// the server. Package engine calls it.
package fault

import (
	"errors"
	"runtime"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/openhands/boxkeeper/box"
)

// Fault is where the failure of a running engine ends up, the first one only.
// Its methods are safe for concurrent use.
type Fault struct {
	done  chan struct{}
	once  sync.Once
	cause error
}

// New returns a Fault with no failure.
func New() *Fault { return &Fault{done: make(chan struct{})} }

// Done is closed at the failure.
func (f *Fault) Done() <-chan struct{} { return f.done }

// Set records a failure.
func (f *Fault) Set(err error) {
	f.once.Do(func() {
		f.cause = err
		close(f.done)
	})
}

// Retire makes later failures count for nothing: a server that is being stopped
// meets many.
func (f *Fault) Retire() { f.once.Do(func() {}) }

// Err returns the failure, nil while there is none.
func (f *Fault) Err() error {
	select {
	case <-f.done:
		return f.cause
	default:
		return nil
	}
}

// OnWrite makes Fault the hook of a logger's fatal entries: it records the
// failure and ends the goroutine that met it.
func (f *Fault) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	cause := errors.New(entry.Message)
	for _, field := range fields {
		if err, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			cause = err
		}
	}
	f.Set(box.Errorf(box.ClassInternal, "the engine failed (%s): %w", entry.Message, cause))
	runtime.Goexit()
}

// Guard runs a step of the server's start, in which a fatal entry ends the
// step, and returns the failure or the step's error.
func (f *Fault) Guard(step func() error) error {
	result := make(chan error, 1)
	go func() {
		err := errors.New("the server's start was cut off")
		defer func() { result <- err }()
		err = step()
	}()
	err := <-result
	if cause := f.Err(); cause != nil {
		return cause
	}
	return err
}

// Logger returns base with fatal entries ending in f, and entries below level,
// which may be changed while it is in use, left out.
func (f *Fault) Logger(base *zap.Logger, level zap.AtomicLevel) *zap.Logger {
	return base.WithOptions(
		zap.WithFatalHook(f),
		zap.WrapCore(func(core zapcore.Core) zapcore.Core { return bounded{core, level} }),
	)
}

// bounded is a core that drops entries under a level that can be changed while
// it runs. Fatal entries always pass: the server goes on after one that does
// not, with whatever it was missing.
type bounded struct {
	zapcore.Core
	level zap.AtomicLevel
}

func (b bounded) Enabled(l zapcore.Level) bool {
	return l >= zapcore.FatalLevel || (b.level.Enabled(l) && b.Core.Enabled(l))
}

func (b bounded) With(fields []zapcore.Field) zapcore.Core {
	return bounded{b.Core.With(fields), b.level}
}

func (b bounded) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !b.Enabled(entry.Level) {
		return checked
	}
	return b.Core.Check(entry, checked)
}
