package docker

import (
	"context"
	"sync"
)

// locks keeps the calls of this process on one box apart. Between processes
// nothing does: there the engine's own answers decide, and what is written is
// written so that it may be written twice.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	turn  chan struct{} // holds one token while somebody has it
	users int
}

// take waits for the lock of name; the returned function gives it back.
func (l *locks) take(ctx context.Context, name string) (func(), error) {
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
		return nil, ended(ctx)
	}
	if err := ended(ctx); err != nil { // while it waited somebody else may have gone on
		<-one.turn
		leave()
		return nil, err
	}
	return func() {
		<-one.turn
		leave()
	}, nil
}
