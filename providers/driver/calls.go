package driver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Ended returns the error of a context that is over, of class Canceled or
// DeadlineExceeded, and nil for one that is not. A driver asks it right before
// each change.
func Ended(ctx context.Context) error {
	switch err := ctx.Err(); {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return box.Errorf(box.ClassDeadlineExceeded, "%w", err)
	default:
		return box.Errorf(box.ClassCanceled, "%w", err)
	}
}

// ClassOf is the ErrorClass of a driver whose errors are all of type [box.Error].
func ClassOf(err error) (class box.Class, retryAfter time.Duration) {
	if e, ok := errors.AsType[*box.Error](err); ok {
		return e.Class, e.RetryAfter
	}
	return box.ClassUnknown, 0
}

// Unreachable returns why a box of this name that was seen in a phase has no
// endpoint, in the classes that [Driver.Endpoint] asks for; nil for one that runs.
// Said is the evidence of the phase.
func Unreachable(name string, phase box.Phase, said string) error {
	switch phase {
	case box.PhaseRunning:
		return nil
	case box.PhaseStarting:
		return box.Errorf(box.ClassUnavailable, "box %s is being started (%s); ask again", name, said)
	case box.PhaseGone:
		return box.Errorf(box.ClassNotFound, "there is no box %s: %s", name, said)
	case box.PhaseSuspended, box.PhaseFailed:
		return box.Errorf(box.ClassFailedPrecondition, "box %s is %s (%s); resume it first", name, phase, said)
	case box.PhaseUnknown:
	}
	return box.Errorf(box.ClassUnknown, "what box %s does is unknown (%s); look again", name, said)
}

// Variables returns Env and SecretEnv as one, for a program that gets those of
// fixed from its driver beside them, the one with the session key for one. Those
// are not in the answer. Invalid: a name or a value that no environment can hold,
// or one that is ours to set.
func (s Start) Variables(fixed map[string]string) (map[string]string, error) {
	out := map[string]string{}
	add := func(field, name, value string) error {
		switch _, taken := fixed[name]; {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return box.Invalidf(field, "%q is not a name of an environment variable", name)
		case strings.ContainsRune(value, 0):
			return box.Invalidf(field+"."+name, "the value holds a NUL byte")
		case taken || strings.HasPrefix(name, "BOXKEEPER_") || strings.HasPrefix(name, "OH_SESSION_API_KEYS_"):
			return box.Invalidf(field+"."+name, "is set by boxkeeper; leave it out")
		}
		out[name] = value
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		if err := add("env", name, s.Env[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.SecretEnv)) {
		if _, twice := s.Env[name]; twice {
			return nil, box.Invalidf("env."+name, "is given under secrets too; keep one of them")
		}
		if err := add("secrets", name, s.SecretEnv[name].Reveal()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Locks keeps the calls of this process on one box apart. The zero value is
// ready for use. Between processes nothing does that: there the provider's own
// answers decide, and what is written is written so that it may be written twice.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	turn  chan struct{} // holds one token while somebody has it
	users int
}

// Take waits for the lock of a box's name; the returned function gives it back.
// The error is that of [Ended], also when ctx ended while it waited.
func (l *Locks) Take(ctx context.Context, name string) (release func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	one := l.held[name]
	if one == nil {
		one = &lock{turn: make(chan struct{}, 1)}
		l.held[name] = one
	}
	one.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.held, name)
		}
	}
	select {
	case one.turn <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, Ended(ctx)
	}
	if err := Ended(ctx); err != nil { // while it waited somebody else may have gone on
		<-one.turn
		leave()
		return nil, err
	}
	return func() {
		<-one.turn
		leave()
	}, nil
}
